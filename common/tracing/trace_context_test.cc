#include "common/tracing/trace_context.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

constexpr char kGood[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

std::string WithVersion(const std::string& version, const std::string& rest = "") {
  return absl::StrCat(version, absl::string_view(kGood).substr(2), rest);
}

TEST(TraceparentTest, ReadsWhatTheRecommendationShows) {
  const auto context = ParseTraceparent(kGood);
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_high, 0x4bf92f3577b34da6u);
  EXPECT_EQ(context->trace_low, 0xa3ce929d0e0e4736u);
  EXPECT_EQ(context->span_id, 0x00f067aa0ba902b7u);
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(FormatTraceparent(*context), kGood);
  EXPECT_EQ(TraceIdText(*context), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(TraceIdText({}), "");
}

TEST(TraceparentTest, OnlyTheSampledFlagIsKnownAndSent) {
  for (const auto& [flags, sampled] : {std::pair("00", false), std::pair("01", true), std::pair("02", false),
                                       std::pair("fe", false), std::pair("ff", true)}) {
    const auto context = ParseTraceparent(absl::StrCat(absl::string_view(kGood).substr(0, 53), flags));
    ASSERT_TRUE(context.has_value()) << flags;
    EXPECT_EQ(context->sampled, sampled) << flags;
    EXPECT_EQ(FormatTraceparent(*context).substr(53), sampled ? "01" : "00");
  }
}

TEST(TraceparentTest, OneHalfOfATraceIdMayBeZero) {
  EXPECT_TRUE(ParseTraceparent("00-00000000000000000000000000000001-0000000000000001-00").has_value());
  EXPECT_TRUE(ParseTraceparent("00-00000000000000010000000000000000-0000000000000001-00").has_value());
}

TEST(TraceparentTest, LaterVersionsAreReadAsFarAsTheyAreAlike) {
  for (const std::string& text :
       {WithVersion("01"), WithVersion("cc"), WithVersion("fe", "-"), WithVersion("01", "-more-of-it"),
        WithVersion("01", "-what the future brings")}) {
    const auto context = ParseTraceparent(text);
    ASSERT_TRUE(context.has_value()) << text;
    EXPECT_EQ(FormatTraceparent(*context), kGood) << "sent on as version 00";
  }
}

TEST(TraceparentTest, WhatIsNotAllowedIsNoContext) {
  const std::string good = kGood;
  const auto replaced = [&](size_t at, char c) {
    std::string text = good;
    text[at] = c;
    return text;
  };
  std::vector<std::string> hostile = {
      "",
      "-",
      "00",
      good.substr(0, 54),
      good + "-",
      good + "-00",
      good + "0",
      good + " ",
      " " + good,
      WithVersion("01", "0"),
      WithVersion("01", ".more"),
      WithVersion("ff"),
      WithVersion("ff", "-more"),
      WithVersion("0g"),
      WithVersion("0A"),
      WithVersion("+1"),
      WithVersion("0x"),
      "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
      "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e473-600f067aa0ba902b7-01",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
      "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1 ",
      "00-                               1-00f067aa0ba902b7-01",
      "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
      good + "," + good,
      std::string(55, '-'),
      std::string(55, '0'),
      std::string(55, '\0'),
      WithVersion("01", "-" + std::string(1 << 20, 'a')),
  };
  for (const size_t dash : {2, 35, 52}) hostile.push_back(replaced(dash, '_'));
  for (const size_t digit : {0, 1, 3, 34, 36, 51, 53, 54}) {
    for (const char c : {'G', 'A', '-', ' ', '\0', '\xff'}) hostile.push_back(replaced(digit, c));
  }
  for (const std::string& text : hostile)
    EXPECT_FALSE(ParseTraceparent(text).has_value()) << text.substr(0, 80);
}

TEST(TracestateTest, PassesOnWhatIsWellFormed) {
  EXPECT_EQ(CombineTracestate({}), "");
  EXPECT_EQ(CombineTracestate({""}), "");
  EXPECT_EQ(CombineTracestate({"congo=t61rcWkgMzE"}), "congo=t61rcWkgMzE");
  EXPECT_EQ(CombineTracestate({" a=1 ,\tb=2,, c=3 4", "fw529a3039@dt=FfAAAM"}),
            "a=1,b=2,c=3 4,fw529a3039@dt=FfAAAM");
  const std::string longest_key = "k" + std::string(255, 'x');
  EXPECT_EQ(CombineTracestate({longest_key + "=v"}), longest_key + "=v");
}

TEST(TracestateTest, WhatIsMalformedIsDroppedWhole) {
  for (const std::string& text : {std::string("a"),
                                  std::string("=1"),
                                  std::string("a="),
                                  std::string("A=1"),
                                  std::string("1a=1"),
                                  std::string("a b=1"),
                                  std::string("a=1=2"),
                                  std::string("a=\x01"),
                                  std::string("a=\x7f"),
                                  std::string("a=\xc3\xa4"),
                                  std::string("a=1,a=2"),
                                  std::string("@b=1"),
                                  std::string("a@=1"),
                                  std::string("a@1b=1"),
                                  std::string("a@b@c=1"),
                                  std::string("a=1;b=2\n"),
                                  "k" + std::string(256, 'x') + "=1",
                                  "a=" + std::string(257, 'v'),
                                  "a@" + std::string(15, 's') + "=1",
                                  std::string(242, 't') + "@s=1"}) {
    EXPECT_EQ(CombineTracestate({text}), "") << text;
    EXPECT_EQ(CombineTracestate({"good=1", text}), "") << text;
  }
  EXPECT_EQ(CombineTracestate({"a=1", "a=2"}), "") << "a key twice, in two headers";
}

TEST(TracestateTest, IsBounded) {
  std::string members = "k0=v";
  for (int i = 1; i < 32; ++i) absl::StrAppend(&members, ",k", i, "=v");
  EXPECT_EQ(CombineTracestate({members}), members);
  EXPECT_EQ(CombineTracestate({members + ",k32=v"}), "");
  // Long members go first, then the last ones.
  const std::string medium(100, 'm');
  const std::string text = absl::StrCat("a=", medium, ",b=", std::string(200, 'l'), ",c=", medium,
                                        ",d=", medium, ",e=", medium, ",f=", medium);
  const std::string kept = CombineTracestate({text});
  EXPECT_EQ(kept, absl::StrCat("a=", medium, ",c=", medium, ",d=", medium, ",e=", medium));
  EXPECT_LE(kept.size(), kMaxTracestateBytes);
  EXPECT_EQ(CombineTracestate({std::string(1 << 20, ',')}), "");
}

TEST(TraceContextTest, AStateWithoutAParentIsNothing) {
  EXPECT_EQ(ParseTraceContext(kGood, "a=1").state, "a=1");
  EXPECT_EQ(ParseTraceContext(kGood, "A=1").state, "");
  EXPECT_TRUE(ParseTraceContext(kGood, "A=1").valid()) << "the parent is good all the same";
  const TraceContext none = ParseTraceContext("nonsense", "a=1");
  EXPECT_FALSE(none.valid());
  EXPECT_EQ(none.state, "");
}

}  // namespace
}  // namespace tandem

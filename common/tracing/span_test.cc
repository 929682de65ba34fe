#include "common/tracing/span.h"

#include <limits>
#include <string>

#include "common/base/random_bits.h"
#include "common/tracing/testing/span_collector.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

const absl::Time kStart = absl::FromUnixSeconds(1000);

class SpanTest : public ::testing::Test {
 protected:
  Tracer::Options Options(double ratio) {
    return {.sample_ratio = ratio, .sink = &collector_, .draw = [this] { return next_++; }};
  }
  static TraceContext Parent(bool sampled) {
    return {.trace_high = 0xaa, .trace_low = 0xbb, .span_id = 0xcc, .sampled = sampled, .state = "v=1"};
  }

  SpanCollector collector_;
  uint64_t next_ = 0;  // The first draw is 0, which is no id.
};

TEST_F(SpanTest, ARootBeginsATraceAndChildrenAreInIt) {
  const Tracer tracer(Options(1.0));
  Span root = tracer.StartServer("call", {}, kStart);
  ASSERT_TRUE(root.recording());
  EXPECT_TRUE(root.context().valid());
  EXPECT_TRUE(root.context().sampled);
  Span child = root.Child("part", SpanKind::kClient, kStart + absl::Seconds(1));
  EXPECT_NE(child.context().span_id, root.context().span_id);
  EXPECT_EQ(child.context().trace_low, root.context().trace_low);
  child.End(kStart + absl::Seconds(2));
  root.End(kStart + absl::Seconds(3));
  root.End(kStart + absl::Seconds(4));
  const std::vector<SpanRecord> spans = collector_.spans();
  ASSERT_THAT(spans, SizeIs(2));
  EXPECT_EQ(spans[0].name, "part");
  EXPECT_EQ(spans[0].kind, SpanKind::kClient);
  EXPECT_EQ(spans[0].parent_id, root.context().span_id);
  EXPECT_EQ(spans[1].parent_id, 0u);
  EXPECT_EQ(spans[1].kind, SpanKind::kServer);
  EXPECT_EQ(spans[1].end, kStart + absl::Seconds(3)) << "only the first end counts";
}

TEST_F(SpanTest, TheParentsDecisionHoldsWhateverTheRatio) {
  for (const double ratio : {0.0, 1.0}) {
    const Tracer tracer(Options(ratio));
    Span sampled = tracer.StartServer("call", Parent(true), kStart);
    EXPECT_TRUE(sampled.recording()) << ratio;
    EXPECT_EQ(sampled.context().trace_high, 0xaau);
    EXPECT_NE(sampled.context().span_id, 0xccu);
    EXPECT_EQ(sampled.context().state, "v=1");
    const Span passed = tracer.StartServer("call", Parent(false), kStart);
    EXPECT_FALSE(passed.recording()) << ratio;
    EXPECT_EQ(FormatTraceparent(passed.context()), FormatTraceparent(Parent(false))) << "it goes through";
    EXPECT_EQ(passed.context().state, "v=1");
    EXPECT_FALSE(passed.Child("part", SpanKind::kInternal, kStart).recording());
  }
}

TEST_F(SpanTest, RootsAreSampledByTheirIdsShare) {
  for (const double ratio : {0.0, 0.25, 0.9, std::numeric_limits<double>::quiet_NaN()}) {
    SCOPED_TRACE(ratio);
    Tracer::Options options = Options(ratio);
    options.draw = SystemRandomBits();
    const Tracer tracer(options);
    int sampled = 0;
    constexpr int kRoots = 4000;
    for (int i = 0; i < kRoots; ++i) {
      const Span root = tracer.StartServer("call", {}, kStart);
      EXPECT_TRUE(root.context().valid());
      EXPECT_EQ(root.context().sampled, root.recording());
      sampled += root.recording() ? 1 : 0;
    }
    const double expected = ratio == ratio ? ratio * kRoots : 0.0;
    EXPECT_NEAR(sampled, expected, expected == 0.0 ? 0.0 : 250.0);
  }
  // The same id is decided alike everywhere: its lower 63 bits against the ratio.
  for (const auto& [low, expected] :
       {std::pair(uint64_t{1}, true), std::pair(~uint64_t{0} >> 2, true), std::pair(~uint64_t{0} >> 1, false),
        std::pair(~uint64_t{0}, false), std::pair(uint64_t{1} << 63 | 1, true)}) {
    Tracer::Options options = Options(0.5 + 1e-9);
    options.draw = [low = low] { return low; };
    EXPECT_EQ(Tracer(options).StartServer("call", {}, kStart).recording(), expected) << low;
  }
}

TEST_F(SpanTest, WithoutASinkNothingIsRecordedAndContextsGoThrough) {
  const Span passed = Tracer::Off().StartServer("call", Parent(true), kStart);
  EXPECT_FALSE(passed.recording());
  EXPECT_EQ(FormatTraceparent(passed.context()), FormatTraceparent(Parent(true)));
  Span fresh = Tracer::Off().StartServer("call", {}, kStart);
  EXPECT_TRUE(fresh.context().valid()) << "logs have an id to tell";
  EXPECT_FALSE(fresh.context().sampled);
  fresh.Set("key", "value");
  fresh.SetStatus(absl::StatusCode::kInternal);
  fresh.End(kStart);
}

TEST_F(SpanTest, AttributesAreBoundedUtf8) {
  const Tracer tracer(Options(1.0));
  Span span = tracer.StartServer("call", {}, kStart);
  span.Set("text", std::string("a\xff") + std::string(1000, 'b'));
  span.Set("list", std::vector<std::string>{"one", "\xc3"});
  span.Set("large", ~uint64_t{0});
  span.Set("flag", true);
  span.Set("share", 0.5);
  span.SetServer("[::1]:7002");
  span.End(kStart);
  const SpanRecord record = collector_.spans().at(0);
  const auto* text = AttributeOf<std::string>(record, "text");
  ASSERT_NE(text, nullptr);
  EXPECT_EQ(text->size(), kMaxAttributeBytes);
  EXPECT_EQ(text->substr(0, 5),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_THAT(*AttributeOf<std::vector<std::string>>(record, "list"), ElementsAre("one", "\xEF\xBF\xBD"));
  EXPECT_EQ(*AttributeOf<int64_t>(record, "large"), std::numeric_limits<int64_t>::max());
  EXPECT_TRUE(*AttributeOf<bool>(record, "flag"));
  EXPECT_EQ(*AttributeOf<double>(record, "share"), 0.5);
  EXPECT_EQ(*AttributeOf<std::string>(record, "server.address"), "[::1]");
  EXPECT_EQ(*AttributeOf<int64_t>(record, "server.port"), 7002);
}

TEST_F(SpanTest, AServersSpanFailsByItsOwnFaultOnly) {
  const Tracer tracer(Options(1.0));
  for (const auto code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kInternal}) {
    Span server = tracer.StartServer("call", {}, kStart);
    Span client = server.Child("attempt", SpanKind::kClient, kStart);
    client.SetStatus(code);
    client.End(kStart);
    server.SetStatus(code);
    server.End(kStart);
  }
  const std::vector<SpanRecord> spans = collector_.spans();
  ASSERT_THAT(spans, SizeIs(4));
  EXPECT_TRUE(spans[0].failed);
  EXPECT_FALSE(spans[1].failed) << "the caller's argument";
  EXPECT_EQ(*AttributeOf<int64_t>(spans[1], "rpc.grpc.status_code"), 3);
  EXPECT_EQ(*AttributeOf<std::string>(spans[1], "error.type"), "INVALID_ARGUMENT");
  EXPECT_TRUE(spans[2].failed);
  EXPECT_TRUE(spans[3].failed);
}

TEST_F(SpanTest, WhatHasNoEndIsNotTold) {
  const Tracer tracer(Options(1.0));
  { const Span dropped = tracer.StartServer("call", {}, kStart); }
  EXPECT_THAT(collector_.spans(), SizeIs(0));
  Span backwards = tracer.StartServer("call", {}, kStart);
  backwards.End(kStart - absl::Seconds(5));
  EXPECT_EQ(collector_.spans().at(0).end, kStart) << "a clock that was set back";
}

}  // namespace
}  // namespace tandem

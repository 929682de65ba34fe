// What constraints may cost under a vocabulary as large as models have. The compiler's process may have
// little memory here, so that what takes too much of it does not pass for what was refused in time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/steady_clock.h"
#include "common/grammar/compile_job.h"
#include "common/grammar/compile_process.h"
#include "common/grammar/constraint.h"
#include "common/grammar/constraint_compiler.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using Form = ConstraintSource::Form;
using Named = std::pair<const char*, ConstraintSource>;

constexpr size_t kWords = 49'000;
constexpr size_t kProcessBytes = size_t{400} << 20;
// Ten times what they take on a slow core, since others may have it too.
constexpr absl::Duration kMostCpuTime = absl::Seconds(10);

std::shared_ptr<const GrammarVocabulary> LargeVocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  std::mt19937_64 random(1);
  while (tokens.size() < kWords) {
    std::string word(random() % 2, ' ');
    for (size_t letters = 2 + random() % 8; letters > 0; --letters)
      word.push_back("etaoinshrdlucmfwypvbgkjqxzETAOINS0123456789_-.,:;\"'(){}[]\n\\/"[random() % 60 /
                                                                                       (1 + random() % 3)]);
    tokens.push_back(std::move(word));
  }
  tokens.emplace_back();
  const auto end = static_cast<TokenId>(tokens.size() - 1);
  return GrammarVocabulary::Create(std::move(tokens), {end}).value();
}

// `part` of each number below `count`, with a comma between.
template <typename Part>
std::string List(int count, const Part& part) {
  std::vector<std::string> parts;
  for (int i = 0; i < count; ++i) parts.push_back(part(i));
  return absl::StrJoin(parts, ",");
}

ConstraintSource ValuesOf(std::string text) {
  return {.form = Form::kJsonSchema, .text = std::move(text), .any_whitespace = true};
}
ConstraintSource MatchesOf(std::string text) {
  return {.form = Form::kRegex, .text = std::move(text)};
}
ConstraintSource TextsOf(std::string text) {
  return {.form = Form::kGrammar, .text = std::move(text)};
}

std::string LookAheads(absl::string_view letters) {
  std::string regex = "^";
  for (const char c : letters) absl::StrAppend(&regex, "(?=.*", std::string(1, c), ")");
  return regex + ".*$";
}

std::string Members(int count, bool required) {
  constexpr const char* kTypes[] = {"string", "integer", "number", "boolean"};
  const auto member = [&](int i) {
    return absl::StrCat("\"property_", i, "\":{\"type\":\"", kTypes[i % 4], "\"}");
  };
  const auto name = [](int i) { return absl::StrCat("\"property_", i, "\""); };
  return absl::StrCat(R"({"type":"object","additionalProperties":false,"properties":{)", List(count, member),
                      "}", required ? absl::StrCat(",\"required\":[", List(count, name), "]") : "", "}");
}

// Each definition refers to the next one twice.
std::string Doubling(int depth, const char* before, const char* between, const char* behind) {
  const auto definition = [&](int i) {
    const std::string next = absl::StrCat("{\"$ref\":\"#/$defs/d", i + 1, "\"}");
    return absl::StrCat("\"d", i, "\":", before, next, between, next, behind);
  };
  return absl::StrCat(R"({"$ref":"#/$defs/d0","$defs":{)", List(depth, definition), ",\"d", depth,
                      "\":{\"type\":\"null\"}}}");
}

std::vector<Named> Hostile() {
  return {
      {"nine look-aheads", MatchesOf(LookAheads("abcdefghi"))},
      {"ten look-aheads", MatchesOf(LookAheads("abcdefghij"))},
      {"a long text anywhere", ValuesOf(R"({"type":"string","pattern":"a{1000}"})")},
      {"many rules for one text",
       TextsOf(absl::StrCat(
           "root ::= ",
           absl::StrReplaceAll(List(1500, [](int i) { return absl::StrCat("r", i); }), {{",", "|"}}), "\n",
           absl::StrReplaceAll(List(1500, [](int i) { return absl::StrCat("r", i, " ::= [a-z ]+"); }),
                               {{",", "\n"}})))},
  };
}

// What may be taken or refused, as long as it is either in time.
std::vector<Named> Large() {
  return {
      {"one of twenty optional integers",
       ValuesOf(absl::StrCat("{\"oneOf\":[",
                             List(20,
                                  [](int i) {
                                    return absl::StrCat(R"({"type":"object","properties":{"a)", i,
                                                        R"(":{"type":"integer"}}})");
                                  }),
                             "]}"))},
      {"names by five patterns",
       ValuesOf(absl::StrCat(
           R"({"type":"object","patternProperties":{)",
           List(5, [](int i) { return absl::StrCat("\"^(a|b)*a(a|b){", 7 + i, "}$\":{\"type\":\"null\"}"); }),
           "}}"))},
      {"any JSON in many branches",
       ValuesOf(absl::StrCat("{\"anyOf\":[", List(200, [](int) { return R"({"type":"array","items":{}})"; }),
                             "]}"))},
      {"a pattern with eight look-aheads",
       ValuesOf(absl::StrCat(R"({"type":"string","pattern":")", LookAheads("abcdefgh"), "\"}"))},
      {"a definition that doubles by branches",
       ValuesOf(Doubling(30, R"({"anyOf":[)", R"(,{"type":"array","items":)", "}]}"))},
  };
}

std::vector<Named> Useful() {
  std::vector<Named> useful = {
      {"a hundred members", ValuesOf(Members(100, true))},
      {"a hundred optional members", ValuesOf(Members(100, false))},
      {"twelve optional members", ValuesOf(Members(12, false))},
      {"two thousand values",
       ValuesOf(absl::StrCat(
           "{\"enum\":[",
           List(2'000, [](int i) { return absl::StrCat("\"", absl::Hex(i * 7919), "-", i, "\""); }), "]}"))},
      {"a password",
       ValuesOf(R"({"type":"string","pattern":"^(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9]{8,32}$"})")},
      {"three look-aheads", MatchesOf(LookAheads("abc"))},
      {"strings of all lengths",
       ValuesOf(absl::StrCat(R"({"type":"object","properties":{)",
                             List(10,
                                  [](int i) {
                                    return absl::StrCat("\"p", i, R"(":{"type":"string","maxLength":)",
                                                        50 + 37 * i, "}");
                                  }),
                             "}}"))},
      {"twenty definitions that refer to the next one twice",
       ValuesOf(Doubling(20, R"({"type":"object","properties":{"l":)", ",\"r\":", "}}"))},
  };
  useful.emplace_back(
      "thirty dates and times",
      ValuesOf(absl::StrCat(
          R"({"type":"object","properties":{)",
          List(30,
               [](int i) { return absl::StrCat("\"d", i, R"(":{"type":"string","format":"date-time"})"); }),
          "}}")));
  for (const char* format : {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6",
                             "uuid", "uri", "uri-reference", "uri-template", "json-pointer"}) {
    useful.emplace_back(format, ValuesOf(absl::StrCat(R"({"type":"string","format":")", format, "\"}")));
  }
  return useful;
}

class CompileBoundsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { vocabulary_ = LargeVocabulary(); }
  static void TearDownTestSuite() { vocabulary_.reset(); }

  void SetUp() override {
    process_ = CompileProcess::Start({.program = DefaultCompileProgram(),
                                      .max_bytes = kProcessBytes,
                                      .vocabulary = EncodeVocabulary(*vocabulary_)})
                   .value();
    ASSERT_TRUE(process_->Receive(absl::Minutes(1)).ok());
  }

  absl::StatusOr<std::string> Ask(const Named& named) {
    const auto& [name, source] = named;
    EXPECT_TRUE(CheckConstraint(source, {}).ok()) << name;
    const absl::Duration begin = process_->CpuTime();
    EXPECT_TRUE(process_->Send(source).ok()) << name;
    const absl::StatusOr<std::string> answer = process_->Receive(absl::Minutes(2));
    const absl::Duration took = process_->CpuTime() - begin;
    std::cout << name << ": " << took << ", "
              << (answer.ok() ? absl::StrCat(answer->size(), " bytes") : answer.status().ToString()) << "\n";
    EXPECT_LT(took, kMostCpuTime) << name;
    return answer;
  }

  static std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::unique_ptr<CompileProcess> process_;
};
std::shared_ptr<const GrammarVocabulary> CompileBoundsTest::vocabulary_;

TEST_F(CompileBoundsTest, WhatIsTooLargeIsRefusedBeforeItIsMade) {
  for (const Named& named : Hostile()) {
    const absl::Status status = Ask(named).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << named.first << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("too large")) << named.first;
  }
}

TEST_F(CompileBoundsTest, WhatIsLargeIsTakenOrRefusedInTime) {
  for (const Named& named : Large()) {
    const absl::Status status = Ask(named).status();
    if (status.ok()) continue;
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << named.first << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("too large")) << named.first;
  }
}

TEST_F(CompileBoundsTest, WhatPeopleUseIsTaken) {
  for (const Named& named : Useful()) EXPECT_TRUE(Ask(named).ok()) << named.first;
}

// In MiB, of this process.
double StatusMib(absl::string_view field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    double kib = 0.0;
    if (!absl::StartsWith(line, absl::StrCat(field, ":"))) continue;
    const std::string value = line.substr(field.size() + 1);
    EXPECT_TRUE(absl::SimpleAtod(value.substr(0, value.rfind(' ')), &kib)) << line;
    return kib / 1024.0;
  }
  ADD_FAILURE() << field << " is not known";
  return 0.0;
}

// A verifier's memory grows by its cache, and by what one constraint takes in each lane while it is read.
TEST_F(CompileBoundsTest, TheCacheAndWhatIsReadAreAllThatTakesMemory) {
  constexpr size_t kCacheMib = 64;
  constexpr double kMostReadMib = 150.0;
  std::vector<Named> all = Useful();
  for (int depth = 25; depth < 45; ++depth) {
    all.emplace_back("doubling",
                     ValuesOf(Doubling(depth, R"({"type":"object","required":["l","r"],"properties":{"l":)",
                                       ",\"r\":", "}}")));
  }
  for (std::vector<Named> more : {Large(), Hostile()}) {
    for (Named& named : more) all.push_back(std::move(named));
  }
  const double begin = StatusMib("VmRSS");
  std::ofstream("/proc/self/clear_refs") << "5";
  SteadyClock clock;
  {
    ConstraintCompiler compiler({.cache_bytes = kCacheMib << 20}, vocabulary_, &clock, nullptr);
    size_t taken = 0;
    for (const auto& [name, source] : all) {
      absl::Notification done;
      compiler.Compile(source, "tenant", absl::InfiniteFuture(),
                       [&](const absl::StatusOr<ConstraintCompiler::Compiled>& compiled) {
                         taken += compiled.ok() ? 1 : 0;
                         done.Notify();
                       });
      done.WaitForNotification();
    }
    EXPECT_GE(taken, 30u);
  }
  const double grown = StatusMib("VmHWM") - begin;
  std::cout << all.size() << " constraints: " << grown << " MiB more at most\n";
  EXPECT_LT(grown, static_cast<double>(kCacheMib) + kMostReadMib);
}

}  // namespace
}  // namespace tandem

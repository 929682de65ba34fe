#include "bench/plan/plan_file.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "bench/plan/cluster.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::plan {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kPlan[] = R"(title: A test
notes: [Nothing was measured.]
traffic:
  seconds: 20
  warm_up_seconds: 2
  rate: 3
  tenants:
    - name: acme
      kinds: {story: 3, code: 1}
      prompt_tokens: {mean: 50, deviation: 20, most: 400}
      output_tokens: 30
acceptance:
  files: [guesses.json]
  rates:
    - {kind: code, drafter: small, rates: [0.6, 0.1]}
layout:
  verifiers:
    count: 2
    price_per_hour: 3.5
    step: {grid: [[1, 64, 10], [64, 64, 20], [1, 512, 11], [64, 512, 25]]}
  drafters:
    - name: small
      price_per_hour: 0.5
      step: 1+0.1
  window: {policy: fixed, max_depth: 3}
  network: {client_ms: 2}
target: {first_token_p95_ms: 300}
sweep:
  verifiers: [1, 2]
  drafters: {small: [0, 1]}
  policies: [goodput, "off"]
)";
constexpr char kGuesses[] =
    R"({"format": 1, "guesses": [{"kind": "story", "drafter": "small", "outputs": [[[1, 0.9], [2, 0.5, 0.3],
        [0, 0.2, 0.1]]]}]})";

absl::StatusOr<std::string> ReadTestInput(const std::string& name) {
  if (name == "guesses.json") return kGuesses;
  if (name == "day.jsonl") {
    return R"({"at": 0.5, "tenant": "acme", "kind": "code", "prompt_tokens": 9, "output_tokens": 4})"
           "\n"
           R"({"at": 1.5, "kind": "verse", "prompt_tokens": 8, "output_tokens": 5})"
           "\n";
  }
  if (name == "engine.json") {
    return R"({"runs": [
      {"threads": 1, "context": 128, "passes": [{"rows": 1, "median_seconds": 0.5}, {"rows": 3, "median_seconds": 0.7}]},
      {"threads": 2, "context": 128, "passes": [{"rows": 1, "median_seconds": 0.3}, {"rows": 3, "median_seconds": 0.4}]}]})";
  }
  return absl::InvalidArgumentError(name + ": cannot be read");
}

// The plan with one text replaced by another.
absl::StatusOr<Plan> With(absl::string_view old, absl::string_view text) {
  const std::string yaml = absl::StrReplaceAll(kPlan, {{old, text}});
  EXPECT_NE(yaml, kPlan) << old;
  return ParsePlan(yaml, "plan.yaml", ReadTestInput);
}

TEST(PlanFileTest, ReadsEverything) {
  const absl::StatusOr<Plan> plan = ParsePlan(kPlan, "plan.yaml", ReadTestInput);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->title, "A test");
  EXPECT_THAT(plan->notes, ElementsAre("Nothing was measured."));
  EXPECT_THAT(plan->traffic.kinds, testing::UnorderedElementsAre("story", "code"));
  ASSERT_THAT(plan->traffic.tenants, SizeIs(1));
  EXPECT_EQ(plan->traffic.tenants[0].output.most, 30u);
  EXPECT_EQ(plan->layout.verifiers.count, 2u);
  EXPECT_EQ(plan->layout.verifiers.step.Of(64, 512), absl::Milliseconds(25));
  EXPECT_EQ(plan->layout.choice, DrafterChoice::kAuto);
  EXPECT_EQ(plan->layout.window.max_depth, 3u);
  EXPECT_THAT(plan->layout.PricePerHour(), DoubleNear(7.5, 1e-9));
  ASSERT_NE(plan->acceptance->Find("story", "small"), nullptr);
  EXPECT_THAT(plan->acceptance->Find("story", "small")->Rate(1), DoubleNear(1.0 / 3.0, 1e-9));
  EXPECT_THAT(plan->acceptance->Find("story", "small")->Rate(8), DoubleNear(2.0 / 3.0, 1e-9));
  EXPECT_EQ(plan->target->first_token_p95_ms, 300.0);
  EXPECT_THAT(plan->sweep.policies, ElementsAre("goodput", "off"));
  EXPECT_TRUE(CheckLayout(*plan, plan->layout).ok());
}

TEST(PlanFileTest, ReadsRecordedDaysAndMeasuredEngines) {
  const absl::StatusOr<Plan> day = With("rate: 3", "trace: day.jsonl");
  ASSERT_TRUE(day.ok()) << day.status();
  ASSERT_THAT(day->traffic.recorded, SizeIs(2));
  EXPECT_THAT(day->traffic.kinds, ElementsAre("code", "verse"));
  EXPECT_EQ(day->traffic.recorded[1].output_tokens, 5u);
  const absl::StatusOr<Plan> engine = With("step: 1+0.1", "step: {engine: engine.json, factor: 2}");
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ(engine->layout.drafters[0].step.Of(2, 1), absl::Milliseconds(700));
}

struct Refusal {
  const char* old;
  const char* text;
  const char* message;
};

TEST(PlanFileTest, RefusesWhatItDoesNotUnderstandAndSaysWhere) {
  for (const Refusal& refusal : std::vector<Refusal>{
           {"rate: 3", "rat: 3",
            "plan.yaml:6:3: traffic.rat is not known, did you mean \"rate\"?, expected one of seconds"},
           {"rate: 3", "rate: fast", "plan.yaml:6:9: traffic.rate: found \"fast\", expected a number"},
           {"rate: 3", "rate: -1", "found \"-1\", expected a number from 1e-06"},
           {"rate: 3", "rate: 3\n  concurrency: 2", "expected exactly one of rate, day, concurrency, trace"},
           {"rate: 3", "rate: 3\n  rate: 4", "traffic.rate occurs twice, expected once"},
           {"rate: 3", "trace: night.jsonl", "night.jsonl: cannot be read"},
           {"count: 2", "count: 0", "plan.yaml:18:12: layout.verifiers.count: found \"0\""},
           {"step: 1+0.1", "step: 1+x", "layout.drafters[0].step"},
           {"step: 1+0.1", "step: {pace: 1, grid: [[1, 1, 1]]}", "exactly one of pace, grid, engine"},
           {"step: 1+0.1", "step: {engine: engine.json, threads: 3}", "engine.json: no run has 3 threads"},
           {"[64, 512, 25]", "[63, 512, 25]", "every number of rows with every context"},
           {"[64, 512, 25]", "[64, 512]", "layout.verifiers.step.grid[3]"},
           {"policy: fixed", "policy: fxied", "layout.window.policy: found \"fxied\", expected one of"},
           {"name: small", "name: auto",
            "layout.drafters[0].name: found \"auto\", expected a unique name other"},
           {"small: [0, 1]", "large: [0, 1]", "sweep.drafters.large"},
           {"small: [0, 1]", "small: [0, -1]", "sweep.drafters.small: found \"-1\", expected a whole number"},
           {"[0.6, 0.1]", "[0.6, 0.7]", "acceptance.rates[0].rates: found 2 rates with a sum of 1.3"},
           {"output_tokens: 30", "output_tokens: 0", "tenants[0].output_tokens.mean: found \"0\""},
           {"name: acme", "share: 1", "traffic.tenants[0].name: missing, expected the tenant's name"},
           {"kinds: {story: 3, code: 1}", "kinds: {story: much}", "tenants[0].kinds.story: found \"much\""},
           {"title: A test", "title: [1]", "plan.yaml:1:8: title: found a list of 1, expected a text"},
           {"target: {", "target: {speed: 3, ", "target.speed is not known"}}) {
    const absl::StatusOr<Plan> plan = With(refusal.old, refusal.text);
    EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument) << refusal.text;
    EXPECT_THAT(std::string(plan.status().message()), HasSubstr(refusal.message)) << refusal.text;
  }
}

TEST(PlanFileTest, RefusesBrokenRecordings) {
  for (const auto& [line, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "day.jsonl: no requests"},
           {"[]", "day.jsonl:1: found []"},
           {R"({"at": 1, "prompt_tokens": 0, "output_tokens": 1})", "field prompt_tokens"},
           {R"({"at": 1, "prompt_tokens": 1})", "field output_tokens"},
           {R"({"at": 1, "tenant": "eve", "prompt_tokens": 1, "output_tokens": 1})",
            "one of the plan's tenants"},
           {R"({"at": 1, "until": 2, "prompt_tokens": 1, "output_tokens": 1})", "field until is not known"},
           {"{\"at\": 5, \"prompt_tokens\": 1, \"output_tokens\": 1}\n"
            "{\"at\": 4, \"prompt_tokens\": 1, \"output_tokens\": 1}",
            "day.jsonl:2: field at"}}) {
    Traffic traffic;
    traffic.tenants = {{.name = "acme", .kinds = {{"story", 1.0}}}};
    const absl::Status status = ParseRecordedDay(line, "day.jsonl", &traffic);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << line;
  }
}

TEST(PlanFileTest, RefusesBrokenGuesses) {
  for (const auto& [json, message] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "field format"},
           {R"({"format": 2, "guesses": []})", "field format: found 2"},
           {R"({"format": 1, "guesses": 3})", "field guesses"},
           {R"({"format": 1, "guesses": [{"drafter": "a", "outputs": []}]})", "guesses[0]: field kind"},
           {R"({"format": 1, "guesses": [{"kind": "a", "drafter": "a", "outputs": []}]})", "one position"},
           {R"({"format": 1, "guesses": [{"kind": "a", "drafter": "a", "outputs": [[[2, 0.5]]]}]})",
            "guesses[0].outputs[0][0]: found [2,0.5], expected [right, p1, p2, ...]"},
           {R"({"format": 1, "guesses": [{"kind": "a", "drafter": "a", "outputs": [[[1, 0.2, 0.5]]]}]})",
            "falling"},
           {R"({"format": 1, "guesses": [{"kind": "a", "drafter": "a", "outputs": [[[1, 0.7, 0.7]]]}]})",
            "add up to at most 1"}}) {
    AcceptanceBook book;
    const absl::Status status = book.AddFile(json, "guesses.json");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr("guesses.json")) << json;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message)) << json;
  }
}

}  // namespace
}  // namespace tandem::plan

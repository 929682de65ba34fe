#include "bench/plan/cluster.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "bench/plan/arrivals.h"
#include "bench/plan/plan_test_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::plan {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Lt;

Result MustSimulate(const Plan& plan, double load = 1.0) {
  const absl::StatusOr<Result> result = Simulate(plan, plan.layout, {.load = load});
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : Result();
}

// One request at a time, of one step each: a queue with Poisson arrivals and a constant service time. The
// formula of Pollaczek and Khinchine gives the waiting time.
TEST(ClusterTest, WaitsAsOneServerWithConstantServiceDoes) {
  Plan plan = OneVerifierPlan();
  plan.traffic.seconds = 900.0;
  plan.traffic.warm_up_seconds = 20.0;
  plan.traffic.tenants[0].prompt = {.mean = 1.0};
  plan.traffic.tenants[0].output = {.mean = 1.0};
  plan.layout.verifiers.max_running = 1;
  plan.layout.verifiers.step = *StepTimes::OfPace("10");
  for (const double load : {0.3, 0.6, 0.8}) {
    plan.traffic.rates = {{0.0, 100.0 * load}};
    const Result result = MustSimulate(plan);
    const double waiting_ms = 10.0 * load / (2.0 * (1.0 - load));
    EXPECT_THAT(result.latency.mean_ms, DoubleNear(10.0 + waiting_ms, 0.05 * (10.0 + waiting_ms))) << load;
    EXPECT_THAT(result.verifier_utilisation, DoubleNear(load, 0.02));
    EXPECT_THAT(result.requests_per_second, DoubleNear(100.0 * load, 3.0));
    EXPECT_FALSE(result.saturated) << result.saturation;
  }
}

// A request that is alone takes one step per output token. The first of these steps also ends its prompt.
TEST(ClusterTest, ALoneRequestTakesItsPassesAndItsWay) {
  Plan plan = OneVerifierPlan();
  plan.traffic.rates.clear();
  plan.traffic.concurrency = 1;
  plan.traffic.seconds = 20.0;
  plan.traffic.warm_up_seconds = 0.0;
  plan.traffic.tenants[0].prompt = {.mean = 1.0};
  plan.traffic.tenants[0].output = {.mean = 20.0};
  plan.layout.verifiers.step = *StepTimes::OfPace("10");
  plan.layout.verifiers.between_steps_ms = 2.0;
  plan.layout.client_ms = 3.0;
  plan.layout.router_ms = 1.0;
  plan.layout.verifier_ms = 0.5;
  const Result result = MustSimulate(plan);
  // The way there and back, one step, and 19 more steps with the time between them.
  EXPECT_THAT(result.first_token.mean_ms, DoubleNear(2 * 3.0 + 1.0 + 2 * 0.5 + 10.0, 1e-6));
  EXPECT_THAT(result.latency.mean_ms, DoubleNear(18.0 + 19 * 12.0, 1e-6));
  EXPECT_THAT(result.token_gap.mean_ms, DoubleNear(12.0, 1e-6));
}

TEST(ClusterTest, InFlightIsArrivalsTimesLatency) {
  Plan plan = DraftedPlan();
  plan.traffic.seconds = 60.0;
  plan.traffic.warm_up_seconds = 10.0;
  plan.layout.client_ms = 5.0;
  const Result result = MustSimulate(plan);
  ASSERT_FALSE(result.saturated) << result.saturation;
  const double arrivals = static_cast<double>(result.arrived) / result.seconds;
  const double littles_law = arrivals * result.latency.mean_ms / 1e3;
  EXPECT_THAT(result.mean_in_flight, DoubleNear(littles_law, 0.08 * littles_law));
}

TEST(ClusterTest, EveryRequestEndsOnceWithTheTokensItAskedFor) {
  for (const uint64_t seed : {1, 2, 3}) {
    Plan plan = TwoDrafterPlan();
    plan.traffic.seed = seed;
    plan.traffic.seconds = 10.0;
    plan.traffic.warm_up_seconds = 2.0;
    const Result result = MustSimulate(plan);
    EXPECT_EQ(result.all_completed, result.all_arrived) << seed;
    EXPECT_EQ(result.all_refused, 0u) << seed;
    EXPECT_EQ(result.all_tokens, result.all_asked_tokens) << seed;
    EXPECT_THAT(result.all_arrived, Gt(60u));
  }
}

TEST(ClusterTest, TheSameSeedComesToTheSameResult) {
  Plan plan = TwoDrafterPlan();
  plan.traffic.seconds = 8.0;
  plan.traffic.warm_up_seconds = 2.0;
  const std::string once = MustSimulate(plan).ToJson().dump();
  EXPECT_EQ(MustSimulate(plan).ToJson().dump(), once);
  plan.traffic.seed = 99;
  EXPECT_NE(MustSimulate(plan).ToJson().dump(), once);
}

// Slices begin empty and warm up. Apart from chance, their figures are those of one simulation.
TEST(ClusterTest, SlicesAddUpToTheWhole) {
  Plan plan = DraftedPlan();
  plan.traffic.seconds = 55.0;
  plan.traffic.warm_up_seconds = 10.0;
  plan.layout.choice = DrafterChoice::kOff;
  const Result whole = MustSimulate(plan);
  const absl::StatusOr<Result> sliced = Simulate(plan, plan.layout, {.slices = 3});
  ASSERT_TRUE(sliced.ok()) << sliced.status();
  EXPECT_EQ(sliced->arrived, whole.arrived);
  EXPECT_EQ(sliced->completed, whole.completed);
  EXPECT_THAT(sliced->seconds, DoubleNear(whole.seconds, 1e-9));
  EXPECT_THAT(sliced->tokens_per_second, DoubleNear(whole.tokens_per_second, 0.03 * whole.tokens_per_second));
  EXPECT_THAT(sliced->latency.mean_ms, DoubleNear(whole.latency.mean_ms, 0.05 * whole.latency.mean_ms));
  EXPECT_THAT(sliced->verifier_utilisation, DoubleNear(whole.verifier_utilisation, 0.02));
  for (size_t i = 0; i < whole.timeline.size(); ++i) {
    EXPECT_THAT(sliced->timeline[i].requests_per_second,
                DoubleNear(whole.timeline[i].requests_per_second, 1e-9));
  }
}

// In each slice, drafters, calibrations and the choice of drafters start fresh. They learn in the warm-up.
TEST(ClusterTest, SlicesWithDraftsAgreeWithTheWhole) {
  Plan plan = TwoDrafterPlan();
  plan.traffic.seconds = 130.0;
  plan.traffic.warm_up_seconds = 30.0;
  const Result whole = MustSimulate(plan);
  const absl::StatusOr<Result> sliced = Simulate(plan, plan.layout, {.slices = 2});
  ASSERT_TRUE(sliced.ok()) << sliced.status();
  EXPECT_EQ(sliced->arrived, whole.arrived);
  EXPECT_EQ(sliced->completed, whole.completed);
  const auto agree = [](double is, double expected, double share, const char* what) {
    EXPECT_THAT(is, DoubleNear(expected, share * expected)) << what;
  };
  agree(sliced->tokens_per_second, whole.tokens_per_second, 0.01, "tokens per second");
  agree(sliced->tokens_per_round, whole.tokens_per_round, 0.02, "tokens per round");
  agree(sliced->latency.mean_ms, whole.latency.mean_ms, 0.03, "mean latency");
  agree(sliced->latency.p95_ms, whole.latency.p95_ms, 0.08, "latency that 95 of 100 keep");
  agree(sliced->verifier_utilisation, whole.verifier_utilisation, 0.03, "verifiers busy");
  for (const auto& [drafter, share] : whole.drafter_utilisation) {
    agree(sliced->drafter_utilisation.at(drafter), share, 0.1, drafter.c_str());
  }
  // The same slices give the same figures.
  const absl::StatusOr<Result> again = Simulate(plan, plan.layout, {.slices = 2});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToJson(), sliced->ToJson());
}

// A chain with a fixed window, whose first guess is right with probability A at every position, makes (1 -
// A^(g+1)) / (1 - A) tokens per round (On-the-fly adaptation, appendix B.1).
TEST(ClusterTest, RoundsMakeAsManyTokensAsAcceptanceSays) {
  for (const uint32_t window : {1u, 3u}) {
    Plan plan = DraftedPlan();
    plan.traffic.rates.clear();
    plan.traffic.concurrency = 1;
    plan.traffic.seconds = 100.0;
    plan.traffic.warm_up_seconds = 0.0;
    plan.traffic.tenants[0].output = {.mean = 400.0};
    plan.layout.window_policy = "fixed";
    plan.layout.window = {
        .max_depth = window, .branching = 1, .lookahead = 0, .ahead_nodes = 0, .shape = TreeShape::kChain};
    plan.layout.drafters[0].step = *StepTimes::OfPace("0.01");
    plan.layout.drafter_ms = 0.001;
    const Result result = MustSimulate(plan);
    const double expected = (1.0 - std::pow(0.7, window + 1)) / (1.0 - 0.7);
    EXPECT_THAT(result.tokens_per_round, DoubleNear(expected, 0.04 * expected)) << window;
  }
}

TEST(ClusterTest, DraftsThatAreSeldomRightAreNotBoughtAtAnyPrice) {
  Plan plan = DraftedPlan();
  plan.traffic.seconds = 40.0;
  plan.traffic.rates = {{0.0, 2.0}};
  const double drafted = MustSimulate(plan).latency.mean_ms;
  auto book = std::make_shared<AcceptanceBook>();
  book->Add("story", "small", *Acceptance::OfRates({0.02, 0.01}));
  plan.acceptance = std::move(book);
  const double misled = MustSimulate(plan).latency.mean_ms;
  plan.layout.choice = DrafterChoice::kOff;
  const double plain = MustSimulate(plan).latency.mean_ms;
  EXPECT_THAT(drafted, Lt(0.75 * plain));
  EXPECT_THAT(misled, AllOf(Gt(0.95 * plain), Lt(1.15 * plain)));
}

// Two specialised drafters: the router learns which of them is good at which kind of text.
TEST(ClusterTest, TheChoiceFindsWhoKnowsTheText) {
  Plan plan = TwoDrafterPlan();
  plan.traffic.seconds = 80.0;
  plan.traffic.warm_up_seconds = 40.0;
  plan.traffic.rates = {{0.0, 6.0}};
  for (DrafterGroup& group : plan.layout.drafters) group.step = *StepTimes::OfPace("3");
  const Result chosen = MustSimulate(plan);
  plan.layout.choice = DrafterChoice::kPinned;
  plan.layout.pinned = "poet";
  const Result pinned = MustSimulate(plan);
  EXPECT_THAT(chosen.tokens_per_round, Gt(1.08 * pinned.tokens_per_round));
  EXPECT_THAT(chosen.requests_by_drafter.at("poet"), Gt(40u));
  EXPECT_THAT(chosen.requests_by_drafter.at("coder"), Gt(40u));
}

// A verifier whose steps always take 10 ms makes one token per step for each of 8 requests.
TEST(ClusterTest, MoreThanPassesBearIsSaid) {
  Plan plan = OneVerifierPlan();
  plan.traffic.seconds = 120.0;
  plan.traffic.warm_up_seconds = 20.0;
  plan.traffic.tenants[0].prompt = {.mean = 1.0};
  plan.traffic.tenants[0].output = {.mean = 50.0};
  plan.layout.verifiers.step = *StepTimes::OfPace("10");
  plan.layout.verifiers.max_running = 8;
  // 800 tokens, which is 16 requests, a second.
  plan.traffic.rates = {{0.0, 14.0}};
  EXPECT_FALSE(MustSimulate(plan).saturated);
  const Result beyond = MustSimulate(plan, 18.0 / 14.0);
  EXPECT_TRUE(beyond.saturated);
  EXPECT_THAT(beyond.saturation, HasSubstr("grew"));
  EXPECT_THAT(beyond.tokens_per_second, DoubleNear(800.0, 8.0));
  plan.traffic.tenants[0].max_queued_requests = 4;
  const Result refusing = MustSimulate(plan, 18.0 / 14.0);
  EXPECT_THAT(refusing.saturation, HasSubstr("refused"));
  EXPECT_THAT(static_cast<double>(refusing.refused),
              DoubleNear(static_cast<double>(refusing.arrived) * 2.0 / 18.0, 60.0));
}

TEST(ClusterTest, VerifiersShareTheLoadAndSoDoDraftersOfAPool) {
  Plan plan = DraftedPlan();
  plan.traffic.seconds = 14.0;
  plan.traffic.warm_up_seconds = 4.0;
  plan.traffic.rates = {{0.0, 16.0}};
  plan.layout.drafters[0].count = 3;
  const Result one = MustSimulate(plan);
  plan.layout.verifiers.count = 4;
  const Result four = MustSimulate(plan);
  EXPECT_THAT(four.verifier_utilisation, Lt(one.verifier_utilisation));
  EXPECT_THAT(four.latency.mean_ms, Lt(one.latency.mean_ms));
  EXPECT_THAT(four.drafter_utilisation.at("small"), Gt(0.02));
}

TEST(ClusterTest, ARecordedDayIsPlayedAsItWas) {
  Plan plan = OneVerifierPlan();
  plan.traffic.rates.clear();
  plan.traffic.seconds = 10.0;
  plan.traffic.warm_up_seconds = 0.0;
  for (int i = 0; i < 20; ++i) {
    plan.traffic.recorded.push_back({.at_seconds = i * 0.4, .prompt_tokens = 5, .output_tokens = 7});
  }
  const Result result = MustSimulate(plan);
  EXPECT_EQ(result.all_arrived, 20u);
  EXPECT_EQ(result.all_tokens, 140u);
  plan.traffic.concurrency = 2;
  const Result closed = MustSimulate(plan);
  EXPECT_EQ(closed.all_tokens, 140u);
  EXPECT_THAT(closed.makespan_seconds, Lt(result.makespan_seconds));
}

TEST(ClusterTest, SaysWhatALayoutLacks) {
  Plan plan = DraftedPlan();
  plan.layout.verifiers.kv_tokens = 64;
  EXPECT_THAT(std::string(CheckLayout(plan, plan.layout).message()), HasSubstr("verifiers.kv_tokens"));
  plan = DraftedPlan();
  plan.layout.drafters[0].kv_tokens = 64;
  EXPECT_THAT(std::string(CheckLayout(plan, plan.layout).message()), HasSubstr("drafter small holds 64"));
  plan = DraftedPlan();
  plan.acceptance = std::make_shared<AcceptanceBook>();
  EXPECT_THAT(std::string(CheckLayout(plan, plan.layout).message()),
              HasSubstr("no acceptance of drafter small on kind story"));
  plan = DraftedPlan();
  plan.layout.verifiers.count = 4096;
  plan.layout.verifiers.kv_tokens = uint64_t{1} << 32;
  EXPECT_THAT(std::string(CheckLayout(plan, plan.layout).message()),
              HasSubstr("the machines of the layout hold 17592186077184 tokens (count times kv_tokens)"));
  plan = DraftedPlan();
  plan.layout.pinned = "large";
  EXPECT_THAT(std::string(CheckLayout(plan, plan.layout).message()),
              HasSubstr("pinned to drafter \"large\""));
}

// Too little memory for all running requests: sessions are preempted, and still complete.
TEST(ClusterTest, PreemptionLosesNothing) {
  Plan plan = DraftedPlan();
  plan.traffic.seconds = 8.0;
  plan.traffic.warm_up_seconds = 2.0;
  plan.traffic.rates = {{0.0, 30.0}};
  plan.traffic.tenants[0].prompt = {.mean = 60.0, .deviation = 20.0, .most = 200};
  plan.traffic.tenants[0].output = {.mean = 60.0, .deviation = 30.0, .most = 200};
  plan.layout.verifiers.kv_tokens = 640;
  plan.layout.verifiers.step = *StepTimes::OfPace("2+0.02");
  plan.layout.drafters[0].kv_tokens = 640;
  const Result result = MustSimulate(plan);
  EXPECT_THAT(result.preemptions, Gt(0u));
  EXPECT_EQ(result.all_tokens, result.all_asked_tokens);
}

TEST(ArrivalsTest, ComeAsOftenAsTheDaySays) {
  Plan plan = OneVerifierPlan();
  plan.traffic.seconds = 3000.0;
  plan.traffic.rates = {{0.0, 1.0}, {1000.0, 5.0}, {2000.0, 0.0}};
  Arrivals arrivals(plan.traffic, 2.0);
  uint64_t early = 0;
  uint64_t middle = 0;
  uint64_t late = 0;
  while (const std::optional<PlannedRequest> request = arrivals.Next()) {
    ++(request->at_seconds < 1000.0 ? early : request->at_seconds < 2000.0 ? middle : late);
  }
  EXPECT_THAT(early, AllOf(Ge(1850u), Le(2150u)));
  EXPECT_THAT(middle, AllOf(Ge(9700u), Le(10300u)));
  EXPECT_EQ(late, 0u);
}

TEST(ArrivalsTest, LengthsHaveTheMeanAndDeviationTheyAreToldToHave) {
  PlanRandom random(3);
  const Lengths lengths{.mean = 200.0, .deviation = 100.0, .least = 1, .most = 100'000};
  double sum = 0.0;
  double squares = 0.0;
  constexpr int kDraws = 20'000;
  for (int i = 0; i < kDraws; ++i) {
    const double length = random.Draw(lengths);
    sum += length;
    squares += length * length;
  }
  const double mean = sum / kDraws;
  EXPECT_THAT(mean, DoubleNear(200.0, 4.0));
  EXPECT_THAT(std::sqrt(squares / kDraws - mean * mean), DoubleNear(100.0, 6.0));
}

}  // namespace
}  // namespace tandem::plan

#include "router/canary_monitor.h"

#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;

constexpr size_t kOwn = 0;
constexpr size_t kOnTrial = 1;

class CanaryMonitorTest : public ::testing::Test {
 protected:
  CanaryMonitorTest() {
    for (const char* name : {"code", "math", "prose"}) table_.drafters.push_back({.name = name});
    tenant_.canary = Canary{.drafter = kOnTrial, .percent = 10.0};
  }

  // A request of 30 drafted rounds, of which each of up to 4 tokens is accepted with the probability given.
  std::optional<std::string> Finish(size_t drafter, double acceptance) {
    v1::SpeculationStats stats;
    for (int round = 0; round < 30; ++round) {
      uint32_t accepted = 0;
      while (accepted < 4 && std::bernoulli_distribution(acceptance)(random_)) ++accepted;
      stats.set_accepted_tokens(stats.accepted_tokens() + accepted);
    }
    stats.set_drafted_rounds(30);
    stats.set_draft_tokens(120);
    return monitor_->OnFinished(table_, tenant_, drafter, stats);
  }

  RoutingTable table_;
  Tenant tenant_{.name = "acme", .drafter = kOwn, .policy = v1::DRAFTER_POLICY_CANARY};
  std::unique_ptr<CanaryMonitor> monitor_ = std::make_unique<CanaryMonitor>();
  std::mt19937_64 random_{7};
};

TEST_F(CanaryMonitorTest, RollsBackWhatAcceptsTooLittle) {
  std::optional<std::string> verdict;
  int requests = 0;
  while (!verdict.has_value() && requests < 200) {
    ASSERT_EQ(Finish(kOwn, 0.7), std::nullopt) << "the tenant's own is not on trial";
    verdict = Finish(kOnTrial, 0.3);
    ++requests;
  }
  ASSERT_TRUE(verdict.has_value());
  EXPECT_THAT(*verdict, HasSubstr("math made 1."));
  EXPECT_THAT(*verdict, HasSubstr("where code made 2."));
  EXPECT_GE(requests, 8) << "not before there is enough to compare";
  EXPECT_LE(requests, 20);
  EXPECT_EQ(Finish(kOnTrial, 0.3), std::nullopt) << "begins anew";
}

TEST_F(CanaryMonitorTest, KeepsWhatIsAsGood) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    random_.seed(seed);
    monitor_ = std::make_unique<CanaryMonitor>();
    for (int i = 0; i < 500; ++i) {
      ASSERT_EQ(Finish(kOwn, 0.6), std::nullopt);
      ASSERT_EQ(Finish(kOnTrial, 0.6), std::nullopt);
    }
  }
}

TEST_F(CanaryMonitorTest, LateDecayIsNoticed) {
  tenant_.canary->min_rounds = 20;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(Finish(kOwn, 0.7), std::nullopt);
    ASSERT_EQ(Finish(kOnTrial, 0.7), std::nullopt);
  }
  std::optional<std::string> verdict;
  for (int i = 0; i < 300 && !verdict.has_value(); ++i) {
    // Either one's requests may be what makes it sure.
    verdict = Finish(kOwn, 0.7);
    if (!verdict.has_value()) verdict = Finish(kOnTrial, 0.2);
  }
  EXPECT_TRUE(verdict.has_value());
}

TEST_F(CanaryMonitorTest, RequestsOfManyRoundsAreJudgedToo) {
  tenant_.canary->min_rounds = 1;
  std::optional<std::string> verdict;
  for (int i = 0; i < 200 && !verdict.has_value(); ++i) {
    ASSERT_EQ(Finish(kOwn, 0.7), std::nullopt);
    verdict = Finish(kOnTrial, 0.3);
  }
  EXPECT_TRUE(verdict.has_value());
}

TEST_F(CanaryMonitorTest, LeavesOthersAndNonsenseOut) {
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Finish(kOwn, 0.7), std::nullopt);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Finish(2, 0.0), std::nullopt);
  v1::SpeculationStats nonsense;
  nonsense.set_drafted_rounds(1000000);
  nonsense.set_accepted_tokens(5);
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(monitor_->OnFinished(table_, tenant_, kOnTrial, nonsense), std::nullopt);
  }
  // Another drafter on trial begins from nothing.
  for (int i = 0; i < 7; ++i) ASSERT_EQ(Finish(kOnTrial, 0.1), std::nullopt);
  tenant_.canary->drafter = 2;
  for (int i = 0; i < 7; ++i) ASSERT_EQ(Finish(2, 0.1), std::nullopt);
}

}  // namespace
}  // namespace tandem::router

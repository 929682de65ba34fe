#include "router/drafters/canary_monitor.h"

#include <cmath>
#include <limits>
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

  // A request of 30 rounds. In a share of them prompt lookup drafts beside the drafter, with 3 tokens
  // accepted; in the others the drafter has each of up to 4 accepted with the probability given.
  std::optional<CanaryVerdict> Finish(size_t drafter, double acceptance, double local_share = 0.0) {
    v1::SpeculationStats stats;
    stats.set_rounds(30);
    v1::SourceStats& own = *stats.add_by_source();
    own.set_source(v1::DRAFT_SOURCE_DRAFTER);
    own.set_drafter(table_.drafters[drafter].name);
    v1::SourceStats& local = *stats.add_by_source();
    local.set_source(v1::DRAFT_SOURCE_LOCAL);
    local.set_drafter(table_.drafters[drafter].name);
    for (int round = 0; round < 30; ++round) {
      uint32_t accepted = 0;
      while (accepted < 4 && std::bernoulli_distribution(acceptance)(random_)) ++accepted;
      const bool by_itself = accepted == 0 && std::bernoulli_distribution(local_share)(random_);
      own.set_drafted_rounds(own.drafted_rounds() + 1);
      own.set_draft_tokens(own.draft_tokens() + 4);
      own.set_accepted_tokens(own.accepted_tokens() + accepted);
      local.set_drafted_rounds(local.drafted_rounds() + (by_itself ? 1 : 0));
      local.set_draft_tokens(local.draft_tokens() + (by_itself ? 4 : 0));
      local.set_accepted_tokens(local.accepted_tokens() + (by_itself ? 3 : 0));
    }
    stats.set_drafted_rounds(30);
    stats.set_draft_tokens(own.draft_tokens() + local.draft_tokens());
    stats.set_accepted_tokens(own.accepted_tokens() + local.accepted_tokens());
    return monitor_->OnFinished(table_, tenant_, drafter, stats);
  }
  // The verdict of up to `requests` requests, a fifth of which the canary gets.
  std::optional<CanaryVerdict> Try(int requests, double own, double on_trial, double local_share) {
    for (int i = 0; i < requests; ++i) {
      const bool canary = std::bernoulli_distribution(0.2)(random_);
      std::optional<CanaryVerdict> verdict =
          Finish(canary ? kOnTrial : kOwn, canary ? on_trial : own, local_share);
      if (verdict.has_value()) return verdict;
    }
    return std::nullopt;
  }

  RoutingTable table_;
  Tenant tenant_{.name = "acme", .drafter = kOwn, .policy = v1::DRAFTER_POLICY_CANARY};
  std::unique_ptr<CanaryMonitor> monitor_ = std::make_unique<CanaryMonitor>();
  std::mt19937_64 random_{7};
};

TEST_F(CanaryMonitorTest, RollsBackWhatAcceptsTooLittle) {
  std::optional<CanaryVerdict> verdict;
  int requests = 0;
  while (!verdict.has_value() && requests < 200) {
    ASSERT_FALSE(Finish(kOwn, 0.7).has_value()) << "the tenant's own is not on trial";
    verdict = Finish(kOnTrial, 0.3);
    ++requests;
  }
  ASSERT_TRUE(verdict.has_value());
  EXPECT_THAT(verdict->reason, HasSubstr("math made 1."));
  EXPECT_THAT(verdict->reason, HasSubstr("where code made 2."));
  EXPECT_GE(requests, 8) << "not before there is enough to compare";
  EXPECT_LE(requests, 20);
  EXPECT_FALSE(Finish(kOnTrial, 0.3).has_value()) << "begins anew";
}

TEST_F(CanaryMonitorTest, KeepsWhatIsAsGood) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    random_.seed(seed);
    monitor_ = std::make_unique<CanaryMonitor>();
    for (int i = 0; i < 500; ++i) {
      ASSERT_FALSE(Finish(kOwn, 0.6).has_value());
      ASSERT_FALSE(Finish(kOnTrial, 0.6).has_value());
    }
  }
}

TEST_F(CanaryMonitorTest, AUselessOneBesidePromptLookupIsRolledBack) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    random_.seed(seed);
    monitor_ = std::make_unique<CanaryMonitor>();
    const std::optional<CanaryVerdict> verdict = Try(200, 0.6, 0.02, /*local_share=*/0.8);
    ASSERT_TRUE(verdict.has_value());
    ASSERT_FALSE(verdict->promote);
  }
}

TEST_F(CanaryMonitorTest, OneThatIsAsGoodIsPromotedWhereThatIsWanted) {
  tenant_.canary->promote = true;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    random_.seed(seed);
    monitor_ = std::make_unique<CanaryMonitor>();
    const std::optional<CanaryVerdict> verdict = Try(5000, 0.6, 0.6, /*local_share=*/0.8);
    ASSERT_TRUE(verdict.has_value());
    ASSERT_TRUE(verdict->promote) << verdict->reason;
  }
}

// One that drafts for nobody has no drafted rounds to be compared by.
TEST_F(CanaryMonitorTest, ADeadOneIsRolledBack) {
  std::optional<CanaryVerdict> verdict;
  for (int i = 0; i < 200 && !verdict.has_value(); ++i) {
    verdict = Finish(kOwn, 0.7);
    if (verdict.has_value()) break;
    v1::SpeculationStats dead;
    dead.set_rounds(30);
    verdict = monitor_->OnFinished(table_, tenant_, kOnTrial, dead);
  }
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->promote);
}

TEST_F(CanaryMonitorTest, LateDecayIsNoticed) {
  tenant_.canary->min_rounds = 20;
  for (int i = 0; i < 1000; ++i) {
    ASSERT_FALSE(Finish(kOwn, 0.7).has_value());
    ASSERT_FALSE(Finish(kOnTrial, 0.7).has_value());
  }
  std::optional<CanaryVerdict> verdict;
  for (int i = 0; i < 300 && !verdict.has_value(); ++i) {
    // Either one's requests may be what makes it sure.
    verdict = Finish(kOwn, 0.7);
    if (!verdict.has_value()) verdict = Finish(kOnTrial, 0.2);
  }
  EXPECT_TRUE(verdict.has_value());
}

TEST_F(CanaryMonitorTest, RequestsOfManyRoundsAreJudgedToo) {
  tenant_.canary->min_rounds = 1;
  std::optional<CanaryVerdict> verdict;
  for (int i = 0; i < 200 && !verdict.has_value(); ++i) {
    ASSERT_FALSE(Finish(kOwn, 0.7).has_value());
    verdict = Finish(kOnTrial, 0.3);
  }
  EXPECT_TRUE(verdict.has_value());
}

// The claim of the sequential test: however often it is asked, it is wrong no more often than it may be.
TEST_F(CanaryMonitorTest, VerdictsAreWrongNoMoreOftenThanTheyMay) {
  tenant_.canary->promote = true;
  tenant_.canary->min_share = 1.0;
  tenant_.canary->max_error = 0.1;
  tenant_.canary->min_rounds = 20;
  constexpr int kTrials = 400;
  int verdicts = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    random_.seed(static_cast<uint64_t>(trial));
    monitor_ = std::make_unique<CanaryMonitor>();
    // Equal ones: any verdict is wrong.
    for (int i = 0; i < 200; ++i) {
      if (Finish(i % 2 == 0 ? kOnTrial : kOwn, 0.6).has_value()) {
        ++verdicts;
        break;
      }
    }
  }
  // 40, and 3 standard deviations of the binomial.
  EXPECT_LE(verdicts, 58);
}

TEST_F(CanaryMonitorTest, ASmallDifferenceIsFoundInTheEnd) {
  tenant_.canary->promote = true;
  tenant_.canary->min_share = 1.0;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    for (const bool better : {true, false}) {
      random_.seed(seed);
      monitor_ = std::make_unique<CanaryMonitor>();
      const auto verdict = Try(20000, 0.6, better ? 0.65 : 0.55, /*local_share=*/0.0);
      ASSERT_TRUE(verdict.has_value());
      EXPECT_EQ(verdict->promote, better) << verdict->reason;
      EXPECT_THAT(verdict->reason, HasSubstr("give or take 0."));
    }
  }
}

TEST_F(CanaryMonitorTest, ATrialMayHaveALastRequest) {
  tenant_.canary->promote = true;
  tenant_.canary->min_share = 1.0;
  tenant_.canary->max_requests = 30;
  std::optional<CanaryVerdict> verdict;
  int requests = 0;
  while (!verdict.has_value() && requests < 200) {
    ASSERT_FALSE(Finish(kOwn, 0.6).has_value());
    verdict = Finish(kOnTrial, 0.6);
    ++requests;
  }
  ASSERT_TRUE(verdict.has_value());
  EXPECT_FALSE(verdict->promote);
  EXPECT_EQ(requests, 30);
  EXPECT_THAT(verdict->reason, HasSubstr("no verdict within max_requests"));
}

TEST_F(CanaryMonitorTest, ShowsHowATrialStands) {
  EXPECT_FALSE(monitor_->View("acme").has_value());
  Finish(kOwn, 0.6);
  const auto first = monitor_->View("acme");
  ASSERT_TRUE(first.has_value());
  EXPECT_TRUE(std::isinf(first->margin));
  for (int i = 0; i < 60; ++i) {
    ASSERT_FALSE(Finish(kOwn, 0.6).has_value());
    ASSERT_FALSE(Finish(kOnTrial, 0.6).has_value());
  }
  const auto view = monitor_->View("acme");
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(view->requests, 60);
  EXPECT_GT(view->own, 1.5);
  EXPECT_GT(view->canary, 1.5);
  EXPECT_GT(view->margin, 0.0);
  EXPECT_LT(view->margin, 0.6);
}

TEST(SequentialMarginTest, IsWiderThanASingleLookAndShrinks) {
  double before = std::numeric_limits<double>::infinity();
  for (const double error_of_mean : {0.5, 0.2, 0.1, 0.05, 0.02, 0.01}) {
    const double margin = SequentialMargin(error_of_mean * error_of_mean, 2.0, 0.01);
    EXPECT_GT(margin, 2.6 * error_of_mean) << "a single look has 2.58 standard errors";
    EXPECT_LT(margin, before);
    before = margin;
  }
  EXPECT_LT(SequentialMargin(0.01, 2.0, 0.01), 4.0 * 0.1) << "where it is to be tight";
  EXPECT_TRUE(std::isinf(SequentialMargin(std::numeric_limits<double>::infinity(), 2.0, 0.01)));
}

TEST_F(CanaryMonitorTest, LeavesOthersAndNonsenseOut) {
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(Finish(kOwn, 0.7).has_value());
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(Finish(2, 0.0).has_value());
  v1::SpeculationStats nonsense;
  nonsense.set_rounds(1000000);
  v1::SourceStats& lies = *nonsense.add_by_source();
  lies.set_source(v1::DRAFT_SOURCE_DRAFTER);
  lies.set_drafter("math");
  lies.set_accepted_tokens(5);
  for (int i = 0; i < 100; ++i) {
    ASSERT_FALSE(monitor_->OnFinished(table_, tenant_, kOnTrial, nonsense).has_value());
  }
  // Another drafter on trial begins from nothing.
  for (int i = 0; i < 7; ++i) ASSERT_FALSE(Finish(kOnTrial, 0.1).has_value());
  tenant_.canary->drafter = 2;
  for (int i = 0; i < 7; ++i) ASSERT_FALSE(Finish(2, 0.1).has_value());
}

}  // namespace
}  // namespace tandem::router

#include "common/speculation/control_group.h"

#include <cmath>
#include <map>
#include <random>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::Le;
using ::testing::Lt;

// A server on which drafted steps commit `gain` times as many tokens per cost as plain ones, all with noise.
class Server {
 public:
  explicit Server(ControlGroup* group, double noise = 0.05) : group_(group), noise_(noise) {}

  // A step of `load` requests, all with the same drafter.
  void Step(double gain, uint32_t load = 1, const std::string& drafter = "eagle3") {
    const bool plain = group_->plain();
    ++steps_;
    plain_ += plain ? 1 : 0;
    for (uint32_t i = 0; i < load; ++i) {
      const double tokens = plain ? 1.0 : Tokens();
      const double rate = plain ? 1.0 : gain;
      group_->Add(drafter, tokens, (plain ? 1.0 : kMeanTokens) / rate * std::exp(noise_ * normal_(random_)));
    }
    if (const auto estimate = group_->EndStep(load))
      estimates_[{estimate->drafter, estimate->load}] = *estimate;
  }
  const ControlGroup::Estimate* Of(const std::string& drafter, uint32_t load) const {
    const auto found = estimates_.find({drafter, load});
    return found == estimates_.end() ? nullptr : &found->second;
  }
  uint64_t steps() const { return steps_; }
  uint64_t plain() const { return plain_; }

 private:
  static constexpr double kMeanTokens = 2.0;
  double Tokens() { return 1.0 + static_cast<double>(random_() % 3); }  // 1 to 3.

  ControlGroup* const group_;
  const double noise_;
  std::mt19937 random_{1};
  std::normal_distribution<double> normal_;
  std::map<std::pair<std::string, uint32_t>, ControlGroup::Estimate> estimates_;
  uint64_t steps_ = 0;
  uint64_t plain_ = 0;
};

TEST(ControlGroupTest, FindsTheGainAndItsInterval) {
  for (const double gain : {0.8, 1.0, 1.5, 3.0}) {
    SCOPED_TRACE(gain);
    ControlGroup group;
    Server server(&group);
    for (int i = 0; i < 20'000; ++i) server.Step(gain);
    const ControlGroup::Estimate* const found = server.Of("eagle3", 1);
    ASSERT_NE(found, nullptr);
    EXPECT_NEAR(found->speedup, gain, 0.03 * gain);
    EXPECT_THAT(found->low, AllOf(Lt(found->speedup), Gt(0.9 * gain)));
    EXPECT_THAT(found->high, AllOf(Gt(found->speedup), Lt(1.1 * gain)));
    EXPECT_THAT(gain, AllOf(Ge(0.98 * found->low), Le(1.02 * found->high)));
    EXPECT_EQ(group.plain_steps(), server.plain());
  }
}

TEST(ControlGroupTest, LosesNoMoreThanItsShare) {
  for (const double gain : {1.0, 2.0, 5.0}) {
    SCOPED_TRACE(gain);
    ControlGroup group;
    Server server(&group);
    for (int i = 0; i < 50'000; ++i) server.Step(gain);
    EXPECT_GT(server.plain(), 0u);
    EXPECT_LE(group.lost_share(), 0.0105);
    // As a count: a plain step commits one token in place of `gain` times as many.
    // As a count: a plain step commits one token, a drafted one two at 2 / gain of its cost.
    const auto steps = static_cast<double>(server.steps() - server.plain());
    EXPECT_LE(static_cast<double>(server.plain()) * (1.0 - 1.0 / gain), 0.011 * steps * 2.0 / gain);
  }
}

TEST(ControlGroupTest, LooksLessOftenOnceItIsCertain) {
  ControlGroup noisy;
  ControlGroup quiet;
  Server busy(&noisy, 0.8);
  Server calm(&quiet, 0.001);
  for (int i = 0; i < 150'000; ++i) {
    busy.Step(2.0);
    calm.Step(2.0);
  }
  EXPECT_LT(2 * calm.plain(), busy.plain());
}

TEST(ControlGroupTest, KeepsLoadsAndDraftersApart) {
  ControlGroup group;
  Server server(&group);
  for (int phase = 0; phase < 40; ++phase) {
    for (int i = 0; i < 500; ++i) server.Step(2.0, 1);
    for (int i = 0; i < 500; ++i) server.Step(1.2, 5);
    for (int i = 0; i < 500; ++i) server.Step(0.9, 1, "random");
  }
  ASSERT_NE(server.Of("eagle3", 1), nullptr);
  EXPECT_NEAR(server.Of("eagle3", 1)->speedup, 2.0, 0.1);
  ASSERT_NE(server.Of("eagle3", 4), nullptr);  // 4 to 7 requests.
  EXPECT_NEAR(server.Of("eagle3", 4)->speedup, 1.2, 0.05);
  ASSERT_NE(server.Of("random", 1), nullptr);
  EXPECT_NEAR(server.Of("random", 1)->speedup, 0.9, 0.05);
  EXPECT_EQ(server.Of("eagle3", 5), nullptr);
}

TEST(ControlGroupTest, StepsWithSeveralDraftersAreAGroupOfTheirOwn) {
  ControlGroup group;
  std::optional<ControlGroup::Estimate> last;
  for (int i = 0; i < 20'000; ++i) {
    const double cost = group.plain() ? 1.0 : 0.5;
    group.Add("a", 1.0, cost);
    group.Add("b", 1.0, cost);
    if (const auto estimate = group.EndStep(2)) last = estimate;
  }
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->drafter, ControlGroup::kSeveral);
  EXPECT_NEAR(last->speedup, 2.0, 1e-9);
}

// A block in which the load changes, or the drafter, is no block of either, and its cost counts all the same:
// plain steps commit a token for each request, drafted ones two.
TEST(ControlGroupTest, ABlockEndsWhenItsStepsAreNotAlikeAndIsPaid) {
  for (const bool by_load : {true, false}) {
    SCOPED_TRACE(by_load);
    ControlGroup group;
    double lost = 0.0;
    double all = 0.0;
    for (int i = 0; i < 20'000; ++i) {
      const bool plain = group.plain();
      // Someone joins in every block, or every step has another drafter.
      const uint32_t load = by_load && plain ? 2 : 1;
      for (uint32_t one = 0; one < load; ++one)
        group.Add(by_load || i % 2 == 0 ? "a" : "b", plain ? 1.0 : 2.0, 1.0);
      all += load;
      lost += plain ? 0.5 * load : 0.0;
      EXPECT_FALSE(group.EndStep(load)) << "no block was of one kind";
    }
    EXPECT_GT(lost, 0.0);
    EXPECT_LT(lost, 0.012 * all);
  }
}

TEST(ControlGroupTest, StepsThatDoNotCountEndABlock) {
  ControlGroup group;
  for (int i = 0; i < 10'000 && !group.plain(); ++i) {
    group.Add("a", 1.0, 0.5);
    EXPECT_FALSE(group.EndStep(1).has_value());
  }
  ASSERT_TRUE(group.plain());
  group.Add("a", 1.0, 1.0);
  EXPECT_FALSE(group.EndStep(1, /*counts=*/false).has_value());
  EXPECT_FALSE(group.plain());
}

// Requests of ten steps, each after a step that only computes a prompt.
TEST(ControlGroupTest, BlocksGoOnOverTheEndsOfRequests) {
  ControlGroup group;
  Server server(&group);
  for (int i = 0; i < 3'000; ++i) {
    for (int step = 0; step < 10; ++step) server.Step(1.5);
    const bool plain = group.plain();
    EXPECT_FALSE(group.EndStep(1).has_value());
    EXPECT_EQ(group.plain(), plain);
  }
  ASSERT_NE(server.Of("eagle3", 1), nullptr);
  EXPECT_NEAR(server.Of("eagle3", 1)->speedup, 1.5, 0.05);
}

TEST(ControlGroupTest, ShortTrafficAndAShareOfNothingHaveNoBlocks) {
  ControlGroup brief;
  Server server(&brief);
  for (int i = 0; i < 64; ++i) server.Step(1.0);
  EXPECT_EQ(server.plain(), 0u);
  ControlGroup off({.share = 0.0});
  Server without(&off);
  for (int i = 0; i < 20'000; ++i) without.Step(2.0);
  EXPECT_EQ(without.plain(), 0u);
}

TEST(ControlGroupTest, CostsThatAreNoneAreLeftOut) {
  ControlGroup group;
  for (int i = 0; i < 1'000; ++i) {
    group.Add("a", 1.0, std::nan(""));
    group.Add("a", 1.0, -1.0);
    group.Add("a", 1.0, 0.0);
    EXPECT_FALSE(group.EndStep(1).has_value());
    EXPECT_FALSE(group.plain());
  }
  EXPECT_EQ(group.lost_share(), 0.0);
}

TEST(ControlGroupTest, ManyDraftersTakeBoundedMemoryAndDoNotStopIt) {
  ControlGroup group;
  Server server(&group);
  for (int i = 0; i < 5'000; ++i) server.Step(2.0, 1, "drafter-" + std::to_string(i));
  for (int i = 0; i < 20'000; ++i) server.Step(2.0);
  ASSERT_NE(server.Of("eagle3", 1), nullptr);
  EXPECT_NEAR(server.Of("eagle3", 1)->speedup, 2.0, 0.1);
}

}  // namespace
}  // namespace tandem

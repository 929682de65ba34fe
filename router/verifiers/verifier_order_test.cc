#include "router/verifiers/verifier_order.h"

#include <algorithm>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;

std::vector<VerifierLoad> Verifiers(const std::vector<uint32_t>& in_flight) {
  static constexpr absl::string_view kEndpoints[] = {"v0:1", "v1:1", "v2:1", "v3:1"};
  std::vector<VerifierLoad> verifiers;
  for (size_t i = 0; i < in_flight.size(); ++i) {
    verifiers.push_back({.endpoint = kEndpoints[i], .in_flight = in_flight[i]});
  }
  return verifiers;
}

std::vector<uint32_t> Prompt(uint32_t first, size_t length = 100) {
  std::vector<uint32_t> prompt(length, 7);
  prompt[0] = first;
  return prompt;
}

TEST(OrderVerifiersTest, EveryVerifierOnceAndAllUsed) {
  std::map<size_t, int> firsts;
  for (uint32_t i = 0; i < 400; ++i) {
    const std::vector<size_t> order = OrderVerifiers(Verifiers({0, 0, 0, 0}), Prompt(i), 1);
    EXPECT_EQ(std::set<size_t>(order.begin(), order.end()).size(), 4u);
    ++firsts[order[0]];
  }
  for (size_t v = 0; v < 4; ++v) EXPECT_GT(firsts[v], 50) << v;
}

TEST(OrderVerifiersTest, SamePrefixSameOrder) {
  std::vector<uint32_t> longer = Prompt(3, 200);
  longer.back() = 99;
  EXPECT_EQ(OrderVerifiers(Verifiers({0, 0, 0, 0}), Prompt(3), 1),
            OrderVerifiers(Verifiers({0, 0, 0, 0}), longer, 1));
}

TEST(OrderVerifiersTest, LosingAVerifierMovesOnlyItsShare) {
  for (uint32_t i = 0; i < 100; ++i) {
    std::vector<size_t> all = OrderVerifiers(Verifiers({0, 0, 0, 0}), Prompt(i), 1);
    const std::vector<size_t> without = OrderVerifiers(Verifiers({0, 0, 0}), Prompt(i), 1);
    all.erase(std::find(all.begin(), all.end(), 3u));
    EXPECT_EQ(without, all);
  }
}

TEST(OrderVerifiersTest, OverloadedGivesWay) {
  for (uint32_t i = 0; i < 100; ++i) {
    // Nine requests and this one: a fair share is 5, the bound ceil(6.25) = 7.
    EXPECT_EQ(OrderVerifiers(Verifiers({9, 0}), Prompt(i), 1), (std::vector<size_t>{1, 0}));
  }
  // At the bound of ceil(1.25 * 4 / 2) = 3, not yet beyond it: the hash decides.
  std::set<size_t> firsts;
  for (uint32_t i = 0; i < 100; ++i) firsts.insert(OrderVerifiers(Verifiers({2, 1}), Prompt(i), 1)[0]);
  EXPECT_THAT(firsts, ElementsAre(0, 1));
}

TEST(OrderVerifiersTest, LoneVerifierIsNeverPassedOver) {
  EXPECT_THAT(OrderVerifiers(Verifiers({1000000}), Prompt(1), 1), ElementsAre(0));
}

}  // namespace
}  // namespace tandem::router

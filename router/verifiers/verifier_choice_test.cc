#include "router/verifiers/verifier_choice.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

const absl::Time kStart = absl::FromUnixSeconds(1000);

std::vector<std::string> Endpoints(int count) {
  std::vector<std::string> endpoints;
  for (int i = 0; i < count; ++i) endpoints.push_back(absl::StrCat("verifier-", i, ":7002"));
  return endpoints;
}

std::vector<size_t> OrderOf(const VerifierChoice& choice, uint32_t prompt, absl::Time now = kStart,
                            std::vector<size_t> tried = {}) {
  const uint32_t tokens[] = {1, prompt, 3};
  return choice.Order(tokens, 0, tried, now);
}

TEST(VerifierChoiceTest, TheSamePromptGoesTheSameWay) {
  const VerifierChoice choice({}, Endpoints(4));
  std::map<size_t, int> first;
  for (uint32_t prompt = 0; prompt < 400; ++prompt) {
    const std::vector<size_t> order = OrderOf(choice, prompt);
    EXPECT_EQ(order, OrderOf(choice, prompt));
    EXPECT_THAT(order, UnorderedElementsAre(0, 1, 2, 3));
    ++first[order[0]];
  }
  for (const auto& [verifier, count] : first) EXPECT_GT(count, 50) << verifier;
}

TEST(VerifierChoiceTest, AVerifiersComingAndGoingMovesOnlyItsOwnShare) {
  VerifierChoice choice({}, Endpoints(4));
  for (uint32_t prompt = 0; prompt < 200; ++prompt) {
    choice.SetServing(2, true);
    const std::vector<size_t> with = OrderOf(choice, prompt);
    choice.SetServing(2, false);
    const std::vector<size_t> without = OrderOf(choice, prompt);
    EXPECT_EQ(without.size(), 3u) << "what drains is left out";
    EXPECT_EQ(without[0], with[0] == 2 ? with[1] : with[0]);
  }
}

TEST(VerifierChoiceTest, LoadIsBounded) {
  VerifierChoice choice({}, Endpoints(4));
  // All prompts begin alike.
  std::vector<uint32_t> load(4);
  for (uint32_t requests = 1; requests <= 200; ++requests) {
    const size_t taken = OrderOf(choice, 7)[0];
    choice.OnBegin(taken);
    ++load[taken];
    // ceil(1.25 * requests / 4)
    EXPECT_LE(load[taken], (5 * requests + 15) / 16);
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(choice.in_flight(i), load[i]);
}

TEST(VerifierChoiceTest, TriedOnesComeLast) {
  const VerifierChoice choice({}, Endpoints(3));
  const std::vector<size_t> order = OrderOf(choice, 5);
  EXPECT_THAT(OrderOf(choice, 5, kStart, {order[0]}), ElementsAre(order[1], order[2], order[0]));
}

TEST(VerifierChoiceTest, FullOnesTakeNothing) {
  VerifierChoice choice({.max_in_flight = 2}, Endpoints(2));
  for (int i = 0; i < 2; ++i) choice.OnBegin(0);
  for (uint32_t prompt = 0; prompt < 20; ++prompt) EXPECT_THAT(OrderOf(choice, prompt), ElementsAre(1));
  for (int i = 0; i < 2; ++i) choice.OnBegin(1);
  EXPECT_TRUE(OrderOf(choice, 0).empty());
  choice.OnEnd(0);
  EXPECT_THAT(OrderOf(choice, 0), ElementsAre(0));
}

TEST(VerifierChoiceTest, FailuresInARowEjectForLongerEachTime) {
  VerifierChoice choice(
      {.failures_to_ejection = 3, .first_ejection = absl::Seconds(2), .longest_ejection = absl::Seconds(6)},
      Endpoints(2));
  absl::Time now = kStart;
  const auto fail = [&](int times) {
    for (int i = 0; i < times; ++i) choice.OnFailure(0, now);
  };
  fail(2);
  choice.OnSuccess(0, now);
  fail(2);
  EXPECT_FALSE(choice.ejected(0, now)) << "not in a row";
  for (absl::Duration expected : {absl::Seconds(2), absl::Seconds(4), absl::Seconds(6), absl::Seconds(6)}) {
    fail(3);
    EXPECT_THAT(OrderOf(choice, 1, now), ElementsAre(1));
    EXPECT_TRUE(choice.ejected(0, now + expected - absl::Nanoseconds(1)));
    choice.OnSuccess(0, now);  // Something that was under way.
    now += expected;
    EXPECT_FALSE(choice.ejected(0, now));
    EXPECT_EQ(OrderOf(choice, 1, now).size(), 2u);
  }
  choice.OnSuccess(0, now);
  fail(3);
  EXPECT_FALSE(choice.ejected(0, now + absl::Seconds(2))) << "short again once it has served";
}

TEST(VerifierChoiceTest, NeverMoreThanAShareIsEjected) {
  VerifierChoice choice({.max_ejected_share = 0.5}, Endpoints(5));
  for (size_t verifier = 0; verifier < 5; ++verifier) {
    for (int i = 0; i < 10; ++i) choice.OnFailure(verifier, kStart);
  }
  EXPECT_EQ(OrderOf(choice, 1).size(), 3u);
  VerifierChoice alone({}, Endpoints(1));
  for (int i = 0; i < 10; ++i) alone.OnFailure(0, kStart);
  EXPECT_THAT(OrderOf(alone, 1), ElementsAre(0));
}

TEST(VerifierChoiceTest, WhenNoneIsFitAllAreTried) {
  VerifierChoice choice({}, Endpoints(3));
  for (size_t i = 0; i < 3; ++i) choice.SetServing(i, false);
  EXPECT_EQ(OrderOf(choice, 1).size(), 3u);
}

// Whatever happens: an order has no verifier twice, none that is full, none that is unfit while a fit one is
// not, and none is missing without a reason.
TEST(VerifierChoiceTest, OrdersHoldUnderChance) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    const int count = 1 + static_cast<int>(random() % 6);
    VerifierChoice choice({.max_in_flight = 5}, Endpoints(count));
    absl::Time now = kStart;
    for (int event = 0; event < 400; ++event) {
      now += absl::Milliseconds(random() % 500);
      const size_t verifier = random() % static_cast<uint32_t>(count);
      switch (random() % 5) {
        case 0:
          choice.SetServing(verifier, random() % 2 == 0);
          break;
        case 1:
          choice.OnFailure(verifier, now);
          break;
        case 2:
          choice.OnSuccess(verifier, now);
          break;
        case 3:
          if (choice.in_flight(verifier) > 0) choice.OnEnd(verifier);
          break;
        default:
          if (const auto order = OrderOf(choice, random() % 8, now); !order.empty()) choice.OnBegin(order[0]);
      }
      std::vector<size_t> order = OrderOf(choice, random() % 8, now);
      const auto is_fit = [&](size_t i) { return choice.serving(i) && !choice.ejected(i, now); };
      bool any_fit = false;
      int ejected = 0;
      for (size_t i = 0; i < choice.size(); ++i) {
        any_fit |= is_fit(i);
        ejected += choice.ejected(i, now) ? 1 : 0;
      }
      EXPECT_LE(ejected, count / 2) << "seed " << seed;
      for (size_t i = 0; i < choice.size(); ++i) {
        ASSERT_LE(choice.in_flight(i), 5u) << "seed " << seed;
        const bool expected = choice.in_flight(i) < 5 && (is_fit(i) || !any_fit);
        EXPECT_EQ(std::count(order.begin(), order.end(), i), expected ? 1 : 0) << "seed " << seed;
      }
    }
  }
}

TEST(VerifierChoiceTest, OnesThatAreNotListedGetNothing) {
  VerifierChoice choice({}, {"a:1", "b:1"});
  EXPECT_EQ(OrderOf(choice, 1, kStart).size(), 2u);
  choice.SetListed(0, false);
  EXPECT_EQ(choice.num_listed(), 1u);
  EXPECT_EQ(OrderOf(choice, 1, kStart), std::vector<size_t>{1});
  // Not even when the others are not fit, which would be tried then.
  choice.SetServing(1, false);
  EXPECT_EQ(OrderOf(choice, 1, kStart), std::vector<size_t>{1});
  choice.SetListed(1, false);
  EXPECT_TRUE(OrderOf(choice, 1, kStart).empty());
}

TEST(VerifierChoiceTest, AReplacedOneBeginsAnew) {
  VerifierChoice choice({.failures_to_ejection = 1}, {"a:1", "b:1"});
  choice.OnFailure(0, kStart);
  ASSERT_TRUE(choice.ejected(0, kStart));
  choice.SetListed(0, false);
  choice.Replace(0, "c:1");
  EXPECT_EQ(choice.endpoint(0), "c:1");
  EXPECT_TRUE(choice.listed(0));
  EXPECT_FALSE(choice.ejected(0, kStart));
  // It has yet to say that it serves.
  EXPECT_EQ(OrderOf(choice, 1, kStart), std::vector<size_t>{1});
  choice.SetServing(0, true);
  EXPECT_EQ(OrderOf(choice, 1, kStart).size(), 2u);
  choice.Replace(2, "d:1");
  EXPECT_EQ(choice.size(), 3u);
}

}  // namespace
}  // namespace tandem::router

#include "bench/serve/schedule.h"

#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Labels(const Matrix& matrix) {
  std::vector<std::string> labels;
  for (const Configuration& configuration : MakeConfigurations(matrix)) labels.push_back(configuration.label);
  return labels;
}

TEST(ConfigurationsTest, AreTheProductOfTheListsWithPlainDecodingOnce) {
  EXPECT_THAT(Labels({.drafters = {"off", "a"}}), ElementsAre("off", "a"));
  EXPECT_THAT(Labels({.drafters = {"off", kLocalDrafts}}), ElementsAre("off", "local"));
  EXPECT_THAT(Labels({.drafters = {"off", "a", "b", "a"}, .policies = {"fixed", "fsm"}, .max_windows = {4}}),
              ElementsAre("off", "a fixed w4", "a fsm w4", "b fixed w4", "b fsm w4"));
  EXPECT_THAT(Labels({.drafters = {"a"}, .policies = {"fixed:2", "fsm", "fixed:1"}, .max_windows = {4, 8}}),
              ElementsAre("a fixed w2", "a fsm w4", "a fsm w8", "a fixed w1"));
  const Matrix shapes{.models = {"chain", "tree"}, .drafters = {"a", "off"}, .max_windows = {2, 8}};
  EXPECT_THAT(Labels(shapes), ElementsAre("a w2 @chain", "a w8 @chain", "a w2 @tree", "a w8 @tree", "off"));
  const std::vector<Configuration> configurations = MakeConfigurations(shapes);
  EXPECT_EQ(configurations.back().drafter, "");
  EXPECT_EQ(configurations.back().model, "chain");
  EXPECT_EQ(configurations.back().max_window, 0u);
}

TEST(ConfigurationsTest, AWindowIsANumberAboveZero) {
  for (const char* wrong : {"fixed:", "fixed:0", "fixed:-1", "fixed:x", "fixed:99999999999", "fixed:1:2"}) {
    EXPECT_FALSE(ParsePolicyChoice(wrong).ok()) << wrong;
  }
  EXPECT_EQ(ParsePolicyChoice("")->max_window, 0u);
}

TEST(SamplingsTest, SeedsCountAboveTemperatureZero) {
  const std::vector<Sampling> samplings = MakeSamplings({0.0, 0.8}, {3, 4});
  ASSERT_EQ(samplings.size(), 3u);
  EXPECT_EQ(samplings[0].seed, 3u);
  EXPECT_EQ(samplings[1].temperature, 0.8);
  EXPECT_EQ(samplings[2].seed, 4u);
}

TEST(ScheduleTest, EveryConfigurationRunsOnceInEveryCellAndCellsStayTogether) {
  const std::vector<Turn> turns = MakeSchedule(3, 4, 2, 2, 5);
  ASSERT_EQ(turns.size(), 3u * 4 * 2 * 2 * 5);
  std::set<std::tuple<uint32_t, uint32_t, uint32_t, uint32_t>> cells;
  for (size_t i = 0; i < turns.size(); i += 5) {
    std::set<uint32_t> seen;
    for (size_t j = i; j < i + 5; ++j) {
      EXPECT_EQ(turns[j].repetition, turns[i].repetition);
      EXPECT_EQ(turns[j].batch, turns[i].batch);
      EXPECT_EQ(turns[j].sampling, turns[i].sampling);
      EXPECT_EQ(turns[j].load, turns[i].load);
      seen.insert(turns[j].configuration);
    }
    EXPECT_EQ(seen.size(), 5u);
    cells.insert({turns[i].repetition, turns[i].batch, turns[i].sampling, turns[i].load});
  }
  EXPECT_EQ(cells.size(), 3u * 4 * 2 * 2);
}

TEST(ScheduleTest, OrderRotatesAndTurnsRound) {
  const std::vector<Turn> turns = MakeSchedule(2, 6, 1, 1, 3);
  std::map<uint32_t, int> first;
  std::map<std::pair<uint32_t, uint32_t>, int> neighbours;
  for (size_t i = 0; i < turns.size(); i += 3) {
    ++first[turns[i].configuration];
    ++neighbours[{turns[i].configuration, turns[i + 1].configuration}];
    ++neighbours[{turns[i + 1].configuration, turns[i + 2].configuration}];
  }
  EXPECT_THAT(first, ElementsAre(std::pair(0, 4), std::pair(1, 4), std::pair(2, 4)));
  ASSERT_EQ(neighbours.size(), 6u);
  for (const auto& [pair, count] : neighbours) EXPECT_EQ(count, 4) << pair.first << " " << pair.second;
}

TEST(PoissonArrivalsTest, RepeatWithTheirSeedAndHaveTheRateAsked) {
  constexpr size_t kCount = 20'000;
  const std::vector<absl::Duration> arrivals = PoissonArrivals(50.0, kCount, 7);
  EXPECT_EQ(arrivals, PoissonArrivals(50.0, kCount, 7));
  EXPECT_NE(arrivals, PoissonArrivals(50.0, kCount, 8));
  const double seconds = absl::ToDoubleSeconds(arrivals.back());
  EXPECT_NEAR(static_cast<double>(kCount) / seconds, 50.0, 1.5);
  // Gaps of a Poisson process are exponential: 1/e of them are above the mean, and they are independent.
  size_t above = 0;
  absl::Duration before;
  for (const absl::Duration arrival : arrivals) {
    ASSERT_GT(arrival, before);
    if (arrival - before > absl::Seconds(1.0 / 50.0)) ++above;
    before = arrival;
  }
  EXPECT_NEAR(static_cast<double>(above) / kCount, 0.3679, 0.015);
}

}  // namespace
}  // namespace tandem::bench

#include "common/speculation/node_choice.h"
#include "common/base/node_index.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A candidate by its own probability.
struct Candidate {
  uint32_t parent = kRootNode;
  float probability = 0.0f;
};

// The candidates of some sessions, and what is chosen from.
class Sessions {
 public:
  Sessions(std::initializer_list<std::vector<Candidate>> sessions) : candidates_(sessions) {}
  explicit Sessions(size_t count) : candidates_(count) {}

  size_t size() const { return candidates_.size(); }
  std::vector<Candidate>& operator[](size_t session) { return candidates_[session]; }
  const std::vector<Candidate>& operator[](size_t session) const { return candidates_[session]; }
  void ProbeOfFirst(uint32_t index) { probe_ = index; }

  double PathScore(size_t session, uint32_t index) const {
    float product = 1.0f;
    for (uint32_t at = index; at != kRootNode; at = candidates_[session][at].parent) {
      product *= candidates_[session][at].probability;
    }
    return product;
  }

  NodeChoice Choose(const ChoiceCosts& costs) const {
    std::vector<std::vector<RoundNode>> nodes(size());
    std::vector<ChoiceSession> sessions(size());
    for (size_t s = 0; s < size(); ++s) {
      for (uint32_t i = 0; i < candidates_[s].size(); ++i) {
        nodes[s].push_back(
            {.parent = candidates_[s][i].parent, .path_score = static_cast<float>(PathScore(s, i))});
      }
      sessions[s].nodes = nodes[s];
    }
    sessions[0].probe = probe_;
    return ChooseNodes(sessions, costs);
  }

 private:
  std::vector<std::vector<Candidate>> candidates_;
  std::optional<uint32_t> probe_;
};

double Rate(const ChoiceCosts& costs, double tokens, uint32_t num_nodes) {
  return tokens / (std::max(costs.round_time->Seconds(costs.fixed_rows + num_nodes, costs.context),
                            costs.hidden_draft_seconds) +
                   costs.exposed_seconds);
}

bool HasItsParents(const std::vector<Candidate>& session, const std::vector<uint32_t>& chosen) {
  return std::all_of(chosen.begin(), chosen.end(), [&](uint32_t index) {
    const uint32_t parent = session[index].parent;
    return parent == kRootNode || std::binary_search(chosen.begin(), chosen.end(), parent);
  });
}

// The best rate over all sets of nodes that are closed under parents, by trying them all.
double BestRateByTrying(const Sessions& sessions, const ChoiceCosts& costs) {
  std::vector<std::pair<uint32_t, uint32_t>> all;
  for (uint32_t s = 0; s < sessions.size(); ++s) {
    for (uint32_t i = 0; i < sessions[s].size(); ++i) all.emplace_back(s, i);
  }
  double best = 0.0;
  for (uint32_t mask = 0; mask < (1u << all.size()); ++mask) {
    std::vector<std::vector<uint32_t>> chosen(sessions.size());
    double tokens = costs.fixed_tokens;
    uint32_t count = 0;
    for (size_t bit = 0; bit < all.size(); ++bit) {
      if ((mask >> bit & 1) == 0) continue;
      chosen[all[bit].first].push_back(all[bit].second);
      tokens += sessions.PathScore(all[bit].first, all[bit].second);
      ++count;
    }
    bool allowed = count <= costs.most_nodes;
    for (uint32_t s = 0; s < sessions.size(); ++s) allowed = allowed && HasItsParents(sessions[s], chosen[s]);
    if (allowed) best = std::max(best, Rate(costs, tokens, count));
  }
  return best;
}

Sessions RandomSessions(std::mt19937& random, uint32_t num_nodes) {
  std::uniform_real_distribution<float> unit(0.0f, 1.0f);
  Sessions sessions(1 + random() % 3);
  for (uint32_t i = 0; i < num_nodes; ++i) {
    std::vector<Candidate>& session = sessions[random() % sessions.size()];
    const auto size = static_cast<uint32_t>(session.size());
    const uint32_t parent = random() % (size + 1);
    session.push_back({.parent = parent == size ? kRootNode : parent, .probability = unit(random)});
  }
  return sessions;
}

TEST(NodeChoiceTest, EqualsExhaustiveSearch) {
  std::mt19937 random(20);
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  for (int trial = 0; trial < 300; ++trial) {
    const Sessions sessions = RandomSessions(random, 1 + random() % 9);
    const RoundTimeModel round_time({{1, 1.0}, {2, 1.0 + 0.3 * unit(random)}, {6, 1.4 + 2.0 * unit(random)}});
    const ChoiceCosts costs{.round_time = &round_time,
                            .fixed_rows = static_cast<uint32_t>(sessions.size()),
                            .fixed_tokens = static_cast<double>(sessions.size()),
                            .most_nodes = static_cast<uint32_t>(random() % 12),
                            .hidden_draft_seconds = trial % 3 == 0 ? 1.5 : 0.0,
                            .exposed_seconds = trial % 2 == 0 ? 0.2 : 0.0};
    const NodeChoice choice = sessions.Choose(costs);
    uint32_t count = 0;
    double tokens = costs.fixed_tokens;
    for (size_t s = 0; s < sessions.size(); ++s) {
      ASSERT_TRUE(HasItsParents(sessions[s], choice.nodes[s])) << "trial " << trial;
      count += static_cast<uint32_t>(choice.nodes[s].size());
      for (uint32_t index : choice.nodes[s]) tokens += sessions.PathScore(s, index);
    }
    ASSERT_NEAR(choice.expected_tokens, tokens, 1e-9);
    ASSERT_NEAR(Rate(costs, tokens, count), BestRateByTrying(sessions, costs), 1e-9) << "trial " << trial;
  }
}

TEST(NodeChoiceTest, ANodeThatGetsMoreProbableStaysChosen) {
  std::mt19937 random(21);
  const RoundTimeModel round_time({{1, 1.0}, {16, 3.0}});
  for (int trial = 0; trial < 300; ++trial) {
    Sessions sessions = RandomSessions(random, 12);
    const ChoiceCosts costs{.round_time = &round_time, .fixed_rows = 3, .fixed_tokens = 3.0};
    const NodeChoice before = sessions.Choose(costs);
    for (size_t s = 0; s < sessions.size(); ++s) {
      if (before.nodes[s].empty()) continue;
      const uint32_t index = before.nodes[s][random() % before.nodes[s].size()];
      sessions[s][index].probability = 1.0f - 0.5f * (1.0f - sessions[s][index].probability);
      const NodeChoice after = sessions.Choose(costs);
      EXPECT_TRUE(std::binary_search(after.nodes[s].begin(), after.nodes[s].end(), index))
          << "trial " << trial;
      EXPECT_GE(after.expected_tokens / after.seconds, before.expected_tokens / before.seconds - 1e-12);
      break;
    }
  }
}

TEST(NodeChoiceTest, RowsUnderTheDraftAreFree) {
  const RoundTimeModel round_time({{1, 1.0}, {11, 2.0}});
  const Sessions sessions = {{{.probability = 0.05f}, {.probability = 0.04f}}};
  ChoiceCosts costs{.round_time = &round_time, .fixed_rows = 1, .fixed_tokens = 1.0};
  EXPECT_THAT(sessions.Choose(costs).nodes[0], IsEmpty());
  costs.hidden_draft_seconds = 1.1;
  EXPECT_THAT(sessions.Choose(costs).nodes[0], ElementsAre(0));
  costs.hidden_draft_seconds = 1.2;
  EXPECT_THAT(sessions.Choose(costs).nodes[0], ElementsAre(0, 1));
}

TEST(NodeChoiceTest, PromptsInTheStepDoNotMakeNodesCheap) {
  // Every row takes as long: a node pays only if it is certain, beside prompts or not.
  const RoundTimeModel linear({{1, 1.0}, {2, 2.0}});
  const Sessions sessions = {{{.probability = 0.8f}}};
  for (uint32_t prompt_rows : {0u, 1u, 100u}) {
    const ChoiceCosts costs{
        .round_time = &linear, .fixed_rows = 8, .prompt_rows = prompt_rows, .fixed_tokens = 8.0};
    const NodeChoice choice = sessions.Choose(costs);
    EXPECT_THAT(choice.nodes[0], IsEmpty()) << prompt_rows;
    EXPECT_DOUBLE_EQ(choice.seconds, 8.0 + prompt_rows);
  }
  // Rows that are almost free with few of them, and dear beside a prompt: what pays alone need not pay there.
  const RoundTimeModel bent({{1, 10.0}, {16, 10.5}, {32, 26.5}});
  ChoiceCosts costs{.round_time = &bent, .fixed_rows = 8, .fixed_tokens = 8.0};
  EXPECT_THAT(sessions.Choose(costs).nodes[0], ElementsAre(0));
  costs.prompt_rows = 30;
  EXPECT_THAT(sessions.Choose(costs).nodes[0], IsEmpty());
}

TEST(NodeChoiceTest, GivesRowsToWhoeverUsesThemBest) {
  const RoundTimeModel round_time({{1, 1.0}, {3, 1.0}, {4, 9.0}});
  const Sessions sessions = {{{.probability = 0.25f}},
                             {{.probability = 0.875f}, {.parent = 0, .probability = 0.875f}}};
  const ChoiceCosts costs{.round_time = &round_time, .fixed_rows = 2, .fixed_tokens = 2.0};
  const NodeChoice choice = sessions.Choose(costs);
  EXPECT_THAT(choice.nodes[0], IsEmpty());
  EXPECT_THAT(choice.nodes[1], ElementsAre(0));
  EXPECT_THAT(choice.expected_tokens, DoubleEq(2.875));
}

TEST(NodeChoiceTest, ProbesAndLimits) {
  const RoundTimeModel round_time({{1, 1.0}, {2, 9.0}});
  Sessions sessions = {{{.probability = 0.1f}, {.probability = 0.2f}}, {{.probability = 0.9f}}};
  sessions.ProbeOfFirst(1);
  ChoiceCosts costs{.round_time = &round_time, .fixed_rows = 1, .fixed_tokens = 1.0};
  NodeChoice choice = sessions.Choose(costs);
  EXPECT_THAT(choice.nodes[0], ElementsAre(1));
  EXPECT_THAT(choice.nodes[1], IsEmpty());
  const RoundTimeModel flat({{1, 1.0}});
  costs.round_time = &flat;
  costs.most_nodes = 2;
  choice = sessions.Choose(costs);
  EXPECT_THAT(choice.nodes[0], ElementsAre(1));
  EXPECT_THAT(choice.nodes[1], ElementsAre(0));
  costs.most_nodes = 0;
  choice = sessions.Choose(costs);
  EXPECT_THAT(choice.nodes[0], IsEmpty());
  EXPECT_THAT(choice.nodes[1], IsEmpty());
}

TEST(NodeChoiceTest, SurvivesNonsense) {
  const RoundTimeModel round_time({{1, 1.0}, {8, 1.1}});
  const std::vector<RoundNode> nodes = {{.path_score = std::numeric_limits<float>::quiet_NaN()},
                                        {.parent = 0, .path_score = 1e30f},
                                        {.path_score = -1.0f},
                                        {.path_score = 1e30f}};
  const ChoiceSession session{.nodes = nodes};
  const ChoiceCosts costs{.round_time = &round_time, .fixed_rows = 1, .fixed_tokens = 1.0};
  EXPECT_THAT(ChooseNodes({session}, costs).nodes[0], ElementsAre(3));
}

}  // namespace
}  // namespace tandem

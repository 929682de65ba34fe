// Sampled drafts: children drawn from distributions that are sent with them.

#include <cmath>

#include "common/speculation/rules/draft_distribution.h"
#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing_peer::Drafter;
using testing_peer::kFingerprint;
using testing_peer::kLink;
using testing_peer::Prompt;

constexpr int32_t kVocabSize = 64;

struct Sibling {
  TokenId token;
  float score;
};

// A verifier's side that knows only what it is sent: who was drawn from what, in which order.
struct Mirror {
  explicit Mirror(Drafter* served_by) : drafter(served_by) {}

  void Open(const TokenIds& prompt, uint64_t seed, const DraftBudget& wanted, float temperature = 0.8f) {
    tokens = prompt;
    budget = wanted;
    tree.Clear();
    distributions.clear();
    drafter->core.OnRequest(kLink,
                            {.session = 1,
                             .event = OpenSession{.epoch = ++epoch,
                                                  .draft_model = "draft",
                                                  .vocabulary_fingerprint = kFingerprint,
                                                  .commit_no = commit_no,
                                                  .tokens = tokens,
                                                  .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
                                                  .sampling = {.temperature = temperature, .seed = seed},
                                                  .prompt_length = static_cast<uint32_t>(prompt.size()),
                                                  .budget = budget,
                                                  .sampled_drafts = true}});
  }

  void Commit(const TokenIds& round) {
    tandem::Commit commit{.epoch = epoch, .commit_no = ++commit_no, .tokens = round, .budget = budget};
    tokens.insert(tokens.end(), round.begin(), round.end());
    commit.committed_len = static_cast<uint32_t>(tokens.size());
    commit.prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens);
    NodeId at = 0;
    const TreeNode* node = nullptr;
    for (TokenId token : round) {
      node = tree.FindChild(at, token);
      if (node == nullptr) break;
      at = node->id;
    }
    if (node == nullptr) {
      tree.Clear();
      distributions.clear();
    } else {
      commit.new_root = at;
      tree.Reroot(at);
      std::map<NodeId, DraftDistribution> kept;
      for (auto& [id, distribution] : distributions) {
        if (id == at) kept[0] = distribution;
        if (tree.Find(id) != nullptr) kept[id] = distribution;
      }
      distributions = kept;
    }
    drafter->core.OnRequest(kLink, {.session = 1, .event = commit});
  }

  void RunAndTake() {
    drafter->RunDry();
    Take();
  }

  // Checks and takes what has been sent; what is older than the last commit is left out.
  void Take() {
    for (const auto& [link, response] : drafter->core.TakeResponses()) {
      if (const auto* refused = std::get_if<SessionRefused>(&response.event)) refusal = refused->status;
      const auto* grow = std::get_if<Grow>(&response.event);
      if (grow == nullptr || grow->epoch != epoch || grow->seen_commit != commit_no) continue;
      for (const DraftDistribution& distribution : grow->distributions) {
        EXPECT_EQ(FindViolation(distribution, kVocabSize), "");
        const NodeId parent = distribution.parent == tree.root_id() ? 0 : distribution.parent;
        EXPECT_TRUE(distributions.emplace(parent, distribution).second) << "told twice";
      }
      for (size_t i = 0; i < grow->parents.size(); ++i) {
        const NodeId parent = grow->parents[i] == tree.root_id() ? 0 : grow->parents[i];
        ASSERT_TRUE(distributions.contains(parent)) << "children of nobody knows what";
        EXPECT_THAT(distributions.at(parent).tokens, ::testing::Contains(grow->tokens[i]));
        ASSERT_EQ(tree.FindChild(parent, grow->tokens[i]), nullptr) << "drawn twice";
        for (const Sibling& elder : Children(parent)) EXPECT_GE(elder.score, grow->scores[i]);
        tree.Add(grow->first_id + static_cast<NodeId>(i), parent, grow->tokens[i], grow->scores[i]);
      }
    }
  }

  std::vector<Sibling> Children(NodeId parent) const {
    std::vector<Sibling> children;
    for (const TreeNode& node : tree.nodes()) {
      if (node.parent == parent) children.push_back({node.token, node.score});
    }
    return children;
  }

  // The text above each node's children, and the children in order: what was drawn where.
  std::map<TokenIds, TokenIds> Draws() const {
    std::map<TokenIds, TokenIds> draws;
    for (const TreeNode& node : tree.nodes()) {
      TokenIds text = tokens;
      for (NodeId id : tree.Path(node.id)) text.push_back(tree.Find(id)->token);
      text.pop_back();
      draws[text].push_back(node.token);
    }
    return draws;
  }

  Drafter* drafter;
  uint32_t epoch = 0;
  uint32_t commit_no = 0;
  TokenIds tokens;
  DraftBudget budget;
  CandidateTree tree;
  std::map<NodeId, DraftDistribution> distributions;  // 0: of the root.
  absl::Status refusal;
};

constexpr DraftBudget kBudget = {.depth = 3, .nodes = 20, .branching = 3, .lookahead = 0};

TEST(SampledDraftsTest, TheDistributionIsTheModelsCutAndRenormalised) {
  Drafter drafter;
  Mirror mirror(&drafter);
  mirror.Open(Prompt(9), 5, kBudget);
  mirror.RunAndTake();
  ASSERT_TRUE(mirror.distributions.contains(0));
  const DraftDistribution& sent = mirror.distributions.at(0);
  ASSERT_EQ(sent.tokens.size(), 32u);
  std::vector<float> logits = drafter.engine.ReferenceLogits(Prompt(9));
  double total = 0.0;
  for (TokenId token : sent.tokens) total += std::exp(logits[static_cast<size_t>(token)] / 0.8);
  float least = HUGE_VALF;
  for (size_t i = 0; i < sent.tokens.size(); ++i) {
    const float logit = logits[static_cast<size_t>(sent.tokens[i])];
    EXPECT_NEAR(sent.probabilities[i], std::exp(logit / 0.8) / total, 1e-5);
    least = std::min(least, logit);
  }
  EXPECT_EQ(std::count_if(logits.begin(), logits.end(), [&](float logit) { return logit >= least; }), 32);
  EXPECT_GT(mirror.distributions.size(), 1u);
}

// First draws, and second ones given the first, over requests that differ in their seeds.
TEST(SampledDraftsTest, ChildrenAreDrawnFromIt) {
  Drafter drafter({}, {.sharpness = 1.0f});
  Mirror mirror(&drafter);
  constexpr uint64_t kCount = 20000;
  std::map<TokenId, uint64_t> firsts;
  std::map<TokenId, uint64_t> seconds;
  for (uint64_t seed = 0; seed < kCount; ++seed) {
    mirror.Open(Prompt(3), seed, {.depth = 1, .nodes = 2, .branching = 2});
    mirror.RunAndTake();
    const std::vector<Sibling> children = mirror.Children(0);
    ASSERT_EQ(children.size(), 2u);
    ++firsts[children[0].token];
    ++seconds[children[1].token];
  }
  const DraftDistribution distribution = mirror.distributions.at(0);
  double first_chi_square = 0.0;
  double second_chi_square = 0.0;
  for (size_t i = 0; i < distribution.tokens.size(); ++i) {
    const double probability = distribution.probabilities[i];
    double second = 0.0;
    for (size_t j = 0; j < distribution.tokens.size(); ++j) {
      const double other = distribution.probabilities[j];
      if (j != i) second += other * probability / (1.0 - other);
    }
    const auto off = [&](uint64_t count, double expected) {
      return (static_cast<double>(count) - expected) * (static_cast<double>(count) - expected) / expected;
    };
    first_chi_square += off(firsts[distribution.tokens[i]], probability * kCount);
    second_chi_square += off(seconds[distribution.tokens[i]], second * kCount);
  }
  const double limit = 31.0 + 6.0 * std::sqrt(2.0 * 31.0);
  EXPECT_LT(first_chi_square, limit);
  EXPECT_LT(second_chi_square, limit);
}

TEST(SampledDraftsTest, DrawsAreAFunctionOfSeedsAndText) {
  const auto draws = [](uint64_t draw_seed, uint64_t seed, uint32_t expand_width) {
    Drafter drafter({.expand_width = expand_width, .draw_seed = draw_seed}, {.sharpness = 1.0f});
    Mirror mirror(&drafter);
    mirror.Open(Prompt(9), seed, kBudget);
    mirror.RunAndTake();
    return mirror.Draws();
  };
  const auto reference = draws(1, 1, 4);
  EXPECT_EQ(draws(1, 1, 4), reference);
  EXPECT_NE(draws(2, 1, 4), reference);
  EXPECT_NE(draws(1, 2, 4), reference);
  // In whatever order the tree grows, what is drawn below a text stays the same.
  for (const auto& [text, children] : draws(1, 1, 1)) {
    const auto same = reference.find(text);
    if (same == reference.end()) continue;
    const size_t both = std::min(children.size(), same->second.size());
    EXPECT_TRUE(
        std::equal(children.begin(), children.begin() + static_cast<ptrdiff_t>(both), same->second.begin()));
  }
}

// The tree survives commits: what was drawn stays, nothing is told twice, and a drafter that is opened again
// draws the same.
TEST(SampledDraftsTest, CommitsKeepDraws) {
  Drafter drafter({}, {.sharpness = 1.0f});
  Mirror mirror(&drafter);
  mirror.Open(Prompt(20), 3, {.depth = 4, .nodes = 24, .branching = 3, .lookahead = 4});
  int hits = 0;
  for (int round = 0; round < 60; ++round) {
    mirror.RunAndTake();
    if (HasFatalFailure()) return;
    const std::vector<Sibling> children = mirror.Children(0);
    ASSERT_FALSE(children.empty());
    const auto before = mirror.Draws();
    switch (round % 4) {
      case 0:
        mirror.Commit({children.front().token});
        break;
      case 1:
        mirror.Commit({children.back().token, static_cast<TokenId>(round % kVocabSize)});
        break;
      case 2:
        mirror.Commit({static_cast<TokenId>((round * 7) % kVocabSize)});
        break;
      case 3:
        mirror.Open(mirror.tokens, 3, mirror.budget);
        break;
    }
    mirror.RunAndTake();
    for (const auto& [text, drawn] : mirror.Draws()) {
      const auto same = before.find(text);
      if (same == before.end()) continue;
      ++hits;
      const size_t both = std::min(drawn.size(), same->second.size());
      EXPECT_TRUE(
          std::equal(drawn.begin(), drawn.begin() + static_cast<ptrdiff_t>(both), same->second.begin()));
    }
  }
  EXPECT_GT(hits, 20);
}

// A commit that the verifier made before it knew the node: what lies below is sent again, with what it was
// drawn from.
TEST(SampledDraftsTest, SalvagedNodesComeWithTheirDistributions) {
  Drafter drafter({}, {.sharpness = 1.0f});
  Mirror ahead(&drafter);
  ahead.Open(Prompt(9), 4, kBudget);
  ahead.RunAndTake();
  const std::vector<Sibling> children = ahead.Children(0);
  const auto known = ahead.Draws();
  // The verifier has heard of nothing.
  ahead.tree.Clear();
  ahead.distributions.clear();
  ahead.Commit({children.front().token});
  ahead.Take();
  EXPECT_FALSE(ahead.tree.empty());
  TokenIds text = Prompt(9);
  text.push_back(children.front().token);
  const TokenIds again = ahead.Draws().at(text);
  const TokenIds& before = known.at(text);
  EXPECT_TRUE(std::equal(before.begin(),
                         before.begin() + static_cast<ptrdiff_t>(std::min(before.size(), again.size())),
                         again.begin()));
  ahead.RunAndTake();
}

// Sources propose what they have seen, which is no sample of anything.
TEST(SampledDraftsTest, SourcesHaveNoSay) {
  Drafter merged({}, {.sharpness = 1.0f}, /*prefix_cache=*/true, "ngram:min=1");
  Drafter plain({}, {.sharpness = 1.0f});
  const TokenIds prompt = {5, 6, 7, 5, 6, 7, 5, 6};
  Mirror first(&merged);
  Mirror second(&plain);
  first.Open(prompt, 9, kBudget);
  second.Open(prompt, 9, kBudget);
  first.RunAndTake();
  second.RunAndTake();
  EXPECT_EQ(first.Draws(), second.Draws());

  Drafter alone({}, {}, /*prefix_cache=*/true, "ngram:min=1", /*with_engine=*/false);
  Mirror refused(&alone);
  refused.Open(prompt, 9, kBudget);
  refused.Take();
  EXPECT_EQ(refused.refusal.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.refusal.message()), HasSubstr("is a source"));
}

TEST(SampledDraftsTest, TemperatureZeroHasOneChild) {
  Drafter drafter;
  Mirror mirror(&drafter);
  mirror.Open(Prompt(9), 5, kBudget, /*temperature=*/0.0f);
  mirror.RunAndTake();
  EXPECT_EQ(mirror.tree.size(), 3u);
  EXPECT_EQ(mirror.distributions.at(0).probabilities, std::vector<float>{1.0f});
}

}  // namespace
}  // namespace tandem

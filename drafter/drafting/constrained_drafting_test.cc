// Drafting under a constraint: nothing is sent that it does not allow, at the scores of what it leaves; and
// until it is there, or where it never comes, as freely as ever.

#include <set>
#include <vector>

#include "absl/algorithm/container.h"
#include "common/base/hash.h"
#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using testing_peer::Drafter;
using testing_peer::kFingerprint;
using testing_peer::kLink;
using testing_peer::Nodes;
using testing_peer::Peer;
using testing_peer::Prompt;

constexpr DraftBudget kMaskedBudget = {.depth = 5, .nodes = 20, .branching = 3};

TokenIds PathOf(const Peer& peer, NodeId id) {
  TokenIds path;
  for (const NodeId above : peer.tree().Path(id)) path.push_back(peer.tree().Find(above)->token);
  return path;
}

bool IsAllowed(const Peer& peer, const TreeNode& node) {
  return FakeConstraint::Allows(*peer.constraint(), peer.OutputWith(PathOf(peer, node.parent)), node.token);
}

size_t NumForbidden(const Peer& peer) {
  const absl::Span<const TreeNode> nodes = peer.tree().nodes();
  return static_cast<size_t>(
      absl::c_count_if(nodes, [&](const TreeNode& node) { return !IsAllowed(peer, node); }));
}

// What a target might commit: a path of the tree of so many nodes, and one token more that may come.
TokenIds NextTokens(const Peer& peer, uint64_t random) {
  TokenIds tokens;
  NodeId above = 0;
  for (uint64_t left = random % 4; left > 0; --left) {
    const absl::Span<const TreeNode> nodes = peer.tree().nodes();
    const auto child = absl::c_find_if(nodes, [&](const TreeNode& node) {
      return node.parent == above && IsAllowed(peer, node) && node.token != FakeConstraint::kEnd;
    });
    if (child == nodes.end()) break;
    tokens.push_back(child->token);
    above = child->id;
  }
  const TokenIds output = peer.OutputWith(tokens);
  for (TokenId token = 1 + static_cast<TokenId>(random / 4 % 20); token < 84; ++token) {
    const TokenId at = token % 63 + 1;
    if (!FakeConstraint::Allows(*peer.constraint(), output, at)) continue;
    tokens.push_back(at);
    break;
  }
  return tokens;
}

// The peer checks scores against masked distributions, node by node.
TEST(ConstrainedDraftingTest, SendsWhatMayComeAtTheScoresOfWhatIsLeft) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Drafter drafter({.expand_width = 1 + static_cast<uint32_t>(seed % 4)}, {.seed = seed});
    Peer peer(&drafter, 1);
    peer.Constrain();
    peer.Open(Prompt(9), kMaskedBudget);
    peer.GiveConstraint();
    size_t num_nodes = 0;
    for (uint64_t round = 0; round < 12; ++round) {
      peer.RunDryAndDeliver();
      EXPECT_EQ(NumForbidden(peer), 0u) << seed << " " << round;
      num_nodes += peer.tree().size();
      const TokenIds tokens = NextTokens(peer, Mix64(seed * 100 + round));
      ASSERT_FALSE(tokens.empty());
      peer.CommitTokens(tokens);
      // Some commits come while growth is on the way, and some sessions are opened again.
      if (round % 3 == 1) drafter.core.Step();
      if (round % 5 == 4) {
        peer.Open(peer.tokens(), kMaskedBudget);
        peer.GiveConstraint();
      }
    }
    EXPECT_GT(num_nodes, 60u);
    EXPECT_FALSE(peer.refusal().has_value()) << *peer.refusal();
    EXPECT_GT(drafter.core.stats().counters.masked_rows, 0u);
    EXPECT_TRUE(drafter.core.CheckBlocks().ok());
  }
}

// With the target's own distribution every first guess is the target's choice, at temperature too: both mask
// before they add noise.
TEST(ConstrainedDraftingTest, GuessesTheTargetsChoiceWhereDistributionsAgree) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const SamplingParameters sampling{.temperature = 0.8f, .seed = seed};
    Drafter drafter;
    Peer peer(&drafter, 1);
    peer.Constrain();
    peer.set_sampling(sampling);
    peer.SkipScores();
    peer.Open(Prompt(9), {.depth = 8, .nodes = 8, .branching = 1});
    peer.GiveConstraint();
    peer.RunDryAndDeliver();
    TokenIds context = Prompt(9);
    TokenIds chain;
    for (const TreeNode& node : peer.tree().nodes()) {
      std::vector<float> logits = drafter.engine.ReferenceLogits(context);
      FakeConstraint::Mask(*peer.constraint(), chain, absl::MakeSpan(logits));
      TargetSampler sampler(sampling, 64, {});
      EXPECT_EQ(node.token,
                sampler.Choose(absl::MakeSpan(logits), static_cast<uint32_t>(context.size())).token);
      context.push_back(node.token);
      chain.push_back(node.token);
    }
    EXPECT_EQ(chain.size(), 8u);
  }
}

TEST(ConstrainedDraftingTest, DraftsFreelyUntilItComes) {
  Drafter drafter;
  Peer free(&drafter, 1);
  free.Open(Prompt(9), kMaskedBudget);
  free.RunDryAndDeliver();
  Peer peer(&drafter, 2);
  peer.Constrain();
  peer.Open(Prompt(9), kMaskedBudget);
  peer.RunDryAndDeliver();
  EXPECT_EQ(Nodes(peer), Nodes(free));
  EXPECT_GT(NumForbidden(peer), 0u);
  // What has been committed meanwhile is taken into account.
  peer.CommitTokens(NextTokens(peer, 1));
  peer.RunDryAndDeliver();
  const TokenIds tokens = NextTokens(peer, 0);
  peer.GiveConstraint();
  peer.SkipScores();  // Some nodes are of before.
  peer.CommitTokens(tokens);
  peer.RunDryAndDeliver();
  for (int round = 0; round < 4; ++round) {
    TokenIds next = NextTokens(peer, 0);
    peer.CommitTokens(next);
    peer.RunDryAndDeliver();
    EXPECT_EQ(NumForbidden(peer), 0u) << round;
    EXPECT_GT(peer.tree().size(), 0u);
  }
}

TEST(ConstrainedDraftingTest, AConstraintThatTheOutputBreaksIsNotHeeded) {
  for (const bool at_once : {false, true}) {
    Drafter drafter;
    Peer peer(&drafter, 1);
    peer.Constrain();
    peer.SkipScores();
    peer.Open(Prompt(9), kMaskedBudget);
    if (at_once) peer.GiveConstraint();
    TokenId forbidden = 1;
    while (FakeConstraint::Allows(*peer.constraint(), {}, forbidden)) ++forbidden;
    peer.RunDryAndDeliver();
    peer.CommitTokens({forbidden});
    if (!at_once) peer.GiveConstraint();
    peer.RunDryAndDeliver();
    EXPECT_FALSE(peer.refusal().has_value());
    EXPECT_EQ(peer.tree().size(), kMaskedBudget.nodes);
    EXPECT_GT(NumForbidden(peer), 0u);
  }
}

TEST(ConstrainedDraftingTest, OneOfAnotherOpeningIsNotHeeded) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Constrain();
  peer.Open(Prompt(9), kMaskedBudget);
  drafter.core.OnConstraint(kLink, 1, 7, std::make_unique<FakeConstraint>(FakeConstraint::Options{}));
  drafter.core.OnConstraint(kLink, 2, 1, std::make_unique<FakeConstraint>(FakeConstraint::Options{}));
  peer.RunDryAndDeliver();
  EXPECT_GT(NumForbidden(peer), 0u);
  EXPECT_EQ(drafter.core.stats().counters.constrained_sessions, 0u);
}

TEST(ConstrainedDraftingTest, NothingComesBehindTheEnd) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Constrain();
  peer.Open(Prompt(9), kMaskedBudget);
  peer.GiveConstraint();
  for (int round = 0; round < 40 && peer.OutputWith({}).size() < 12; ++round) {
    peer.RunDryAndDeliver();
    peer.CommitTokens(NextTokens(peer, 0));
  }
  ASSERT_EQ(peer.OutputWith({}).size(), 12u);
  peer.CommitTokens({FakeConstraint::kEnd});
  peer.RunDryAndDeliver();
  EXPECT_EQ(peer.tree().size(), 0u);
  EXPECT_TRUE(peer.exhausted());
  EXPECT_FALSE(peer.refusal().has_value()) << *peer.refusal();
}

TEST(ConstrainedDraftingTest, SourcesAreHeldToItToo) {
  Drafter drafter({}, {}, true, "ngram:min=1");
  Peer peer(&drafter, 1);
  peer.Constrain();
  // A text of which every token has been seen.
  TokenIds text;
  for (int i = 0; i < 200; ++i) text.push_back(static_cast<TokenId>(i * i % 13 + 1));
  peer.Open(text, kMaskedBudget);
  peer.GiveConstraint();
  for (int round = 0; round < 12; ++round) {
    peer.RunDryAndDeliver();
    if (round > 0) {
      EXPECT_EQ(NumForbidden(peer), 0u) << round;
    }
    const TokenIds tokens = NextTokens(peer, 0);
    ASSERT_FALSE(tokens.empty());
    peer.CommitTokens(tokens);
  }
  EXPECT_GT(drafter.core.stats().counters.forbidden_candidates, 0u);
}

TEST(ConstrainedDraftingTest, WhatIsDrawnIsDrawnFromWhatMayCome) {
  Drafter drafter;
  const TokenIds prompt = Prompt(9);
  drafter.core.OnRequest(kLink,
                         {.session = 1,
                          .event = OpenSession{.epoch = 1,
                                               .draft_model = "draft",
                                               .vocabulary_fingerprint = kFingerprint,
                                               .tokens = prompt,
                                               .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, prompt),
                                               .sampling = {.temperature = 0.8f, .seed = 4},
                                               .prompt_length = 9,
                                               .budget = kMaskedBudget,
                                               .sampled_drafts = true,
                                               .constraint = std::make_shared<const std::string>("fake")}});
  drafter.core.OnConstraint(kLink, 1, 1, std::make_unique<FakeConstraint>(FakeConstraint::Options{}));
  drafter.RunDry();
  CandidateTree tree;
  size_t num_distributions = 0;
  for (const auto& [link, response] : drafter.core.TakeResponses()) {
    const auto* grow = std::get_if<Grow>(&response.event);
    if (grow == nullptr) continue;
    for (size_t i = 0; i < grow->tokens.size(); ++i) {
      tree.Add(grow->first_id + static_cast<NodeId>(i), grow->parents[i], grow->tokens[i], grow->scores[i]);
    }
    for (const DraftDistribution& distribution : grow->distributions) {
      TokenIds path;
      for (const NodeId id : tree.Path(distribution.parent)) path.push_back(tree.Find(id)->token);
      for (const TokenId token : distribution.tokens) {
        EXPECT_TRUE(FakeConstraint::Allows({}, path, token));
      }
      EXPECT_GT(distribution.tokens.size(), 0u);
      ++num_distributions;
    }
  }
  EXPECT_GT(num_distributions, 3u);
}

}  // namespace
}  // namespace tandem

// Draft models that are sources, alone or merged with an engine's.

#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using testing_peer::Drafter;
using testing_peer::GreedyGuesses;
using testing_peer::kFingerprint;
using testing_peer::Nodes;
using testing_peer::Peer;
using testing_peer::Prompt;
using testing_peer::ReferenceNode;

TokenIds Path(const Peer& peer) {
  TokenIds tokens;
  for (const TreeNode& node : peer.tree().nodes()) tokens.push_back(node.token);
  return tokens;
}

Drafter SourceOnly(const char* spec) {
  return Drafter({}, {}, /*prefix_cache=*/true, spec, /*with_engine=*/false);
}

TEST(SourceDraftingTest, PromptLookupContinuesThePromptWithoutAStep) {
  for (const char* spec : {"ngram", "suffix"}) {
    Drafter drafter = SourceOnly(spec);
    Peer peer(&drafter, 1);
    peer.Open({1, 2, 3, 4, 5, 6, 9, 1, 2}, {.depth = 3, .nodes = 3, .branching = 1});
    EXPECT_FALSE(drafter.core.HasWork());
    peer.RunDryAndDeliver();
    EXPECT_TRUE(peer.opened());
    EXPECT_EQ(Path(peer), (TokenIds{3, 4, 5}));
    EXPECT_TRUE(peer.exhausted());
    // A hit: below the new root it goes on where the prompt does.
    peer.CommitTokens({3, 4});
    peer.RunDryAndDeliver();
    EXPECT_EQ(Path(peer), (TokenIds{5, 6, 9}));
    // A miss.
    peer.CommitTokens({5, 6, 9, 1, 2, 3});
    peer.RunDryAndDeliver();
    EXPECT_EQ(Path(peer), (TokenIds{4, 5, 6}));
    EXPECT_EQ(drafter.core.stats().kv_tokens, 0u);
    peer.Close();
    const DraftCounters counters = drafter.core.stats().counters;
    EXPECT_EQ(counters.sent_nodes, counters.accepted_nodes + counters.pruned_nodes + counters.stale_nodes);
  }
}

TEST(SourceDraftingTest, ASourceThatKnowsNothingSaysSoAtOnce) {
  Drafter drafter = SourceOnly("suffix");
  Peer peer(&drafter, 1);
  peer.Open({1, 2, 3}, {.depth = 3, .nodes = 3, .branching = 1});
  peer.RunDryAndDeliver();
  EXPECT_TRUE(peer.tree().empty());
  EXPECT_TRUE(peer.exhausted());
  peer.CommitTokens({4});
  peer.RunDryAndDeliver();
  EXPECT_TRUE(peer.exhausted());
  peer.budget() = {};
  peer.CommitTokens({1});
  peer.RunDryAndDeliver();
  EXPECT_FALSE(peer.exhausted()) << "a pause asks for nothing";
}

TEST(SourceDraftingTest, AnyVocabularyWillDoAndTokensOfAnySize) {
  Drafter drafter = SourceOnly("ngram");
  Peer peer(&drafter, 1);
  const TokenIds tokens = {2000000000, 5, 7, 2000000000, 5};
  OpenSession open = peer.MakeOpen(tokens, {.depth = 1, .nodes = 1, .branching = 1});
  open.vocabulary_fingerprint = kFingerprint + 1;
  peer.Send(open);
  const auto responses = drafter.core.TakeResponses();
  ASSERT_EQ(responses.size(), 2u);
  EXPECT_EQ(std::get<Grow>(responses[1].second.event).tokens, (TokenIds{7}));
}

TEST(SourceDraftingTest, NegativeTokensAreRefused) {
  Drafter drafter = SourceOnly("suffix");
  Peer peer(&drafter, 1);
  peer.Open({1, -2, 3}, {.depth = 1, .nodes = 1, .branching = 1});
  peer.RunDryAndDeliver();
  ASSERT_TRUE(peer.refusal().has_value());
  EXPECT_EQ(peer.refusal()->code(), absl::StatusCode::kInvalidArgument);
}

TEST(SourceDraftingTest, SaltsSeparateWhatTriesLearn) {
  Drafter drafter = SourceOnly("trie");
  const DraftBudget budget{.depth = 3, .nodes = 3, .branching = 1};
  Peer teacher(&drafter, 1);
  teacher.Open({1}, budget);
  teacher.CommitTokens({5, 6, 7, 8});
  for (uint64_t salt : {0, 1}) {
    Peer peer(&drafter, 2 + salt);
    OpenSession open = peer.MakeOpen({2, 5, 6}, budget);
    open.cache_salt = salt;
    drafter.core.TakeResponses();
    peer.Send(open);
    const auto responses = drafter.core.TakeResponses();
    ASSERT_EQ(responses.size(), 2u);
    const Grow& grow = std::get<Grow>(responses[1].second.event);
    EXPECT_EQ(TokenIds(grow.tokens.begin(), grow.tokens.end()), salt == 0 ? (TokenIds{7, 8}) : TokenIds{});
    EXPECT_TRUE(grow.exhausted);
  }
}

// What one target's tokens teach must not reach another's verifier: to it, tokens beyond its logits break the
// protocol.
TEST(SourceDraftingTest, VocabulariesSeparateWhatTriesLearn) {
  Drafter drafter = SourceOnly("trie");
  const DraftBudget budget{.depth = 3, .nodes = 3, .branching = 1};
  Peer teacher(&drafter, 1);
  teacher.Open({1}, budget);
  teacher.CommitTokens({5, 6, 100000, 8});
  for (uint64_t other : {0, 1}) {
    Peer peer(&drafter, 2 + other);
    OpenSession open = peer.MakeOpen({2, 5, 6}, budget);
    open.vocabulary_fingerprint += other;
    drafter.core.TakeResponses();
    peer.Send(open);
    const auto responses = drafter.core.TakeResponses();
    ASSERT_EQ(responses.size(), 2u);
    EXPECT_EQ(std::get<Grow>(responses[1].second.event).tokens,
              other == 0 ? (TokenIds{100000, 8}) : TokenIds{});
  }
}

TEST(SourceDraftingTest, ModelAndSourceFoldIntoOneTree) {
  Drafter drafter({}, {}, /*prefix_cache=*/true, "ngram");
  // The prompt ends in two tokens that were followed by one of the engine's guesses.
  TokenIds prompt = {10, 11, 0, 12, 10, 11};
  TokenProbabilities guesses;
  float engine_score = 0.0f;
  for (TokenId token = 0; token < 64 && engine_score == 0.0f; ++token) {
    prompt[2] = token;
    guesses = GreedyGuesses(drafter.engine, prompt, 16);
    for (const TokenProbability& guess : guesses) {
      if (guess.token == token) engine_score = guess.probability;
    }
  }
  ASSERT_GT(engine_score, 0.0f);

  Drafter alone = SourceOnly("ngram");
  Peer source(&alone, 1);
  source.Open(prompt, {.depth = 1, .nodes = 2, .branching = 2});
  source.RunDryAndDeliver();
  ASSERT_EQ(source.tree().size(), 1u);
  const float source_score = source.tree().nodes()[0].score;

  Peer peer(&drafter, 1);
  peer.Open(prompt, {.depth = 1, .nodes = 16, .branching = 16});
  peer.RunDryAndDeliver();
  const TreeNode* both = peer.tree().FindChild(0, prompt[2]);
  ASSERT_NE(both, nullptr);
  EXPECT_EQ(both->score, CombineScores(engine_score, source_score));
  EXPECT_GT(both->score, source_score);
  EXPECT_NE(peer.tree().FindChild(0, guesses[0].token), nullptr) << "what only the engine guesses is kept";
}

TEST(SourceDraftingTest, AMergedModelSharesItsRoomWithTheModelItIsMadeOf) {
  Drafter drafter({}, {.num_blocks = 5}, /*prefix_cache=*/true, "ngram");
  Peer plain(&drafter, 1), merged(&drafter, 2);
  const DraftBudget budget{.depth = 3, .nodes = 6, .branching = 2};
  OpenSession open = plain.MakeOpen(Prompt(40), DraftBudget{});
  open.draft_model = "plain";
  plain.Send(open);
  drafter.core.TakeResponses();
  merged.Open(Prompt(40, 4), budget);
  merged.RunDryAndDeliver();
  // What pauses gives way, whichever of the two it drafts with.
  EXPECT_FALSE(merged.tree().empty());
  EXPECT_TRUE(drafter.core.CheckBlocks().ok()) << drafter.core.CheckBlocks();
}

TEST(SourceDraftingTest, WhatASourceProposedIsForwardedAndGoneOnFrom) {
  Drafter drafter({}, {}, /*prefix_cache=*/true, "suffix");
  TokenIds prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3};
  Peer peer(&drafter, 1);
  peer.Open(prompt, {.depth = 4, .nodes = 40, .branching = 4});
  peer.RunDryAndDeliver();
  // The node that only the source knew has children that only the engine knows.
  const TreeNode* four = peer.tree().FindChild(0, 4);
  ASSERT_NE(four, nullptr);
  prompt.push_back(4);
  const TokenId next = GreedyGuesses(drafter.engine, prompt, 1)[0].token;
  EXPECT_NE(peer.tree().FindChild(four->id, next), nullptr);
  EXPECT_NE(peer.tree().FindChild(four->id, 5), nullptr);
  EXPECT_TRUE(peer.exhausted());
}

TEST(SourceDraftingTest, ALongPromptIsDraftedForBeforeTheEngineHasReadIt) {
  Drafter drafter({.max_step_rows = 8}, {}, /*prefix_cache=*/true, "ngram:min=2");
  TokenIds prompt = Prompt(40);
  prompt.insert(prompt.end(), {50, 51, 52, 53, 50, 51});
  Peer peer(&drafter, 1);
  peer.Open(prompt, {.depth = 2, .nodes = 4, .branching = 2});
  peer.Collect(drafter.core.TakeResponses());
  peer.Deliver();
  EXPECT_TRUE(drafter.core.HasWork());
  EXPECT_EQ(Path(peer), (TokenIds{52, 53}));
  peer.RunDryAndDeliver();
  EXPECT_EQ(peer.tree().size(), 4u) << "the engine uses what is left of the budget";
}

}  // namespace
}  // namespace tandem

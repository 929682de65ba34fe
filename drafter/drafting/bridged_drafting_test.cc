// Draft models that number their tokens differently than the target.

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing_peer::Drafter;
using testing_peer::DraftIds;
using testing_peer::kDraftFingerprint;
using testing_peer::kDraftWidth;
using testing_peer::kFingerprint;
using testing_peer::kLink;
using testing_peer::kPaddedWidth;
using testing_peer::kStandIn;
using testing_peer::Nodes;
using testing_peer::Peer;
using testing_peer::Prompt;

constexpr DraftBudget kBridgedBudget = {.depth = 4, .nodes = 16, .branching = 3, .lookahead = 4};

std::unique_ptr<Drafter> NewDrafter(bool bridged, FakeEngine::Options options = {}) {
  return std::make_unique<Drafter>(DraftCore::Options{}, options, /*prefix_cache=*/true,
                                   /*source_spec=*/nullptr, /*with_engine=*/true, bridged);
}

// Everything that a message says, every number in full.
std::string Written(const DraftResponse& response) {
  if (const auto* refused = std::get_if<SessionRefused>(&response.event)) {
    return absl::StrCat("refused: ", refused->status.ToString());
  }
  const auto* grow = std::get_if<Grow>(&response.event);
  if (grow == nullptr) return absl::StrCat("event ", response.event.index());
  std::string text = absl::StrCat("grow ", grow->epoch, " ", grow->seen_commit, " ", grow->prefix_hash, " ",
                                  grow->first_id, grow->exhausted ? " exhausted" : "", ":");
  const auto number = [](float value) { return absl::Hex(std::bit_cast<uint32_t>(value)); };
  for (size_t i = 0; i < grow->parents.size(); ++i) {
    absl::StrAppend(&text, " ", grow->parents[i], ">", grow->tokens[i], "@", number(grow->scores[i]));
  }
  for (const DraftDistribution& distribution : grow->distributions) {
    absl::StrAppend(&text, " below ", distribution.parent, ":");
    for (size_t i = 0; i < distribution.tokens.size(); ++i) {
      absl::StrAppend(&text, " ", distribution.tokens[i], "=", number(distribution.probabilities[i]));
    }
  }
  return text;
}

// What a drafter says in a conversation whose commits follow its first guesses, or leave them.
std::vector<std::string> Conversation(Drafter& drafter, const SamplingParameters& sampling, bool sampled) {
  std::vector<std::string> said;
  TokenIds tokens = Prompt(40);
  std::vector<TokenId> guesses;
  const auto listen = [&] {
    drafter.RunDry();
    guesses.clear();
    for (const auto& [link, response] : drafter.core.TakeResponses()) {
      said.push_back(Written(response));
      const auto* grow = std::get_if<Grow>(&response.event);
      if (grow == nullptr) continue;
      for (size_t i = 0; i < grow->parents.size(); ++i) {
        if (grow->parents[i] == 0) guesses.push_back(grow->tokens[i]);
      }
    }
  };
  drafter.core.OnRequest(kLink, {1, OpenSession{.epoch = 1,
                                                .draft_model = "draft",
                                                .vocabulary_fingerprint = kFingerprint,
                                                .tokens = tokens,
                                                .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
                                                .sampling = sampling,
                                                .prompt_length = 30,
                                                .budget = kBridgedBudget,
                                                .sampled_drafts = sampled}});
  listen();
  for (uint32_t commit_no = 1; commit_no <= 12; ++commit_no) {
    // As if nothing had come yet: what lies below a right guess is sent again.
    TokenIds round = {guesses.empty() || commit_no % 3 == 0 ? static_cast<TokenId>(commit_no * 5 % 64)
                                                            : guesses[commit_no % guesses.size()]};
    if (commit_no % 4 == 0) round.push_back(static_cast<TokenId>(commit_no * 11 % 64));
    tokens.insert(tokens.end(), round.begin(), round.end());
    drafter.core.OnRequest(kLink, {1, Commit{.epoch = 1,
                                             .commit_no = commit_no,
                                             .tokens = round,
                                             .committed_len = static_cast<uint32_t>(tokens.size()),
                                             .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
                                             .budget = kBridgedBudget}});
    listen();
  }
  return said;
}

TEST(BridgedDraftingTest, SaysWhatItsOriginalSays) {
  const std::vector<SamplingParameters> kinds = {
      {.temperature = 0.0f},
      {.temperature = 0.8f, .seed = 5},
      {.temperature = 1.1f,
       .top_k = 40,
       .top_p = 0.9f,
       .repetition_penalty = 1.3f,
       .logit_bias = {{3, 4.0f}, {60, -5.0f}},
       .seed = 6},
  };
  for (const SamplingParameters& sampling : kinds) {
    for (const bool sampled : {false, true}) {
      const auto original = NewDrafter(false, {.sharpness = 1.5f});
      const auto bridged = NewDrafter(true, {.sharpness = 1.5f});
      const std::vector<std::string> expected = Conversation(*original, sampling, sampled);
      EXPECT_EQ(Conversation(*bridged, sampling, sampled), expected);
      EXPECT_GT(absl::StrJoin(expected, "\n").size(), 5000u) << "they said little";
      EXPECT_EQ(absl::StrJoin(expected, "\n").find("refused"), std::string::npos);
    }
  }
}

// What the draft model has no token for takes the stand-in's place in front of it, and nothing else changes.
TEST(BridgedDraftingTest, ShowsTheStandInForTokensOfTheTargetAlone) {
  const auto drafter = NewDrafter(true);
  TokenIds tokens = Prompt(20);
  TokenIds seen = tokens;
  for (const size_t place : {size_t{3}, size_t{11}, size_t{19}}) {
    tokens[place] = static_cast<TokenId>(64 + place % 8);
    seen[place] = kStandIn;
  }
  Peer peer(drafter.get(), 1);
  peer.SkipScores();
  peer.Open(tokens, {.depth = 3, .nodes = 6, .branching = 2});
  peer.RunDryAndDeliver();
  EXPECT_EQ(Nodes(peer), testing_peer::BestFirst(drafter->engine, seen, 3, 6, 2, 4));
  // One that is committed beside the tree.
  peer.CommitTokens({70});
  peer.RunDryAndDeliver();
  seen.push_back(kStandIn);
  EXPECT_EQ(Nodes(peer), testing_peer::BestFirst(drafter->engine, seen, 3, 6, 2, 4));
}

TEST(BridgedDraftingTest, KnowsTheTargetsIdsAlone) {
  const auto drafter = NewDrafter(true);
  SessionId session = 0;
  const auto refusal = [&](TokenId token, uint64_t fingerprint) {
    Peer peer(drafter.get(), ++session);
    OpenSession open = peer.MakeOpen(Prompt(10), kBridgedBudget);
    open.tokens[3] = token;
    open.prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, open.tokens);
    open.vocabulary_fingerprint = fingerprint;
    peer.Send(open);
    const auto responses = drafter->core.TakeResponses();
    peer.Close();
    const auto* refused = std::get_if<SessionRefused>(&responses.at(0).second.event);
    return refused == nullptr ? absl::OkStatus() : refused->status;
  };
  EXPECT_TRUE(refusal(kPaddedWidth - 1, kFingerprint).ok());
  EXPECT_EQ(refusal(kPaddedWidth, kFingerprint).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal(-1, kFingerprint).code(), absl::StatusCode::kInvalidArgument);
  // Its own vocabulary needs no bridge.
  EXPECT_TRUE(refusal(DraftIds()[5], kDraftFingerprint).ok());
  EXPECT_EQ(refusal(kDraftWidth, kDraftFingerprint).code(), absl::StatusCode::kInvalidArgument);
  const absl::Status unknown = refusal(3, 0xabc);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("the target 0000000000000abc: which is not among"));
}

TEST(BridgedDraftingTest, SaysWhyThereIsNoBridge) {
  FakeEngine engine{{}};
  BlockPool pool({.num_blocks = 16});
  const DraftModel model{.name = "draft",
                         .engine = &engine,
                         .pool = &pool,
                         .vocabulary_fingerprint = 1,
                         .context_length = 64,
                         .other_vocabularies = {{.fingerprint = 2, .difference = "every token differs"}}};
  EXPECT_EQ(*BridgeFor(model, 1), nullptr);
  const absl::Status refused = BridgeFor(model, 2).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("every token differs"));
}

// The same ids are other text in the draft model's own vocabulary.
TEST(BridgedDraftingTest, SharesNoCacheWithItsOwnVocabulary) {
  const auto drafter = NewDrafter(true);
  const TokenIds ids = [] {
    // Tokens under both vocabularies.
    TokenIds tokens;
    for (const TokenId token : DraftIds()) {
      if (token < 64) tokens.push_back(token);
    }
    tokens.resize(40, tokens[0]);
    return tokens;
  }();
  Peer own(drafter.get(), 1);
  OpenSession open = own.MakeOpen(ids, {.depth = 1, .nodes = 1, .branching = 1});
  open.vocabulary_fingerprint = kDraftFingerprint;
  own.Send(open);
  drafter->RunDry();
  drafter->core.TakeResponses();
  own.Close();
  // The peer checks every score.
  Peer bridged(drafter.get(), 2);
  bridged.Open(ids, kBridgedBudget);
  bridged.RunDryAndDeliver();
  EXPECT_FALSE(bridged.tree().empty());
  bridged.Close();
  // Of its own vocabulary, it has.
  const uint64_t prefilled = drafter->core.stats().counters.prefill_tokens;
  Peer again(drafter.get(), 3);
  again.Open(ids, kBridgedBudget);
  again.RunDryAndDeliver();
  EXPECT_LT(drafter->core.stats().counters.prefill_tokens - prefilled, 16u);
}

TEST(BridgedDraftingTest, ScoresAsItsOriginal) {
  const auto score = [](Drafter& drafter, TokenIds tokens) {
    drafter.core.OnScore(1,
                         {.draft_model = "draft",
                          .vocabulary_fingerprint = kFingerprint,
                          .tokens = std::move(tokens),
                          .prompt_length = 12,
                          .sampling = {.temperature = 0.8f, .seed = 4}},
                         absl::InfiniteFuture());
    drafter.RunDry();
    std::vector<ScoreAnswer> answers = drafter.core.TakeScores();
    return std::move(answers.at(0).result);
  };
  const auto original = NewDrafter(false);
  const auto bridged = NewDrafter(true);
  TokenIds tokens = Prompt(12);
  while (tokens.size() < 60) {
    tokens.push_back(tokens.size() % 2 == 0 ? original->engine.ReferenceChoice(tokens) : 5);
  }
  const auto expected = score(*original, tokens);
  const auto result = score(*bridged, tokens);
  ASSERT_TRUE(expected.ok() && result.ok()) << expected.status() << result.status();
  EXPECT_EQ(result->ranks, expected->ranks);
  EXPECT_GT(result->accepted_tokens, 0u);
  EXPECT_EQ(result->prompt_negative_log_likelihood, expected->prompt_negative_log_likelihood);
  EXPECT_EQ(result->prompt_tokens, expected->prompt_tokens);
  // A token that the draft model has not: no guess, and no likelihood.
  tokens[6] = 64;
  tokens[40] = 71;
  const auto strange = score(*bridged, tokens);
  ASSERT_TRUE(strange.ok()) << strange.status();
  EXPECT_EQ(strange->ranks.at(40 - 12), 0);
  EXPECT_EQ(strange->prompt_tokens, expected->prompt_tokens - 1);
  EXPECT_TRUE(std::isfinite(strange->prompt_negative_log_likelihood));
  EXPECT_EQ(score(*bridged, {1, 2, 72, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Whatever a map says, candidates are tokens of the target that the draft model has.
TEST(BridgedDraftingTest, AnyMapGivesTheTargetsTokens) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    FakeEngine engine{{.vocab_size = static_cast<int32_t>(2 + random() % 60)}};
    BlockPool pool({.num_blocks = 256});
    const auto width = static_cast<size_t>(2 + random() % 80);
    TokenIds shuffled;
    for (TokenId token = 0; token < engine.config().vocab_size; ++token) shuffled.push_back(token);
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    TokenIds ids(width, VocabularyBridge::kNone);
    for (size_t i = 0; i < std::min(width, shuffled.size()); ++i) {
      if (i == 0 || random() % 3 != 0) ids[i] = shuffled[i];
    }
    std::shuffle(ids.begin(), ids.end(), random);
    auto bridge = VocabularyBridge::FromMap(
        ids, engine.config().vocab_size,
        static_cast<TokenId>(random() % static_cast<uint64_t>(engine.config().vocab_size)));
    ASSERT_TRUE(bridge.ok()) << bridge.status();
    const ManualClock clock;
    DraftCore core(
        {},
        {{.name = "draft",
          .engine = &engine,
          .pool = &pool,
          .vocabulary_fingerprint = 1,
          .context_length = 256,
          .other_vocabularies = {{.fingerprint = 2, .bridge = std::make_shared<VocabularyBridge>(*bridge)}}}},
        &clock);
    TokenIds tokens;
    for (int i = 0; i < 20; ++i) tokens.push_back(static_cast<TokenId>(random() % width));
    core.OnRequest(kLink, {1, OpenSession{.epoch = 1,
                                          .draft_model = "draft",
                                          .vocabulary_fingerprint = 2,
                                          .tokens = tokens,
                                          .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
                                          .sampling = {.temperature = 0.9f, .seed = seed},
                                          .prompt_length = 20,
                                          .budget = {.depth = 5, .nodes = 40, .branching = 8},
                                          .sampled_drafts = seed % 2 == 0}});
    while (core.HasWork()) core.Step();
    size_t num_nodes = 0;
    const auto is_known = [&](TokenId token) {
      return token >= 0 && static_cast<size_t>(token) < width &&
             ids[static_cast<size_t>(token)] != VocabularyBridge::kNone;
    };
    for (const auto& [link, response] : core.TakeResponses()) {
      ASSERT_FALSE(std::holds_alternative<SessionRefused>(response.event)) << Written(response);
      const auto* grow = std::get_if<Grow>(&response.event);
      if (grow == nullptr) continue;
      num_nodes += grow->tokens.size();
      for (const TokenId token : grow->tokens) EXPECT_TRUE(is_known(token)) << token;
      for (const DraftDistribution& distribution : grow->distributions) {
        for (const TokenId token : distribution.tokens) EXPECT_TRUE(is_known(token)) << token;
      }
    }
    EXPECT_GT(num_nodes, 0u);
  }
}

}  // namespace
}  // namespace tandem

#include "drafter/drafting/score_queue.h"

#include <cmath>

#include "drafter/drafting/draft_core.h"
#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing_peer::Drafter;
using testing_peer::kFingerprint;
using testing_peer::Peer;
using testing_peer::Prompt;

// An output that the drafter's model guesses about half of.
TokenIds SomeOutput(const FakeEngine& engine, const TokenIds& prompt, size_t length) {
  TokenIds tokens = prompt;
  while (tokens.size() < prompt.size() + length) {
    const std::vector<float> logits = engine.ReferenceLogits(tokens);
    const bool likely = (tokens.size() * 2654435761u >> 7) % 2 == 0;
    tokens.push_back(likely ? engine.ReferenceChoice(tokens)
                            : static_cast<TokenId>((tokens.size() * 13) % logits.size()));
  }
  return tokens;
}

ScoreRequest Ask(TokenIds tokens, size_t prompt_length) {
  return {.draft_model = "draft",
          .vocabulary_fingerprint = kFingerprint,
          .tokens = std::move(tokens),
          .prompt_length = static_cast<uint32_t>(prompt_length),
          .sampling = {.temperature = 0.0f}};
}

absl::StatusOr<ScoreResult> Score(Drafter& drafter, ScoreRequest request) {
  drafter.core.OnScore(1, std::move(request), absl::InfiniteFuture());
  drafter.RunDry();
  std::vector<ScoreAnswer> answers = drafter.core.TakeScores();
  EXPECT_THAT(answers, SizeIs(1));
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
  if (answers.size() != 1) return absl::InternalError("no answer");
  return std::move(answers[0].result);
}

// Which output tokens a drafter of one node was right about, by drafting.
std::vector<bool> RightByDrafting(Drafter& drafter, const ScoreRequest& request) {
  Peer peer(&drafter, 5);
  OpenSession open =
      peer.MakeOpen(TokenIds(request.tokens.begin(),
                             request.tokens.begin() + static_cast<ptrdiff_t>(request.prompt_length)),
                    {.depth = 1, .nodes = 1, .branching = 1, .shape = TreeShape::kChain});
  open.sampling = request.sampling;
  uint64_t hash = open.prefix_hash;
  const DraftBudget budget = open.budget;
  drafter.core.OnRequest(testing_peer::kLink, {5, open});
  std::vector<bool> right;
  for (size_t i = request.prompt_length; i < request.tokens.size(); ++i) {
    drafter.RunDry();
    TokenIds drafted;
    for (const auto& [link, response] : drafter.core.TakeResponses()) {
      if (const auto* grow = std::get_if<Grow>(&response.event)) {
        drafted.insert(drafted.end(), grow->tokens.begin(), grow->tokens.end());
      }
    }
    right.push_back(drafted == TokenIds{request.tokens[i]});
    hash = ExtendPrefixHash(hash, {request.tokens[i]});
    drafter.core.OnRequest(testing_peer::kLink, {5, Commit{.epoch = open.epoch,
                                                           .commit_no = static_cast<uint32_t>(right.size()),
                                                           .tokens = {request.tokens[i]},
                                                           .committed_len = static_cast<uint32_t>(i + 1),
                                                           .prefix_hash = hash,
                                                           .budget = budget}});
  }
  drafter.core.OnRequest(testing_peer::kLink, {5, CloseSession{}});
  return right;
}

std::vector<bool> FirstGuesses(const ScoreResult& result) {
  std::vector<bool> first;
  for (uint8_t rank : result.ranks) first.push_back(rank == 1);
  return first;
}

TEST(ScoreTest, TellsWhatAChainDrafterWouldHaveHadAccepted) {
  for (const float temperature : {0.0f, 0.8f}) {
    Drafter drafter;
    ScoreRequest request = Ask(SomeOutput(drafter.engine, Prompt(40), 150), 40);
    request.sampling = {.temperature = temperature, .repetition_penalty = 1.1f, .seed = 77};
    const auto result = Score(drafter, request);
    ASSERT_TRUE(result.ok()) << result.status();
    const std::vector<bool> right = RightByDrafting(drafter, request);
    EXPECT_EQ(FirstGuesses(*result), right);
    EXPECT_EQ(result->accepted_tokens, std::count(right.begin(), right.end(), true));
    EXPECT_GT(result->accepted_tokens, 10u);
    EXPECT_LT(result->accepted_tokens, 140u);
  }
}

TEST(ScoreTest, TheNoiseIsTheRequests) {
  Drafter drafter;
  ScoreRequest request = Ask(SomeOutput(drafter.engine, Prompt(8), 120), 8);
  request.sampling = {.temperature = 1.0f, .seed = 1};
  const auto one = Score(drafter, request);
  request.sampling.seed = 2;
  const auto other = Score(drafter, request);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_NE(one->ranks, other->ranks);
}

TEST(ScoreTest, WindowsMoveAsASessionsDo) {
  for (const int prompt_length : {20, 63, 64, 65, 150}) {
    Drafter drafter({}, {.max_context = 64});
    const ScoreRequest request =
        Ask(SomeOutput(drafter.engine, Prompt(prompt_length), 130), static_cast<size_t>(prompt_length));
    const auto result = Score(drafter, request);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(FirstGuesses(*result), RightByDrafting(drafter, request)) << prompt_length;
  }
}

TEST(ScoreTest, RanksAndPromptLikelihoodAreTheModels) {
  Drafter drafter;
  const TokenIds tokens = SomeOutput(drafter.engine, Prompt(30), 30);
  const auto result = Score(drafter, Ask(tokens, 30));
  ASSERT_TRUE(result.ok()) << result.status();
  ASSERT_THAT(result->ranks, SizeIs(30));
  double loss = 0.0;
  for (size_t i = 1; i < tokens.size(); ++i) {
    const TokenIds context(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(i));
    const auto guesses = testing_peer::GreedyGuesses(drafter.engine, context, 64);
    size_t place = 0;
    while (guesses[place].token != tokens[i]) ++place;
    if (i < 30) {
      loss -= std::log(double{guesses[place].probability});
    } else {
      EXPECT_EQ(result->ranks[i - 30], place < kScoredGuesses ? place + 1 : 0) << i;
    }
  }
  EXPECT_EQ(result->prompt_tokens, 29u);
  EXPECT_NEAR(result->prompt_negative_log_likelihood, loss, 1e-3 * loss);
}

TEST(ScoreTest, APromptAloneIsScoredToo) {
  Drafter drafter;
  const auto result = Score(drafter, Ask(Prompt(30), 30));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->ranks, IsEmpty());
  EXPECT_EQ(result->prompt_tokens, 29u);
  const auto one = Score(drafter, Ask(Prompt(1), 1));
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->prompt_tokens, 0u);
}

TEST(ScoreTest, SourcesReplayTheOutputAndTeachNobody) {
  for (const char* source : {"ngram", "suffix", "trie"}) {
    Drafter drafter({}, {}, true, source, /*with_engine=*/false);
    TokenIds tokens;
    for (int i = 0; i < 90; ++i) tokens.push_back(100 + i % 9);
    const ScoreRequest request = Ask(tokens, 30);
    const auto first = Score(drafter, request);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_THAT(first->ranks, SizeIs(60));
    EXPECT_EQ(first->prompt_tokens, 0u);
    const auto again = Score(drafter, request);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(first->ranks, again->ranks) << source;
    const bool trie = std::string(source) == "trie";
    EXPECT_EQ(first->remembers_outputs, trie);
    // A tenant's trie that was taught nothing knows nothing.
    EXPECT_EQ(first->accepted_tokens, trie ? 0u : 60u);
    if (trie) continue;
    EXPECT_EQ(FirstGuesses(*first), RightByDrafting(drafter, request));
  }
}

TEST(ScoreTest, ATrieThatHasLearnedScores) {
  Drafter drafter({}, {}, true, "trie", /*with_engine=*/false);
  TokenIds tokens;
  for (int i = 0; i < 90; ++i) tokens.push_back(100 + (i * i) % 31);
  const ScoreRequest request = Ask(tokens, 30);
  RightByDrafting(drafter, request);  // Teaches it.
  const auto result = Score(drafter, request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->accepted_tokens, 30u);
}

TEST(ScoreTest, ModelAndSourceAreMerged) {
  Drafter drafter({}, {.sharpness = 0.1f}, true, "ngram");
  TokenIds tokens;
  for (int i = 0; i < 90; ++i) tokens.push_back(1 + i % 9);
  const auto merged = Score(drafter, Ask(tokens, 30));
  ScoreRequest plain = Ask(tokens, 30);
  plain.draft_model = "plain";
  const auto alone = Score(drafter, plain);
  ASSERT_TRUE(merged.ok() && alone.ok());
  EXPECT_EQ(merged->accepted_tokens, 60u);
  EXPECT_LT(alone->accepted_tokens, 30u);
  EXPECT_EQ(merged->prompt_negative_log_likelihood, alone->prompt_negative_log_likelihood);
}

TEST(ScoreTest, RefusesWhatCannotBeScored) {
  Drafter drafter({.scores = {.max_tokens = 100}});
  const auto refusal = [&](ScoreRequest request) { return Score(drafter, std::move(request)).status(); };
  ScoreRequest request = Ask(Prompt(4), 5);
  EXPECT_THAT(refusal(request).ToString(), HasSubstr("INVALID_ARGUMENT: prompt_length: 5"));
  request = Ask(Prompt(4), 0);
  EXPECT_EQ(refusal(request).code(), absl::StatusCode::kInvalidArgument);
  request = Ask({}, 0);
  EXPECT_THAT(refusal(request).ToString(), HasSubstr("INVALID_ARGUMENT: tokens: none"));
  for (const TokenId token : {-1, 64}) {
    request = Ask({1, token}, 1);
    EXPECT_THAT(refusal(request).ToString(), HasSubstr("INVALID_ARGUMENT: tokens[1]"));
  }
  request = Ask(Prompt(101), 5);
  EXPECT_THAT(refusal(request).ToString(), HasSubstr("RESOURCE_EXHAUSTED: tokens: 101"));
  request = Ask(Prompt(4), 2);
  request.sampling.temperature = -1.0f;
  EXPECT_EQ(refusal(request).code(), absl::StatusCode::kInvalidArgument);
  request = Ask(Prompt(4), 2);
  request.draft_model = "other";
  EXPECT_EQ(refusal(request).code(), absl::StatusCode::kNotFound);
  request = Ask(Prompt(4), 2);
  ++request.vocabulary_fingerprint;
  EXPECT_EQ(refusal(request).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(drafter.core.HasWork());
  EXPECT_EQ(drafter.engine.num_steps(), 0u);
}

TEST(ScoreTest, AFailingEngineCostsTheScoreItFailed) {
  Drafter drafter;
  drafter.engine.FailNextStep(absl::InternalError("no power"));
  const auto failed = Score(drafter, Ask(Prompt(30), 10));
  EXPECT_THAT(failed.status().ToString(), HasSubstr("no power"));
  EXPECT_TRUE(Score(drafter, Ask(Prompt(30), 10)).ok());
}

TEST(ScoreTest, WaitsWhileThereIsSomethingToDraft) {
  Drafter drafter({.steps_per_score = 1000});
  Peer peer(&drafter, 5);
  peer.Open(Prompt(20), {.depth = 6, .nodes = 20, .branching = 2});
  drafter.core.OnScore(1, Ask(Prompt(200), 100), absl::InfiniteFuture());
  int steps = 0;
  // Its nodes first, and none later for the score.
  while (!peer.exhausted()) {
    ASSERT_TRUE(drafter.core.Step()) << steps;
    ++steps;
    peer.Collect(drafter.core.TakeResponses());
    peer.Deliver();
  }
  EXPECT_GT(steps, 4);
  EXPECT_FALSE(drafter.core.HasWork() && drafter.core.Step());
  // Rows are few while the session is open, so that its next commit does not wait.
  const uint64_t rows = drafter.engine.num_rows();
  drafter.core.Step();
  EXPECT_EQ(drafter.engine.num_rows() - rows, 8u);
  // A commit in the midst of it is served first.
  peer.CommitTokens({1});
  const uint64_t before = drafter.core.stats().counters.sent_nodes;
  EXPECT_TRUE(drafter.core.Step());
  EXPECT_GT(drafter.core.stats().counters.sent_nodes, before);
  peer.RunDryAndDeliver();
  EXPECT_THAT(drafter.core.TakeScores(), SizeIs(1));
  peer.Close();
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
}

TEST(ScoreTest, TakesABoundedShareOfABusyDrafter) {
  Drafter drafter({.steps_per_score = 5});
  Peer peer(&drafter, 5);
  peer.Open(Prompt(20), {.depth = 40, .nodes = 1000, .branching = 2});
  drafter.core.OnScore(1, Ask(Prompt(200), 100), absl::InfiniteFuture());
  std::vector<bool> drafted;
  for (int i = 0; i < 40; ++i) drafted.push_back(drafter.core.Step());
  for (size_t i = 0; i < drafted.size(); ++i) EXPECT_EQ(drafted[i], i % 5 != 4) << i;
}

TEST(ScoreTest, GivesWayToASessionThatNeedsMemory) {
  Drafter drafter({}, {.num_blocks = 16}, /*prefix_cache=*/false);
  const ScoreRequest request = Ask(SomeOutput(drafter.engine, Prompt(60), 120), 60);
  drafter.core.OnScore(1, request, absl::InfiniteFuture());
  drafter.core.Step();
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
  Peer peer(&drafter, 5);
  peer.Open(Prompt(200), {.depth = 2, .nodes = 4, .branching = 2});
  peer.RunDryAndDeliver();
  EXPECT_GT(peer.tree().size(), 0u);
  // There is no room for the score while the session is open, and no busy waiting for it either.
  EXPECT_THAT(drafter.core.TakeScores(), IsEmpty());
  EXPECT_FALSE(drafter.core.HasWork());
  peer.Close();
  drafter.RunDry();
  std::vector<ScoreAnswer> answers = drafter.core.TakeScores();
  ASSERT_THAT(answers, SizeIs(1));
  ASSERT_TRUE(answers[0].result.ok()) << answers[0].result.status();
  // Nothing was lost or counted twice.
  Drafter roomy;
  EXPECT_EQ(answers[0].result->ranks, Score(roomy, request)->ranks);
  EXPECT_EQ(answers[0].result->prompt_tokens, 59u);
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
}

TEST(ScoreTest, TheQueueIsBounded) {
  Drafter drafter({.scores = {.max_scores = 2}});
  for (ScoreId id = 1; id <= 3; ++id) {
    drafter.core.OnScore(id, Ask(Prompt(20), 10), absl::InfiniteFuture());
  }
  const std::vector<ScoreAnswer> refused = drafter.core.TakeScores();
  ASSERT_THAT(refused, SizeIs(1));
  EXPECT_EQ(refused[0].id, 3u);
  EXPECT_EQ(refused[0].result.status().code(), absl::StatusCode::kResourceExhausted);
  drafter.RunDry();
  EXPECT_THAT(drafter.core.TakeScores(), SizeIs(2));
  const DraftStats stats = drafter.core.stats();
  EXPECT_EQ(stats.answered_scores.at(absl::StatusCode::kOk), 2u);
  EXPECT_EQ(stats.answered_scores.at(absl::StatusCode::kResourceExhausted), 1u);
  EXPECT_EQ(stats.num_scores, 0u);
}

TEST(ScoreTest, CancelAndDeadlineEndAScoreWhereverItIs) {
  Drafter drafter;
  for (ScoreId id = 1; id <= 4; ++id) {
    drafter.core.OnScore(id, Ask(Prompt(200), 10),
                         id % 2 == 0 ? drafter.clock.Now() + absl::Seconds(1) : absl::InfiniteFuture());
  }
  drafter.core.Step();
  drafter.core.CancelScore(1, absl::CancelledError("gone"));
  drafter.core.CancelScore(1, absl::CancelledError("gone"));
  drafter.clock.Advance(absl::Seconds(2));
  drafter.RunDry();
  std::map<ScoreId, absl::StatusCode> codes;
  for (const ScoreAnswer& answer : drafter.core.TakeScores()) {
    EXPECT_TRUE(codes.emplace(answer.id, answer.result.status().code()).second);
  }
  EXPECT_EQ(codes, (std::map<ScoreId, absl::StatusCode>{{1, absl::StatusCode::kCancelled},
                                                        {2, absl::StatusCode::kDeadlineExceeded},
                                                        {3, absl::StatusCode::kOk},
                                                        {4, absl::StatusCode::kDeadlineExceeded}}));
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
  drafter.core.OnScore(9, Ask(Prompt(200), 10), absl::InfiniteFuture());
  drafter.core.CancelScores(absl::UnavailableError("over"));
  EXPECT_FALSE(drafter.core.HasWork());
}

TEST(ScoreTest, LogitsAreBounded) {
  // 40,000 logits a row: 16 MiB hold 104 rows; rows that nobody looks at need none.
  Drafter drafter({.max_score_rows = 500}, {.vocab_size = 40000});
  drafter.core.OnScore(1, Ask(Prompt(300), 10), absl::InfiniteFuture());
  drafter.core.Step();
  EXPECT_EQ(drafter.engine.num_rows(), 104u);
}

}  // namespace
}  // namespace tandem

#include "drafter/drafting/draft_core.h"

#include <algorithm>
#include <functional>

#include "drafter/testing/draft_test_peer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using testing_peer::BestFirst;
using testing_peer::Drafter;
using testing_peer::kLink;
using testing_peer::Nodes;
using testing_peer::Peer;
using testing_peer::Prompt;

TEST(DraftCoreTest, RepeatedAndOldCommitsAreIgnored) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(10), {.depth = 3, .nodes = 6, .branching = 2});
  peer.RunDryAndDeliver();
  const Commit first = peer.CommitTokens({1, 2});
  peer.RunDryAndDeliver();
  const uint64_t rows = drafter.engine.num_rows();
  peer.Send(first);
  Commit old_epoch = peer.MakeCommit({4});
  old_epoch.epoch = 0;
  peer.Send(old_epoch);
  EXPECT_FALSE(drafter.core.HasWork());
  EXPECT_THAT(drafter.core.TakeResponses(), IsEmpty());
  EXPECT_EQ(drafter.engine.num_rows(), rows);
  EXPECT_EQ(drafter.core.stats().counters.ignored_commits, 2u);
}

TEST(DraftCoreTest, ACommitThatDoesNotFitAsksForAnOpen) {
  const auto reason_for = [](const std::function<void(Commit&)>& damage) {
    Drafter drafter;
    Peer peer(&drafter, 1);
    peer.Open(Prompt(10), {.depth = 3, .nodes = 6, .branching = 2});
    peer.RunDryAndDeliver();
    Commit commit = peer.MakeCommit({peer.tree().nodes()[0].token});
    damage(commit);
    peer.Send(commit);
    peer.RunDryAndDeliver();
    // It waits for the Open in silence, whatever else comes.
    peer.Send(peer.MakeCommit({3}));
    EXPECT_THAT(drafter.core.TakeResponses(), IsEmpty());
    const std::string reason = peer.TakeResyncReason();
    const uint64_t prefilled = drafter.core.stats().counters.prefill_tokens;
    peer.Open(Prompt(12), peer.budget());
    peer.RunDryAndDeliver();
    EXPECT_EQ(Nodes(peer), BestFirst(drafter.engine, Prompt(12), 3, 6, 2, 4));
    EXPECT_EQ(drafter.core.stats().counters.prefill_tokens - prefilled, 2u) << "the common prefix was kept";
    return reason;
  };
  EXPECT_THAT(reason_for([](Commit& commit) { ++commit.commit_no; }), HasSubstr("commit 2 after commit 0"));
  EXPECT_THAT(reason_for([](Commit& commit) { ++commit.prefix_hash; }), HasSubstr("prefix hash"));
  EXPECT_THAT(reason_for([](Commit& commit) { ++commit.committed_len; }), HasSubstr("committed tokens"));
  EXPECT_THAT(reason_for([](Commit& commit) { commit.committed_len = 0; }), HasSubstr("committed tokens"));
  EXPECT_THAT(reason_for([](Commit& commit) { commit.new_root = 0; }), HasSubstr("node 0"));
  EXPECT_THAT(reason_for([](Commit& commit) { commit.new_root = 2; }), HasSubstr("node 2"));
  EXPECT_THAT(reason_for([](Commit& commit) { commit.new_root = 4000000000; }), HasSubstr("node 4000000000"));
}

TEST(DraftCoreTest, CommitsOfOtherEpochsAndSessionsAskForAnOpen) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(10), {.depth = 3, .nodes = 6, .branching = 2});
  Commit next_epoch = peer.MakeCommit({3});
  ++next_epoch.epoch;
  peer.Send(next_epoch);
  drafter.core.OnRequest(kLink, {99, peer.MakeCommit({3})});
  std::vector<std::pair<SessionId, uint32_t>> asked;
  for (const auto& [link, response] : drafter.core.TakeResponses()) {
    const auto* resync = std::get_if<ResyncNeeded>(&response.event);
    if (resync != nullptr) asked.emplace_back(response.session, resync->epoch);
  }
  EXPECT_THAT(asked, ::testing::ElementsAre(std::pair(1u, 2u), std::pair(99u, 1u)));
  EXPECT_EQ(drafter.core.stats().resyncs, 2u);
}

TEST(DraftCoreTest, HostileCommitsEndTheSession) {
  for (TokenIds tokens : {TokenIds{}, TokenIds{64}, TokenIds{-1}, TokenIds{1, INT32_MAX}}) {
    Drafter drafter;
    Peer peer(&drafter, 1);
    peer.Open(Prompt(10), {.depth = 3, .nodes = 6, .branching = 2});
    peer.RunDryAndDeliver();
    Commit commit = peer.MakeCommit({3});
    commit.tokens = tokens;
    peer.Send(commit);
    peer.RunDryAndDeliver();
    ASSERT_TRUE(peer.refusal().has_value());
    EXPECT_EQ(peer.refusal()->code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(drafter.core.stats().num_sessions, 0u);
    EXPECT_EQ(drafter.pool.num_held(), 0u);
  }
}

// Law 2: what the target would choose from these very logits comes first, at the root and below it, before
// and after a commit.
TEST(DraftCoreTest, DraftsWithTheTargetsNoise) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  OpenSession open = peer.MakeOpen(Prompt(10), {.depth = 2, .nodes = 4, .branching = 2});
  open.sampling = {.temperature = 0.8f, .repetition_penalty = 1.4f, .seed = 1234};
  TargetSampler target(open.sampling, drafter.engine.config().vocab_size, open.tokens);
  TokenIds tokens = open.tokens;
  peer.Send(open);
  for (uint32_t commit_no = 0; commit_no < 5; ++commit_no) {
    drafter.RunDry();
    std::vector<Grow> growth;
    for (const auto& [link, response] : drafter.core.TakeResponses()) {
      if (const auto* grow = std::get_if<Grow>(&response.event)) growth.push_back(*grow);
    }
    ASSERT_FALSE(growth.empty());
    std::vector<float> logits = drafter.engine.ReferenceLogits(tokens);
    const TokenId choice = target.Choose(absl::MakeSpan(logits), static_cast<uint32_t>(tokens.size())).token;
    EXPECT_EQ(growth.front().tokens.front(), choice) << "commit " << commit_no;
    // The verifier commits another token, so that the next root is fresh.
    tokens.push_back((choice + 1) % drafter.engine.config().vocab_size);
    target.Append(tokens.back());
    peer.Send(Commit{.epoch = 1,
                     .commit_no = commit_no + 1,
                     .tokens = {tokens.back()},
                     .committed_len = static_cast<uint32_t>(tokens.size()),
                     .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, tokens),
                     .budget = open.budget});
  }
}

TEST(DraftCoreTest, HostileOpensAreRefused) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  const auto refusal = [&](const std::function<void(OpenSession&)>& damage) {
    OpenSession open = peer.MakeOpen(Prompt(10), {.depth = 3, .nodes = 6, .branching = 2});
    damage(open);
    peer.Send(open);
    const auto responses = drafter.core.TakeResponses();
    EXPECT_THAT(responses, SizeIs(1));
    const auto* refused = std::get_if<SessionRefused>(&responses[0].second.event);
    EXPECT_EQ(drafter.core.stats().num_sessions, 0u);
    return refused == nullptr ? absl::OkStatus() : refused->status;
  };
  using absl::StatusCode;
  EXPECT_EQ(refusal([](OpenSession& open) { open.draft_model = "other"; }).code(), StatusCode::kNotFound);
  const absl::Status other_vocabulary = refusal([](OpenSession& open) { ++open.vocabulary_fingerprint; });
  EXPECT_EQ(other_vocabulary.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(other_vocabulary.message()), HasSubstr("feed"));
  EXPECT_EQ(refusal([](OpenSession& open) { open.tokens.clear(); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](OpenSession& open) { open.tokens[3] = 64; }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](OpenSession& open) { open.tokens[3] = -2; }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](OpenSession& open) { open.prompt_length = 11; }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal([](OpenSession& open) { open.sampling.top_p = 2.0f; }).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(drafter.core.stats().refused_sessions.at(StatusCode::kInvalidArgument), 5u);

  OpenSession wrong_hash = peer.MakeOpen(Prompt(10), {});
  ++wrong_hash.prefix_hash;
  peer.Send(wrong_hash);
  EXPECT_TRUE(std::holds_alternative<ResyncNeeded>(drafter.core.TakeResponses().at(0).second.event));
  EXPECT_EQ(drafter.core.stats().num_sessions, 0u);
}

TEST(DraftCoreTest, RefusesWhatItHasNoRoomFor) {
  Drafter drafter({.max_sessions = 2}, {.num_blocks = 8});
  Peer a(&drafter, 1), b(&drafter, 2), c(&drafter, 3);
  const DraftBudget budget{.depth = 3, .nodes = 6, .branching = 2};
  a.Open(Prompt(10), budget);
  b.Open(Prompt(9 * kBlockTokens), budget);
  b.RunDryAndDeliver();
  ASSERT_TRUE(b.refusal().has_value());
  EXPECT_EQ(b.refusal()->code(), absl::StatusCode::kResourceExhausted);
  b.Open(Prompt(10, 4), budget);
  c.Open(Prompt(10, 5), budget);
  c.RunDryAndDeliver();
  ASSERT_TRUE(c.refusal().has_value());
  EXPECT_EQ(c.refusal()->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(drafter.core.stats().num_sessions, 2u);
}

TEST(DraftCoreTest, WithoutRoomForTheTreeItSendsLeavesOnly) {
  // Four blocks: the prompt takes all of them, so no node can be forwarded.
  Drafter drafter({}, {.num_blocks = 4});
  Peer peer(&drafter, 1);
  peer.Open(Prompt(60), {.depth = 4, .nodes = 20, .branching = 3});
  peer.RunDryAndDeliver();
  EXPECT_EQ(peer.tree().size(), 3u);
  EXPECT_TRUE(peer.exhausted());
  // The sequence outgrows the pool.
  peer.CommitTokens({1, 2, 3, 4});
  peer.RunDryAndDeliver();
  EXPECT_EQ(peer.tree().size(), 3u);
  peer.CommitTokens({5});
  peer.RunDryAndDeliver();
  ASSERT_TRUE(peer.refusal().has_value());
  EXPECT_EQ(peer.refusal()->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(drafter.pool.num_held(), 0u);
}

TEST(DraftCoreTest, CommittedTokensPushTheTreesKeysAndValuesOut) {
  // Two blocks of prefix (30 tokens), one of scratch, none left.
  Drafter drafter({}, {.num_blocks = 3}, false);
  Peer peer(&drafter, 1);
  peer.Open(Prompt(30), {.depth = 4, .nodes = 4, .branching = 1, .lookahead = 4});
  peer.RunDryAndDeliver();
  ASSERT_EQ(peer.tree().size(), 8u);
  TokenIds tokens;
  for (const TreeNode& node : peer.tree().nodes().first(4)) tokens.push_back(node.token);
  // 34 tokens need the scratch block; the surviving nodes stay, and grow no further.
  EXPECT_TRUE(peer.CommitTokens(tokens).new_root.has_value());
  peer.RunDryAndDeliver();
  EXPECT_FALSE(peer.refusal().has_value());
  EXPECT_EQ(peer.tree().size(), 4u);
  peer.CommitTokens({9});
  peer.RunDryAndDeliver();
  EXPECT_EQ(peer.tree().size(), 1u);
  peer.Close();
  EXPECT_EQ(drafter.pool.num_free(), 3u);
}

TEST(DraftCoreTest, WithoutRoomASessionIsParkedUntilThereIs) {
  Drafter drafter({}, {.num_blocks = 5}, false);
  Peer a(&drafter, 1), b(&drafter, 2);
  const DraftBudget budget{.depth = 3, .nodes = 6, .branching = 2};
  a.Open(Prompt(40), budget);
  a.RunDryAndDeliver();
  b.Open(Prompt(40, 4), budget);
  b.RunDryAndDeliver();
  EXPECT_TRUE(b.opened());
  EXPECT_EQ(b.tree().size(), 0u);
  EXPECT_EQ(drafter.core.stats().counters.parked_sessions, 1u);
  // It follows the commits all the same.
  b.CommitTokens({1, 2});
  b.RunDryAndDeliver();
  EXPECT_EQ(b.tree().size(), 0u);
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
  a.Close();
  b.RunDryAndDeliver();
  EXPECT_EQ(Nodes(b), BestFirst(drafter.engine, b.tokens(), 3, 6, 2, 4));
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
  EXPECT_FALSE(a.refusal().has_value() || b.refusal().has_value());
}

TEST(DraftCoreTest, APausedSessionGivesItsRoomToOneThatDrafts) {
  Drafter drafter({}, {.num_blocks = 5});
  Peer a(&drafter, 1), b(&drafter, 2);
  const DraftBudget budget{.depth = 3, .nodes = 6, .branching = 2};
  a.Open(Prompt(40), budget);
  a.RunDryAndDeliver();
  a.budget() = DraftBudget{};
  a.CommitTokens({1});
  a.RunDryAndDeliver();
  b.Open(Prompt(40, 4), budget);
  b.RunDryAndDeliver();
  EXPECT_EQ(Nodes(b), BestFirst(drafter.engine, b.tokens(), 3, 6, 2, 4));
  // Both want to draft now: the second keeps its room for as long as it needs it.
  a.budget() = budget;
  a.CommitTokens({2, 3});
  a.RunDryAndDeliver();
  EXPECT_EQ(a.tree().size(), 0u);
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
  b.budget() = DraftBudget{};
  b.CommitTokens({5});
  a.RunDryAndDeliver();
  EXPECT_EQ(Nodes(a), BestFirst(drafter.engine, a.tokens(), 3, 6, 2, 4));
  EXPECT_TRUE(drafter.core.CheckBlocks().ok());
}

TEST(DraftCoreTest, TwoSessionsThatOutgrowTheRoomTakeTurns) {
  Drafter drafter({}, {.num_blocks = 6});
  Peer a(&drafter, 1), b(&drafter, 2);
  const DraftBudget budget{.depth = 2, .nodes = 2, .branching = 1};
  a.Open(Prompt(30), budget);
  b.Open(Prompt(30, 4), budget);
  for (TokenId token = 0; token < 40; ++token) {
    for (Peer* peer : {&a, &b}) {
      peer->CommitTokens({token});
      drafter.RunDry();
      const auto responses = drafter.core.TakeResponses();
      for (Peer* each : {&a, &b}) {
        each->Collect(responses);
        each->Deliver();
      }
      ASSERT_TRUE(drafter.core.CheckBlocks().ok()) << drafter.core.CheckBlocks();
    }
  }
  EXPECT_GT(drafter.core.stats().counters.parked_sessions, 0u);
  EXPECT_GT(a.tree().size() + b.tree().size(), 0u);
  EXPECT_FALSE(a.refusal().has_value() || b.refusal().has_value());
  a.Close();
  b.Close();
  EXPECT_EQ(drafter.pool.num_held(), 0u);
}

TEST(DraftCoreTest, TheSamePromptIsPrefilledOnce) {
  Drafter drafter;
  Peer a(&drafter, 1), b(&drafter, 2);
  a.Open(Prompt(100), {.depth = 3, .nodes = 6, .branching = 2});
  a.RunDryAndDeliver();
  const uint64_t prefilled = drafter.core.stats().counters.prefill_tokens;
  EXPECT_EQ(prefilled, 100u);
  b.Open(Prompt(100), {.depth = 3, .nodes = 6, .branching = 2});
  b.RunDryAndDeliver();
  EXPECT_EQ(drafter.core.stats().counters.prefill_tokens - prefilled, 100u - 96u);
  EXPECT_EQ(Nodes(a), Nodes(b));
  // Another tenant gets nothing from the cache.
  OpenSession open = Peer(&drafter, 3).MakeOpen(Prompt(100), {.depth = 3, .nodes = 6, .branching = 2});
  open.cache_salt = 5;
  drafter.core.OnRequest(kLink, {3, open});
  drafter.RunDry();
  EXPECT_EQ(drafter.core.stats().counters.prefill_tokens - prefilled, 104u);
}

TEST(DraftCoreTest, AnOpenThatComesAfterItsCloseOpensNothing) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  OpenSession open = peer.MakeOpen(Prompt(12), {.depth = 3, .nodes = 6, .branching = 2});
  drafter.core.OnRequest(kLink, {1, open});
  drafter.core.OnRequest(kLink, {1, CloseSession{}});
  drafter.core.OnRequest(kLink, {1, open});
  EXPECT_EQ(drafter.core.stats().num_sessions, 0u);
  ++open.epoch;
  drafter.core.OnRequest(kLink, {1, open});
  EXPECT_EQ(drafter.core.stats().num_sessions, 1u);
}

TEST(DraftCoreTest, ALongPromptIsDraftedFromItsEnd) {
  Drafter drafter({}, {.max_context = 32});
  Peer peer(&drafter, 1);
  peer.Open(Prompt(100), {.depth = 4, .nodes = 12, .branching = 2});
  peer.RunDryAndDeliver();
  TokenIds window = Prompt(100);
  window.erase(window.begin(), window.end() - 24);
  EXPECT_EQ(Nodes(peer), BestFirst(drafter.engine, window, 4, 12, 2, 4));
  EXPECT_EQ(drafter.core.stats().counters.prefill_tokens, 24u);
}

TEST(DraftCoreTest, ASequenceThatOutgrowsTheContextMovesItsWindow) {
  Drafter drafter({.expand_width = 2}, {.max_context = 32});
  Peer peer(&drafter, 1);
  peer.Open(Prompt(10), {.depth = 3, .nodes = 10, .branching = 2, .lookahead = 3});
  for (int round = 0; round < 60; ++round) {
    peer.RunDryAndDeliver();  // Checks every score against the window there should be.
    ASSERT_FALSE(peer.refusal().has_value());
    ASSERT_FALSE(peer.tree().empty());
    const TokenId hit = peer.tree().nodes()[0].token;
    peer.CommitTokens(round % 3 == 2 ? TokenIds{(hit + 1) % 64} : TokenIds{hit});
  }
  EXPECT_EQ(peer.tokens().size(), 70u);
  EXPECT_EQ(drafter.core.stats().resyncs, 0u);
  // A commit far longer than the context.
  peer.CommitTokens(Prompt(200));
  peer.RunDryAndDeliver();
  EXPECT_FALSE(peer.tree().empty());
  peer.Close();
  EXPECT_EQ(drafter.pool.num_held(), 0u);
}

TEST(DraftCoreTest, ADeepBudgetIsCutToTheContext) {
  Drafter drafter({}, {.max_context = 32});
  Peer peer(&drafter, 1);
  peer.Open(Prompt(24), {.depth = 100, .nodes = 100, .branching = 1});
  peer.RunDryAndDeliver();
  // Eight nodes fit behind 24 tokens; the ninth is a child of the last.
  EXPECT_EQ(peer.tree().size(), 9u);
  EXPECT_TRUE(peer.exhausted());
}

TEST(DraftCoreTest, ALongPromptDoesNotStallTheOthers) {
  Drafter drafter({.max_step_rows = 32});
  std::vector<Peer> peers;
  for (SessionId id = 0; id < 4; ++id) peers.emplace_back(&drafter, id);
  Peer long_prompt(&drafter, 100);
  for (Peer& peer : peers) peer.Open(Prompt(8, static_cast<int>(10 * peers.size())), {});
  long_prompt.Open(Prompt(2000), {.depth = 2, .nodes = 2, .branching = 1});
  for (Peer& peer : peers) {
    peer.budget() = {.depth = 8, .nodes = 24, .branching = 3};
    peer.CommitTokens({1});
  }
  int steps = 0;
  while (!long_prompt.exhausted()) {
    ASSERT_LT(++steps, 200);
    const uint64_t rows = drafter.engine.num_rows();
    drafter.core.Step();
    EXPECT_LE(drafter.engine.num_rows() - rows, 32u);
    const auto responses = drafter.core.TakeResponses();
    long_prompt.Collect(responses);
    long_prompt.Deliver();
    for (Peer& peer : peers) {
      peer.Collect(responses);
      peer.Deliver();
      // What the commit left takes a few steps for all four.
      EXPECT_TRUE(peer.exhausted() || static_cast<int>(peer.tree().size()) >= 2 * (steps - 3))
          << "step " << steps;
    }
  }
}

TEST(DraftCoreTest, ManySessionsAreServedInTurn) {
  Drafter drafter({.expand_width = 4, .max_step_rows = 8}, {.num_blocks = 1024});
  std::vector<Peer> peers;
  for (SessionId id = 0; id < 40; ++id) peers.emplace_back(&drafter, id, id % 3);
  for (size_t i = 0; i < peers.size(); ++i) {
    peers[i].Open(Prompt(4, static_cast<int>(i)), {.depth = 16, .nodes = 64, .branching = 2});
  }
  for (int step = 0; step < 100; ++step) {
    drafter.core.Step();
    const auto responses = drafter.core.TakeResponses();
    for (Peer& peer : peers) peer.Collect(responses);
  }
  uint64_t least = UINT64_MAX;
  uint64_t most = 0;
  for (Peer& peer : peers) {
    peer.Deliver();
    least = std::min(least, peer.num_nodes());
    most = std::max(most, peer.num_nodes());
  }
  EXPECT_GT(least, 0u);
  EXPECT_LE(most - least, 4u);
}

// Room for one session in a step: the one whose verifier has no candidates goes first, whoever's turn it is.
TEST(DraftCoreTest, FirstNodesComeBeforeFurtherOnes) {
  Drafter drafter({.expand_width = 4, .max_step_rows = 4}, {.num_blocks = 1024});
  Peer deep(&drafter, 1, 0);
  Peer fresh(&drafter, 2, 0);
  deep.Open(Prompt(4, 1), {.depth = 16, .nodes = 64, .branching = 2});
  for (int step = 0; step < 3; ++step) drafter.core.Step();
  fresh.Open(Prompt(4, 2), {.depth = 16, .nodes = 64, .branching = 2});
  const auto collect = [&] {
    const auto responses = drafter.core.TakeResponses();
    deep.Collect(responses);
    fresh.Collect(responses);
    deep.Deliver();
    fresh.Deliver();
  };
  collect();
  const uint64_t deep_before = deep.num_nodes();
  ASSERT_GT(deep_before, 0u);
  int steps = 0;
  for (; fresh.num_nodes() == 0 && steps < 10; ++steps) {
    drafter.core.Step();
    collect();
  }
  EXPECT_LE(steps, 2);
}

TEST(DraftCoreTest, AClosedLinkTakesItsSessionsAlong) {
  Drafter drafter;
  Peer here(&drafter, 1, 1), there(&drafter, 1, 2), also_here(&drafter, UINT64_MAX, 1);
  for (Peer* peer : {&here, &there, &also_here}) {
    peer->Open(Prompt(20), {.depth = 3, .nodes = 6, .branching = 2});
  }
  drafter.core.Step();
  drafter.core.OnLinkClosed(1);
  EXPECT_EQ(drafter.core.stats().num_sessions, 1u);
  for (const auto& [link, response] : drafter.core.TakeResponses()) EXPECT_EQ(link, 2u);
  drafter.RunDry();
  drafter.core.OnLinkClosed(2);
  EXPECT_EQ(drafter.pool.num_held(), 0u);
  EXPECT_FALSE(drafter.core.HasWork());
  const DraftCounters counters = drafter.core.stats().counters;
  EXPECT_EQ(counters.sent_nodes, counters.accepted_nodes + counters.pruned_nodes + counters.stale_nodes);
}

TEST(DraftCoreTest, AnEngineThatFailsCostsTheSessionsOfThatStepOnly) {
  Drafter drafter;
  Peer peer(&drafter, 1);
  peer.Open(Prompt(20), {.depth = 3, .nodes = 6, .branching = 2});
  drafter.engine.FailNextStep(absl::UnknownError("the device is on fire"));
  peer.RunDryAndDeliver();
  ASSERT_TRUE(peer.refusal().has_value());
  EXPECT_EQ(peer.refusal()->code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(peer.refusal()->message()), HasSubstr("on fire"));
  EXPECT_EQ(drafter.pool.num_held(), 0u);
  Peer next(&drafter, 2);
  next.Open(Prompt(20), {.depth = 3, .nodes = 6, .branching = 2});
  next.RunDryAndDeliver();
  EXPECT_EQ(next.tree().size(), 6u);
}

// Takes two milliseconds a step.
class SlowEngine final : public Engine {
 public:
  SlowEngine(Engine* engine, ManualClock* clock) : engine_(engine), clock_(clock) {}
  const ModelConfig& config() const override { return engine_->config(); }
  uint32_t num_blocks() const override { return engine_->num_blocks(); }
  uint32_t max_rows() const override { return engine_->max_rows(); }
  absl::Status Step(absl::Span<const StepRow> rows) override {
    clock_->Advance(absl::Milliseconds(2));
    return engine_->Step(rows);
  }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return engine_->CopyKv(copies); }

 private:
  Engine* engine_;
  ManualClock* clock_;
};

TEST(DraftCoreTest, SeveralModelsTakeTurnsAndTellTheirStepTime) {
  ManualClock clock;
  FakeEngine engines[] = {FakeEngine({.seed = 1}), FakeEngine({.seed = 2})};
  SlowEngine slow(&engines[1], &clock);
  BlockPool pools[] = {BlockPool({.num_blocks = 256}), BlockPool({.num_blocks = 256})};
  DraftCore core({}, {{"fast", &engines[0], &pools[0], 1, 4096}, {"slow", &slow, &pools[1], 2, 4096}},
                 &clock);
  for (SessionId session : {1, 2}) {
    core.OnRequest(kLink, {session, OpenSession{.epoch = 1,
                                                .draft_model = session == 1 ? "fast" : "slow",
                                                .vocabulary_fingerprint = session,
                                                .tokens = {1, 2},
                                                .prefix_hash = ExtendPrefixHash(kEmptyPrefixHash, {1, 2}),
                                                .budget = {.depth = 3, .nodes = 3, .branching = 1}}});
  }
  for (int step = 1; step <= 6; ++step) {
    core.Step();
    EXPECT_EQ(engines[0].num_steps(), static_cast<uint64_t>(step + 1) / 2);
    EXPECT_EQ(engines[1].num_steps(), static_cast<uint64_t>(step) / 2);
  }
  EXPECT_FALSE(core.HasWork());
  for (const auto& [link, response] : core.TakeResponses()) {
    const auto* grow = std::get_if<Grow>(&response.event);
    if (grow == nullptr) continue;
    EXPECT_FLOAT_EQ(grow->step_seconds, response.session == 1 ? 0.0f : 0.002f);
  }
  EXPECT_FALSE(engines[0].ReferenceLogits({1, 2}) == engines[1].ReferenceLogits({1, 2}));
}

}  // namespace
}  // namespace tandem

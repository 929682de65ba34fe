#include "verifier/scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "verifier/testing/scheduler_test_fixture.h"

namespace tandem {
namespace {

std::vector<SamplingParameters> ManySamplings() {
  return {
      {.temperature = 0.0f},
      {.temperature = 0.8f, .seed = 7},
      {.temperature = 0.8f, .top_k = 5, .top_p = 0.9f, .seed = 8},
      {.temperature = 0.0f, .repetition_penalty = 1.4f, .presence_penalty = 0.5f, .frequency_penalty = 0.7f},
      {.temperature = 0.8f, .repetition_penalty = 1.2f, .frequency_penalty = 1.0f, .seed = 9}};
}

TEST_F(SchedulerTest, PlainDecodingIsTheReferenceLoop) {
  for (const SamplingParameters& sampling : ManySamplings()) {
    for (uint32_t max_tokens : {1u, 2u, 20u}) {
      Make();
      records_.clear();
      const Ask ask{.sampling = sampling, .rules = {.max_tokens = max_tokens}};
      ASSERT_TRUE(Submit(1, ask).ok());
      RunToTheEnd();
      ExpectReference(1, ask);
    }
  }
}

TEST_F(SchedulerTest, ALocalDrafterSavesRoundsAndChangesNothing) {
  for (const char* source : {"ngram:min=1", "suffix:min=1"}) {
    std::vector<SamplingParameters> samplings = ManySamplings();
    samplings.push_back({.temperature = 0.0f, .logit_bias = {{7, 100.0f}}});  // Repeats itself.
    for (const SamplingParameters& sampling : samplings) {
      Make({.local_drafter = ParseSourceSpec(source).value()});
      records_.clear();
      const Ask ask{.sampling = sampling, .rules = {.max_tokens = 40}};
      ASSERT_TRUE(Submit(1, ask).ok());
      RunToTheEnd();
      ExpectReference(1, ask);
    }
    const SessionSummary& summary = records_[1].summary;
    EXPECT_LT(summary.rounds, 20u);
    EXPECT_EQ(summary.rounds + summary.accepted_tokens, 40u);
    EXPECT_GT(summary.accepted_tokens, summary.draft_tokens / 2) << "scores of at least 0.3 are kept";
  }
}

TEST_F(SchedulerTest, ALocalDrafterStandsInWhereTheDrafterIsSilent) {
  Scheduler::Options options = FixedWindow(4);
  options.local_drafter = ParseSourceSpec("suffix:min=1").value();
  Make(options);
  scheduler_->OnLinkUp(kLink);
  const Ask ask{.sampling = {.temperature = 0.0f, .logit_bias = {{7, 100.0f}}},
                .rules = {.max_tokens = 40},
                .drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] { AnswerOpens(); });
  ExpectReference(1, ask);
  EXPECT_GT(records_[1].summary.accepted_tokens, 10u);
  EXPECT_EQ(violations_.size(), 0u);
}

TEST_F(SchedulerTest, StopTokenAndStopStringEndTheOutput) {
  Make();
  Ask ask;
  const TokenIds output = Reference(ask).tokens;
  ask.rules.stop_tokens = {output[7]};
  Ask text = ask;
  text.rules.stop_tokens.clear();
  text.rules.stop = {TestTokenizer()->Decode({output[6]}, /*skip_special=*/false)};
  ASSERT_TRUE(Submit(1, ask).ok());
  ASSERT_TRUE(Submit(2, text).ok());
  RunToTheEnd();
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.end.reason, OutputEnd::Reason::kStopToken);
  ExpectReference(2, text);
}

TEST_F(SchedulerTest, DraftsChangeTheNumberOfRoundsAndNothingElse) {
  for (const SamplingParameters& sampling : ManySamplings()) {
    const Ask ask{.sampling = sampling, .drafted = true};
    uint32_t rounds_before = std::numeric_limits<uint32_t>::max();
    for (const uint32_t num_right : {0u, 2u, 4u}) {
      Make(FixedWindow(4));
      records_.clear();
      drafts_.clear();
      scheduler_->OnLinkUp(kLink);
      ASSERT_TRUE(Submit(1, ask).ok());
      RunToTheEnd([&] {
        AnswerOpens();
        Draft(ask, num_right, 4 - num_right);
      });
      ExpectReference(1, ask);
      const SessionSummary& summary = records_[1].summary;
      EXPECT_LT(summary.rounds, rounds_before);
      rounds_before = summary.rounds;
      EXPECT_EQ(summary.drafted_rounds, summary.hits + summary.misses);
      EXPECT_EQ(summary.accepted_tokens == 0, num_right == 0);
      EXPECT_EQ(violations_.size(), 0u);
    }
  }
}

TEST_F(SchedulerTest, CountsWhatWasAccepted) {
  Make(FixedWindow(4));
  const Ask ask{.rules = {.max_tokens = 16}, .drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask, 2, 2);
  });
  ExpectReference(1, ask);
  const SessionSummary& summary = records_[1].summary;
  // The first step is an undrafted round, with the prompt. Each round commits two drafts and a token of its
  // own: 1 + 5 * 3.
  EXPECT_EQ(summary.rounds, 6u);
  EXPECT_EQ(summary.drafted_rounds, 5u);
  // When the first of them began, nobody had to wait for the drafts.
  EXPECT_EQ(summary.hits, 1u);
  EXPECT_EQ(summary.misses, 4u);
  EXPECT_EQ(summary.accepted_tokens, 10u);
  EXPECT_EQ(summary.accepted_per_position, (std::vector<uint32_t>{5, 5}));
  // Four nodes, but three and then two when no more than so many tokens are wanted: windows end with the
  // output.
  EXPECT_EQ(summary.draft_tokens, 4u + 4 + 4 + 4 + 2);
  EXPECT_EQ(summary.window_histogram, (std::vector<uint32_t>{1, 0, 1, 0, 4}));
  const std::vector<RoundReport>& rounds = records_[1].rounds;
  ASSERT_EQ(rounds.size(), 6u);
  EXPECT_EQ(rounds[0].supply, DraftSupply::kOpening);
  for (size_t i = 1; i < rounds.size(); ++i) {
    EXPECT_EQ(rounds[i].supply, DraftSupply::kDrafted);
    // Three tokens, each in a step of 2 ms, instead of one such step and what was waited.
    EXPECT_NEAR(rounds[i].plain_seconds, 0.006, 1e-6);
    EXPECT_NEAR(rounds[i].round_seconds, 0.002 + rounds[i].wait_seconds, 1e-6);
  }
  EXPECT_EQ(summary.drafter, "drafter");
  EXPECT_EQ(summary.drafter_lost, "");
}

TEST_F(SchedulerTest, GrowthThatArrivesDuringThePassMakesAHit) {
  Make(FixedWindow(2));
  const Ask ask{.drafted = true};
  const TokenIds output = Reference(ask).tokens;
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  scheduler_->Step();
  AnswerOpens();
  Send(1, Chain(1, {output[1], output[2]}, /*exhausted=*/false));
  ASSERT_TRUE(scheduler_->Forward());
  // Below the second node, which has the id 2.
  Grow more = Chain(1, {output[3], output[4], output[5]});
  more.parents[0] = 2;
  Send(1, more);
  scheduler_->Conclude();
  const auto* commit = std::get_if<Commit>(&requests_.back().event);
  ASSERT_NE(commit, nullptr);
  EXPECT_EQ(commit->new_root, std::optional<NodeId>(3));
  EXPECT_EQ(scheduler_->NextWake(), absl::InfinitePast());
  scheduler_->Step();
  EXPECT_EQ(records_[1].rounds.back().kind, RoundKind::kHit);
  EXPECT_EQ(records_[1].rounds.back().accepted, 2u);
  RunToTheEnd();
  ExpectReference(1, ask);
}

TEST_F(SchedulerTest, PromptInChunksDelaysNobody) {
  Make({.prefill_chunk = 4});
  const Ask first{.rules = {.max_tokens = 40}};
  Ask second{.rules = {.max_tokens = 3}};
  second.prompt.assign(21, 9);
  ASSERT_TRUE(Submit(1, first).ok());
  scheduler_->Step();  // Four rows of prompt, and the root in the same step.
  EXPECT_EQ(records_[1].tokens.size(), 1u);
  ASSERT_TRUE(Submit(2, second).ok());
  for (size_t step = 1; step <= 4; ++step) {
    scheduler_->Step();
    EXPECT_EQ(records_[1].tokens.size(), 1 + step);
    EXPECT_EQ(records_[2].tokens.size(), 0u);
  }
  scheduler_->Step();  // The fifth chunk of four, and with it the first round.
  EXPECT_EQ(records_[2].tokens.size(), 1u);
  RunToTheEnd();
  ExpectReference(1, first);
  ExpectReference(2, second);
}

TEST_F(SchedulerTest, TreesLeaveRoomForTheOthers) {
  Make(FixedWindow(7), {.max_rows = 8});
  const Ask drafted{.rules = {.max_tokens = 60}, .drafted = true};
  const Ask plain{.prompt = {3}, .rules = {.max_tokens = 40}};
  const Ask late{.prompt = TokenIds(21, 9)};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, drafted).ok());
  scheduler_->Step();
  AnswerOpens();
  ASSERT_TRUE(Submit(2, plain).ok());
  ASSERT_TRUE(Submit(3, late).ok());
  for (size_t step = 1; step <= 10; ++step) {
    // All of the window is there in time: the oldest session could fill every step.
    Draft(drafted, 7, 0);
    scheduler_->Step();
    EXPECT_EQ(records_[2].tokens.size(), step);
  }
  // Two of eight rows a step are for the prompt, or more when a step has some left.
  EXPECT_GT(records_[3].tokens.size(), 0u);
  RunToTheEnd();
  ExpectReference(1, drafted);
  ExpectReference(2, plain);
  ExpectReference(3, late);
}

TEST_F(SchedulerTest, ABatchIsEachAlone) {
  Make({.max_running = 8, .prefill_chunk = 16, .limits = {.max_depth = 3}, .window_policy = "fixed"},
       {.max_rows = 24});
  std::map<SessionId, Ask> asks;
  for (SessionId id = 1; id <= 8; ++id) {
    Ask ask{.sampling = ManySamplings()[id % 5], .rules = {.max_tokens = static_cast<uint32_t>(3 * id)}};
    ask.prompt.assign(5 * id, static_cast<TokenId>(id));
    asks[id] = ask;
    ASSERT_TRUE(Submit(id, ask).ok());
  }
  RunToTheEnd();
  for (const auto& [id, ask] : asks) ExpectReference(id, ask);
}

TEST_F(SchedulerTest, PrefixCacheGivesTheSameOutputWithinATenant) {
  Make();
  Ask ask;
  ask.prompt.assign(50, 3);
  ask.cache_salt = 1;
  Ask other = ask;
  other.cache_salt = 2;
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd();
  ASSERT_TRUE(Submit(2, ask).ok());
  ASSERT_TRUE(Submit(3, other).ok());
  RunToTheEnd();
  for (SessionId id : {1, 2}) ExpectReference(id, ask);
  ExpectReference(3, other);
  EXPECT_EQ(records_[1].summary.cached_prompt_tokens, 0u);
  EXPECT_EQ(records_[2].summary.cached_prompt_tokens, 48u);
  EXPECT_EQ(records_[3].summary.cached_prompt_tokens, 0u);
}

TEST_F(SchedulerTest, RequestsWaitForMemory) {
  Make(FixedWindow(4), {.num_blocks = 5});
  std::map<SessionId, Ask> asks;
  scheduler_->OnLinkUp(kLink);
  for (SessionId id = 1; id <= 6; ++id) {
    asks[id] = {
        .prompt = TokenIds(20, static_cast<TokenId>(id)), .rules = {.max_tokens = 12}, .drafted = true};
    ASSERT_TRUE(Submit(id, asks[id]).ok());
  }
  scheduler_->Step();
  EXPECT_EQ(scheduler_->num_running(), 2u);
  EXPECT_EQ(scheduler_->num_waiting(), 4u);
  RunToTheEnd([&] { AnswerOpens(); });
  for (const auto& [id, ask] : asks) ExpectReference(id, ask);
}

TEST_F(SchedulerTest, AdmitsAtOnceWhenMemoryIsFreed) {
  Make(FixedWindow(4), {.num_blocks = 4});
  scheduler_->OnLinkUp(kLink);
  const Ask slow{.rules = {.max_tokens = 20}, .drafted = true};  // Two blocks each.
  const Ask quick{.rules = {.max_tokens = 12}};
  ASSERT_TRUE(Submit(1, slow).ok());
  ASSERT_TRUE(Submit(2, {.prompt = TokenIds(29, 7), .rules = {.max_tokens = 2}}).ok());
  ASSERT_TRUE(Submit(3, quick).ok());
  scheduler_->Step();
  AnswerOpens();
  scheduler_->Step();  // The second ends; the first waits for drafts from now on.
  ASSERT_EQ(records_[2].ends.size(), 1u);
  ASSERT_FALSE(records_[3].started);
  EXPECT_EQ(scheduler_->NextWake(), absl::InfinitePast());
  scheduler_->Step();
  EXPECT_TRUE(records_[3].started);
  RunToTheEnd();
  ExpectReference(1, slow);
  ExpectReference(3, quick);
}

TEST_F(SchedulerTest, RefusesWhatCannotEverRunAndWhatDoesNotFitTheQueue) {
  Make({.max_running = 1, .max_waiting = 2}, {.num_blocks = 4});
  EXPECT_TRUE(absl::IsOutOfRange(Submit(1, {.rules = {.max_tokens = 60}})));
  EXPECT_TRUE(Submit(2, {}).ok());
  scheduler_->Step();
  EXPECT_TRUE(Submit(3, {}).ok());
  EXPECT_TRUE(Submit(4, {}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Submit(5, {})));
  RunToTheEnd();
  EXPECT_EQ(records_.size(), 3u);
}

TEST_F(SchedulerTest, RequestsThatCanStartAtOnceAreNotCountedAsWaiting) {
  Make({.max_running = 2, .max_waiting = 0});
  EXPECT_TRUE(Submit(1, {}).ok());
  EXPECT_TRUE(Submit(2, {}).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Submit(3, {})));
  scheduler_->Step();
  EXPECT_TRUE(absl::IsResourceExhausted(Submit(4, {})));
  RunToTheEnd();
  EXPECT_TRUE(Submit(5, {}).ok());
  RunToTheEnd();
  EXPECT_EQ(records_.size(), 3u);
}

TEST_F(SchedulerTest, CancelEndsARequestInEveryState) {
  Make({.max_running = 3, .prefill_chunk = 4, .window_policy = "fixed"});
  const absl::Status gone = absl::CancelledError("gone");
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, {.drafted = true}).ok());
  scheduler_->Step();
  AnswerOpens();
  scheduler_->Step();
  ASSERT_GT(scheduler_->NextWake(), clock_.Now());  // It waits for drafts.
  ASSERT_TRUE(Submit(2, {.prompt = TokenIds(30, 1)}).ok());
  ASSERT_TRUE(Submit(3, {}).ok());
  ASSERT_TRUE(Submit(4, {}).ok());
  ASSERT_TRUE(scheduler_->Forward());
  scheduler_->Cancel(2, gone);  // In a step.
  scheduler_->Cancel(2, gone);
  EXPECT_TRUE(records_[2].ends.empty());
  scheduler_->Conclude();
  EXPECT_EQ(records_[2].ends, std::vector<absl::Status>{gone});
  scheduler_->Cancel(4, gone);  // In the queue.
  scheduler_->Cancel(3, gone);  // In its prefill.
  scheduler_->Cancel(1, gone);
  EXPECT_EQ(NumSent<CloseSession>(), 1u);
  for (SessionId id = 1; id <= 4; ++id) EXPECT_EQ(records_[id].ends, std::vector<absl::Status>{gone});
  scheduler_->Cancel(1, gone);
  EXPECT_EQ(scheduler_->NextWake(), absl::InfiniteFuture());
}

TEST_F(SchedulerTest, DeadlinesEndRequestsInEveryState) {
  Make({.max_running = 2, .prefill_chunk = 2, .window_policy = "fixed", .max_draft_wait = absl::Seconds(1)});
  const absl::Time deadline = clock_.Now() + absl::Milliseconds(7);
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, {.prompt = {1}, .deadline = deadline, .drafted = true}).ok());
  ASSERT_TRUE(Submit(2, {.prompt = TokenIds(60, 1), .deadline = deadline}).ok());
  ASSERT_TRUE(Submit(3, {.deadline = deadline}).ok());
  RunToTheEnd([&] { AnswerOpens(); });
  for (SessionId id = 1; id <= 3; ++id) {
    ASSERT_EQ(records_[id].ends.size(), 1u);
    EXPECT_TRUE(absl::IsDeadlineExceeded(records_[id].ends[0])) << records_[id].ends[0];
  }
  EXPECT_FALSE(records_[3].started);
  EXPECT_LE(clock_.Now(), deadline + absl::Milliseconds(2));
}

TEST_F(SchedulerTest, AClockThatIsSetBackEndsTheWaitForDrafts) {
  Make({.window_policy = "fixed", .max_draft_wait = absl::Milliseconds(1)});
  const Ask ask{.drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  scheduler_->Step();
  AnswerOpens();
  scheduler_->Step();
  ASSERT_GT(scheduler_->NextWake(), clock_.Now());
  const size_t num_rounds = records_[1].rounds.size();
  clock_.Advance(-absl::Hours(1));
  EXPECT_EQ(scheduler_->NextWake(), absl::InfinitePast());
  scheduler_->Step();
  ASSERT_EQ(records_[1].rounds.size(), num_rounds + 1);
  EXPECT_EQ(records_[1].rounds.back().wait_seconds, 0.0);
  RunToTheEnd();
  ExpectReference(1, ask);
}

TEST_F(SchedulerTest, WaitsForDraftsUntilTheyComeOrNoLonger) {
  Make({.window_policy = "fixed", .max_draft_wait = absl::Milliseconds(1)});
  const Ask ask{.drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  scheduler_->Step();
  AnswerOpens();
  scheduler_->Step();
  const absl::Time until = clock_.Now() + absl::Milliseconds(1);
  EXPECT_EQ(scheduler_->NextWake(), until);
  EXPECT_FALSE(scheduler_->Forward());
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(scheduler_->NextWake(), absl::InfinitePast());
  scheduler_->Step();
  EXPECT_EQ(records_[1].rounds.back().kind, RoundKind::kUndrafted);
  EXPECT_DOUBLE_EQ(records_[1].rounds.back().wait_seconds, 0.001);
  // The next ones come in time.
  const TokenIds output = Reference(ask).tokens;
  EXPECT_GT(scheduler_->NextWake(), clock_.Now());
  Send(1, Chain(1, {output[records_[1].tokens.size()]}));
  EXPECT_EQ(scheduler_->NextWake(), absl::InfinitePast());
  scheduler_->Step();
  EXPECT_EQ(records_[1].rounds.back().accepted, 1u);
  EXPECT_EQ(records_[1].rounds.back().kind, RoundKind::kMiss);
  RunToTheEnd();
  ExpectReference(1, ask);
}

TEST_F(SchedulerTest, ADrafterThatBreaksTheProtocolIsQuarantined) {
  Make(FixedWindow(4));
  const Ask ask{.drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  scheduler_->Step();
  AnswerOpens();
  Grow hostile = Chain(1, {kVocabSize});
  Send(1, hostile);
  hostile.tokens = {3};
  hostile.scores = {std::numeric_limits<float>::quiet_NaN()};
  Send(1, hostile);
  EXPECT_EQ(NumSent<CloseSession>(), 0u);
  scheduler_->OnMalformedResponse(kLink, "not a message");
  EXPECT_EQ(violations_, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(NumSent<CloseSession>(), 1u);
  const size_t sent = requests_.size();
  Send(1, hostile);
  scheduler_->OnLinkDown(kLink, absl::UnavailableError("gone"));
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(2, ask).ok());
  RunToTheEnd();
  EXPECT_EQ(violations_.size(), 3u);
  EXPECT_EQ(requests_.size(), sent);
  for (SessionId id : {1, 2}) {
    ExpectReference(id, ask);
    EXPECT_EQ(records_[id].summary.drafter_lost, "the drafter is quarantined");
  }
}

TEST_F(SchedulerTest, AQuarantineEnds) {
  Make(FixedWindow(4));
  scheduler_->OnLinkUp(kLink);
  for (int i = 0; i < 3; ++i) scheduler_->OnMalformedResponse(kLink, "not a message");
  ASSERT_EQ(violations_, (std::vector<bool>{false, false, true}));
  clock_.Advance(absl::Minutes(2));
  const Ask ask{.drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] { AnswerOpens(); });
  ExpectReference(1, ask);
  EXPECT_EQ(NumSent<OpenSession>(), 1u);
}

// Law 6, with a policy that never learns: a drafter that opens sessions and then says nothing costs two
// waits.
TEST_F(SchedulerTest, ASilentDrafterIsNotWaitedForAgainAndAgain) {
  Make({.window_policy = "fixed", .max_draft_wait = absl::Milliseconds(1)});
  const Ask ask{.rules = {.max_tokens = 40}, .drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  RunToTheEnd([&] { AnswerOpens(); });
  ExpectReference(1, ask);
  int waits = 0;
  for (const RoundReport& round : records_[1].rounds) waits += round.wait_seconds > 0.0 ? 1 : 0;
  EXPECT_EQ(waits, 2);
}

TEST_F(SchedulerTest, ALostConnectionIsOpenedAgainWhereTheOutputIs) {
  Make(FixedWindow(4));
  const Ask ask{.drafted = true};
  ASSERT_TRUE(Submit(1, ask).ok());
  scheduler_->Step();
  EXPECT_EQ(requests_.size(), 0u);  // Not connected yet.
  scheduler_->OnLinkUp(kLink);
  ASSERT_EQ(NumSent<OpenSession>(), 1u);
  AnswerOpens();
  Draft(ask, 4, 0);
  scheduler_->Step();
  scheduler_->OnLinkDown(kLink, absl::UnavailableError("gone"));
  const size_t sent = requests_.size();
  EXPECT_EQ(scheduler_->NextWake(), absl::InfinitePast());  // Nobody to wait for.
  scheduler_->Step();
  EXPECT_EQ(requests_.size(), sent);
  scheduler_->OnLinkUp(kLink);
  const auto* open = std::get_if<OpenSession>(&requests_.back().event);
  ASSERT_NE(open, nullptr);
  EXPECT_EQ(open->epoch, 2u);
  EXPECT_EQ(open->tokens.size(), ask.prompt.size() + records_[1].tokens.size());
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask, 4, 0);
  });
  ExpectReference(1, ask);
  EXPECT_EQ(records_[1].summary.drafter_lost, "");
  EXPECT_EQ(NumSent<CloseSession>(), 2u);
}

TEST_F(SchedulerTest, ARefusedSessionGoesOnWithoutDrafts) {
  Make(FixedWindow(4));
  const Ask ask{.drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  scheduler_->Step();
  Send(1, SessionRefused{.epoch = 7, .status = absl::NotFoundError("another epoch")});
  Send(1, SessionRefused{.epoch = 1, .status = absl::FailedPreconditionError("another vocabulary")});
  const size_t sent = requests_.size();
  scheduler_->OnLinkUp(kLink);
  RunToTheEnd();
  ExpectReference(1, ask);
  EXPECT_EQ(requests_.size(), sent);
  EXPECT_EQ(records_[1].summary.drafter_lost, "refused: FAILED_PRECONDITION: another vocabulary");
  EXPECT_EQ(records_[1].rounds.back().supply, DraftSupply::kLost);
}

TEST_F(SchedulerTest, ResyncOpensANewEpochOnce) {
  Make(FixedWindow(4));
  const Ask ask{.drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  scheduler_->Step();
  Send(1, ResyncNeeded{.epoch = 1});
  Send(1, ResyncNeeded{.epoch = 1});
  EXPECT_EQ(NumSent<OpenSession>(), 2u);
  RunToTheEnd([&] {
    AnswerOpens();
    Draft(ask, 4, 0);
  });
  ExpectReference(1, ask);
  EXPECT_GT(records_[1].summary.accepted_tokens, 0u);
}

TEST_F(SchedulerTest, AResyncThatDraftsNothingClosesTheSession) {
  Make(FixedWindow(4));
  const Ask ask{.drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  scheduler_->Step();
  ASSERT_EQ(NumSent<OpenSession>(), 1u);
  ASSERT_TRUE(scheduler_->SetWindowPolicy("fsm", {.fsm = {.initial_depth = 0}}).ok());
  Send(1, ResyncNeeded{.epoch = 1});
  EXPECT_EQ(NumSent<OpenSession>(), 1u);
  EXPECT_EQ(NumSent<CloseSession>(), 1u);
  RunToTheEnd();
  ExpectReference(1, ask);
  EXPECT_EQ(NumSent<CloseSession>(), NumSent<OpenSession>());
}

TEST_F(SchedulerTest, ADrafterWithoutRoomIsAskedAgainLaterAndLater) {
  Make(FixedWindow(4));
  const Ask ask{.rules = {.max_tokens = 60}, .drafted = true};
  scheduler_->OnLinkUp(kLink);
  ASSERT_TRUE(Submit(1, ask).ok());
  scheduler_->Step();
  uint32_t num_opens = 1;
  for (const int seconds : {1, 2, 4, 8, 16, 30, 30}) {
    ASSERT_EQ(NumSent<OpenSession>(), num_opens);
    Send(1, SessionRefused{.epoch = num_opens, .status = absl::ResourceExhaustedError("full")});
    EXPECT_EQ(scheduler_->NextWake(), absl::InfinitePast());  // Nobody to wait for.
    clock_.Advance(absl::Seconds(seconds) - absl::Milliseconds(3));
    scheduler_->Step();
    EXPECT_EQ(NumSent<OpenSession>(), num_opens) << "after less than " << seconds << " s";
    clock_.Advance(absl::Milliseconds(3));
    scheduler_->Step();
    ++num_opens;
  }
  // Once it has drafted, the next time counts as the first.
  ASSERT_EQ(NumSent<OpenSession>(), num_opens);
  AnswerOpens();
  Draft(ask, 4, 0);
  scheduler_->Step();
  Send(1, SessionRefused{.epoch = num_opens, .status = absl::ResourceExhaustedError("full")});
  clock_.Advance(absl::Seconds(1));
  scheduler_->Step();
  EXPECT_EQ(NumSent<OpenSession>(), num_opens + 1);
  // A new connection may be to one that has room.
  Send(1, SessionRefused{.epoch = num_opens + 1, .status = absl::ResourceExhaustedError("full")});
  scheduler_->OnLinkDown(kLink, absl::UnavailableError("gone"));
  scheduler_->OnLinkUp(kLink);
  EXPECT_EQ(NumSent<OpenSession>(), num_opens + 2);
  RunToTheEnd();
  ExpectReference(1, ask);
}

TEST_F(SchedulerTest, AnEngineThatFailsEndsEverything) {
  Make();
  ASSERT_TRUE(Submit(1, {}).ok());
  ASSERT_TRUE(Submit(2, {}).ok());
  scheduler_->Step();
  model_->FailNextStep(absl::DataLossError("no more"));
  RunToTheEnd();
  for (SessionId id : {1, 2}) {
    EXPECT_EQ(records_[id].ends,
              std::vector<absl::Status>{absl::InternalError("the engine failed: no more")});
  }
  ASSERT_TRUE(Submit(3, {}).ok());
  RunToTheEnd();
  ExpectReference(3, {});
}

}  // namespace
}  // namespace tandem

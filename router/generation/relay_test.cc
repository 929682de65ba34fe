#include "router/generation/relay.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::GenerateResponse Started() {
  v1::GenerateResponse event;
  event.mutable_started()->set_seed(5);
  event.mutable_started()->set_drafter("as the verifier calls it");
  return event;
}

v1::GenerateResponse Chunk(uint32_t offset, int tokens) {
  v1::GenerateResponse event;
  event.mutable_chunk()->set_offset(offset);
  for (int i = 0; i < tokens; ++i) event.mutable_chunk()->add_tokens(i);
  return event;
}

v1::GenerateResponse Finished() {
  v1::GenerateResponse event;
  event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP_TOKEN);
  return event;
}

// A relay whose first attempt has begun and has relayed `events`, all of which are to be sent on.
Relay AfterEvents(std::vector<v1::GenerateResponse> events) {
  Relay relay({.model = "big", .drafter = "code"});
  relay.OnAttempt("v0:1");
  for (v1::GenerateResponse& event : events) {
    const absl::StatusOr<bool> send = relay.OnEvent(event);
    EXPECT_TRUE(send.ok() && *send) << event.DebugString() << send.status();
  }
  return relay;
}

TEST(RelayTest, CompletesStartedAndEndsOk) {
  Relay relay({.model = "big", .drafter = "code"});
  relay.OnAttempt("v0:1");
  v1::GenerateResponse started = Started();
  EXPECT_TRUE(*relay.OnEvent(started));
  EXPECT_EQ(started.started().model(), "big");
  EXPECT_EQ(started.started().drafter(), "code");
  EXPECT_EQ(started.started().seed(), 5u);
  for (v1::GenerateResponse event : {Chunk(0, 3), Chunk(3, 1), Finished()})
    EXPECT_TRUE(*relay.OnEvent(event));
  EXPECT_EQ(relay.num_tokens(), 4u);
  const Relay::End end = relay.OnEnd(absl::OkStatus(), /*in_time=*/true);
  EXPECT_FALSE(end.retry);
  EXPECT_TRUE(end.status.ok());
}

TEST(RelayTest, WhatHappensAfterFinishedDoesNotMatter) {
  const Relay relay = AfterEvents({Started(), Chunk(0, 1), Finished()});
  EXPECT_TRUE(relay.OnEnd(absl::UnavailableError("connection reset"), /*in_time=*/true).status.ok());
}

TEST(RelayTest, WhatALostVerifierCanBeReplacedIn) {
  EXPECT_TRUE(AfterEvents({}).OnEnd(absl::UnavailableError("refused"), /*in_time=*/true).retry);
  EXPECT_TRUE(AfterEvents({Started()}).OnEnd(absl::UnavailableError("reset"), /*in_time=*/true).retry);
  EXPECT_TRUE(AfterEvents({Started()}).OnEnd(absl::CancelledError("shutting down"), /*in_time=*/true).retry);
  EXPECT_TRUE(AfterEvents({}).OnEnd(absl::ResourceExhaustedError("full"), /*in_time=*/true).retry);
  EXPECT_FALSE(AfterEvents({}).OnEnd(absl::InvalidArgumentError("no"), /*in_time=*/true).retry);
  EXPECT_FALSE(AfterEvents({}).OnEnd(absl::InternalError("no"), /*in_time=*/true).retry);
  const Relay::End end =
      AfterEvents({Started(), Chunk(0, 2)}).OnEnd(absl::UnavailableError("reset"), /*in_time=*/true);
  EXPECT_TRUE(end.retry);
  EXPECT_EQ(end.status, absl::UnavailableError("verifier v0:1 was lost after 2 tokens: reset"));
}

TEST(RelayTest, AVerifierWhoseClockIsAheadIsLost) {
  const absl::Status late = absl::DeadlineExceededError("the request's deadline passed");
  const Relay relay = AfterEvents({Started(), Chunk(0, 2)});
  EXPECT_FALSE(relay.OnEnd(late, /*in_time=*/false).retry);
  EXPECT_EQ(relay.OnEnd(late, /*in_time=*/false).status, late);
  const Relay::End early = relay.OnEnd(late, /*in_time=*/true);
  EXPECT_TRUE(early.retry);
  EXPECT_EQ(early.status.code(), absl::StatusCode::kUnavailable);
}

TEST(RelayTest, AClientThatReadsTooSlowlyDoesSoAtEveryVerifier) {
  const absl::Status slow = absl::ResourceExhaustedError("the client reads too slowly");
  EXPECT_TRUE(AfterEvents({Started()}).OnEnd(slow, /*in_time=*/true).retry) << "full, as far as can be told";
  const Relay::End end = AfterEvents({Started(), Chunk(0, 2)}).OnEnd(slow, /*in_time=*/true);
  EXPECT_FALSE(end.retry);
  EXPECT_EQ(end.status, slow);
}

v1::GenerateResponse Round(uint32_t offset, v1::RoundKind kind, uint32_t window, uint32_t drafted,
                           uint32_t accepted) {
  v1::GenerateResponse event = Chunk(offset, static_cast<int>(accepted) + 1);
  event.mutable_chunk()->set_kind(kind);
  event.mutable_chunk()->set_window(window);
  event.mutable_chunk()->set_draft_tokens(drafted);
  // The first accepted token is the drafter's, the others the verifier's own guesses.
  for (uint32_t i = 0; i <= accepted; ++i) {
    v1::TokenDetail& detail = *event.mutable_chunk()->add_details();
    detail.set_source(i < accepted ? v1::TOKEN_SOURCE_ACCEPTED : v1::TOKEN_SOURCE_TARGET);
    if (i < accepted) detail.set_draft_source(i == 0 ? v1::DRAFT_SOURCE_DRAFTER : v1::DRAFT_SOURCE_LOCAL);
  }
  const uint32_t local = accepted > 1 ? accepted - 1 : 0;
  for (const bool is_local : {false, true}) {
    const uint32_t tokens = is_local ? local : drafted - local;
    if (tokens == 0) continue;
    v1::RoundShare& share = *event.mutable_chunk()->add_shares();
    share.set_source(is_local ? v1::DRAFT_SOURCE_LOCAL : v1::DRAFT_SOURCE_DRAFTER);
    share.set_drafter("code");
    share.set_draft_tokens(tokens);
    share.set_accepted_tokens(is_local ? local : accepted - local);
    share.set_wait_seconds(0.25);
  }
  return event;
}

TEST(RelayTest, ASecondVerifierGoesOnAndStatisticsAddUp) {
  Relay relay = AfterEvents({Started(), Round(0, v1::ROUND_KIND_UNDRAFTED, 0, 0, 0),
                             Round(1, v1::ROUND_KIND_HIT, 3, 5, 2), Round(4, v1::ROUND_KIND_MISS, 2, 4, 0)});
  EXPECT_EQ(relay.tokens().size(), 5u);
  relay.OnAttempt("v1:1");
  v1::GenerateResponse started = Started();
  EXPECT_FALSE(*relay.OnEvent(started));
  v1::GenerateResponse wrong = Round(3, v1::ROUND_KIND_HIT, 1, 1, 0);
  EXPECT_FALSE(Relay(relay).OnEvent(wrong).ok()) << "it has to go on where the first one was lost";
  v1::GenerateResponse chunk = Round(5, v1::ROUND_KIND_HIT, 2, 3, 1);
  EXPECT_TRUE(*relay.OnEvent(chunk));
  EXPECT_EQ(relay.num_tokens(), 7u);

  v1::GenerateResponse finished = Finished();
  v1::SpeculationStats& stats = *finished.mutable_finished()->mutable_speculation();
  stats.set_rounds(1);
  stats.set_drafted_rounds(1);
  stats.set_hits(1);
  stats.set_draft_tokens(3);
  stats.set_accepted_tokens(1);
  stats.add_accepted_per_position(1);
  for (uint32_t rounds : {0, 0, 1}) stats.add_window_histogram(rounds);
  v1::SourceStats& drafter = *stats.add_by_source();
  drafter.set_source(v1::DRAFT_SOURCE_DRAFTER);
  drafter.set_drafter("code");
  drafter.set_drafted_rounds(1);
  drafter.set_draft_tokens(3);
  drafter.set_accepted_tokens(1);
  drafter.add_accepted_per_position(1);
  EXPECT_TRUE(*relay.OnEvent(finished));
  EXPECT_EQ(stats.rounds(), 4u);
  EXPECT_EQ(stats.drafted_rounds(), 3u);
  EXPECT_EQ(stats.hits(), 2u);
  EXPECT_EQ(stats.misses(), 1u);
  EXPECT_EQ(stats.draft_tokens(), 12u);
  EXPECT_EQ(stats.accepted_tokens(), 3u);
  EXPECT_THAT(stats.accepted_per_position(), ElementsAre(2, 1));
  EXPECT_THAT(stats.window_histogram(), ElementsAre(1, 0, 2, 1));
  EXPECT_FLOAT_EQ(stats.mean_acceptance_length(), 2.0f);
  EXPECT_FLOAT_EQ(stats.draft_acceptance_rate(), 0.25f);
  ASSERT_EQ(stats.by_source_size(), 2);
  EXPECT_EQ(stats.merged_rounds(), 1u);
  EXPECT_EQ(stats.by_source(0).drafted_rounds(), 3u);
  EXPECT_EQ(stats.by_source(0).draft_tokens(), 11u);
  EXPECT_EQ(stats.by_source(0).accepted_tokens(), 2u);
  EXPECT_THAT(stats.by_source(0).accepted_per_position(), ElementsAre(2));
  EXPECT_DOUBLE_EQ(stats.by_source(0).wait_seconds(), 0.5);
  EXPECT_EQ(stats.by_source(1).source(), v1::DRAFT_SOURCE_LOCAL);
  EXPECT_EQ(stats.by_source(1).drafter(), "code");
  EXPECT_EQ(stats.by_source(1).draft_tokens(), 1u);
  EXPECT_EQ(stats.by_source(1).accepted_tokens(), 1u);
  EXPECT_THAT(stats.by_source(1).accepted_per_position(), ElementsAre(0, 1));
  EXPECT_FLOAT_EQ(stats.by_source(1).draft_acceptance_rate(), 1.0f);
}

TEST(RelayTest, AResumedStreamGoesOnBehindWhatTheClientHas) {
  Relay relay({.model = "big"}, {7, 8, 9});
  relay.OnAttempt("v0:1");
  v1::GenerateResponse started = Started();
  EXPECT_TRUE(*relay.OnEvent(started)) << "it is a stream of its own";
  v1::GenerateResponse chunk = Chunk(3, 2);
  EXPECT_TRUE(*relay.OnEvent(chunk));
  EXPECT_EQ(relay.num_tokens(), 2u);
  EXPECT_THAT(relay.tokens(), ElementsAre(7, 8, 9, 0, 1));
}

TEST(RelayTest, SecondStartedIsSwallowedAfterARetry) {
  Relay relay = AfterEvents({Started()});
  relay.OnAttempt("v1:1");
  v1::GenerateResponse started = Started();
  const absl::StatusOr<bool> send = relay.OnEvent(started);
  ASSERT_TRUE(send.ok());
  EXPECT_FALSE(*send);
  v1::GenerateResponse chunk = Chunk(0, 1);
  EXPECT_TRUE(*relay.OnEvent(chunk));
}

TEST(RelayTest, MapsStatuses) {
  const auto mapped = [](const absl::Status& status) {
    return AfterEvents({Started()}).OnEnd(status, /*in_time=*/false).status;
  };
  for (const absl::Status& passed : {absl::InvalidArgumentError("a"), absl::FailedPreconditionError("b"),
                                     absl::ResourceExhaustedError("c"), absl::DeadlineExceededError("d")}) {
    EXPECT_EQ(mapped(passed), passed);
  }
  EXPECT_EQ(mapped(absl::CancelledError("draining")).code(), absl::StatusCode::kUnavailable);
  for (const absl::Status& hidden : {absl::UnauthenticatedError("x"), absl::UnimplementedError("x"),
                                     absl::UnknownError("x"), absl::AbortedError("x")}) {
    EXPECT_EQ(mapped(hidden).code(), absl::StatusCode::kInternal);
    EXPECT_THAT(mapped(hidden).message(), HasSubstr("verifier v0:1 failed with"));
  }
}

TEST(RelayTest, AVerifierThatIsTooSmallIsPassedOver) {
  const absl::Status too_small = absl::OutOfRangeError("prompt: too many");
  const Relay::End first = AfterEvents({Started()}).OnEnd(too_small, /*in_time=*/true);
  EXPECT_TRUE(first.retry);
  EXPECT_EQ(first.status, absl::InvalidArgumentError("prompt: too many"));

  Relay relay = AfterEvents({Started(), Chunk(0, 2)});
  relay.OnAttempt("v1:1");
  const Relay::End later = relay.OnEnd(too_small, /*in_time=*/true);
  EXPECT_TRUE(later.retry);
  EXPECT_TRUE(absl::IsUnavailable(later.status)) << "the request had room where it began: " << later.status;
}

TEST(RelayTest, AVerifierThatComputesOtherwiseByNowIsPassedOver) {
  const absl::Status otherwise = absl::AbortedError("arithmetic: 1, but this verifier's is 2");
  Relay relay = AfterEvents({Started(), Chunk(0, 2)});
  relay.OnAttempt("v1:1");
  const Relay::End end = relay.OnEnd(otherwise, /*in_time=*/true);
  EXPECT_TRUE(end.retry);
  EXPECT_TRUE(absl::IsUnavailable(end.status)) << end.status;
  EXPECT_FALSE(AfterEvents({}).OnEnd(otherwise, /*in_time=*/true).retry) << "nothing began yet";
}

TEST(RelayTest, AVerifierThatHasLostTheAdapterIsPassedOver) {
  const absl::Status gone = absl::NotFoundError("adapter: \"x\", but this verifier's model has none");
  const Relay::End first = AfterEvents({}).OnEnd(gone, /*in_time=*/true);
  EXPECT_TRUE(first.retry);
  EXPECT_EQ(first.status, gone) << "what the client is told if nobody has it";

  Relay relay = AfterEvents({Started(), Chunk(0, 2)});
  relay.OnAttempt("v1:1");
  const Relay::End later = relay.OnEnd(gone, /*in_time=*/true);
  EXPECT_TRUE(later.retry);
  EXPECT_TRUE(absl::IsUnavailable(later.status)) << later.status;
}

TEST(RelayTest, ProtocolViolations) {
  struct Case {
    std::vector<v1::GenerateResponse> before;
    v1::GenerateResponse event;
    const char* error;
  };
  const Case cases[] = {
      {{Started()}, Started(), "started twice"},
      {{}, Chunk(0, 1), "a chunk before started"},
      {{}, Finished(), "finished before started"},
      {{Started(), Chunk(0, 2)}, Chunk(1, 1), "a chunk at offset 1, expected 2"},
      {{Started(), Chunk(0, 2)}, Chunk(3, 1), "a chunk at offset 3, expected 2"},
      {{Started(), Finished()}, Chunk(0, 1), "an event after finished"},
      {{Started(), Finished()}, Finished(), "an event after finished"},
  };
  for (const Case& c : cases) {
    Relay relay = AfterEvents(c.before);
    v1::GenerateResponse event = c.event;
    const absl::Status status = relay.OnEvent(event).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << c.error;
    EXPECT_THAT(status.message(), HasSubstr(c.error));
  }
  EXPECT_EQ(AfterEvents({Started(), Chunk(0, 1)}).OnEnd(absl::OkStatus(), /*in_time=*/true).status.code(),
            absl::StatusCode::kInternal);
}

TEST(RelayTest, UnknownEventsAreDropped) {
  Relay relay = AfterEvents({Started()});
  v1::GenerateResponse unknown;
  EXPECT_FALSE(*relay.OnEvent(unknown));
}

v1::GenerateResponse PromptPart(uint32_t offset, int tokens) {
  v1::GenerateResponse event;
  event.mutable_prompt()->set_offset(offset);
  for (int i = 0; i < tokens; ++i) {
    event.mutable_prompt()->add_tokens(offset + static_cast<uint32_t>(i));
    event.mutable_prompt()->add_details();
  }
  return event;
}

TEST(RelayTest, ThePromptIsToldOnceWhoeverTellsIt) {
  Relay relay({.model = "big"}, {}, /*prompt_tokens=*/10);
  const auto send = [&relay](v1::GenerateResponse event) {
    const absl::StatusOr<bool> sent = relay.OnEvent(event);
    EXPECT_TRUE(sent.ok()) << sent.status();
    return sent.ok() && *sent ? event : v1::GenerateResponse();
  };
  relay.OnAttempt("v0:1");
  EXPECT_TRUE(send(Started()).has_started());
  EXPECT_TRUE(send(PromptPart(0, 4)).has_prompt());
  EXPECT_FALSE(relay.prompt_told());
  relay.OnAttempt("v1:1");
  send(Started());
  EXPECT_FALSE(send(PromptPart(0, 3)).has_prompt());
  const v1::GenerateResponse rest = send(PromptPart(3, 7));
  EXPECT_EQ(rest.prompt().offset(), 4u);
  EXPECT_THAT(rest.prompt().tokens(), ElementsAre(4, 5, 6, 7, 8, 9));
  EXPECT_EQ(rest.prompt().details_size(), 6);
  EXPECT_TRUE(relay.prompt_told());
  EXPECT_TRUE(send(Chunk(0, 2)).has_chunk());
  // The next one has emitted tokens and is not asked again.
  relay.OnAttempt("v2:1");
  send(Started());
  EXPECT_TRUE(send(Chunk(2, 1)).has_chunk());
}

TEST(RelayTest, PartsOfThePromptOutOfTurnBreakTheProtocol) {
  const auto refused = [](uint32_t prompt_tokens, std::vector<v1::GenerateResponse> events) {
    Relay relay({.model = "big"}, {}, prompt_tokens);
    relay.OnAttempt("v0:1");
    absl::Status status;
    for (v1::GenerateResponse& event : events) status.Update(relay.OnEvent(event).status());
    return status;
  };
  EXPECT_TRUE(refused(4, {Started(), PromptPart(0, 4), Chunk(0, 1)}).ok());
  for (const absl::Status& status :
       {refused(0, {Started(), PromptPart(0, 1)}), refused(4, {PromptPart(0, 4)}),
        refused(4, {Started(), PromptPart(1, 3)}), refused(4, {Started(), PromptPart(0, 5)}),
        refused(4, {Started(), PromptPart(0, 2), PromptPart(0, 2)}),
        refused(4, {Started(), PromptPart(0, 2), Chunk(0, 1)}), refused(4, {Started(), Finished()}),
        refused(4000, {Started(), PromptPart(0, 1025)})}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace tandem::router

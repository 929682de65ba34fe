#include "router/relay.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

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
  const Relay::End end = relay.OnEnd(absl::OkStatus());
  EXPECT_FALSE(end.retry);
  EXPECT_TRUE(end.status.ok());
}

TEST(RelayTest, WhatHappensAfterFinishedDoesNotMatter) {
  const Relay relay = AfterEvents({Started(), Chunk(0, 1), Finished()});
  EXPECT_TRUE(relay.OnEnd(absl::UnavailableError("connection reset")).status.ok());
}

TEST(RelayTest, RetriesUnavailableBeforeTheFirstTokenOnly) {
  EXPECT_TRUE(AfterEvents({}).OnEnd(absl::UnavailableError("refused")).retry);
  EXPECT_TRUE(AfterEvents({Started()}).OnEnd(absl::UnavailableError("reset")).retry);
  const Relay::End end = AfterEvents({Started(), Chunk(0, 2)}).OnEnd(absl::UnavailableError("reset"));
  EXPECT_FALSE(end.retry);
  EXPECT_EQ(end.status, absl::UnavailableError("verifier v0:1 was lost after 2 tokens: reset"));
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
    return AfterEvents({Started()}).OnEnd(status).status;
  };
  for (const absl::Status& passed :
       {absl::InvalidArgumentError("a"), absl::FailedPreconditionError("b"),
        absl::ResourceExhaustedError("c"), absl::DeadlineExceededError("d"), absl::OutOfRangeError("e")}) {
    EXPECT_EQ(mapped(passed), passed);
  }
  EXPECT_EQ(mapped(absl::CancelledError("draining")).code(), absl::StatusCode::kUnavailable);
  for (const absl::Status& hidden : {absl::UnauthenticatedError("x"), absl::UnimplementedError("x"),
                                     absl::UnknownError("x"), absl::NotFoundError("x")}) {
    EXPECT_EQ(mapped(hidden).code(), absl::StatusCode::kInternal);
    EXPECT_THAT(mapped(hidden).message(), HasSubstr("verifier v0:1 failed with"));
  }
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
  EXPECT_EQ(AfterEvents({Started(), Chunk(0, 1)}).OnEnd(absl::OkStatus()).status.code(),
            absl::StatusCode::kInternal);
}

TEST(RelayTest, UnknownEventsAreDropped) {
  Relay relay = AfterEvents({Started()});
  v1::GenerateResponse unknown;
  EXPECT_FALSE(*relay.OnEvent(unknown));
}

}  // namespace
}  // namespace tandem::router

// Clients that do not read what they asked for.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "gtest/gtest.h"
#include "router/serving/service.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using testing::ClientCall;
using testing::FinishedEvent;
using testing::LettersConfig;
using testing::Parse;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

// In all more than a client's library takes for one that does not read; few enough events for the router to
// have all.
constexpr size_t kMuchText = 3'000'000;
constexpr uint32_t kChunks = 5;

v1::GenerateRequest LongAnswerRequest() {
  return Parse(R"pb(text: "hello"
                    stopping { max_tokens: 5 })pb");
}

// Answers with few tokens whose text is long.
void AnswerAtLength(StubVerifier::Call& call) {
  call.Send(StartedEvent(call.request()));
  for (uint32_t i = 0; i < kChunks; ++i) {
    v1::GenerateResponse chunk = ChunkEvent(i, "x");
    chunk.mutable_chunk()->set_text(std::string(kMuchText, 'x'));
    call.Send(std::move(chunk));
  }
  call.Send(FinishedEvent(call.request(), kChunks));
  call.Finish(absl::OkStatus());
}

TEST(SlowReaderTest, APlaceIsFreeWhenTheVerifierIsDone) {
  StubVerifier verifier;
  verifier.SetScript(AnswerAtLength);
  TestRouter router(LettersConfig({verifier.endpoint()}));
  // Two calls of "acme" take both of its places, and do not read.
  ClientCall first(router, LongAnswerRequest(), "secret-a");
  ClientCall second(router, LongAnswerRequest(), "secret-a");
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (router.router().admission().in_flight() > 0 || verifier.num_calls() < 2) {
    ASSERT_LT(absl::Now(), end) << "places are held for clients that do not read";
    absl::SleepFor(absl::Milliseconds(1));
  }
  ClientCall third(router, LongAnswerRequest(), "secret-a");
  EXPECT_TRUE(third.Finish().ok());
  // Those who read late get everything.
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_EQ(first.text().size(), kChunks * kMuchText);
  EXPECT_TRUE(second.Finish().ok());
}

TEST(SlowReaderTest, AWriteThatStallsEndsTheCall) {
  StubVerifier verifier;
  verifier.SetScript(AnswerAtLength);
  TestRouter router(LettersConfig({verifier.endpoint()}), nullptr, nullptr, {}, Tracer::Off(), nullptr,
                    /*write_stall_timeout=*/absl::Milliseconds(100));
  ClientCall client(router, LongAnswerRequest(), "secret-a");
  const std::string series =
      R"(tandem_router_requests_total{code="RESOURCE_EXHAUSTED",model="letters",tenant="acme"})";
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (router.MetricValue(series) < 1) {
    ASSERT_LT(absl::Now(), end);
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(SlowReaderTest, AClientThatReadsSlowlyButReadsIsServed) {
  StubVerifier verifier;
  verifier.SetScript(AnswerAtLength);
  TestRouter router(LettersConfig({verifier.endpoint()}), nullptr, nullptr, {}, Tracer::Off(), nullptr,
                    /*write_stall_timeout=*/absl::Seconds(2));
  ClientCall client(router, LongAnswerRequest(), "secret-a");
  // In all longer than a write may take.
  for (uint32_t i = 0; i < kChunks; ++i) {
    absl::SleepFor(absl::Milliseconds(600));
    client.Read();
  }
  EXPECT_TRUE(client.Finish().ok());
}

}  // namespace
}  // namespace tandem::router

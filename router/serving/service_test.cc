#include "router/serving/service.h"

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "router/testing/client_call.h"
#include "router/testing/letter_encoder.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using testing::ClientCall;
using ::testing::ElementsAre;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Parse;
using testing::Saying;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

// Nothing can listen here: connecting fails at once.
constexpr char kNobody[] = "unix:/nonexistent/tandem-verifier";

v1::GenerateRequest Hello() {
  return Parse(R"pb(text: "hello")pb");
}

TEST(ServiceTest, SaysWhichDraftersAreTrusted) {
  for (const bool trusted : {false, true}) {
    StubVerifier verifier;
    v1::RouterConfig config = LettersConfig({verifier.endpoint()});
    config.mutable_drafters(0)->set_trusted(trusted);
    TestRouter router(config);
    ClientCall client(router, Hello(), "secret-a");
    const auto call = verifier.NextCall();
    ASSERT_NE(call, nullptr);
    EXPECT_EQ(call->request().drafter().name(), "code");
    EXPECT_EQ(call->request().drafter().trusted(), trusted);
    client.Cancel();
    client.Finish();
  }
}

TEST(ServiceTest, RelaysAGeneration) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall client(router, Parse(R"pb(
                      request_id: "req-1"
                      text: "abc"
                      sampling { temperature: 0 seed: 77 }
                      stopping { max_tokens: 9 }
                    )pb"),
                    "secret-a");
  const auto call = verifier.NextCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->request().request_id(), "req-1");
  EXPECT_EQ(call->Metadata("tandem-request-id"), "req-1");
  EXPECT_EQ(call->Metadata("authorization"), "") << "tokens stay with the router";
  EXPECT_EQ(call->request().model(), "letters");
  EXPECT_THAT(call->request().prompt().ids(), ElementsAre(1, 'a', 'b', 'c'));
  EXPECT_EQ(call->request().sampling().seed(), 77u);
  EXPECT_EQ(call->request().stopping().max_tokens(), 9u);
  EXPECT_EQ(call->request().tenant(), "acme");
  EXPECT_NE(call->request().cache_salt(), 0u);
  EXPECT_EQ(call->request().drafter().name(), "code");
  EXPECT_EQ(call->request().drafter().endpoint(), "drafter:7003");
  EXPECT_EQ(call->request().drafter().draft_model(), "draft-code");

  call->Send(StartedEvent(call->request()));
  const v1::GenerateResponse started = client.Read();
  EXPECT_EQ(started.started().request_id(), "req-1");
  EXPECT_EQ(started.started().model(), "letters");
  EXPECT_EQ(started.started().drafter(), "code");
  EXPECT_EQ(started.started().seed(), 77u);
  EXPECT_EQ(started.started().prompt_tokens(), 4u);

  call->Send(ChunkEvent(0, "xy", v1::TOKEN_SOURCE_ACCEPTED));
  const v1::GenerateResponse chunk = client.Read();
  EXPECT_EQ(chunk.SerializeAsString(), ChunkEvent(0, "xy", v1::TOKEN_SOURCE_ACCEPTED).SerializeAsString());

  call->Send(FinishedEvent(call->request(), 2));
  call->Finish(absl::OkStatus());
  EXPECT_EQ(client.Read().finished().usage().completion_tokens(), 2u);
  EXPECT_TRUE(client.Finish().ok());

  EXPECT_EQ(router.MetricValue(R"(tandem_router_requests_total{code="OK",model="letters",tenant="acme"})"),
            1);
  EXPECT_EQ(router.MetricValue(R"(tandem_router_output_tokens_total{model="letters",tenant="acme"})"), 2);
  EXPECT_EQ(router.MetricValue(R"(tandem_router_prompt_tokens_total{model="letters",tenant="acme"})"), 4);
  EXPECT_EQ(router.MetricValue(
                R"(tandem_router_drafter_selected_total{drafter="code",reason="tenant",tenant="acme"})"),
            1);
  EXPECT_EQ(router.MetricSum("tandem_router_time_to_first_token_seconds_count"), 1);
  EXPECT_EQ(router.MetricSum("tandem_router_request_seconds_count"), 1);
}

TEST(ServiceTest, DrawsSeedAndRequestId) {
  StubVerifier verifier;
  verifier.SetScript(Saying("x", 1));
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall first(router, Hello());
  ClientCall second(router, Hello());
  const v1::GenerationStarted a = first.Read().started();
  const v1::GenerationStarted b = second.Read().started();
  EXPECT_NE(a.seed(), b.seed());
  EXPECT_EQ(a.request_id().size(), 32u);
  EXPECT_NE(a.request_id(), b.request_id());
}

TEST(ServiceTest, PlainDecodingWithoutADrafter) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall tenant_without(router, Hello(), "secret-z");
  EXPECT_FALSE(verifier.NextCall()->request().has_drafter());
  ClientCall off(router, Parse(R"pb(text: "a"
                                    speculation { mode: SPECULATION_MODE_OFF })pb"),
                 "secret-a");
  EXPECT_FALSE(verifier.NextCall()->request().has_drafter());
}

struct RefusedCase {
  const char* request;
  const char* token;
  grpc::StatusCode code;
  const char* message;
};

TEST(ServiceTest, BadInputIsRefusedBeforeAVerifierIsAsked) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  const char* kUnauthenticated = "expected a tenant's token as `authorization: Bearer <token>` metadata";
  const RefusedCase cases[] = {
      {R"(text: "a")", "", grpc::StatusCode::UNAUTHENTICATED, kUnauthenticated},
      {R"(text: "a")", "wrong", grpc::StatusCode::UNAUTHENTICATED, kUnauthenticated},
      {R"()", "secret-z", grpc::StatusCode::INVALID_ARGUMENT, "prompt: missing"},
      {R"(text: "a" model: "huge")", "secret-z", grpc::StatusCode::NOT_FOUND, "model: \"huge\""},
      {R"(token_ids { ids: 256 })", "secret-z", grpc::StatusCode::INVALID_ARGUMENT, "token_ids.ids[0]: 256"},
      {R"(text: "0123456789012345678901234567890")", "secret-z", grpc::StatusCode::INVALID_ARGUMENT,
       "text: more than 31 tokens"},
      {R"(text: "a" sampling { temperature: -1 })", "secret-z", grpc::StatusCode::INVALID_ARGUMENT,
       "sampling.temperature"},
      {R"(text: "a" speculation { drafter: "code" })", "secret-z", grpc::StatusCode::INVALID_ARGUMENT,
       "speculation.drafter: \"code\""},
  };
  for (const RefusedCase& c : cases) {
    ClientCall client(router, Parse(c.request), c.token);
    const grpc::Status status = client.Finish();
    EXPECT_EQ(status.error_code(), c.code) << c.request << ": " << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(c.message));
  }
  EXPECT_EQ(verifier.num_calls(), 0);
  EXPECT_EQ(router.MetricSum("tandem_router_requests_total"), std::size(cases));
  EXPECT_EQ(router.router().admission().in_flight(), 0u);
}

// Whether it drafts by itself is the verifier's to say.
TEST(ServiceTest, ToInsistOnSpeculationWithoutADrafterIsLeftToTheVerifier) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall client(router, Parse(R"(text: "a" speculation { mode: SPECULATION_MODE_ON })"), "secret-z");
  const auto call = verifier.NextCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->request().speculation().mode(), v1::SPECULATION_MODE_ON);
  EXPECT_FALSE(call->request().has_drafter());
  call->Finish(absl::FailedPreconditionError("nobody drafts"));
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_message(), "nobody drafts");
}

TEST(ServiceTest, AnonymousCallsWhenAllowed) {
  StubVerifier verifier;
  verifier.SetScript(Saying("hi", 2));
  v1::RouterConfig config = LettersConfig({verifier.endpoint()});
  config.set_allow_anonymous(true);
  TestRouter router(config);
  ClientCall nobody(router, Hello(), "");
  EXPECT_TRUE(nobody.Finish().ok());
  ClientCall wrong(router, Hello(), "wrong");
  EXPECT_EQ(wrong.Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST(ServiceTest, AdmissionRefusesWithRetryInfo) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall first(router, Hello(), "secret-a");
  ClientCall second(router, Hello(), "secret-a");
  const auto first_call = verifier.NextCall();
  const auto second_call = verifier.NextCall();
  ASSERT_TRUE(first_call != nullptr && second_call != nullptr);

  ClientCall third(router, Hello(), "secret-a");
  const absl::Status refused = FromGrpcStatus(third.Finish());
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfter(refused), absl::Seconds(1));

  first_call->Finish(absl::InvalidArgumentError("no"));
  second_call->Finish(absl::InvalidArgumentError("no"));
  EXPECT_EQ(first.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  verifier.SetScript(Saying("x", 1));
  ClientCall fourth(router, Hello(), "secret-a");
  EXPECT_TRUE(fourth.Finish().ok()) << "the place was given back with the status";
}

TEST(ServiceTest, HangingVerifierEndsAtTheDeadline) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  // Long enough for the call to reach the verifier, whatever else the machine does.
  constexpr absl::Duration kLimit = absl::Seconds(3);
  const absl::Time begin = absl::Now();
  ClientCall client(router, Hello(), "secret-z", kLimit);
  const auto call = verifier.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(StartedEvent(call->request()));
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GE(absl::Now() - begin, kLimit - absl::Milliseconds(10));
  EXPECT_TRUE(call->WaitForCancel()) << "the verifier was told";
  router.router().admission().Drain(absl::InfiniteFuture());
  EXPECT_EQ(router.MetricValue(
                R"(tandem_router_requests_total{code="DEADLINE_EXCEEDED",model="letters",tenant="zeta"})"),
            1);
}

// As a client of another make sends it: protobuf would not write such text.
grpc::Status SendBytes(const TestRouter& router, const std::string& message, const std::string& token) {
  const std::shared_ptr<grpc::Channel> channel = CreateChannel(router.endpoint());
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + token);
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto call = stub.PrepareCall(&context, "/tandem.v1.Generation/Generate", &queue);
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice slice(message);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  queue.Next(&tag, &ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  return status;
}

TEST(ServiceTest, TextThatIsNotUtf8IsNamed) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  const std::pair<std::string, std::string> cases[] = {
      {"\x0a\x02\xff\xfe", "request_id: not UTF-8"},
      {"\x12\x01\xff", "model: not UTF-8"},
      {"\x1a\x02\xc3\x28", "text: not UTF-8"},
      {"\x2a\x09\x0a\x07\x0a\x01u\x12\x02\xff\xfe", "chat.messages[0].content: not UTF-8"},
      {"\xff\xff", "the message is not a tandem.v1.GenerateRequest"},
  };
  for (const auto& [message, error] : cases) {
    const grpc::Status status = SendBytes(router, message, "secret-z");
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << error;
    EXPECT_EQ(status.error_message(), error);
    EXPECT_EQ(SendBytes(router, message, "wrong").error_code(), grpc::StatusCode::UNAUTHENTICATED) << error;
  }
  EXPECT_EQ(SendBytes(router, Hello().SerializeAsString() + "\x12\x04huge", "secret-z").error_code(),
            grpc::StatusCode::NOT_FOUND)
      << "what can be read is taken as ever";
}

TEST(ServiceTest, CallsThatEndBeforeTheirMessageAreCancelled) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  grpc::GenericStub stub(CreateChannel(router.endpoint()));
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret-z");
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  const auto call = stub.PrepareCall(&context, "/tandem.v1.Generation/Generate", &queue);
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  call->WritesDone(nullptr);
  queue.Next(&tag, &ok);
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  queue.Shutdown();
  while (queue.Next(&tag, &ok)) {
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED) << status.error_message();
  EXPECT_EQ(status.error_message(), "the call ended before its message arrived");
  EXPECT_EQ(router.MetricValue(R"(tandem_router_requests_total{code="CANCELLED",model="",tenant="zeta"})"),
            1);
}

TEST(ServiceTest, WhatIsRefusedIsPaidFor) {
  StubVerifier verifier;
  verifier.SetScript(Saying("x", 1));
  v1::RouterConfig config = LettersConfig({verifier.endpoint()});
  config.mutable_tenants(1)->set_tokens_per_minute(60);
  TestRouter router(config);
  const std::string oversize = "text: \"" + std::string(5000, 'a') + "\"";
  const auto code_of = [&router](const std::string& request, const char* token) {
    ClientCall call(router, Parse(request), token);
    return call.Finish().error_code();
  };
  // 32 each, as many as the context has; what is left then is not enough for anything.
  EXPECT_EQ(code_of(oversize, "secret-z"), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(oversize, "secret-z"), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code_of(oversize, "secret-z"), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(code_of(R"(text: "a" stopping { max_tokens: 1 })", "secret-z"),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  ClientCall other(router, Hello(), "secret-a");
  EXPECT_TRUE(other.Read().has_started()) << "others are not held back";
}

// An encoder that blocks until the test lets it go on.
class BlockingEncoder final : public PromptEncoder {
 public:
  absl::StatusOr<TokenIds> EncodeText(absl::string_view, size_t, bool) const override {
    entered.Notify();
    proceed.WaitForNotification();
    return TokenIds{1, 2};
  }
  absl::StatusOr<TokenIds> EncodeChat(const v1::ChatPrompt&, size_t) const override { return TokenIds{1}; }
  absl::string_view TokenBytes(TokenId) const override { return ""; }
  bool IsSpecial(TokenId) const override { return false; }
  std::string DeliveredText(absl::Span<const TokenId>, absl::Span<const std::string>, bool) const override {
    return "";
  }
  std::string Decode(absl::Span<const TokenId>, bool) const override { return ""; }

  mutable absl::Notification entered;
  absl::Notification proceed;
};

TEST(ServiceTest, DeadlineHoldsWhileTokenizing) {
  StubVerifier verifier;
  auto encoder = std::make_shared<BlockingEncoder>();
  TestRouter router(LettersConfig({verifier.endpoint()}), encoder);
  ClientCall client(router, Hello(), "secret-z", absl::Seconds(3));
  encoder->entered.WaitForNotification();
  // The status arrives although the worker has not come back.
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  router.router().admission().Drain(absl::InfiniteFuture());
  EXPECT_EQ(router.MetricSum("tandem_router_requests_total"), 1);
  encoder->proceed.Notify();
  EXPECT_EQ(verifier.num_calls(), 0);
}

TEST(ServiceTest, CancelReachesTheVerifier) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall client(router, Hello());
  const auto call = verifier.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(StartedEvent(call->request()));
  call->Send(ChunkEvent(0, "a"));
  EXPECT_TRUE(client.Read().has_started());
  EXPECT_TRUE(client.Read().has_chunk());
  client.Cancel();
  EXPECT_TRUE(call->WaitForCancel());
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
  router.router().admission().Drain(absl::InfiniteFuture());
  EXPECT_EQ(
      router.MetricValue(R"(tandem_router_requests_total{code="CANCELLED",model="letters",tenant="zeta"})"),
      1);
}

// The router promises to read no further ahead of the client than its queue and the transports' windows.
TEST(ServiceTest, SlowClientHoldsBackItsVerifier) {
  constexpr int kChunks = 1000;
  constexpr size_t kChunkBytes = 64 << 10;
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall client(router, Hello());
  const auto call = verifier.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(StartedEvent(call->request()));
  for (int i = 0; i < kChunks; ++i) {
    v1::GenerateResponse event;
    event.mutable_chunk()->set_offset(i);
    event.mutable_chunk()->add_tokens(7);
    event.mutable_chunk()->set_text(std::string(kChunkBytes, 'x'));
    call->Send(std::move(event));
  }
  EXPECT_TRUE(client.Read().has_started());
  // The client reads no more. By the time another call has run into its deadline, a router that reads on
  // would have all 64 MiB.
  ClientCall other(router, Hello(), "secret-z", absl::Seconds(3));
  EXPECT_EQ(other.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_GT(router.MetricSum("tandem_router_output_tokens_total"), 0);
  EXPECT_LT(router.MetricSum("tandem_router_output_tokens_total"), kChunks / 4);
  client.Cancel();
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(ServiceTest, FailsOverBeforeTheFirstToken) {
  StubVerifier verifier;
  verifier.SetScript(Saying("hello", 2));
  TestRouter router(LettersConfig({kNobody, verifier.endpoint()}));
  // Whichever verifier the prompt's hash prefers, every request is served.
  for (const char* text : {"a", "b", "c", "d", "e", "f"}) {
    v1::GenerateRequest request;
    request.set_text(text);
    ClientCall client(router, request);
    const grpc::Status status = client.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(client.text(), "hello");
  }
}

TEST(ServiceTest, FailsOverWhenAVerifierIsLostAfterStarted) {
  StubVerifier first;
  StubVerifier second;
  const auto lost = [](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    call.Finish(absl::UnavailableError("draining"));
  };
  std::atomic<int> attempts{0};
  const auto lost_once = [&](StubVerifier::Call& call) {
    attempts++ == 0 ? lost(call) : Saying("hello", 3)(call);
  };
  first.SetScript(lost_once);
  second.SetScript(lost_once);
  TestRouter router(LettersConfig({first.endpoint(), second.endpoint()}));
  ClientCall client(router, Hello());
  EXPECT_TRUE(client.Read().has_started());
  EXPECT_TRUE(client.Read().has_chunk()) << "started comes once";
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(attempts, 2);
  EXPECT_EQ(first.num_calls(), 1);
  EXPECT_EQ(second.num_calls(), 1);
}

TEST(ServiceTest, UnavailableWhenNoVerifierAnswers) {
  TestRouter router(LettersConfig({kNobody, "unix:/nonexistent/other"}));
  ClientCall client(router, Hello());
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("no verifier of model \"letters\" can be reached; tried 2"));
}

TEST(ServiceTest, WithoutAnotherVerifierALostOneIsUnavailable) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall client(router, Hello());
  const auto call = verifier.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(StartedEvent(call->request()));
  call->Send(ChunkEvent(0, "abc"));
  EXPECT_TRUE(client.Read().has_started());
  EXPECT_EQ(client.Read().chunk().text(), "abc");
  verifier.Disconnect();
  // Not before it has been tried again some times.
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("after 3 tokens"));
  EXPECT_THAT(status.error_message(), HasSubstr("tried 8"));
}

TEST(ServiceTest, TokensBeforeAFailureAreDelivered) {
  StubVerifier verifier;
  verifier.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    for (uint32_t i = 0; i < 20; ++i) call.Send(ChunkEvent(i, "x"));
    call.Finish(absl::InternalError("kernel panic"));
  });
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall client(router, Hello());
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(client.text(), std::string(20, 'x'));
}

TEST(ServiceTest, BrokenProtocolIsInternalAndCancelled) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall client(router, Hello());
  const auto call = verifier.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(StartedEvent(call->request()));
  call->Send(ChunkEvent(5, "x"));
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(status.error_message(), HasSubstr("a chunk at offset 5, expected 0"));
  EXPECT_TRUE(call->WaitForCancel());
}

// Many calls at once, ended in every way; afterwards the books balance: one status each, nothing left behind.
TEST(ServiceTest, EveryCallEndsExactlyOnce) {
  constexpr int kThreads = 4;
  constexpr int kCallsPerThread = 40;
  StubVerifier verifier;
  std::atomic<uint32_t> calls{0};
  verifier.SetScript([&](StubVerifier::Call& call) {
    const uint32_t kind = calls++ % 5;
    if (kind == 0) return Saying("hello world", 3)(call);
    if (kind == 1) return call.Finish(absl::UnavailableError("busy"));
    call.Send(StartedEvent(call.request()));
    if (kind == 2) return;  // Hangs.
    call.Send(ChunkEvent(0, "abc"));
    if (kind == 3) call.Finish(absl::UnavailableError("gone"));
  });
  v1::RouterConfig config = LettersConfig({verifier.endpoint(), kNobody});
  TestRouter router(config);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&router, t] {
      std::mt19937 random(t);
      for (int i = 0; i < kCallsPerThread; ++i) {
        ClientCall client(router, Hello(), "secret-z", absl::Milliseconds(20 + random() % 60));
        if (random() % 3 == 0) {
          client.Read();
          client.Cancel();
        }
        client.Finish();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  router.router().admission().Drain(absl::InfiniteFuture());
  EXPECT_EQ(router.router().admission().in_flight(), 0u);
  EXPECT_EQ(router.router().metrics().running(), 0u);
  EXPECT_EQ(router.router().metrics().waiting(), 0u);
  // A call whose deadline passed before the router saw it leaves no trace.
  EXPECT_LE(router.MetricSum("tandem_router_requests_total"), kThreads * kCallsPerThread);
  // One that it sees only now is being refused and counted, in one metric after the other.
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (router.MetricSum("tandem_router_requests_total") !=
         router.MetricSum("tandem_router_request_seconds_count")) {
    ASSERT_LT(absl::Now(), deadline);
    absl::SleepFor(absl::Milliseconds(10));
  }
}

TEST(ServiceTest, ServerInfoNeedsATokenAndShowsATenantItsOwnDrafters) {
  v1::RouterConfig config = LettersConfig({kNobody});
  config.mutable_tenants(0)->set_admin(true);
  TestRouter router(config);
  const auto stub = v1::Admin::NewStub(CreateChannel(router.endpoint()));
  const auto info_with = [&](const std::string& token, v1::ServerInfo* info) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    return stub->GetServerInfo(&context, v1::GetServerInfoRequest(), info);
  };
  v1::ServerInfo info;
  EXPECT_EQ(info_with("", &info).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(info_with("wrong", &info).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  ASSERT_TRUE(info_with("secret-z", &info).ok());
  EXPECT_EQ(info.role(), v1::SERVER_ROLE_ROUTER);
  EXPECT_FALSE(info.version().empty());
  ASSERT_EQ(info.models_size(), 1);
  EXPECT_EQ(info.models(0).name(), "letters");
  EXPECT_EQ(info.models(0).context_length(), 32u);
  EXPECT_EQ(info.models(0).vocabulary_size(), 256u);
  ASSERT_EQ(info.drafters_size(), 1);
  EXPECT_EQ(info.drafters(0).name(), "math");
  EXPECT_EQ(info.drafters(0).endpoint(), "");
  ASSERT_TRUE(info_with("secret-a", &info).ok());
  ASSERT_EQ(info.drafters_size(), 2) << "an admin's token shows all";
  EXPECT_EQ(info.drafters(0).endpoint(), "drafter:7003");
}

TEST(ServiceTest, DrainingRefusesNewCalls) {
  StubVerifier verifier;
  verifier.SetScript(Saying("x", 1));
  TestRouter router(LettersConfig({verifier.endpoint()}));
  router.router().admission().Drain(absl::InfiniteFuture());
  ClientCall client(router, Hello());
  const grpc::Status status = client.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("shutting down"));
}

}  // namespace
}  // namespace tandem::router

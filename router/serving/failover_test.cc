// One stream for the client, whatever becomes of the verifiers behind it.
#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using testing::ClientCall;
using ::testing::ElementsAre;
using testing::FinishedEvent;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Parse;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

constexpr char kOutput[] = "the quick brown fox";

v1::GenerateRequest Request() {
  return Parse(R"pb(text: "hello"
                    sampling { seed: 5 })pb");
}

// Says the output from where the request has it, `count` tokens at most, one a chunk. True if that was the
// end.
bool Say(StubVerifier::Call& call, uint32_t count) {
  const std::string output = kOutput;
  auto offset = static_cast<uint32_t>(call.request().emitted().ids_size());
  for (uint32_t i = 0; i < offset; ++i) {
    EXPECT_EQ(call.request().emitted().ids(static_cast<int>(i)), static_cast<unsigned char>(output[i]));
  }
  call.Send(StartedEvent(call.request()));
  for (; offset < output.size() && count > 0; --count, ++offset) {
    call.Send(ChunkEvent(offset, absl::string_view(output).substr(offset, 1)));
  }
  if (offset < output.size()) return false;
  call.Send(FinishedEvent(call.request(), offset));
  call.Finish(absl::OkStatus());
  return true;
}

TEST(FailoverTest, AnotherVerifierGoesOnWhereOneWasLost) {
  StubVerifier verifiers[3];
  std::atomic<int> calls{0};
  std::atomic<uint64_t> seeds{0};
  for (StubVerifier& verifier : verifiers) {
    verifier.SetScript([&](StubVerifier::Call& call) {
      seeds += call.request().sampling().seed();
      ++calls;
      if (!Say(call, 6)) call.Finish(absl::UnavailableError("killed"));
    });
  }
  TestRouter router(
      LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint(), verifiers[2].endpoint()}));
  ClientCall client(router, Request());
  EXPECT_TRUE(client.Read().has_started());
  const grpc::Status status = client.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(client.text(), kOutput);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(seeds, 20u) << "the same seed everywhere";
  for (StubVerifier& verifier : verifiers) EXPECT_GE(verifier.num_calls(), 1);
  EXPECT_EQ(router.MetricValue(R"(tandem_router_retries_total{kind="mid-stream",model="letters"})"), 3);
  EXPECT_EQ(router.MetricSum("tandem_router_output_tokens_total"), std::string(kOutput).size());
}

TEST(FailoverTest, TheTokenLimitIsTheFirstVerifiers) {
  StubVerifier verifiers[2];
  std::atomic<int> calls{0};
  std::atomic<uint32_t> limit{0};
  for (StubVerifier& verifier : verifiers) {
    verifier.SetScript([&](StubVerifier::Call& call) {
      if (calls++ > 0) {
        limit = call.request().stopping().max_tokens();
        Say(call, 100);
        return;
      }
      v1::GenerateResponse started = StartedEvent(call.request());
      started.mutable_started()->set_max_tokens(23);
      call.Send(started);
      call.Finish(absl::UnavailableError("killed"));
    });
  }
  TestRouter router(LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint()}));
  ClientCall client(router, Request());
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(limit, 23u);
}

TEST(FailoverTest, AVerifierThatIsFullIsPassedOver) {
  StubVerifier verifiers[2];
  std::atomic<int> calls{0};
  for (StubVerifier& verifier : verifiers) {
    verifier.SetScript([&](StubVerifier::Call& call) {
      calls++ == 0 ? call.Finish(absl::ResourceExhaustedError("full")) : (void)Say(call, 100);
    });
  }
  TestRouter router(LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint()}));
  ClientCall client(router, Request());
  EXPECT_TRUE(client.Finish().ok());
  for (StubVerifier& verifier : verifiers) {
    verifier.SetScript([](StubVerifier::Call& call) { call.Finish(absl::ResourceExhaustedError("full")); });
  }
  ClientCall refused(router, Request());
  const grpc::Status status = refused.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "full");
}

// A verifier gives up a stream whose client reads too slowly, which it would at another verifier as well.
TEST(FailoverTest, AClientThatReadsTooSlowlyIsNotServedAgain) {
  StubVerifier verifiers[2];
  for (StubVerifier& verifier : verifiers) {
    verifier.SetScript([](StubVerifier::Call& call) {
      call.Send(StartedEvent(call.request()));
      call.Send(ChunkEvent(0, "a"));
      call.Finish(absl::ResourceExhaustedError("the client reads too slowly: its outbound queue is full"));
    });
  }
  TestRouter router(LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint()}));
  ClientCall client(router, Request());
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(client.text(), "a");
  EXPECT_EQ(verifiers[0].num_calls() + verifiers[1].num_calls(), 1);
}

// What a verifier of the model "letters" says of itself, and `max_running` to tell when a router knows.
v1::ServerInfo Info(uint64_t kv_tokens, const std::string& arithmetic) {
  v1::ServerInfo info;
  info.set_arithmetic(arithmetic);
  info.mutable_capacity()->set_max_running(7);
  info.mutable_capacity()->set_kv_tokens(kv_tokens);
  info.add_models()->set_name("letters");
  info.mutable_models(0)->set_context_length(1000);
  return info;
}

// Whether it has come to know all verifiers' info, after a while.
bool Knows(TestRouter& router) {
  const absl::Time end = absl::Now() + absl::Seconds(20);
  const auto known = [&] {
    const std::vector<VerifierPool::Status> list = router.router().verifiers().List(0);
    return std::all_of(list.begin(), list.end(),
                       [](const auto& verifier) { return verifier.max_in_flight == 7; });
  };
  while (!known()) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(FailoverTest, AVerifierThatIsTooSmallIsPassedOver) {
  StubVerifier verifiers[2];
  std::atomic<int> calls{0};
  for (StubVerifier& verifier : verifiers) {
    verifier.SetScript([&](StubVerifier::Call& call) {
      calls++ == 0 ? call.Finish(absl::OutOfRangeError("too small")) : (void)Say(call, 100);
    });
  }
  TestRouter router(LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint()}));
  ClientCall client(router, Request());
  const grpc::Status status = client.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(calls, 2);
}

TEST(FailoverTest, OnesKnownToBeTooSmallAreNotAsked) {
  StubVerifier small;
  StubVerifier large;
  small.SetInfo(Info(20, "same"));
  large.SetInfo(Info(400, "same"));
  small.SetScript([](StubVerifier::Call& call) { Say(call, 100); });
  large.SetScript([](StubVerifier::Call& call) { Say(call, 100); });
  TestRouter router(LettersConfig({small.endpoint(), large.endpoint()}));
  ASSERT_TRUE(Knows(router));
  v1::GenerateRequest request = Request();
  request.mutable_stopping()->set_max_tokens(100);
  for (int i = 0; i < 8; ++i) {
    request.set_text(absl::StrCat(i, " hello"));
    ClientCall client(router, request);
    const grpc::Status status = client.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  EXPECT_EQ(small.num_calls(), 0);
  EXPECT_EQ(large.num_calls(), 8);
  request.mutable_stopping()->set_max_tokens(600);
  ClientCall refused(router, request);
  const grpc::Status status = refused.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("expected at most 400"));
}

// The text would change without a word.
TEST(FailoverTest, OneThatComputesDifferentlyDoesNotGoOn) {
  StubVerifier verifiers[3];
  absl::Mutex mutex;
  std::vector<std::string> called;  // Guarded by the mutex.
  for (size_t i = 0; i < 3; ++i) {
    verifiers[i].SetScript([&, endpoint = verifiers[i].endpoint()](StubVerifier::Call& call) {
      bool first = false;
      {
        const absl::MutexLock lock(&mutex);
        first = called.empty();
        called.push_back(endpoint);
      }
      if (!Say(call, first ? 6 : 100)) call.Finish(absl::UnavailableError("killed"));
    });
  }
  // Two of three are alike, and which of them begins is decided by the prompt.
  verifiers[0].SetInfo(Info(400, "bf16"));
  verifiers[1].SetInfo(Info(300, "bf16"));
  verifiers[2].SetInfo(Info(400, "int8"));
  TestRouter router(
      LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint(), verifiers[2].endpoint()}));
  ASSERT_TRUE(Knows(router));
  int num_alike = 0;
  for (int i = 0; i < 32 && num_alike < 6; ++i) {
    {
      const absl::MutexLock lock(&mutex);
      called.clear();
    }
    v1::GenerateRequest request = Request();
    request.set_text(absl::StrCat(i, " hello"));
    ClientCall client(router, request);
    const grpc::Status status = client.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(client.text(), kOutput);
    const absl::MutexLock lock(&mutex);
    ASSERT_GE(called.size(), 2u);
    const std::string& began = called.front();
    const std::string& went_on = called.back();
    EXPECT_EQ(began == verifiers[2].endpoint(), went_on == verifiers[2].endpoint())
        << began << " began and " << went_on << " went on";
    num_alike += began != verifiers[2].endpoint() ? 1 : 0;
  }
  EXPECT_GE(num_alike, 1);
}

TEST(FailoverTest, TheRetryBudgetEnds) {
  StubVerifier verifiers[2];
  for (StubVerifier& verifier : verifiers) {
    verifier.SetScript([](StubVerifier::Call& call) { call.Finish(absl::UnavailableError("killed")); });
  }
  VerifierPool::Options options;
  options.retries = {.share = 0.0, .per_second = 0.0, .reserve = 1.0};
  TestRouter router(LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint()}), nullptr, nullptr,
                    options);
  ClientCall first(router, Request());
  EXPECT_THAT(first.Finish().error_message(), HasSubstr("tried 2"));
  ClientCall second(router, Request());
  const grpc::Status status = second.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("budget for retries is used up"));
  EXPECT_EQ(verifiers[0].num_calls() + verifiers[1].num_calls(), 3);
}

TEST(FailoverTest, AFullRouterSaysWhenToComeBack) {
  StubVerifier verifier;
  VerifierPool::Options options;
  options.choice.max_in_flight = 1;
  TestRouter router(LettersConfig({verifier.endpoint()}), nullptr, nullptr, options);
  // Of a tenant whose requests do not wait.
  ClientCall first(router, Request(), "secret-a");
  const auto call = verifier.NextCall();
  ASSERT_NE(call, nullptr);
  ClientCall second(router, Request(), "secret-a");
  const absl::Status refused = FromGrpcStatus(second.Finish());
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(refused).has_value());
  Say(*call, 100);
  EXPECT_TRUE(first.Finish().ok());
}

// As a process that was stopped: its connections stay, and nothing comes any more, no answer about its health
// either.
TEST(FailoverTest, AVerifierThatStallsIsReplaced) {
  StubVerifier verifiers[2];
  std::atomic<int> calls{0};
  for (StubVerifier& verifier : verifiers) {
    verifier.SetScript([&, at = &verifier](StubVerifier::Call& call) {
      if (calls++ > 0) {
        Say(call, 100);
        return;
      }
      at->StallHealth();
      Say(call, 6);
    });
  }
  VerifierPool::Options options;
  options.stall_timeout = absl::Milliseconds(400);
  TestRouter router(LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint()}), nullptr, nullptr,
                    options);
  ClientCall client(router, Request());
  const grpc::Status status = client.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(client.text(), kOutput);
  EXPECT_EQ(calls, 2);
}

// Prefill and slow steps: no tokens, but somebody is there.
TEST(FailoverTest, AVerifierThatAnswersIsNotReplaced) {
  StubVerifier verifiers[2];
  VerifierPool::Options options;
  options.stall_timeout = absl::Seconds(3);  // A busy machine answers within half of it.
  TestRouter router(LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint()}), nullptr, nullptr,
                    options);
  ClientCall client(router, Request(), "secret-z", absl::Seconds(8));
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(verifiers[0].num_calls() + verifiers[1].num_calls(), 1);
  EXPECT_EQ(router.MetricSum("tandem_router_retries_total"), 0);
}

TEST(FailoverTest, AClientResumesOnAnotherRouter) {
  StubVerifier verifier;
  verifier.SetScript([](StubVerifier::Call& call) { Say(call, 100); });
  TestRouter other(LettersConfig({verifier.endpoint()}));
  v1::GenerateRequest request = Request();
  for (int i = 0; i < 9; ++i) {
    request.mutable_resume()->mutable_emitted()->add_ids(static_cast<unsigned char>(kOutput[i]));
  }
  ClientCall client(other, request);
  EXPECT_TRUE(client.Read().has_started());
  const v1::GenerateResponse first = client.Read();
  EXPECT_EQ(first.chunk().offset(), 9u);
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(first.chunk().text() + client.text(), std::string(kOutput).substr(9));

  request.mutable_sampling()->clear_seed();
  ClientCall seedless(other, request);
  EXPECT_THAT(seedless.Finish().error_message(), HasSubstr("resume: sampling.seed is expected"));
  request = Request();
  request.mutable_resume()->mutable_emitted()->add_ids(256);
  ClientCall unknown(other, request);
  EXPECT_THAT(unknown.Finish().error_message(), HasSubstr("resume.emitted.ids[0]: 256"));
  for (int i = 0; i < 40; ++i) request.mutable_resume()->mutable_emitted()->set_ids(0, 7);
  for (int i = 0; i < 40; ++i) request.mutable_resume()->mutable_emitted()->add_ids(7);
  ClientCall too_long(other, request);
  EXPECT_THAT(too_long.Finish().error_message(),
              HasSubstr("resume.emitted: 41 tokens, expected at most the 26"));
}

// The text would change without a word.
TEST(FailoverTest, AClientDoesNotResumeWhereItIsComputedDifferently) {
  StubVerifier alike[2];
  StubVerifier different;
  for (StubVerifier* verifier : {&alike[0], &alike[1], &different}) {
    verifier->SetScript([](StubVerifier::Call& call) { Say(call, 100); });
    verifier->SetInfo(Info(400, verifier == &different ? "int8" : "bf16"));
  }
  TestRouter first(LettersConfig({alike[0].endpoint()}));
  ASSERT_TRUE(Knows(first));
  v1::GenerateRequest request = Request();
  ClientCall broken(first, request);
  EXPECT_TRUE(broken.Read().has_started());
  const v1::GenerateResponse chunk = broken.Read();
  ASSERT_NE(chunk.chunk().arithmetic(), 0u);
  for (const uint32_t token : chunk.chunk().tokens()) {
    request.mutable_resume()->mutable_emitted()->add_ids(token);
  }
  request.mutable_resume()->set_arithmetic(chunk.chunk().arithmetic());

  TestRouter same(LettersConfig({alike[1].endpoint()}));
  ASSERT_TRUE(Knows(same));
  ClientCall resumed(same, request);
  EXPECT_TRUE(resumed.Finish().ok());
  EXPECT_EQ(chunk.chunk().text() + resumed.text(), kOutput);

  TestRouter other(LettersConfig({different.endpoint()}));
  ASSERT_TRUE(Knows(other));
  ClientCall refused(other, request);
  const grpc::Status status = refused.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("has the arithmetic of the one that began the output"));
  EXPECT_EQ(different.num_calls(), 0);
  request.mutable_resume()->clear_arithmetic();
  EXPECT_TRUE(ClientCall(other, request).Finish().ok()) << "a client that does not ask for it";
}

// A process with other weights at the address of the one before, of which the router does not know yet.
TEST(FailoverTest, AVerifierThatComputesOtherwiseByNowRefuses) {
  StubVerifier verifiers[2];
  std::atomic<int> began = -1;
  std::atomic<uint64_t> refused = 0;
  for (int i = 0; i < 2; ++i) {
    verifiers[i].SetInfo(Info(400, "bf16"));
    verifiers[i].SetScript([&, i](StubVerifier::Call& call) {
      if (began.load() < 0) {
        began = i;
        Say(call, 3);
        call.Finish(absl::UnavailableError("killed"));
      } else if (i == began.load()) {
        Say(call, 100);
      } else {
        refused = call.request().arithmetic();
        call.Finish(absl::AbortedError("arithmetic: 1, but this verifier's is 2"));
      }
    });
  }
  TestRouter router(LettersConfig({verifiers[0].endpoint(), verifiers[1].endpoint()}));
  ASSERT_TRUE(Knows(router));
  ClientCall client(router, Request());
  EXPECT_TRUE(client.Read().has_started());
  const v1::GenerateResponse chunk = client.Read();
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(chunk.chunk().text() + client.text(), kOutput);
  EXPECT_NE(refused.load(), 0u);
  EXPECT_EQ(refused.load(), chunk.chunk().arithmetic());
}

// What the router took it for when it last asked does not count.
TEST(FailoverTest, AVerifierTellsHowItComputesWithItsOutput) {
  StubVerifier verifier;
  verifier.SetInfo(Info(400, "bf16"));
  verifier.SetScript([](StubVerifier::Call& call) {
    call.Send(StartedEvent(call.request()));
    v1::GenerateResponse chunk = ChunkEvent(0, "a");
    chunk.mutable_chunk()->set_arithmetic(99);
    call.Send(chunk);
    call.Send(FinishedEvent(call.request(), 1));
    call.Finish(absl::OkStatus());
  });
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ASSERT_TRUE(Knows(router));
  ClientCall client(router, Request());
  EXPECT_TRUE(client.Read().has_started());
  EXPECT_EQ(client.Read().chunk().arithmetic(), 99u);
  EXPECT_TRUE(client.Finish().ok());
}

TEST(FailoverTest, AlternatesAreTheTenantsOtherDrafters) {
  StubVerifier verifier;
  v1::RouterConfig config = LettersConfig({verifier.endpoint()});
  config.mutable_drafters(1)->set_endpoint("elsewhere:7003");
  v1::DrafterConfig& near = *config.add_drafters();
  near.set_name("near");
  near.set_endpoint("drafter:7003");
  near.set_draft_model("draft-near");
  v1::TenantConfig& acme = *config.mutable_tenants(0);
  for (const char* name : {"code", "near", "math"}) acme.add_allowed_drafters(name);
  TestRouter router(config);
  ClientCall client(router, Request(), "secret-a");
  const auto call = verifier.NextCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->request().drafter().name(), "code");
  ASSERT_EQ(call->request().alternates_size(), 2);
  EXPECT_EQ(call->request().alternates(0).name(), "math") << "what is elsewhere comes first";
  EXPECT_EQ(call->request().alternates(1).name(), "near");
  ClientCall named(router, Parse(R"pb(text: "a"
                                      speculation { drafter: "math" })pb"),
                   "secret-a");
  EXPECT_EQ(verifier.NextCall()->request().alternates_size(), 0) << "the request's own choice";
}

TEST(FailoverTest, RunningRequestsAreSwapped) {
  StubVerifier verifier;
  TestRouter router(LettersConfig({verifier.endpoint()}));
  ClientCall client(router, Request(), "secret-a");
  ClientCall bystander(router, Request(), "secret-z");
  auto call = verifier.NextCall();
  auto other = verifier.NextCall();
  ASSERT_TRUE(call != nullptr && other != nullptr);
  if (call->request().tenant() != "acme") std::swap(call, other);
  v1::DrafterTarget to;
  to.set_name("math");
  to.set_endpoint("drafter:7003");
  to.set_draft_model("draft-math");
  verifier.SetSwapAnswer(Parse<v1::SwapDrafterResponse>("swapped: 1 refused: 2 ended: 3 refusal: \"no\""));
  const auto swap = [&](const std::string& tenant, const std::string& from) {
    absl::Notification done;
    absl::StatusOr<SwapResult> answer;
    router.router().running_calls().SwapRunning(tenant, from, to,
                                                [&](const absl::StatusOr<SwapResult>& result) {
                                                  answer = result;
                                                  done.Notify();
                                                });
    done.WaitForNotification();
    return answer;
  };
  EXPECT_EQ(swap("acme", "math").value().swapped, 0u) << "nobody is bound to it";
  EXPECT_EQ(swap("nobody", "code").value().swapped, 0u);
  EXPECT_EQ(verifier.swaps().size(), 0u);
  const absl::StatusOr<SwapResult> result = swap("acme", "code");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->swapped, 1u);
  EXPECT_EQ(result->refused, 2u);
  EXPECT_EQ(result->ended, 3u);
  EXPECT_EQ(result->refusal, "no");
  ASSERT_EQ(verifier.swaps().size(), 1u);
  EXPECT_EQ(verifier.swaps()[0].tenant(), "acme");
  EXPECT_EQ(verifier.swaps()[0].from(), "code");
  EXPECT_EQ(verifier.swaps()[0].to().draft_model(), "draft-math");
  // What is asked of a verifier from now on names the new one.
  call->Send(StartedEvent(call->request()));
  call->Send(ChunkEvent(0, "t"));
  call->Finish(absl::UnavailableError("killed"));
  const auto again = verifier.NextCall();
  ASSERT_NE(again, nullptr);
  EXPECT_EQ(again->request().drafter().name(), "math");
  EXPECT_THAT(again->request().emitted().ids(), ElementsAre('t'));
  Say(*again, 100);
  EXPECT_TRUE(client.Finish().ok());
}

}  // namespace
}  // namespace tandem::router

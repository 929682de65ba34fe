// Verifiers that load while requests come, and what the router says of itself meanwhile.
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem::router {
namespace {

using testing::ChunkEvent;
using testing::ClientCall;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LettersConfig;
using testing::Parse;
using testing::Saying;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

// Far beyond what a test waits for, so that whatever ends before has another reason.
constexpr absl::Duration kVeryLong = absl::Minutes(10);
constexpr absl::Duration kLongestWait = absl::Seconds(60);

v1::GenerateRequest PlainRequest() {
  return Parse(R"pb(text: "hello"
                    sampling { seed: 5 })pb");
}

VerifierPool::Options Waiting(absl::Duration longest, size_t max_waits = 256) {
  VerifierPool::Options options;
  options.longest_wait = longest;
  options.max_waits = max_waits;
  return options;
}

// Until it is so; false if it has not become so for long.
template <class Condition>
bool Becomes(const Condition& condition) {
  const absl::Time end = absl::Now() + kLongestWait;
  while (!condition()) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// As a verifier is while its model loads.
void Load(StubVerifier& verifier) {
  verifier.SetServing(false);
  verifier.SetScript([](StubVerifier::Call& call) {
    call.Finish(absl::UnavailableError("the verifier is still loading its model"));
  });
}

void Serve(StubVerifier& verifier) {
  verifier.SetScript(Saying("hello", 2));
  verifier.SetServing(true);
}

class WaitingCallTest : public ::testing::Test {
 protected:
  void Start(absl::Duration longest, size_t max_waits = 256) {
    router_ = std::make_unique<TestRouter>(LettersConfig({verifier_.endpoint()}), nullptr, nullptr,
                                           Waiting(longest, max_waits));
  }
  bool BecomesWaiting(size_t count) {
    return Becomes([&] { return router_->router().verifiers().num_waiting(0) == count; });
  }
  double Waits(const std::string& outcome) {
    return router_->MetricValue("tandem_router_verifier_waits_total{model=\"letters\",outcome=\"" + outcome +
                                "\"}");
  }
  v1::ServerInfo Info() {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer secret-z");
    v1::ServerInfo info;
    const grpc::Status status = v1::Admin::NewStub(CreateChannel(router_->endpoint()))
                                    ->GetServerInfo(&context, v1::GetServerInfoRequest(), &info);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return info;
  }

  StubVerifier verifier_;
  std::unique_ptr<TestRouter> router_;
};

TEST_F(WaitingCallTest, RequestsWaitForAVerifierThatLoads) {
  Load(verifier_);
  Start(kVeryLong);
  ClientCall first(*router_, PlainRequest());
  ClientCall second(*router_, PlainRequest());
  ASSERT_TRUE(BecomesWaiting(2));
  EXPECT_TRUE(Becomes(
      [&] { return router_->MetricValue("tandem_router_waiting_for_verifier{model=\"letters\"}") == 2.0; }));
  Serve(verifier_);
  for (ClientCall* call : {&first, &second}) {
    const grpc::Status status = call->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(call->text(), "hello");
  }
  EXPECT_GE(Waits("served"), 2);
  EXPECT_EQ(Waits("timed out"), 0);
  EXPECT_TRUE(BecomesWaiting(0));
}

TEST_F(WaitingCallTest, ManyBegunWhileItLoadsAreAllServed) {
  Load(verifier_);
  Start(kVeryLong);
  std::vector<std::unique_ptr<ClientCall>> calls;
  for (int i = 0; i < 50; ++i) calls.push_back(std::make_unique<ClientCall>(*router_, PlainRequest()));
  ASSERT_TRUE(BecomesWaiting(calls.size()));
  Serve(verifier_);
  for (const std::unique_ptr<ClientCall>& call : calls) {
    const grpc::Status status = call->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(call->text(), "hello");
  }
}

TEST_F(WaitingCallTest, NoLongerThanTheyMay) {
  Load(verifier_);
  Start(absl::Milliseconds(200));
  const absl::Time begun = absl::Now();
  const grpc::Status status = ClientCall(*router_, PlainRequest()).Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("no verifier of"));
  EXPECT_THAT(status.error_message(), HasSubstr("waited for 2"));
  EXPECT_GE(absl::Now() - begun, absl::Milliseconds(200));
  EXPECT_EQ(Waits("timed out"), 1);
}

// Law 5, by the router's own account: the client's has its own clock.
TEST_F(WaitingCallTest, NorThanTheirDeadline) {
  Load(verifier_);
  Start(kVeryLong);
  EXPECT_EQ(ClientCall(*router_, PlainRequest(), "secret-z", absl::Milliseconds(300)).Finish().error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Becomes([&] {
    return router_->MetricValue(
               R"(tandem_router_requests_total{code="DEADLINE_EXCEEDED",model="letters",tenant="zeta"})") ==
           1.0;
  }));
  EXPECT_TRUE(BecomesWaiting(0));
  EXPECT_TRUE(Becomes([&] { return router_->router().admission().in_flight() == 0; }));
}

TEST_F(WaitingCallTest, ACancelledRequestWaitsNoLonger) {
  Load(verifier_);
  Start(kVeryLong);
  ClientCall call(*router_, PlainRequest());
  ASSERT_TRUE(BecomesWaiting(1));
  call.Cancel();
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(BecomesWaiting(0));
}

TEST_F(WaitingCallTest, NotMoreThanSoMany) {
  Load(verifier_);
  Start(kVeryLong, /*max_waits=*/1);
  ClientCall first(*router_, PlainRequest());
  ASSERT_TRUE(BecomesWaiting(1));
  const grpc::Status refused = ClientCall(*router_, PlainRequest()).Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.error_message(), HasSubstr("still loading its model"));
  Serve(verifier_);
  EXPECT_TRUE(first.Finish().ok());
}

TEST_F(WaitingCallTest, WhatLosesItsOnlyVerifierGoesOnWhenItIsBack) {
  verifier_.SetServing(true);
  verifier_.SetScript([this](StubVerifier::Call& call) {
    Load(verifier_);
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(0, "he"));
    call.Finish(absl::UnavailableError("killed"));
  });
  Start(kVeryLong);
  ClientCall client(*router_, PlainRequest());
  ASSERT_TRUE(BecomesWaiting(1));
  verifier_.SetScript([](StubVerifier::Call& call) {
    EXPECT_EQ(call.request().emitted().ids_size(), 2);
    call.Send(StartedEvent(call.request()));
    call.Send(ChunkEvent(2, "llo"));
    call.Send(testing::FinishedEvent(call.request(), 5));
    call.Finish(absl::OkStatus());
  });
  verifier_.SetServing(true);
  const grpc::Status status = client.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(client.text(), "hello");
}

// One that says that it serves and refuses everything is not asked for ever.
TEST_F(WaitingCallTest, AVerifierThatOnlySaysThatItServes) {
  Load(verifier_);
  verifier_.SetServing(true);
  Start(absl::Seconds(1));
  const absl::Time begun = absl::Now();
  EXPECT_EQ(ClientCall(*router_, PlainRequest()).Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_LT(absl::Now() - begun, kLongestWait);
  EXPECT_LT(verifier_.num_calls(), 200);
}

TEST_F(WaitingCallTest, TheRouterServesWhenItsVerifierDoes) {
  Load(verifier_);
  Start(kVeryLong);
  // The verifier has been asked.
  ASSERT_TRUE(Becomes([&] { return !router_->router().verifiers().MayServe(0); }));
  v1::ServerInfo info = Info();
  EXPECT_FALSE(info.serving());
  EXPECT_THAT(info.unserved_models(), ElementsAre("letters"));
  Serve(verifier_);
  ASSERT_TRUE(Becomes([&] { return Info().serving(); }));
  info = Info();
  EXPECT_THAT(info.unserved_models(), IsEmpty());
  ClientCall call(*router_, PlainRequest());
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(router_->MetricValue("tandem_router_serving_verifiers{model=\"letters\"}"), 1);
  // It goes, and comes back.
  Load(verifier_);
  EXPECT_TRUE(Becomes([&] { return !Info().serving(); }));
  Serve(verifier_);
  EXPECT_TRUE(Becomes([&] { return Info().serving(); }));
}

// What nobody has asked yet is hoped to serve, for requests, but not said to.
TEST_F(WaitingCallTest, TheRouterDoesNotServeOnHopes) {
  verifier_.StallHealth();
  Start(kVeryLong);
  EXPECT_TRUE(router_->router().verifiers().MayServe(0));
  EXPECT_EQ(router_->router().verifiers().num_serving(0), 0u);
  EXPECT_FALSE(Info().serving());
}

}  // namespace
}  // namespace tandem::router

// Verifiers that are the addresses of a name, and come and go.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"

namespace tandem::router {
namespace {

using testing::ClientCall;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Parse;
using testing::Saying;
using testing::StartedEvent;
using testing::StubVerifier;
using testing::TestRouter;

v1::GenerateRequest NamedRequest() {
  return Parse(R"pb(text: "hello"
                    sampling { seed: 5 })pb");
}

// What a name server says, for a test to change.
class Names {
 public:
  VerifierPool::Options Options() {
    VerifierPool::Options options;
    options.resolve_period = absl::Milliseconds(2);
    options.resolve = [this](const DnsName& name) {
      EXPECT_EQ(name.host, "verifiers.test");
      absl::MutexLock lock(&mutex_);
      ++asked_;
      return answer_;
    };
    return options;
  }
  // Returns when it has been said.
  void Say(absl::StatusOr<std::vector<std::string>> answer) {
    absl::MutexLock lock(&mutex_);
    answer_ = std::move(answer);
    // The answer to the next question but one is used after the one before.
    const int until = asked_ + 2;
    const auto was_asked = [this, until]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return asked_ >= until; };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&was_asked), absl::Seconds(30)));
  }

 private:
  absl::Mutex mutex_;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::StatusOr<std::vector<std::string>> answer_ ABSL_GUARDED_BY(mutex_) =
      absl::NotFoundError("there is no such name yet");
};

constexpr char kName[] = "dns:///verifiers.test:7002";

std::string GenerateAt(TestRouter& router) {
  ClientCall call(router, NamedRequest());
  const grpc::Status status = call.Finish();
  return status.ok() ? call.text() : status.error_message();
}

TEST(VerifierNamesTest, VerifiersComeAndGo) {
  StubVerifier first;
  StubVerifier second;
  first.SetScript(Saying("first", 2));
  second.SetScript(Saying("second", 2));
  Names names;
  TestRouter router(LettersConfig({kName}), nullptr, nullptr, names.Options());
  EXPECT_THAT(GenerateAt(router), HasSubstr("no verifier of the model is known"));
  EXPECT_EQ(router.router().verifiers().size(0), 0u);
  names.Say(std::vector<std::string>{first.endpoint()});
  EXPECT_EQ(router.router().verifiers().size(0), 1u);
  EXPECT_EQ(GenerateAt(router), "first");
  names.Say(std::vector<std::string>{first.endpoint(), second.endpoint()});
  EXPECT_EQ(router.router().verifiers().size(0), 2u);
  names.Say(std::vector<std::string>{second.endpoint()});
  EXPECT_EQ(GenerateAt(router), "second");
  // The name server cannot be reached: the known addresses stay.
  names.Say(absl::UnavailableError("the name server does not answer"));
  EXPECT_EQ(GenerateAt(router), "second");
  names.Say(std::vector<std::string>{first.endpoint()});
  EXPECT_EQ(GenerateAt(router), "first");
}

TEST(VerifierNamesTest, WhatRunsOnOneThatIsGoneGoesOn) {
  StubVerifier first;
  StubVerifier second;
  second.SetScript(Saying("second", 2));
  Names names;
  TestRouter router(LettersConfig({kName}), nullptr, nullptr, names.Options());
  names.Say(std::vector<std::string>{first.endpoint()});
  ClientCall client(router, NamedRequest());
  const auto call = first.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(StartedEvent(call->request()));
  // Gone, and others in its place, again and again: places are used anew, but never one that is in use.
  for (int i = 0; i < 5; ++i) {
    names.Say(std::vector<std::string>{second.endpoint()});
    EXPECT_EQ(GenerateAt(router), "second");
    names.Say(std::vector<std::string>{"127.0.0.1:1"});
  }
  call->Send(testing::ChunkEvent(0, "first"));
  call->Send(testing::FinishedEvent(call->request(), 5));
  call->Finish(absl::OkStatus());
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(client.text(), "first");
}

TEST(VerifierNamesTest, ANameBesideAnAddress) {
  StubVerifier fixed;
  StubVerifier named;
  fixed.SetScript(Saying("fixed", 2));
  named.SetScript(Saying("named", 2));
  Names names;
  TestRouter router(LettersConfig({fixed.endpoint(), kName}), nullptr, nullptr, names.Options());
  EXPECT_EQ(GenerateAt(router), "fixed");
  names.Say(std::vector<std::string>{named.endpoint()});
  EXPECT_EQ(router.router().verifiers().size(0), 2u);
  names.Say(std::vector<std::string>{});
  EXPECT_EQ(router.router().verifiers().size(0), 1u);
  EXPECT_EQ(GenerateAt(router), "fixed");
}

}  // namespace
}  // namespace tandem::router

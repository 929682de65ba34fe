// Verifiers that are added and removed at run time.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/temporary_folder.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/state/open_store.h"
#include "router/state/routing_admin.h"
#include "router/testing/client_call.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/admin.grpc.pb.h"

namespace tandem::router {
namespace {

using testing::ClientCall;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::LettersConfig;
using testing::Parse;
using testing::Saying;
using testing::StubVerifier;
using testing::TestRouter;

v1::RouterConfig ConfigWithAdmin(const std::vector<std::string>& verifiers) {
  v1::RouterConfig config = LettersConfig(verifiers);
  config.mutable_tenants(1)->set_admin(true);
  return config;
}

v1::VerifierConfig Letters(const std::string& endpoint, const std::string& model = "letters") {
  v1::VerifierConfig verifier;
  verifier.set_model(model);
  verifier.set_endpoint(endpoint);
  return verifier;
}

v1::GenerateRequest HelloRequest() {
  return Parse(R"pb(text: "hello"
                    sampling { seed: 5 })pb");
}

std::string AnswerOf(TestRouter& router) {
  ClientCall call(router, HelloRequest());
  const grpc::Status status = call.Finish();
  return status.ok() ? call.text() : status.error_message();
}

// "model endpoint state" of each.
std::vector<std::string> Listed(RoutingState& state) {
  std::vector<std::string> lines;
  const absl::StatusOr<v1::ListVerifiersResponse> list = ListVerifiers(state);
  if (!list.ok()) return {list.status().ToString()};
  for (const v1::VerifierInfo& info : list->verifiers()) {
    lines.push_back(info.config().model() + " " + info.config().endpoint() + (info.in_file() ? " file" : "") +
                    (info.removed() ? " removed" : ""));
  }
  return lines;
}

std::vector<std::string> InForce(const RoutingState& state) {
  return state.snapshot()->table().models[0].verifiers;
}

class VerifierAdminTest : public ::testing::Test {
 protected:
  using Stub = v1::RouterAdmin::Stub;

  template <class Request, class Response>
  static absl::Status Call(TestRouter& router,
                           grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                           const v1::VerifierConfig& verifier, Response* response,
                           const std::string& token = "secret-z") {
    const auto stub = v1::RouterAdmin::NewStub(CreateChannel(router.endpoint(), nullptr));
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + token);
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    Request request;
    *request.mutable_config() = verifier;
    return FromGrpcStatus((stub.get()->*method)(&context, request, response));
  }
  static absl::Status Add(TestRouter& router, const std::string& endpoint,
                          const std::string& token = "secret-z") {
    v1::VerifierInfo info;
    return Call<v1::AddVerifierRequest>(router, &Stub::AddVerifier, Letters(endpoint), &info, token);
  }
  static absl::Status Remove(TestRouter& router, const std::string& endpoint) {
    v1::RemoveVerifierResponse response;
    return Call<v1::RemoveVerifierRequest>(router, &Stub::RemoveVerifier, Letters(endpoint), &response);
  }
  // Until the verifier has said that it serves.
  static bool AwaitServing(TestRouter& router, size_t count) {
    for (int i = 0; i < 3000 && router.router().verifiers().num_serving(0) < count; ++i) {
      absl::SleepFor(absl::Milliseconds(10));
    }
    return router.router().verifiers().num_serving(0) == count;
  }
};

TEST_F(VerifierAdminTest, AddedAndRemovedUnderLoad) {
  StubVerifier first;
  StubVerifier second;
  for (StubVerifier* verifier : {&first, &second}) verifier->SetScript(Saying("the same", 3));
  TestRouter router(ConfigWithAdmin({first.endpoint()}));
  std::atomic<bool> stop{false};
  std::atomic<int> done{0};
  std::vector<std::string> wrong;
  std::thread load([&] {
    while (!stop) {
      std::string answer = AnswerOf(router);
      if (answer != "the same") wrong.push_back(std::move(answer));
      ++done;
    }
  });
  const auto await_more = [&done](int more) {
    const int until = done + more;
    for (int i = 0; i < 6000 && done < until; ++i) absl::SleepFor(absl::Milliseconds(5));
    return done >= until;
  };
  EXPECT_TRUE(await_more(5));
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_TRUE(Add(router, second.endpoint()).ok());
    EXPECT_TRUE(AwaitServing(router, 2));
    EXPECT_TRUE(Remove(router, first.endpoint()).ok());
    const int calls_before = first.num_calls();
    EXPECT_TRUE(await_more(5));
    // One may have been on its way.
    EXPECT_LE(first.num_calls(), calls_before + 1);
    EXPECT_TRUE(Add(router, first.endpoint()).ok());
    EXPECT_TRUE(AwaitServing(router, 2));
    EXPECT_TRUE(Remove(router, second.endpoint()).ok());
    EXPECT_TRUE(await_more(5));
  }
  stop = true;
  load.join();
  EXPECT_THAT(wrong, ::testing::IsEmpty());
  EXPECT_GT(second.num_calls(), 0);
}

TEST_F(VerifierAdminTest, WhatRunsGoesOnWhereItIs) {
  StubVerifier first;
  StubVerifier second;
  second.SetScript(Saying("second", 2));
  TestRouter router(ConfigWithAdmin({first.endpoint()}));
  ClientCall client(router, HelloRequest());
  const auto call = first.NextCall();
  ASSERT_NE(call, nullptr);
  call->Send(testing::StartedEvent(call->request()));
  ASSERT_TRUE(Add(router, second.endpoint()).ok());
  ASSERT_TRUE(AwaitServing(router, 2));
  ASSERT_TRUE(Remove(router, first.endpoint()).ok());
  EXPECT_EQ(AnswerOf(router), "second");
  const std::vector<VerifierPool::Status> listed = router.router().verifiers().List(0);
  ASSERT_EQ(listed.size(), 2u);
  for (const VerifierPool::Status& status : listed) {
    EXPECT_EQ(status.listed, status.endpoint == second.endpoint());
    EXPECT_EQ(status.in_flight, status.endpoint == second.endpoint() ? 0u : 1u);
  }
  call->Send(testing::ChunkEvent(0, "first"));
  call->Send(testing::FinishedEvent(call->request(), 5));
  call->Finish(absl::OkStatus());
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(client.text(), "first");
}

TEST_F(VerifierAdminTest, OneWithoutTheModelGetsNoRequests) {
  StubVerifier good;
  StubVerifier other;
  good.SetScript(Saying("good", 2));
  other.SetScript([](StubVerifier::Call& call) { call.Finish(absl::FailedPreconditionError("another")); });
  v1::ServerInfo info;
  info.add_models()->set_name("another");
  other.SetInfo(info);
  other.SetServing(true);
  TestRouter router(ConfigWithAdmin({good.endpoint()}));
  ASSERT_TRUE(Add(router, other.endpoint()).ok());
  const auto in_force = [&router] {
    int serving = 0;
    for (const VerifierPool::Status& status : router.router().verifiers().List(0)) serving += status.serving;
    return serving;
  };
  // It is asked for what it holds once it is found to serve.
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(AnswerOf(router), "good");
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_EQ(in_force(), 1);
  EXPECT_EQ(router.router().verifiers().size(0), 2u);
}

TEST_F(VerifierAdminTest, OnlyAdminsMay) {
  StubVerifier verifier;
  TestRouter router(ConfigWithAdmin({verifier.endpoint()}));
  EXPECT_TRUE(absl::IsPermissionDenied(Add(router, "verifier-1:7002", "secret-a")));
  EXPECT_EQ(router.router().verifiers().size(0), 1u);
}

TEST(VerifierEditsTest, AddsAndRemoves) {
  const auto state = RoutingState::InMemory(ConfigWithAdmin({"a:1", "b:1"})).value();
  EXPECT_THAT(Listed(*state), ElementsAre("letters a:1 file", "letters b:1 file"));
  EXPECT_TRUE(AddVerifier(*state, Letters("c:1")).ok());
  EXPECT_TRUE(AddVerifier(*state, Letters("c:1")).ok());  // Again.
  EXPECT_TRUE(AddVerifier(*state, Letters("dns:///d:1")).ok());
  EXPECT_THAT(InForce(*state), ElementsAre("a:1", "b:1", "c:1", "dns:///d:1"));
  EXPECT_TRUE(RemoveVerifier(*state, Letters("a:1")).ok());
  EXPECT_TRUE(RemoveVerifier(*state, Letters("c:1")).ok());
  EXPECT_THAT(Listed(*state),
              ElementsAre("letters a:1 file removed", "letters b:1 file", "letters dns:///d:1"));
  EXPECT_THAT(InForce(*state), ElementsAre("b:1", "dns:///d:1"));
  EXPECT_TRUE(absl::IsNotFound(RemoveVerifier(*state, Letters("a:1"))));
  EXPECT_TRUE(absl::IsNotFound(RemoveVerifier(*state, Letters("e:1"))));
  const absl::StatusOr<v1::VerifierInfo> back = AddVerifier(*state, Letters("a:1"));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->in_file());
  EXPECT_FALSE(back->removed());
  EXPECT_THAT(InForce(*state), ElementsAre("a:1", "b:1", "dns:///d:1"));
}

TEST(VerifierEditsTest, RefusesWhatWouldNotBeValid) {
  const auto state = RoutingState::InMemory(ConfigWithAdmin({"a:1"})).value();
  const absl::Status last = RemoveVerifier(*state, Letters("a:1"));
  EXPECT_TRUE(absl::IsInvalidArgument(last)) << last;
  EXPECT_THAT(std::string(last.message()), HasSubstr("model \"letters\".verifiers: empty"));
  const absl::Status unknown = AddVerifier(*state, Letters("b:1", "cyrillic")).status();
  EXPECT_TRUE(absl::IsNotFound(unknown)) << unknown;
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("expected one of: letters"));
  for (const char* wrong : {"", "b 1", "dns:///", "dns://authority/b:1", "unix:/run/socket", "b\n:1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(AddVerifier(*state, Letters(wrong)).status())) << wrong;
  }
  EXPECT_THAT(InForce(*state), ElementsAre("a:1"));
}

TEST(VerifierEditsTest, ARestartedRouterStillHasThem) {
  const TemporaryFolder folder;
  const std::string path = "sqlite://" + folder.PathOf("state.db");
  const v1::RouterConfig config = ConfigWithAdmin({"a:1", "b:1"});
  {
    const auto state = RoutingState::Open(config, OpenStore(path).value()).value();
    ASSERT_TRUE(AddVerifier(*state, Letters("c:1")).ok());
    ASSERT_TRUE(RemoveVerifier(*state, Letters("a:1")).ok());
  }
  {
    const auto state = RoutingState::Open(config, OpenStore(path).value()).value();
    EXPECT_THAT(InForce(*state), ElementsAre("b:1", "c:1"));
  }
  // A file that does not name the model any more has no use for what was said of it.
  v1::RouterConfig other = config;
  other.mutable_models(0)->set_name("cyrillic");
  const auto state = RoutingState::Open(other, OpenStore(path).value()).value();
  EXPECT_THAT(InForce(*state), ElementsAre("a:1", "b:1"));
}

TEST(VerifierEditsTest, ChangesAreTold) {
  const auto state = RoutingState::InMemory(ConfigWithAdmin({"a:1", "b:1"})).value();
  ChangeFeed feed;
  ASSERT_TRUE(feed.Next(*state).ok());
  ASSERT_TRUE(AddVerifier(*state, Letters("c:1")).ok());
  ASSERT_TRUE(RemoveVerifier(*state, Letters("a:1")).ok());
  auto events = feed.Next(*state).value();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].verifier().config().endpoint(), "a:1");
  EXPECT_TRUE(events[0].verifier().removed());
  EXPECT_EQ(events[1].verifier().config().endpoint(), "c:1");
  ASSERT_TRUE(AddVerifier(*state, Letters("a:1")).ok());
  ASSERT_TRUE(RemoveVerifier(*state, Letters("c:1")).ok());
  events = feed.Next(*state).value();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_FALSE(events[0].verifier().removed());
  EXPECT_EQ(events[1].deleted_verifier().endpoint(), "c:1");
}

TEST(VerifierEditsTest, ThePoolFollows) {
  StubVerifier registered;
  v1::RouterConfig config = ConfigWithAdmin({"127.0.0.1:1"});
  TestRouter router(config);
  VerifierPool& pool = router.router().verifiers();
  const auto source_of = [&pool](const std::string& endpoint) {
    for (const VerifierPool::Status& status : pool.List(0)) {
      if (status.endpoint == endpoint) return static_cast<int>(status.source);
    }
    return -1;
  };
  pool.SetRegistered(0, {{.address = registered.endpoint(), .max_in_flight = 4}});
  EXPECT_EQ(source_of(registered.endpoint()), static_cast<int>(VerifierPool::Source::kRegistered));
  // The same verifier, and not another one beside it.
  pool.SetConfigured(0, {"127.0.0.1:1", registered.endpoint()});
  EXPECT_EQ(source_of(registered.endpoint()), static_cast<int>(VerifierPool::Source::kConfigured));
  EXPECT_EQ(pool.size(0), 2u);
  pool.SetConfigured(0, {"127.0.0.1:1"});
  EXPECT_EQ(source_of(registered.endpoint()), static_cast<int>(VerifierPool::Source::kRegistered));
  EXPECT_EQ(pool.size(0), 2u);
  pool.SetRegistered(0, {});
  EXPECT_EQ(pool.size(0), 1u);
}

}  // namespace
}  // namespace tandem::router

#include "router/admin/registry_service.h"

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "router/registry/testing/registrations.h"
#include "router/state/routing_admin.h"
#include "router/testing/client_call.h"
#include "router/testing/letter_encoder.h"
#include "router/testing/stub_verifier.h"
#include "router/testing/test_router.h"
#include "tandem/v1/registry.grpc.pb.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::LetterModel;
using testing::LettersConfig;
using testing::Saying;
using testing::StubVerifier;
using testing::TestRouter;

constexpr absl::Duration kPatience = absl::Seconds(60);

v1::RouterConfig OpenConfig() {
  v1::RouterConfig config = LettersConfig({});
  config.clear_drafters();
  config.mutable_registration()->set_verifiers(true);
  config.mutable_registration()->set_drafters(true);
  config.mutable_registration()->set_ttl_seconds(60);
  return config;
}

class Client {
 public:
  explicit Client(const TestRouter& router)
      : channel_(tandem::CreateChannel(router.endpoint())), stub_(v1::Registry::NewStub(channel_)) {}

  absl::Status Register(const v1::ServerRegistration& server) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::RegisterRequest request;
    *request.mutable_server() = server;
    return FromGrpcStatus(stub_->Register(&context, request, &answer));
  }
  absl::Status Deregister(const v1::ServerRegistration& server) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::DeregisterRequest request;
    *request.mutable_server() = server;
    v1::DeregisterResponse response;
    return FromGrpcStatus(stub_->Deregister(&context, request, &response));
  }

  v1::RegisterResponse answer;

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Registry::Stub> stub_;
};

v1::ServerRegistration AVerifier(const std::string& address, uint64_t number = 1) {
  v1::ServerRegistration server = testing::VerifierAt(address, address, number);
  server.mutable_verifier()->mutable_model()->set_vocabulary_fingerprint(
      LetterModel().vocabulary_fingerprint);
  return server;
}

v1::ServerRegistration DrafterOf(const std::string& model) {
  v1::ServerRegistration server = testing::DrafterAt("d", "drafter:7003", 1, model);
  server.mutable_drafter()->mutable_models(0)->mutable_model()->set_vocabulary_fingerprint(
      LetterModel().vocabulary_fingerprint);
  return server;
}

// What a request of the tenant "acme", whose drafter is "code", ends with.
grpc::Status Generate(TestRouter& router, std::string* text = nullptr, const std::string& drafter = "") {
  v1::GenerateRequest request = testing::Parse(R"pb(text: "ab")pb");
  request.mutable_speculation()->set_drafter(drafter);
  testing::ClientCall call(router, request, "secret-a");
  const grpc::Status status = call.Finish();
  if (text != nullptr) *text = call.text();
  return status;
}

TEST(RegistryServiceTest, RequestsGoToWhoRegisters) {
  StubVerifier stub;
  TestRouter router(OpenConfig());
  Client client(router);
  EXPECT_EQ(Generate(router).error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(client.Register(AVerifier(stub.endpoint())).ok());
  EXPECT_EQ(client.answer.ttl_seconds(), 60);
  EXPECT_EQ(client.answer.renew_after_seconds(), 20);
  EXPECT_EQ(router.MetricValue("tandem_router_registered_servers{kind=\"verifier\"}"), 1);
  // Its tenant's drafter has not come yet.
  const auto drafter_asked_for = [&](const std::string& named) {
    // The call before was cancelled: its place, one of two, may not be free yet.
    for (const absl::Time end = absl::Now() + absl::Seconds(30);
         router.router().admission().in_flight() > 0;) {
      EXPECT_LT(absl::Now(), end);
      if (absl::Now() >= end) break;
      absl::SleepFor(absl::Milliseconds(1));
    }
    v1::GenerateRequest request = testing::Parse(R"pb(text: "ab")pb");
    request.mutable_speculation()->set_drafter(named);
    testing::ClientCall call(router, request, "secret-a");
    const auto begun = stub.NextCall();
    return begun == nullptr ? "no call" : begun->request().drafter().endpoint();
  };
  EXPECT_EQ(drafter_asked_for(""), "");
  ASSERT_TRUE(client.Register(DrafterOf("code")).ok());
  EXPECT_EQ(router.MetricValue("tandem_router_registered_servers{kind=\"drafter\"}"), 1);
  EXPECT_EQ(drafter_asked_for(""), "drafter:7003");
  EXPECT_EQ(drafter_asked_for("code"), "drafter:7003");
  ASSERT_TRUE(client.Deregister(DrafterOf("code")).ok());
  EXPECT_EQ(drafter_asked_for(""), "");
  EXPECT_EQ(drafter_asked_for("code"), "") << "it was there, and may come again";
  stub.SetScript(Saying("abc", 3));
  std::string text;
  EXPECT_TRUE(Generate(router, &text).ok());
  EXPECT_EQ(text, "abc");
  EXPECT_EQ(Generate(router, nullptr, "nobody").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_TRUE(client.Deregister(AVerifier(stub.endpoint())).ok());
  EXPECT_EQ(router.MetricValue("tandem_router_registered_servers{kind=\"verifier\"}"), 0);
  EXPECT_EQ(Generate(router).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(RegistryServiceTest, OneThatIsConfiguredAsWellCountsOnce) {
  StubVerifier stub;
  stub.SetScript(Saying("abc", 3));
  v1::RouterConfig config = OpenConfig();
  config.mutable_models(0)->add_verifiers(stub.endpoint());
  TestRouter router(config);
  Client client(router);
  ASSERT_TRUE(client.Register(AVerifier(stub.endpoint())).ok());
  EXPECT_EQ(router.router().verifiers().size(0), 1u);
  ASSERT_TRUE(client.Deregister(AVerifier(stub.endpoint())).ok());
  EXPECT_EQ(router.router().verifiers().size(0), 1u);
  EXPECT_TRUE(Generate(router).ok());
}

TEST(RegistryServiceTest, AVerifierIsGivenNoMoreThanItHasRoomFor) {
  StubVerifier stub;
  TestRouter router(OpenConfig());
  Client client(router);
  v1::ServerRegistration small = AVerifier(stub.endpoint());
  small.mutable_capacity()->set_max_running(1);
  small.mutable_capacity()->set_max_waiting(0);
  ASSERT_TRUE(client.Register(small).ok());
  const v1::GenerateRequest request = testing::Parse(R"pb(text: "ab")pb");
  testing::ClientCall first(router, request, "secret-a");
  ASSERT_NE(stub.NextCall(), nullptr);
  EXPECT_EQ(Generate(router).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  first.Cancel();
}

TEST(RegistryServiceTest, RefusesWhatItHasNoUseFor) {
  TestRouter router(OpenConfig());
  Client client(router);
  v1::ServerRegistration other = AVerifier("v:1");
  other.mutable_verifier()->mutable_model()->set_name("numbers");
  const absl::Status refused = client.Register(other);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("\"numbers\" is not served here"));
  EXPECT_EQ(client.Register({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(client.Deregister({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(client.Deregister(AVerifier("v:1")).ok()) << "nobody is no error";
}

TEST(RegistryServiceTest, ARouterThatWasNotToldToTakesNobody) {
  StubVerifier stub;
  TestRouter router(LettersConfig({stub.endpoint()}));
  Client client(router);
  const absl::Status verifier = client.Register(AVerifier(stub.endpoint()));
  EXPECT_EQ(verifier.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(verifier.message()), HasSubstr("registration: {verifiers: true}"));
  EXPECT_EQ(client.Register(DrafterOf("m")).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(RegistryServiceTest, ATenantMayBeMovedToADrafterThatRegistered) {
  TestRouter router(OpenConfig());
  Client client(router);
  RoutingState& routing = router.router().routing();
  EXPECT_EQ(SwapTenantDrafter(routing, "zeta", "code").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(client.Register(DrafterOf("code")).ok());
  EXPECT_TRUE(SwapTenantDrafter(routing, "zeta", "code").ok());
  ASSERT_TRUE(client.Deregister(DrafterOf("code")).ok());
  EXPECT_EQ(SwapTenantDrafter(routing, "zeta", "code").status().code(), absl::StatusCode::kNotFound);
  // The tenant keeps it, for when it comes back.
  const std::shared_ptr<const RoutingSnapshot> snapshot = routing.snapshot();
  EXPECT_TRUE(snapshot->table().drafters[*snapshot->table().tenants[1].drafter].absent);
}

TEST(RegistryServiceTest, AConfiguredDrafterGoesBeforeOneThatRegistered) {
  StubVerifier stub;
  TestRouter router(OpenConfig());
  Client client(router);
  ASSERT_TRUE(client.Register(AVerifier(stub.endpoint())).ok());
  ASSERT_TRUE(client.Register(DrafterOf("code")).ok());
  v1::RouterConfig config = OpenConfig();
  v1::DrafterConfig& configured = *config.add_drafters();
  configured.set_name("code");
  configured.set_endpoint("configured:7003");
  configured.set_draft_model("code");
  ASSERT_TRUE(router.router().routing().ApplyFile(config).ok());
  testing::ClientCall call(router, testing::Parse(R"pb(text: "ab")pb"), "secret-a");
  const auto begun = stub.NextCall();
  ASSERT_NE(begun, nullptr);
  EXPECT_EQ(begun->request().drafter().endpoint(), "configured:7003");
  EXPECT_EQ(client.Register(DrafterOf("code")).code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace tandem::router

#include "common/rpc/server.h"

#include <csignal>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/mailbox.h"
#include "common/rpc/server_bidi.h"
#include "common/rpc/status.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/impl/client_unary_call.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"
#include "tandem/v1/drafter.grpc.pb.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// Any method with opaque messages, to reach services whose protos we do not have.
grpc::Status CallRaw(grpc::Channel* channel, const std::string& method, const std::string& request,
                     std::string* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const grpc::Slice slice(request);
  grpc::ByteBuffer in(&slice, 1);
  grpc::ByteBuffer out;
  const grpc::internal::RpcMethod rpc(method.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Status status = grpc::internal::BlockingUnaryCall(channel, rpc, &context, in, &out);
  std::vector<grpc::Slice> slices;
  if (status.ok() && out.Dump(&slices).ok()) {
    response->clear();
    for (const grpc::Slice& part : slices)
      response->append(reinterpret_cast<const char*>(part.begin()), part.size());
  }
  return status;
}

// grpc.health.v1's answer for a service: "SERVING", "NOT_SERVING", or the call's error.
std::string Health(grpc::Channel* channel, const std::string& service) {
  std::string request;
  if (!service.empty())
    request = absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
  std::string response;
  const grpc::Status status = CallRaw(channel, "/grpc.health.v1.Health/Check", request, &response);
  if (!status.ok()) return absl::StatusCodeToString(FromGrpcStatus(status).code());
  if (response == std::string("\x08\x01")) return "SERVING";
  return response == std::string("\x08\x02") ? "NOT_SERVING" : "?";
}

class EchoDrafter final : public v1::Drafter::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse>* Draft(
      grpc::CallbackServerContext* context) override {
    auto stream = ServerBidi<v1::DraftRequest, v1::DraftResponse>::Create(context);
    return stream->Start({.on_message = [stream](v1::DraftRequest) { stream->Write({}); },
                          .on_closed = [this](absl::Status status) { closed.Push(status); }});
  }
  Mailbox<absl::Status> closed;
};

struct Running {
  EchoDrafter drafter;
  MetricsRegistry metrics;
  std::unique_ptr<ServerRunner> server;
  std::shared_ptr<grpc::Channel> channel;
};

std::unique_ptr<Running> StartServer(bool reflection = false, AdminCallbacks admin = {},
                                     const std::string& metrics_address = "") {
  auto running = std::make_unique<Running>();
  auto server =
      ServerRunner::Start({.listen_address = "127.0.0.1:0",
                           .metrics_address = metrics_address,
                           .metrics = &running->metrics,
                           .reflection = reflection},
                          {{v1::Drafter::service_full_name(), &running->drafter}}, std::move(admin));
  EXPECT_TRUE(server.ok()) << server.status();
  running->server = *std::move(server);
  running->channel = CreateChannel(running->server->address());
  return running;
}

TEST(ServerTest, ReportsThePortsItBound) {
  auto running = StartServer(/*reflection=*/false, {}, "127.0.0.1:0");
  EXPECT_GT(running->server->port(), 0);
  EXPECT_EQ(running->server->address(), absl::StrCat("127.0.0.1:", running->server->port()));
  EXPECT_GT(running->server->metrics_port(), 0);
  EXPECT_NE(running->server->metrics_port(), running->server->port());
}

TEST(ServerTest, ATakenAddressIsAnErrorThatNamesIt) {
  auto running = StartServer(/*reflection=*/false, {}, "127.0.0.1:0");
  const auto second = ServerRunner::Start({.listen_address = running->server->address()}, {}, {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(running->server->address()));
  const std::string metrics_address = absl::StrCat("127.0.0.1:", running->server->metrics_port());
  const auto third = ServerRunner::Start(
      {.listen_address = "127.0.0.1:0", .metrics_address = metrics_address, .metrics = &running->metrics}, {},
      {});
  EXPECT_EQ(third.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr(metrics_address));
  EXPECT_EQ(ServerRunner::Start({}, {}, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ServerTest, HealthIsOverallAndPerService) {
  auto running = StartServer();
  grpc::Channel* channel = running->channel.get();
  EXPECT_EQ(Health(channel, ""), "SERVING");
  EXPECT_EQ(Health(channel, "tandem.v1.Drafter"), "SERVING");
  EXPECT_EQ(Health(channel, "tandem.v1.Admin"), "SERVING");
  EXPECT_EQ(Health(channel, "tandem.v1.Nothing"), "NOT_FOUND");
  running->server->SetServing("tandem.v1.Drafter", false);
  EXPECT_EQ(Health(channel, "tandem.v1.Drafter"), "NOT_SERVING");
  EXPECT_EQ(Health(channel, ""), "SERVING");
  running->server->SetServing(false);
  EXPECT_EQ(Health(channel, ""), "NOT_SERVING");
  running->server->SetServing(true);
  EXPECT_EQ(Health(channel, "tandem.v1.Drafter"), "SERVING");
}

TEST(ServerTest, AdminAnswersThoseItLetsIn) {
  auto running =
      StartServer(false, {.server_info =
                              [] {
                                v1::ServerInfo info;
                                info.set_version("1.2.3");
                                return info;
                              },
                          .authorize =
                              [](const CallMetadata& metadata) {
                                const auto token = metadata.find("authorization");
                                const bool known = token != metadata.end() && token->second == "Bearer a";
                                return known ? absl::OkStatus() : absl::UnauthenticatedError("no token");
                              }});
  auto stub = v1::Admin::NewStub(running->channel);
  v1::ServerInfo info;
  grpc::ClientContext stranger;
  EXPECT_EQ(stub->GetServerInfo(&stranger, {}, &info).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(info.version(), "");
  grpc::ClientContext known;
  known.AddMetadata("authorization", "Bearer a");
  EXPECT_TRUE(stub->GetServerInfo(&known, {}, &info).ok());
  EXPECT_EQ(info.version(), "1.2.3");
}

TEST(ServerTest, ReflectionIsThereOnlyWhenAsked) {
  // A streaming method called as a unary one still tells whether it exists.
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  std::string response;
  auto with = StartServer(/*reflection=*/true);
  EXPECT_TRUE(CallRaw(with->channel.get(), method, std::string("\x3a\x01*"), &response).ok());
  EXPECT_THAT(response, HasSubstr("tandem.v1.Drafter"));
  auto without = StartServer(/*reflection=*/false);
  EXPECT_EQ(CallRaw(without->channel.get(), method, std::string("\x3a\x01*"), &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST(ServerTest, OversizedMessagesAreRefused) {
  auto running = StartServer();
  std::string response;
  const grpc::Status status = CallRaw(running->channel.get(), "/tandem.v1.Admin/GetServerInfo",
                                      std::string(kMaxMessageBytes + 1, 'x'), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST(ServerTest, DrainTellsHealthFirstAndCancelsWhatRemains) {
  auto running = StartServer();
  auto stub = v1::Drafter::NewStub(running->channel);
  grpc::ClientContext context;
  auto call = stub->Draft(&context);
  ASSERT_TRUE(call->Write({}));
  v1::DraftResponse response;
  ASSERT_TRUE(call->Read(&response));
  std::string health;
  running->server->Drain(absl::Seconds(30), [&](absl::Time deadline) {
    EXPECT_GT(deadline, absl::Now());
    health = Health(running->channel.get(), "");
    running->server->SetServing(true);
    EXPECT_EQ(Health(running->channel.get(), "tandem.v1.Drafter"), "NOT_SERVING");
  });
  EXPECT_EQ(health, "NOT_SERVING");
  std::vector<absl::Status> closed;
  running->drafter.closed.Drain(&closed);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(call->Read(&response));
  EXPECT_FALSE(call->Finish().ok());
  running->server->Drain(absl::Seconds(30), [](absl::Time) { FAIL() << "drained twice"; });
}

TEST(ServerTest, SignalsAreWaitedFor) {
  for (int number : {SIGTERM, SIGINT}) {
    ShutdownSignals signals;
    std::thread sender([&] { raise(number); });
    EXPECT_EQ(signals.Wait(), number);
    sender.join();
  }
  // Each instance leaves the default behind.
  struct sigaction action = {};
  sigaction(SIGTERM, nullptr, &action);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace tandem

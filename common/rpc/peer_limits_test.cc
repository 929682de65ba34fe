#include "common/rpc/peer_limits.h"

#include <chrono>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "tandem/v1/admin.grpc.pb.h"
#include "tandem/v1/drafter.grpc.pb.h"

namespace tandem {
namespace {

constexpr std::chrono::seconds kCallTimeout(60);

// Streams that stay until their client is gone.
class OpenStreams final : public v1::Drafter::CallbackService {
 public:
  grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse>* Draft(grpc::CallbackServerContext*) override {
    class Stream final : public grpc::ServerBidiReactor<v1::DraftRequest, v1::DraftResponse> {
     public:
      Stream() {
        StartSendInitialMetadata();
        StartRead(&request_);
      }
      void OnReadDone(bool ok) override {
        if (ok) {
          StartRead(&request_);
        } else {
          Finish(grpc::Status::OK);
        }
      }
      void OnDone() override { delete this; }

     private:
      v1::DraftRequest request_;
    };
    return new Stream();
  }
};

TEST(PeerLimitsTest, AConnectionHasSoManyCallsInFlight) {
  OpenStreams service;
  const auto server = ServerRunner::Start({.listen_address = "127.0.0.1:0", .limits = {.max_streams = 3}},
                                          {{v1::Drafter::service_full_name(), &service}}, {})
                          .value();
  const auto channel = CreateChannel(server->address());
  const auto stub = v1::Drafter::NewStub(channel);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::DraftRequest, v1::DraftResponse>>> streams;
  for (int i = 0; i < 3; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub->Draft(contexts.back().get()));
    streams.back()->WaitForInitialMetadata();
  }
  const auto call = [](const std::shared_ptr<grpc::Channel>& on, std::chrono::milliseconds timeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    v1::ServerInfo info;
    return v1::Admin::NewStub(on)->GetServerInfo(&context, {}, &info).error_code();
  };
  EXPECT_EQ(call(channel, std::chrono::milliseconds(200)), grpc::StatusCode::DEADLINE_EXCEEDED);
  // Another connection has calls of its own.
  EXPECT_EQ(call(CreateChannel(server->address()), kCallTimeout), grpc::StatusCode::OK);
  streams.front()->WritesDone();
  EXPECT_TRUE(streams.front()->Finish().ok());
  EXPECT_EQ(call(channel, kCallTimeout), grpc::StatusCode::OK);
  for (const auto& context : contexts) context->TryCancel();
}

TEST(PeerLimitsTest, AConnectionWithoutCallsIsClosed) {
  const auto server =
      ServerRunner::Start({.listen_address = "127.0.0.1:0", .limits = {.max_idle = absl::Milliseconds(100)}},
                          {}, {})
          .value();
  const auto channel = CreateChannel(server->address());
  const auto deadline = std::chrono::system_clock::now() + kCallTimeout;
  ASSERT_TRUE(channel->WaitForConnected(deadline));
  // It ends the connection, and the channel waits to be used.
  EXPECT_TRUE(channel->WaitForStateChange(GRPC_CHANNEL_READY, deadline));
  EXPECT_NE(channel->GetState(false), GRPC_CHANNEL_READY);
  grpc::ClientContext context;
  context.set_deadline(deadline);
  v1::ServerInfo info;
  EXPECT_TRUE(v1::Admin::NewStub(channel)->GetServerInfo(&context, {}, &info).ok());
}

TEST(PeerLimitsTest, AnOldConnectionIsClosedAndItsCallsGoOnForAsLongAgain) {
  OpenStreams service;
  const auto server =
      ServerRunner::Start({.listen_address = "127.0.0.1:0", .limits = {.max_age = absl::Milliseconds(200)}},
                          {{v1::Drafter::service_full_name(), &service}}, {})
          .value();
  const auto stub = v1::Drafter::NewStub(CreateChannel(server->address()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  const auto stream = stub->Draft(&context);
  v1::DraftResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(PeerLimitsTest, VersionsOfGrpcThatTakeEndlessHeaders) {
  for (const char* fixed :
       {"1.53.2", "1.54.3", "1.55.2", "1.56.2", "1.57.0", "1.60.0-dev", "1.74.1", "2.0.0"}) {
    EXPECT_TRUE(BoundsHeaderLists(fixed)) << fixed;
  }
  for (const char* open :
       {"1.51.1", "1.53.1", "1.54.2", "1.55.1", "1.56.0", "1.56.1", "0.9.9", "", "1.57", "new"}) {
    EXPECT_FALSE(BoundsHeaderLists(open)) << open;
  }
}

}  // namespace
}  // namespace tandem

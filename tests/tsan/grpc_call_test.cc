// Under ThreadSanitizer this shows that the tool sees a call's start come before its reaction; with any other
// build it is an ordinary test.

#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"

namespace {

struct Call {
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  grpc::ByteBuffer response;
  std::string written_before;
  absl::Notification over;
};

TEST(GrpcCallTest, WhatTheCallerWroteIsThereForTheReaction) {
  grpc::GenericStub stub(grpc::CreateChannel("unix:/no/such/socket", grpc::InsecureChannelCredentials()));
  for (int i = 0; i < 100; ++i) {
    // Not on the stack, whose memory the tool may have seen in other orders.
    auto call = std::make_unique<Call>();
    call->written_before = std::to_string(i);
    const grpc::Slice content("request");
    call->request = grpc::ByteBuffer(&content, 1);
    stub.UnaryCall(&call->context, "/no.such.Service/Method", {}, &call->request, &call->response,
                   [&call = *call, i](const grpc::Status& status) {
                     EXPECT_FALSE(status.ok());
                     EXPECT_EQ(call.written_before, std::to_string(i));
                     call.over.Notify();
                   });
    call->over.WaitForNotification();
  }
}

}  // namespace

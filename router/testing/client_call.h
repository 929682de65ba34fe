#pragma once

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/channel.h"
#include "google/protobuf/text_format.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "router/testing/test_router.h"
#include "tandem/v1/generation.grpc.pb.h"

namespace tandem::router::testing {

// A client's call, read step by step.
class ClientCall {
 public:
  ClientCall(TestRouter& router, const v1::GenerateRequest& request, const std::string& token = "secret-z",
             absl::Duration timeout = absl::Seconds(60))
      : stub_(v1::Generation::NewStub(CreateChannel(router.endpoint()))) {
    if (!token.empty()) context_.AddMetadata("authorization", "Bearer " + token);
    context_.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    reader_ = stub_->Generate(&context_, request);
  }

  ~ClientCall() {
    if (!finished_) {
      context_.TryCancel();
      Finish();
    }
  }

  // The next event; one without anything set at the end.
  v1::GenerateResponse Read() {
    v1::GenerateResponse event;
    if (!reader_->Read(&event)) event.Clear();
    return event;
  }

  void Cancel() { context_.TryCancel(); }

  // Reads what is left and returns the status.
  grpc::Status Finish() {
    v1::GenerateResponse event;
    while (reader_->Read(&event)) {
      if (event.has_chunk()) text_ += event.chunk().text();
      if (event.has_finished()) text_ += event.finished().text();
    }
    finished_ = true;
    return reader_->Finish();
  }

  // What Finish read.
  const std::string& text() const { return text_; }

 private:
  std::unique_ptr<v1::Generation::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  std::string text_;
  bool finished_ = false;
};

template <class Message = v1::GenerateRequest>
Message Parse(const std::string& text) {
  Message request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

}  // namespace tandem::router::testing

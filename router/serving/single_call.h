#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "router/serving/client_stream.h"
#include "router/serving/generate_call.h"
#include "router/serving/outputs_call.h"
#include "router/serving/router.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// The gRPC side of a Generation.GenerateOnce call: the events of an OutputsCall, put together in one answer.
// Owned by gRPC from Start to OnDone.
class SingleCall final : public grpc::ServerUnaryReactor, public ClientStream {
 public:
  // Serves a call; the result goes to gRPC, which keeps `answer` until OnDone. `read` is
  // GenerateCall::Start's.
  static grpc::ServerUnaryReactor* Start(Router& router, grpc::CallbackServerContext* context,
                                         absl::FunctionRef<absl::StatusOr<GenerateCall::Request>()> read,
                                         v1::GenerateResult* answer);

 private:
  SingleCall(Router& router, grpc::CallbackServerContext& context, v1::GenerateResult& answer);

  void Write(const v1::GenerateResponse& event) override;
  void Finish(const absl::Status& status) override;
  void Cancel() override { context_.TryCancel(); }

  void OnCancel() override { call_->OnCancel(); }
  void OnDone() override;

  grpc::CallbackServerContext& context_;  // Until gRPC's Finish.
  v1::GenerateResult& answer_;            // The same.
  // An event is taken at once, and the call is told so from elsewhere.
  grpc::Alarm taken_;
  const std::shared_ptr<OutputsCall> call_;
};

// Adds an event to an answer, or to the one of its others that the event is of: chunks to the output's tokens
// and text, deltas to what they are parts of.
void AddEvent(const v1::GenerateResponse& event, v1::GenerateResult& whole);

}  // namespace tandem::router

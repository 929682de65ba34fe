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

// The gRPC side of a Generation.GenerateOnce call: combines the events of an OutputsCall into one answer.
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
  // Calls OnWriteDone from another thread; the event itself is taken at once.
  grpc::Alarm taken_;
  const std::shared_ptr<OutputsCall> call_;
};

// Adds an event to the output in `whole` that it belongs to: chunks extend its tokens and text, deltas extend
// their message parts.
void AddEvent(const v1::GenerateResponse& event, v1::GenerateResult& whole);

}  // namespace tandem::router

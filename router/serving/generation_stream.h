#pragma once

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "router/serving/client_stream.h"
#include "router/serving/generate_call.h"
#include "router/serving/outputs_call.h"
#include "router/serving/router.h"
#include "tandem/v1/generation.pb.h"

namespace tandem::router {

// The gRPC side of a Generation.Generate call. gRPC runs no reaction inside the operation that starts it, as
// ClientStream requires. Owned by gRPC from Start to OnDone.
class GenerationStream final : public grpc::ServerWriteReactor<v1::GenerateResponse>, public ClientStream {
 public:
  // Serves a call; the result goes to gRPC. `read` is GenerateCall::Start's.
  static grpc::ServerWriteReactor<v1::GenerateResponse>* Start(
      Router& router, grpc::CallbackServerContext* context,
      absl::FunctionRef<absl::StatusOr<GenerateCall::Request>()> read);

 private:
  GenerationStream(Router& router, grpc::CallbackServerContext& context);

  void Write(const v1::GenerateResponse& event) override { StartWrite(&event); }
  void Finish(const absl::Status& status) override;
  void Cancel() override { context_.TryCancel(); }

  void OnWriteDone(bool ok) override { call_->OnWriteDone(ok); }
  void OnCancel() override { call_->OnCancel(); }
  void OnDone() override;

  grpc::CallbackServerContext& context_;  // Until gRPC's Finish.
  const std::shared_ptr<OutputsCall> call_;
};

// The head of a call, read from its context.
CallHead CallHeadOf(const grpc::CallbackServerContext& context);

}  // namespace tandem::router

#pragma once

#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/tracing/span.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "tandem/v1/drafter.pb.h"

namespace tandem {

// The call's deadline; the infinite future without one.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

// The gRPC side of one Score call. Whoever computes the score calls End once, even after a cancellation.
// Deletes itself when gRPC releases it, after End.
class ScoreCall final : public grpc::ServerUnaryReactor {
 public:
  // `span`: of the call; ends with it.
  ScoreCall(v1::ScoreResponse* response, Span span) : response_(response), span_(std::move(span)) {}

  // `on_cancel` is called at most once, on one of gRPC's threads. Set it before the call is passed to gRPC.
  void SetOnCancel(std::function<void()> on_cancel) { on_cancel_ = std::move(on_cancel); }
  // Fill it before End(OkStatus()).
  v1::ScoreResponse* response() { return response_; }
  void End(const absl::Status& status);

 private:
  void OnCancel() override;
  void OnDone() override { delete this; }

  v1::ScoreResponse* const response_;
  Span span_;
  std::function<void()> on_cancel_;
};

}  // namespace tandem

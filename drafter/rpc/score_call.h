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

// One Score call: gRPC's side of it. It waits for End, which is called once, by whoever computes the score,
// also after a cancellation. Deletes itself when gRPC has let go of it, which is after End.
class ScoreCall final : public grpc::ServerUnaryReactor {
 public:
  // `span` is the call's, and ends with it.
  ScoreCall(v1::ScoreResponse* response, Span span) : response_(response), span_(std::move(span)) {}

  // Called at most once, from one of gRPC's threads. Set before the call is handed to gRPC.
  void SetOnCancel(std::function<void()> on_cancel) { on_cancel_ = std::move(on_cancel); }
  // To be filled before End(OkStatus()).
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

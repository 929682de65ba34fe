#include "drafter/rpc/score_call.h"

#include <chrono>

#include "absl/time/clock.h"
#include "common/rpc/status.h"

namespace tandem {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

void ScoreCall::End(const absl::Status& status) {
  span_.SetStatus(status.code());
  span_.End(absl::Now());
  Finish(ToGrpcStatus(status));
}

void ScoreCall::OnCancel() {
  if (on_cancel_) on_cancel_();
}

}  // namespace tandem

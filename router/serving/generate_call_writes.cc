// Writes to the client: what follows each of them, and the end of a call whose client takes nothing.

#include <chrono>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "common/rpc/release.h"
#include "router/serving/generate_call.h"

namespace tandem::router {

void GenerateCall::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  const int attempt = queue_.front().attempt;
  queue_.pop_front();
  if (!ok) {
    OnClientGone();
  } else if (stream_ != nullptr && attempt == attempts_) {
    stream_->Acknowledge();
  }
  Advance();
}

void GenerateCall::WatchWrite() {
  watching_ = true;
  const auto passed = absl::FromChrono(std::chrono::steady_clock::now() - write_began_);
  write_alarm_ = std::make_unique<grpc::Alarm>();
  write_alarm_->Set(absl::ToChronoTime(absl::Now() + router_.write_stall_timeout() - passed),
                    [weak = weak_from_this()](bool in_time) {
                      std::shared_ptr<GenerateCall> call = weak.lock();
                      if (call == nullptr) return;
                      if (in_time) call->OnWriteWatch();
                      ReleaseElsewhere(std::move(call));
                    });
}

void GenerateCall::OnWriteWatch() {
  {
    absl::MutexLock lock(&mutex_);
    watching_ = false;
    // The next write watches again.
    if (!writing_ || finished_) return;
    if (absl::FromChrono(std::chrono::steady_clock::now() - write_began_) < router_.write_stall_timeout()) {
      return WatchWrite();
    }
    absl::Status stalled = absl::ResourceExhaustedError("the client read none of its output for too long");
    End(stalled);
    // Also of a call that was over but for the delivery.
    status_ = std::move(stalled);
    queue_.erase(queue_.begin() + 1, queue_.end());
    cancelling_ = true;
  }
  // The write under way fails by this. Without the mutex, as reactions may run meanwhile; the stream stays
  // until Finish.
  client_.Cancel();
  absl::MutexLock lock(&mutex_);
  cancelling_ = false;
  Advance();
}

}  // namespace tandem::router

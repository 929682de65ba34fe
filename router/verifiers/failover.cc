#include "router/verifiers/failover.h"

#include <utility>

namespace tandem::router {

void Failover::OnProgress() {
  progress_ = true;
  wait_began_.reset();
}

void Failover::OnFailed(size_t verifier, size_t num_verifiers) {
  tried_.push_back(verifier);
  if (tried_.size() >= num_verifiers) tried_.erase(tried_.begin());
  in_vain_ = std::exchange(progress_, false) ? 0 : in_vain_ + 1;
}

std::optional<absl::Duration> Failover::NextAttempt(size_t num_verifiers, bool has_output) const {
  if (in_vain_ < num_verifiers) return absl::ZeroDuration();
  if (!has_output || in_vain_ >= num_verifiers + kFurtherAttempts) return std::nullopt;
  return kFirstPause * (1 << static_cast<int>(in_vain_ - num_verifiers));
}

std::optional<absl::Duration> Failover::NextAsking(size_t num_verifiers, bool has_output) {
  if (!has_output || in_vain_ >= num_verifiers + kFurtherAttempts) return std::nullopt;
  const size_t pauses = in_vain_ < num_verifiers ? 0 : in_vain_ - num_verifiers;
  in_vain_ = num_verifiers + pauses + 1;
  return kFirstPause * (1 << static_cast<int>(pauses));
}

std::optional<absl::Time> Failover::WaitUntil(absl::Time now, absl::Duration longest) {
  const absl::Time end = wait_began_.value_or(now) + longest;
  if (now >= end) return std::nullopt;
  if (!wait_began_.has_value()) wait_began_ = now;
  return end;
}

void Failover::OnVerifierServes() {
  tried_.clear();
  in_vain_ = 0;
}

}  // namespace tandem::router

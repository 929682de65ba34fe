#include "router/admission.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tandem::router {

Admission::Ticket& Admission::Ticket::operator=(Ticket&& other) noexcept {
  if (this == &other) return *this;
  Release();
  admission_ = std::exchange(other.admission_, nullptr);
  tenant_ = other.tenant_;
  return *this;
}

void Admission::Ticket::Release() {
  if (admission_ != nullptr) std::exchange(admission_, nullptr)->Release(tenant_);
}

absl::StatusOr<Admission::Ticket> Admission::Admit(size_t tenant) {
  const uint32_t tenant_limit = table_.tenants[tenant].max_concurrent_requests;
  absl::MutexLock lock(&mutex_);
  if (draining_) return absl::UnavailableError("the router is shutting down");
  if (tenant_limit > 0 && in_flight_[tenant] >= tenant_limit) {
    return absl::ResourceExhaustedError(absl::StrCat("tenant \"", table_.tenants[tenant].name, "\" has ",
                                                     in_flight_[tenant],
                                                     " requests in flight, its limit; retry later"));
  }
  if (total_ >= table_.max_concurrent_requests) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the router has ", total_, " requests in flight, its limit; retry later"));
  }
  ++in_flight_[tenant];
  ++total_;
  return Ticket(this, tenant);
}

void Admission::Drain(absl::Time deadline) {
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return total_ == 0; };
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

uint32_t Admission::in_flight() const {
  absl::MutexLock lock(&mutex_);
  return total_;
}

void Admission::Release(size_t tenant) {
  absl::MutexLock lock(&mutex_);
  --in_flight_[tenant];
  --total_;
}

}  // namespace tandem::router

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/config.h"

namespace tandem::router {

// Bounds the requests in flight, per tenant and in all, so that overload is refused at the door and not piled
// up. Thread-safe; outlives its tickets.
class Admission {
 public:
  // A place among the requests in flight, given back on destruction.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept : admission_(other.admission_), tenant_(other.tenant_) {
      other.admission_ = nullptr;
    }
    Ticket& operator=(Ticket&& other) noexcept;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket() { Release(); }

   private:
    friend class Admission;
    Ticket(Admission* admission, size_t tenant) : admission_(admission), tenant_(tenant) {}
    void Release();

    Admission* admission_ = nullptr;
    size_t tenant_ = 0;
  };

  // Keeps a reference to `table`.
  explicit Admission(const RoutingTable& table) : table_(table), in_flight_(table.tenants.size(), 0) {}

  // ResourceExhausted, naming the limit, when the tenant or the router has no place left. `tenant` indexes
  // the table's tenants.
  absl::StatusOr<Ticket> Admit(size_t tenant);

  // Refuses everybody from now on with Unavailable, and returns once nothing is in flight or `deadline` has
  // passed.
  void Drain(absl::Time deadline);

  uint32_t in_flight() const;

 private:
  void Release(size_t tenant);

  const RoutingTable& table_;
  mutable absl::Mutex mutex_;
  std::vector<uint32_t> in_flight_ ABSL_GUARDED_BY(mutex_);  // Per tenant.
  uint32_t total_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::router

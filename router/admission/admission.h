#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/admission/fair_queue.h"
#include "router/admission/token_bucket.h"
#include "router/config/config.h"

namespace tandem::router {

// Bounds the requests in flight: per tenant, per model and in all. Under overload, requests wait or are
// refused here instead of piling up at verifiers, which serve in order of arrival and do not share fairly
// among tenants. If no place is free, a request waits in its tenant's bounded queue. Free places go to
// tenants in proportion to their weights (one FairQueue for each model), skipping tenants that have reached a
// limit of their own. If only the total limit is reached, models take turns.
//
// Some places of a model are kept spare for tenants that come next: `spare_percent` of them go only to
// tenants that hold none, or fewer than that number and fewer than their share by weight among the tenants
// present. So a tenant that arrives while another one uses all it can get starts at once, and need not wait
// for the end of a long output. A router with one tenant keeps no places spare.
//
// Thread-safe. Outlives its tickets. The state of a tenant, a few bytes, is never freed.
class Admission {
 public:
  // Called once for a request that had to wait: OK if its ticket holds a place from now on; Unavailable if
  // the router shuts down, and then the ticket is void. It runs on the thread that gave a place back, which
  // may hold locks, so it may only post work elsewhere. Once the ticket is given back, it is not called, or
  // has no effect.
  using OnPlace = std::function<void(absl::Status)>;

  // A place in flight, or a position in the queue for one. Given back on destruction.
  class Ticket {
   public:
    Ticket() = default;
    Ticket(Ticket&& other) noexcept
        : admission_(std::exchange(other.admission_, nullptr)),
          id_(other.id_),
          waits_at_first_(other.waits_at_first_) {}
    Ticket& operator=(Ticket&& other) noexcept;
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;
    ~Ticket() { Release(); }

    // Whether the request had to queue when it came, so that OnPlace starts it.
    bool waits_at_first() const { return waits_at_first_; }
    // Only the delivery of the output is left: gives the place to another request, but Drain still waits for
    // this ticket. Call it at most once.
    void GiveBackPlace();

   private:
    friend class Admission;
    Ticket(Admission* admission, uint64_t id, bool waits)
        : admission_(admission), id_(id), waits_at_first_(waits) {}
    void Release();

    Admission* admission_ = nullptr;
    uint64_t id_ = 0;
    bool waits_at_first_ = false;
  };

  static constexpr uint32_t kDefaultSparePercent = 20;

  // `clock` outlives the object. `spare_percent` is below 100.
  explicit Admission(const Clock* clock, uint32_t spare_percent = 0)
      : clock_(*clock), spare_percent_(spare_percent) {}

  // The model of a request that needs no verifier.
  static constexpr size_t kNoModel = static_cast<size_t>(-1);

  // Takes a place, or a position in the queue. `tenant` is an index into the tenants of `table`, whose limits
  // and weights apply from now on; counts belong to the tenant's name, across tables. `priority` orders the
  // tenant's own requests in the queue (FairQueue). ResourceExhausted, with the limit's name and
  // google.rpc.RetryInfo, if the tenant has used up its tokens or its queue is full; Unavailable while
  // shutting down.
  absl::StatusOr<Ticket> Admit(const RoutingTable& table, size_t tenant, OnPlace on_place = nullptr,
                               size_t model = kNoModel, int32_t priority = 0);

  // Sets how many requests of a model may be in flight. nullopt: only the total limit applies.
  void SetPlaces(size_t model, std::optional<uint32_t> places);

  // ResourceExhausted with google.rpc.RetryInfo if the tenant has used up its quota of tokens. Then spend no
  // work on its requests.
  absl::Status CheckQuota(const Tenant& tenant);
  // Reserves the tokens that a request may use, prompt and output, from its tenant's quota. Returns how many
  // were reserved: at most a minute's worth, so that any request can run if its tenant has used nothing for a
  // while. `tenant` must have been admitted. ResourceExhausted with google.rpc.RetryInfo if too few are left;
  // then `spent`, the tokens already used for the request, is charged, and RetryInfo takes it into account.
  absl::StatusOr<uint64_t> Reserve(const Tenant& tenant, uint64_t tokens, uint64_t spent = 0);
  // Charges the tokens used for a refused request, at most a minute's worth.
  void Charge(const Tenant& tenant, uint64_t spent);
  // Settles a reservation: puts back unused tokens, or charges those used beyond it.
  void Settle(const Tenant& tenant, uint64_t reserved, uint64_t used);

  // How much of its limits a tenant uses on this router, for routers that share the limits (SharedQuotas).
  struct Use {
    double tokens = 0.0;       // Of its quota, since the router started, less what was put back.
    double tokens_left = 0.0;  // Below 0: owed.
    uint32_t in_flight = 0;
    bool waiting = false;  // Requests are queued.
  };
  // The use of tenants with a limit that have had requests here, by name.
  std::map<std::string, Use> Uses(const RoutingTable& table);

  // The sum of what the other routers report about a tenant.
  struct ElsewhereUse {
    double tokens = 0.0;                // That were used since the call before.
    std::optional<double> tokens_left;  // No more than that, where what was used is not known.
    uint32_t in_flight = 0;
    uint32_t routers = 0;  // That have requests of the tenant, in flight or queued.
  };
  using Elsewhere = std::map<std::string, ElsewhereUse>;
  // Applies limits to this router and the others together. A tenant may have requests in flight here while
  // there are fewer than its limit on all routers, and in any case its share of the limit among the routers
  // that have requests of it. `part`: the share of every limit that this router grants; 1 if it knows what
  // the others use.
  void SetElsewhere(const RoutingTable& table, const Elsewhere& elsewhere, double part);

  // Refuses all requests with Unavailable, including those that wait. Returns once nothing is in flight and
  // all output is delivered, or `deadline` has passed.
  void Drain(absl::Time deadline);

  uint32_t in_flight() const;
  size_t queued() const;

 private:
  struct TenantState {
    uint32_t in_flight = 0;
    uint32_t limit = 0;  // 0: none.
    TokenBucket tokens;
    double used = 0.0;  // Of the tokens, here.
    uint32_t in_flight_elsewhere = 0;
    uint32_t routers_elsewhere = 0;
  };
  // A tenant with requests of a model, in flight or in the queue.
  struct Present {
    uint32_t requests = 0;
    uint32_t in_flight = 0;
    uint32_t weight = 1;
  };
  struct ModelState {
    std::optional<uint32_t> places;
    uint32_t in_flight = 0;
    std::map<std::string, Present> present;
    uint64_t present_weight = 0;  // Of all that are.
    FairQueue queue;
  };
  struct Request {
    std::string tenant;
    size_t model = kNoModel;
    bool has_place = false;
    bool delivers = false;
    OnPlace on_place;
  };

  // The tokens per minute that this router grants.
  double QuotaOf(const Tenant& tenant) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return std::max(tenant.tokens_per_minute * part_, 1.0);
  }
  void TakeTokens(const Tenant& tenant, double tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckQuotaLocked(const Tenant& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Ticket> AdmitNext(const Tenant& tenant, size_t model, OnPlace on_place, int32_t priority)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(uint64_t id);
  void Deliver(uint64_t id);
  // Takes away a request's place, or its position in the queue.
  void Displace(uint64_t id, Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoom(const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool HasRoom(const ModelState& model) {
    return !model.places.has_value() || model.in_flight < *model.places;
  }
  // Whether a present tenant may have the next place of a model.
  bool MayTakePlace(const ModelState& model, const std::string& tenant) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Count a request of the tenant that comes, gets a place, or goes.
  static void Enter(ModelState& model, const Tenant& tenant);
  void TakePlace(ModelState& model, const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Leave(ModelState& model, const std::string& tenant);
  size_t NumQueued() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t NumQueued(const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives a free place to the next request of a model, if there is one.
  std::optional<OnPlace> FillPlace(ModelState& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives free places to waiting requests. Call the returned functions without the mutex.
  std::vector<OnPlace> FillPlaces() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status QueueFull(const Tenant& tenant, const ModelState& model) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  const uint32_t spare_percent_;
  mutable absl::Mutex mutex_;
  std::map<std::string, TenantState> tenants_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Request> requests_ ABSL_GUARDED_BY(mutex_);  // Of the tickets that are out.
  std::map<size_t, ModelState> models_ ABSL_GUARDED_BY(mutex_);
  size_t last_model_ ABSL_GUARDED_BY(mutex_) = 0;  // That was given a place.
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t total_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t total_limit_ ABSL_GUARDED_BY(mutex_) = 0;
  bool keeps_spare_ ABSL_GUARDED_BY(mutex_) = false;  // There is more than one tenant.
  uint32_t delivering_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  double part_ ABSL_GUARDED_BY(mutex_) = 1.0;  // SetElsewhere.
  // The time between two places becoming free while requests wait, smoothed; and when the last one did.
  absl::Duration turn_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
  absl::Time last_turn_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace tandem::router

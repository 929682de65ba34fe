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

// Bounds the requests in flight, per tenant, per model and in all, so that overload waits or is refused at
// the door and does not pile up behind it: what waits at a verifier is served in the order of its arrival,
// whoever sent it. Where no place is free a request waits in its tenant's bounded queue; places that become
// free go to tenants in proportion to their weights (one FairQueue for each model), past those that are at a
// limit of their own. Where only the limit in all is short, models take turns.
//
// Some of a model's places are kept for those who come next: `spare_percent` of them go only to tenants that
// have fewer than so many of them, and than their share by weight among the tenants that are there, or none.
// So whoever comes while another tenant has all it could get starts at once, and does not wait for the end of
// somebody's long output. A router of one tenant keeps none.
//
// Thread-safe; outlives its tickets. What is kept of a tenant is kept for good, a few bytes each.
class Admission {
 public:
  // Called once for a request that had to wait: OK when its ticket holds a place from now on; Unavailable
  // when the router shuts down, the ticket being void then. On a thread that gave a place back, which may
  // hold locks of its own: it may only post elsewhere. Not called, or without effect, once the ticket is
  // given back.
  using OnPlace = std::function<void(absl::Status)>;

  // A place among the requests in flight, or one in the queue for it, given back on destruction.
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

    // Whether the request had to queue when it came, so that OnPlace is what starts it.
    bool waits_at_first() const { return waits_at_first_; }
    // What is left of the request is to deliver its output: the place may go to another one, and Drain still
    // waits for this ticket. At most once.
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

  // A request that no verifier is asked for has no model.
  static constexpr size_t kNoModel = static_cast<size_t>(-1);

  // A place, or one in the queue. `tenant` indexes the tenants of `table`, whose limits and weights hold from
  // now on; counting goes by the tenant's name, across tables. ResourceExhausted, naming the limit and with
  // google.rpc.RetryInfo, when the tenant has used up its tokens or its queue is full; Unavailable while
  // shutting down.
  // `priority` orders the tenant's own requests in the queue (FairQueue).
  absl::StatusOr<Ticket> Admit(const RoutingTable& table, size_t tenant, OnPlace on_place = nullptr,
                               size_t model = kNoModel, int32_t priority = 0);

  // How many requests of a model may be in flight from now on; nothing: as many as in all.
  void SetPlaces(size_t model, std::optional<uint32_t> places);

  // ResourceExhausted with google.rpc.RetryInfo when a tenant has used up its quota of tokens: then nothing
  // is to be spent on a request of it.
  absl::Status CheckQuota(const Tenant& tenant);
  // Takes what a request may use, prompt and output, out of its tenant's quota: how much was taken, at most a
  // minute's worth, so that any request runs when its tenant has used nothing for a while. `tenant` is one
  // that was admitted. ResourceExhausted with google.rpc.RetryInfo when there is not so much left; then
  // `spent`, what was done for the request already, is charged, and RetryInfo counts it.
  absl::StatusOr<uint64_t> Reserve(const Tenant& tenant, uint64_t tokens, uint64_t spent = 0);
  // Charges what was done for a request that was refused, at most a minute's worth.
  void Charge(const Tenant& tenant, uint64_t spent);
  // What became of that: puts back what was not used, or takes what was used beyond it.
  void Settle(const Tenant& tenant, uint64_t reserved, uint64_t used);

  // What a tenant of this router uses of its limits, for routers that share them (SharedQuotas).
  struct Use {
    double tokens = 0.0;       // Of its quota, since the router started, less what was put back.
    double tokens_left = 0.0;  // Below 0: owed.
    uint32_t in_flight = 0;
    bool waiting = false;  // Requests are queued.
  };
  // By name, of the tenants with a limit that have had requests here.
  std::map<std::string, Use> Uses(const RoutingTable& table);

  // What all other routers say of a tenant.
  struct ElsewhereUse {
    double tokens = 0.0;                // That were used since the call before.
    std::optional<double> tokens_left;  // No more than that, where what was used is not known.
    uint32_t in_flight = 0;
    uint32_t routers = 0;  // That have requests of the tenant, in flight or queued.
  };
  using Elsewhere = std::map<std::string, ElsewhereUse>;
  // Limits hold for this router and the others together from now on. A tenant may have requests in flight
  // here as long as there are fewer in all, and always its share of the limit among the routers that have any
  // of it. `part`: of every limit that this router gives by itself, 1 where it knows of the others.
  void SetElsewhere(const RoutingTable& table, const Elsewhere& elsewhere, double part);

  // Refuses everybody from now on with Unavailable, those who wait too, and returns once nothing is in flight
  // and no output is to be delivered, or `deadline` has passed.
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

  // The tokens per minute that this router gives.
  double QuotaOf(const Tenant& tenant) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return std::max(tenant.tokens_per_minute * part_, 1.0);
  }
  void TakeTokens(const Tenant& tenant, double tokens) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckQuotaLocked(const Tenant& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Ticket> AdmitNext(const Tenant& tenant, size_t model, OnPlace on_place, int32_t priority)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(uint64_t id);
  void Deliver(uint64_t id);
  // Takes its place, or its place in the queue, from a request.
  void Displace(uint64_t id, Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoom(const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool HasRoom(const ModelState& model) {
    return !model.places.has_value() || model.in_flight < *model.places;
  }
  // Whether a tenant that is present may have the next place of a model.
  bool MayTakePlace(const ModelState& model, const std::string& tenant) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A request of the tenant comes, is given a place, or goes.
  static void Enter(ModelState& model, const Tenant& tenant);
  void TakePlace(ModelState& model, const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void Leave(ModelState& model, const std::string& tenant);
  size_t NumQueued() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t NumQueued(const std::string& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives a free place to the next request of a model, if there is one.
  std::optional<OnPlace> FillPlace(ModelState& model) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Gives free places to those who wait; what is returned is to be called without the mutex.
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
  // How long it takes until a place becomes free while somebody waits, smoothed; and when the last one did.
  absl::Duration turn_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1);
  absl::Time last_turn_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace tandem::router

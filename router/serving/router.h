#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/tracing/span.h"
#include "router/admission/admission.h"
#include "router/admission/worker_pool.h"
#include "router/drafters/canary_monitor.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/drafter_policy.h"
#include "router/drafters/feedback/feedback.h"
#include "router/drafters/policy_memory.h"
#include "router/live/live_call.h"
#include "router/models/served_model.h"
#include "router/serving/metrics.h"
#include "router/serving/preparation_services.h"
#include "router/serving/running_calls.h"
#include "router/serving/swap.h"
#include "router/spool/spool.h"
#include "router/state/routing_snapshot.h"
#include "router/state/routing_state.h"
#include "router/verifiers/verifier_pool.h"

namespace tandem::router {

// What the choice of drafters needs to know about the models.
std::vector<DrafterChooser::Model> ChooserModels(const std::vector<ServedModel>& models);

// What all calls of the router share. Thread-safe. A call may outlive its RPC until a worker or a verifier
// releases it. The destructor waits for such calls, so destroy the router after its server has shut down.
class Router {
 public:
  struct Options {
    std::unique_ptr<RoutingState> routing;
    std::vector<ServedModel> models;    // One for each of the routing table's, in its order.
    DrafterChooser* chooser = nullptr;  // Of `models`; outlives the router. None: it has its own.
    PolicyMemory* policies = nullptr;   // Outlives the router. None: it has its own.
    int tokenizer_threads = 2;
    uint32_t spare_percent = 0;    // Of Admission.
    const Clock* clock = nullptr;  // Outlives the router.
    VerifierPool::Options verifiers;
    // How long a client may read nothing before the router ends its call.
    absl::Duration write_stall_timeout = absl::Seconds(30);
    RouterMetrics* metrics = nullptr;       // Outlives the router.
    Feedback* feedback = nullptr;           // Outlives the router; none: no request is scored.
    LiveView* live = nullptr;               // Outlives the router; none: no live page.
    Spool* spool = nullptr;                 // Outlives the router; none: nothing is kept of requests.
    std::function<uint64_t()> draw;         // Random bits for seeds and request ids. Thread-safe.
    const Tracer* tracer = &Tracer::Off();  // Outlives the router.
  };

  explicit Router(Options options);
  ~Router();

  // Held by code that uses the router and may run after its RPC has ended.
  class Lease {
   public:
    explicit Lease(Router& router) : router_(router) { router_.ChangeLeases(1); }
    ~Lease() { router_.ChangeLeases(-1); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

   private:
    Router& router_;
  };

  // Refuses new requests and returns once none is in flight or `deadline` has passed. Shortly before the
  // deadline, running requests end with UNAVAILABLE, so that clients continue at another router.
  void Drain(absl::Time deadline);

  // The current routing data. A call takes one snapshot and keeps it.
  std::shared_ptr<const RoutingSnapshot> snapshot() const { return options_.routing->snapshot(); }
  RoutingState& routing() { return *options_.routing; }
  const ServedModel& model(size_t index) const { return options_.models[index]; }
  size_t num_models() const { return options_.models.size(); }
  const Clock& clock() const { return *options_.clock; }
  uint64_t Draw() const { return options_.draw(); }
  const Tracer& tracer() const { return *options_.tracer; }
  absl::Duration write_stall_timeout() const { return options_.write_stall_timeout; }
  Admission& admission() { return admission_; }
  CanaryMonitor& canaries() { return canaries_; }
  RouterMetrics& metrics() { return *options_.metrics; }
  Feedback* feedback() { return options_.feedback; }
  LiveView* live() { return options_.live; }
  Spool* spool() { return options_.spool; }
  VerifierPool& verifiers() { return verifiers_; }
  RunningCalls& running_calls() { return running_calls_; }
  WorkerPool& workers() { return workers_; }
  // The chooser of drafters. Its model indices are those of model().
  DrafterChooser& chooser() { return *chooser_; }
  PolicyMemory& policies() { return *policies_; }
  const PreparationServices& preparation() const { return preparation_; }
  // PreparationServices' method.
  DrafterFilter CanDraft(size_t model, const Tenant& tenant) const {
    return preparation_.CanDraft(model, tenant);
  }

 private:
  void ChangeLeases(int by);

  const Options options_;
  Admission admission_;
  CanaryMonitor canaries_;
  std::unique_ptr<DrafterChooser> own_chooser_;
  DrafterChooser* const chooser_;
  VerifierPool verifiers_;      // Tells the chooser of them.
  RunningCalls running_calls_;  // Asks verifiers.
  PolicyMemory own_policies_;
  PolicyMemory* const policies_;
  const PreparationServices preparation_;
  absl::Mutex mutex_;
  int leases_ ABSL_GUARDED_BY(mutex_) = 0;
  WorkerPool workers_;
};

}  // namespace tandem::router

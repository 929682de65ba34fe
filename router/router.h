#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "router/admission.h"
#include "router/config.h"
#include "router/metrics.h"
#include "router/served_model.h"
#include "router/tenants.h"
#include "router/verifier_pool.h"
#include "router/worker_pool.h"

namespace tandem::router {

// What the router's calls share. Thread-safe. Calls may outlive their RPC by the time a worker or a verifier
// takes to let go of them; the destructor waits for them, so destroy the router after its server has shut
// down.
class Router {
 public:
  struct Options {
    RoutingTable table;
    std::vector<ServedModel> models;  // One for each of the table's, in its order.
    int tokenizer_threads = 2;
    const Clock* clock = nullptr;      // Outlives the router.
    RouterMetrics* metrics = nullptr;  // Outlives the router.
    std::function<uint64_t()> draw;    // Random bits for seeds and request ids. Thread-safe.
  };

  explicit Router(Options options);
  ~Router();

  // Held by everything that uses the router after its RPC may be over.
  class Lease {
   public:
    explicit Lease(Router& router) : router_(router) { router_.ChangeLeases(1); }
    ~Lease() { router_.ChangeLeases(-1); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

   private:
    Router& router_;
  };

  const RoutingTable& table() const { return options_.table; }
  const ServedModel& model(size_t index) const { return options_.models[index]; }
  const Clock& clock() const { return *options_.clock; }
  uint64_t Draw() const { return options_.draw(); }
  const Tenants& tenants() const { return tenants_; }
  Admission& admission() { return admission_; }
  RouterMetrics& metrics() { return *options_.metrics; }
  VerifierPool& verifiers() { return verifiers_; }
  WorkerPool& workers() { return workers_; }

 private:
  void ChangeLeases(int by);

  const Options options_;
  const Tenants tenants_;
  Admission admission_;
  VerifierPool verifiers_;
  absl::Mutex mutex_;
  int leases_ ABSL_GUARDED_BY(mutex_) = 0;
  WorkerPool workers_;
};

}  // namespace tandem::router

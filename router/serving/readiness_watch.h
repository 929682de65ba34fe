#pragma once

#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/metrics/metrics.h"
#include "common/rpc/server.h"
#include "router/serving/readiness.h"
#include "router/serving/router.h"

namespace tandem::router {

// The state of the router's models: whether a tenant may use them, and whether a verifier serves them.
std::vector<Readiness::Model> ModelsOf(Router& router);

// Sets the health of a router's server from Readiness, from construction to destruction:
//
//   VerifierPool, RoutingSnapshot --every 50 ms--> Readiness --> ServerRunner::SetServing(NamesOfReadiness())
//                                                           '--> tandem_router_serving_verifiers{model},
//                                                                tandem_router_waiting_for_verifier{model}
//
// It also sets the number of places of each model in admission to the number that its verifiers have. Once
// the server drains, the health does not change any more. Runs a thread of its own.
class ReadinessWatch {
 public:
  // All arguments outlive this; the registry may be null.
  ReadinessWatch(const Readiness::Options& options, Router* router, ServerRunner* server,
                 MetricsRegistry* registry);
  ~ReadinessWatch();

 private:
  void Watch();
  void Update();

  Router& router_;
  ServerRunner& server_;
  GaugeFamily* const serving_verifiers_;
  GaugeFamily* const waiting_;
  GaugeFamily* const places_;
  Readiness readiness_;  // The thread's.
  bool ready_ = false;
  std::vector<std::string> unserved_;  // As last told.
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::router

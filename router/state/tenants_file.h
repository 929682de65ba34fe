#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "router/state/routing_state.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router {

// `config` with the drafters and tenants of a tenants file added: YAML of tandem.v1.RouterConfig that says
// nothing else. InvalidArgument, naming the file, when it cannot be read, says something else, or when the
// two together do not resolve.
absl::StatusOr<v1::RouterConfig> AddTenants(const v1::RouterConfig& config, absl::string_view text,
                                            const std::string& path);
absl::StatusOr<v1::RouterConfig> AddTenantsFile(const v1::RouterConfig& config, const std::string& path);

// Brings the state up to date when the tenants file changes, by the rules of RoutingState. A thread reads the
// file every `interval`, whatever has become of it: written anew, moved into place, or behind a symbolic link
// that was switched, as Kubernetes does with a mounted ConfigMap; what it finds twice in a row counts. A file
// that cannot be used changes nothing; that is logged once, and it is tried again as long as it is there,
// since it may depend on the state or on a store that is out of reach.
//
// tandem_router_tenants_file_reloads_total{outcome} counts "applied" and "refused" contents;
// tandem_router_tenants_file_refused is 1 while what the file says is not in force.
class TenantsFileFollower {
 public:
  struct Options {
    std::string path;
    v1::RouterConfig config;  // What the tenants are added to.
    absl::Duration interval = absl::Seconds(1);
  };
  // `applied`: the content that is in force. `state` and `registry` outlive this.
  TenantsFileFollower(Options options, std::string applied, RoutingState* state, MetricsRegistry* registry);
  ~TenantsFileFollower();
  TenantsFileFollower(const TenantsFileFollower&) = delete;
  TenantsFileFollower& operator=(const TenantsFileFollower&) = delete;

 private:
  void Run();
  // Reads the file and applies it when it has changed.
  void Look();
  absl::Status Apply(const std::string& content);

  const Options options_;
  RoutingState& state_;
  CounterFamily& reloads_;
  const Gauge refused_;
  // The thread's.
  std::string applied_;
  std::string seen_;    // What the last look found.
  std::string logged_;  // The error that was logged last; empty: none since a content was applied.
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// The file as it is. Errors name it.
absl::StatusOr<std::string> ReadTenantsFile(const std::string& path);

}  // namespace tandem::router

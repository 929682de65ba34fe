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
#include "common/config/secret.h"
#include "common/metrics/metrics.h"
#include "router/state/routing_state.h"
#include "tandem/v1/config.pb.h"

namespace tandem::router {

// Adds to `config` the drafters and tenants of a tenants file: YAML of tandem.v1.RouterConfig with no other
// fields. InvalidArgument, naming the file, if it cannot be read or has other fields, or if the two together
// do not resolve.
absl::StatusOr<v1::RouterConfig> AddTenants(const v1::RouterConfig& config, absl::string_view text,
                                            const std::string& path);
absl::StatusOr<v1::RouterConfig> AddTenantsFile(const v1::RouterConfig& config, const std::string& path);

// Applies changes of the tenants file to the state, by the rules of RoutingState. A thread reads the file
// every `interval`, so it does not matter how the file changes: it may be rewritten, moved into place, or
// switched behind a symbolic link, as Kubernetes does with a mounted ConfigMap. New content counts once two
// reads in a row have found it. A file that cannot be used changes nothing: the error is logged once, and the
// file is tried again as long as it is there, because the error may depend on the state or on a store that is
// out of reach.
//
// tandem_router_tenants_file_reloads_total{outcome} counts "applied" and "refused" contents;
// tandem_router_tenants_file_refused is 1 while the file's content is not in force.
class TenantsFileFollower {
 public:
  struct Options {
    std::string path;
    v1::RouterConfig config;  // What the tenants are added to.
    absl::Duration interval = absl::Seconds(1);
  };
  // `applied`: the file's content that is in force. `state` and `registry` outlive this.
  TenantsFileFollower(Options options, Secret applied, RoutingState* state, MetricsRegistry* registry);
  ~TenantsFileFollower();
  TenantsFileFollower(const TenantsFileFollower&) = delete;
  TenantsFileFollower& operator=(const TenantsFileFollower&) = delete;

 private:
  void Run();
  // Reads the file and applies it when it has changed.
  void Look();
  absl::Status Apply(const Secret& content);

  const Options options_;
  RoutingState& state_;
  CounterFamily& reloads_;
  const Gauge refused_;
  // Used by the thread only. The file may contain tokens.
  Secret applied_;
  Secret seen_;         // What the last look found.
  std::string logged_;  // The error that was logged last; empty: none since a content was applied.
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// The file's content, which may contain tokens. Errors name the file.
absl::StatusOr<Secret> ReadTenantsFile(const std::string& path);

}  // namespace tandem::router

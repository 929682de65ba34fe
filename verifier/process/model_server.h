#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "common/rpc/constraint_service.h"
#include "common/rpc/registration.h"
#include "common/rpc/security.h"
#include "common/tracing/span.h"
#include "tandem/v1/admin.pb.h"
#include "tandem/v1/verifier.pb.h"
#include "verifier/process/policy_file.h"
#include "verifier/process/target_engine.h"
#include "verifier/rpc/engine_loop.h"
#include "verifier/rpc/metrics.h"
#include "verifier/rpc/service.h"

namespace tandem {

// One model that a verifier serves, from its files to the end of its last request: its engine, scheduler,
// metrics and registration.
//
//   Open --> service() refuses --Load--> serves, registered at routers --Leave--> routers know that it leaves
//        --> Drain: refuses, and running sessions end --> destroyed, which frees its memory
//
// Call Load, Leave, Drain and the destructor from one thread at a time. All other methods are thread-safe.
class ModelServer {
 public:
  // What the models of a process share. It outlives them.
  struct Context {
    const VerifierFlags* options = nullptr;
    std::string flag_policy;  // --window-policy, whatever the file says.
    std::string policy_file;  // The content of --window-policy-file.
    const Security* security = nullptr;
    MetricsRegistry* registry = nullptr;
    RegistrationMetric* registration_metric = nullptr;
    const Tracer* tracer = nullptr;
    const Clock* clock = nullptr;
    v1::ServerRegistration identity;     // Who the process is to routers, once it listens.
    std::shared_ptr<EngineTurns> turns;  // Null: there is one model.
    std::function<bool()> stopped;       // Whether loading should stop.
  };

  // `registered_as`: appended to the process's registered name, because each model registers separately.
  static absl::StatusOr<std::unique_ptr<ModelServer>> Open(const Context& context, OpenedTarget target,
                                                           std::string registered_as);
  ~ModelServer();

  const std::string& name() const { return target_.served.name; }
  const v1::ModelInfo& info() const { return fixed_.models(0); }
  uint64_t kv_tokens() const { return target_.kv_tokens; }
  uint64_t kv_bytes() const { return target_.kv_bytes; }  // When all are used.
  VerifierService* service() { return &service_; }

  // LoadAdapter and UnloadAdapter, once the model serves. The folder must exist.
  absl::StatusOr<v1::LoadAdapterResponse> LoadAdapter(const std::string& name, const std::string& folder);
  absl::StatusOr<v1::UnloadAdapterResponse> UnloadAdapter(const std::string& name);

  // Loads the model; returns when it serves. Cancelled if Context::stopped says so.
  absl::Status Load();
  // Blocks until its round times are measured, which others that load would disturb; false if the time has
  // passed before.
  bool AwaitWarmUp(absl::Duration timeout) const { return loop_->AwaitWarmUp(timeout); }
  // Registers the model at routers.
  void Register();

  // The server info of a verifier with only this model.
  v1::ServerInfo Describe() const;
  absl::Duration busy_time() const;

  void Leave();
  // Refuses new requests; returns when nothing runs or the deadline has passed.
  void Drain(absl::Time deadline);
  // VerifierService::AwaitNoCalls. Call it after Drain, once nobody can find the service any more.
  bool AwaitNoCalls(absl::Duration timeout) { return service_.AwaitNoCalls(timeout); }

 private:
  ModelServer(const Context& context, OpenedTarget target, v1::ServerInfo fixed, std::string registered_as);
  // What routers are told.
  v1::ServerRegistration Registration() const;

  const Context& context_;
  const OpenedTarget target_;
  const v1::ServerInfo fixed_;  // What does not change while it is there.
  const std::string registered_as_;
  MetricsRegistry part_;  // Of the process' metrics, where there are several models.
  MetricsRegistry* const registry_;
  VerifierMetrics metrics_;
  ConstraintMetrics constraint_metrics_;
  VerifierService service_;
  // The following are written before the service gets the loop, and read after that.
  uint64_t kv_tokens_total_ = 0;
  v1::ServerRegistration self_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<PolicyFileWatch> policy_watch_;
  // Destroyed before the loop and the service, which it calls.
  std::unique_ptr<ConstraintCompiler> constraints_;
  std::unique_ptr<RouterRegistration> registration_;
};

}  // namespace tandem

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

// One model that a verifier serves, from its files to the end of its last request: an engine and a scheduler
// of its own, and what is measured and said of it.
//
//   Open --> service() refuses --Load--> it serves, and routers are told --Leave--> they are told otherwise
//        --> Drain: it refuses, and what runs ends --> destroyed, and its memory with it
//
// Load, Leave, Drain and destruction are called by one thread at a time; the rest from any.
class ModelServer {
 public:
  // What the models of a process share. All of it outlives them.
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

  // Looks at the files. `registered_as` comes behind the name that the process registers under: each model is
  // registered by itself.
  static absl::StatusOr<std::unique_ptr<ModelServer>> Open(const Context& context, const ModelPlan& plan,
                                                           std::string registered_as);
  ~ModelServer();

  const std::string& name() const { return target_.served.name; }
  const v1::ModelInfo& info() const { return fixed_.models(0); }
  uint64_t kv_tokens() const { return target_.kv_tokens; }
  VerifierService* service() { return &service_; }

  // What LoadAdapter and UnloadAdapter ask for, once it serves. The folder is one.
  absl::StatusOr<v1::LoadAdapterResponse> LoadAdapter(const std::string& name, const std::string& folder);
  absl::StatusOr<v1::UnloadAdapterResponse> UnloadAdapter(const std::string& name);

  // Until it serves. Cancelled as Context says.
  absl::Status Load();
  // Has routers told that it is there.
  void Register();

  // As a verifier of this model alone would tell of itself.
  v1::ServerInfo Describe() const;
  absl::Duration busy_time() const;

  void Leave();
  // Refuses new requests; returns when nothing runs or the deadline has passed.
  void Drain(absl::Time deadline);
  // VerifierService::AwaitNoCalls. After Drain, and once nobody can find its service any more.
  bool AwaitNoCalls(absl::Duration timeout) { return service_.AwaitNoCalls(timeout); }

 private:
  ModelServer(const Context& context, OpenedTarget target, v1::ServerInfo fixed, std::string registered_as);

  const Context& context_;
  const OpenedTarget target_;
  const v1::ServerInfo fixed_;  // What does not change while it is there.
  const std::string registered_as_;
  MetricsRegistry part_;  // Of the process' metrics, where there are several models.
  MetricsRegistry* const registry_;
  VerifierMetrics metrics_;
  ConstraintMetrics constraint_metrics_;
  VerifierService service_;
  // What follows is written before the service has the loop, and read after.
  uint64_t kv_tokens_total_ = 0;
  google::protobuf::RepeatedPtrField<v1::RoundSeconds> round_seconds_;
  v1::ServerRegistration self_;
  std::unique_ptr<EngineLoop> loop_;
  std::unique_ptr<PolicyFileWatch> policy_watch_;
  // Ends before the loop and the service, which it calls.
  std::unique_ptr<ConstraintCompiler> constraints_;
  std::unique_ptr<RouterRegistration> registration_;
};

}  // namespace tandem

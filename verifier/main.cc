#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/steady_clock.h"
#include "common/config/flags.h"
#include "common/config/version.h"
#include "common/metrics/metrics.h"
#include "common/rpc/local_sockets.h"
#include "common/rpc/registration.h"
#include "common/rpc/server.h"
#include "common/rpc/server_flags.h"
#include "common/rpc/tracing.h"
#include "verifier/process/main_flags.h"
#include "verifier/process/model_plan.h"
#include "verifier/process/model_pool.h"
#include "verifier/process/model_server.h"
#include "verifier/process/policy_file.h"
#include "verifier/process/target_engine.h"

namespace tandem {
namespace {

absl::StatusOr<std::string> ReadPolicyFile(VerifierFlags* options) {
  if (options->window_policy_file.empty()) return std::string();
  TANDEM_ASSIGN_OR_RETURN(std::string content, ReadFile(options->window_policy_file, kMaxPolicyFileBytes));
  TANDEM_ASSIGN_OR_RETURN(const WindowPolicyFile file,
                          ParseWindowPolicyFile(content, options->window_policy_file));
  if (!file.policy.empty()) options->window_policy = file.policy;
  options->policy_options = file.options;
  return content;
}

// --check-config: everything but the loading.
absl::Status CheckConfig(VerifierFlags options, const std::vector<ModelPlan>& plans) {
  TANDEM_RETURN_IF_ERROR(ReadPolicyFile(&options).status());
  TANDEM_RETURN_IF_ERROR(OpenTargets(options, plans).status());
  LogInfo("the configuration is valid", {{"model", absl::StrJoin(options.models, ", ")}});
  return absl::OkStatus();
}

// The server is up while models load, so that probes and dashboards can watch; health is NOT_SERVING until
// they have. Cancelled by a signal until then.
absl::Status Serve(VerifierFlags options, const std::vector<ModelPlan>& plans, const Security& security,
                   ShutdownSignals& signals) {
  const absl::Time start = absl::Now();
  ModelServer::Context context;
  context.flag_policy = options.window_policy;
  TANDEM_ASSIGN_OR_RETURN(context.policy_file, ReadPolicyFile(&options));
  MetricsRegistry registry;
  registry.AddProcessMetrics(Version());
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Tracing> tracing,
                          Tracing::Start(options.server.tracing, "tandem-verifier", Version(), &registry));
  RegistrationMetric registration_metric(&registry);
  // Of deadlines, waits and steps.
  const SteadyClock clock;
  context.options = &options;
  context.security = &security;
  context.registry = &registry;
  context.registration_metric = &registration_metric;
  context.tracer = &tracing->tracer();
  context.clock = &clock;
  context.stopped = [&signals] { return signals.Arrived(); };
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ModelPool> pool, ModelPool::Open(std::move(context), plans));
  const auto server_info = [&pool, start] {
    v1::ServerInfo info = pool->Describe();
    info.set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - start));
    return info;
  };
  ServerOptions server_options = MakeServerOptions(options.server, security, &registry);
  server_options.stalled = [&pool] { return pool->busy_time(); };
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<ServerRunner> server,
      ServerRunner::Start(server_options, {{v1::Verifier::service_full_name(), pool->directory()}},
                          {.server_info = server_info}));
  server->SetServing(false);
  const auto announce = [&server](absl::string_view event) {
    LogInfo(event, {{"address", server->address()},
                    {"metrics_port", absl::StrCat(server->metrics_port())},
                    {"health_port", absl::StrCat(server->health_port())}});
  };
  announce("loading");
  // A signal ends this at once: nothing runs yet that would have to be drained.
  TANDEM_RETURN_IF_ERROR(pool->Load(server.get()));
  server->SetServing(true);
  announce("serving");
  pool->Register();
  signals.Wait();
  pool->Leave();
  LogInfo("draining", {{"grace", absl::FormatDuration(options.server.drain_grace)}});
  server->Drain(options.server.drain_times(), [&pool](absl::Time deadline) { pool->Drain(deadline); });
  return absl::OkStatus();
}

int Main(int argc, const char* const* argv) {
  ShutdownSignals signals;
  VerifierFlags options;
  Flags flags(
      "tandem-verifier", "verifier",
      "Holds a target model, verifies candidate trees of many requests in one batch, and commits tokens.");
  DeclareVerifierFlags(options, flags);
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  const absl::StatusOr<TreeShape> shape = ParseTreeShape(options.tree_shape);
  const absl::StatusOr<VerificationRuleKind> rule = ParseVerificationRule(options.verification_rule);
  const absl::StatusOr<Security> security = OpenServerSecurity(options.server, v1::SERVER_ROLE_VERIFIER);
  absl::StatusOr<std::vector<ModelPlan>> plans =
      PlanModels(options.models, options.kv_tokens, options.kv_shares);
  absl::Status status = shape.status();
  status.Update(plans.status());
  if (plans.ok()) status.Update(PlanAdapters(options.adapters, &*plans));
  if (options.num_gpus > 1 && ServesSeveral(options)) {
    status.Update(absl::InvalidArgumentError("--gpus: above 1, expected one --model and no --models-folder"));
  }
  status.Update(rule.status());
  status.Update(security.status());
  status.Update(CheckRegistrationFlags(options.registration, options.server.listen));
  if (!options.local_sockets.empty()) status.Update(PrepareLocalSockets(options.local_sockets));
  if (shape.ok()) options.limits.shape = *shape;
  if (rule.ok()) options.rule = *rule;
  if (!status.ok()) {
    // Said below.
  } else if (flags.check_config()) {
    status = CheckConfig(options, *plans);
  } else if (options.gpu_rank > 0) {
    status = FollowRankZero(options, plans->front(), [&signals] { return signals.Arrived(); });
  } else {
    status = Serve(options, *plans, *security, signals);
  }
  if (status.ok()) return kExitOk;
  if (absl::IsCancelled(status) && signals.Arrived()) {
    LogInfo("stopped while loading", {{"state", std::string(status.message())}});
    return kExitOk;
  }
  LogError("cannot serve", {{"error", status.ToString()}});
  return kExitFailure;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc, argv);
}

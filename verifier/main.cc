#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/base/steady_clock.h"
#include "common/config/flags.h"
#include "common/config/version.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/cpu_list.h"
#include "common/engine/cpu/product_arithmetic.h"
#include "common/engine/cuda/create_cuda_engine.h"
#include "common/engine/kv_type.h"
#include "common/engine/paced_engine.h"
#include "common/engine/weight_type.h"
#include "common/metrics/metrics.h"
#include "common/model/model.h"
#include "common/model/model_spec.h"
#include "common/model/target_fingerprint.h"
#include "common/rpc/constraint_service.h"
#include "common/rpc/local_sockets.h"
#include "common/rpc/model_wire.h"
#include "common/rpc/registration.h"
#include "common/rpc/server.h"
#include "common/rpc/server_flags.h"
#include "common/rpc/tracing.h"
#include "common/rpc/weights_digest.h"
#include "common/tokenizer/tokenizer.h"
#include "verifier/engine_loop.h"
#include "verifier/feature_store.h"
#include "verifier/main_flags.h"
#include "verifier/metrics.h"
#include "verifier/policy_file.h"
#include "verifier/service.h"
#include "verifier/warm_up.h"

namespace tandem {
namespace {

constexpr absl::Duration kPolicyFilePeriod = absl::Seconds(1);

// The CPUs of --cpu-list; errors name the flag.
absl::StatusOr<std::vector<int>> PinnedCpus(const VerifierFlags& options) {
  absl::StatusOr<std::vector<int>> cpus = CpusForThreads(options.cpu_list, static_cast<int>(options.threads));
  if (!cpus.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--cpu-list: ", cpus.status().message()));
  }
  return cpus;
}

absl::Status CheckDeviceFlags(const VerifierFlags& options) {
  TANDEM_ASSIGN_OR_RETURN(const DeviceSpec device, ParseDeviceSpec(options.device));
  TANDEM_RETURN_IF_ERROR(PrepareDevice(device));
  if (options.gpu_rank >= options.num_gpus) {
    return absl::InvalidArgumentError(
        absl::StrCat("--gpu-rank: ", options.gpu_rank, ", expected less than --gpus, ", options.num_gpus));
  }
  if (options.num_gpus == 1) return absl::OkStatus();
  if (!device.is_cuda) return absl::InvalidArgumentError("--gpus: several, expected --device=cuda or cuda:N");
  if (options.gpu_rendezvous.empty()) {
    return absl::InvalidArgumentError("--gpu-rendezvous: expected a file, as there are several GPUs");
  }
  return absl::OkStatus();
}

// The target as files: what --check-config looks at, and what Serve begins with.
struct OpenedTarget {
  std::shared_ptr<const Model> model;
  WeightType weight_type = WeightType::kAsInFile;
  KvType kv_type = KvType::kAuto;
  ServedTarget served;
  uint64_t vocabulary_fingerprint = 0;
};

absl::StatusOr<OpenedTarget> OpenTarget(const VerifierFlags& options) {
  TANDEM_RETURN_IF_ERROR(PinnedCpus(options).status());
  TANDEM_RETURN_IF_ERROR(CheckDeviceFlags(options));
  if (!options.simulated_pace.empty()) TANDEM_RETURN_IF_ERROR(ParsePace(options.simulated_pace).status());
  TANDEM_ASSIGN_OR_RETURN(const ModelSpec spec, ParseModelSpec(options.model));
  TANDEM_ASSIGN_OR_RETURN(const DeviceSpec device, ParseDeviceSpec(options.device));
  OpenedTarget target;
  TANDEM_ASSIGN_OR_RETURN(target.weight_type, ParseWeightType(options.weight_dtype));
  TANDEM_RETURN_IF_ERROR(device.is_cuda ? ValidateGpuWeightType(target.weight_type)
                                        : ValidateCpuWeightType(target.weight_type));
  TANDEM_ASSIGN_OR_RETURN(target.kv_type, ParseKvType(options.kv_type));
  if (device.is_cuda) TANDEM_RETURN_IF_ERROR(ValidateGpuKvType(target.kv_type));
  TANDEM_ASSIGN_OR_RETURN(target.model, Model::Load(spec.folder));
  const ModelConfig& config = target.model->config();
  if (config.head.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: ", spec.folder, " holds a draft head, expected a target"));
  }
  TANDEM_RETURN_IF_ERROR(ValidateWeightType(*target.model, target.weight_type));
  target.served = {.name = spec.name,
                   .config = config,
                   .defaults = target.model->generation_defaults(),
                   .max_window = options.limits.max_depth,
                   .max_length = static_cast<uint32_t>(
                       std::min<uint64_t>(static_cast<uint64_t>(config.max_context), options.kv_tokens)),
                   .verification_rule = options.rule,
                   .drafts_locally = options.local_drafter != "none",
                   .constraints = options.constraints.limits()};
  TANDEM_ASSIGN_OR_RETURN(target.served.tokenizer, Tokenizer::LoadForModel(spec.folder, config.vocab_size));
  target.vocabulary_fingerprint = target.served.tokenizer->Fingerprint(config.vocab_size);
  return target;
}

absl::StatusOr<std::string> ReadPolicyFile(VerifierFlags* options) {
  if (options->window_policy_file.empty()) return std::string();
  TANDEM_ASSIGN_OR_RETURN(std::string content, ReadFile(options->window_policy_file, kMaxPolicyFileBytes));
  TANDEM_ASSIGN_OR_RETURN(const WindowPolicyFile file,
                          ParseWindowPolicyFile(content, options->window_policy_file));
  if (!file.policy.empty()) options->window_policy = file.policy;
  options->policy_options = file.options;
  return content;
}

// The target in memory, warm and measured.
struct TargetEngine {
  std::unique_ptr<Engine> engine;
  std::unique_ptr<BlockPool> pool;
  RoundTimeModel round_time;
};

uint32_t NumBlocks(const VerifierFlags& options) {
  return static_cast<uint32_t>((options.kv_tokens + kBlockTokens - 1) / kBlockTokens);
}

absl::StatusOr<std::unique_ptr<CudaEngine>> OpenCudaEngine(const VerifierFlags& options,
                                                           const DeviceSpec& device,
                                                           const OpenedTarget& target,
                                                           LoadProgress* progress) {
  // EAGLE-3 heads, the hungriest, read three.
  const uint32_t feature_states = options.feature_memory_mib > 0 ? 3 : 0;
  return CreateCudaEngine(*target.model,
                          {.index = device.index,
                           .memory_limit = options.gpu_memory_mib << 20,
                           .low_priority = options.gpu_low_priority,
                           .parallel = {.rank = options.gpu_rank, .world_size = options.num_gpus},
                           .rendezvous = options.gpu_rendezvous},
                          {.num_blocks = NumBlocks(options),
                           .weight_type = target.weight_type,
                           .feature_states = feature_states,
                           .progress = progress});
}

absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const VerifierFlags& options, const OpenedTarget& target,
                                                   LoadProgress* progress) {
  TANDEM_ASSIGN_OR_RETURN(const DeviceSpec device, ParseDeviceSpec(options.device));
  if (device.is_cuda) return OpenCudaEngine(options, device, target, progress);
  CpuEngineOptions engine_options;
  engine_options.num_blocks = NumBlocks(options);
  engine_options.num_threads = static_cast<int>(options.threads);
  TANDEM_ASSIGN_OR_RETURN(engine_options.cpus, PinnedCpus(options));
  engine_options.progress = progress;
  engine_options.weight_type = target.weight_type;
  engine_options.kv_type = target.kv_type;
  TANDEM_ASSIGN_OR_RETURN(engine_options.instruction_set, ParseInstructionSet(options.instruction_set));
  return CreateCpuEngine(target.model, engine_options);
}

// A process of a rank other than 0: it has no server of its own, and ends with that of rank 0. Cancelled by a
// signal while it loads.
absl::Status FollowRankZero(const VerifierFlags& options, const ShutdownSignals& signals) {
  TANDEM_ASSIGN_OR_RETURN(const DeviceSpec device, ParseDeviceSpec(options.device));
  TANDEM_ASSIGN_OR_RETURN(const OpenedTarget target, OpenTarget(options));
  LoadProgress progress(target.served.name, target.model->weight_bytes());
  progress.StopWhen([&signals] { return signals.Arrived(); });
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<CudaEngine> engine,
                          OpenCudaEngine(options, device, target, &progress));
  progress.Finish();
  LogInfo("following", {{"rank", absl::StrCat(options.gpu_rank)}, {"gpus", absl::StrCat(options.num_gpus)}});
  return engine->Follow();
}

// Cancelled by a signal, which is looked for between tensors and forward passes.
absl::StatusOr<TargetEngine> StartEngine(const VerifierFlags& options, const OpenedTarget& target,
                                         const ShutdownSignals& signals) {
  const auto stopped = [&signals] { return signals.Arrived(); };
  const absl::Time start = absl::Now();
  LoadProgress progress(target.served.name, target.model->weight_bytes());
  progress.StopWhen(stopped);
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, OpenEngine(options, target, &progress));
  progress.Finish();
  if (!options.simulated_pace.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const Pace pace, ParsePace(options.simulated_pace));
    LogWarning("forward passes are slowed down: figures are simulated", {{"pace", DescribePace(pace)}});
    engine = PaceEngine(std::move(engine), pace);
  }
  auto pool = std::make_unique<BlockPool>(
      BlockPool::Options{.num_blocks = engine->num_blocks(), .prefix_cache = options.prefix_cache});
  TANDEM_ASSIGN_OR_RETURN(RoundTimeModel round_time, MeasureRoundTimes(engine.get(), pool.get(), stopped));
  LogInfo("target ready", {{"model", target.served.name},
                           {"seconds", absl::StrFormat("%.2f", absl::ToDoubleSeconds(absl::Now() - start))},
                           {"step_ms_1_row", absl::StrFormat("%.3f", 1e3 * round_time.Seconds(1))},
                           {"step_ms_16_rows", absl::StrFormat("%.3f", 1e3 * round_time.Seconds(16))}});
  return TargetEngine{std::move(engine), std::move(pool), std::move(round_time)};
}

// What does not change while the server runs.
absl::StatusOr<v1::ServerInfo> DescribeServer(const VerifierFlags& options, const OpenedTarget& target) {
  TANDEM_ASSIGN_OR_RETURN(const InstructionSet instruction_set, ParseInstructionSet(options.instruction_set));
  TANDEM_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(instruction_set));
  v1::ServerInfo info;
  info.set_role(v1::SERVER_ROLE_VERIFIER);
  info.set_version(std::string(Version()));
  info.mutable_capacity()->set_max_running(options.max_running);
  info.mutable_capacity()->set_max_waiting(options.max_waiting);
  info.mutable_capacity()->set_kv_tokens(options.kv_tokens);
  *info.add_models() = ModelInfoToProto(target.served.name, *target.model,
                                        std::string(KeptWeightType(*target.model, target.weight_type)),
                                        target.vocabulary_fingerprint);
  TANDEM_ASSIGN_OR_RETURN(const DeviceSpec device, ParseDeviceSpec(options.device));
  info.set_device(device.is_cuda ? options.device : absl::StrCat("cpu (", kernels->name, ")"));
  // Which of a machine's GPUs it is makes no difference.
  info.set_arithmetic(absl::StrCat(
      device.is_cuda ? "cuda" : absl::StrCat("cpu (", ArithmeticName(*kernels, target.kv_type), ")"), ", ",
      options.verification_rule));
  const std::set<TokenId> end_tokens(target.served.defaults.eos_tokens.begin(),
                                     target.served.defaults.eos_tokens.end());
  for (const TokenId token : end_tokens) info.add_end_tokens(static_cast<uint32_t>(token));
  if (!options.simulated_pace.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const Pace pace, ParsePace(options.simulated_pace));
    info.set_simulated_pace(DescribePace(pace));
  }
  return info;
}

absl::StatusOr<Scheduler::Options> SchedulingOf(const VerifierFlags& options, const OpenedTarget& target) {
  std::optional<SourceSpec> local_drafter;
  if (options.local_drafter != "none") {
    TANDEM_ASSIGN_OR_RETURN(local_drafter, ParseSourceSpec(options.local_drafter));
  }
  return Scheduler::Options{.max_running = options.max_running,
                            .max_waiting = options.max_waiting,
                            .prefill_chunk = options.prefill_chunk,
                            .limits = options.limits,
                            .window_policy = options.window_policy,
                            .policy_options = options.policy_options,
                            .max_draft_wait = options.max_draft_wait,
                            .vocabulary_fingerprint = target.vocabulary_fingerprint,
                            .target_fingerprint = TargetFingerprint(*target.model),
                            .max_feature_bytes = options.feature_memory_mib << 20,
                            .local_drafter = local_drafter,
                            .verification_rule = options.rule};
}

// Rows of the passes whose time is told to routers.
constexpr uint32_t kTimedRows[] = {1, 2, 4, 8, 16, 32, 64};

google::protobuf::RepeatedPtrField<v1::RoundSeconds> MeasuredRounds(const RoundTimeModel& round_time) {
  google::protobuf::RepeatedPtrField<v1::RoundSeconds> rounds;
  for (const uint32_t rows : kTimedRows) {
    v1::RoundSeconds& round = *rounds.Add();
    round.set_rows(rows);
    round.set_seconds(round_time.Uncorrected(rows));
  }
  return rounds;
}

// What there is to say of this verifier once the target is loaded, but for the digest of its weights.
v1::ServerRegistration DescribeRegistration(const VerifierFlags& options, const v1::ServerInfo& info,
                                            const std::string& address, const TargetEngine& engine) {
  v1::ServerRegistration server = BeginRegistration(options.registration, address);
  server.mutable_capacity()->set_max_running(options.max_running);
  server.mutable_capacity()->set_max_waiting(options.max_waiting);
  server.mutable_capacity()->set_kv_tokens(uint64_t{engine.pool->num_blocks()} * kBlockTokens);
  v1::RegisteredVerifier& verifier = *server.mutable_verifier();
  *verifier.mutable_model() = info.models(0);
  verifier.set_arithmetic(info.arithmetic());
  *verifier.mutable_round_seconds() = MeasuredRounds(engine.round_time);
  return server;
}

// Said once: without features, heads are refused request by request.
void WarnWithoutFeatures(const VerifierFlags& options, const Engine& engine) {
  const FeatureStore::Options store = FeatureStore::OptionsFor(engine, options.feature_memory_mib << 20);
  if (!engine.has_features() || options.feature_memory_mib == 0 || FeatureStore::FitsAny(store)) return;
  LogWarning(
      "no memory for hidden states: drafters that are heads of this model cannot be used",
      {{"feature_memory_mib", absl::StrCat(options.feature_memory_mib)},
       {"needed_mib_a_layer", absl::StrCat((FeatureStore::BytesPerState(store) + (1 << 20) - 1) >> 20)}});
}

// The server is up while the model loads, so that probes and dashboards can watch; health is NOT_SERVING
// until it has. Cancelled by a signal until then.
absl::Status Serve(VerifierFlags options, const Security& security, ShutdownSignals& signals) {
  const absl::Time start = absl::Now();
  const std::string flag_policy = options.window_policy;
  TANDEM_ASSIGN_OR_RETURN(std::string policy_file, ReadPolicyFile(&options));
  TANDEM_ASSIGN_OR_RETURN(const OpenedTarget target, OpenTarget(options));
  MetricsRegistry registry;
  registry.AddProcessMetrics(Version());
  VerifierMetrics metrics(&registry, target.served.name, options.metrics_compat == "vllm");
  ConstraintMetrics constraint_metrics(&registry, "tandem_verifier");
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Tracing> tracing,
                          Tracing::Start(options.server.tracing, "tandem-verifier", Version(), &registry));
  TANDEM_ASSIGN_OR_RETURN(const v1::ServerInfo fixed_info, DescribeServer(options, target));
  TANDEM_ASSIGN_OR_RETURN(const Scheduler::Options scheduling, SchedulingOf(options, target));
  RegistrationMetric registration_metric(&registry);
  // Of deadlines, waits and steps.
  const SteadyClock clock;
  std::unique_ptr<EngineLoop> loop;
  uint64_t kv_tokens_total = 0;
  google::protobuf::RepeatedPtrField<v1::RoundSeconds> round_seconds;
  VerifierService service(&target.served, nullptr, &metrics, tracing->tracer());
  // From gRPC's threads: what it reads is written before the service has the loop.
  const auto server_info = [&] {
    v1::ServerInfo info = fixed_info;
    info.set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - start));
    const EngineLoop* const serving = service.loop();
    if (serving == nullptr) return info;
    const EngineLoop::Load load = serving->load();
    info.set_kv_tokens_total(kv_tokens_total);
    *info.mutable_round_seconds() = round_seconds;
    info.set_window_policy(load.window_policy);
    info.set_running(load.running);
    info.set_waiting(load.waiting);
    info.set_kv_tokens_used(load.kv_tokens_used);
    return info;
  };
  ServerOptions server_options = MakeServerOptions(options.server, security, &registry);
  server_options.stalled = [&service] {
    const EngineLoop* const serving = service.loop();
    return serving == nullptr ? absl::ZeroDuration() : serving->busy_time();
  };
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ServerRunner> server,
                          ServerRunner::Start(server_options, {{v1::Verifier::service_full_name(), &service}},
                                              {.server_info = server_info}));
  server->SetServing(false);
  const auto announce = [&server](absl::string_view event) {
    LogInfo(event, {{"address", server->address()},
                    {"metrics_port", absl::StrCat(server->metrics_port())},
                    {"health_port", absl::StrCat(server->health_port())}});
  };
  announce("loading");
  // A signal ends this at once: nothing runs yet that would have to be drained. Who registers reads the
  // weights a second time, meanwhile.
  std::atomic<bool> engine_failed{false};
  std::future<absl::StatusOr<std::string>> digest;
  if (options.registration.any()) {
    digest = std::async(std::launch::async, [&] {
      return WeightsDigest(target.model->folder(), [&] { return signals.Arrived() || engine_failed; });
    });
  }
  absl::StatusOr<TargetEngine> started = StartEngine(options, target, signals);
  engine_failed = !started.ok();
  TANDEM_ASSIGN_OR_RETURN(TargetEngine engine, std::move(started));
  v1::ServerRegistration self;
  if (options.registration.any()) {
    self = DescribeRegistration(options, fixed_info, server->address(), engine);
    TANDEM_ASSIGN_OR_RETURN(*self.mutable_verifier()->mutable_weights_sha256(), digest.get());
  }
  kv_tokens_total = uint64_t{engine.pool->num_blocks()} * kBlockTokens;
  round_seconds = MeasuredRounds(engine.round_time);
  WarnWithoutFeatures(options, *engine.engine);
  loop = std::make_unique<EngineLoop>(
      scheduling, std::move(engine.engine), std::move(engine.pool), std::move(engine.round_time), &clock,
      &metrics,
      DrafterLinks::Options{.credentials = security.channel, .local_sockets = options.local_sockets});
  std::optional<PolicyFileWatch> policy_watch;
  if (!options.window_policy_file.empty()) {
    policy_watch.emplace(options.window_policy_file, std::move(policy_file), kPolicyFilePeriod,
                         [&](const WindowPolicyFile& file) {
                           loop->SetWindowPolicy(file.policy.empty() ? flag_policy : file.policy,
                                                 file.options);
                         });
  }
  // Ends before the loop and the service, which it calls.
  const std::unique_ptr<ConstraintCompiler> constraints =
      StartConstraintCompiler(options.constraints, VocabularyOf(target.served), &clock, &constraint_metrics);
  service.ServeConstraints(constraints.get());
  service.Serve(loop.get());
  server->SetServing(true);
  announce("serving");
  std::optional<RouterRegistration> registration;
  if (options.registration.any()) {
    registration.emplace(RouterRegistration::Options{.routers = options.registration.routers,
                                                     .credentials = security.channel,
                                                     .describe = [&self] { return self; },
                                                     .metric = &registration_metric});
  }
  signals.Wait();
  if (registration.has_value()) registration->Leave();
  LogInfo("draining", {{"grace", absl::FormatDuration(options.server.drain_grace)}});
  server->Drain(options.server.drain_times(), [&](absl::Time deadline) {
    service.StopAdmission();
    if (constraints != nullptr) constraints->Stop();
    loop->Drain(deadline);
  });
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
  absl::Status status = shape.status();
  status.Update(rule.status());
  status.Update(security.status());
  status.Update(CheckRegistrationFlags(options.registration, options.server.listen));
  if (!options.local_sockets.empty()) status.Update(PrepareLocalSockets(options.local_sockets));
  if (shape.ok()) options.limits.shape = *shape;
  if (rule.ok()) options.rule = *rule;
  if (!status.ok()) {
    // Said below.
  } else if (flags.check_config()) {
    status = ReadPolicyFile(&options).status();
    status.Update(OpenTarget(options).status());
    if (status.ok()) LogInfo("the configuration is valid", {{"model", options.model}});
  } else if (options.gpu_rank > 0) {
    status = FollowRankZero(options, signals);
  } else {
    status = Serve(options, *security, signals);
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

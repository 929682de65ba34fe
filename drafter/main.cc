#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/config/flags.h"
#include "common/config/version.h"
#include "common/engine/cpu/cpu_list.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/kv_type.h"
#include "common/engine/paced_engine.h"
#include "common/engine/weight_type.h"
#include "common/metrics/metrics.h"
#include "common/rpc/local_sockets.h"
#include "common/rpc/registration.h"
#include "common/rpc/server.h"
#include "common/rpc/server_flags.h"
#include "common/rpc/tracing.h"
#include "drafter/models/model_host.h"
#include "drafter/rpc/constraint_service.h"
#include "drafter/rpc/draft_model_pool.h"
#include "drafter/rpc/metrics.h"
#include "drafter/rpc/service.h"

namespace tandem {
namespace {

struct DrafterFlags {
  std::vector<std::string> models;
  std::vector<std::string> merges;
  std::string head_target;
  std::vector<std::string> plain_eagle3;
  std::vector<std::string> target_vocabularies;
  std::string models_folder;
  uint32_t max_models = 16;
  uint64_t models_memory_mib = 0;
  ServerFlags server{
      .listen = "127.0.0.1:7003", .metrics_listen = "127.0.0.1:9103", .drain_grace = absl::Seconds(5)};
  uint32_t threads = 1;
  std::string cpu_list;
  std::string instruction_set = "auto";
  std::string weight_dtype = "auto";
  std::string kv_type = "auto";
  std::string feature_dtype = "bfloat16";
  uint64_t kv_tokens = 32768;
  DraftCore::Options core;
  ConstraintFlags constraints;
  std::string simulated_pace;
  std::string device = "cpu";
  uint64_t gpu_memory_mib = 0;
  bool gpu_low_priority = true;
  RegistrationFlags registration;
  std::string local_sockets;
};

void Declare(DrafterFlags& options, Flags& flags) {
  flags.Group("Models")
      .Add("model", &options.models,
           "Draft model: a Hugging Face folder, or NAME=FOLDER to serve it as NAME. In place of a folder: a "
           "source without weights (ngram, suffix or trie), with settings as in ngram:min=2,max=5. Repeat "
           "for several.")
      .Required()
      .Add(
          "merge", &options.merges,
          "NAME=MODEL+SOURCE: serve as NAME the model's trees, merged with the source's. Repeat for several.")
      .Add("head-target", &options.head_target,
           "Folder of the target that the draft heads were trained for. The drafter reads there the "
           "embedding, output matrix and vocabulary that a head's folder leaves out. A --model with the same "
           "folder is the next-token module in its files.")
      .Add("plain-eagle3", &options.plain_eagle3,
           "Name of a draft head that is plain EAGLE-3 although its config.json says `norm_output: true`, "
           "which otherwise means EAGLE-3.1. SpecForge wrote that from May to September 2026. Repeat for "
           "several.")
      .Add("target-vocabulary", &options.target_vocabularies,
           "Folder of a target whose vocabulary differs slightly from the draft models'. The drafter reads "
           "its config.json and tokenizer, and bridges models whose vocabularies differ only in padding, ids "
           "and added tokens. Repeat for several.")
      .Add("models-folder", &options.models_folder,
           "Folder below which `tandem drafters` may load further draft models at run time; also allows it "
           "to unload draft models. Empty: neither.")
      .Add("models-memory", &options.models_memory_mib,
           "Most MiB of weights, keys and values over all draft models, including replaced or unloaded ones "
           "that are still in use. A load that would exceed it is refused. 0: no limit.")
      .InRange(0, 1e9)
      .Add("threads", &options.threads, "Threads of each model's engine.")
      .InRange(1, 1024)
      .Add("cpu-list", &options.cpu_list,
           "CPUs to pin the threads to, one for each thread, for example 0-3,8; empty: the system places "
           "them.")
      .AddChoice("instruction-set", &options.instruction_set, InstructionSetNames(),
                 "CPU kernels to use; auto picks the best for this machine.")
      .AddChoice(
          "weight-dtype", &options.weight_dtype, WeightTypeNames(),
          "Number format of the models' matrices. auto: on a CPU quantised files keep their own integers, "
          "whose products round inputs to 8 bits, and files of 16 bits become int8; otherwise as in the "
          "files. int8 and int4: 8.25 and 4.25 bits per weight. CPU only: exact, which rounds nothing; "
          "w8a8 and w4a8, which also round inputs to 8 bits. GPU only, 8 bits: fp8 (a scale "
          "per output) and fp8-tensor (a scale per matrix).")
      .AddChoice(
          "kv-type", &options.kv_type, KvTypeNames(),
          "Number format of keys and values. auto: bf16, but on a CPU f32 for keys with large biases. f32 "
          "takes twice the memory of bf16, and int8, with a scale per head and token, half; both on a CPU.")
      .Add("kv-tokens", &options.kv_tokens,
           "KV cache size of each model in tokens, for all sessions and the prefix cache. On a CPU it takes "
           "memory as it is used.")
      .InRange(256, 1e9)
      .Add("device", &options.device, "Device to compute on: cpu, or a GPU as cuda or cuda:N.")
      .Add("gpu-memory-limit", &options.gpu_memory_mib,
           "Most MiB of GPU memory for each model, including keys and values; 0: all that is free.")
      .InRange(0, 1e7);
  DeclareServerFlags(options.server, flags);
  DeclareRegistrationFlags(options.registration, flags);
  flags.Group("Network").Add("local-sockets", &options.local_sockets,
                             "Folder in which to also listen on a Unix domain socket, for verifiers on this "
                             "machine with the same --local-sockets; they find the socket by themselves. "
                             "Created with access for this user only if it does not exist; empty: off.");
  flags.Group("Measurements")
      .Add("simulate-draft-ms", &options.simulated_pace,
           "Make every forward pass last at least this many milliseconds, to simulate a larger draft model. "
           "FIRST, or FIRST+FURTHER for the first row and each further row. Only for measurements.");
  flags.Group("Drafting")
      .Add("max-sessions", &options.core.max_sessions, "Most sessions at once; further ones are refused.")
      .InRange(1, 1e6);
  flags.Settings("Models")
      .Add("max-models", &options.max_models, "With --models-folder: most draft models held at once.")
      .InRange(1, 16)
      .AddChoice("feature-dtype", &options.feature_dtype, {"bfloat16", "int8"},
                 "Number format in which verifiers send hidden states to draft heads. int8, with a scale per "
                 "state, halves the network traffic.")
      .Add("gpu-low-priority", &options.gpu_low_priority,
           "Give other work on the GPU priority, so that drafting does not delay verification on a shared "
           "GPU.");
  flags.Settings("Drafting")
      .Add(
          "expand-width", &options.core.expand_width,
          "Most tree nodes of one session to expand in one step; for small trees, an eighth of their budget.")
      .InRange(1, 64)
      .Add("step-rows", &options.core.max_step_rows,
           "Most prompt tokens and tree nodes to compute in one step.")
      .InRange(1, 512);
  DeclareConstraintFlags(options.constraints, flags);
}

// The CPUs of --cpu-list; errors name the flag.
absl::StatusOr<std::vector<int>> PinnedCpus(const DrafterFlags& options) {
  absl::StatusOr<std::vector<int>> cpus = CpusForThreads(options.cpu_list, static_cast<int>(options.threads));
  if (!cpus.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--cpu-list: ", cpus.status().message()));
  }
  return cpus;
}

v1::ServerInfo Describe(const DrafterService& service, absl::Time start) {
  const DraftStats stats = service.stats();
  v1::ServerInfo info;
  info.set_role(v1::SERVER_ROLE_DRAFTER);
  info.set_version(std::string(Version()));
  info.set_uptime_seconds(absl::ToDoubleSeconds(absl::Now() - start));
  info.set_running(stats.num_sessions);
  info.set_kv_tokens_used(stats.kv_tokens_used);
  info.set_kv_tokens_total(stats.kv_tokens);
  return info;
}

// What there is to say of this drafter now; `self`, drawn once, says which it is.
v1::ServerRegistration DescribeRegistration(const DrafterFlags& options, const DraftModelPool& models,
                                            v1::ServerRegistration self) {
  self.mutable_capacity()->set_max_running(options.core.max_sessions);
  self.mutable_capacity()->set_kv_tokens(models.kv_tokens());
  *self.mutable_drafter() = models.registered();
  return self;
}

DraftModelPool::Options ModelOptions(const DrafterFlags& options, const std::vector<ModelSpec>& specs,
                                     const std::vector<MergeSpec>& merges,
                                     const ModelHost::Options& load_options) {
  return {.specs = specs,
          .merges = merges,
          .head_target = options.head_target,
          .plain_eagle3 = options.plain_eagle3,
          .target_vocabularies = options.target_vocabularies,
          .load = load_options,
          .models_folder = options.models_folder,
          .max_models = options.max_models,
          .memory_limit = options.models_memory_mib << 20,
          .digests_weights = options.registration.any()};
}

// The server is up while the models load, so that probes and dashboards can watch; health is NOT_SERVING
// until they have. Cancelled by a signal until then.
absl::Status Run(const DrafterFlags& options, const std::vector<ModelSpec>& specs,
                 const std::vector<MergeSpec>& merges, const ModelHost::Options& load_options,
                 const Security& security, ShutdownSignals& signals) {
  const absl::Time start = absl::Now();
  TANDEM_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(load_options.instruction_set));
  MetricsRegistry registry;
  registry.AddProcessMetrics(Version());
  TANDEM_ASSIGN_OR_RETURN(
      const std::unique_ptr<DraftModelPool> models,
      DraftModelPool::Open(ModelOptions(options, specs, merges, load_options), &registry));
  registry.AddGaugeCallback(
      {"tandem_model_load_progress_ratio", "Share of the models' weights that is loaded.", {}},
      [&models] { return models->load_progress(); });
  DrafterMetrics metrics(&registry);
  RegistrationMetric registration_metric(&registry);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Tracing> tracing,
                          Tracing::Start(options.server.tracing, "tandem-drafter", Version(), &registry));
  const SystemClock clock;
  ConstraintMetrics constraint_metrics(&registry, "tandem_drafter");
  DrafterService service(&metrics, tracing->tracer());
  service.SetChanges(models->Changes());
  const std::string socket_id = options.local_sockets.empty() ? "" : DrawSocketId();
  const auto server_info = [&] {
    v1::ServerInfo info = Describe(service, start);
    for (v1::ModelInfo& model : models->infos()) *info.add_models() = std::move(model);
    info.set_device(load_options.device.is_cuda ? options.device : absl::StrCat("cpu (", kernels->name, ")"));
    if (load_options.pace.has_value()) info.set_simulated_pace(DescribePace(*load_options.pace));
    info.set_local_socket(socket_id);
    return info;
  };
  ServerOptions server_options = MakeServerOptions(options.server, security, &registry);
  if (!socket_id.empty()) {
    TANDEM_ASSIGN_OR_RETURN(server_options.local_socket, LocalSocketPath(options.local_sockets, socket_id));
  }
  server_options.stalled = [&service] { return service.busy_time(); };
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ServerRunner> server,
                          ServerRunner::Start(server_options, {{v1::Drafter::service_full_name(), &service}},
                                              {.server_info = server_info}));
  server->SetServing(false);
  LogInfo("loading", {{"address", server->address()},
                      {"socket", server_options.local_socket},
                      {"metrics_port", absl::StrCat(server->metrics_port())},
                      {"health_port", absl::StrCat(server->health_port())}});
  // Calls that wait for a change are answered before the server ends.
  const absl::Cleanup stop_changes = [&models] { models->Stop(); };
  // A signal ends this at once: nothing runs yet that would have to be drained.
  TANDEM_RETURN_IF_ERROR(models->Load());
  absl::Mutex registration_mutex;
  std::optional<RouterRegistration> registration;
  models->Serve(&service, options.core, options.constraints, &constraint_metrics, &clock, [&] {
    absl::MutexLock lock(&registration_mutex);
    if (registration.has_value()) registration->Renew();
  });
  server->SetServing(true);
  LogInfo("serving", {{"address", server->address()},
                      {"models", absl::StrCat(models->infos().size())},
                      {"seconds", absl::StrFormat("%.2f", absl::ToDoubleSeconds(absl::Now() - start))}});
  if (options.registration.any()) {
    const v1::ServerRegistration self = BeginRegistration(options.registration, server->address());
    absl::MutexLock lock(&registration_mutex);
    registration.emplace(RouterRegistration::Options{
        .routers = options.registration.routers,
        .credentials = security.channel,
        .describe = [&options, &models, self] { return DescribeRegistration(options, *models, self); },
        .metric = &registration_metric});
  }
  signals.Wait();
  models->Stop();
  if (registration.has_value()) registration->Leave();
  LogInfo("draining", {{"grace", absl::FormatDuration(options.server.drain_grace)}});
  server->Drain(options.server.drain_times(), [&](absl::Time deadline) { service.Drain(deadline); });
  return absl::OkStatus();
}

int Main(int argc, const char* const* argv) {
  ShutdownSignals signals;
  DrafterFlags options;
  Flags flags("tandem-drafter", "drafter", "Runs draft models and streams candidate trees to verifiers.");
  Declare(options, flags);
  if (const std::optional<int> exit_code = flags.Parse(argc, argv)) return *exit_code;
  const auto fail = [](const absl::Status& status) {
    LogError("cannot serve", {{"error", status.ToString()}});
    return kExitFailure;
  };
  const absl::StatusOr<std::vector<ModelSpec>> specs = ParseModelSpecs(options.models);
  if (!specs.ok()) return fail(specs.status());
  const absl::StatusOr<std::vector<MergeSpec>> merges = ParseMergeSpecs(options.merges, *specs);
  if (!merges.ok()) return fail(merges.status());
  const absl::StatusOr<InstructionSet> instruction_set = ParseInstructionSet(options.instruction_set);
  if (!instruction_set.ok()) return fail(instruction_set.status());
  const absl::StatusOr<std::vector<int>> cpus = PinnedCpus(options);
  if (!cpus.ok()) return fail(cpus.status());
  const absl::StatusOr<WeightType> weight_type = ParseWeightType(options.weight_dtype);
  if (!weight_type.ok()) return fail(weight_type.status());
  const absl::StatusOr<DeviceSpec> device = ParseDeviceSpec(options.device);
  if (!device.ok()) return fail(device.status());
  const absl::Status computable =
      device->is_cuda ? ValidateGpuWeightType(*weight_type) : ValidateCpuWeightType(*weight_type);
  if (!computable.ok()) return fail(computable);
  const absl::StatusOr<KvType> kv_type = ParseKvType(options.kv_type);
  if (!kv_type.ok()) return fail(kv_type.status());
  const absl::Status storable = device->is_cuda ? ValidateGpuKvType(*kv_type) : absl::OkStatus();
  if (!storable.ok()) return fail(storable);
  if (const absl::Status prepared = PrepareDevice(*device); !prepared.ok()) return fail(prepared);
  const absl::StatusOr<Security> security = OpenServerSecurity(options.server, v1::SERVER_ROLE_DRAFTER);
  if (!security.ok()) return fail(security.status());
  const absl::Status registrable = CheckRegistrationFlags(options.registration, options.server.listen);
  if (!registrable.ok()) return fail(registrable);
  if (!options.local_sockets.empty()) {
    const absl::Status prepared = PrepareLocalSockets(options.local_sockets);
    if (!prepared.ok()) return fail(prepared);
  }
  std::optional<Pace> pace;
  if (!options.simulated_pace.empty()) {
    const absl::StatusOr<Pace> parsed = ParsePace(options.simulated_pace);
    if (!parsed.ok()) return fail(parsed.status());
    LogWarning("forward passes are slowed down: figures are simulated", {{"pace", DescribePace(*parsed)}});
    pace = *parsed;
  }
  const ModelHost::Options load_options = {
      .kv_tokens = options.kv_tokens,
      .num_threads = static_cast<int>(options.threads),
      .cpus = *cpus,
      .instruction_set = *instruction_set,
      .weight_type = *weight_type,
      .kv_type = *kv_type,
      .device = *device,
      .gpu_memory_limit = options.gpu_memory_mib << 20,
      .gpu_low_priority = options.gpu_low_priority,
      .feature_type = options.feature_dtype == "int8" ? FeatureType::kInt8 : FeatureType::kBf16,
      .pace = pace,
      .stopped = [&signals] { return signals.Arrived(); }};
  if (flags.check_config()) {
    MetricsRegistry registry;
    const auto models = DraftModelPool::Open(ModelOptions(options, *specs, *merges, load_options), &registry);
    if (!models.ok()) return fail(models.status());
    LogInfo("the configuration is valid", {{"models", absl::StrCat(specs->size())}});
    return kExitOk;
  }
  if (options.core.draw_seed == 0) {
    std::random_device entropy;
    options.core.draw_seed = uint64_t{entropy()} << 32 | entropy();
  }
  const absl::Status status = Run(options, *specs, *merges, load_options, *security, signals);
  if (absl::IsCancelled(status) && signals.Arrived()) {
    LogInfo("stopped while loading", {{"state", std::string(status.message())}});
    return kExitOk;
  }
  return status.ok() ? kExitOk : fail(status);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  return tandem::Main(argc, argv);
}

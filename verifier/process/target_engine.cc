#include "verifier/process/target_engine.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/checked_math.h"
#include "common/base/free_memory.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/cpu_list.h"
#include "common/engine/cpu/kv_store.h"
#include "common/engine/cuda/create_cuda_engine.h"
#include "common/engine/kv_choice.h"
#include "common/engine/paced_engine.h"
#include "common/tokenizer/tokenizer.h"
#include "verifier/process/kv_room.h"

namespace tandem {
namespace {

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
  if (!device.is_cuda) return absl::InvalidArgumentError("--gpus: above 1, expected --device=cuda or cuda:N");
  if (options.gpu_rendezvous.empty()) {
    return absl::InvalidArgumentError("--gpu-rendezvous: expected a file, because --gpus is above 1");
  }
  return absl::OkStatus();
}

uint32_t NumBlocks(const OpenedTarget& target) {
  return static_cast<uint32_t>((target.kv_tokens + kBlockTokens - 1) / kBlockTokens);
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
                          {.num_blocks = NumBlocks(target),
                           .weight_type = target.weight_type,
                           .feature_states = feature_states,
                           .progress = progress});
}

absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const VerifierFlags& options, const OpenedTarget& target,
                                                   LoadProgress* progress) {
  TANDEM_ASSIGN_OR_RETURN(const DeviceSpec device, ParseDeviceSpec(options.device));
  if (device.is_cuda) return OpenCudaEngine(options, device, target, progress);
  CpuEngineOptions engine_options;
  engine_options.num_blocks = NumBlocks(target);
  engine_options.num_threads = static_cast<int>(options.threads);
  TANDEM_ASSIGN_OR_RETURN(engine_options.cpus, PinnedCpus(options));
  engine_options.progress = progress;
  engine_options.weight_type = target.weight_type;
  engine_options.kv_type = target.kv_type;
  TANDEM_ASSIGN_OR_RETURN(engine_options.instruction_set, ParseInstructionSet(options.instruction_set));
  return CreateCpuEngine(target.model, engine_options);
}

absl::Status OpenAdapters(const VerifierFlags& options, const ModelPlan& plan, OpenedTarget* target) {
  if (options.num_gpus > 1) {
    if (plan.adapters.empty() && options.adapters_folder.empty()) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat(plan.adapters.empty() ? "--adapters-folder" : "--adapter", ": ", options.num_gpus,
                     " GPUs do not support adapters, expected one GPU, or --device=cpu"));
  }
  if (plan.adapters.size() > options.max_adapters) {
    return absl::InvalidArgumentError(absl::StrCat("--adapter: ", plan.adapters.size(), " for \"",
                                                   plan.spec.name, "\", expected at most max-adapters, ",
                                                   options.max_adapters));
  }
  target->served.adapters = std::make_shared<HeldAdapters>(options.max_adapters);
  for (const ModelSpec& spec : plan.adapters) {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<const LoraAdapter> adapter,
                            LoraAdapter::Load(spec.folder, target->model->config()));
    target->adapters.push_back({.name = spec.name, .adapter = std::move(adapter)});
  }
  return absl::OkStatus();
}

}  // namespace

AdapterHandle HandleOf(const std::string& name, const LoraAdapter& adapter, AdapterId id) {
  return std::make_shared<const HeldAdapter>(HeldAdapter{.name = name,
                                                         .id = id,
                                                         .fingerprint = adapter.fingerprint(),
                                                         .rank = adapter.greatest_rank(),
                                                         .num_parameters = adapter.num_parameters()});
}

namespace {

// All but kv_tokens.
absl::StatusOr<OpenedTarget> OpenTarget(const VerifierFlags& options, const ModelPlan& plan) {
  TANDEM_RETURN_IF_ERROR(PinnedCpus(options).status());
  TANDEM_RETURN_IF_ERROR(CheckDeviceFlags(options));
  if (!options.simulated_pace.empty()) TANDEM_RETURN_IF_ERROR(ParsePace(options.simulated_pace).status());
  TANDEM_ASSIGN_OR_RETURN(const DeviceSpec device, ParseDeviceSpec(options.device));
  OpenedTarget target;
  TANDEM_ASSIGN_OR_RETURN(target.weight_type, ParseWeightType(options.weight_dtype));
  TANDEM_RETURN_IF_ERROR(device.is_cuda ? ValidateGpuWeightType(target.weight_type)
                                        : ValidateCpuWeightType(target.weight_type));
  TANDEM_ASSIGN_OR_RETURN(const KvType kv_type, ParseKvType(options.kv_type));
  if (device.is_cuda) TANDEM_RETURN_IF_ERROR(ValidateGpuKvType(kv_type));
  TANDEM_ASSIGN_OR_RETURN(target.model, Model::Load(plan.spec.folder));
  target.kv_type = device.is_cuda ? ResolvedKvType(kv_type) : CpuKvType(*target.model, kv_type);
  if (kv_type == KvType::kAuto && target.kv_type == KvType::kF32) {
    LogInfo("keys and values are kept in f32: of keys with large biases bf16 would lose too much",
            {{"model", plan.spec.name}, {"greatest_bias", absl::StrCat(GreatestKeyBias(*target.model))}});
  }
  const ModelConfig& config = target.model->config();
  if (config.head.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model: ", plan.spec.folder, " holds a draft head, expected a target"));
  }
  TANDEM_RETURN_IF_ERROR(ValidateWeightType(*target.model, target.weight_type));
  target.served = {.name = plan.spec.name,
                   .config = config,
                   .defaults = target.model->generation_defaults(),
                   .max_window = options.limits.max_depth,
                   .verification_rule = options.rule,
                   .drafts_locally = options.local_drafter != "none",
                   .constraints = options.constraints.limits()};
  TANDEM_ASSIGN_OR_RETURN(target.served.tokenizer,
                          Tokenizer::LoadForModel(plan.spec.folder, config.vocab_size));
  target.vocabulary_fingerprint = target.served.tokenizer->Fingerprint(config.vocab_size);
  TANDEM_RETURN_IF_ERROR(OpenAdapters(options, plan, &target));
  return target;
}

// Sets what depends on the room for keys and values. `room`: without what the target itself says.
absl::Status SettleKvTokens(const VerifierFlags& options, const ModelPlan& plan, KvRoom room,
                            OpenedTarget* target) {
  TANDEM_ASSIGN_OR_RETURN(const DeviceSpec device, ParseDeviceSpec(options.device));
  const ModelConfig& config = target->model->config();
  room.context = static_cast<uint64_t>(config.max_context);
  room.share = plan.kv_share;
  room.token_bytes = KvStore::BytesPerBlock(config, target->kv_type).value_or(UINT64_MAX) / kBlockTokens;
  KvTokens chosen;
  if (device.is_cuda) {
    const double part = plan.kv_share * static_cast<double>(kUsualKvTokens);
    chosen = {.tokens = std::max(static_cast<uint64_t>(part), kFewestKvTokens),
              .most = kUsualKvTokens,
              .because = "the usual number on a GPU"};
  } else {
    chosen = ChooseKvTokens(room);
  }
  if (plan.kv_tokens > 0) {
    const bool fits = !chosen.most.has_value() || plan.kv_tokens <= *chosen.most;
    if (plan.kv_bounded && !fits) {
      return absl::ResourceExhaustedError(absl::StrCat("kv_tokens: ", plan.kv_tokens, ", expected ",
                                                       kFewestKvTokens, " to ", *chosen.most,
                                                       ", for which there is memory"));
    }
    if (!device.is_cuda && !fits) {
      LogWarning("keys and values may need more than half of the memory that is free beside weights",
                 {{"model", plan.spec.name},
                  {"kv_tokens", absl::StrCat(plan.kv_tokens)},
                  {"half", absl::StrCat(*chosen.most)}});
    }
    chosen.tokens = plan.kv_tokens;
    chosen.because = plan.kv_bounded ? "asked for" : "--kv-tokens";
  }
  target->kv_tokens = chosen.tokens;
  target->kv_bytes = CheckedMultiply(chosen.tokens, room.token_bytes).value_or(UINT64_MAX);
  target->served.max_length = static_cast<uint32_t>(std::min(room.context, chosen.tokens));
  LogInfo("keys and values", {{"model", plan.spec.name},
                              {"type", std::string(KvTypeName(target->kv_type))},
                              {"tokens", absl::StrCat(chosen.tokens)},
                              {"mib_when_full", absl::StrCat(target->kv_bytes >> 20)},
                              {"because", chosen.because}});
  if (chosen.tokens < room.context) {
    LogWarning("requests may not be as long as the model's context: there is room for fewer keys and values",
               {{"model", plan.spec.name},
                {"context_length", absl::StrCat(room.context)},
                {"kv_tokens", absl::StrCat(chosen.tokens)}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<OpenedTarget>> OpenTargets(const VerifierFlags& options,
                                                      absl::Span<const ModelPlan> plans,
                                                      uint64_t promised_bytes) {
  std::vector<OpenedTarget> targets;
  KvRoom room = {.free = FindFreeMemory(), .promised_bytes = promised_bytes};
  for (const ModelPlan& plan : plans) {
    TANDEM_ASSIGN_OR_RETURN(targets.emplace_back(), OpenTarget(options, plan));
    room.weight_bytes += targets.back().model->weight_bytes();
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(SettleKvTokens(options, plans[i], room, &targets[i]));
  }
  return targets;
}

absl::StatusOr<TargetEngine> StartEngine(const VerifierFlags& options, const OpenedTarget& target,
                                         const std::shared_ptr<EngineTurns>& turns, const Clock* clock,
                                         const std::function<bool()>& stopped) {
  const absl::Time start = clock->Now();
  LoadProgress progress(target.served.name, target.model->weight_bytes());
  progress.StopWhen(stopped);
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, OpenEngine(options, target, &progress));
  progress.Finish();
  if (!options.simulated_pace.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const Pace pace, ParsePace(options.simulated_pace));
    LogWarning("forward passes are slowed down: figures are simulated", {{"pace", DescribePace(pace)}});
    engine = PaceEngine(std::move(engine), pace);
  }
  if (turns != nullptr) engine = TakeTurns(std::move(engine), turns);
  for (const OpenedTarget::Adapter& each : target.adapters) {
    TANDEM_ASSIGN_OR_RETURN(const AdapterId id, engine->AddAdapter(*each.adapter));
    TANDEM_RETURN_IF_ERROR(target.served.adapters->Add(HandleOf(each.name, *each.adapter, id)));
  }
  auto pool = std::make_unique<BlockPool>(
      BlockPool::Options{.num_blocks = engine->num_blocks(), .prefix_cache = options.prefix_cache});
  auto warm_up =
      std::make_unique<WarmUp>(engine.get(), pool.get(), clock, WarmUp::Options{.model = target.served.name});
  // An engine that cannot compute says so before anybody relies on it.
  TANDEM_RETURN_IF_ERROR(warm_up->Pass(/*alone=*/true));
  LogInfo("target ready",
          {{"model", target.served.name},
           {"seconds", absl::StrFormat("%.2f", absl::ToDoubleSeconds(clock->Now() - start))}});
  return TargetEngine{std::move(engine), std::move(pool), std::move(warm_up)};
}

absl::Status FollowRankZero(const VerifierFlags& options, const ModelPlan& plan,
                            const std::function<bool()>& stopped) {
  TANDEM_ASSIGN_OR_RETURN(const DeviceSpec device, ParseDeviceSpec(options.device));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<OpenedTarget> targets, OpenTargets(options, {&plan, 1}));
  const OpenedTarget& target = targets.front();
  LoadProgress progress(target.served.name, target.model->weight_bytes());
  progress.StopWhen(stopped);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<CudaEngine> engine,
                          OpenCudaEngine(options, device, target, &progress));
  progress.Finish();
  LogInfo("following", {{"rank", absl::StrCat(options.gpu_rank)}, {"gpus", absl::StrCat(options.num_gpus)}});
  return engine->Follow();
}

}  // namespace tandem

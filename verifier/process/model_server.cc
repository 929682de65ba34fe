#include "verifier/process/model_server.h"

#include <atomic>
#include <future>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/config/version.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/cpu/product_arithmetic.h"
#include "common/engine/cuda/create_cuda_engine.h"
#include "common/engine/paced_engine.h"
#include "common/model/target_fingerprint.h"
#include "common/rpc/arithmetic.h"
#include "common/rpc/model_wire.h"
#include "common/rpc/weights_digest.h"
#include "verifier/session/feature_store.h"

namespace tandem {
namespace {

constexpr absl::Duration kPolicyFilePeriod = absl::Seconds(1);

// What does not change while the server runs.
absl::StatusOr<v1::ServerInfo> DescribeServer(const VerifierFlags& options, const OpenedTarget& target) {
  TANDEM_ASSIGN_OR_RETURN(const InstructionSet instruction_set, ParseInstructionSet(options.instruction_set));
  TANDEM_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(instruction_set));
  v1::ServerInfo info;
  info.set_role(v1::SERVER_ROLE_VERIFIER);
  info.set_version(std::string(Version()));
  info.mutable_capacity()->set_max_running(options.max_running);
  info.mutable_capacity()->set_max_waiting(options.max_waiting);
  info.mutable_capacity()->set_kv_tokens(target.kv_tokens);
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
                            .control_share = options.control_share,
                            .verification_rule = options.rule};
}

// The numbers of rows whose pass times are reported to routers.
constexpr uint32_t kTimedRows[] = {1, 2, 4, 8, 16, 32, 64};

// None until they are known: routers learn the times of other verifiers, or choose without.
google::protobuf::RepeatedPtrField<v1::RoundSeconds> MeasuredRounds(const EngineLoop& loop) {
  google::protobuf::RepeatedPtrField<v1::RoundSeconds> rounds;
  const std::optional<RoundTimeModel> measured = loop.measured_round_time();
  if (!measured.has_value()) return rounds;
  for (const uint32_t rows : kTimedRows) {
    v1::RoundSeconds& round = *rounds.Add();
    round.set_rows(rows);
    round.set_seconds(measured->Uncorrected(rows));
  }
  return rounds;
}

// What `server`, of which is told who it is, has to say once the target is loaded, but for the digest of its
// weights.
v1::ServerRegistration DescribeRegistration(const VerifierFlags& options, const v1::ServerInfo& info,
                                            v1::ServerRegistration server, const TargetEngine& engine) {
  server.mutable_capacity()->set_max_running(options.max_running);
  server.mutable_capacity()->set_max_waiting(options.max_waiting);
  server.mutable_capacity()->set_kv_tokens(uint64_t{engine.pool->num_blocks()} * kBlockTokens);
  v1::RegisteredVerifier& verifier = *server.mutable_verifier();
  *verifier.mutable_model() = info.models(0);
  verifier.set_arithmetic(info.arithmetic());
  return server;
}

v1::AdapterInfo AdapterToProto(const HeldAdapter& adapter) {
  v1::AdapterInfo info;
  info.set_name(adapter.name);
  info.set_rank(adapter.rank);
  info.set_parameters(adapter.num_parameters);
  info.set_fingerprint(adapter.fingerprint);
  return info;
}

// Said once: without features, heads are refused request by request.
void WarnWithoutFeatures(const VerifierFlags& options, const Engine& engine) {
  const FeatureStore::Options store = FeatureStore::OptionsFor(engine, options.feature_memory_mib << 20);
  if (!engine.has_features() || options.feature_memory_mib == 0 || FeatureStore::FitsAny(store)) return;
  LogWarning(
      "too little memory for hidden states: draft heads of this model cannot be used",
      {{"feature_memory_mib", absl::StrCat(options.feature_memory_mib)},
       {"needed_mib_a_layer", absl::StrCat((FeatureStore::BytesPerState(store) + (1 << 20) - 1) >> 20)}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelServer>> ModelServer::Open(const Context& context, OpenedTarget target,
                                                               std::string registered_as) {
  TANDEM_ASSIGN_OR_RETURN(v1::ServerInfo fixed, DescribeServer(*context.options, target));
  target.served.arithmetic = ArithmeticOf(ComputesInWords(fixed, fixed.models(0)));
  return std::unique_ptr<ModelServer>(
      new ModelServer(context, std::move(target), std::move(fixed), std::move(registered_as)));
}

ModelServer::ModelServer(const Context& context, OpenedTarget target, v1::ServerInfo fixed,
                         std::string registered_as)
    : context_(context),
      target_(std::move(target)),
      fixed_(std::move(fixed)),
      registered_as_(std::move(registered_as)),
      part_(context.registry, "model", name(), {"target", "model_name"}),
      registry_(ServesSeveral(*context.options) ? &part_ : context.registry),
      metrics_(registry_, name(), context.options->metrics_compat == "vllm"),
      constraint_metrics_(registry_, "tandem_verifier"),
      service_(&target_.served, nullptr, &metrics_, *context.tracer) {}

ModelServer::~ModelServer() {
  registration_.reset();
  constraints_.reset();
  policy_watch_.reset();
  loop_.reset();
  // Its series stay, and nothing is in use any more.
  metrics_.SetLoad(0, 0, 0, 0);
}

absl::Status ModelServer::Load() {
  const VerifierFlags& options = *context_.options;
  TANDEM_ASSIGN_OR_RETURN(const Scheduler::Options scheduling, SchedulingOf(options, target_));
  // Who registers reads the weights a second time, meanwhile.
  std::atomic<bool> engine_failed{false};
  std::future<absl::StatusOr<std::string>> digest;
  if (options.registration.any()) {
    digest = std::async(std::launch::async, [&] {
      return WeightsDigest(target_.model->folder(), [&] { return context_.stopped() || engine_failed; });
    });
  }
  absl::StatusOr<TargetEngine> started =
      StartEngine(options, target_, context_.turns, context_.clock, context_.stopped);
  engine_failed = !started.ok();
  TANDEM_ASSIGN_OR_RETURN(TargetEngine engine, std::move(started));
  if (options.registration.any()) {
    self_ = DescribeRegistration(options, fixed_, context_.identity, engine);
    self_.mutable_instance()->mutable_name()->append(registered_as_);
    TANDEM_ASSIGN_OR_RETURN(*self_.mutable_verifier()->mutable_weights_sha256(), digest.get());
  }
  kv_tokens_total_ = uint64_t{engine.pool->num_blocks()} * kBlockTokens;
  WarnWithoutFeatures(options, *engine.engine);
  RoundTimeModel round_time = engine.warm_up->RoundTime();
  loop_ = std::make_unique<EngineLoop>(scheduling, std::move(engine.engine), std::move(engine.pool),
                                       std::move(round_time), context_.clock, &metrics_,
                                       DrafterLinks::Options{.credentials = context_.security->channel,
                                                             .local_sockets = options.local_sockets},
                                       DrafterNames::Options(), std::move(engine.warm_up));
  if (!options.window_policy_file.empty()) {
    policy_watch_ = std::make_unique<PolicyFileWatch>(
        options.window_policy_file, context_.policy_file, kPolicyFilePeriod,
        [this](const WindowPolicyFile& file) {
          loop_->SetWindowPolicy(file.policy.empty() ? context_.flag_policy : file.policy, file.options);
        });
  }
  constraints_ = StartConstraintCompiler(options.constraints, VocabularyOf(target_.served), context_.clock,
                                         &constraint_metrics_);
  service_.ServeConstraints(constraints_.get());
  service_.Serve(loop_.get());
  return absl::OkStatus();
}

absl::StatusOr<v1::LoadAdapterResponse> ModelServer::LoadAdapter(const std::string& name,
                                                                 const std::string& folder) {
  HeldAdapters* const adapters = target_.served.adapters.get();
  if (adapters == nullptr)
    return absl::UnimplementedError("this verifier's device does not support adapters");
  TANDEM_RETURN_IF_ERROR(adapters->CheckRoom(name));
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> adapter =
      LoraAdapter::Load(folder, target_.model->config());
  if (!adapter.ok()) return absl::InvalidArgumentError(absl::StrCat("folder: ", adapter.status().message()));
  absl::Notification done;
  absl::StatusOr<AdapterId> id;
  loop_->AddAdapter(*adapter, [&](absl::StatusOr<AdapterId> added) {
    id = std::move(added);
    done.Notify();
  });
  done.WaitForNotification();
  TANDEM_RETURN_IF_ERROR(id.status());
  const AdapterHandle handle = HandleOf(name, **adapter, *id);
  TANDEM_RETURN_IF_ERROR(adapters->Add(handle));
  LogInfo("adapter loaded", {{"model", this->name()}, {"adapter", name}, {"folder", folder}});
  v1::LoadAdapterResponse response;
  *response.mutable_adapter() = AdapterToProto(*handle);
  return response;
}

absl::StatusOr<v1::UnloadAdapterResponse> ModelServer::UnloadAdapter(const std::string& name) {
  HeldAdapters* const adapters = target_.served.adapters.get();
  if (adapters == nullptr)
    return absl::UnimplementedError("this verifier's device does not support adapters");
  TANDEM_ASSIGN_OR_RETURN(AdapterHandle adapter, adapters->Remove(name));
  v1::UnloadAdapterResponse response;
  response.set_requests(static_cast<uint32_t>(adapter.use_count() - 1));
  loop_->DropAdapter(std::move(adapter));
  LogInfo("adapter unloaded",
          {{"model", this->name()}, {"adapter", name}, {"requests", absl::StrCat(response.requests())}});
  return response;
}

void ModelServer::Register() {
  if (!context_.options->registration.any()) return;
  registration_ = std::make_unique<RouterRegistration>(
      RouterRegistration::Options{.routers = context_.options->registration.routers,
                                  .credentials = context_.security->channel,
                                  .describe = [this] { return Registration(); },
                                  .metric = context_.registration_metric});
}

v1::ServerRegistration ModelServer::Registration() const {
  v1::ServerRegistration registration = self_;
  *registration.mutable_verifier()->mutable_round_seconds() = MeasuredRounds(*loop_);
  return registration;
}

v1::ServerInfo ModelServer::Describe() const {
  v1::ServerInfo info = fixed_;
  const EngineLoop* const serving = service_.loop();
  if (serving == nullptr) return info;
  const EngineLoop::Load load = serving->load();
  info.set_serving(true);
  if (target_.served.adapters != nullptr) {
    for (const AdapterHandle& adapter : target_.served.adapters->List()) {
      *info.mutable_models(0)->add_adapters() = AdapterToProto(*adapter);
    }
  }
  info.set_kv_tokens_total(kv_tokens_total_);
  *info.mutable_round_seconds() = MeasuredRounds(*serving);
  info.set_window_policy(load.window_policy);
  info.mutable_random_drafters()->Assign(load.random_drafters.begin(), load.random_drafters.end());
  info.set_running(load.running);
  info.set_waiting(load.waiting);
  info.set_kv_tokens_used(load.kv_tokens_used);
  return info;
}

absl::Duration ModelServer::busy_time() const {
  const EngineLoop* const serving = service_.loop();
  return serving == nullptr ? absl::ZeroDuration() : serving->busy_time();
}

void ModelServer::Leave() {
  if (registration_ != nullptr) registration_->Leave();
}

void ModelServer::Drain(absl::Time deadline) {
  service_.StopAdmission();
  if (constraints_ != nullptr) constraints_->Stop();
  if (loop_ != nullptr) loop_->Drain(deadline);
}

}  // namespace tandem

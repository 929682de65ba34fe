#include "drafter/rpc/draft_model_pool.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/served_folder.h"
#include "common/base/status_macros.h"
#include "common/engine/weight_type.h"
#include "common/rpc/model_wire.h"
#include "common/rpc/weights_digest.h"
#include "drafter/models/draft_card.h"

namespace tandem {
namespace {

constexpr int kMostJobs = 16;
// A session has to fit.
constexpr uint64_t kFewestKvTokens = 256;

std::string Mib(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

v1::ModelInfo DescribeModel(const ModelHost::Description& hosted, const ModelHost::Options& options) {
  v1::ModelInfo info;
  if (hosted.model == nullptr) {
    info.set_name(hosted.name);
    return info;
  }
  info = ModelInfoToProto(
      hosted.name, *hosted.model,
      std::string(KeptWeightType(*hosted.model, ModelHost::WeightTypeOf(*hosted.model, options))),
      hosted.vocabulary_fingerprint);
  for (const OtherVocabulary& other : hosted.other_vocabularies) {
    v1::BridgedVocabulary& bridged = *info.add_bridged_vocabularies();
    bridged.set_fingerprint(other.fingerprint);
    bridged.set_by_text(other.bridge == nullptr);
    if (other.bridge == nullptr) {
      bridged.set_vocabulary_size(static_cast<uint32_t>(other.text->target_width()));
      continue;
    }
    bridged.set_vocabulary_size(static_cast<uint32_t>(other.bridge->target_width()));
    bridged.set_moved_tokens(other.bridge->difference().moved);
    bridged.set_target_only_tokens(other.bridge->difference().target_only);
    bridged.set_draft_only_tokens(other.bridge->difference().draft_only);
  }
  return info;
}

// Compares a draft model with the targets of --target-vocabulary.
void LogVocabularies(const ModelHost::Description& model) {
  for (const OtherVocabulary& other : model.other_vocabularies) {
    const bool bridged = other.bridge != nullptr;
    Log(bridged ? LogLevel::kInfo : LogLevel::kWarning,
        bridged ? "bridging a target's vocabulary"
                : "a target has another vocabulary: drafting by text, for tenants that allow it",
        {{"model", model.name},
         {"target", other.target},
         {"target_fingerprint", absl::StrFormat("%016x", other.fingerprint)},
         {"difference", other.difference}});
  }
}

absl::Status NoSuchModel(const std::string& name) {
  return absl::NotFoundError(absl::StrCat("name: this drafter holds no model \"",
                                          absl::CHexEscape(name.substr(0, kMostServedNameBytes)), "\""));
}

absl::Status EndsNow() {
  return absl::UnavailableError("the drafter is shutting down");
}

}  // namespace

class DraftModelPool::Use {
 public:
  Use(DraftModelPool* models, std::shared_ptr<void> hold, const Held& held)
      : models_(models),
        hold_(std::move(hold)),
        name_(held.info.name()),
        version_(held.info.version()),
        bytes_(held.memory.total()),
        vocabularies_(held.vocabularies) {}
  ~Use() {
    hold_.reset();
    DraftConstraints* const constraints =
        models_->service_ == nullptr ? nullptr : models_->service_->constraints();
    if (constraints != nullptr) constraints->Remove(vocabularies_);
    {
      absl::MutexLock lock(&models_->mutex_);
      models_->memory_bytes_ -= bytes_;
    }
    LogInfo("draft model freed", {{"model", name_}, {"version", version_}, {"memory", Mib(bytes_)}});
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  DraftModelPool* const models_;
  std::shared_ptr<void> hold_;
  const std::string name_;
  const std::string version_;
  const uint64_t bytes_;
  const DraftConstraints::Vocabularies vocabularies_;
};

DraftModelPool::DraftModelPool(Options options, MetricsRegistry* registry)
    : options_(std::move(options)),
      changes_(registry->AddCounter({"tandem_drafter_model_changes_total",
                                     "Loads and unloads of draft models at run time, by status code.",
                                     {"change", "outcome"}})) {
  registry->AddGaugeCallback(
      {"tandem_drafter_model_memory_bytes",
       "Memory of weights, keys and values of all draft models, computed from their configurations.",
       {}},
      [this] {
        absl::MutexLock lock(&mutex_);
        return static_cast<double>(memory_bytes_);
      });
}

absl::StatusOr<std::unique_ptr<DraftModelPool>> DraftModelPool::Open(Options options,
                                                                     MetricsRegistry* registry) {
  std::unique_ptr<DraftModelPool> models(new DraftModelPool(std::move(options), registry));
  const Options& own = models->options_;
  std::vector<ModelSpec> specs = own.specs;
  TANDEM_RETURN_IF_ERROR(MarkPlainHeads(own.plain_eagle3, own.models_folder.empty(), &specs));
  TANDEM_ASSIGN_OR_RETURN(models->start_,
                          ModelHost::Open(specs, own.merges, own.head_target, own.target_vocabularies));
  for (const ModelHost::Description& hosted : models->start_->descriptions()) {
    LogVocabularies(hosted);
    TANDEM_ASSIGN_OR_RETURN(Held held, models->Describe(hosted, own.load));
    held.made_of = models->start_->MadeOf(hosted.name);
    // It takes the memory of what it is made of.
    if (!held.made_of.empty()) held.memory = {};
    TANDEM_RETURN_IF_ERROR(models->CheckMemory(held.memory));
    absl::MutexLock lock(&models->mutex_);
    models->memory_bytes_ += held.memory.total();
    models->held_.push_back(std::move(held));
  }
  return models;
}

DraftModelPool::~DraftModelPool() {
  Stop();
}

absl::StatusOr<DraftModelPool::Held> DraftModelPool::Describe(const ModelHost::Description& hosted,
                                                              const ModelHost::Options& load) const {
  Held held{.info = DescribeModel(hosted, load)};
  held.vocabularies.push_back({hosted.name, hosted.vocabulary_fingerprint, hosted.grammar_vocabulary});
  for (const OtherVocabulary& other : hosted.other_vocabularies) {
    held.vocabularies.push_back({hosted.name, other.fingerprint, other.grammar});
  }
  if (hosted.model == nullptr) return held;
  TANDEM_RETURN_IF_ERROR(ValidateWeightType(*hosted.model, load.weight_type));
  TANDEM_ASSIGN_OR_RETURN(const DraftCard card, ReadDraftCard(hosted.model->folder()));
  held.info.set_version(card.version);
  held.memory = ModelHost::MemoryOf(*hosted.model, load);
  return held;
}

absl::Status DraftModelPool::Load() {
  TANDEM_RETURN_IF_ERROR(start_->Load(options_.load));
  TANDEM_ASSIGN_OR_RETURN(const auto level_seconds, start_->MeasureLevels());
  const std::vector<ModelHost::Description> hosted = start_->descriptions();
  const std::vector<DraftModel> drafting = start_->draft_models();
  for (size_t i = 0; i < hosted.size(); ++i) {
    std::string digest;
    if (options_.digests_weights && hosted[i].model != nullptr) {
      TANDEM_ASSIGN_OR_RETURN(digest, WeightsDigest(hosted[i].model->folder(), options_.load.stopped));
    }
    absl::MutexLock lock(&mutex_);
    const auto seconds = level_seconds.find(hosted[i].model.get());
    if (seconds != level_seconds.end()) held_[i].info.set_level_seconds(seconds->second);
    held_[i].weights_sha256 = std::move(digest);
    if (drafting[i].pool != nullptr) {
      held_[i].kv_tokens = uint64_t{drafting[i].pool->num_blocks()} * kBlockTokens;
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<void> DraftModelPool::MakeUse(std::shared_ptr<void> hold, const Held& held) {
  return std::make_shared<Use>(this, std::move(hold), held);
}

void DraftModelPool::Serve(DrafterService* service, const DraftCore::Options& options,
                           const ConstraintFlags& constraints, ConstraintMetrics* metrics, const Clock* clock,
                           std::function<void()> changed) {
  changed_ = std::move(changed);
  DraftConstraints::Vocabularies vocabularies;
  std::vector<DraftModel> models = start_->draft_models();
  {
    absl::MutexLock lock(&mutex_);
    std::map<std::string, std::shared_ptr<void>> uses;
    for (size_t i = 0; i < models.size(); ++i) {
      const Held& held = held_[i];
      vocabularies.insert(vocabularies.end(), held.vocabularies.begin(), held.vocabularies.end());
      std::shared_ptr<void> hold = start_->Hold(models[i].name);
      // What a merge is made of stays as long as it does.
      if (!held.made_of.empty())
        hold = std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(
            hold, uses.at(held.made_of));
      models[i].hold = uses[models[i].name] = MakeUse(std::move(hold), held);
    }
    for (const DraftModel& model : models) start_->Drop(model.name);
  }
  service_ = service;
  service->SetRelease([this](std::shared_ptr<void> use) {
    // Memory is given back off the thread that drafts.
    jobs_.Push([use = std::move(use)]() mutable { use.reset(); });
  });
  service->Serve(options, std::move(models),
                 std::make_unique<DraftConstraints>(constraints, vocabularies, clock, metrics));
  if (!options_.models_folder.empty()) worker_ = std::thread([this] { Work(); });
}

void DraftModelPool::Stop() {
  ending_ = true;
  {
    absl::MutexLock lock(&jobs_mutex_);
    closed_ = true;
  }
  jobs_.Close();
  if (worker_.joinable()) worker_.join();
  // Jobs that never started fail.
  std::vector<std::function<void()>> rest;
  jobs_.Drain(&rest);
  for (const std::function<void()>& job : rest) job();
}

double DraftModelPool::load_progress() const {
  absl::ReaderMutexLock lock(&mutex_);
  return start_->load_progress();
}

std::vector<v1::ModelInfo> DraftModelPool::infos() const {
  absl::ReaderMutexLock lock(&mutex_);
  std::vector<v1::ModelInfo> infos;
  for (const Held& held : held_) infos.push_back(held.info);
  return infos;
}

v1::RegisteredDrafter DraftModelPool::registered() const {
  absl::ReaderMutexLock lock(&mutex_);
  v1::RegisteredDrafter drafter;
  for (const Held& held : held_) {
    v1::RegisteredDraftModel& model = *drafter.add_models();
    *model.mutable_model() = held.info;
    model.set_weights_sha256(held.weights_sha256);
  }
  return drafter;
}

uint64_t DraftModelPool::kv_tokens() const {
  absl::ReaderMutexLock lock(&mutex_);
  uint64_t tokens = 0;
  for (const Held& held : held_) tokens += held.kv_tokens;
  return tokens;
}

void DraftModelPool::Work() {
  std::vector<std::function<void()>> jobs;
  while (jobs_.WaitUntil(absl::InfiniteFuture(), &jobs)) {
    for (std::function<void()>& job : jobs) std::exchange(job, nullptr)();
    jobs.clear();
  }
}

absl::Status DraftModelPool::Post(std::function<void()> job) {
  absl::MutexLock lock(&jobs_mutex_);
  if (closed_) return EndsNow();
  if (waiting_ >= kMostJobs) return absl::ResourceExhaustedError("too many loads and unloads are queued");
  ++waiting_;
  jobs_.Push([this, job = std::move(job)] {
    job();
    absl::MutexLock inner(&jobs_mutex_);
    --waiting_;
  });
  return absl::OkStatus();
}

DrafterService::Changes DraftModelPool::Changes() {
  DrafterService::Changes changes;
  if (options_.models_folder.empty()) return changes;
  const auto posted = [this](absl::string_view change, auto work) {
    return [this, change, work](const auto& request, const auto& done) {
      const auto answer = [this, change, done](const auto& result) {
        changes_
            .With({std::string(change),
                   absl::AsciiStrToLower(absl::StatusCodeToString(result.status().code()))})
            .Increment();
        done(result);
      };
      const absl::Status status = Post([this, work, request, answer] { answer((this->*work)(request)); });
      if (!status.ok()) done(status);
    };
  };
  changes.load = posted("load", &DraftModelPool::LoadModel);
  changes.unload = posted("unload", &DraftModelPool::UnloadModel);
  return changes;
}

std::vector<DraftModelPool::Held>::iterator DraftModelPool::Find(const std::string& name) {
  return std::find_if(held_.begin(), held_.end(), [&](const Held& held) { return held.info.name() == name; });
}

absl::Status DraftModelPool::CheckNotMerged(const std::string& name) const {
  for (const Held& held : held_) {
    if (held.made_of != name) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "name: \"", held.info.name(), "\" of this drafter is merged from \"", name, "\" (--merge)"));
  }
  return absl::OkStatus();
}

absl::Status DraftModelPool::CheckPlace(const std::string& name, bool replace) {
  TANDEM_RETURN_IF_ERROR(CheckServedName("name", name));
  absl::MutexLock lock(&mutex_);
  const auto present = Find(name);
  if (present == held_.end()) {
    if (held_.size() < options_.max_models) return absl::OkStatus();
    return absl::ResourceExhaustedError(
        absl::StrCat("this drafter holds ", held_.size(), " models, which is the limit (max-models)"));
  }
  if (replace) return CheckNotMerged(name);
  return absl::AlreadyExistsError(
      absl::StrCat("name: this drafter holds \"", name, "\" already, and replace is not set"));
}

absl::Status DraftModelPool::CheckMemory(const ModelHost::Memory& memory) const {
  if (options_.memory_limit == 0) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  if (memory.total() <= options_.memory_limit - std::min(memory_bytes_, options_.memory_limit)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("memory: the model takes ", Mib(memory.total()), " (weights ", Mib(memory.weights),
                   ", keys and values ", Mib(memory.kv), "), and ", Mib(memory_bytes_), " of the ",
                   Mib(options_.memory_limit), " of --models-memory are in use"));
}

absl::StatusOr<v1::LoadDraftModelResponse> DraftModelPool::LoadModel(
    const v1::LoadDraftModelRequest& request) {
  if (ending_) return EndsNow();
  ModelSpec spec;
  TANDEM_ASSIGN_OR_RETURN(
      spec.folder, ServedFolder("drafter", "--models-folder", options_.models_folder, request.folder()));
  spec.name =
      request.name().empty() ? std::filesystem::path(spec.folder).filename().string() : request.name();
  TANDEM_RETURN_IF_ERROR(CheckPlace(spec.name, request.replace()));
  if (!request.version().empty()) TANDEM_RETURN_IF_ERROR(CheckServedName("version", request.version()));
  ModelHost::Options load = options_.load;
  if (request.kv_tokens() > 0) load.kv_tokens = request.kv_tokens();
  if (load.kv_tokens < kFewestKvTokens || load.kv_tokens > options_.load.kv_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("kv_tokens: ", request.kv_tokens(), ", expected ",
                                                   kFewestKvTokens, " to ", options_.load.kv_tokens,
                                                   ", the drafter's --kv-tokens"));
  }
  std::vector<ModelSpec> specs = {spec};
  TANDEM_RETURN_IF_ERROR(MarkPlainHeads(options_.plain_eagle3, /*all_known=*/false, &specs));
  load.stopped = [this] { return ending_ || (options_.load.stopped && options_.load.stopped()); };
  absl::StatusOr<std::unique_ptr<ModelHost>> opened =
      ModelHost::Open(specs, {}, options_.head_target, options_.target_vocabularies);
  if (!opened.ok()) return absl::InvalidArgumentError(absl::StrCat("folder: ", opened.status().message()));
  const std::shared_ptr<ModelHost> host = *std::move(opened);
  const ModelHost::Description hosted = host->descriptions().front();
  absl::StatusOr<Held> described = Describe(hosted, load);
  if (!described.ok())
    return absl::InvalidArgumentError(absl::StrCat("folder: ", described.status().message()));
  Held held = *std::move(described);
  if (!request.version().empty()) held.info.set_version(request.version());
  TANDEM_RETURN_IF_ERROR(CheckMemory(held.memory));
  LogInfo("loading draft model", {{"model", spec.name},
                                  {"version", held.info.version()},
                                  {"folder", spec.folder},
                                  {"memory", Mib(held.memory.total())}});
  LogVocabularies(hosted);
  const auto read = [&]() -> absl::Status {
    TANDEM_RETURN_IF_ERROR(host->Load(load));
    TANDEM_ASSIGN_OR_RETURN(const auto level_seconds, host->MeasureLevels());
    held.info.set_level_seconds(level_seconds.at(hosted.model.get()));
    if (!options_.digests_weights) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(held.weights_sha256, WeightsDigest(spec.folder, load.stopped));
    return absl::OkStatus();
  };
  if (const absl::Status status = read(); !status.ok()) return ending_ ? EndsNow() : status;
  DraftModel model = host->draft_models().front();
  if (model.pool != nullptr) held.kv_tokens = uint64_t{model.pool->num_blocks()} * kBlockTokens;

  v1::LoadDraftModelResponse response;
  *response.mutable_model() = held.info;
  response.set_kv_tokens(held.kv_tokens);
  response.set_memory_bytes(held.memory.total());
  if (service_->constraints() != nullptr) service_->constraints()->Add(held.vocabularies);
  {
    absl::MutexLock lock(&mutex_);
    memory_bytes_ += held.memory.total();
  }
  model.hold = MakeUse(host, held);
  response.set_sessions(service_->AddModel(std::move(model)));
  {
    absl::MutexLock lock(&mutex_);
    const auto present = Find(spec.name);
    if (present != held_.end()) {
      *present = std::move(held);
    } else {
      held_.push_back(std::move(held));
    }
  }
  LogInfo("draft model loaded", {{"model", spec.name},
                                 {"version", response.model().version()},
                                 {"sessions_on_the_one_before", absl::StrCat(response.sessions())}});
  changed_();
  return response;
}

absl::StatusOr<v1::UnloadDraftModelResponse> DraftModelPool::UnloadModel(
    const v1::UnloadDraftModelRequest& request) {
  if (ending_) return EndsNow();
  {
    absl::MutexLock lock(&mutex_);
    const auto found = Find(request.name());
    if (found == held_.end()) return NoSuchModel(request.name());
    if (held_.size() == 1) return absl::FailedPreconditionError("it is the last model of this drafter");
    TANDEM_RETURN_IF_ERROR(CheckNotMerged(request.name()));
    held_.erase(found);
  }
  // Usually routers learn of it before verifiers find it gone. A session that is too late continues
  // undrafted.
  changed_();
  v1::UnloadDraftModelResponse response;
  response.set_sessions(service_->RetireModel(request.name()).value_or(0));
  LogInfo("draft model unloaded",
          {{"model", request.name()}, {"sessions_that_go_on", absl::StrCat(response.sessions())}});
  return response;
}

}  // namespace tandem

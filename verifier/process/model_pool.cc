#include "verifier/process/model_pool.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/served_folder.h"
#include "common/base/status_macros.h"
#include "tandem/v1/verifier.grpc.pb.h"

namespace tandem {
namespace {

constexpr int kMostJobs = 16;
// How often a wait looks whether the process ends.
constexpr absl::Duration kLook = absl::Milliseconds(50);
// How long the next model's loading waits for the warm-up of the one before.
constexpr absl::Duration kLongestWarmUp = absl::Seconds(4);

}  // namespace

ModelPool::ModelPool(ModelServer::Context context)
    : context_(std::move(context)), several_(ServesSeveral(*context_.options)) {
  if (several_) context_.turns = std::make_shared<EngineTurns>();
  context_.stopped = [this, stopped = context_.stopped] { return ending_ || stopped(); };
  // Runs a request's work on the worker.
  const auto posted = [this](auto work) {
    return [this, work](const auto& request, const auto& done) {
      const absl::Status status = Post([this, work, request, done] { done((this->*work)(request)); });
      if (!status.ok()) done(status);
    };
  };
  ModelsService::Changes changes;
  if (!context_.options->models_folder.empty()) {
    changes.load = posted(&ModelPool::LoadModel);
    changes.unload = posted(&ModelPool::UnloadModel);
  }
  if (!context_.options->adapters_folder.empty()) {
    changes.load_adapter = posted(&ModelPool::LoadAdapter);
    changes.unload_adapter = posted(&ModelPool::UnloadAdapter);
  }
  directory_.SetChanges(std::move(changes));
}

absl::StatusOr<std::unique_ptr<ModelPool>> ModelPool::Open(ModelServer::Context context,
                                                           const std::vector<ModelPlan>& plans) {
  std::unique_ptr<ModelPool> pool(new ModelPool(std::move(context)));
  TANDEM_ASSIGN_OR_RETURN(std::vector<OpenedTarget> targets, OpenTargets(*pool->context_.options, plans));
  absl::MutexLock lock(&pool->mutex_);
  for (OpenedTarget& target : targets) {
    // The first has the process' own name.
    std::string registered_as = pool->models_.empty() ? "" : absl::StrCat("/", target.served.name);
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ModelServer> model,
                            ModelServer::Open(pool->context_, std::move(target), std::move(registered_as)));
    pool->directory_.Add(model->name(), model->service());
    pool->models_.push_back(std::move(model));
  }
  return pool;
}

ModelPool::~ModelPool() {
  ending_ = true;
  StopWork();
}

void ModelPool::StopWork() {
  {
    absl::MutexLock lock(&jobs_mutex_);
    closed_ = true;
  }
  jobs_.Close();
  if (worker_.joinable()) worker_.join();
}

std::string ModelPool::HealthName(const std::string& model) {
  return absl::StrCat(v1::Verifier::service_full_name(), "/", model);
}

void ModelPool::SetServing(const std::string& model, bool serving) {
  server_->SetServing(HealthName(model), serving);
}

v1::ServerInfo ModelPool::Describe() const {
  absl::ReaderMutexLock lock(&mutex_);
  v1::ServerInfo info = models_.front()->Describe();
  if (!several_) return info;
  info.clear_models();
  info.clear_capacity();
  info.clear_arithmetic();
  info.clear_end_tokens();
  info.clear_round_seconds();
  info.clear_random_drafters();
  uint64_t running = 0, waiting = 0, kv_tokens_used = 0, kv_tokens_total = 0;
  for (const auto& model : models_) {
    const v1::ServerInfo own = model->Describe();
    *info.add_models() = own.models(0);
    v1::HeldModel& held = *info.add_held_models();
    held.set_name(model->name());
    held.set_serving(own.serving());
    held.set_running(own.running());
    held.set_waiting(own.waiting());
    held.set_kv_tokens_used(own.kv_tokens_used());
    held.set_kv_tokens_total(own.kv_tokens_total());
    *held.mutable_capacity() = own.capacity();
    held.set_arithmetic(own.arithmetic());
    *held.mutable_end_tokens() = own.end_tokens();
    *held.mutable_round_seconds() = own.round_seconds();
    info.mutable_random_drafters()->MergeFrom(own.random_drafters());
    running += own.running();
    waiting += own.waiting();
    kv_tokens_used += own.kv_tokens_used();
    kv_tokens_total += own.kv_tokens_total();
    v1::ServerCapacity& all = *info.mutable_capacity();
    all.set_max_running(all.max_running() + own.capacity().max_running());
    all.set_max_waiting(all.max_waiting() + own.capacity().max_waiting());
    all.set_kv_tokens(all.kv_tokens() + own.capacity().kv_tokens());
  }
  info.set_running(static_cast<uint32_t>(running));
  info.set_waiting(static_cast<uint32_t>(waiting));
  info.set_kv_tokens_used(kv_tokens_used);
  info.set_kv_tokens_total(kv_tokens_total);
  return info;
}

absl::Duration ModelPool::busy_time() const {
  absl::ReaderMutexLock lock(&mutex_);
  absl::Duration longest;
  for (const auto& model : models_) longest = std::max(longest, model->busy_time());
  return longest;
}

absl::Status ModelPool::Load(ServerRunner* server) {
  server_ = server;
  if (context_.options->registration.any()) {
    context_.identity = BeginRegistration(context_.options->registration, server->address());
  }
  std::vector<ModelServer*> models;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& model : models_) models.push_back(model.get());
  }
  for (ModelServer* model : models) SetServing(model->name(), false);
  for (ModelServer* model : models) {
    TANDEM_RETURN_IF_ERROR(model->Load());
    SetServing(model->name(), true);
    if (model != models.back()) AwaitWarmUp(*model);
  }
  // Models change once those of the start are there.
  if (!context_.options->models_folder.empty() || !context_.options->adapters_folder.empty())
    worker_ = std::thread([this] { Work(); });
  return absl::OkStatus();
}

void ModelPool::AwaitWarmUp(const ModelServer& model) const {
  const absl::Time end = absl::Now() + kLongestWarmUp;
  while (absl::Now() < end && !context_.stopped() && !model.AwaitWarmUp(kLook)) {
  }
}

void ModelPool::Register() {
  absl::MutexLock lock(&mutex_);
  for (const auto& model : models_) model->Register();
}

void ModelPool::Leave() {
  ending_ = true;
  absl::MutexLock lock(&mutex_);
  for (const auto& model : models_) model->Leave();
}

void ModelPool::Drain(absl::Time deadline) {
  ending_ = true;
  std::vector<ModelServer*> models;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& model : models_) models.push_back(model.get());
  }
  // At the same time: each hands over what it has left shortly before the deadline.
  std::vector<std::thread> drains;
  for (ModelServer* model : models) drains.emplace_back([model, deadline] { model->Drain(deadline); });
  for (std::thread& drain : drains) drain.join();
  StopWork();
}

void ModelPool::Work() {
  std::vector<std::function<void()>> jobs;
  while (jobs_.WaitUntil(absl::InfiniteFuture(), &jobs)) {
    for (const std::function<void()>& job : jobs) {
      job();
      absl::MutexLock lock(&jobs_mutex_);
      --waiting_;
    }
    jobs.clear();
  }
}

absl::Status ModelPool::Post(std::function<void()> job) {
  absl::MutexLock lock(&jobs_mutex_);
  if (closed_) return absl::UnavailableError("the verifier is shutting down");
  if (waiting_ >= kMostJobs) return absl::ResourceExhaustedError("too many loads and unloads are queued");
  ++waiting_;
  jobs_.Push(std::move(job));
  return absl::OkStatus();
}

absl::StatusOr<ModelPlan> ModelPool::PlanOf(const v1::LoadModelRequest& request) const {
  const VerifierFlags& options = *context_.options;
  ModelPlan plan;
  TANDEM_ASSIGN_OR_RETURN(
      plan.spec.folder, ServedFolder("verifier", "--models-folder", options.models_folder, request.folder()));
  plan.spec.name =
      request.name().empty() ? std::filesystem::path(plan.spec.folder).filename().string() : request.name();
  TANDEM_RETURN_IF_ERROR(CheckServedName("name", plan.spec.name));
  plan.kv_tokens = request.kv_tokens();
  plan.kv_bounded = options.kv_tokens == 0;
  if (plan.kv_tokens == 0 && !plan.kv_bounded) {
    plan.kv_tokens = std::max<uint64_t>(options.kv_tokens / options.models.size(), kFewestKvTokens);
  }
  const uint64_t most = plan.kv_bounded ? kMostKvTokens : options.kv_tokens;
  if ((plan.kv_tokens > 0 && plan.kv_tokens < kFewestKvTokens) || plan.kv_tokens > most) {
    return absl::InvalidArgumentError(absl::StrCat("kv_tokens: ", plan.kv_tokens, ", expected ",
                                                   kFewestKvTokens, " to ", most,
                                                   plan.kv_bounded ? "" : ", the verifier's --kv-tokens"));
  }
  absl::ReaderMutexLock lock(&mutex_);
  for (const auto& model : models_) {
    if (model->name() != plan.spec.name) continue;
    return absl::AlreadyExistsError(
        absl::StrCat("name: this verifier holds \"", plan.spec.name, "\" already"));
  }
  if (models_.size() >= options.max_models) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this verifier holds ", models_.size(), " models, which is the limit (max-models)"));
  }
  return plan;
}

uint64_t ModelPool::PromisedBytes() const {
  absl::ReaderMutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const auto& model : models_) bytes += std::min(model->kv_bytes(), UINT64_MAX - bytes);
  return bytes;
}

absl::StatusOr<v1::LoadModelResponse> ModelPool::LoadModel(const v1::LoadModelRequest& request) {
  if (ending_) return absl::UnavailableError("the verifier is shutting down");
  TANDEM_ASSIGN_OR_RETURN(const ModelPlan plan, PlanOf(request));
  LogInfo("loading a model", {{"model", plan.spec.name}, {"folder", plan.spec.folder}});
  const int number = ++num_loaded_;
  absl::StatusOr<std::vector<OpenedTarget>> targets =
      OpenTargets(*context_.options, {&plan, 1}, PromisedBytes());
  if (absl::IsResourceExhausted(targets.status())) return targets.status();
  if (!targets.ok()) return absl::InvalidArgumentError(absl::StrCat("folder: ", targets.status().message()));
  absl::StatusOr<std::unique_ptr<ModelServer>> opened = ModelServer::Open(
      context_, std::move(targets->front()), absl::StrCat("/", plan.spec.name, "/", number));
  if (!opened.ok()) return absl::InvalidArgumentError(absl::StrCat("folder: ", opened.status().message()));
  std::unique_ptr<ModelServer> model = *std::move(opened);
  if (const absl::Status loaded = model->Load(); !loaded.ok()) {
    return ending_ ? absl::UnavailableError("the verifier is shutting down") : loaded;
  }
  v1::LoadModelResponse response;
  *response.mutable_model() = model->info();
  response.set_kv_tokens(model->kv_tokens());
  ModelServer* const loaded = model.get();
  {
    absl::MutexLock lock(&mutex_);
    models_.push_back(std::move(model));
  }
  directory_.Add(loaded->name(), loaded->service());
  SetServing(loaded->name(), true);
  loaded->Register();
  return response;
}

absl::StatusOr<ModelServer*> ModelPool::FindModel(const std::string& name) const {
  absl::ReaderMutexLock lock(&mutex_);
  if (name.empty() && models_.size() == 1) return models_.front().get();
  for (const auto& model : models_) {
    if (model->name() == name) return model.get();
  }
  if (name.empty())
    return absl::InvalidArgumentError("model: expected a name, because this verifier holds several models");
  return absl::NotFoundError(absl::StrCat("model: this verifier holds no model \"",
                                          absl::CHexEscape(name.substr(0, kMostServedNameBytes)), "\""));
}

absl::StatusOr<v1::LoadAdapterResponse> ModelPool::LoadAdapter(const v1::LoadAdapterRequest& request) {
  if (ending_) return absl::UnavailableError("the verifier is shutting down");
  TANDEM_ASSIGN_OR_RETURN(ModelServer* const model, FindModel(request.model()));
  TANDEM_ASSIGN_OR_RETURN(
      const std::string folder,
      ServedFolder("verifier", "--adapters-folder", context_.options->adapters_folder, request.folder()));
  const std::string name =
      request.name().empty() ? std::filesystem::path(folder).filename().string() : request.name();
  TANDEM_RETURN_IF_ERROR(CheckServedName("name", name));
  return model->LoadAdapter(name, folder);
}

absl::StatusOr<v1::UnloadAdapterResponse> ModelPool::UnloadAdapter(const v1::UnloadAdapterRequest& request) {
  if (ending_) return absl::UnavailableError("the verifier is shutting down");
  TANDEM_ASSIGN_OR_RETURN(ModelServer* const model, FindModel(request.model()));
  return model->UnloadAdapter(request.name());
}

absl::StatusOr<v1::UnloadModelResponse> ModelPool::UnloadModel(const v1::UnloadModelRequest& request) {
  if (ending_) return absl::UnavailableError("the verifier is shutting down");
  ModelServer* model = nullptr;
  {
    absl::ReaderMutexLock lock(&mutex_);
    const auto found = std::find_if(models_.begin(), models_.end(),
                                    [&](const auto& other) { return other->name() == request.name(); });
    if (found == models_.end()) {
      return absl::NotFoundError(
          absl::StrCat("name: this verifier holds no model \"",
                       absl::CHexEscape(request.name().substr(0, kMostServedNameBytes)), "\""));
    }
    if (models_.size() == 1) return absl::FailedPreconditionError("it is the last model of this verifier");
    model = found->get();
  }
  LogInfo("unloading a model", {{"model", request.name()}});
  const DrainTimes times = context_.options->server.drain_times();
  SetServing(request.name(), false);
  model->Leave();
  // Until routers have seen it, it takes requests.
  const absl::Time refuse = absl::Now() + times.delay;
  while (absl::Now() < refuse && !ending_) absl::SleepFor(std::min(kLook, refuse - absl::Now()));
  directory_.Withdraw(request.name());
  // Where the process ends meanwhile, it drains this one as well, with the earlier deadline.
  model->Drain(absl::Now() + times.grace);
  // Its calls end with the process at the latest, which does not wait for them.
  while (!model->AwaitNoCalls(kLook)) {
    if (ending_) return absl::UnavailableError("the verifier is shutting down");
  }
  std::unique_ptr<ModelServer> gone;
  {
    absl::MutexLock lock(&mutex_);
    // The process drains those it has found.
    if (ending_) return absl::UnavailableError("the verifier is shutting down");
    const auto found = std::find_if(models_.begin(), models_.end(),
                                    [model](const auto& other) { return other.get() == model; });
    gone = std::move(*found);
    models_.erase(found);
  }
  gone.reset();
  LogInfo("model unloaded", {{"model", request.name()}});
  return v1::UnloadModelResponse();
}

}  // namespace tandem

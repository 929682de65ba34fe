#include "verifier/rpc/models_service.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/status.h"

namespace tandem {
namespace {

constexpr size_t kShownName = 128;

std::string Shown(const std::string& name) {
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShownName)), "\"");
}

// The swaps of several models, answered when the last of them is told.
class SwapSum {
 public:
  SwapSum(v1::SwapDrafterResponse* response, grpc::ServerUnaryReactor* reactor)
      : response_(response), reactor_(reactor) {}
  ~SwapSum() { reactor_->Finish(ToGrpcStatus(status_)); }

  void Add(const absl::StatusOr<DrafterSwapResult>& result) {
    absl::MutexLock lock(&mutex_);
    status_.Update(result.status());
    if (!result.ok()) return;
    response_->set_swapped(response_->swapped() + result->swapped);
    response_->set_refused(response_->refused() + result->refused);
    response_->set_ended(response_->ended() + result->ended);
    if (response_->refusal().empty()) response_->set_refusal(result->refusal);
  }

 private:
  absl::Mutex mutex_;
  v1::SwapDrafterResponse* const response_;
  grpc::ServerUnaryReactor* const reactor_;
  absl::Status status_;
};

constexpr absl::string_view kFixedModels =
    "models cannot be loaded or unloaded here: the verifier was started without --models-folder";
constexpr absl::string_view kFixedAdapters =
    "adapters cannot be loaded or unloaded here: the verifier was started without --adapters-folder";

// Answers a call when what was asked for is done; at once, with `fixed`, where that does not change.
template <class Request, class Response, class Change>
grpc::ServerUnaryReactor* Ask(grpc::CallbackServerContext* context, const Change& change,
                              absl::string_view fixed, const Request* request, Response* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (!change) {
    reactor->Finish(ToGrpcStatus(absl::FailedPreconditionError(fixed)));
    return reactor;
  }
  change(*request, [reactor, response](absl::StatusOr<Response> result) {
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(ToGrpcStatus(result.status()));
  });
  return reactor;
}

}  // namespace

void ModelsService::Add(const std::string& name, VerifierService* service) {
  absl::MutexLock lock(&mutex_);
  models_[name] = service;
  withdrawn_.erase(name);
}

void ModelsService::Withdraw(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  models_.erase(name);
  withdrawn_.insert(name);
}

std::string ModelsService::Names() const {
  std::string names;
  for (const auto& [name, service] : models_) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  return names;
}

absl::StatusOr<ModelsService::Held> ModelsService::Find(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(name);
  if (found != models_.end()) return Held{found->second, found->second->Hold()};
  if (withdrawn_.count(name) > 0) {
    return absl::UnavailableError(absl::StrCat("model: ", Shown(name), " has been unloaded here"));
  }
  if (models_.size() == 1) return Held{models_.begin()->second, models_.begin()->second->Hold()};
  return absl::FailedPreconditionError(
      absl::StrCat("model: ", Shown(name), ", but this verifier holds ", Names()));
}

absl::StatusOr<std::vector<ModelsService::Held>> ModelsService::FindAll(const std::string& name) {
  std::vector<Held> held;
  if (!name.empty()) {
    absl::MutexLock lock(&mutex_);
    const auto found = models_.find(name);
    if (found == models_.end()) {
      return absl::FailedPreconditionError(
          absl::StrCat("model: ", Shown(name), ", but this verifier holds ", Names()));
    }
    held.push_back({found->second, found->second->Hold()});
    return held;
  }
  absl::MutexLock lock(&mutex_);
  for (const auto& [model, service] : models_) {
    // One that loads has nobody to move.
    if (service->loop() != nullptr || models_.size() == 1) held.push_back({service, service->Hold()});
  }
  if (held.empty()) return absl::UnavailableError("the verifier is still loading its models");
  return held;
}

grpc::ServerWriteReactor<v1::GenerateResponse>* ModelsService::Generate(
    grpc::CallbackServerContext* context, const v1::VerifierGenerateRequest* request) {
  const absl::StatusOr<Held> held = Find(request->model());
  if (held.ok()) return held->service->Generate(context, request);
  const std::shared_ptr<GenerateStream> stream = GenerateStream::Create();
  auto* const reactor = stream->Start({});
  stream->Finish(held.status());
  return reactor;
}

grpc::ServerUnaryReactor* ModelsService::SwapDrafter(grpc::CallbackServerContext* context,
                                                     const v1::SwapDrafterRequest* request,
                                                     v1::SwapDrafterResponse* response) {
  absl::StatusOr<std::vector<Held>> models = FindAll(request->model());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (!models.ok()) {
    reactor->Finish(ToGrpcStatus(models.status()));
    return reactor;
  }
  const auto sum = std::make_shared<SwapSum>(response, reactor);
  for (const Held& model : *models) {
    const absl::Status asked = model.service->Swap(
        *request, [sum](const absl::StatusOr<DrafterSwapResult>& result) { sum->Add(result); });
    if (!asked.ok()) sum->Add(asked);
  }
  return reactor;
}

grpc::ServerUnaryReactor* ModelsService::LoadModel(grpc::CallbackServerContext* context,
                                                   const v1::LoadModelRequest* request,
                                                   v1::LoadModelResponse* response) {
  return Ask(context, changes_.load, kFixedModels, request, response);
}

grpc::ServerUnaryReactor* ModelsService::UnloadModel(grpc::CallbackServerContext* context,
                                                     const v1::UnloadModelRequest* request,
                                                     v1::UnloadModelResponse* response) {
  return Ask(context, changes_.unload, kFixedModels, request, response);
}

grpc::ServerUnaryReactor* ModelsService::LoadAdapter(grpc::CallbackServerContext* context,
                                                     const v1::LoadAdapterRequest* request,
                                                     v1::LoadAdapterResponse* response) {
  return Ask(context, changes_.load_adapter, kFixedAdapters, request, response);
}

grpc::ServerUnaryReactor* ModelsService::UnloadAdapter(grpc::CallbackServerContext* context,
                                                       const v1::UnloadAdapterRequest* request,
                                                       v1::UnloadAdapterResponse* response) {
  return Ask(context, changes_.unload_adapter, kFixedAdapters, request, response);
}

}  // namespace tandem

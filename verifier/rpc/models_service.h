#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tandem/v1/verifier.grpc.pb.h"
#include "verifier/rpc/service.h"

namespace tandem {

// The gRPC service of a verifier with one or several models. Passes each call to the service of the model
// that it names, and LoadModel and similar calls to the Changes callbacks. If there is only one model, it
// gets every call, and itself refuses other models.
//
//   Add --> calls for the name go to its service --Withdraw--> UNAVAILABLE, so that routers go elsewhere
//
// Thread-safe.
class ModelsService final : public v1::Verifier::CallbackService {
 public:
  template <class Response>
  using Done = std::function<void(absl::StatusOr<Response>)>;
  // The callbacks call `done` once, from any thread, and do not block.
  struct Changes {
    std::function<void(const v1::LoadModelRequest&, Done<v1::LoadModelResponse> done)> load;
    std::function<void(const v1::UnloadModelRequest&, Done<v1::UnloadModelResponse> done)> unload;
    // The same for adapters.
    std::function<void(const v1::LoadAdapterRequest&, Done<v1::LoadAdapterResponse> done)> load_adapter;
    std::function<void(const v1::UnloadAdapterRequest&, Done<v1::UnloadAdapterResponse> done)> unload_adapter;
  };
  // Call it before the server starts. If a callback is not set, models, or adapters, do not change at run
  // time.
  void SetChanges(Changes changes) { changes_ = std::move(changes); }

  // Adds a model. `service` must exist until Withdraw and its own AwaitNoCalls have returned.
  void Add(const std::string& name, VerifierService* service);
  // Removes a model. Afterwards its service gets no new calls.
  void Withdraw(const std::string& name);

  grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
      grpc::CallbackServerContext* context, const v1::VerifierGenerateRequest* request) override;
  grpc::ServerUnaryReactor* SwapDrafter(grpc::CallbackServerContext* context,
                                        const v1::SwapDrafterRequest* request,
                                        v1::SwapDrafterResponse* response) override;
  grpc::ServerUnaryReactor* LoadModel(grpc::CallbackServerContext* context,
                                      const v1::LoadModelRequest* request,
                                      v1::LoadModelResponse* response) override;
  grpc::ServerUnaryReactor* UnloadModel(grpc::CallbackServerContext* context,
                                        const v1::UnloadModelRequest* request,
                                        v1::UnloadModelResponse* response) override;
  grpc::ServerUnaryReactor* LoadAdapter(grpc::CallbackServerContext* context,
                                        const v1::LoadAdapterRequest* request,
                                        v1::LoadAdapterResponse* response) override;
  grpc::ServerUnaryReactor* UnloadAdapter(grpc::CallbackServerContext* context,
                                          const v1::UnloadAdapterRequest* request,
                                          v1::UnloadAdapterResponse* response) override;

 private:
  // A model's service, kept alive while this exists.
  struct Held {
    VerifierService* service = nullptr;
    std::shared_ptr<void> hold;
  };
  absl::StatusOr<Held> Find(const std::string& name);
  // The services that a swap concerns.
  absl::StatusOr<std::vector<Held>> FindAll(const std::string& name);
  std::string Names() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  Changes changes_;
  absl::Mutex mutex_;
  std::map<std::string, VerifierService*> models_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> withdrawn_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem

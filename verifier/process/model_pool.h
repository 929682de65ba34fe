#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/mailbox.h"
#include "common/rpc/server.h"
#include "tandem/v1/admin.pb.h"
#include "verifier/process/model_plan.h"
#include "verifier/process/model_server.h"
#include "verifier/rpc/models_service.h"

namespace tandem {

// The models of a verifier process: those given at the start and, with --models-folder, those added and
// removed by LoadModel and UnloadModel. A worker thread makes these changes, one at a time.
//
// Call Open, Load, Register, Drain and the destructor on one thread, in this order. All other methods are
// thread-safe.
class ModelPool {
 public:
  // Opens and checks the files of all models. `context` is the process's; the pool extends `stopped` by its
  // own end, and uses its own `turns`.
  static absl::StatusOr<std::unique_ptr<ModelPool>> Open(ModelServer::Context context,
                                                         const std::vector<ModelPlan>& plans);
  ~ModelPool();

  // The service that the server exports.
  ModelsService* directory() { return &directory_; }
  // The server's info, without the uptime.
  v1::ServerInfo Describe() const;
  // The longest time that an engine has been in its current step.
  absl::Duration busy_time() const;

  // Loads the models given at the start, one after the other; each serves as soon as it is loaded. `server`
  // must exist until Drain has returned.
  absl::Status Load(ServerRunner* server);
  // Registers the models at routers.
  void Register();
  // Tells routers that the models leave.
  void Leave();
  // Refuses new requests, and stops changes of models. Returns when nothing runs or the deadline has passed.
  void Drain(absl::Time deadline);

 private:
  explicit ModelPool(ModelServer::Context context);

  void Work();
  void StopWork();
  // Runs `job` on the worker. ResourceExhausted if too many jobs wait, Unavailable once the process ends.
  absl::Status Post(std::function<void()> job);
  absl::StatusOr<v1::LoadModelResponse> LoadModel(const v1::LoadModelRequest& request);
  absl::StatusOr<v1::UnloadModelResponse> UnloadModel(const v1::UnloadModelRequest& request);
  absl::StatusOr<v1::LoadAdapterResponse> LoadAdapter(const v1::LoadAdapterRequest& request);
  absl::StatusOr<v1::UnloadAdapterResponse> UnloadAdapter(const v1::UnloadAdapterRequest& request);
  // Called by the worker, because only the worker removes models. An empty name means the only model.
  absl::StatusOr<ModelServer*> FindModel(const std::string& name) const;
  absl::StatusOr<ModelPlan> PlanOf(const v1::LoadModelRequest& request) const;
  // What the keys and values of all models take once they are all used.
  uint64_t PromisedBytes() const;
  void SetServing(const std::string& model, bool serving);
  // Waits until the model's round times are measured, but not for long.
  void AwaitWarmUp(const ModelServer& model) const;
  // "tandem.v1.Verifier/NAME".
  static std::string HealthName(const std::string& model);

  ModelServer::Context context_;
  const bool several_;
  ModelsService directory_;
  ServerRunner* server_ = nullptr;
  std::atomic<bool> ending_{false};
  int num_loaded_ = 0;  // At run time; the worker's.
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<ModelServer>> models_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex jobs_mutex_;
  int waiting_ ABSL_GUARDED_BY(jobs_mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(jobs_mutex_) = false;
  Mailbox<std::function<void()>> jobs_;
  std::thread worker_;
};

}  // namespace tandem

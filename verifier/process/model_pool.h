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

// The models of a verifier process: those that it was started with and, with --models-folder, those that
// LoadModel and UnloadModel say. These come one after the other, on a thread of their own.
//
// Open, Load, Register, Drain and destruction belong to one thread, in this order; the rest is safe from any.
class ModelPool {
 public:
  // Looks at the files of all. `context` is the process', but for `stopped`, to which the pool's end is
  // added, and `turns`, which are its own.
  static absl::StatusOr<std::unique_ptr<ModelPool>> Open(ModelServer::Context context,
                                                         const std::vector<ModelPlan>& plans);
  ~ModelPool();

  // What the server serves.
  ModelsService* directory() { return &directory_; }
  // What runs here, but for the uptime.
  v1::ServerInfo Describe() const;
  // Of the engine that has been at its step for the longest time.
  absl::Duration busy_time() const;

  // Loads those of the start, one after the other; each serves from then on. `server` outlives the pool's
  // Drain.
  absl::Status Load(ServerRunner* server);
  // Has routers told of them.
  void Register();
  // Has routers told that they leave.
  void Leave();
  // Refuses new requests; returns when nothing runs or the deadline has passed, and models do not change any
  // more.
  void Drain(absl::Time deadline);

 private:
  explicit ModelPool(ModelServer::Context context);

  void Work();
  void StopWork();
  // Has the worker do it. ResourceExhausted if too many wait, Unavailable once the process ends.
  absl::Status Post(std::function<void()> job);
  absl::StatusOr<v1::LoadModelResponse> LoadModel(const v1::LoadModelRequest& request);
  absl::StatusOr<v1::UnloadModelResponse> UnloadModel(const v1::UnloadModelRequest& request);
  absl::StatusOr<v1::LoadAdapterResponse> LoadAdapter(const v1::LoadAdapterRequest& request);
  absl::StatusOr<v1::UnloadAdapterResponse> UnloadAdapter(const v1::UnloadAdapterRequest& request);
  // The worker's: nobody else takes models away. Empty: the only one.
  absl::StatusOr<ModelServer*> FindModel(const std::string& name) const;
  absl::StatusOr<ModelPlan> PlanOf(const v1::LoadModelRequest& request) const;
  void SetServing(const std::string& model, bool serving);
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

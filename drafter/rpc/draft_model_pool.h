#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/mailbox.h"
#include "common/metrics/metrics.h"
#include "drafter/models/model_host.h"
#include "drafter/rpc/constraint_service.h"
#include "drafter/rpc/service.h"
#include "tandem/v1/registry.pb.h"

namespace tandem {

// The draft models of a drafter process: those given at the start and, with a models folder, those added and
// removed by LoadDraftModel and UnloadDraftModel. A worker thread makes these changes, one at a time. A
// replaced or unloaded model keeps its memory until nothing uses it any more.
//
//   Open (looks at the files) -> Load (of the start) -> Serve --load, unload--> Stop
//
// Call Open, Load, Serve, Stop and the destructor on one thread, in this order. All other methods are
// thread-safe.
class DraftModelPool {
 public:
  struct Options {
    std::vector<ModelSpec> specs;  // Of the start.
    std::vector<MergeSpec> merges;
    std::string head_target;
    std::vector<std::string> plain_eagle3;  // Names of models, also of those that may come: MarkPlainHeads.
    std::vector<std::string> target_vocabularies;
    ModelHost::Options load;
    std::string models_folder;  // Empty: models do not change.
    uint32_t max_models = 16;
    uint64_t memory_limit = 0;     // Bytes, as ModelHost::MemoryOf counts; 0: none.
    bool digests_weights = false;  // For registrations.
  };
  // Errors of ModelHost::Open, errors for weight types that the files do not hold, and ResourceExhausted if
  // the models exceed the memory limit.
  static absl::StatusOr<std::unique_ptr<DraftModelPool>> Open(Options options, MetricsRegistry* registry);
  ~DraftModelPool();

  // The callbacks with which the service changes models. Calls before Serve wait for it.
  DrafterService::Changes Changes();
  absl::Status Load();
  // Lets `service` serve the models and accept changes. `service` outlives Stop; stop it after Stop, before
  // this is destroyed. `changed` is called after every change.
  void Serve(DrafterService* service, const DraftCore::Options& options, const ConstraintFlags& constraints,
             ConstraintMetrics* metrics, const Clock* clock, std::function<void()> changed);
  // Ends changes of models; running loads fail with Unavailable.
  void Stop();

  // The models, in the form of ServerInfo.
  std::vector<v1::ModelInfo> infos() const;
  // The models, in the form of registrations. Only after Load, with Options::digests_weights.
  v1::RegisteredDrafter registered() const;
  uint64_t kv_tokens() const;
  double load_progress() const;

 private:
  struct Held {
    v1::ModelInfo info;
    std::string weights_sha256;  // Empty for a source, and if not needed.
    ModelHost::Memory memory;    // 0 of a merge, which takes another one's.
    uint64_t kv_tokens = 0;
    DraftConstraints::Vocabularies vocabularies;
    std::string made_of;  // Of a merge.
  };
  // Lives as long as something uses the model.
  class Use;

  DraftModelPool(Options options, MetricsRegistry* registry);
  absl::StatusOr<Held> Describe(const ModelHost::Description& hosted, const ModelHost::Options& load) const;
  std::shared_ptr<void> MakeUse(std::shared_ptr<void> hold, const Held& held);

  void Work();
  absl::Status Post(std::function<void()> job);
  absl::StatusOr<v1::LoadDraftModelResponse> LoadModel(const v1::LoadDraftModelRequest& request);
  absl::StatusOr<v1::UnloadDraftModelResponse> UnloadModel(const v1::UnloadDraftModelRequest& request);
  // Whether the model may be loaded. Checked before its files are read, and again, with its size, before its
  // weights are loaded.
  absl::Status CheckPlace(const std::string& name, bool replace);
  absl::Status CheckMemory(const ModelHost::Memory& memory) const;
  absl::Status CheckNotMerged(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // end() if there is no such model.
  std::vector<Held>::iterator Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  // Until Serve; after that, Use objects hold its models. Its other data is guarded by mutex_.
  std::unique_ptr<ModelHost> start_;
  CounterFamily& changes_;
  DrafterService* service_ = nullptr;
  std::function<void()> changed_;
  std::atomic<bool> ending_{false};
  mutable absl::Mutex mutex_;
  std::vector<Held> held_ ABSL_GUARDED_BY(mutex_);     // That sessions may be opened with.
  uint64_t memory_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // Of all that are there.
  absl::Mutex jobs_mutex_;
  int waiting_ ABSL_GUARDED_BY(jobs_mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(jobs_mutex_) = false;
  Mailbox<std::function<void()>> jobs_;
  std::thread worker_;
};

}  // namespace tandem

#pragma once

#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/drafters/choice/drafter_chooser.h"
#include "router/drafters/policy_memory.h"
#include "router/state/routing_store.h"

namespace tandem::router {

// A file of `tandem calibrate`.
struct CalibrationFile {
  std::string path;
  std::string bytes;
};

// Loads the chooser's learned state from the store. If `calibration` is not the file from which the stored
// state was started, its models replace the stored ones first. A model whose stored state does not fit, for
// example because its vocabulary has changed, starts without it, with a warning in the log. If a record is
// damaged, the previous one is used; if the calibration is damaged, the stored state of another one is used;
// the log names both. InvalidArgument, FailedPrecondition or DataLoss, naming the file, for a calibration
// that cannot be used; errors of the store.
absl::Status ReadLearned(const std::optional<CalibrationFile>& calibration, RoutingStore& store,
                         DrafterChooser& chooser);

// Stores the chooser's learned state, sealed (common/config/sealed_bytes.h), unless it is unchanged. The old
// record is kept as the previous one. Models about which the chooser knows nothing keep their stored state.
// If several routers share the store, the last one wins.
absl::Status WriteLearned(const DrafterChooser& chooser, RoutingStore& store);

// The same for the state of window policies (PolicyMemory). Entries that cannot be read are left out, with a
// warning in the log. Errors of the store.
absl::Status ReadPolicies(RoutingStore& store, PolicyMemory& policies);
absl::Status WritePolicies(const PolicyMemory& policies, RoutingStore& store);

// Calls WriteLearned and WritePolicies every `interval` and at the end, on a thread of its own. Logs
// failures, and retries at the next interval.
class LearnedStateSaver {
 public:
  // All arguments outlive the object.
  LearnedStateSaver(const DrafterChooser* chooser, const PolicyMemory* policies, RoutingStore* store,
                    absl::Duration interval);
  ~LearnedStateSaver();

 private:
  void Run();

  const DrafterChooser& chooser_;
  const PolicyMemory& policies_;
  RoutingStore& store_;
  const absl::Duration interval_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::router

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

// Gives the chooser what the store holds of what was learned. Where `calibration` is not the file that the
// store's learning began with, the models in it replace the stored ones first. A model whose stored state
// does not fit, such as one with another vocabulary by now, begins anew, with a warning in the log. Of a
// damaged record the one before is used, and of a damaged calibration what the store holds of another; the
// log names both. InvalidArgument, FailedPrecondition or DataLoss, naming the file, for a calibration that
// cannot be used; errors of the store.
absl::Status ReadLearned(const std::optional<CalibrationFile>& calibration, RoutingStore& store,
                         DrafterChooser& chooser);

// Stores what the chooser has learned, sealed (common/config/sealed_bytes.h), unless that is there already;
// what was there is kept as the record before. Models it knows nothing of keep what is stored of them. Of
// several routers on one store the last one wins.
absl::Status WriteLearned(const DrafterChooser& chooser, RoutingStore& store);

// The same for what window policies have learned (PolicyMemory): of its entries those that can be read are
// taken, with a warning in the log. Errors of the store.
absl::Status ReadPolicies(RoutingStore& store, PolicyMemory& policies);
absl::Status WritePolicies(const PolicyMemory& policies, RoutingStore& store);

// Calls WriteLearned and WritePolicies every `interval` and at the end, on a thread of its own. What it
// cannot write is logged, and tried again the next time.
class LearnedStateSaver {
 public:
  // All outlive the object.
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

#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/engine/engine.h"

namespace tandem {

// Lets several engines on the same cores or device take turns: one computes at a time, in the order of their
// requests. Thread-safe.
class EngineTurns {
 public:
  EngineTurns() = default;
  EngineTurns(const EngineTurns&) = delete;
  EngineTurns& operator=(const EngineTurns&) = delete;

  // Blocks until all earlier requesters have given their turns back.
  void Take();
  void Give();

 private:
  absl::Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;    // The number of requests before the next one.
  uint64_t served_ ABSL_GUARDED_BY(mutex_) = 0;  // Turns that are over.
};

// Wraps an engine so that its steps take turns with those of others: a step has all threads or the whole
// device to itself. The results are those of the inner engine. If it does not overlap, a turn is Finish, or
// Step; otherwise a turn lasts from Start to the end of Finish. `turns`: shared by the engines that take
// turns.
std::unique_ptr<Engine> TakeTurns(std::unique_ptr<Engine> engine, std::shared_ptr<EngineTurns> turns);

}  // namespace tandem

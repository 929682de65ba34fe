#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/engine/engine.h"

namespace tandem {

// Lets several engines on the same cores or device take turns: one computes at a time, in the order in
// which they asked. Thread-safe.
class EngineTurns {
 public:
  EngineTurns() = default;
  EngineTurns(const EngineTurns&) = delete;
  EngineTurns& operator=(const EngineTurns&) = delete;

  // Blocks until all who asked before have given their turns back.
  void Take();
  void Give();

 private:
  absl::Mutex mutex_;
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 0;    // Who asks now comes after so many.
  uint64_t served_ ABSL_GUARDED_BY(mutex_) = 0;  // Turns that are over.
};

// An engine whose steps take turns with those of others: each has all threads or the whole device while it
// lasts, and none slows another down half way. What it computes is what the engine inside computes (law 1
// does not know of time). Where nothing overlaps, a turn is Finish, or Step; else it lasts from Start to the
// end of Finish. `turns` is shared by the engines that take turns.
std::unique_ptr<Engine> TakeTurns(std::unique_ptr<Engine> engine, std::shared_ptr<EngineTurns> turns);

}  // namespace tandem

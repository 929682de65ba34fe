#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace tandem {

// Shows the progress of loading a model: on a terminal, one line that is redrawn (percent, bytes, rate, time
// left), otherwise a log line every three seconds. Also tells the loader when to stop.
//
//   LoadProgress progress("tandem-target-15m", model.weight_bytes());
//   progress.StopWhen([&] { return signals.Arrived(); });
//   for (...) { pack a tensor; TANDEM_RETURN_IF_ERROR(progress.Add(tensor.num_bytes())); }
//   progress.Finish();
//
// Thread rule: one thread calls StopWhen, Add and Finish; any thread may read ratio(). The ratio never falls.
class LoadProgress {
 public:
  struct Options {
    bool terminal = ::isatty(STDERR_FILENO) == 1;
    const Clock* clock = nullptr;                 // The system's when null. Not owned.
    std::function<void(absl::string_view)> draw;  // Writes to the terminal; stderr when empty.
    std::function<void(absl::string_view)> log;   // Takes each line's text; LogInfo when empty.
  };

  LoadProgress(absl::string_view model, uint64_t total_bytes) : LoadProgress(model, total_bytes, Options()) {}
  LoadProgress(absl::string_view model, uint64_t total_bytes, Options options);
  // Ends a line that an error left unfinished.
  ~LoadProgress();
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;

  // From now on every Add calls `stopped` to find out whether loading should stop. May be unset.
  void StopWhen(std::function<bool()> stopped) { stopped_ = std::move(stopped); }
  // A sum above `total_bytes` counts as all of them. Cancelled if loading should stop.
  absl::Status Add(uint64_t bytes);
  // Reports the end, with the time taken; the ratio is 1 from then on. Further calls do nothing.
  void Finish();

  // Bytes done over total bytes, in [0, 1].
  double ratio() const { return ratio_.load(std::memory_order_relaxed); }

 private:
  void Draw(absl::Time now);
  void LogLine(absl::Time now);

  const std::string model_;
  const uint64_t total_bytes_;
  Options options_;
  std::function<bool()> stopped_;
  const SystemClock system_clock_;
  absl::Time start_;
  absl::Time last_report_ = absl::InfinitePast();
  uint64_t done_bytes_ = 0;
  size_t drawn_width_ = 0;
  bool finished_ = false;
  std::atomic<double> ratio_{0.0};
};

}  // namespace tandem

#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/config/window_policy_file.h"

namespace tandem {

// Files are at most this long.
inline constexpr size_t kMaxPolicyFileBytes = 64 * 1024;

// Reads a window policy file again every `period` and tells when its content has changed. A file that cannot
// be read or understood is logged, once, and what was there before stays. Calls back on a thread of its own,
// which ends with this.
class PolicyFileWatch {
 public:
  using OnChange = std::function<void(const WindowPolicyFile&)>;
  // `content` is what the caller has read already.
  PolicyFileWatch(std::string path, std::string content, absl::Duration period, OnChange on_change);
  ~PolicyFileWatch();
  PolicyFileWatch(const PolicyFileWatch&) = delete;
  PolicyFileWatch& operator=(const PolicyFileWatch&) = delete;

 private:
  void Run();

  const std::string path_;
  const absl::Duration period_;
  const OnChange on_change_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::string content_;  // Of the thread.
  std::thread thread_;
};

}  // namespace tandem

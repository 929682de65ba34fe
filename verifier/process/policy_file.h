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

// The largest allowed file.
inline constexpr size_t kMaxPolicyFileBytes = 64 * 1024;

// Reloads a window policy file: reads it every `period`, and calls back if its content has changed. If the
// file cannot be read or parsed, logs that once, and the previous content stays in force. Callbacks run on a
// thread of this object.
class PolicyFileWatch {
 public:
  using OnChange = std::function<void(const WindowPolicyFile&)>;
  // `content`: the content that the caller has already read.
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

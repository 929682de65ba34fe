#include "verifier/process/policy_file.h"

#include <utility>

#include "common/base/file.h"
#include "common/base/log.h"

namespace tandem {

PolicyFileWatch::PolicyFileWatch(std::string path, std::string content, absl::Duration period,
                                 OnChange on_change)
    : path_(std::move(path)),
      period_(period),
      on_change_(std::move(on_change)),
      content_(std::move(content)),
      thread_([this] { Run(); }) {}

PolicyFileWatch::~PolicyFileWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  thread_.join();
}

void PolicyFileWatch::Run() {
  std::string complaint;
  const auto complain = [&](const absl::Status& status) {
    const std::string message(status.message());
    if (message != complaint) LogWarning("window policy file rejected", {{"error", message}});
    complaint = message;
  };
  const auto wait = [this] {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&stopped_), period_);
  };
  while (!wait()) {
    absl::StatusOr<std::string> content = ReadFile(path_, kMaxPolicyFileBytes);
    if (!content.ok()) {
      complain(content.status());
      continue;
    }
    if (*content == content_) continue;
    content_ = *std::move(content);
    const absl::StatusOr<WindowPolicyFile> file = ParseWindowPolicyFile(content_, path_);
    if (file.ok()) {
      complaint.clear();
      on_change_(*file);
    } else {
      complain(file.status());
    }
  }
}

}  // namespace tandem

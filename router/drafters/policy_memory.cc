#include "router/drafters/policy_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "common/speculation/policies/qlearning_state.h"

namespace tandem::router {

std::string PolicyMemory::Find(const PolicyKey& key) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return {};
  found->second.last_used = ++uses_;
  return found->second.state;
}

absl::Status PolicyMemory::Learn(const PolicyKey& key, absl::string_view newer) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  const absl::string_view stored = found == entries_.end() ? absl::string_view() : found->second.state;
  TANDEM_ASSIGN_OR_RETURN(std::string merged, MergePolicyStates(stored, newer));
  Put(key, std::move(merged));
  return absl::OkStatus();
}

void PolicyMemory::Put(const PolicyKey& key, std::string state) {
  entries_[key] = {.state = std::move(state), .last_used = ++uses_};
  if (entries_.size() <= most_entries_) return;
  entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](const auto& left, const auto& right) {
    return left.second.last_used < right.second.last_used;
  }));
}

v1::WindowPolicyRecord PolicyMemory::Save() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::map<PolicyKey, Entry>::const_iterator> order;
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) order.push_back(entry);
  std::sort(order.begin(), order.end(), [](const auto& left, const auto& right) {
    return left->second.last_used < right->second.last_used;
  });
  v1::WindowPolicyRecord record;
  for (const auto& entry : order) {
    v1::LearnedWindowPolicy& saved = *record.add_policies();
    saved.set_tenant(entry->first.tenant);
    saved.set_model(entry->first.model);
    saved.set_drafter(entry->first.drafter);
    saved.set_window_policy(entry->first.window_policy);
    saved.set_state(entry->second.state);
  }
  return record;
}

size_t PolicyMemory::Load(const v1::WindowPolicyRecord& record) {
  absl::MutexLock lock(&mutex_);
  entries_.clear();
  size_t unreadable = 0;
  for (const v1::LearnedWindowPolicy& saved : record.policies()) {
    absl::StatusOr<std::string> state = MergePolicyStates({}, saved.state());
    if (!state.ok()) {
      ++unreadable;
      continue;
    }
    Put({.tenant = saved.tenant(),
         .model = saved.model(),
         .drafter = saved.drafter(),
         .window_policy = saved.window_policy()},
        *std::move(state));
  }
  return unreadable;
}

}  // namespace tandem::router

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "tandem/v1/state.pb.h"

namespace tandem::router {

// The key of a window policy's state. The state is only used for the tenant from whose requests it was
// learned.
struct PolicyKey {
  std::string tenant;
  std::string model;
  std::string drafter;        // Empty: none.
  std::string window_policy;  // Empty: the verifier's.
  friend auto operator<=>(const PolicyKey&, const PolicyKey&) = default;
};

// Keeps the state of window policies that learn across requests (SpeculationStats.policy_state), from one
// request to the next:
//
//   Find --> VerifierGenerateRequest.policy_state
//              ... the request runs ...
//            SpeculationStats.policy_state --> Learn
//
// States from concurrent requests are merged (MergePolicyStates). Beyond `most_entries` keys, the least
// recently used are dropped. Thread-safe.
class PolicyMemory {
 public:
  // If every state has the largest size, the record is 1 MiB, the largest value that an etcd takes.
  static constexpr size_t kMostEntries = 256;

  explicit PolicyMemory(size_t most_entries = kMostEntries) : most_entries_(most_entries) {}

  // Empty if nothing was learned.
  std::string Find(const PolicyKey& key);
  // `newer`: the state at the end of a request that began with the result of Find. MergePolicyStates checks
  // it, because it comes from a verifier: InvalidArgument, without a change, if it cannot be read.
  absl::Status Learn(const PolicyKey& key, absl::string_view newer);

  // Least recently used entries first.
  v1::WindowPolicyRecord Save() const;
  // Replaces all entries. Leaves out those that cannot be read, and returns their number.
  size_t Load(const v1::WindowPolicyRecord& record);

 private:
  struct Entry {
    std::string state;
    uint64_t last_used = 0;
  };
  void Put(const PolicyKey& key, std::string state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t most_entries_;
  mutable absl::Mutex mutex_;
  std::map<PolicyKey, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::router

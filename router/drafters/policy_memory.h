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

// What a window policy's knowledge is of. Nobody but the tenant that it was learned from is given it.
struct PolicyKey {
  std::string tenant;
  std::string model;
  std::string drafter;        // Empty: none.
  std::string window_policy;  // Empty: the verifier's.
  friend auto operator<=>(const PolicyKey&, const PolicyKey&) = default;
};

// Keeps what window policies that learn across requests have come to (SpeculationStats.policy_state), between
// one request and the next:
//
//   Find --> VerifierGenerateRequest.policy_state ... the request runs ... SpeculationStats.policy_state -->
//   Learn
//
// Requests that ran at the same time are merged (MergePolicyStates). Of more than `most_entries` keys those
// that were used longest ago are forgotten. Thread-safe.
class PolicyMemory {
 public:
  // With a state of the largest size for each, the record is 1 MiB: what an etcd takes as one value.
  static constexpr size_t kMostEntries = 256;

  explicit PolicyMemory(size_t most_entries = kMostEntries) : most_entries_(most_entries) {}

  // Empty when nothing was learned.
  std::string Find(const PolicyKey& key);
  // `newer` is what a request ended with that began with what Find said. Verifiers are not believed further
  // than MergePolicyStates does: InvalidArgument, without a change, for what cannot be read.
  absl::Status Learn(const PolicyKey& key, absl::string_view newer);

  // Those used longest ago first.
  v1::WindowPolicyRecord Save() const;
  // In the place of all that is known. What cannot be read is left out; returns how many entries that were.
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

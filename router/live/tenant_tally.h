#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/speculation/merged_tree.h"
#include "tandem/v1/types.pb.h"

namespace tandem::router {

// Counts of a tenant's requests since the router started.
struct TenantTally {
  uint64_t running = 0;
  uint64_t finished = 0;  // With OK,
  uint64_t failed = 0;    // and with any other status.
  uint64_t tokens = 0;    // Of outputs.
  uint64_t drafted_rounds = 0;
  std::array<uint64_t, kNumSourceKinds> draft_tokens = {};  // By SourceKind.
  std::array<uint64_t, kNumSourceKinds> accepted_tokens = {};
  std::string drafter;  // Of the last that finished; empty for none.
};

// The tallies of all tenants, for the live page's table. Thread-safe.
class TenantTallies {
 public:
  // Tenants beyond this number are counted together, under kOthers.
  static constexpr size_t kMaxTenants = 1000;
  static constexpr char kOthers[] = "other";

  void OnBegun(const std::string& tenant);
  // A request that had begun has ended. `stats` is empty if it failed.
  void OnEnded(const std::string& tenant, const absl::Status& status, uint32_t tokens,
               const v1::SpeculationStats& stats);

  // Changes with every change.
  uint64_t version() const;
  std::map<std::string, TenantTally> All() const;

 private:
  TenantTally& Of(const std::string& tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<std::string, TenantTally> tallies_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router

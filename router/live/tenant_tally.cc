#include "router/live/tenant_tally.h"

namespace tandem::router {

TenantTally& TenantTallies::Of(const std::string& tenant) {
  ++version_;
  const auto found = tallies_.find(tenant);
  if (found != tallies_.end()) return found->second;
  return tallies_[tallies_.size() < kMaxTenants ? tenant : kOthers];
}

void TenantTallies::OnBegun(const std::string& tenant) {
  absl::MutexLock lock(&mutex_);
  ++Of(tenant).running;
}

void TenantTallies::OnEnded(const std::string& tenant, const absl::Status& status, uint32_t tokens,
                            const v1::SpeculationStats& stats) {
  absl::MutexLock lock(&mutex_);
  TenantTally& tally = Of(tenant);
  if (tally.running > 0) --tally.running;
  ++(status.ok() ? tally.finished : tally.failed);
  tally.tokens += tokens;
  tally.drafted_rounds += stats.drafted_rounds();
  for (const v1::SourceStats& source : stats.by_source()) {
    const bool local = source.source() == v1::DRAFT_SOURCE_LOCAL;
    (local ? tally.local_draft_tokens : tally.draft_tokens) += source.draft_tokens();
    (local ? tally.local_accepted_tokens : tally.accepted_tokens) += source.accepted_tokens();
  }
  if (status.ok()) tally.drafter = stats.drafter();
}

uint64_t TenantTallies::version() const {
  absl::MutexLock lock(&mutex_);
  return version_;
}

std::map<std::string, TenantTally> TenantTallies::All() const {
  absl::MutexLock lock(&mutex_);
  return tallies_;
}

}  // namespace tandem::router

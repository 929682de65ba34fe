#include "router/live/tenant_tally.h"

#include "router/drafters/source_kind.h"

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
    const auto kind = static_cast<size_t>(KindOf(source.source()));
    tally.draft_tokens[kind] += source.draft_tokens();
    tally.accepted_tokens[kind] += source.accepted_tokens();
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

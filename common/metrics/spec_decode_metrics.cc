#include "common/metrics/spec_decode_metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace tandem {

SpecDecodeMetrics::SpecDecodeMetrics(MetricsRegistry* registry)
    : drafts_(registry->AddCounter({.name = "tandem_spec_decode_num_drafts_total",
                                    .help = "Verification rounds with at least one draft token.",
                                    .labels = {"tenant", "target", "drafter"}})),
      draft_tokens_(registry->AddCounter({.name = "tandem_spec_decode_num_draft_tokens_total",
                                          .help = "Draft tokens verified, all tree nodes counted.",
                                          .labels = {"tenant", "target", "drafter"}})),
      accepted_tokens_(registry->AddCounter({.name = "tandem_spec_decode_num_accepted_tokens_total",
                                             .help = "Draft tokens accepted.",
                                             .labels = {"tenant", "target", "drafter"}})),
      accepted_per_position_(registry->AddCounter(
          {.name = "tandem_spec_decode_num_accepted_tokens_per_pos_total",
           .help = "Rounds that accepted a draft token at this position, counted from 0.",
           .labels = {"tenant", "target", "drafter", "position"}})) {}

SpecDecodeMetrics::Series SpecDecodeMetrics::With(absl::string_view tenant, absl::string_view target,
                                                  absl::string_view drafter) {
  Series series;
  series.drafts_ = drafts_.With({tenant, target, drafter});
  series.draft_tokens_ = draft_tokens_.With({tenant, target, drafter});
  series.accepted_tokens_ = accepted_tokens_.With({tenant, target, drafter});
  for (int position = 0; position <= kPositions; ++position) {
    const std::string name = position < kPositions ? absl::StrCat(position) : std::string(kOtherLabel);
    series.accepted_at_[position] = accepted_per_position_.With({tenant, target, drafter, name});
  }
  return series;
}

void SpecDecodeMetrics::Series::RecordRound(uint32_t draft_tokens, uint32_t accepted) const {
  if (draft_tokens == 0) return;
  accepted = std::min(accepted, draft_tokens);
  drafts_.Increment();
  draft_tokens_.Increment(draft_tokens);
  if (accepted == 0) return;
  accepted_tokens_.Increment(accepted);
  const uint32_t named = std::min<uint32_t>(accepted, kPositions);
  for (uint32_t position = 0; position < named; ++position) accepted_at_[position].Increment();
  if (accepted > named) accepted_at_[kPositions].Increment(accepted - named);
}

}  // namespace tandem

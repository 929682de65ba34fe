#include "common/metrics/spec_decode_metrics.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace tandem {

SpecDecodeMetrics::SpecDecodeMetrics(MetricsRegistry* registry)
    : drafts_(registry->AddCounter({.name = "tandem_spec_decode_num_drafts_total",
                                    .help = "Rounds with at least one draft token of the source.",
                                    .labels = {"tenant", "target", "drafter", "source"}})),
      draft_tokens_(registry->AddCounter({.name = "tandem_spec_decode_num_draft_tokens_total",
                                          .help = "Verified draft tokens: every verified tree node counts.",
                                          .labels = {"tenant", "target", "drafter", "source"}})),
      accepted_tokens_(registry->AddCounter({.name = "tandem_spec_decode_num_accepted_tokens_total",
                                             .help = "Accepted draft tokens.",
                                             .labels = {"tenant", "target", "drafter", "source"}})),
      accepted_per_position_(registry->AddCounter(
          {.name = "tandem_spec_decode_num_accepted_tokens_per_pos_total",
           .help = "Rounds that accepted a draft token at this position, counted from 0.",
           .labels = {"tenant", "target", "drafter", "source", "position"}})) {}

SpecDecodeMetrics::Series SpecDecodeMetrics::With(absl::string_view tenant, absl::string_view target,
                                                  absl::string_view drafter, SourceKind source) {
  const absl::string_view by = kSourceNames[static_cast<size_t>(source)];
  Series series;
  series.drafts_ = drafts_.With({tenant, target, drafter, by});
  series.draft_tokens_ = draft_tokens_.With({tenant, target, drafter, by});
  series.accepted_tokens_ = accepted_tokens_.With({tenant, target, drafter, by});
  series.positions_ = &accepted_per_position_;
  series.labels_ = {std::string(tenant), std::string(target), std::string(drafter), std::string(by)};
  return series;
}

void SpecDecodeMetrics::Series::Record(uint32_t rounds, uint32_t draft_tokens,
                                       absl::Span<const uint32_t> accepted_at) const {
  if (positions_ == nullptr) return;  // Of nobody.
  drafts_.Increment(rounds);
  draft_tokens_.Increment(draft_tokens);
  double accepted = 0.0;
  for (size_t position = 0; position < accepted_at.size(); ++position) {
    const uint32_t count = accepted_at[position];
    if (count == 0) continue;
    const size_t place = std::min<size_t>(position, kPositions);
    if (!accepted_at_[place].has_value()) {
      const std::string name = place < kPositions ? absl::StrCat(place) : std::string(kOtherLabel);
      accepted_at_[place] = positions_->With({labels_[0], labels_[1], labels_[2], labels_[3], name});
    }
    accepted_at_[place]->Increment(count);
    accepted += count;
  }
  if (accepted > 0.0) accepted_tokens_.Increment(accepted);
}

}  // namespace tandem

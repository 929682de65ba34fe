#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/metrics/metrics.h"

namespace tandem {

// What speculation does, by {tenant, target, drafter}:
//
//   tandem_spec_decode_num_drafts_total                        rounds with at least one draft token to verify
//   tandem_spec_decode_num_draft_tokens_total                  draft tokens verified, all tree nodes counted
//   tandem_spec_decode_num_accepted_tokens_total               draft tokens accepted
//   tandem_spec_decode_num_accepted_tokens_per_pos_total       rounds that accepted a draft token at
//   `position`,
//                                                              counted from 0; from 16 on, "other"
//
// Mean acceptance length = 1 + accepted / drafts; acceptance rate = accepted / draft tokens.
class SpecDecodeMetrics {
 public:
  static constexpr int kPositions = 16;

  // The series of one {tenant, target, drafter}; cheap to copy, for a session to keep.
  class Series {
   public:
    Series() = default;
    // One drafted round: `draft_tokens` verified, of which `accepted` on the accepted path.
    void RecordRound(uint32_t draft_tokens, uint32_t accepted) const;

   private:
    friend class SpecDecodeMetrics;
    Counter drafts_;
    Counter draft_tokens_;
    Counter accepted_tokens_;
    std::array<Counter, kPositions + 1> accepted_at_;
  };

  // Once per registry, which outlives this.
  explicit SpecDecodeMetrics(MetricsRegistry* registry);

  Series With(absl::string_view tenant, absl::string_view target, absl::string_view drafter);

 private:
  CounterFamily& drafts_;
  CounterFamily& draft_tokens_;
  CounterFamily& accepted_tokens_;
  CounterFamily& accepted_per_position_;
};

}  // namespace tandem

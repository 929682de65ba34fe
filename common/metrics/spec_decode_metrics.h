#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/metrics/metrics.h"
#include "common/speculation/merged_tree.h"

namespace tandem {

// Metrics about speculation, by {tenant, target, drafter, source}:
//
//   tandem_spec_decode_num_drafts_total                    rounds with at least one draft token of the source
//   tandem_spec_decode_num_draft_tokens_total              its verified draft tokens, counting all tree nodes
//   tandem_spec_decode_num_accepted_tokens_total           its accepted draft tokens
//   tandem_spec_decode_num_accepted_tokens_per_pos_total   rounds that accepted one of them at `position`,
//                                                          which counts from 0; from 16 on, "other"
//
// `source`: "drafter", "grammar" for tokens forced by the request's constraint, "prediction" for the
// request's prediction, or "local" for the verifier's own source. `drafter`: the one that guessed, or to
// which the request was bound meanwhile; empty for none. A round with tokens of several sources counts for
// each.
//
// Mean acceptance length = 1 + accepted / drafts; acceptance rate = accepted / draft tokens.
class SpecDecodeMetrics {
 public:
  static constexpr int kPositions = 16;

  // The series of one {tenant, target, drafter, source}; cheap to copy, for a session to keep.
  class Series {
   public:
    Series() = default;
    // Drafted rounds, over which `draft_tokens` of the source were verified; entry i of `accepted_at`: how
    // many of these rounds accepted one at position i.
    void Record(uint32_t rounds, uint32_t draft_tokens, absl::Span<const uint32_t> accepted_at) const;

   private:
    friend class SpecDecodeMetrics;
    Counter drafts_;
    Counter draft_tokens_;
    Counter accepted_tokens_;
    // One per position, created at the first token accepted there, because most drafters never reach most
    // positions.
    CounterFamily* positions_ = nullptr;
    std::array<std::string, 4> labels_;
    mutable std::array<std::optional<Counter>, kPositions + 1> accepted_at_;
  };

  // One per registry, which outlives this.
  explicit SpecDecodeMetrics(MetricsRegistry* registry);

  Series With(absl::string_view tenant, absl::string_view target, absl::string_view drafter,
              SourceKind source);

 private:
  CounterFamily& drafts_;
  CounterFamily& draft_tokens_;
  CounterFamily& accepted_tokens_;
  CounterFamily& accepted_per_position_;
};

}  // namespace tandem

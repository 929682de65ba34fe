#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/token.h"
#include "common/drafting/draft_source.h"
#include "common/speculation/round_tree.h"
#include "common/speculation/score_calibration.h"
#include "verifier/session/session_constraint.h"

namespace tandem {

// The tokens that a constraint leaves no choice about, as a source.
class ForcedSource final : public DraftSource {
 public:
  // `constraint` outlives the source, and follows the output by itself.
  explicit ForcedSource(SessionConstraint* constraint) : constraint_(constraint) {}
  void Start(absl::Span<const TokenId>, uint32_t) override {}
  void Read(absl::Span<const TokenId>) override {}
  void Observe(absl::Span<const TokenId>) override {}
  std::vector<ProposedNode> Propose(const ProposalLimits& limits) const override {
    return constraint_->Forced(limits);
  }

 private:
  SessionConstraint* const constraint_;
};

// One of the sources by which the verifier drafts for a session without a drafter: prompt lookup, forced
// tokens, or the request's prediction. It proposes at most once for each length of the text, whoever asks.
class OwnSource {
 public:
  // `num_read`: how many of the session's tokens `source` has been given. `calibration`: of its scores, over
  // all sessions; `clock` times it. Both outlive this.
  OwnSource(DraftOrigin origin, std::unique_ptr<DraftSource> source, size_t num_read,
            ScoreCalibration* calibration, const Clock* clock);

  DraftOrigin origin() const { return origin_; }
  ScoreCalibration* calibration() const { return calibration_; }

  // Gives the source the next of the session's tokens that it has not seen. Their number is bounded, because
  // indexing a whole long prompt at once (0.4 us per token) would delay every session's next step.
  void Read(absl::Span<const TokenId> tokens, size_t prompt_length);

  struct Limits {
    ProposalLimits proposal;
    size_t num_tokens = 0;                    // Of the session; there are no candidates until all are read.
    int32_t vocab_size = 0;                   // Of the target.
    SessionConstraint* constraint = nullptr;  // Drops candidates; may be none.
    float temperature = 0.0f;
    float least_path_score = 0.0f;
  };
  // The candidates that are likely enough, by what such scores have been worth.
  RoundTree Candidates(const Limits& limits);

  // Since the last call of ForgetCosts: the time that proposals took, and their candidates that the
  // constraint does not allow.
  double seconds() const { return seconds_; }
  uint32_t num_masked() const { return num_masked_; }
  void ForgetCosts();

 private:
  const RoundTree& Proposal(const Limits& limits);

  DraftOrigin origin_;
  std::unique_ptr<DraftSource> source_;
  size_t num_read_;
  ScoreCalibration* calibration_;
  const Clock* clock_;
  std::optional<RoundTree> proposal_;  // For the text so far, without path scores.
  double seconds_ = 0.0;
  uint32_t num_masked_ = 0;
};

}  // namespace tandem

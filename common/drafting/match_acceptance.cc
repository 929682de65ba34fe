#include "common/drafting/match_acceptance.h"

#include <algorithm>

namespace tandem {
namespace {

// The prior counts as much as this many outcomes.
constexpr float kPriorOutcomes = 4.0f;
// Outcomes remembered; at more, all fade.
constexpr float kRememberedOutcomes = 256.0f;
// Never sure, so that a path score always falls with depth.
constexpr float kMost = 0.98f;
constexpr float kLeast = 0.01f;

}  // namespace

size_t MatchAcceptance::KindOf(uint32_t match_length, bool single) {
  size_t length = 0;
  if (match_length <= 8) {
    length = match_length == 0 ? 0 : match_length - 1;
  } else if (match_length <= 12) {
    length = 8;
  } else if (match_length <= 16) {
    length = 9;
  } else {
    length = match_length <= 32 ? 10 : 11;
  }
  return 2 * length + (single ? 1 : 0);
}

void MatchAcceptance::Observe(uint32_t match_length, bool single, bool right) {
  Outcomes& outcomes = outcomes_[KindOf(match_length, single)];
  if (outcomes.all >= kRememberedOutcomes) {
    outcomes.right *= 0.5f;
    outcomes.all *= 0.5f;
  }
  outcomes.all += 1.0f;
  if (right) outcomes.right += 1.0f;
  if (prior_ != nullptr && teaches_prior_) prior_->Observe(match_length, single, right);
}

float MatchAcceptance::Value(uint32_t match_length, bool single) const {
  const size_t kind = KindOf(match_length, single);
  const float table = std::min(0.9f, 0.2f + 0.05f * static_cast<float>(kind));
  const float prior = prior_ != nullptr ? prior_->Value(match_length, single) : table;
  const Outcomes& outcomes = outcomes_[kind];
  return std::clamp((outcomes.right + kPriorOutcomes * prior) / (outcomes.all + kPriorOutcomes), kLeast,
                    kMost);
}

}  // namespace tandem

#include "router/request_outcome.h"

namespace tandem::router {

void OutcomeRecorder::OnTokens(uint32_t count, absl::Time now) {
  if (num_tokens_ == 0) {
    first_tokens_ = count;
    first_at_ = now;
  }
  num_tokens_ += count;
  last_at_ = now;
}

RequestOutcome OutcomeRecorder::Conclude(absl::string_view drafter, const v1::SpeculationStats& stats) const {
  RequestOutcome outcome;
  const v1::MeasuredCosts& costs = stats.costs();
  outcome.verify.assign(costs.verify_seconds().begin(), costs.verify_seconds().end());
  // Another one has taken over meanwhile, or the drafter was lost: what was measured is nobody's alone.
  if (stats.drafter() != drafter || !stats.drafter_lost().empty()) return outcome;
  outcome.decode_tokens = num_tokens_ - first_tokens_;
  outcome.decode_seconds = num_tokens_ == 0 ? 0.0 : absl::ToDoubleSeconds(last_at_ - first_at_);
  if (drafter.empty()) return outcome;
  if (costs.has_exposed_level_seconds() && costs.has_hidden_level_seconds()) {
    outcome.draft = DraftCosts{.exposed_level_seconds = costs.exposed_level_seconds(),
                               .hidden_level_seconds = costs.hidden_level_seconds()};
  }
  if (stats.drafter_accepted_tokens() <= num_tokens_ && stats.drafter_rejections() <= num_tokens_) {
    outcome.accepted = stats.drafter_accepted_tokens();
    outcome.rejections = stats.drafter_rejections();
  }
  return outcome;
}

}  // namespace tandem::router

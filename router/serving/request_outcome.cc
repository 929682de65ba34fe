#include "router/serving/request_outcome.h"

namespace tandem::router {

RequestOutcome OutcomeOf(absl::string_view drafter, const v1::SpeculationStats& stats, uint32_t num_tokens) {
  RequestOutcome outcome;
  const v1::MeasuredCosts& costs = stats.costs();
  outcome.verify.assign(costs.verify_seconds().begin(), costs.verify_seconds().end());
  // Another one has taken over meanwhile, or the drafter was lost: what was measured is nobody's alone.
  if (stats.drafter() != drafter || !stats.drafter_lost().empty()) return outcome;
  outcome.decode_tokens = costs.decode_tokens();
  outcome.decode_seconds = costs.decode_seconds();
  if (drafter.empty()) return outcome;
  if (costs.has_exposed_level_seconds() && costs.has_hidden_level_seconds()) {
    outcome.draft = DraftCosts{.exposed_level_seconds = costs.exposed_level_seconds(),
                               .hidden_level_seconds = costs.hidden_level_seconds()};
  }
  if (stats.drafter_accepted_tokens() <= num_tokens && stats.drafter_rejections() <= num_tokens) {
    outcome.accepted = stats.drafter_accepted_tokens();
    outcome.rejections = stats.drafter_rejections();
  }
  return outcome;
}

}  // namespace tandem::router

#include "router/drafters/feedback/score_slots.h"

#include <algorithm>
#include <cmath>

namespace tandem::router {
namespace {

// What a score takes besides its tokens, in tokens: a short one is not ten times as fast as one of ten times
// its length.
constexpr double kTokensOfACall = 256.0;
// Weight of an answer that came sooner than expected. A later one counts at once, since giving up too early
// costs a score and giving up too late only time.
constexpr double kFasterShare = 0.1;
// Drafters come and go; those that are gone must not pile up.
constexpr size_t kMaxDrafters = 1024;
// Beyond that many in a row pauses and timeouts are the longest anyhow.
constexpr uint32_t kMostFailures = 30;

}  // namespace

absl::Duration ScoreSlots::TimeoutOf(const Drafter& drafter, uint32_t num_tokens) const {
  if (drafter.seconds_per_token <= 0.0) return options_.timeout;
  const double expected = drafter.seconds_per_token * (kTokensOfACall + num_tokens);
  const double seconds = std::ldexp(options_.patience * expected, static_cast<int>(drafter.failures));
  return std::clamp(absl::Seconds(seconds), std::min(options_.shortest_timeout, options_.timeout),
                    options_.timeout);
}

ScoreSlots::Taken ScoreSlots::Take(const FeedbackDrafter& drafter, uint32_t num_tokens, absl::Time now) {
  std::pair<std::string, std::string> key(drafter.name, drafter.endpoint);
  if (drafters_.size() >= kMaxDrafters && !drafters_.contains(key)) {
    std::erase_if(drafters_, [](const auto& known) { return known.second.under_way == 0; });
  }
  Drafter& state = drafters_[key];
  const bool proven = state.seconds_per_token > 0.0 && state.failures == 0;
  // Before the pause: it may be over while the one that was to tell is still under way.
  if (state.under_way >= (proven ? options_.per_drafter : 1)) return {.refusal = Refusal::kBusy};
  if (now < state.left_alone_until) return {.refusal = Refusal::kLeftAlone};
  ++state.under_way;
  return {.slot = Slot{.drafter = std::move(key),
                       .num_tokens = num_tokens,
                       .begun = now,
                       .timeout = TimeoutOf(state, num_tokens)}};
}

ScoreSlots::Change ScoreSlots::GiveBack(const Slot& slot, bool answered, absl::Time now) {
  // There is one as long as a slot is out.
  Drafter& state = drafters_.at(slot.drafter);
  --state.under_way;
  const bool failed_before = state.failures > 0;
  if (!answered) {
    if (slot.begun <= state.failed) return Change::kNone;
    state.failed = now;
    state.failures = std::min(state.failures + 1, kMostFailures);
    const absl::Duration pause = options_.first_pause * std::ldexp(1.0, static_cast<int>(state.failures) - 1);
    state.left_alone_until = now + std::min(pause, options_.longest_pause);
    return failed_before ? Change::kNone : Change::kLeftAlone;
  }
  const double seconds = std::max(absl::ToDoubleSeconds(now - slot.begun), 1e-6);
  const double measured = seconds / (kTokensOfACall + slot.num_tokens);
  const double share = measured > state.seconds_per_token ? 1.0 : kFasterShare;
  state.seconds_per_token += share * (measured - state.seconds_per_token);
  state.failures = 0;
  state.left_alone_until = absl::InfinitePast();
  return failed_before ? Change::kAnswersAgain : Change::kNone;
}

}  // namespace tandem::router

#include "common/speculation/draft_payoff.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

// A probe is thought to lose at least this much per step, so that even ways that are equal are not probed all
// the time.
constexpr double kLeastLoss = 0.02;
// Most that may be saved up, in probes that yield nothing.
constexpr double kMostCredit = 2.0;

}  // namespace

double DraftPayoff::Margin() const {
  return drafts_ ? 1.0 : 1.0 + options_.margin;
}

void DraftPayoff::StartProbe() {
  probing_ = true;
  steps_ = 0;
  opening_ = 0;
  Measured& other = drafts_ ? plain_ : drafted_;
  other.tokens *= options_.kept_for_probe;
  other.cost *= options_.kept_for_probe;
}

void DraftPayoff::EndProbe() {
  probing_ = false;
  steps_ = 0;
  opening_ = 0;
  const double current = drafts_ ? drafted_yield() : plain_yield();
  const double other = drafts_ ? plain_yield() : drafted_yield();
  if (other > current * Margin()) drafts_ = !drafts_;
  aftermath_ = drafts_ ? 0 : options_.aftermath_steps;
}

void DraftPayoff::Observe(const StepYield& yield) {
  if (yield.drafted != drafting() || !(yield.cost > 0.0) || !std::isfinite(yield.cost)) return;
  const bool opening = yield.opening && opening_ < options_.aftermath_steps;
  opening ? ++opening_ : ++steps_;
  const double thought_best = std::max(drafts_ ? drafted_yield() : plain_yield(), 0.1);
  const double loss = yield.cost - yield.tokens / thought_best;
  if (probing_) {
    credit_ -= loss;
  } else {
    credit_ = std::min(credit_ + options_.probe_share * yield.cost,
                       kMostCredit * (options_.probe_steps + options_.settling_steps) * yield.cost);
  }
  if (aftermath_ > 0 && !probing_) {
    --aftermath_;
    credit_ -= loss;
    return;
  }
  if (opening) return;
  if (steps_ > options_.settling_steps) {
    Measured& way = yield.drafted ? drafted_ : plain_;
    const double keep = 1.0 - 1.0 / options_.history;
    way.tokens = way.tokens * keep + yield.tokens;
    way.cost = way.cost * keep + yield.cost;
  }
  const uint32_t needed = options_.settling_steps + (probing_ ? options_.probe_steps : options_.first_steps);
  if (steps_ < needed) return;
  if (probing_) {
    EndProbe();
    return;
  }
  const double other = drafts_ ? plain_yield() : drafted_yield();
  // The cost of a step of the other way is only known as this one's.
  const double loss_per_step = std::max(yield.cost * (1.0 - other / thought_best), kLeastLoss);
  if (other > thought_best * Margin() ||
      credit_ >= loss_per_step * (options_.probe_steps + options_.settling_steps)) {
    StartProbe();
  }
}

}  // namespace tandem

#include "router/verifiers/verifier_choice.h"

#include <algorithm>
#include <utility>

#include "router/verifiers/verifier_order.h"

namespace tandem::router {

VerifierChoice::VerifierChoice(const Options& options, std::vector<std::string> endpoints)
    : options_(options) {
  for (std::string& endpoint : endpoints) {
    states_.push_back({.endpoint = std::move(endpoint),
                       .max_in_flight = options.max_in_flight,
                       .next_ejection = options.first_ejection});
  }
}

std::vector<size_t> VerifierChoice::Order(absl::Span<const uint32_t> prompt, uint64_t salt,
                                          absl::Span<const size_t> tried, absl::Time now,
                                          const std::function<bool(size_t)>& suits) const {
  const auto is_fit = [&](const State& state) {
    return state.listed && state.serving && now >= state.ejected_until;
  };
  bool any_fit = false;
  for (size_t i = 0; i < states_.size(); ++i)
    any_fit = any_fit || (is_fit(states_[i]) && (!suits || suits(i)));
  std::vector<size_t> candidates;
  std::vector<VerifierLoad> loads;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!states_[i].listed || states_[i].in_flight >= states_[i].max_in_flight) continue;
    if (suits && !suits(i)) continue;
    if (any_fit && !is_fit(states_[i])) continue;
    candidates.push_back(i);
    loads.push_back({.endpoint = states_[i].endpoint, .in_flight = states_[i].in_flight});
  }
  std::vector<size_t> order;
  for (size_t index : OrderVerifiers(loads, prompt, salt)) order.push_back(candidates[index]);
  std::stable_partition(order.begin(), order.end(), [&](size_t verifier) {
    return std::find(tried.begin(), tried.end(), verifier) == tried.end();
  });
  return order;
}

void VerifierChoice::Replace(size_t verifier, std::string endpoint) {
  if (verifier == states_.size()) states_.emplace_back();
  states_[verifier] = {.endpoint = std::move(endpoint),
                       .serving = false,
                       .max_in_flight = options_.max_in_flight,
                       .next_ejection = options_.first_ejection};
}

size_t VerifierChoice::num_listed() const {
  return static_cast<size_t>(
      std::count_if(states_.begin(), states_.end(), [](const State& state) { return state.listed; }));
}

void VerifierChoice::OnSuccess(size_t verifier, absl::Time now) {
  State& state = states_[verifier];
  state.failures = 0;
  // What was under way when it was ejected does not shorten that.
  if (now >= state.ejected_until) state.next_ejection = options_.first_ejection;
}

bool VerifierChoice::MayEject(absl::Time now) const {
  const auto ejected =
      static_cast<double>(std::count_if(states_.begin(), states_.end(), [now](const State& state) {
        return state.listed && now < state.ejected_until;
      }));
  return ejected + 1.0 <= options_.max_ejected_share * static_cast<double>(num_listed());
}

void VerifierChoice::OnFailure(size_t verifier, absl::Time now) {
  State& state = states_[verifier];
  if (++state.failures < options_.failures_to_ejection || now < state.ejected_until) return;
  state.failures = 0;
  if (!MayEject(now)) return;
  state.ejected_until = now + state.next_ejection;
  state.next_ejection = std::min(2 * state.next_ejection, options_.longest_ejection);
}

}  // namespace tandem::router

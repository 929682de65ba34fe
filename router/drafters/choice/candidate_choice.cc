#include "router/drafters/choice/candidate_choice.h"

namespace tandem::router {
namespace {

// Where nothing is measured of an average's candidates it is 0.
class Average {
 public:
  void Add(double value) {
    sum_ += value;
    ++count_;
  }
  double value() const { return count_ == 0.0 ? 0.0 : sum_ / count_; }

 private:
  double sum_ = 0.0;
  double count_ = 0.0;
};

// Of each candidate: as measured, as told, or the others' average.
std::vector<DraftCosts> CostsInForce(absl::Span<const Candidate> candidates) {
  Average exposed;
  Average hidden;
  for (const Candidate& candidate : candidates) {
    if (candidate.costs.has_value()) {
      exposed.Add(candidate.costs->exposed_level_seconds);
      hidden.Add(candidate.costs->hidden_level_seconds);
    } else if (candidate.told_level_seconds.has_value()) {
      hidden.Add(*candidate.told_level_seconds);
    }
  }
  std::vector<DraftCosts> costs;
  for (const Candidate& candidate : candidates) {
    const DraftCosts unmeasured = {exposed.value(), candidate.told_level_seconds.value_or(hidden.value())};
    costs.push_back(candidate.costs.value_or(unmeasured));
  }
  return costs;
}

// The drafter with the fewest samples, if it has too few; the first of equal ones.
std::optional<size_t> ToExplore(absl::Span<const Candidate> candidates, double explore_samples) {
  std::optional<size_t> fewest;
  double fewest_samples = explore_samples;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const double samples =
        candidates[i].samples + static_cast<double>(candidates[i].idle_finished) + candidates[i].pending;
    if (samples < fewest_samples) {
      fewest = i;
      fewest_samples = samples;
    }
  }
  return fewest;
}

// One request is enough: a verifier that does not tell what drafts cost does not tell it later either.
std::optional<size_t> ToTime(absl::Span<const Candidate> candidates) {
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    const bool known = candidate.costs.has_value() || candidate.told_level_seconds.has_value();
    if (!known && candidate.finished == 0 && candidate.pending == 0) return i;
  }
  return std::nullopt;
}

std::optional<size_t> ToRefresh(absl::Span<const Candidate> candidates, uint64_t refresh_decisions) {
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].idle_decisions >= refresh_decisions && candidates[i].pending == 0) return i;
  }
  return std::nullopt;
}

// The unscored candidates' shares lie one after the other, from 0 on.
std::optional<size_t> ToSample(absl::Span<const Candidate> candidates, double share, double draw) {
  double begin = 0.0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].scored) continue;
    if (draw >= begin && draw < begin + share) return i;
    begin += share;
  }
  return std::nullopt;
}

std::optional<size_t> MostAccepted(absl::Span<const Candidate> candidates) {
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!best.has_value() || candidates[i].acceptance.mean > candidates[*best].acceptance.mean) best = i;
  }
  return best;
}

}  // namespace

CandidateChoice ChooseCandidate(absl::Span<const Candidate> candidates, absl::Span<const double> verify,
                                const PlainDecoding& plain, const ChoiceOptions& options, double draw) {
  CandidateChoice choice;
  const std::vector<DraftCosts> costs = CostsInForce(candidates);
  for (const Candidate& candidate : candidates) {
    CandidateForecast forecast{.costs = costs[choice.forecasts.size()]};
    if (!verify.empty()) {
      forecast.window = BestWindow(candidate.acceptance.mean, forecast.costs, verify);
      // A drafter that is best left unused is plain decoding.
      const double correction = forecast.window.window == 0 ? plain.correction : candidate.correction;
      forecast.tokens_per_second = forecast.window.tokens_per_second() * correction;
    }
    choice.forecasts.push_back(forecast);
  }
  if (!verify.empty()) {
    choice.plain.window = ForecastWindow(0.0, {}, verify, 0);
    choice.plain.tokens_per_second = choice.plain.window.tokens_per_second() * plain.correction;
  }

  std::optional<size_t> explored = ToExplore(candidates, options.explore_samples);
  if (!explored.has_value()) explored = ToTime(candidates);
  if (!explored.has_value()) explored = ToSample(candidates, options.explore_share, draw);
  if (explored.has_value()) {
    choice.candidate = explored;
    choice.reason = kReasonExplore;
    return choice;
  }
  if (options.refresh_decisions > 0) {
    const std::optional<size_t> refreshed = ToRefresh(candidates, options.refresh_decisions);
    const bool refresh_plain = plain.idle_decisions >= options.refresh_decisions;
    if (refreshed.has_value() || refresh_plain) {
      choice.candidate = refreshed;
      choice.reason = kReasonRefresh;
      return choice;
    }
  }
  if (verify.empty()) {
    choice.candidate = MostAccepted(candidates);
    return choice;
  }
  double best = choice.plain.tokens_per_second;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (choice.forecasts[i].tokens_per_second <= best) continue;
    best = choice.forecasts[i].tokens_per_second;
    choice.candidate = i;
  }
  return choice;
}

}  // namespace tandem::router

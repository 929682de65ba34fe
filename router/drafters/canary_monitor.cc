#include "router/drafters/canary_monitor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace tandem::router {
namespace {

// Past this many times min_rounds a trial begins anew.
constexpr double kMaxRounds = 50.0;
// A mean of few requests has an error that is itself uncertain: the variance of n requests counts as that of
// n - 3, as of Student's distribution.
constexpr double kLostRequests = 3.0;
// The bound is tightest where the standard error is this share of the scale,
constexpr double kTightestAt = 0.05;

// What the drafter itself had accepted.
std::optional<uint32_t> AcceptedBy(absl::string_view drafter, const v1::SpeculationStats& stats) {
  uint32_t accepted = 0;
  for (const v1::SourceStats& entry : stats.by_source()) {
    if (entry.source() != v1::DRAFT_SOURCE_DRAFTER || entry.drafter() != drafter) continue;
    // A round accepts no more than it verified, which bounds what one report can weigh.
    if (entry.accepted_tokens() > entry.draft_tokens() || entry.drafted_rounds() > stats.rounds()) {
      return std::nullopt;
    }
    accepted = entry.accepted_tokens();
  }
  return accepted;
}

}  // namespace

void RatioEstimate::Add(double rounds, double tokens) {
  requests_ += 1.0;
  sum_rounds_ += rounds;
  sum_tokens_ += tokens;
  sum_rounds_squared_ += rounds * rounds;
  sum_tokens_squared_ += tokens * tokens;
  sum_products_ += rounds * tokens;
}

double RatioEstimate::mean() const {
  return sum_rounds_ > 0.0 ? sum_tokens_ / sum_rounds_ : 0.0;
}

double RatioEstimate::variance() const {
  if (requests_ < 2.0 || sum_rounds_ <= 0.0) return std::numeric_limits<double>::infinity();
  const double m = mean();
  // The sum of (tokens - mean * rounds)^2 over requests; rounding may take it below zero.
  const double residuals =
      std::max(sum_tokens_squared_ - 2.0 * m * sum_products_ + m * m * sum_rounds_squared_, 0.0);
  return requests_ / (requests_ - 1.0) * residuals / (sum_rounds_ * sum_rounds_);
}

double SequentialMargin(double variance, double scale, double error) {
  if (!std::isfinite(variance)) return std::numeric_limits<double>::infinity();
  if (variance <= 0.0 || scale <= 0.0) return 0.0;
  const double information = 1.0 / variance;
  const double surprise = 2.0 * std::log(1.0 / error);
  // What minimises the bound at that information, up to terms that do not matter.
  const double tightest = 1.0 / (kTightestAt * scale * kTightestAt * scale);
  const double prior = tightest / (surprise + std::log1p(surprise));
  return std::sqrt((information + prior) * (std::log1p(information / prior) + surprise)) / information;
}

std::optional<CanaryVerdict> CanaryMonitor::OnFinished(const RoutingTable& table, const Tenant& tenant,
                                                       size_t drafter, const v1::SpeculationStats& stats) {
  if (!tenant.canary.has_value() || !tenant.drafter.has_value()) return std::nullopt;
  const Canary& canary = *tenant.canary;
  if (drafter != canary.drafter && drafter != *tenant.drafter) return std::nullopt;
  const std::optional<uint32_t> accepted = AcceptedBy(table.drafters[drafter].name, stats);
  if (stats.rounds() == 0 || !accepted.has_value()) return std::nullopt;

  absl::MutexLock lock(&mutex_);
  Trial& trial = trials_[tenant.name];
  const std::string& own_name = table.drafters[*tenant.drafter].name;
  const std::string& canary_name = table.drafters[canary.drafter].name;
  if (trial.own_name != own_name || trial.canary_name != canary_name) {
    trial = {.own_name = own_name, .canary_name = canary_name};
  }
  RatioEstimate& estimate = drafter == canary.drafter ? trial.canary : trial.own;
  const double rounds = stats.rounds();
  estimate.Add(rounds, rounds + *accepted);
  if (drafter == canary.drafter) trial.requests += 1.0;

  trial.margin = std::numeric_limits<double>::infinity();
  const auto has_enough = [&canary](const RatioEstimate& e) {
    return e.rounds() >= canary.min_rounds && e.requests() >= kMinRequests;
  };
  const bool exhausted = canary.max_requests > 0 && trial.requests >= canary.max_requests;
  const auto verdict = [&](bool promote, absl::string_view what) {
    CanaryVerdict given{
        .promote = promote,
        .reason = absl::StrFormat(
            "%s made %.2f tokens per round where %s made %.2f (give or take %.2f, %.0f requests); %s",
            canary_name, trial.canary.mean(), own_name, trial.own.mean(), trial.margin, trial.requests,
            what)};
    trials_.erase(tenant.name);
    return given;
  };
  if (has_enough(trial.own) && has_enough(trial.canary)) {
    const auto variance = [](const RatioEstimate& e) {
      return e.variance() * e.requests() / (e.requests() - kLostRequests);
    };
    // Halved from turn to turn, so that all of them together are wrong no more often.
    const double error = canary.max_error * std::ldexp(1.0, -trial.turn);
    const double share = canary.min_share;
    const double wanted = share * trial.own.mean();
    trial.margin = SequentialMargin(variance(trial.canary) + share * share * variance(trial.own),
                                    trial.own.mean(), error);
    const std::string of_share = absl::StrFormat("the share of %g that was set", share);
    if (trial.canary.mean() + trial.margin < wanted) return verdict(false, "below " + of_share);
    if (canary.promote && trial.canary.mean() - trial.margin > wanted) {
      return verdict(true, "above " + of_share);
    }
  }
  if (exhausted) return verdict(false, "no verdict within max_requests");
  const double longest = std::max(trial.own.rounds(), trial.canary.rounds());
  if (longest > kMaxRounds * canary.min_rounds && trial.own.requests() >= 4 * kMinRequests &&
      trial.canary.requests() >= 4 * kMinRequests) {
    trial.own = RatioEstimate();
    trial.canary = RatioEstimate();
    trial.turn = std::min(trial.turn + 1, 30);
  }
  return std::nullopt;
}

std::optional<CanaryView> CanaryMonitor::View(const std::string& tenant) const {
  absl::MutexLock lock(&mutex_);
  const auto trial = trials_.find(tenant);
  if (trial == trials_.end()) return std::nullopt;
  return CanaryView{.own = trial->second.own.mean(),
                    .canary = trial->second.canary.mean(),
                    .margin = trial->second.margin,
                    .requests = trial->second.requests};
}

}  // namespace tandem::router

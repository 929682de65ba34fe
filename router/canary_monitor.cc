#include "router/canary_monitor.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace tandem::router {
namespace {

// How sure a verdict must be, in standard errors. It is asked for after every request, so more than a single
// test would need.
constexpr double kConfidence = 3.0;
// Trials forget: past this many times min_rounds, what came before counts half.
constexpr double kMaxRounds = 50.0;

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

void RatioEstimate::Halve() {
  for (double* sum :
       {&requests_, &sum_rounds_, &sum_tokens_, &sum_rounds_squared_, &sum_tokens_squared_, &sum_products_}) {
    *sum *= 0.5;
  }
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
  // Never below what a verdict needs, however many rounds a request has.
  if (estimate.rounds() > kMaxRounds * canary.min_rounds && estimate.requests() >= 4 * kMinRequests) {
    estimate.Halve();
  }

  const auto has_enough = [&canary](const RatioEstimate& e) {
    return e.rounds() >= canary.min_rounds && e.requests() >= kMinRequests;
  };
  if (!has_enough(trial.own) || !has_enough(trial.canary)) return std::nullopt;
  const double wanted = canary.min_share * trial.own.mean();
  const double error =
      std::sqrt(trial.canary.variance() + canary.min_share * canary.min_share * trial.own.variance());
  const bool too_little = trial.canary.mean() + kConfidence * error < wanted;
  const bool enough = canary.promote && trial.canary.mean() - kConfidence * error > wanted;
  if (!too_little && !enough) return std::nullopt;
  CanaryVerdict verdict{
      .promote = enough,
      .reason = absl::StrFormat(
          "%s made %.2f tokens per round where %s made %.2f; %s the share of %g that was set", canary_name,
          trial.canary.mean(), own_name, trial.own.mean(), enough ? "above" : "below", canary.min_share)};
  trials_.erase(tenant.name);
  return verdict;
}

}  // namespace tandem::router

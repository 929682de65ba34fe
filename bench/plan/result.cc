#include "bench/plan/result.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace tandem::plan {
namespace {

using Json = nlohmann::json;

constexpr double kShortest = 1e-6;
const double kLogOfBin = std::log(1.01);

Json FiguresJson(const LatencyFigures& figures) {
  return {{"count", figures.count}, {"mean", figures.mean_ms}, {"p50", figures.p50_ms},
          {"p90", figures.p90_ms},  {"p95", figures.p95_ms},   {"p99", figures.p99_ms}};
}

}  // namespace

void DurationHistogram::Add(double seconds, uint64_t count) {
  count_ += count;
  sum_ += seconds * static_cast<double>(count);
  if (seconds < kShortest) {
    zeros_ += count;
    return;
  }
  const auto bin = static_cast<size_t>(std::log(seconds / kShortest) / kLogOfBin);
  if (bin >= bins_.size()) bins_.resize(bin + 1);
  bins_[bin] += count;
}

void DurationHistogram::Merge(const DurationHistogram& other) {
  bins_.resize(std::max(bins_.size(), other.bins_.size()));
  for (size_t i = 0; i < other.bins_.size(); ++i) bins_[i] += other.bins_[i];
  zeros_ += other.zeros_;
  count_ += other.count_;
  sum_ += other.sum_;
}

double DurationHistogram::Quantile(double quantile) const {
  if (count_ == 0) return 0.0;
  const double wanted = std::clamp(quantile, 0.0, 1.0) * static_cast<double>(count_);
  auto seen = static_cast<double>(zeros_);
  if (seen >= wanted && zeros_ > 0) return 0.0;
  for (size_t bin = 0; bin < bins_.size(); ++bin) {
    seen += static_cast<double>(bins_[bin]);
    if (seen >= wanted && bins_[bin] > 0) {
      return kShortest * std::exp((static_cast<double>(bin) + 0.5) * kLogOfBin);
    }
  }
  return 0.0;
}

LatencyFigures LatencyFigures::Of(const DurationHistogram& histogram) {
  const auto ms = [&](double quantile) { return histogram.Quantile(quantile) * 1e3; };
  return {.count = histogram.count(),
          .mean_ms = histogram.mean() * 1e3,
          .p50_ms = ms(0.5),
          .p90_ms = ms(0.9),
          .p95_ms = ms(0.95),
          .p99_ms = ms(0.99)};
}

Json Result::ToJson() const {
  Json points = Json::array();
  for (const TimelinePoint& point : timeline) {
    points.push_back({{"at_seconds", point.at_seconds},
                      {"requests_per_second", point.requests_per_second},
                      {"tokens_per_second", point.tokens_per_second},
                      {"in_flight", point.in_flight},
                      {"queued", point.queued}});
  }
  return {{"seconds", seconds},
          {"requests", {{"arrived", arrived}, {"completed", completed}, {"refused", refused}}},
          {"whole_run",
           {{"arrived", all_arrived},
            {"completed", all_completed},
            {"refused", all_refused},
            {"asked_tokens", all_asked_tokens},
            {"tokens", all_tokens},
            {"makespan_seconds", makespan_seconds}}},
          {"requests_per_second", requests_per_second},
          {"tokens_per_second", tokens_per_second},
          {"first_token_ms", FiguresJson(first_token)},
          {"token_gap_ms", FiguresJson(token_gap)},
          {"latency_ms", FiguresJson(latency)},
          {"queued_ms", FiguresJson(queued)},
          {"mean_in_flight", mean_in_flight},
          {"mean_queued", mean_queued},
          {"verifier_utilisation", verifier_utilisation},
          {"drafter_utilisation", drafter_utilisation},
          {"requests_by_drafter", requests_by_drafter},
          {"mean_step_rows", mean_step_rows},
          {"rounds", rounds},
          {"drafted_rounds", drafted_rounds},
          {"hits", hits},
          {"draft_tokens", draft_tokens},
          {"accepted_tokens", accepted_tokens},
          {"preemptions", preemptions},
          {"tokens_per_round", tokens_per_round},
          {"price_per_hour", price_per_hour},
          {"cost_per_million_tokens", cost_per_million_tokens},
          {"saturated", saturated},
          {"saturation", saturation},
          {"timeline", std::move(points)},
          {"digest", absl::StrFormat("%016x", digest)}};
}

}  // namespace tandem::plan

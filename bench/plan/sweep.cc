#include "bench/plan/sweep.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "bench/plan/cluster.h"
#include "bench/plan/progress.h"
#include "common/base/status_macros.h"

namespace tandem::plan {
namespace {

constexpr size_t kMostCandidates = 100'000;
constexpr double kLeastLoad = 1.0 / 1024.0;
constexpr double kMostLoad = 1024.0;

std::string LabelOf(const Layout& layout, double load) {
  std::vector<std::string> parts = {
      absl::StrFormat("%d verifier%s", layout.verifiers.count, layout.verifiers.count == 1 ? "" : "s")};
  for (const DrafterGroup& group : layout.drafters) {
    if (group.count > 0) parts.push_back(absl::StrFormat("%d %s", group.count, group.name));
  }
  parts.push_back(layout.choice == DrafterChoice::kOff ? "plain decoding" : layout.window_policy);
  if (load != 1.0) parts.push_back(absl::StrFormat("load x %g", load));
  return absl::StrJoin(parts, ", ");
}

void TurnDraftingOff(Layout* layout) {
  layout->choice = DrafterChoice::kOff;
  layout->pinned.clear();
  for (DrafterGroup& group : layout->drafters) group.count = 0;
}

bool HasDrafters(const Layout& layout) {
  return std::any_of(layout.drafters.begin(), layout.drafters.end(),
                     [](const DrafterGroup& group) { return group.count > 0; });
}

absl::Status Evaluate(const Plan& plan, uint32_t slices, CandidateOutcome* outcome,
                      const std::function<void(double)>& tell) {
  const Candidate& candidate = outcome->candidate;
  // Finding the saturation takes several simulations.
  const double share = plan.find_saturation ? 0.2 : 1.0;
  absl::StatusOr<Result> result = Simulate(
      plan, candidate.layout,
      {.load = candidate.load, .slices = slices, .on_progress = [&](double done) { tell(done * share); }});
  if (!result.ok()) {
    return absl::Status(result.status().code(),
                        absl::StrCat(candidate.label, ": ", result.status().message()));
  }
  if (result->arrived == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(candidate.label, ": no request comes in the ", result->seconds,
                     " measured seconds, expected one at least: traffic says when requests come"));
  }
  outcome->simulated = true;
  outcome->result = *std::move(result);
  if (plan.target.has_value()) {
    outcome->missed = MissedOf(*plan.target, outcome->result);
    outcome->meets_target = outcome->missed.empty();
  }
  if (plan.find_saturation) {
    TANDEM_ASSIGN_OR_RETURN(outcome->saturation_load, FindSaturation(plan, candidate.layout));
    if (outcome->saturation_load.has_value()) {
      outcome->saturation_requests_per_second = *outcome->saturation_load / candidate.load *
                                                static_cast<double>(outcome->result.arrived) /
                                                outcome->result.seconds;
    }
  }
  tell(1.0);
  return absl::OkStatus();
}

void FindCheapest(PlanOutcome* outcome) {
  for (size_t i = 0; i < outcome->candidates.size(); ++i) {
    const CandidateOutcome& one = outcome->candidates[i];
    if (!one.simulated || !one.meets_target || one.candidate.load != 1.0) continue;
    const auto better = [&](const CandidateOutcome& than) {
      return one.result.price_per_hour != than.result.price_per_hour
                 ? one.result.price_per_hour < than.result.price_per_hour
                 : one.result.tokens_per_second > than.result.tokens_per_second;
    };
    if (!outcome->cheapest.has_value() || better(outcome->candidates[*outcome->cheapest])) {
      outcome->cheapest = i;
    }
  }
}

}  // namespace

std::vector<Candidate> CandidatesOf(const Plan& plan) {
  std::vector<Layout> layouts = {plan.layout};
  const auto multiply = [&layouts](size_t values, const auto& change) {
    if (values == 0) return;
    std::vector<Layout> changed;
    for (const Layout& layout : layouts) {
      for (size_t i = 0; i < values; ++i) change(&changed.emplace_back(layout), i);
    }
    layouts = std::move(changed);
  };
  const Sweep& sweep = plan.sweep;
  multiply(sweep.verifiers.size(),
           [&](Layout* layout, size_t i) { layout->verifiers.count = sweep.verifiers[i]; });
  for (const auto& [name, counts] : sweep.drafters) {
    multiply(counts.size(), [&, drafter = name, of = &counts](Layout* layout, size_t i) {
      for (DrafterGroup& group : layout->drafters) {
        if (group.name == drafter) group.count = (*of)[i];
      }
    });
  }
  multiply(sweep.policies.size(), [&](Layout* layout, size_t i) {
    if (sweep.policies[i] == "off") {
      TurnDraftingOff(layout);
    } else {
      layout->window_policy = sweep.policies[i];
    }
  });
  std::vector<Candidate> candidates;
  const std::vector<double> loads = sweep.load.empty() ? std::vector<double>{1.0} : sweep.load;
  for (Layout& layout : layouts) {
    if (!HasDrafters(layout)) TurnDraftingOff(&layout);
    for (const double load : loads) {
      Candidate candidate{.label = LabelOf(layout, load), .layout = layout, .load = load};
      // Without drafters, all policies are the same.
      const bool known = std::any_of(candidates.begin(), candidates.end(),
                                     [&](const Candidate& other) { return other.label == candidate.label; });
      if (!known) candidates.push_back(std::move(candidate));
    }
  }
  return candidates;
}

std::string MissedOf(const Target& target, const Result& result) {
  std::vector<std::string> missed;
  const auto check = [&](const std::optional<double>& most, double is, absl::string_view what) {
    if (most.has_value() && is > *most) missed.push_back(absl::StrFormat("%s %.1f ms", what, is));
  };
  check(target.first_token_p95_ms, result.first_token.p95_ms, "first token p95");
  check(target.token_gap_p95_ms, result.token_gap.p95_ms, "token gap p95");
  check(target.latency_p95_ms, result.latency.p95_ms, "latency p95");
  const double refused =
      result.arrived == 0 ? 0.0 : static_cast<double>(result.refused) / static_cast<double>(result.arrived);
  if (refused > target.most_refused_share)
    missed.push_back(absl::StrFormat("%.2f %% refused", 100 * refused));
  // Refusals have their own limit, above.
  if (result.saturated && result.refused == 0) missed.push_back(result.saturation);
  return absl::StrJoin(missed, "; ");
}

absl::StatusOr<std::optional<double>> FindSaturation(const Plan& plan, const Layout& layout,
                                                     double tolerance) {
  const auto bears = [&](double load) -> absl::StatusOr<bool> {
    TANDEM_ASSIGN_OR_RETURN(const Result result, Simulate(plan, layout, {.load = load}));
    return !result.saturated;
  };
  double load = 1.0;
  TANDEM_ASSIGN_OR_RETURN(const bool bears_plan, bears(load));
  // The answer lies between these two.
  double low = load;
  double high = load;
  if (bears_plan) {
    for (bool up = true; up;) {
      low = high;
      high *= 2.0;
      if (high > kMostLoad) return std::nullopt;
      TANDEM_ASSIGN_OR_RETURN(up, bears(high));
    }
  } else {
    for (bool down = true; down;) {
      high = low;
      low /= 2.0;
      if (low < kLeastLoad) return std::nullopt;
      TANDEM_ASSIGN_OR_RETURN(const bool enough, bears(low));
      down = !enough;
    }
  }
  while (high > low * (1.0 + tolerance)) {
    load = std::sqrt(low * high);
    TANDEM_ASSIGN_OR_RETURN(const bool enough, bears(load));
    (enough ? low : high) = load;
  }
  return low;
}

absl::StatusOr<PlanOutcome> RunPlan(const Plan& plan, const RunOptions& options) {
  PlanOutcome outcome;
  for (Candidate& candidate : CandidatesOf(plan)) {
    if (absl::Status fits = CheckLayout(plan, candidate.layout); !fits.ok()) {
      return absl::Status(fits.code(), absl::StrCat(candidate.label, ": ", fits.message()));
    }
    outcome.candidates.push_back({.candidate = std::move(candidate), .result = {}});
  }
  if (outcome.candidates.size() > kMostCandidates) {
    return absl::InvalidArgumentError(absl::StrCat("the sweep has ", outcome.candidates.size(),
                                                   " layouts, expected at most ", kMostCandidates));
  }
  std::vector<size_t> order(outcome.candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto price = [&](size_t i) { return outcome.candidates[i].candidate.layout.PricePerHour(); };
  if (options.until_met) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return price(a) < price(b); });
  }
  Progress progress(order.size(), options.on_progress);
  std::vector<absl::Status> statuses(order.size());
  for (size_t begin = 0; begin < order.size();) {
    // Simulates all layouts of a price, so that the answer does not depend on the number of threads.
    size_t end = order.size();
    if (options.until_met) {
      end = begin + 1;
      while (end < order.size() && price(order[end]) == price(order[begin])) ++end;
    }
    std::atomic<size_t> next = begin;
    const auto work = [&] {
      for (size_t job = next++; job < end; job = next++) {
        statuses[job] = Evaluate(plan, options.slices, &outcome.candidates[order[job]],
                                 [&progress, job](double share) { progress.Set(job, share); });
      }
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < std::min(options.threads, end - begin); ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    for (size_t job = begin; job < end; ++job) TANDEM_RETURN_IF_ERROR(statuses[job]);
    begin = end;
    FindCheapest(&outcome);
    if (options.until_met && outcome.cheapest.has_value()) break;
  }
  // Candidates that were not simulated have reported no progress.
  if (options.on_progress) options.on_progress(1.0);
  return outcome;
}

}  // namespace tandem::plan

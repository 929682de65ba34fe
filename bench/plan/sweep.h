#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/plan/plan.h"
#include "bench/plan/result.h"

namespace tandem::plan {

// One of the layouts of a sweep, under one load.
struct Candidate {
  std::string label;
  Layout layout;
  double load = 1.0;
};

// Every combination of the sweep's lists, in its order; without a sweep, the plan's own layout. A policy
// "off" is plain decoding, and its layouts have no drafters.
std::vector<Candidate> CandidatesOf(const Plan& plan);

struct CandidateOutcome {
  Candidate candidate;
  bool simulated = false;  // Not where a cheaper one was found first.
  Result result;
  bool meets_target = false;
  std::string missed;  // What of the target it does not reach.
  // The largest factor on the traffic that it bears, and what comes then; with Plan::find_saturation.
  std::optional<double> saturation_load;
  double saturation_requests_per_second = 0.0;
};

struct PlanOutcome {
  std::vector<CandidateOutcome> candidates;
  // Of those under the plan's own load that meet the target, the one with the lowest price; of equal ones the
  // one with the more tokens per second.
  std::optional<size_t> cheapest;
};

struct RunOptions {
  size_t threads = 1;
  uint32_t slices = 1;  // Of each simulation: SimulateOptions.
  // Simulates by rising price, and no more once some layout of a price meets the target.
  bool until_met = false;
  // Told which share of the work is done, by any thread, one at a time; may be empty.
  std::function<void(double)> on_progress;
};

// Simulates all candidates, some at a time; the results do not depend on how many. Errors name the candidate.
absl::StatusOr<PlanOutcome> RunPlan(const Plan& plan, const RunOptions& options);

// The parts of the target that the result misses; empty if it reaches all.
std::string MissedOf(const Target& target, const Result& result);

// The largest factor on the traffic that the layout can serve, to within `tolerance`. Found by doubling or
// halving, then by bisection. nullopt if it cannot serve even a 1024th, or can serve a thousandfold.
absl::StatusOr<std::optional<double>> FindSaturation(const Plan& plan, const Layout& layout,
                                                     double tolerance = 0.05);

}  // namespace tandem::plan

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

// One layout of a sweep under one load.
struct Candidate {
  std::string label;
  Layout layout;
  double load = 1.0;
};

// Every combination of the sweep's values, in the sweep's order. Without a sweep, the plan's own layout. The
// policy "off" is plain decoding: its layouts have no drafters.
std::vector<Candidate> CandidatesOf(const Plan& plan);

struct CandidateOutcome {
  Candidate candidate;
  bool simulated = false;  // False if a cheaper layout met the target first.
  Result result;
  bool meets_target = false;
  std::string missed;  // The limits of the target that it exceeds.
  // With Plan::find_saturation: the largest load that it bears, and the requests per second at that load.
  std::optional<double> saturation_load;
  double saturation_requests_per_second = 0.0;
};

struct PlanOutcome {
  std::vector<CandidateOutcome> candidates;
  // The cheapest candidate that meets the target under the plan's own load. At equal prices, the one with
  // more tokens per second.
  std::optional<size_t> cheapest;
};

struct RunOptions {
  size_t threads = 1;
  uint32_t slices = 1;  // Of each simulation (SimulateOptions).
  // Simulates layouts by rising price, and stops after the first price at which a layout meets the target.
  bool until_met = false;
  // Called with the share of the work that is done. Any thread calls it, one at a time. May be empty.
  std::function<void(double)> on_progress;
};

// Simulates all candidates, as many at a time as there are threads. The outcome does not depend on the number
// of threads. Errors name the candidate.
absl::StatusOr<PlanOutcome> RunPlan(const Plan& plan, const RunOptions& options);

// The limits of the target that the result exceeds; empty: none.
std::string MissedOf(const Target& target, const Result& result);

// The largest load that the layout bears, to within `tolerance`. Doubles or halves the load first, and then
// bisects. Nothing if the layout bears less than a load of 1/1024, or more than 1024.
absl::StatusOr<std::optional<double>> FindSaturation(const Plan& plan, const Layout& layout,
                                                     double tolerance = 0.05);

}  // namespace tandem::plan

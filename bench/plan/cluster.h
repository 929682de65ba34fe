#pragma once

#include <atomic>
#include <functional>

#include "absl/status/statusor.h"
#include "bench/plan/plan.h"
#include "bench/plan/result.h"

namespace tandem::plan {

struct SimulateOptions {
  // Multiplies the traffic's rate or its requests in flight, or plays a recorded day so many times faster.
  double load = 1.0;
  // The number of parts of the measured time. Each has a thread and a warm-up of its own. A closed loop is
  // one part.
  uint32_t slices = 1;
  // Called now and then with the share of the simulated time that has passed. Any thread calls it, one at a
  // time. May be empty.
  std::function<void(double)> on_progress;
  // Once it is true, the simulation ends early with Cancelled. May be null.
  const std::atomic<bool>* stop = nullptr;
};

// Serves the plan's traffic with a layout, in simulated time. The decisions of router, verifiers and drafters
// are made by the servers' own classes. The plan gives the times of steps and messages, and the texts. The
// same plan, layout and load always give the same result. InvalidArgument: the layout cannot serve the
// traffic. Internal: the parts contradict one another.
//
//   clients --> PlanRouter --> VerifierMachine (Scheduler) <== links ==> DrafterMachine (DraftCore)
//
// Thread-safe, because simulations share no mutable state.
absl::StatusOr<Result> Simulate(const Plan& plan, const Layout& layout, const SimulateOptions& options = {});

// Whether the layout can serve the traffic at all. InvalidArgument says what is missing.
absl::Status CheckLayout(const Plan& plan, const Layout& layout);

}  // namespace tandem::plan

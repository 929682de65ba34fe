#pragma once

#include <atomic>
#include <functional>

#include "absl/status/statusor.h"
#include "bench/plan/plan.h"
#include "bench/plan/result.h"

namespace tandem::plan {

struct SimulateOptions {
  // On the traffic's rate, on its requests at a time, or on how fast a recorded day is played.
  double load = 1.0;
  // Parts of the measured time that are simulated at the same time, by a thread each, every one of them with
  // a warm-up of its own before it. Where requests come by a rate or a recorded day; elsewhere 1.
  uint32_t slices = 1;
  // Told now and then which share of the simulated time has passed, by any thread, one
  // at a time; may be empty.
  std::function<void(double)> on_progress;
  // Ends the simulation early, with Cancelled, once it is true; may be null.
  const std::atomic<bool>* stop = nullptr;
};

// Serves the plan's traffic with a layout, in simulated time. Router, verifiers and drafters make their own
// decisions, with the servers' own objects; passes, messages and texts follow the plan. The same plan, layout
// and load always give the same result. InvalidArgument for a layout that could not serve the traffic;
// Internal if the parts contradict one another.
//
//   clients --> PlanRouter --> VerifierMachine (Scheduler) <== links ==> DrafterMachine (DraftCore)
//
// Thread-safe: simulations share nothing that changes.
absl::StatusOr<Result> Simulate(const Plan& plan, const Layout& layout, const SimulateOptions& options = {});

// Whether the layout can serve the traffic at all. InvalidArgument says what is missing.
absl::Status CheckLayout(const Plan& plan, const Layout& layout);

}  // namespace tandem::plan

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bench/serve/load_generator.h"
#include "bench/serve/serve_options.h"
#include "bench/serve/summary.h"

namespace tandem::bench {

// Loads the prompts and plans the run. Errors are those of the options and of the prompt files.
absl::StatusOr<Experiment> PrepareExperiment(const ServeOptions& options);

// The request for a prompt.
v1::GenerateRequest MakeRequest(const ServeOptions& options, const Prompt& prompt, const Sampling& sampling,
                                const Configuration& configuration);

// Warms up, then runs the schedule's turns one after the other and stores the results in the experiment.
// Calls `progress` before each turn, with the number of turns. Fails if a request of the warm-up fails,
// because all others would fail too.
absl::Status RunExperiment(const ServeOptions& options, GenerateBackend& backend, Experiment& experiment,
                           const std::function<void(size_t turn, size_t turns)>& progress);

// The whole command. Prints tables to standard output and errors to standard error. Returns the exit code.
int RunServe(const ServeOptions& options);

}  // namespace tandem::bench

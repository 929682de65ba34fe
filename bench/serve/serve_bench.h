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

// Loads the prompts and lays out what is to be run. Errors are those of the options and of the prompt files.
absl::StatusOr<Experiment> PrepareExperiment(const ServeOptions& options);

// The request for a prompt.
v1::GenerateRequest MakeRequest(const ServeOptions& options, const Prompt& prompt, const Sampling& sampling,
                                const Configuration& configuration);

// Warms up, then takes the schedule's turns one after the other and keeps what came of them in the
// experiment. `progress` is called before each turn with how many there are in all. Fails when a request of
// the warm-up fails, since every other one would.
absl::Status RunExperiment(const ServeOptions& options, GenerateBackend& backend, Experiment& experiment,
                           const std::function<void(size_t turn, size_t turns)>& progress);

// The whole command, with its exit code: prints tables to standard output and what went wrong to standard
// error.
int RunServe(const ServeOptions& options);

}  // namespace tandem::bench

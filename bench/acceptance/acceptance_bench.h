#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/acceptance/acceptance_data.h"
#include "bench/acceptance/prediction_error.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::bench {

// The options of `tandem-bench acceptance`.
struct AcceptanceOptions {
  AcceptanceDataOptions data;
  PredictionErrorOptions error;
};

// InvalidArgument if there are too few prompts to divide.
absl::Status CheckEnoughPrompts(const AcceptanceData& data, const PredictionErrorOptions& options);
std::string PredictionErrorTable(const std::vector<PredictionError>& errors);

void AddAcceptanceOptions(CLI::App* app, AcceptanceOptions* options);
// Measures and prints. Returns the process's exit code.
int RunAcceptance(const AcceptanceOptions& options);

}  // namespace tandem::bench

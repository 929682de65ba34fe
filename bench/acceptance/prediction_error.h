#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/acceptance/acceptance_data.h"

namespace tandem::bench {

// What is used as the prompt's perplexity among its features.
enum class PerplexityKind {
  kNone,      // No feature at all: every prompt is predicted the mean.
  kTrigrams,  // The router's own trigram model.
  kTokens,    // What the prompt's tokens cost the drafter elsewhere (TokenNats).
  kReal,      // The drafter's own, as if it had scored the prompt before it was chosen.
};
inline constexpr size_t kNumPerplexityKinds = 4;

// The distance of predicted from actual acceptance, on prompts that were left out of learning.
struct PredictionError {
  std::string drafter;
  std::array<double, kNumPerplexityKinds> root_mean_square{};  // By kind.
};

struct PredictionErrorOptions {
  uint32_t dimension = 16;
  uint32_t folds = 5;     // Parts of the prompts that are left out in turn.
  uint32_t repeats = 10;  // Times that they are divided anew.
  uint32_t seed = 1;
};

// For each drafter: features and regression as in the router, fitted to the prompts that are not left out. A
// perplexity is standardised like features. The perplexity of a prompt used for learning comes from models
// that have not seen it. There must be at least twice as many prompts as folds.
std::vector<PredictionError> MeasurePredictionErrors(const AcceptanceData& data,
                                                     const PredictionErrorOptions& options);

}  // namespace tandem::bench

#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"
#include "common/speculation/sampling_parameters.h"

namespace tandem {

// Appends to a step's words (step_words.h) how tokens are chosen, so that ChoiceKernel chooses as
// TargetSampler does. Counts and biases that several choices in turn share are written once. `words` outlives
// the writer.
class ChoiceWriter {
 public:
  explicit ChoiceWriter(std::vector<uint32_t>* words) : words_(*words) {}

  // Returns the place of the choice, which is valid.
  uint32_t Write(const SeededChoice& choice);

 private:
  // Where pairs stand, and how many.
  struct Pairs {
    uint32_t at = 0;
    uint32_t size = 0;
  };

  uint32_t Place() const { return static_cast<uint32_t>(words_.size()); }
  Pairs WriteCounts(absl::Span<const TokenCount> counts);
  Pairs WriteBiases(const SamplingParameters& sampling);

  std::vector<uint32_t>& words_;
  absl::Span<const TokenCount> known_counts_;
  Pairs counts_;
  const SamplingParameters* known_sampling_ = nullptr;
  Pairs biases_;
};

}  // namespace tandem

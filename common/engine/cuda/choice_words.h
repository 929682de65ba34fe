#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/engine/engine.h"
#include "common/speculation/sampling_parameters.h"

namespace tandem {

// Appends the parameters of choices to a step's words (step_words.h), so that ChoiceKernel chooses like
// TargetSampler. Counts and biases that consecutive choices share are written once. `words` outlives the
// writer.
class ChoiceWriter {
 public:
  explicit ChoiceWriter(std::vector<uint32_t>* words) : words_(*words) {}

  // Writes a valid choice. Returns its position.
  uint32_t Write(const SeededChoice& choice);

 private:
  // The position and the number of some pairs.
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

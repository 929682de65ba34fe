#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/engine/engine.h"
#include "common/engine/weight_type.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::bench {

// A model from a folder, ready to compute on the CPU.
struct LoadedModel {
  std::string name;  // The folder's own.
  std::unique_ptr<Engine> engine;
  std::shared_ptr<const Tokenizer> tokenizer;

  uint64_t VocabularyFingerprint() const { return tokenizer->Fingerprint(engine->config().vocab_size); }
};

// Loads it with memory for two contexts. A draft head shares tensors and vocabulary with the target in the
// folder `head_target`. Errors name the folder's file.
absl::StatusOr<LoadedModel> LoadModel(const std::string& folder, int threads,
                                      const std::string& head_target = "",
                                      WeightType weight_type = WeightType::kAsInFile);

}  // namespace tandem::bench

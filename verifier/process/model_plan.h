#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"

namespace tandem {

// The least number of tokens of keys and values for a model.
inline constexpr uint64_t kFewestKvTokens = 256;
inline constexpr uint64_t kMostKvTokens = 1'000'000'000;

// One of the models that a verifier serves.
struct ModelPlan {
  ModelSpec spec;
  uint64_t kv_tokens = 0;   // Tokens of keys and values to hold. 0: as many as the memory has room for.
  double kv_share = 1.0;    // Of the models that are loaded together.
  bool kv_bounded = false;  // Asked for by a client: refused where the memory has no room.
  std::vector<ModelSpec> adapters;  // Under which names, from which folders.
};

// The plan from --model, --kv-tokens and --kv-share. `models`: in the form of ParseModelSpec, with distinct
// names. `shares`: NAME=WEIGHT for some of them; the others have weight 1. A model gets kv_tokens times its
// weight over the sum of weights, so by default all models hold the same number of tokens, in memory
// proportional to the bytes of a token. If kv_tokens is 0, its share is one of the memory. InvalidArgument
// names the flag, also if a model's share would be less than kFewestKvTokens.
absl::StatusOr<std::vector<ModelPlan>> PlanModels(absl::Span<const std::string> models, uint64_t kv_tokens,
                                                  absl::Span<const std::string> shares);

// Adds the adapters of --adapter: NAME=FOLDER, for the only model, or MODEL:NAME=FOLDER. InvalidArgument
// names the flag.
absl::Status PlanAdapters(absl::Span<const std::string> adapters, std::vector<ModelPlan>* plans);

}  // namespace tandem

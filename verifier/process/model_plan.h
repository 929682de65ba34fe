#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"

namespace tandem {

// The fewest tokens of keys and values that a model is given.
inline constexpr uint64_t kFewestKvTokens = 256;

// One of the models that a verifier is to serve.
struct ModelPlan {
  ModelSpec spec;
  uint64_t kv_tokens = 0;           // Tokens of keys and values to hold.
  std::vector<ModelSpec> adapters;  // Under which names, from which folders.
};

// What --model, --kv-tokens and --kv-share say. `models` are as of ParseModelSpec, with names of their own;
// `shares` are NAME=WEIGHT, for some of them, others weighing 1. A model gets kv_tokens times its weight over
// the sum of all: memory in proportion to the bytes of its tokens where nothing else is said. InvalidArgument
// names the flag, and so it does where a model's share would be less than kFewestKvTokens.
absl::StatusOr<std::vector<ModelPlan>> PlanModels(absl::Span<const std::string> models, uint64_t kv_tokens,
                                                  absl::Span<const std::string> shares);

// What --adapter says: NAME=FOLDER, an adapter of the one model there is, or MODEL:NAME=FOLDER.
// InvalidArgument names the flag.
absl::Status PlanAdapters(absl::Span<const std::string> adapters, std::vector<ModelPlan>* plans);

}  // namespace tandem

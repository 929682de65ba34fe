#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/token.h"

namespace tandem {

// How the target chooses a token; the meaning, order, ranges and defaults are those of
// tandem.v1.SamplingParameters.
struct SamplingParameters {
  float temperature = 1.0f;
  uint32_t top_k = 0;
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<TokenId, float>> logit_bias;
  uint64_t seed = 0;
  // In ascending order, each once. Nothing but the first has a chance, where there are any, and nothing of
  // the second.
  std::vector<TokenId> allowed_tokens;
  std::vector<TokenId> banned_tokens;
  // What ends an output, in ascending order, has no chance at positions below this one: until the output is
  // as long as StopConditions.min_tokens asks for. No part of SamplingParameters on the wire.
  std::vector<TokenId> early_banned_tokens;
  uint32_t early_ban_end = 0;
};

// What penalties look at: how often a token stands in the output so far; 0 of one that only the prompt has.
struct TokenCount {
  TokenId token = 0;
  uint32_t count = 0;
  friend bool operator==(const TokenCount&, const TokenCount&) = default;
};

// InvalidArgument names the field, its value and its range, as in "sampling.top_p: 1.5, expected (0, 1]"; or
// says that no token would be left to choose.
absl::Status Validate(const SamplingParameters& sampling, int32_t vocab_size);

}  // namespace tandem

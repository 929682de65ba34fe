#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
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
  // In ascending order, each once. If there are allowed tokens, no other can be chosen; banned tokens cannot
  // be chosen.
  std::vector<TokenId> allowed_tokens;
  std::vector<TokenId> banned_tokens;
  // Where the output ends with all of one of these but its last token, that token cannot be chosen. None is
  // empty.
  std::vector<TokenIds> banned_sequences;
  // Tokens that end an output, in ascending order. They cannot be chosen at positions below this one, until
  // the output has the length of StopConditions.min_tokens. Not part of SamplingParameters on the wire.
  std::vector<TokenId> early_banned_tokens;
  uint32_t early_ban_end = 0;
};

// The input of penalties: how often a token occurs in the output so far; 0 for a token that only the prompt
// has.
struct TokenCount {
  TokenId token = 0;
  uint32_t count = 0;
  friend bool operator==(const TokenCount&, const TokenCount&) = default;
};

// Whether an output of `before` and `path` ends with all of the sequence but its last token.
bool EndsBeforeLast(const TokenIds& sequence, absl::Span<const TokenId> before,
                    absl::Span<const TokenId> path);
// Whether `token` would complete one of the sequences there.
bool CompletesAny(const std::vector<TokenIds>& sequences, absl::Span<const TokenId> before,
                  absl::Span<const TokenId> path, TokenId token);

// InvalidArgument names the field, its value and its range, as in "sampling.top_p: 1.5, expected (0, 1]"; or
// says that no token would be left to choose.
absl::Status Validate(const SamplingParameters& sampling, int32_t vocab_size);

}  // namespace tandem

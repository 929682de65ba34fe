#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/token.h"
#include "common/speculation/sampling_parameters.h"

namespace tandem {

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;
};

// What the target chose at one position.
struct TokenChoice {
  TokenId token = 0;
  // Filled when log probabilities were asked for.
  float logprob = 0.0f;
  std::vector<TokenLogprob> top_logprobs;  // Most likely first; equal ones by token id.
};

// Gumbel noise G(seed, position, token): a standard Gumbel variate that depends on nothing else (law 2).
// Computed without the C library's logarithm, so that it has the same bits on every machine.
float GumbelNoise(uint64_t seed, uint32_t position, TokenId token);

// The target's seeded choice (law 2): argmax over v of log p(v) + G(seed, position, v), p being the target's
// distribution after penalties, bias, temperature, top-k, top-p and min-p. A pure function of the logits, the
// parameters, the tokens so far and the position. The drafter uses the same class on its own logits to guess
// it.
//
// Cheap to copy apart from the token history. Not thread-safe.
class TargetSampler {
 public:
  // `prompt` counts for the repetition penalty. `sampling` has been validated.
  TargetSampler(const SamplingParameters& sampling, int32_t vocab_size, absl::Span<const TokenId> prompt);

  // Adds a token to the output, which the penalties look at.
  void Append(TokenId token);

  // The choice for the token at `position` (the number of tokens before it, prompt included). `logits`
  // [vocab_size] is scratch and is overwritten. `num_logprobs` < 0: none are computed.
  TokenChoice Choose(absl::Span<float> logits, uint32_t position, int num_logprobs = -1);
};

}  // namespace tandem

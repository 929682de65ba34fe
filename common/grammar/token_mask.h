#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/base/token.h"

namespace tandem {

// A set of tokens: bit t % 32 of word t / 32.
inline size_t MaskWords(int32_t vocab_size) {
  return (static_cast<size_t>(vocab_size) + 31) / 32;
}
inline bool IsAllowed(absl::Span<const uint32_t> mask, TokenId token) {
  return (mask[static_cast<size_t>(token) / 32] >> (static_cast<uint32_t>(token) % 32) & 1) != 0;
}
// How many of the first `vocab_size` tokens are in it, counted up to `most`.
int32_t CountAllowed(absl::Span<const uint32_t> mask, int32_t vocab_size, int32_t most);

// Sets the logits of tokens that are not in `mask` to -infinity. Apply it before the sampler, so that
// penalties, bias, cuts and log probabilities work on a distribution over the other tokens only. `mask`:
// [MaskWords(logits.size())].
void ApplyMask(absl::Span<const uint32_t> mask, absl::Span<float> logits);

}  // namespace tandem

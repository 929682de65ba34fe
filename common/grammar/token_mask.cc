#include "common/grammar/token_mask.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>

#include "common/speculation/simd_clones.h"

namespace tandem {
namespace {

constexpr float kNoChance = -std::numeric_limits<float>::infinity();

// Of whole words. Most are all ones in free text, and all zeros where little may come.
TANDEM_SIMD_CLONES
void ApplyWords(const uint32_t* mask, size_t num_words, float* logits) {
  for (size_t word = 0; word < num_words; ++word, logits += 32) {
    const uint32_t bits = mask[word];
    if (bits == 0xffffffffu) continue;
    for (uint32_t i = 0; i < 32; ++i) logits[i] = (bits & 1u << i) != 0 ? logits[i] : kNoChance;
  }
}

}  // namespace

int32_t CountAllowed(absl::Span<const uint32_t> mask, int32_t vocab_size, int32_t most) {
  int32_t count = 0;
  const auto whole = static_cast<size_t>(vocab_size) / 32;
  for (size_t word = 0; word < whole && count < most; ++word) count += std::popcount(mask[word]);
  if (const int rest = vocab_size % 32; rest != 0) count += std::popcount(mask[whole] & ((1u << rest) - 1));
  return std::min(count, most);
}

void ApplyMask(absl::Span<const uint32_t> mask, absl::Span<float> logits) {
  assert(mask.size() >= MaskWords(static_cast<int32_t>(logits.size())));
  const size_t num_words = logits.size() / 32;
  ApplyWords(mask.data(), num_words, logits.data());
  for (size_t at = 32 * num_words; at < logits.size(); ++at) {
    if (!IsAllowed(mask, static_cast<TokenId>(at))) logits[at] = kNoChance;
  }
}

}  // namespace tandem

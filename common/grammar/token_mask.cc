#include "common/grammar/token_mask.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <limits>

namespace tandem {

int32_t CountAllowed(absl::Span<const uint32_t> mask, int32_t vocab_size, int32_t most) {
  int32_t count = 0;
  const auto whole = static_cast<size_t>(vocab_size) / 32;
  for (size_t word = 0; word < whole && count < most; ++word) count += std::popcount(mask[word]);
  if (const int rest = vocab_size % 32; rest != 0) count += std::popcount(mask[whole] & ((1u << rest) - 1));
  return std::min(count, most);
}

void ApplyMask(absl::Span<const uint32_t> mask, absl::Span<float> logits) {
  assert(mask.size() >= MaskWords(static_cast<int32_t>(logits.size())));
  constexpr float kNoChance = -std::numeric_limits<float>::infinity();
  size_t first = 0;
  for (size_t word = 0; first < logits.size(); ++word, first += 32) {
    const size_t count = std::min<size_t>(32, logits.size() - first);
    const uint32_t bits = mask[word];
    if (bits == 0) {
      std::fill_n(logits.data() + first, count, kNoChance);
    } else if (bits != 0xffffffffu) {
      for (size_t i = 0; i < count; ++i) {
        if ((bits >> i & 1) == 0) logits[first + i] = kNoChance;
      }
    }
  }
}

}  // namespace tandem

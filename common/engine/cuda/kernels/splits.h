#pragma once

#include <cstdint>

#include "common/engine/cuda/kernels/block.h"

namespace tandem {

// Attention divides a context into splits, which blocks of threads compute in parallel. The results are added
// up from first to last. The beginning of a split depends on positions alone, never on the batch or on the
// context's length, so a row has the same bits whatever else is in the step (law 1). Splits are short where
// most contexts end, so that a single row keeps many blocks of threads busy. They are longer further on, so
// that there are never many.
inline constexpr uint32_t kShortSplit = 256;  // Up to position 8,192,
inline constexpr uint32_t kShortSplitsEnd = 8192;
inline constexpr uint32_t kMiddleSplit = 1024;  // up to 32,768,
inline constexpr uint32_t kMiddleSplitsEnd = 32768;
inline constexpr uint32_t kLongSplit = 4096;  // and beyond.

TANDEM_BOTH uint32_t SplitOf(uint32_t position) {
  constexpr uint32_t kNumShort = kShortSplitsEnd / kShortSplit;
  constexpr uint32_t kNumMiddle = (kMiddleSplitsEnd - kShortSplitsEnd) / kMiddleSplit;
  if (position < kShortSplitsEnd) return position / kShortSplit;
  if (position < kMiddleSplitsEnd) return kNumShort + (position - kShortSplitsEnd) / kMiddleSplit;
  return kNumShort + kNumMiddle + (position - kMiddleSplitsEnd) / kLongSplit;
}

TANDEM_BOTH uint32_t SplitBegin(uint32_t split) {
  constexpr uint32_t kNumShort = kShortSplitsEnd / kShortSplit;
  constexpr uint32_t kNumMiddle = (kMiddleSplitsEnd - kShortSplitsEnd) / kMiddleSplit;
  if (split <= kNumShort) return split * kShortSplit;
  if (split <= kNumShort + kNumMiddle) return kShortSplitsEnd + (split - kNumShort) * kMiddleSplit;
  return kMiddleSplitsEnd + (split - kNumShort - kNumMiddle) * kLongSplit;
}

}  // namespace tandem

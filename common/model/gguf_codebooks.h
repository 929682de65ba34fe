#pragma once

#include <array>
#include <cstdint>

namespace tandem {

// The codebooks of GGUF's types IQ1, IQ2 and IQ3, which belong to the format. An entry holds a vector, its
// first number in the lowest bits: eight numbers of two bits each, or of IQ3 four of three bits each.
// testdata/make_gguf_codebooks.py packs them.
extern const std::array<uint16_t, 2048> kIq1Codebook;    // -1, 0, 1
extern const std::array<uint16_t, 256> kIq2XxsCodebook;  // 8, 25, 43
extern const std::array<uint16_t, 512> kIq2XsCodebook;
extern const std::array<uint16_t, 1024> kIq2SCodebook;
extern const std::array<uint16_t, 256> kIq3XxsCodebook;  // 4, 12, 20, 28, 36, 44, 52, 62
extern const std::array<uint16_t, 512> kIq3SCodebook;    // 1, 3, 5, 7, 9, 11, 13, 15

}  // namespace tandem

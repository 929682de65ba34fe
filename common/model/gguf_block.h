#pragma once

#include <cstdint>
#include <cstring>

#include "common/gguf/gguf_file.h"
#include "common/model/tensor_convert.h"

namespace tandem {

// The integers of IQ4_NL and IQ4_XS.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

// Of one block of a GGUF tensor: where its values go, the scales, minimums and zero points of each 16 of
// them, and the units of scales and minimums (CodedRows).
struct GgufBlock {
  int8_t* values;
  float* scales;
  float* minimums;
  int8_t* zeros;
  float* unit;
  float* minimum_unit;

  // Of all scales and minimums of a block of 256 values.
  void SetUnits(float scale, float minimum = 0.0f) const {
    *unit = scale;
    *minimum_unit = minimum;
  }
  // Of the 16 values of a part.
  void SetPart(int part, float scale, float minimum = 0.0f, int8_t zero = 0) const {
    scales[part] = scale;
    minimums[part] = minimum;
    zeros[part] = zero;
  }
  // Of a group of 32 values.
  void SetGroup(int group, float scale, float minimum = 0.0f, int8_t zero = 0) const {
    SetPart(2 * group, scale, minimum, zero);
    SetPart(2 * group + 1, scale, minimum, zero);
  }
};

inline uint16_t ReadUint16(const uint8_t* in) {
  uint16_t bits;
  std::memcpy(&bits, in, sizeof(bits));
  return bits;
}

inline float ReadHalf(const uint8_t* in) {
  return HalfToFloat(ReadUint16(in));
}

// Decodes a block of IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS or IQ3_S, whose codes choose vectors of
// numbers from a codebook.
void ReadCodebookBlock(GgufType type, const uint8_t* in, const GgufBlock& out);

}  // namespace tandem

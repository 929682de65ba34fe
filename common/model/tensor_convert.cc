#include "common/model/tensor_convert.h"

#include <bit>
#include <cassert>
#include <cstring>

namespace tandem {
namespace {

float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The file's elements may start at an odd address, so that each is copied out before it is used; compilers
// turn the copy into one load.
template <float (*Convert)(uint16_t)>
void Convert16(const char* in, absl::Span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, in + 2 * i, sizeof(bits));
    out[i] = Convert(bits);
  }
}

}  // namespace

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1f;
  const uint32_t mantissa = half & 0x3ff;
  if (exponent == 0) {
    // Zero or subnormal: mantissa * 2^-24, which is a normal float32.
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  // Infinity and NaN keep the all-ones exponent; others move from bias 15 to bias 127.
  const uint32_t wide_exponent = exponent == 0x1f ? 0xff : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (mantissa << 13));
}

int64_t RowElements(const TensorView& tensor) {
  int64_t count = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) count *= tensor.shape[i];
  return count;
}

void ConvertRowsToFloat(const TensorView& tensor, int64_t first_row, [[maybe_unused]] int64_t num_rows,
                        absl::Span<float> out) {
  const int64_t row_elements = RowElements(tensor);
  assert(first_row >= 0 && num_rows >= 0);
  assert((first_row + num_rows) * row_elements <= tensor.num_elements());
  assert(static_cast<int64_t>(out.size()) == num_rows * row_elements);
  if (out.empty()) return;
  const int64_t element_bytes = tensor.dtype == TensorView::DType::kF32 ? 4 : 2;
  const char* const in = static_cast<const char*>(tensor.data) + first_row * row_elements * element_bytes;
  switch (tensor.dtype) {
    case TensorView::DType::kF32:
      std::memcpy(out.data(), in, out.size() * sizeof(float));
      return;
    case TensorView::DType::kF16:
      Convert16<HalfToFloat>(in, out);
      return;
    case TensorView::DType::kBF16:
      Convert16<BFloat16ToFloat>(in, out);
      return;
  }
}

void ConvertToFloat(const TensorView& tensor, absl::Span<float> out) {
  ConvertRowsToFloat(tensor, 0, tensor.shape.empty() ? 1 : tensor.shape[0], out);
}

}  // namespace tandem

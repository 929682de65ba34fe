#pragma once

#include <bit>
#include <cstdint>

#include "absl/types/span.h"
#include "common/model/tensor_view.h"

namespace tandem {

// Elements in one row: everything after the first dimension. 1 for a vector or a scalar.
int64_t RowElements(const TensorView& tensor);

// Converts rows [first_row, first_row + num_rows) to float32 into `out`, which holds num_rows *
// RowElements(tensor). A vector's rows are its elements. Exact: every bfloat16 and every half (subnormals,
// infinities and NaN included) is a float32, and so is every kMxFp4 but those beyond 3 * 2^126, which become
// infinite; kQuantized is as QuantizedMatrix says. The range must lie in the tensor and `out` must have the
// right size.
void ConvertRowsToFloat(const TensorView& tensor, int64_t first_row, int64_t num_rows, absl::Span<float> out);

// The same for the whole tensor; `out` holds num_elements().
void ConvertToFloat(const TensorView& tensor, absl::Span<float> out);

// The float32 equal to an IEEE half given by its bits. A NaN keeps its sign and payload. Without branches, so
// that loops over halves are vectorised.
inline float HalfToFloat(uint16_t half) {
  const int32_t magnitude = half & 0x7fff;
  // Zero or subnormal: a multiple of 2^-24, which is a normal float32.
  const auto small = std::bit_cast<int32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  // Others move from bias 15 to bias 127; infinity and NaN keep the all-ones exponent.
  const int32_t moved = (magnitude << 13) + (magnitude >= 0x7c00 ? 224 << 23 : 112 << 23);
  const int32_t sign = (half & 0x8000) << 16;
  return std::bit_cast<float>((magnitude < 0x0400 ? small : moved) | sign);
}

}  // namespace tandem

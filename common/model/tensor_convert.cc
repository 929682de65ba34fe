#include "common/model/tensor_convert.h"

#include <bit>
#include <cassert>
#include <cstring>
#include <limits>

#include "common/model/quantized_matrix.h"

namespace tandem {
namespace {

float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// The file's elements may start at an odd address, so that each is copied out before it is used; compilers
// turn the copy into one load.
template <float (*Convert)(uint16_t)>
void Convert16(const char* in, int64_t stride, absl::Span<float> out) {
  for (float& number : out) {
    uint16_t bits;
    std::memcpy(&bits, in, sizeof(bits));
    in += stride * static_cast<int64_t>(sizeof(bits));
    number = Convert(bits);
  }
}

// Elements `stride` apart.
void ConvertElements(TensorView::DType dtype, const char* in, int64_t stride, absl::Span<float> out) {
  switch (dtype) {
    case TensorView::DType::kF32:
      if (stride == 1) {
        std::memcpy(out.data(), in, out.size() * sizeof(float));
        return;
      }
      for (float& number : out) {
        std::memcpy(&number, in, sizeof(number));
        in += stride * static_cast<int64_t>(sizeof(float));
      }
      return;
    case TensorView::DType::kF16:
      return stride == 1 ? Convert16<HalfToFloat>(in, 1, out) : Convert16<HalfToFloat>(in, stride, out);
    case TensorView::DType::kBF16:
      return stride == 1 ? Convert16<BFloat16ToFloat>(in, 1, out)
                         : Convert16<BFloat16ToFloat>(in, stride, out);
    case TensorView::DType::kMxFp4:
    case TensorView::DType::kQuantized:
      // They have scales: ConvertScaled and QuantizedMatrix.
      assert(false);
  }
}

// kMxFp4, of whole groups of numbers.
void ConvertScaled(const uint8_t* numbers, const uint8_t* scales, absl::Span<float> out) {
  constexpr float kNumbers[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                  -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  constexpr size_t kGroup = TensorView::kScaledNumbers;
  for (size_t begin = 0; begin < out.size(); begin += kGroup) {
    const uint32_t exponent = scales[begin / kGroup];
    // 2^(exponent - 127), of which the least is below the normal range; its products are not rounded.
    const float power = exponent == 255 ? std::numeric_limits<float>::quiet_NaN()
                                        : std::bit_cast<float>(exponent == 0 ? 1u << 22 : exponent << 23);
    for (size_t i = begin; i < begin + kGroup; i += 2) {
      const uint32_t pair = numbers[i / 2];
      out[i] = kNumbers[pair & 0xf] * power;
      out[i + 1] = kNumbers[pair >> 4] * power;
    }
  }
}

}  // namespace

int64_t RowElements(const TensorView& tensor) {
  int64_t count = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) count *= tensor.shape[i];
  return count;
}

void ConvertRowsToFloat(const TensorView& tensor, int64_t first_row, int64_t num_rows,
                        absl::Span<float> out) {
  const int64_t row_elements = RowElements(tensor);
  assert(first_row >= 0 && num_rows >= 0);
  assert((first_row + num_rows) * row_elements <= tensor.num_elements());
  assert(static_cast<int64_t>(out.size()) == num_rows * row_elements);
  if (out.empty()) return;
  const auto* const data = static_cast<const char*>(tensor.data);
  if (tensor.dtype == TensorView::DType::kQuantized && !tensor.strides.has_value()) {
    assert(row_elements == tensor.quantized->num_inputs() && tensor.quantized_begin % row_elements == 0);
    tensor.quantized->ReadOutputs(tensor.quantized_begin / row_elements + first_row, num_rows, out);
    return;
  }
  if (tensor.dtype == TensorView::DType::kMxFp4 || tensor.dtype == TensorView::DType::kQuantized) {
    for (int64_t row = first_row; row < first_row + num_rows; ++row) {
      const int64_t begin = tensor.row_begin(row);
      const absl::Span<float> to = out.subspan(static_cast<size_t>((row - first_row) * row_elements),
                                               static_cast<size_t>(row_elements));
      if (tensor.dtype == TensorView::DType::kQuantized) {
        tensor.quantized->ReadOutputs(begin / row_elements, 1, to);
        continue;
      }
      ConvertScaled(reinterpret_cast<const uint8_t*>(data) + tensor.offset_of(begin),
                    static_cast<const uint8_t*>(tensor.scales) + begin / TensorView::kScaledNumbers, to);
    }
    return;
  }
  if (!tensor.strides.has_value()) {
    ConvertElements(tensor.dtype, data + tensor.offset_of(first_row * row_elements), 1, out);
    return;
  }
  for (int64_t row = first_row; row < first_row + num_rows; ++row) {
    const int64_t begin = tensor.row_begin(row);
    ConvertElements(tensor.dtype, data + tensor.offset_of(begin), tensor.strides->column_stride,
                    out.subspan(static_cast<size_t>((row - first_row) * row_elements),
                                static_cast<size_t>(row_elements)));
  }
}

void ConvertToFloat(const TensorView& tensor, absl::Span<float> out) {
  ConvertRowsToFloat(tensor, 0, tensor.shape.empty() ? 1 : tensor.shape[0], out);
}

}  // namespace tandem

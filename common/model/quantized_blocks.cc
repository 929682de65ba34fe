#include "common/model/quantized_blocks.h"

#include <cassert>

#include "common/model/gguf_dequantize.h"
#include "common/model/tensor_view.h"

namespace tandem {

QuantizedBlocks::QuantizedBlocks(const GgufTensor& tensor, int64_t head_dim)
    : QuantizedMatrix(tensor.shape.at(0), tensor.shape.at(1), tensor.bytes.data(), {tensor.bytes}),
      type_(tensor.type),
      bytes_(tensor.bytes),
      head_dim_(head_dim) {}

absl::string_view QuantizedBlocks::BytesOf(int64_t output) const {
  const int64_t row = head_dim_ == 0 ? output : RowInPairs(output, head_dim_);
  const size_t size = bytes_.size() / static_cast<size_t>(num_outputs());
  return bytes_.substr(static_cast<size_t>(row) * size, size);
}

void QuantizedBlocks::ReadOutputs(int64_t first, int64_t count, absl::Span<float> numbers) const {
  assert(first >= 0 && first + count <= num_outputs());
  const auto inputs = static_cast<size_t>(num_inputs());
  for (int64_t i = 0; i < count; ++i) {
    DequantizeBlocks(type_, BytesOf(first + i), numbers.subspan(static_cast<size_t>(i) * inputs, inputs));
  }
}

Coding QuantizedBlocks::coding() const {
  return CodingOf(type_);
}

void QuantizedBlocks::ReadCodes(int64_t first, int64_t count, int64_t place, CodedRows* rows) const {
  assert(first >= 0 && first + count <= num_outputs());
  for (int64_t i = 0; i < count; ++i) ReadBlocks(type_, BytesOf(first + i), place + i, rows);
}

}  // namespace tandem

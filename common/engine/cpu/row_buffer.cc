#include "common/engine/cpu/row_buffer.h"

#include "common/base/status_macros.h"

namespace tandem {

absl::StatusOr<RowBuffer> RowBuffer::Allocate(uint32_t max_rows, uint32_t width) {
  constexpr size_t kLine = 16;
  RowBuffer buffer;
  buffer.width_ = width;
  // Rounds up to whole cache lines, an odd number of them. If rows were a power of two apart, all rows of a
  // product would compete for the same few sets of the cache.
  buffer.stride_ = ((width + kLine - 1) / kLine | 1) * kLine;
  TANDEM_ASSIGN_OR_RETURN(buffer.data_,
                          AlignedBuffer::Allocate(buffer.stride_ * max_rows, sizeof(float), "activations"));
  buffer.rows_.reserve(max_rows);
  for (uint32_t i = 0; i < max_rows; ++i) {
    buffer.rows_.push_back(buffer.data_.data<float>() + i * buffer.stride_);
  }
  return buffer;
}

}  // namespace tandem

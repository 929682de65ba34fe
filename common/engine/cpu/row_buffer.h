#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/cpu/aligned_buffer.h"

namespace tandem {

// Activations of one step's rows, [max_rows, width], allocated once.
class RowBuffer {
 public:
  RowBuffer() = default;
  static absl::StatusOr<RowBuffer> Allocate(uint32_t max_rows, uint32_t width);

  float* row(uint32_t index) const { return rows_[index]; }
  // One pointer per row.
  float* const* rows() const { return rows_.data(); }
  // Floats from one row to the next.
  size_t stride() const { return stride_; }
  uint32_t width() const { return width_; }

 private:
  uint32_t width_ = 0;
  size_t stride_ = 0;
  AlignedBuffer data_;
  std::vector<float*> rows_;
};

}  // namespace tandem

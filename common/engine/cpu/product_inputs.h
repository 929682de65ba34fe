#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/row_buffer.h"
#include "common/engine/cpu/thread_team.h"

namespace tandem {

// Activations that products read: floats [max_rows, width], plus a second copy in the kernel's own layout
// if the kernel needs one. After writing floats, call Prepare before the product.
class ProductInputs {
 public:
  ProductInputs() = default;
  // Allocates what the products of `kernels` need.
  static absl::StatusOr<ProductInputs> Allocate(const KernelTable& kernels, uint32_t max_rows,
                                                uint32_t width);

  RowBuffer& floats() { return floats_; }
  const RowBuffer& floats() const { return floats_; }
  // Rows as prepared for products of `kernel`, from `first_row` on, a multiple of kRowAlignment.
  const void* prepared(const ProductKernel& kernel, uint32_t first_row = 0) const {
    const char* const all = prepared_.data<char>();
    return first_row == 0 || kernel.prepare == nullptr
               ? all
               : all + kernel.prepared_bytes(first_row, floats_.width());
  }

  // Prepares some rows and columns for products of `kernel`; many kernels need nothing. Column ranges begin
  // at multiples of kInputGroup. Threads may prepare different parts at the same time.
  void Prepare(const ProductKernel& kernel, Share rows, Share columns);

 private:
  RowBuffer floats_;
  AlignedBuffer prepared_;
};

}  // namespace tandem

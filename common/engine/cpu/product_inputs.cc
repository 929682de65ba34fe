#include "common/engine/cpu/product_inputs.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace tandem {

absl::StatusOr<ProductInputs> ProductInputs::Allocate(const KernelTable& kernels, uint32_t max_rows,
                                                      uint32_t width) {
  ProductInputs inputs;
  TANDEM_ASSIGN_OR_RETURN(inputs.floats_, RowBuffer::Allocate(max_rows, width));
  uint64_t num_bytes = 0;
  for (const ProductKernel& kernel : kernels.products) {
    if (kernel.prepare != nullptr) num_bytes = std::max(num_bytes, kernel.prepared_bytes(max_rows, width));
  }
  if (num_bytes > 0) {
    TANDEM_ASSIGN_OR_RETURN(inputs.prepared_, AlignedBuffer::Allocate(num_bytes, 1, "prepared activations"));
  }
  return inputs;
}

void ProductInputs::Prepare(const ProductKernel& kernel, Share rows, Share columns) {
  if (kernel.prepare == nullptr || rows.begin == rows.end || columns.begin == columns.end) return;
  PrepareArgs args;
  args.inputs = floats_.row(0);
  args.input_stride = floats_.stride();
  args.begin_row = rows.begin;
  args.end_row = rows.end;
  args.begin_column = columns.begin;
  args.end_column = columns.end;
  args.depth = floats_.width();
  args.prepared = prepared_.data<char>();
  kernel.prepare(args);
}

}  // namespace tandem

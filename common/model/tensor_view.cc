#include "common/model/tensor_view.h"

#include <cassert>

#include "common/model/quantized_matrix.h"

namespace tandem {
namespace {

// What a row-major tensor's strides are, spelled out.
TensorView::Strides StridesOf(const TensorView& tensor) {
  if (tensor.strides.has_value()) return *tensor.strides;
  int64_t columns = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) columns *= tensor.shape[i];
  return {.group_rows = 1, .group_stride = columns, .row_stride = columns, .column_stride = 1};
}

TensorView From(const TensorView& tensor, int64_t element) {
  TensorView part = tensor;
  if (tensor.dtype == TensorView::DType::kQuantized) {
    part.quantized_begin += element;
    return part;
  }
  part.data = static_cast<const char*>(tensor.data) + tensor.offset_of(element);
  if (tensor.scales != nullptr) {
    part.scales = static_cast<const char*>(tensor.scales) + element / TensorView::kScaledNumbers;
  }
  return part;
}

}  // namespace

int64_t TensorView::row_begin(int64_t row) const {
  const Strides from = StridesOf(*this);
  if (from.paired_rows != 0) row = RowInPairs(row, from.paired_rows);
  return quantized_begin + row / from.group_rows * from.group_stride +
         row % from.group_rows * from.row_stride;
}

uint64_t TensorView::bytes_of(int64_t elements) const {
  if (dtype == DType::kQuantized) return quantized->bytes_of(elements);
  const int64_t scale_bytes = dtype == DType::kMxFp4 ? elements / kScaledNumbers : 0;
  return static_cast<uint64_t>(offset_of(elements) + scale_bytes);
}

int64_t RowInPairs(int64_t row, int64_t head_dim) {
  const int64_t half = head_dim / 2;
  const int64_t in_head = row % head_dim;
  return row - in_head + in_head % half * 2 + in_head / half;
}

TensorView RowsOf(const TensorView& tensor, int64_t begin, int64_t count) {
  const TensorView::Strides strides = StridesOf(tensor);
  assert(strides.paired_rows == 0 || (begin % strides.paired_rows == 0 && count % strides.paired_rows == 0));
  assert(strides.group_rows == 1 && begin >= 0 && begin + count <= tensor.shape[0]);
  TensorView part = From(tensor, begin * strides.group_stride);
  part.shape[0] = count;
  return part;
}

TensorView RowsOfGroups(const TensorView& tensor, int64_t group_rows, int64_t first, int64_t part_rows) {
  const TensorView::Strides strides = StridesOf(tensor);
  assert(strides.group_rows == 1 && tensor.shape[0] % group_rows == 0 && first + part_rows <= group_rows);
  assert(strides.paired_rows == 0);
  TensorView part = From(tensor, first * strides.group_stride);
  part.shape[0] = tensor.shape[0] / group_rows * part_rows;
  part.strides = {.group_rows = part_rows,
                  .group_stride = group_rows * strides.group_stride,
                  .row_stride = strides.group_stride,
                  .column_stride = strides.column_stride};
  return part;
}

TensorView MatrixOf(const TensorView& tensor, int64_t index) {
  assert(tensor.shape.size() >= 2 && !tensor.strides.has_value() && index < tensor.shape[0]);
  TensorView part = From(tensor, index * (tensor.num_elements() / tensor.shape[0]));
  part.shape.erase(part.shape.begin());
  return part;
}

TensorView TransposeOf(const TensorView& tensor) {
  assert(tensor.shape.size() == 2 && !tensor.strides.has_value());
  assert(tensor.dtype != TensorView::DType::kQuantized);
  TensorView transposed = tensor;
  transposed.shape = {tensor.shape[1], tensor.shape[0]};
  transposed.strides = {
      .group_rows = 1, .group_stride = 1, .row_stride = 1, .column_stride = tensor.shape[1]};
  return transposed;
}

}  // namespace tandem

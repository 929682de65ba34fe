#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace tandem {

// One tensor as it lies in the mapped file: not converted, not copied. Or a part of one: the matrix of all
// queries, say, in a tensor that has queries, keys and values of each head side by side.
struct TensorView {
  enum class DType { kF32, kF16, kBF16 };
  // Where rows (of a vector: elements) lie, in elements from `data`: row r begins at (r / group_rows) *
  // group_stride + r % group_rows * row_stride, and its elements are `column_stride` apart.
  struct Strides {
    int64_t group_rows = 1;
    int64_t group_stride = 0;
    int64_t row_stride = 0;
    int64_t column_stride = 1;
  };
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // Row-major, as in the file.
  const void* data = nullptr;  // May be unaligned. Never null for a tensor that exists, even an empty one.
  std::optional<Strides> strides;  // Of a part of at most two dimensions; else all is one block, row-major.

  bool exists() const { return data != nullptr; }
  int64_t element_bytes() const { return dtype == DType::kF32 ? 4 : 2; }

  // Never overflows for a view that a safetensors file handed out.
  int64_t num_elements() const {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    return count;
  }
  // num_elements() times the element size.
  uint64_t num_bytes() const {
    return static_cast<uint64_t>(num_elements()) * static_cast<uint64_t>(element_bytes());
  }
};

// Of a matrix [outputs, inputs], some outputs; or of a vector [outputs]. The caller has checked the range.
TensorView RowsOf(const TensorView& tensor, int64_t begin, int64_t count);
// Of a matrix or vector whose outputs come in groups of `group_rows`, the `part_rows` from `first` on of each
// group.
TensorView RowsOfGroups(const TensorView& tensor, int64_t group_rows, int64_t first, int64_t part_rows);
// A matrix [inputs, outputs] as [outputs, inputs].
TensorView TransposeOf(const TensorView& tensor);

// "[2, 3]", for messages.
inline std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace tandem

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace tandem {

class QuantizedMatrix;

// One tensor as it lies in the mapped file: not converted, not copied. Or a part of one: the matrix of all
// queries, say, in a tensor that has queries, keys and values of each head side by side.
struct TensorView {
  enum class DType {
    kF32,
    kF16,
    kBF16,
    // Numbers of 4 bits (a sign, two bits of exponent, one of mantissa), the first of two in the low ones,
    // and for each kScaledNumbers of a row a byte, the exponent of a power of two plus 127; 255 is not a
    // number (OCP Microscaling Formats, 2023). Rows are whole groups of these and their numbers side by side.
    kMxFp4,
    // Numbers that `quantized` makes of what the files hold when they are read.
    kQuantized,
  };
  static constexpr int64_t kScaledNumbers = 32;
  // Where rows (of a vector: elements) lie, in elements from `data`: row r begins at (r / group_rows) *
  // group_stride + r % group_rows * row_stride, and its elements are `column_stride` apart. Unless
  // `paired_rows` is 0, r is RowInPairs of it.
  struct Strides {
    int64_t group_rows = 1;
    int64_t group_stride = 0;
    int64_t row_stride = 0;
    int64_t column_stride = 1;
    int64_t paired_rows = 0;
  };
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;    // Row-major, as in the file.
  const void* data = nullptr;    // May be unaligned. Never null for a tensor that exists, even an empty one.
  const void* scales = nullptr;  // kMxFp4: [elements / kScaledNumbers], in the order of `data`.
  std::optional<Strides> strides;  // Of a part of at most two dimensions; else all is one block, row-major.
  // kQuantized: the matrix that this is or is rows of, from its element `quantized_begin` on. Positions count
  // from there, and `data`, which is the matrix' own, stays where it is.
  const QuantizedMatrix* quantized = nullptr;
  int64_t quantized_begin = 0;

  bool exists() const { return data != nullptr; }
  // So many elements further on, in bytes of `data`.
  int64_t offset_of(int64_t element) const {
    if (dtype == DType::kQuantized) return 0;
    return dtype == DType::kMxFp4 ? element / 2 : element * (dtype == DType::kF32 ? 4 : 2);
  }

  // Never overflows for a view that a safetensors file handed out.
  int64_t num_elements() const {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    return count;
  }
  // Where row `row` begins, in elements from `data`, or of kQuantized in the whole matrix.
  int64_t row_begin(int64_t row) const;
  // Of so many elements in the files, their scales included; of kQuantized in proportion.
  uint64_t bytes_of(int64_t elements) const;
  // Of all elements.
  uint64_t num_bytes() const { return bytes_of(num_elements()); }
};

// Which row of a file holds row `row` where of each `head_dim` rows the one in place 2j is the j-th, and that
// in place 2j + 1 the one half of them behind it: how GGUF files keep Llama's queries and keys.
int64_t RowInPairs(int64_t row, int64_t head_dim);

// Of a matrix [outputs, inputs], some outputs, of paired rows whole heads; or of a vector [outputs]. The
// caller has checked the range.
TensorView RowsOf(const TensorView& tensor, int64_t begin, int64_t count);
// Of a matrix or vector whose outputs come in groups of `group_rows`, the `part_rows` from `first` on of each
// group.
TensorView RowsOfGroups(const TensorView& tensor, int64_t group_rows, int64_t first, int64_t part_rows);
// Of a tensor [matrices, rows, columns] one matrix, or of a matrix one row as a vector.
TensorView MatrixOf(const TensorView& tensor, int64_t index);
// A matrix [inputs, outputs] as [outputs, inputs].
TensorView TransposeOf(const TensorView& tensor);

// "[2, 3]", for messages.
inline std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace tandem

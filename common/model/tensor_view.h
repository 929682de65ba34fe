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

// One tensor as stored in the mapped file: not converted, not copied. Or a part of one, for example the
// matrix of all queries in a tensor that holds queries, keys and values of each head side by side.
struct TensorView {
  enum class DType {
    kF32,
    kF16,
    kBF16,
    // Numbers of 4 bits (a sign, two bits of exponent, one of mantissa), the first of two in the low ones,
    // and for each kScaledNumbers of a row a byte, the exponent of a power of two plus 127; 255 is not a
    // number (OCP Microscaling Formats, 2023). Rows are whole groups of these and their numbers side by side.
    kMxFp4,
    // Numbers that `quantized` computes from the files when they are read.
    kQuantized,
  };
  static constexpr int64_t kScaledNumbers = 32;
  // The positions of rows (of a vector: elements), in elements from `data`: row r begins at (r / group_rows)
  // * group_stride + r % group_rows * row_stride, and its elements are `column_stride` apart. Unless
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
  // kQuantized: the matrix of which this is a part, from its element `quantized_begin` on. Positions count
  // from there; `data` stays that of the whole matrix.
  const QuantizedMatrix* quantized = nullptr;
  int64_t quantized_begin = 0;

  bool exists() const { return data != nullptr; }
  // The offset of an element, in bytes of `data`.
  int64_t offset_of(int64_t element) const {
    if (dtype == DType::kQuantized) return 0;
    return dtype == DType::kMxFp4 ? element / 2 : element * (dtype == DType::kF32 ? 4 : 2);
  }

  // Never overflows for a view from a safetensors file.
  int64_t num_elements() const {
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    return count;
  }
  // Where row `row` begins, in elements from `data`; for kQuantized, in the whole matrix.
  int64_t row_begin(int64_t row) const;
  // Bytes of `elements` elements in the files, including their scales; for kQuantized in proportion.
  uint64_t bytes_of(int64_t elements) const;
  // Bytes of all elements.
  uint64_t num_bytes() const { return bytes_of(num_elements()); }
};

// The row of the file that holds row `row`, in the order in which GGUF files store Llama's queries and keys:
// of each `head_dim` rows, the file's row 2j is row j, and row 2j + 1 is row j + head_dim / 2.
int64_t RowInPairs(int64_t row, int64_t head_dim);

// Some outputs of a matrix [outputs, inputs], whole heads if rows are paired; or of a vector [outputs]. The
// caller must check the range.
TensorView RowsOf(const TensorView& tensor, int64_t begin, int64_t count);
// Of a matrix or vector with outputs in groups of `group_rows`: `part_rows` of each group, from `first` on.
TensorView RowsOfGroups(const TensorView& tensor, int64_t group_rows, int64_t first, int64_t part_rows);
// One matrix of a tensor [matrices, rows, columns], or one row of a matrix as a vector.
TensorView MatrixOf(const TensorView& tensor, int64_t index);
// A matrix [inputs, outputs] as [outputs, inputs].
TensorView TransposeOf(const TensorView& tensor);

// "[2, 3]", for messages.
inline std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

}  // namespace tandem

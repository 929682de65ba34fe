#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// Transposes small blocks of numbers with instructions that every processor has: files store weights as rows
// of outputs, tiles store them as lines of inputs.

namespace tandem {

// lines[j][i] = rows[i][j], for 16 rows and 16 lines of words. Rows are `row_stride` words apart, lines
// `line_stride` words.
inline void TransposeWords(const uint32_t* rows, size_t row_stride, uint32_t* lines, size_t line_stride) {
  typedef uint32_t Vector __attribute__((vector_size(16)));
  for (size_t column = 0; column < 16; column += 4) {
    for (size_t row = 0; row < 16; row += 4) {
      Vector in[4];
      for (size_t i = 0; i < 4; ++i) std::memcpy(&in[i], rows + (row + i) * row_stride + column, 16);
      const Vector low0 = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      const Vector low1 = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
      const Vector high0 = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
      const Vector high1 = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
      const Vector out[4] = {__builtin_shufflevector(low0, low1, 0, 1, 4, 5),
                             __builtin_shufflevector(low0, low1, 2, 3, 6, 7),
                             __builtin_shufflevector(high0, high1, 0, 1, 4, 5),
                             __builtin_shufflevector(high0, high1, 2, 3, 6, 7)};
      for (size_t i = 0; i < 4; ++i) std::memcpy(lines + (column + i) * line_stride + row, &out[i], 16);
    }
  }
}

// The same for 16 rows and 16 lines of bytes.
inline void TransposeBytes(const uint8_t* rows, size_t row_stride, uint8_t* lines, size_t line_stride) {
  typedef uint8_t Vector __attribute__((vector_size(16)));
  Vector block[16];
  for (size_t i = 0; i < 16; ++i) std::memcpy(&block[i], rows + i * row_stride, 16);
  // Each stage moves the highest bit of a byte's row number to the lowest bit of its column number, and the
  // column's highest bit to the row's lowest.
  for (int stage = 0; stage < 4; ++stage) {
    Vector next[16];
    for (size_t i = 0; i < 8; ++i) {
      next[2 * i] = __builtin_shufflevector(block[i], block[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                            6, 22, 7, 23);
      next[2 * i + 1] = __builtin_shufflevector(block[i], block[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28,
                                                13, 29, 14, 30, 15, 31);
    }
    std::memcpy(block, next, sizeof(block));
  }
  for (size_t i = 0; i < 16; ++i) std::memcpy(lines + i * line_stride, &block[i], 16);
}

}  // namespace tandem

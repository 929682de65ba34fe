#pragma once

#include <cstddef>
#include <cstdint>

// The arithmetic of the CPU engine, once per instruction set, as plain functions over plain pointers.
//
// Every function gives the same bits on every instruction set, because each result is defined as one sequence
// of correctly rounded float32 operations (add, multiply, divide, square root, fused multiply-add):
//
//   products      one chain of fused multiply-adds over k ascending, from 0
//   sums          16 partial sums, element i in partial sum i % 16, then halves added: 16 -> 8 -> 4 -> 2 -> 1
//   exponential   one fixed polynomial
//
// This file is read by sources that are compiled for one instruction set, so it includes nothing that defines
// inline functions: the linker could pick their copy for everybody.

namespace tandem {

// Outputs per tile of a packed matrix, see packed_matrix.h.
inline constexpr uint32_t kTileOutputs = 32;
// Of the partial sums above, and of the vectors the kernels are written in.
inline constexpr uint32_t kLanes = 16;
// How many heads that share keys and values attention takes through them together.
inline constexpr uint32_t kMaxHeadsAtOnce = 4;

// outputs[row][n] = sum over k of inputs[row][k] * weight[n][k], for the outputs of `num_tiles` tiles.
struct ProductArgs {
  const void* tiles = nullptr;  // The first tile: [num_tiles][depth][kTileOutputs], see packed_matrix.h.
  uint32_t num_tiles = 0;
  uint32_t depth = 0;
  const float* inputs = nullptr;  // [num_rows, depth], rows `input_stride` floats apart.
  size_t input_stride = 0;
  uint32_t num_rows = 0;
  float* const* outputs = nullptr;  // One pointer per row, to its output 0.
  uint32_t first_output = 0;        // The first tile's first output.
  uint32_t end_output = 0;          // Outputs from here on are padding and not stored.
};

// softmax(scale * q k) v for `num_heads` query heads that share keys and values: position p of the context is
// in block blocks[p / 16] at offset p % 16 below num_committed, then in slot tail[p - num_committed].
struct AttentionArgs {
  const float* queries = nullptr;  // [num_heads, head_dim]
  uint32_t num_heads = 0;
  uint32_t head_dim = 0;
  float scale = 1.0f;
  const float* keys =
      nullptr;  // [num_blocks][head_dim][16] of one head, blocks `key_block_stride` floats apart.
  const float* values = nullptr;  // [num_blocks][16][value_stride], likewise.
  size_t key_block_stride = 0;
  size_t value_block_stride = 0;
  size_t value_stride = 0;  // head_dim rounded up to kLanes; the padding holds numbers.
  const uint32_t* blocks = nullptr;
  uint32_t num_committed = 0;
  const uint32_t* tail = nullptr;
  uint32_t num_tail = 0;
  uint32_t first_position = 0;  // Positions before it are not attended to (sliding window).
  float* scores = nullptr;      // Scratch, [kMaxHeadsAtOnce, score_stride].
  size_t score_stride = 0;      // At least num_committed + num_tail + 2 * kLanes.
  float* tail_keys = nullptr;   // Scratch, [head_dim][16].
  float* outputs = nullptr;     // [num_heads, head_dim]
};

struct KernelTable {
  const char* name = nullptr;
  void (*multiply_bf16)(const ProductArgs& args) = nullptr;
  void (*multiply_f32)(const ProductArgs& args) = nullptr;
  // output[i] = weight[i] * (input[i] / sqrt(mean of squares + epsilon)); `output` may be `input`.
  void (*rms_norm)(const float* input, const float* weight, size_t size, float epsilon,
                   float* output) = nullptr;
  // gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
  void (*silu_multiply)(const float* up, size_t size, float* gate) = nullptr;
  // sum[i] += addend[i]
  void (*add)(const float* addend, size_t size, float* sum) = nullptr;
  // values[i] = exp(values[i])
  void (*exponential)(size_t size, float* values) = nullptr;
  void (*attend)(const AttentionArgs& args) = nullptr;
};

const KernelTable& PortableKernels();
const KernelTable& Avx2Kernels();    // Defined on x86-64; needs AVX2 and FMA.
const KernelTable& Avx512Kernels();  // Defined on x86-64; needs AVX-512 F, BW, DQ and VL.

}  // namespace tandem

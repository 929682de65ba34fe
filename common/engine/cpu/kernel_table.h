#pragma once

#include <cstddef>
#include <cstdint>

// The arithmetic of the CPU engine, once per instruction set, as plain functions over plain pointers.
//
// Every result is defined as one sequence of correctly rounded float32 operations (add, multiply, divide,
// square root, fused multiply-add). So it does not depend on how many rows are computed together. It does not
// depend on the instruction set either, except for products with bfloat16 weights on some sets (below):
//
//   products      one chain of fused multiply-adds over k ascending, from 0
//   sums          16 partial sums, element i in partial sum i % 16, then halves added: 16 -> 8 -> 4 -> 2 -> 1
//   exponential   one fixed polynomial
//   attention     see attention_templates.h
//
// On `amx`, `avx512-bf16` and `portable-bf16`, products with bfloat16 weights are products of bfloat16 pairs.
// An input is rounded to bfloat16 (the nearest, ties to even), which keeps 8 of its 24 significant bits. For
// each 32 inputs (the last ones padded with zeros) there are two chains of fused multiply-adds from 0, over
// even and over odd k ascending, and
//
//   output = output + (sum over even k + sum over odd k), from 0
//
// Numbers below the normal range, in inputs, weights and results, become zeros with their sign. This is the
// documented behaviour of AMX's TDPBF16PS; product_arithmetic.h tells which kernels have it on a machine.
//
// `neon-i8mm` takes an input as the sum of two bfloat16 numbers, which keeps 16 bits, and adds up 4 terms at
// a time; see kernels_neon_bf16.cc.
//
// Products with weights of 8 or 4 bits are the same on every instruction set. The depth is divided into
// groups of kInputGroup inputs (the last padded with zeros). A group of weights of one output is integers and
// a scale that bfloat16 can hold (weight_quantizer.h). A group of inputs of one row is rounded to 15 bits.
// With `greatest` the greatest magnitude in it,
//
//   input[k] = round(x[k] * (kGreatestInput / greatest))   one division, one product rounded once, ties to
//                                                          even: at most kGreatestInput in magnitude
//   input scale = greatest / kGreatestInput
//
// If `greatest` is below 2^-100, the group counts as zeros with scale 0. If an input is not finite, the scale
// is NaN. Each group has an exact sum of integers (below 2^27). One chain per output adds them up, groups
// ascending:
//
//   output = fma(float(sum over k of weight[k] * input[k]), weight scale * input scale, output), from 0
//
// Products in the formats kCoded... have the bits of products in kF32 with the numbers that the codes mean.
//
// Products in the format kFileCodes take the codes and scales of a file unchanged, and inputs of 8 bits. A
// group is 32 inputs (the last padded with zeros), and has one part, or two if the format is fine. Inputs are
// rounded as above, with kGreatestShortInput, for each group. One chain per output adds up the parts,
// ascending:
//
//   output = fma(float(sum over k of code[k] * input[k]), scale * input scale, output), from 0
//   output = fma(-minimum, input scale * float(sum over k of input[k]), output)
//
// where codes smaller than 8 bits are not negative, and what was added to their values is part of the
// minimum: (zero point * scale) + the file's minimum, if the format has them.
//
// The formats kW8A8 and kW4A8 use kGreatestShortInput in place of kGreatestInput: inputs of 8 bits.
//
// Sources that are compiled for one instruction set include this file. So it includes nothing that defines
// inline functions: the linker could use their copy of such a function for the whole program.

namespace tandem {

// Outputs per tile of a packed matrix, see packed_matrix.h.
inline constexpr uint32_t kTileOutputs = 32;
// The number of partial sums above, and of lanes in the kernels' vectors.
inline constexpr uint32_t kLanes = 16;
// Inputs are prepared in whole groups of this many columns, except for the last one.
inline constexpr uint32_t kInputGroup = 64;
// Products may begin at a row that is a multiple of this: its prepared inputs follow the bytes of the rows
// before.
inline constexpr uint32_t kRowAlignment = 32;

// The greatest magnitude of an input as an integer: 127 * 128, so that it is 128 times one 8-bit integer plus
// another.
inline constexpr int kGreatestInput = 16256;
inline constexpr int kGreatestShortInput = 127;

// How the weights of a matrix are stored.
enum class WeightFormat : uint8_t {
  kF32,
  kBf16,
  kInt8,
  kInt4,
  kW8A8,
  kW4A8,
  // As quantised files have them; see coded_layouts.h.
  kCoded4,
  kCoded4Minimum,
  kCoded8,
  kCoded8Minimum,
  kCoded8Fine,
  kCoded8FineMinimum,
  kCodedFloat8,
  // The codes and scales of quantised files, for integer products; see file_code_layout.h.
  kFileCodes,
};
inline constexpr uint32_t kNumWeightFormats = 14;

// How kFileCodes stores the numbers of a matrix: value * scale - minimum (common/model/coded_rows.h).
enum class CodeScales : uint8_t { kFloat, kHalf, kBfloat16, kUnits };
struct FileCodeFormat {
  uint8_t bits = 8;      // 2, 3, 4, 5, 6 or 8
  bool is_fine = false;  // A scale for each 16 inputs, else 32.
  bool has_minimums = false;
  bool has_zero_point = false;  // Codes are value + 2^(bits - 1), else the values themselves.
  CodeScales scales = CodeScales::kFloat;
};

// The numbers of a tile's outputs as integers or small floats (common/model/coded_rows.h). Every 16 numbers
// of an output have a scale, a minimum and, for 4-bit values, a zero point, which makes values 0 to 15.
// Missing outputs are all zeros.
struct CodedOutputs {
  const int8_t* values = nullptr;  // [kTileOutputs][depth]
  const int8_t* zeros = nullptr;   // [kTileOutputs][depth / 16], rounded up, as the others.
  const float* scales = nullptr;
  const float* minimums = nullptr;
};

// The numbers of a tile's outputs as stored in files: [depth] of each, at any address.
struct PlainOutputs {
  enum class Kind : uint8_t { kF32, kF16, kBF16 };
  Kind kind = Kind::kF32;
  const char* outputs[kTileOutputs] = {};
};
// Whole tiles of plain numbers are packed this many inputs at a time.
inline constexpr uint32_t kPackedInputs = 32;

// The layout of a tile of kTileOutputs outputs in memory. This code runs on every processor: once per weight,
// when a model is loaded, and for the embedding of a token.
struct WeightLayout {
  uint64_t (*tile_bytes)(uint32_t depth) = nullptr;
  // Writes the weights [depth] of output `output` of the tile, which must be zero before, or reads them back.
  // Reading returns the numbers that a product multiplies by.
  void (*pack)(const float* weights, uint32_t depth, uint32_t output, void* tile) = nullptr;
  // The same for all outputs at once, for inputs [begin, end), multiples of kPackedInputs. Null if the format
  // has no such function. bfloat16 formats take numbers that bfloat16 can hold, in bfloat16 or float32.
  void (*pack_tile)(const PlainOutputs& weights, uint32_t begin, uint32_t end, void* tile) = nullptr;
  // Replaces both for the formats kCoded.... kFileCodes has no layout of its own: see file_code_tiles.h.
  void (*pack_codes)(const CodedOutputs& weights, uint32_t depth, void* tile) = nullptr;
  void (*unpack)(const void* tile, uint32_t depth, uint32_t output, float* weights) = nullptr;
};

// Columns [begin_column, end_column) of rows [begin_row, end_row) of `inputs`, to be prepared for products.
// begin_column is a multiple of kInputGroup, and so is end_column unless it is `depth`.
struct PrepareArgs {
  const float* inputs = nullptr;  // Row 0; rows are `input_stride` floats apart.
  size_t input_stride = 0;
  uint32_t begin_row = 0;
  uint32_t end_row = 0;
  uint32_t begin_column = 0;
  uint32_t end_column = 0;
  uint32_t depth = 0;
  void* prepared = nullptr;
};

// outputs[row][n] = sum over k of inputs[row][k] * weight[n][k], for the outputs of `num_tiles` tiles.
struct ProductArgs {
  const void* tiles = nullptr;  // The first of the tiles, which follow one another.
  FileCodeFormat codes;         // Only for kFileCodes.
  uint32_t num_tiles = 0;
  uint32_t depth = 0;
  const float* inputs = nullptr;  // [num_rows, depth], rows `input_stride` floats apart.
  size_t input_stride = 0;
  const void* prepared = nullptr;  // The same rows, for kernels that prepare their inputs.
  uint32_t num_rows = 0;
  float* const* outputs = nullptr;  // One pointer per row, to its output 0.
  uint32_t first_output = 0;        // The first tile's first output.
  uint32_t end_output = 0;          // Outputs from here on are padding and not stored.
};

// Products with weights of one format.
struct ProductKernel {
  WeightLayout layout;
  // The significant bits of an input that count: 24 if inputs are multiplied unchanged.
  uint32_t input_bits = 24;
  // How to prepare inputs for a product, and in how many bytes. Null if a product reads unprepared inputs.
  // Kernels with the same `prepare` can use one another's prepared inputs.
  uint64_t (*prepared_bytes)(uint32_t max_rows, uint32_t depth) = nullptr;
  void (*prepare)(const PrepareArgs& args) = nullptr;
  void (*multiply)(const ProductArgs& args) = nullptr;
};

struct AttentionArgs;  // attention_args.h

inline constexpr uint32_t kNumActivationKernels = 4;

struct KernelTable {
  const char* name = nullptr;
  ProductKernel products[kNumWeightFormats];  // By WeightFormat.
  // output[i] = weight[i] * (input[i] / sqrt(mean of squares + epsilon)); `output` may be `input`.
  void (*rms_norm)(const float* input, const float* weight, size_t size, float epsilon,
                   float* output) = nullptr;
  // output[i] = weight[i] * ((input[i] - mean) / sqrt(mean of (input - mean)^2 + epsilon)) + bias[i];
  // `output` may be `input`.
  void (*layer_norm)(const float* input, const float* weight, const float* bias, size_t size, float epsilon,
                     float* output) = nullptr;
  // values[i] = f(values[i]), by Activation (common/model/config/architecture.h).
  void (*activations[kNumActivationKernels])(size_t size, float* values) = {};
  // gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i]
  void (*silu_multiply)(const float* up, size_t size, float* gate) = nullptr;
  // sum[i] += addend[i]
  void (*add)(const float* addend, size_t size, float* sum) = nullptr;
  // product[i] *= factor[i]
  void (*multiply)(const float* factor, size_t size, float* product) = nullptr;
  // values[i] *= factor
  void (*scale)(float factor, size_t size, float* values) = nullptr;
  // values[i] = cap * tanh(values[i] / cap), to 1e-7 of the cap.
  void (*cap)(float cap, size_t size, float* values) = nullptr;
  // values[i] = exp(values[i])
  void (*exponential)(size_t size, float* values) = nullptr;
  void (*attend)(const AttentionArgs& args) = nullptr;
};

const KernelTable& PortableKernels();
const KernelTable& PortableBf16Kernels();  // Products of bfloat16 pairs; the rest is the same.
const KernelTable& Avx2Kernels();          // Defined on x86-64; needs AVX2, FMA and F16C.
const KernelTable& Avx512Kernels();        // Defined on x86-64; needs AVX-512 F, BW, DQ and VL.
// Also needs AVX-512 VNNI, for products with weights of 8 and 4 bits. The rest is the same.
const KernelTable& Avx512VnniKernels();
// Also needs AVX-512 BF16 and VNNI. Products of bfloat16 pairs use VDPBF16PS, or float32 multiply-adds.
const KernelTable& Avx512Bf16Kernels();
const KernelTable& Avx512Bf16MultiplyAddKernels();
const KernelTable& AmxKernels();       // Also needs AVX-512 BF16, VNNI and AMX with tiles, BF16 and INT8.
const KernelTable& NeonKernels();      // Defined on 64-bit Arm.
const KernelTable& NeonBf16Kernels();  // Also needs the bfloat16 extension (FEAT_BF16).
// Also needs the matrix instructions for 8-bit integers (FEAT_I8MM), for products with weights of 8 and 4
// bits. The rest is the same.
const KernelTable& NeonI8mmKernels();

}  // namespace tandem

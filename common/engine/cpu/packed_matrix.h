#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/cpu/product_inputs.h"
#include "common/engine/cpu/thread_team.h"
#include "common/model/coded_rows.h"
#include "common/model/model.h"

namespace tandem {

// A weight matrix [outputs, depth] laid out as the products of one instruction set read it: tiles of
// kTileOutputs outputs, one after the other, each contiguous, so that a product over some tiles is one
// contiguous read. Outputs beyond the last are 0.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // The format that holds all of `parts` without rounding: bfloat16 if it holds all their numbers, integers
  // if all are quantised and have a common Coding, otherwise float32. Products with integers are exact unless
  // `rounds_inputs` allows kFileCodes.
  static WeightFormat FormatOf(absl::Span<const TensorView> parts, bool rounds_inputs);

  // The bytes of a matrix like `part`, if it were all of a matrix in `format`.
  static uint64_t BytesOf(const TensorView& part, WeightFormat format, const KernelTable& kernels);

  // Stacks `parts`, each [outputs, depth] with the same depth. `format` is theirs, or integers for any
  // numbers. With kFileCodes each part keeps its own codes, if tiles divide the parts. They are only read
  // during the call. ResourceExhausted without memory. `kernels` lives
  // forever.
  static absl::StatusOr<PackedMatrix> Pack(absl::Span<const TensorView> parts, WeightFormat format,
                                           const KernelTable& kernels, ThreadTeam* team);

  uint32_t num_outputs() const { return num_outputs_; }
  uint32_t depth() const { return depth_; }
  uint32_t num_tiles() const { return NumTiles(num_outputs_); }
  size_t num_bytes() const { return data_.num_bytes(); }
  WeightFormat format() const { return format_; }
  // The kernel of its products, for which inputs must be prepared.
  const ProductKernel& kernel() const { return *kernel_; }

  // The outputs of these tiles.
  Share OutputsOf(Share tiles) const {
    const uint32_t end = tiles.end * kTileOutputs < num_outputs_ ? tiles.end * kTileOutputs : num_outputs_;
    return {tiles.begin * kTileOutputs < end ? tiles.begin * kTileOutputs : end, end};
  }

  // outputs[row][n] for the outputs of tiles `tiles.begin` to `tiles.end` and some rows of `inputs`. If
  // inputs are prepared, the first row is a multiple of kRowAlignment (ProductArgs).
  void Multiply(Share tiles, const ProductInputs& inputs, Share rows, float* const* outputs) const;
  // The same for the first `num_rows` rows.
  void Multiply(Share tiles, const ProductInputs& inputs, uint32_t num_rows, float* const* outputs) const {
    Multiply(tiles, inputs, Share{0, num_rows}, outputs);
  }

  // outputs[row][0 ..] for the outputs of these tiles, and inputs [num_rows, depth], rows `stride` floats
  // apart. Only for kF32, which takes unprepared inputs.
  void MultiplyFloats(Share tiles, const float* inputs, size_t stride, uint32_t num_rows,
                      float* const* outputs) const;

  // The weights of one output, [depth]: a row of the packed matrix, with integers' rounding.
  void CopyOutput(uint32_t output, float* weights) const;

 private:
  static uint32_t NumTiles(uint32_t outputs) { return (outputs + kTileOutputs - 1) / kTileOutputs; }

  // Tiles that follow one another and have the same size.
  struct Run {
    Share tiles;
    FileCodeFormat codes;
    uint64_t tile_bytes = 0;
    uint64_t offset = 0;  // Of the first one.
  };
  void SetRuns(absl::Span<const TensorView> parts);
  const Run& RunOf(uint32_t tile) const;
  const char* tile(const Run& run, uint32_t index) const {
    return data_.data<char>() + run.offset + (index - run.tiles.begin) * run.tile_bytes;
  }
  char* tile(const Run& run, uint32_t index) {
    return data_.data<char>() + run.offset + (index - run.tiles.begin) * run.tile_bytes;
  }
  // Some outputs of a part, and their place in a tile.
  struct Piece {
    const TensorView* part = nullptr;
    int64_t first = 0;
    uint32_t count = 0;
    uint32_t place = 0;
  };
  // A thread's memory while it packs.
  struct Scratch {
    std::optional<CodedRows> codes;
    std::vector<float> numbers;
  };

  void PackTile(absl::Span<const TensorView> parts, uint32_t tile, Scratch* scratch);
  void PackEach(absl::Span<const Piece> pieces, Scratch* scratch, char* tile) const;
  void PackWhole(absl::Span<const Piece> pieces, Scratch* scratch, char* tile) const;
  void PackCodes(absl::Span<const Piece> pieces, const Run& run, Scratch* scratch, char* tile) const;

  WeightFormat format_ = WeightFormat::kF32;
  const ProductKernel* kernel_ = nullptr;
  uint32_t num_outputs_ = 0;
  uint32_t depth_ = 0;
  std::vector<Run> runs_;
  AlignedBuffer data_;
};

}  // namespace tandem

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/aligned_buffer.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/cpu/thread_team.h"
#include "common/model/model.h"

namespace tandem {

// A weight matrix [outputs, depth] laid out as products read it: tiles of kTileOutputs outputs, and in a tile
// one line per k, [num_tiles][depth][kTileOutputs], so that a product over a tile is one contiguous read,
// with the vector lanes running over outputs. Outputs beyond the last are 0.
//
// bfloat16 stays bfloat16. Element 2 i of its line is output i, element 2 i + 1 output i + 16: then one shift
// and one mask of 32-bit lanes make two vectors of floats. Half and float32 files are kept as float32,
// nothing being rounded.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // Stacks `parts`, each [outputs, depth] with one depth, on top of one another. They are read during the
  // call only. ResourceExhausted without memory.
  static absl::StatusOr<PackedMatrix> Pack(absl::Span<const TensorView> parts, ThreadTeam* team);

  uint32_t num_outputs() const { return num_outputs_; }
  uint32_t depth() const { return depth_; }
  uint32_t num_tiles() const { return (num_outputs_ + kTileOutputs - 1) / kTileOutputs; }
  size_t num_bytes() const { return data_.num_bytes(); }

  // outputs[row][n] for the outputs of tiles `tiles.begin` to `tiles.end`; see ProductArgs.
  void Multiply(const KernelTable& kernels, Share tiles, const float* inputs, size_t input_stride,
                uint32_t num_rows, float* const* outputs) const;

  // The weights of one output, [depth]: a row of the matrix that was packed.
  void CopyOutput(uint32_t output, float* weights) const;

 private:
  void PackTile(absl::Span<const TensorView> parts, uint32_t tile);

  bool bf16_ = false;
  uint32_t num_outputs_ = 0;
  uint32_t depth_ = 0;
  AlignedBuffer data_;
};

}  // namespace tandem

#include "common/engine/cpu/packed_matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/status_macros.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

// Where in a bfloat16 line the tile's output `i` is.
constexpr uint32_t PairedIndex(uint32_t i) {
  return i < kLanes ? 2 * i : 2 * (i - kLanes) + 1;
}

}  // namespace

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(absl::Span<const TensorView> parts, ThreadTeam* team) {
  PackedMatrix matrix;
  matrix.bf16_ = true;
  matrix.depth_ = static_cast<uint32_t>(parts.front().shape.at(1));
  for (const TensorView& part : parts) {
    matrix.num_outputs_ += static_cast<uint32_t>(part.shape.at(0));
    matrix.bf16_ &= part.dtype == TensorView::DType::kBF16;
  }
  TANDEM_ASSIGN_OR_RETURN(
      matrix.data_, AlignedBuffer::Allocate(uint64_t{matrix.num_tiles()} * kTileOutputs * matrix.depth_,
                                            matrix.bf16_ ? sizeof(uint16_t) : sizeof(float), "weights"));
  team->Run([&](int thread) {
    const Share share = ShareOf(matrix.num_tiles(), thread, team->num_threads());
    for (uint32_t tile = share.begin; tile < share.end; ++tile) matrix.PackTile(parts, tile);
  });
  return matrix;
}

void PackedMatrix::PackTile(absl::Span<const TensorView> parts, uint32_t tile) {
  const size_t tile_offset = size_t{tile} * depth_ * kTileOutputs;
  const uint32_t begin = tile * kTileOutputs;
  const uint32_t end = std::min(begin + kTileOutputs, num_outputs_);
  std::vector<float> converted(bf16_ ? 0 : depth_);
  uint32_t part_begin = 0;
  for (const TensorView& part : parts) {
    const uint32_t part_end = part_begin + static_cast<uint32_t>(part.shape[0]);
    for (uint32_t output = std::max(begin, part_begin); output < std::min(end, part_end); ++output) {
      const uint32_t row = output - part_begin;
      if (bf16_) {
        // The file's data may lie at any address.
        const char* from = static_cast<const char*>(part.data) + size_t{row} * depth_ * sizeof(uint16_t);
        uint16_t* to = data_.data<uint16_t>() + tile_offset + PairedIndex(output - begin);
        for (uint32_t k = 0; k < depth_; ++k) {
          std::memcpy(to + size_t{k} * kTileOutputs, from + size_t{k} * sizeof(uint16_t), sizeof(uint16_t));
        }
      } else {
        ConvertRowsToFloat(part, row, 1, absl::MakeSpan(converted));
        float* to = data_.data<float>() + tile_offset + (output - begin);
        for (uint32_t k = 0; k < depth_; ++k) to[size_t{k} * kTileOutputs] = converted[k];
      }
    }
    part_begin = part_end;
  }
}

void PackedMatrix::Multiply(const KernelTable& kernels, Share tiles, const float* inputs, size_t input_stride,
                            uint32_t num_rows, float* const* outputs) const {
  if (tiles.begin == tiles.end || num_rows == 0) return;
  ProductArgs args;
  args.num_tiles = tiles.end - tiles.begin;
  args.depth = depth_;
  args.inputs = inputs;
  args.input_stride = input_stride;
  args.num_rows = num_rows;
  args.outputs = outputs;
  args.first_output = tiles.begin * kTileOutputs;
  args.end_output = num_outputs_;
  const size_t offset = size_t{tiles.begin} * depth_ * kTileOutputs;
  if (bf16_) {
    args.tiles = data_.data<uint16_t>() + offset;
    kernels.multiply_bf16(args);
  } else {
    args.tiles = data_.data<float>() + offset;
    kernels.multiply_f32(args);
  }
}

void PackedMatrix::CopyOutput(uint32_t output, float* weights) const {
  const size_t tile_offset = size_t{output / kTileOutputs} * depth_ * kTileOutputs;
  const uint32_t i = output % kTileOutputs;
  if (bf16_) {
    const uint16_t* from = data_.data<uint16_t>() + tile_offset + PairedIndex(i);
    for (uint32_t k = 0; k < depth_; ++k) {
      weights[k] = std::bit_cast<float>(static_cast<uint32_t>(from[size_t{k} * kTileOutputs]) << 16);
    }
  } else {
    const float* from = data_.data<float>() + tile_offset + i;
    for (uint32_t k = 0; k < depth_; ++k) weights[k] = from[size_t{k} * kTileOutputs];
  }
}

}  // namespace tandem

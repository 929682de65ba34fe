#include "common/engine/cpu/packed_matrix.h"

#include <algorithm>
#include <cassert>

#include "common/base/status_macros.h"
#include "common/model/tensor_convert.h"

namespace tandem {

WeightFormat PackedMatrix::FormatOf(absl::Span<const TensorView> parts) {
  for (const TensorView& part : parts) {
    // bfloat16 holds MXFP4's numbers as they are.
    if (part.dtype != TensorView::DType::kBF16 && part.dtype != TensorView::DType::kMxFp4) {
      return WeightFormat::kF32;
    }
  }
  return WeightFormat::kBf16;
}

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(absl::Span<const TensorView> parts, WeightFormat format,
                                                const KernelTable& kernels, ThreadTeam* team) {
  PackedMatrix matrix;
  matrix.format_ = format;
  matrix.depth_ = static_cast<uint32_t>(parts.front().shape.at(1));
  for (const TensorView& part : parts) {
    matrix.num_outputs_ += static_cast<uint32_t>(part.shape.at(0));
  }
  matrix.kernel_ = &kernels.products[static_cast<size_t>(matrix.format_)];
  matrix.tile_bytes_ = matrix.kernel_->layout.tile_bytes(matrix.depth_);
  TANDEM_ASSIGN_OR_RETURN(matrix.data_,
                          AlignedBuffer::Allocate(matrix.num_tiles(), matrix.tile_bytes_, "weights"));
  team->Run([&](int thread) {
    const Share share = ShareOf(matrix.num_tiles(), thread, team->num_threads());
    for (uint32_t tile = share.begin; tile < share.end; ++tile) matrix.PackTile(parts, tile);
  });
  return matrix;
}

void PackedMatrix::PackTile(absl::Span<const TensorView> parts, uint32_t tile) {
  char* const to = data_.data<char>() + tile * tile_bytes_;
  const uint32_t begin = tile * kTileOutputs;
  const uint32_t end = std::min(begin + kTileOutputs, num_outputs_);
  std::vector<float> weights;
  uint32_t part_begin = 0;
  for (const TensorView& part : parts) {
    const uint32_t part_end = part_begin + static_cast<uint32_t>(part.shape[0]);
    // Codes of outputs that lie side by side are read together.
    const uint32_t most = part.dtype == TensorView::DType::kQuantized ? kTileOutputs : 1;
    for (uint32_t output = std::max(begin, part_begin); output < std::min(end, part_end);) {
      const uint32_t count = std::min({most, end - output, part_end - output});
      weights.resize(size_t{count} * depth_);
      ConvertRowsToFloat(part, output - part_begin, count, absl::MakeSpan(weights));
      for (uint32_t i = 0; i < count; ++i, ++output) {
        kernel_->layout.pack(weights.data() + size_t{i} * depth_, depth_, output - begin, to);
      }
    }
    part_begin = part_end;
  }
}

void PackedMatrix::Multiply(Share tiles, const ProductInputs& inputs, Share rows,
                            float* const* outputs) const {
  if (tiles.begin == tiles.end || rows.begin == rows.end) return;
  ProductArgs args;
  args.tiles = tile(tiles.begin);
  args.num_tiles = tiles.end - tiles.begin;
  args.depth = depth_;
  args.inputs = inputs.floats().row(rows.begin);
  args.input_stride = inputs.floats().stride();
  args.prepared = inputs.prepared(*kernel_, rows.begin);
  args.num_rows = rows.end - rows.begin;
  args.outputs = outputs + rows.begin;
  args.first_output = tiles.begin * kTileOutputs;
  args.end_output = num_outputs_;
  kernel_->multiply(args);
}

void PackedMatrix::MultiplyFloats(Share tiles, const float* inputs, size_t stride, uint32_t num_rows,
                                  float* const* outputs) const {
  assert(kernel_->prepare == nullptr);
  ProductArgs args;
  args.tiles = tile(tiles.begin);
  args.num_tiles = tiles.end - tiles.begin;
  args.depth = depth_;
  args.inputs = inputs;
  args.input_stride = stride;
  args.num_rows = num_rows;
  args.outputs = outputs;
  args.end_output =
      std::min(tiles.end * kTileOutputs, num_outputs_) - std::min(tiles.begin * kTileOutputs, num_outputs_);
  kernel_->multiply(args);
}

void PackedMatrix::CopyOutput(uint32_t output, float* weights) const {
  kernel_->layout.unpack(tile(output / kTileOutputs), depth_, output % kTileOutputs, weights);
}

}  // namespace tandem

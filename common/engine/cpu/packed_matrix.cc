#include "common/engine/cpu/packed_matrix.h"

#include <algorithm>
#include <cassert>

#include "common/base/status_macros.h"
#include "common/model/quantized_matrix.h"
#include "common/model/tensor_convert.h"

namespace tandem {

namespace {

bool IsQuantized(const TensorView& part) {
  return part.dtype == TensorView::DType::kQuantized;
}

WeightFormat CodedFormatOf(const Coding& coding) {
  if (coding.is_float) return WeightFormat::kCodedFloat8;
  if (coding.has_four_bits && !coding.is_fine) {
    return coding.has_minimums ? WeightFormat::kCoded4Minimum : WeightFormat::kCoded4;
  }
  if (coding.is_fine) {
    return coding.has_minimums ? WeightFormat::kCoded8FineMinimum : WeightFormat::kCoded8Fine;
  }
  return coding.has_minimums ? WeightFormat::kCoded8Minimum : WeightFormat::kCoded8;
}

}  // namespace

WeightFormat PackedMatrix::FormatOf(absl::Span<const TensorView> parts) {
  if (std::all_of(parts.begin(), parts.end(), IsQuantized)) {
    Coding coding = parts.front().quantized->coding();
    for (const TensorView& part : parts) coding = Join(coding, part.quantized->coding());
    return coding.is_coded ? CodedFormatOf(coding) : WeightFormat::kF32;
  }
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
  uint32_t part_begin = 0;
  for (const TensorView& part : parts) {
    const uint32_t part_end = part_begin + static_cast<uint32_t>(part.shape[0]);
    const uint32_t first = std::max(begin, part_begin), last = std::min(end, part_end);
    if (first < last) {
      const auto pack =
          kernel_->layout.pack_codes != nullptr ? &PackedMatrix::PackCodes : &PackedMatrix::PackNumbers;
      (this->*pack)(part, first - part_begin, last - first, first - begin, to);
    }
    part_begin = part_end;
  }
}

void PackedMatrix::PackNumbers(const TensorView& part, int64_t first, uint32_t count, uint32_t place,
                               char* tile) const {
  // Codes of outputs that lie side by side are read together.
  const uint32_t most = IsQuantized(part) ? kTileOutputs : 1;
  std::vector<float> weights(size_t{std::min(most, count)} * depth_);
  for (uint32_t done = 0; done < count;) {
    const uint32_t now = std::min(most, count - done);
    ConvertRowsToFloat(part, first + done, now, absl::MakeSpan(weights).first(size_t{now} * depth_));
    for (uint32_t i = 0; i < now; ++i, ++done) {
      kernel_->layout.pack(weights.data() + size_t{i} * depth_, depth_, place + done, tile);
    }
  }
}

void PackedMatrix::PackCodes(const TensorView& part, int64_t first, uint32_t count, uint32_t place,
                             char* tile) const {
  const auto pack = [&](const CodedRows& rows, size_t row, uint32_t output) {
    const auto groups = static_cast<size_t>(rows.num_groups);
    kernel_->layout.pack_codes({.values = rows.values.data() + row * depth_,
                                .zeros = rows.zeros.data() + row * groups,
                                .scales = rows.scales.data() + row * groups,
                                .minimums = rows.minimums.data() + row * groups},
                               depth_, output, tile);
  };
  if (!part.strides.has_value()) {
    CodedRows rows(count, depth_);
    part.quantized->ReadCodes(part.quantized_begin / depth_ + first, count, &rows);
    for (uint32_t i = 0; i < count; ++i) pack(rows, i, place + i);
    return;
  }
  CodedRows rows(1, depth_);
  for (uint32_t i = 0; i < count; ++i) {
    part.quantized->ReadCodes(part.row_begin(first + i) / depth_, 1, &rows);
    pack(rows, 0, place + i);
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

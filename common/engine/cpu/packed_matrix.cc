#include "common/engine/cpu/packed_matrix.h"

#include <algorithm>
#include <cassert>

#include "common/base/mapped_pages.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/file_code_tiles.h"
#include "common/model/quantized_matrix.h"
#include "common/model/tensor_convert.h"

namespace tandem {

namespace {

bool IsQuantized(const TensorView& part) {
  return part.dtype == TensorView::DType::kQuantized;
}

// The kind of the numbers, if tiles can be packed from them as they are in files.
std::optional<PlainOutputs::Kind> KindOf(TensorView::DType dtype) {
  switch (dtype) {
    case TensorView::DType::kF32:
      return PlainOutputs::Kind::kF32;
    case TensorView::DType::kF16:
      return PlainOutputs::Kind::kF16;
    case TensorView::DType::kBF16:
      return PlainOutputs::Kind::kBF16;
    case TensorView::DType::kMxFp4:
    case TensorView::DType::kQuantized:
      break;
  }
  return std::nullopt;
}

// Asks the system to read a tensor from its file if it is not in memory.
void Fetch(const TensorView& part) {
  IsQuantized(part) ? part.quantized->Fetch() : FetchMappedPages(part.data, part.num_bytes());
}

// Asks the system and the processor to fetch these bytes.
void Touch(const char* begin, size_t num_bytes) {
  constexpr size_t kLine = 64;
  for (size_t at = 0; at < num_bytes; at += kLine) {
    (void)*static_cast<const volatile char*>(begin + at);
  }
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

WeightFormat PackedMatrix::FormatOf(absl::Span<const TensorView> parts, bool rounds_inputs) {
  if (std::all_of(parts.begin(), parts.end(), IsQuantized)) {
    const auto is_integers = [](const TensorView& part) {
      const Coding coding = part.quantized->coding();
      return coding.is_coded && !coding.is_float;
    };
    if (rounds_inputs && std::all_of(parts.begin(), parts.end(), is_integers))
      return WeightFormat::kFileCodes;
    Coding coding = parts.front().quantized->coding();
    for (const TensorView& part : parts) coding = Join(coding, part.quantized->coding());
    return coding.is_coded ? CodedFormatOf(coding) : WeightFormat::kF32;
  }
  for (const TensorView& part : parts) {
    // bfloat16 holds MXFP4's numbers exactly.
    if (part.dtype != TensorView::DType::kBF16 && part.dtype != TensorView::DType::kMxFp4) {
      return WeightFormat::kF32;
    }
  }
  return WeightFormat::kBf16;
}

uint64_t PackedMatrix::BytesOf(const TensorView& part, WeightFormat format, const KernelTable& kernels) {
  const auto depth = static_cast<uint32_t>(part.shape.at(1));
  const uint64_t tiles = NumTiles(static_cast<uint32_t>(part.shape.at(0)));
  if (format == WeightFormat::kFileCodes) {
    return tiles * FileCodeBytes(FileCodeFormatOf(part.quantized->coding()), depth);
  }
  return tiles * kernels.products[static_cast<size_t>(format)].layout.tile_bytes(depth);
}

void PackedMatrix::SetRuns(absl::Span<const TensorView> parts) {
  if (format_ != WeightFormat::kFileCodes) {
    runs_ = {{.tiles = {0, num_tiles()}, .tile_bytes = kernel_->layout.tile_bytes(depth_)}};
    return;
  }
  const auto add = [&](uint32_t end_tile, const Coding& coding) {
    Run run = {.tiles = {0, end_tile}, .codes = FileCodeFormatOf(coding)};
    run.tile_bytes = FileCodeBytes(run.codes, depth_);
    if (!runs_.empty()) {
      const Run& last = runs_.back();
      run.tiles.begin = last.tiles.end;
      run.offset = last.offset + last.tile_bytes * (last.tiles.end - last.tiles.begin);
    }
    runs_.push_back(run);
  };
  const bool tiles_divide = std::all_of(parts.begin(), parts.end() - 1, [](const TensorView& part) {
    return part.shape[0] % kTileOutputs == 0;
  });
  if (!tiles_divide) {
    Coding coding = parts.front().quantized->coding();
    for (const TensorView& part : parts) coding = Join(coding, part.quantized->coding());
    return add(num_tiles(), coding);
  }
  uint32_t outputs = 0;
  for (const TensorView& part : parts) {
    outputs += static_cast<uint32_t>(part.shape[0]);
    add(NumTiles(outputs), part.quantized->coding());
  }
}

const PackedMatrix::Run& PackedMatrix::RunOf(uint32_t tile) const {
  return *std::find_if(runs_.begin(), runs_.end(), [tile](const Run& run) { return tile < run.tiles.end; });
}

absl::StatusOr<PackedMatrix> PackedMatrix::Pack(absl::Span<const TensorView> parts, WeightFormat format,
                                                const KernelTable& kernels, ThreadTeam* team) {
  PackedMatrix matrix;
  matrix.format_ = format;
  matrix.depth_ = static_cast<uint32_t>(parts.front().shape.at(1));
  for (const TensorView& part : parts) {
    matrix.num_outputs_ += static_cast<uint32_t>(part.shape.at(0));
  }
  for (const TensorView& part : parts) Fetch(part);
  matrix.kernel_ = &kernels.products[static_cast<size_t>(matrix.format_)];
  matrix.SetRuns(parts);
  const Run& last = matrix.runs_.back();
  TANDEM_ASSIGN_OR_RETURN(
      matrix.data_, AlignedBuffer::Allocate(
                        1, last.offset + last.tile_bytes * (last.tiles.end - last.tiles.begin), "weights"));
  team->Run([&](int thread) {
    const Share share = ShareOf(matrix.num_tiles(), thread, team->num_threads());
    Scratch scratch;
    for (uint32_t tile = share.begin; tile < share.end; ++tile) matrix.PackTile(parts, tile, &scratch);
  });
  return matrix;
}

void PackedMatrix::PackTile(absl::Span<const TensorView> parts, uint32_t tile, Scratch* scratch) {
  const uint32_t begin = tile * kTileOutputs;
  const uint32_t end = std::min(begin + kTileOutputs, num_outputs_);
  std::vector<Piece> pieces;
  uint32_t part_begin = 0;
  for (const TensorView& part : parts) {
    const uint32_t part_end = part_begin + static_cast<uint32_t>(part.shape[0]);
    const uint32_t first = std::max(begin, part_begin), last = std::min(end, part_end);
    if (first < last) {
      pieces.push_back(
          {.part = &part, .first = first - part_begin, .count = last - first, .place = first - begin});
    }
    part_begin = part_end;
  }
  const WeightLayout& layout = kernel_->layout;
  const Run& run = RunOf(tile);
  char* const to = this->tile(run, tile);
  if (format_ == WeightFormat::kFileCodes || layout.pack_codes != nullptr) {
    return PackCodes(pieces, run, scratch, to);
  }
  if (layout.pack_tile != nullptr && depth_ % kPackedInputs == 0) return PackWhole(pieces, scratch, to);
  PackEach(pieces, scratch, to);
}

void PackedMatrix::PackEach(absl::Span<const Piece> pieces, Scratch* scratch, char* tile) const {
  for (const Piece& piece : pieces) {
    // The codes of neighbouring outputs are read together.
    const uint32_t most = IsQuantized(*piece.part) ? piece.count : 1;
    scratch->numbers.resize(size_t{most} * depth_);
    for (uint32_t done = 0; done < piece.count; done += most) {
      ConvertRowsToFloat(*piece.part, piece.first + done, most, absl::MakeSpan(scratch->numbers));
      for (uint32_t i = 0; i < most; ++i) {
        kernel_->layout.pack(scratch->numbers.data() + size_t{i} * depth_, depth_, piece.place + done + i,
                             tile);
      }
    }
  }
}

void PackedMatrix::PackWhole(absl::Span<const Piece> pieces, Scratch* scratch, char* tile) const {
  const std::optional<PlainOutputs::Kind> kind = KindOf(pieces.front().part->dtype);
  bool in_place = kind.has_value();
  for (const Piece& piece : pieces) {
    in_place = in_place && piece.part->dtype == pieces.front().part->dtype &&
               (!piece.part->strides.has_value() || piece.part->strides->column_stride == 1);
  }
  // Zeros for missing outputs, followed by the numbers if they cannot be read in place.
  scratch->numbers.assign(size_t{depth_} * (in_place ? 1 : 1 + kTileOutputs), 0.0f);
  PlainOutputs outputs;
  if (in_place) outputs.kind = *kind;
  for (const char*& output : outputs.outputs) output = reinterpret_cast<const char*>(scratch->numbers.data());
  for (const Piece& piece : pieces) {
    float* const numbers = scratch->numbers.data() + size_t{depth_} * (1 + piece.place);
    if (!in_place) {
      ConvertRowsToFloat(*piece.part, piece.first, piece.count,
                         absl::MakeSpan(numbers, size_t{piece.count} * depth_));
    }
    for (uint32_t i = 0; i < piece.count; ++i) {
      outputs.outputs[piece.place + i] =
          in_place ? static_cast<const char*>(piece.part->data) +
                         piece.part->offset_of(piece.part->row_begin(piece.first + i))
                   : reinterpret_cast<const char*>(numbers + size_t{i} * depth_);
    }
  }
  // Packs some columns at a time. The blocks that outputs are transposed in take one cache line of each
  // output, from as many pages of memory. Reading row by row before brings them into the second-level cache.
  constexpr uint32_t kColumns = 1024;
  const size_t size = outputs.kind == PlainOutputs::Kind::kF32 ? sizeof(float) : sizeof(uint16_t);
  for (uint32_t begin = 0; begin < depth_; begin += kColumns) {
    const uint32_t end = std::min(begin + kColumns, depth_);
    for (const char* const output : outputs.outputs) Touch(output + begin * size, (end - begin) * size);
    kernel_->layout.pack_tile(outputs, begin, end, tile);
  }
}

void PackedMatrix::PackCodes(absl::Span<const Piece> pieces, const Run& run, Scratch* scratch,
                             char* tile) const {
  uint32_t num_outputs = 0;
  for (const Piece& piece : pieces) num_outputs += piece.count;
  if (!scratch->codes.has_value() || num_outputs < kTileOutputs) scratch->codes.emplace(kTileOutputs, depth_);
  CodedRows& rows = *scratch->codes;
  for (const Piece& piece : pieces) {
    const QuantizedMatrix& matrix = *piece.part->quantized;
    if (!piece.part->strides.has_value()) {
      matrix.ReadCodes(piece.part->quantized_begin / depth_ + piece.first, piece.count, piece.place, &rows);
      continue;
    }
    for (uint32_t i = 0; i < piece.count; ++i) {
      matrix.ReadCodes(piece.part->row_begin(piece.first + i) / depth_, 1, piece.place + i, &rows);
    }
  }
  if (format_ == WeightFormat::kFileCodes) return PackFileCodes(run.codes, rows, tile);
  kernel_->layout.pack_codes({.values = rows.values.data(),
                              .zeros = rows.zeros.data(),
                              .scales = rows.scales.data(),
                              .minimums = rows.minimums.data()},
                             depth_, tile);
}

void PackedMatrix::Multiply(Share tiles, const ProductInputs& inputs, Share rows,
                            float* const* outputs) const {
  if (tiles.begin == tiles.end || rows.begin == rows.end) return;
  ProductArgs args;
  args.depth = depth_;
  args.inputs = inputs.floats().row(rows.begin);
  args.input_stride = inputs.floats().stride();
  args.prepared = inputs.prepared(*kernel_, rows.begin);
  args.num_rows = rows.end - rows.begin;
  args.outputs = outputs + rows.begin;
  args.end_output = num_outputs_;
  for (const Run& run : runs_) {
    const Share share = {std::max(tiles.begin, run.tiles.begin), std::min(tiles.end, run.tiles.end)};
    if (share.begin >= share.end) continue;
    args.tiles = tile(run, share.begin);
    args.num_tiles = share.end - share.begin;
    args.codes = run.codes;
    args.first_output = share.begin * kTileOutputs;
    kernel_->multiply(args);
  }
}

void PackedMatrix::MultiplyFloats(Share tiles, const float* inputs, size_t stride, uint32_t num_rows,
                                  float* const* outputs) const {
  assert(kernel_->prepare == nullptr);
  ProductArgs args;
  args.tiles = tile(runs_.front(), tiles.begin);
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
  const uint32_t index = output / kTileOutputs;
  const Run& run = RunOf(index);
  if (format_ == WeightFormat::kFileCodes) {
    return UnpackFileCodes(run.codes, tile(run, index), depth_, output % kTileOutputs, weights);
  }
  kernel_->layout.unpack(tile(run, index), depth_, output % kTileOutputs, weights);
}

}  // namespace tandem

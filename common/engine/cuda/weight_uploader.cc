#include "common/engine/cuda/weight_uploader.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cuda/packed_tiles.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

// The size of the buffer for weights on their way.
constexpr uint64_t kStagedBytes = uint64_t{32} << 20;

}  // namespace

DeviceFormat FormatFor(WeightType type) {
  switch (type) {
    case WeightType::kInt8:
      return DeviceFormat::kInt8;
    case WeightType::kInt4:
      return DeviceFormat::kInt4;
    case WeightType::kFp8:
    case WeightType::kFp8Tensor:
      return DeviceFormat::kFp8;
    case WeightType::kAsInFile:
    case WeightType::kBf16:
    // CudaEngine refuses these.
    case WeightType::kExact:
    case WeightType::kW8A8:
    case WeightType::kW4A8:
      break;
  }
  return DeviceFormat::kBf16;
}

// For integer weights, the same format as the CPU engine's.
DeviceFormat FormatOfTokens(WeightType type) {
  switch (const DeviceFormat format = FormatFor(type)) {
    case DeviceFormat::kInt4:
      return DeviceFormat::kInt8;
    case DeviceFormat::kFp8:
      return DeviceFormat::kBf16;
    case DeviceFormat::kInt8:
    case DeviceFormat::kBf16:
      return format;
  }
  return DeviceFormat::kBf16;
}

absl::Status CheckBf16(const TensorView& tensor) {
  switch (tensor.dtype) {
    case TensorView::DType::kBF16:
    // bfloat16 holds its numbers exactly.
    case TensorView::DType::kMxFp4:
      return absl::OkStatus();
    case TensorView::DType::kQuantized:
      return absl::UnimplementedError(absl::StrCat(
          "the model's files hold a matrix ", ShapeText(tensor.shape),
          " in integers or floats with scales; bfloat16 does not hold its numbers, and nothing is "
          "rounded silently: expected --weight-dtype int8 or int4"));
    case TensorView::DType::kF32:
    case TensorView::DType::kF16:
      break;
  }
  return absl::UnimplementedError(
      absl::StrCat("the model's files hold a matrix ", ShapeText(tensor.shape), " in ",
                   tensor.dtype == TensorView::DType::kF32 ? "float32" : "float16",
                   "; it is to be kept in bfloat16 on the GPU, and nothing is rounded silently: convert the "
                   "model first"));
}

absl::StatusOr<std::unique_ptr<WeightUploader>> WeightUploader::Create(WeightType type, float norm_offset,
                                                                       DeviceOps* ops,
                                                                       LoadProgress* progress) {
  std::unique_ptr<WeightUploader> uploader(
      new WeightUploader(type == WeightType::kFp8Tensor, norm_offset, ops, progress));
  if (FormatFor(type) == DeviceFormat::kBf16) return uploader;
  constexpr uint32_t kMostThreads = 64;
  TANDEM_ASSIGN_OR_RETURN(uploader->packers_, ThreadTeam::Create(static_cast<int>(std::clamp(
                                                  std::thread::hardware_concurrency(), 1u, kMostThreads))));
  return uploader;
}

absl::StatusOr<DeviceMatrix> WeightUploader::Rows(DeviceFormat format, std::initializer_list<RowPart> parts) {
  const auto depth = static_cast<uint32_t>(parts.begin()->tensor.shape.at(1));
  TANDEM_ASSIGN_OR_RETURN(const DeviceMatrix matrix,
                          Stack(format, {std::vector<RowPart>(parts)}, {0, depth}));
  return Prepared(matrix);
}

absl::StatusOr<DeviceMatrix> WeightUploader::Columns(DeviceFormat format, const TensorView& tensor,
                                                     ShardRange columns) {
  const auto outputs = static_cast<uint32_t>(tensor.shape.at(0));
  TANDEM_ASSIGN_OR_RETURN(const DeviceMatrix matrix,
                          Stack(format, {std::vector<RowPart>{{tensor, {0, outputs}}}}, columns));
  return Prepared(matrix);
}

absl::StatusOr<DeviceMatrix> WeightUploader::Stack(DeviceFormat format,
                                                   absl::Span<const std::vector<RowPart>> matrices,
                                                   ShardRange columns) {
  return format == DeviceFormat::kBf16 ? StackBf16(matrices, columns)
                                       : StackPacked(format, matrices, columns);
}

absl::StatusOr<DeviceSpan<const float>> WeightUploader::Vector(absl::Span<const RowPart> parts,
                                                               float offset) {
  std::vector<float> joined;
  for (const RowPart& part : parts) {
    if (!part.tensor.exists()) continue;
    std::vector<float> floats(part.rows.size());
    ConvertRowsToFloat(part.tensor, part.rows.begin, part.rows.size(), absl::MakeSpan(floats));
    joined.insert(joined.end(), floats.begin(), floats.end());
    TANDEM_RETURN_IF_ERROR(Report(part.tensor, part.rows.size()));
  }
  if (offset != 0) {
    for (float& number : joined) number += offset;
  }
  return Floats(joined);
}

absl::StatusOr<DeviceSpan<const float>> WeightUploader::Vector(const TensorView& tensor) {
  if (!tensor.exists()) return DeviceSpan<const float>();
  return Vector({{tensor, {0, static_cast<uint32_t>(tensor.shape.at(0))}}});
}

absl::StatusOr<DeviceSpan<const float>> WeightUploader::NormVector(const TensorView& tensor) {
  if (!tensor.exists()) return DeviceSpan<const float>();
  return Vector({{tensor, {0, static_cast<uint32_t>(tensor.shape.at(0))}}}, norm_offset_);
}

absl::StatusOr<DeviceNorm> WeightUploader::Norm(const TensorView& weight, const TensorView& bias) {
  DeviceNorm norm;
  TANDEM_ASSIGN_OR_RETURN(norm.weight, NormVector(weight));
  TANDEM_ASSIGN_OR_RETURN(norm.bias, Vector(bias));
  return norm;
}

absl::StatusOr<DeviceSpan<const float>> WeightUploader::Sum(const TensorView& a, const TensorView& b) {
  if (!a.exists() || !b.exists()) return Vector(a.exists() ? a : b);
  std::vector<float> sum(static_cast<size_t>(a.num_elements())), addend(sum.size());
  ConvertToFloat(a, absl::MakeSpan(sum));
  ConvertToFloat(b, absl::MakeSpan(addend));
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += addend[i];
  TANDEM_RETURN_IF_ERROR(Report(a, sum.size()));
  TANDEM_RETURN_IF_ERROR(Report(b, sum.size()));
  return Floats(sum);
}

absl::StatusOr<DeviceSpan<const float>> WeightUploader::Matrix(
    std::initializer_list<const TensorView*> tensors) {
  std::vector<float> joined;
  for (const TensorView* const tensor : tensors) {
    if (!tensor->exists()) continue;
    const size_t begin = joined.size();
    joined.resize(begin + static_cast<size_t>(tensor->num_elements()));
    ConvertToFloat(*tensor, absl::MakeSpan(joined).subspan(begin));
    TANDEM_RETURN_IF_ERROR(Report(*tensor, joined.size() - begin));
  }
  return Floats(joined);
}

absl::StatusOr<DeviceMatrix> WeightUploader::Prepared(const DeviceMatrix& matrix) {
  if (matrix.format == DeviceFormat::kBf16) {
    TANDEM_RETURN_IF_ERROR(ops_->PrepareProduct(matrix));
  }
  return matrix;
}

absl::StatusOr<DeviceSpan<const float>> WeightUploader::Floats(const std::vector<float>& floats) {
  if (floats.empty()) return DeviceSpan<const float>();
  TANDEM_ASSIGN_OR_RETURN(DeviceSpan<float> data, ops_->Allocate<float>(floats.size(), "weights"));
  TANDEM_RETURN_IF_ERROR(ops_->Upload(data.data, floats.data(), floats.size() * sizeof(float)));
  TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
  return DeviceSpan<const float>(data);
}

absl::Status WeightUploader::Report(const TensorView& tensor, uint64_t count) {
  return progress_ == nullptr ? absl::OkStatus()
                              : progress_->Add(tensor.bytes_of(static_cast<int64_t>(count)));
}

uint32_t WeightUploader::NumRows(absl::Span<const RowPart> parts) {
  uint32_t num_rows = 0;
  for (const RowPart& part : parts) num_rows += part.rows.size();
  return num_rows;
}

absl::StatusOr<DeviceMatrix> WeightUploader::StackBf16(absl::Span<const std::vector<RowPart>> matrices,
                                                       ShardRange columns) {
  const uint32_t outputs = NumRows(matrices.front());
  const uint64_t size = uint64_t{outputs} * columns.size();
  TANDEM_ASSIGN_OR_RETURN(DeviceSpan<Bf16> data, ops_->Allocate<Bf16>(matrices.size() * size, "weights"));
  uint64_t at = 0;
  for (const std::vector<RowPart>& parts : matrices) {
    for (const RowPart& part : parts) {
      TANDEM_RETURN_IF_ERROR(CheckBf16(part.tensor));
      TANDEM_RETURN_IF_ERROR(UploadPart(part, columns, data.data + at));
      const uint64_t count = uint64_t{part.rows.size()} * columns.size();
      at += count;
      TANDEM_RETURN_IF_ERROR(Report(part.tensor, count));
    }
  }
  return DeviceMatrix{.outputs = outputs, .depth = columns.size(), .data = data, .packed = {}};
}

absl::Status WeightUploader::UploadPart(const RowPart& part, ShardRange columns, Bf16* to) {
  const auto depth = static_cast<uint64_t>(part.tensor.shape.at(1));
  if (part.tensor.dtype != TensorView::DType::kBF16 || part.tensor.strides.has_value() ||
      columns.size() != depth) {
    return UploadGathered(part, columns, to);
  }
  const auto* from = static_cast<const char*>(part.tensor.data);
  return ops_->Upload(to, from + uint64_t{part.rows.begin} * depth * sizeof(Bf16),
                      uint64_t{part.rows.size()} * depth * sizeof(Bf16));
}

absl::Status WeightUploader::UploadGathered(const RowPart& part, ShardRange columns, Bf16* to) {
  const auto depth = static_cast<size_t>(part.tensor.shape.at(1));
  const bool is_plain = part.tensor.dtype == TensorView::DType::kBF16 && !part.tensor.strides.has_value();
  std::vector<float> row(depth);
  const auto most_rows =
      static_cast<uint32_t>(std::max<uint64_t>(1, kStagedBytes / (columns.size() * sizeof(Bf16))));
  for (uint32_t first = part.rows.begin; first < part.rows.end; first += most_rows) {
    const uint32_t count = std::min(most_rows, part.rows.end - first);
    std::vector<Bf16> gathered;
    gathered.reserve(uint64_t{count} * columns.size());
    for (uint32_t i = first; i < first + count; ++i) {
      if (is_plain) {
        const size_t before = gathered.size();
        gathered.resize(before + columns.size());
        std::memcpy(&gathered[before],
                    static_cast<const char*>(part.tensor.data) + (i * depth + columns.begin) * sizeof(Bf16),
                    columns.size() * sizeof(Bf16));
        continue;
      }
      ConvertRowsToFloat(part.tensor, i, 1, absl::MakeSpan(row));
      // Numbers that bfloat16 holds stay the same.
      for (uint32_t k = columns.begin; k < columns.end; ++k) gathered.push_back(ToBf16(row[k]));
    }
    TANDEM_RETURN_IF_ERROR(ops_->Upload(to + uint64_t{first - part.rows.begin} * columns.size(),
                                        gathered.data(), gathered.size() * sizeof(Bf16)));
    TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceMatrix> WeightUploader::StackPacked(DeviceFormat format,
                                                         absl::Span<const std::vector<RowPart>> matrices,
                                                         ShardRange columns) {
  DeviceMatrix stack = {.format = format,
                        .outputs = NumRows(matrices.front()),
                        .depth = columns.size(),
                        .data = {},
                        .packed = {}};
  const uint32_t num_tiles = NumPackedTiles(stack.outputs);
  const uint64_t all_tiles = matrices.size() * num_tiles;
  const uint64_t num_groups = NumInputGroups(stack.depth);
  const bool has_floats = format == DeviceFormat::kFp8;
  const TileSize size = {.words = num_groups * PackedGroupWords(format),
                         .scales = has_floats ? 0 : num_groups * kPackedOutputs,
                         .output_scales = has_floats ? kPackedOutputs : 0};
  TANDEM_ASSIGN_OR_RETURN(DeviceSpan<uint32_t> words,
                          ops_->Allocate<uint32_t>(all_tiles * size.words, "weights"));
  DeviceSpan<Bf16> scales;
  DeviceSpan<float> output_scales;
  if (has_floats) {
    TANDEM_ASSIGN_OR_RETURN(output_scales, ops_->Allocate<float>(all_tiles * size.output_scales, "weights"));
  } else {
    TANDEM_ASSIGN_OR_RETURN(scales, ops_->Allocate<Bf16>(all_tiles * size.scales, "weights"));
  }
  stack.packed = {words, scales, output_scales};
  for (uint64_t i = 0; i < matrices.size(); ++i) {
    Packing packing = {.format = format, .parts = matrices[i], .columns = columns, .part_scales = {}};
    if (has_floats && scales_matrices_) {
      for (const RowPart& part : matrices[i]) packing.part_scales.push_back(ScaleOf(part.tensor));
    }
    const uint64_t before = i * num_tiles;
    TANDEM_RETURN_IF_ERROR(
        Pack(packing, num_tiles, size,
             {.words = words.data + before * size.words,
              .scales = has_floats ? nullptr : scales.data + before * size.scales,
              .output_scales = has_floats ? output_scales.data + before * size.output_scales : nullptr}));
    for (const RowPart& part : matrices[i]) {
      TANDEM_RETURN_IF_ERROR(Report(part.tensor, uint64_t{part.rows.size()} * columns.size()));
    }
  }
  return stack;
}

absl::Status WeightUploader::Pack(const Packing& packing, uint32_t num_tiles, const TileSize& size,
                                  const PackedPlace& to) {
  const auto most_tiles = static_cast<uint32_t>(
      std::clamp<uint64_t>(kStagedBytes / (size.words * sizeof(uint32_t)), 1, num_tiles));
  for (uint32_t first = 0; first < num_tiles; first += most_tiles) {
    const uint32_t count = std::min(most_tiles, num_tiles - first);
    StagedTiles staged = {std::vector<uint32_t>(count * size.words), std::vector<Bf16>(count * size.scales),
                          std::vector<float>(count * size.output_scales)};
    packers_->Run([&](int thread) {
      const Share share = ShareOf(count, thread, packers_->num_threads());
      for (uint32_t tile = share.begin; tile < share.end; ++tile) {
        PackTile(packing, first + tile, staged.words.data() + tile * size.words,
                 staged.scales.data() + tile * size.scales,
                 staged.output_scales.data() + tile * size.output_scales);
      }
    });
    TANDEM_RETURN_IF_ERROR(UploadAll(staged.words, to.words + first * size.words));
    TANDEM_RETURN_IF_ERROR(UploadAll(staged.scales, to.scales + first * size.scales));
    TANDEM_RETURN_IF_ERROR(UploadAll(staged.output_scales, to.output_scales + first * size.output_scales));
    TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
  }
  return absl::OkStatus();
}

// Scales belong to whole tensors and whole outputs, whatever part of them the rank has. So weights do not
// depend on the number of ranks.
void WeightUploader::PackTile(const Packing& packing, uint32_t tile, uint32_t* words, Bf16* scales,
                              float* output_scales) {
  std::vector<float> weights(static_cast<size_t>(packing.parts.front().tensor.shape.at(1)));
  const auto held = absl::MakeConstSpan(weights).subspan(packing.columns.begin, packing.columns.size());
  const uint32_t begin = tile * kPackedOutputs;
  uint32_t part_begin = 0;
  size_t part_index = 0;
  for (const RowPart& part : packing.parts) {
    const uint32_t part_end = part_begin + part.rows.size();
    for (uint32_t output = std::max(begin, part_begin); output < std::min(begin + kPackedOutputs, part_end);
         ++output) {
      ConvertRowsToFloat(part.tensor, part.rows.begin + (output - part_begin), 1, absl::MakeSpan(weights));
      if (packing.format != DeviceFormat::kFp8) {
        PackOutput(packing.format, held, output - begin, words, scales);
        continue;
      }
      const float scale = packing.part_scales.empty() ? Fp8Scale(GreatestMagnitude(weights))
                                                      : packing.part_scales[part_index];
      PackFp8Output(held, scale, output - begin, words);
      output_scales[output - begin] = scale;
    }
    part_begin = part_end;
    ++part_index;
  }
}

float WeightUploader::ScaleOf(const TensorView& tensor) {
  std::vector<uint32_t> greatest(static_cast<size_t>(packers_->num_threads()));
  packers_->Run([&](int thread) {
    std::vector<float> weights(static_cast<size_t>(tensor.shape.at(1)));
    const Share share = ShareOf(static_cast<uint32_t>(tensor.shape.at(0)), thread, packers_->num_threads());
    uint32_t of_thread = 0;
    for (uint32_t output = share.begin; output < share.end; ++output) {
      ConvertRowsToFloat(tensor, output, 1, absl::MakeSpan(weights));
      of_thread = std::max(of_thread, GreatestMagnitude(weights));
    }
    greatest[static_cast<size_t>(thread)] = of_thread;
  });
  return Fp8Scale(*std::max_element(greatest.begin(), greatest.end()));
}

}  // namespace tandem

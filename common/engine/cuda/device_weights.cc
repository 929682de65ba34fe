#include "common/engine/cuda/device_weights.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/thread_team.h"
#include "common/engine/cuda/packed_tiles.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

// Of packed weights that are on their way.
constexpr uint64_t kStagedBytes = uint64_t{32} << 20;

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
    // Refused by CudaEngine.
    case WeightType::kW8A8:
    case WeightType::kW4A8:
      break;
  }
  return DeviceFormat::kBf16;
}

// Matrices of tokens have more bits than the others where those have few: with integers the CPU engine's.
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

absl::StatusOr<std::unique_ptr<ThreadTeam>> MakePackers() {
  constexpr uint32_t kMostThreads = 64;
  return ThreadTeam::Create(
      static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMostThreads)));
}

// Rows of a tensor [outputs, depth], or elements of a vector.
struct RowPart {
  const TensorView& tensor;
  ShardRange rows;
};

absl::Status CheckType(const TensorView& tensor) {
  if (tensor.dtype == TensorView::DType::kBF16) return absl::OkStatus();
  if (tensor.dtype == TensorView::DType::kQuantized) {
    return absl::UnimplementedError(
        absl::StrCat("the model's files hold a matrix ", ShapeText(tensor.shape),
                     " in integers or floats with scales; bfloat16 does not hold its numbers, and nothing is "
                     "rounded silently: expected --weight-dtype int8 or int4"));
  }
  return absl::UnimplementedError(
      absl::StrCat("the model's files hold a matrix ", ShapeText(tensor.shape), " in ",
                   tensor.dtype == TensorView::DType::kF32 ? "float32" : "float16",
                   "; it is to be kept in bfloat16 on the GPU, and nothing is rounded silently: convert the "
                   "model first"));
}

class Uploader {
 public:
  // `scales_matrices`: floats of 8 bits have one scale for a matrix, not one for each output.
  // `norm_offset` is what norms' weights are kept around.
  Uploader(bool scales_matrices, float norm_offset, ThreadTeam* packers, DeviceOps* ops,
           LoadProgress* progress)
      : scales_matrices_(scales_matrices),
        norm_offset_(norm_offset),
        packers_(packers),
        ops_(ops),
        progress_(progress) {}

  // On top of one another.
  absl::StatusOr<DeviceMatrix> Rows(DeviceFormat format, std::initializer_list<RowPart> parts) {
    const auto depth = static_cast<uint32_t>(parts.begin()->tensor.shape.at(1));
    if (format != DeviceFormat::kBf16) return Packed(format, parts, {0, depth});
    const uint32_t outputs = NumRows(parts);
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<Bf16> data,
                            ops_->Allocate<Bf16>(uint64_t{outputs} * depth, "weights"));
    uint64_t at = 0;
    for (const RowPart& part : parts) {
      TANDEM_RETURN_IF_ERROR(CheckType(part.tensor));
      const uint64_t count = uint64_t{part.rows.size()} * depth;
      if (part.tensor.strides.has_value()) {
        TANDEM_RETURN_IF_ERROR(UploadStrided(part, {0, depth}, data.data + at));
        at += count;
        TANDEM_RETURN_IF_ERROR(Report(part.tensor, count));
        continue;
      }
      const auto* from = static_cast<const char*>(part.tensor.data);
      TANDEM_RETURN_IF_ERROR(ops_->Upload(
          data.data + at, from + uint64_t{part.rows.begin} * depth * sizeof(Bf16), count * sizeof(Bf16)));
      at += count;
      TANDEM_RETURN_IF_ERROR(Report(part.tensor, count));
    }
    return Prepared({.outputs = outputs, .depth = depth, .data = data, .packed = {}});
  }

  // Inputs [begin, end) of every output.
  absl::StatusOr<DeviceMatrix> Columns(DeviceFormat format, const TensorView& tensor, ShardRange columns) {
    const auto outputs = static_cast<uint32_t>(tensor.shape.at(0));
    if (format != DeviceFormat::kBf16) return Packed(format, {{tensor, {0, outputs}}}, columns);
    TANDEM_RETURN_IF_ERROR(CheckType(tensor));
    const auto depth = static_cast<uint64_t>(tensor.shape.at(1));
    if (columns.size() == depth) return Rows(format, {{tensor, {0, outputs}}});
    const uint64_t count = uint64_t{outputs} * columns.size();
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<Bf16> data, ops_->Allocate<Bf16>(count, "weights"));
    if (tensor.strides.has_value()) {
      TANDEM_RETURN_IF_ERROR(UploadStrided({tensor, {0, outputs}}, columns, data.data));
      TANDEM_RETURN_IF_ERROR(Report(tensor, count));
      return Prepared({.outputs = outputs, .depth = columns.size(), .data = data, .packed = {}});
    }
    std::vector<Bf16> gathered(count);
    const auto* from = static_cast<const char*>(tensor.data);
    for (uint64_t output = 0; output < outputs; ++output) {
      std::memcpy(&gathered[output * columns.size()], from + (output * depth + columns.begin) * sizeof(Bf16),
                  columns.size() * sizeof(Bf16));
    }
    TANDEM_RETURN_IF_ERROR(ops_->Upload(data.data, gathered.data(), count * sizeof(Bf16)));
    TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
    TANDEM_RETURN_IF_ERROR(Report(tensor, count));
    return Prepared({.outputs = outputs, .depth = columns.size(), .data = data, .packed = {}});
  }

  // End to end; empty when the model has none of them.
  absl::StatusOr<DeviceSpan<const float>> Vector(std::initializer_list<RowPart> parts, float offset = 0) {
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
  absl::StatusOr<DeviceSpan<const float>> Vector(const TensorView& tensor) {
    if (!tensor.exists()) return DeviceSpan<const float>();
    return Vector({{tensor, {0, static_cast<uint32_t>(tensor.shape.at(0))}}});
  }

  // A norm's, as what they multiply with.
  absl::StatusOr<DeviceSpan<const float>> NormVector(const TensorView& tensor) {
    if (!tensor.exists()) return DeviceSpan<const float>();
    return Vector({{tensor, {0, static_cast<uint32_t>(tensor.shape.at(0))}}}, norm_offset_);
  }
  absl::StatusOr<DeviceNorm> Norm(const TensorView& weight, const TensorView& bias) {
    DeviceNorm norm;
    TANDEM_ASSIGN_OR_RETURN(norm.weight, NormVector(weight));
    TANDEM_ASSIGN_OR_RETURN(norm.bias, Vector(bias));
    return norm;
  }
  // Two vectors added up; either may be missing.
  absl::StatusOr<DeviceSpan<const float>> Sum(const TensorView& a, const TensorView& b) {
    if (!a.exists() || !b.exists()) return Vector(a.exists() ? a : b);
    std::vector<float> sum(static_cast<size_t>(a.num_elements())), addend(sum.size());
    ConvertToFloat(a, absl::MakeSpan(sum));
    ConvertToFloat(b, absl::MakeSpan(addend));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += addend[i];
    TANDEM_RETURN_IF_ERROR(Report(a, sum.size()));
    TANDEM_RETURN_IF_ERROR(Report(b, sum.size()));
    return Floats(sum);
  }
  // All numbers of a matrix, in float32.
  absl::StatusOr<DeviceSpan<const float>> Matrix(const TensorView& tensor) {
    if (!tensor.exists()) return DeviceSpan<const float>();
    std::vector<float> floats(static_cast<size_t>(tensor.num_elements()));
    ConvertToFloat(tensor, absl::MakeSpan(floats));
    TANDEM_RETURN_IF_ERROR(Report(tensor, floats.size()));
    return Floats(floats);
  }

  absl::StatusOr<DeviceMatrix> Prepared(const DeviceMatrix& matrix) {
    if (matrix.format == DeviceFormat::kBf16) {
      TANDEM_RETURN_IF_ERROR(ops_->PrepareProduct(matrix.outputs, matrix.depth));
    }
    return matrix;
  }

 private:
  absl::StatusOr<DeviceSpan<const float>> Floats(const std::vector<float>& floats) {
    if (floats.empty()) return DeviceSpan<const float>();
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<float> data, ops_->Allocate<float>(floats.size(), "weights"));
    TANDEM_RETURN_IF_ERROR(ops_->Upload(data.data, floats.data(), floats.size() * sizeof(float)));
    TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
    return DeviceSpan<const float>(data);
  }

  // Some rows and columns of a part of a bfloat16 tensor, gathered some rows at a time.
  absl::Status UploadStrided(const RowPart& part, ShardRange columns, Bf16* to) {
    const auto depth = static_cast<size_t>(part.tensor.shape.at(1));
    std::vector<float> row(depth);
    const auto most_rows =
        static_cast<uint32_t>(std::max<uint64_t>(1, kStagedBytes / (columns.size() * sizeof(Bf16))));
    for (uint32_t first = part.rows.begin; first < part.rows.end; first += most_rows) {
      const uint32_t count = std::min(most_rows, part.rows.end - first);
      std::vector<Bf16> gathered;
      gathered.reserve(uint64_t{count} * columns.size());
      for (uint32_t i = first; i < first + count; ++i) {
        ConvertRowsToFloat(part.tensor, i, 1, absl::MakeSpan(row));
        // What is in bfloat16 stays the same.
        for (uint32_t k = columns.begin; k < columns.end; ++k) gathered.push_back(ToBf16(row[k]));
      }
      TANDEM_RETURN_IF_ERROR(ops_->Upload(to + uint64_t{first - part.rows.begin} * columns.size(),
                                          gathered.data(), gathered.size() * sizeof(Bf16)));
      TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
    }
    return absl::OkStatus();
  }

  // Numbers of a tensor have been copied.
  absl::Status Report(const TensorView& tensor, uint64_t count) {
    return progress_ == nullptr ? absl::OkStatus()
                                : progress_->Add(tensor.bytes_of(static_cast<int64_t>(count)));
  }

  static uint32_t NumRows(std::initializer_list<RowPart> parts) {
    uint32_t num_rows = 0;
    for (const RowPart& part : parts) num_rows += part.rows.size();
    return num_rows;
  }

  // What is packed, and how.
  struct Packing {
    DeviceFormat format = DeviceFormat::kInt8;
    std::initializer_list<RowPart> parts;  // On top of one another, in whatever their files hold them.
    ShardRange columns;
    std::vector<float> part_scales;  // Of kFp8, each part's; none when every output has its own.
  };
  // Some tiles on their way.
  struct StagedTiles {
    std::vector<uint32_t> words;
    std::vector<Bf16> scales;
    std::vector<float> output_scales;
  };
  // How much of each there is for one tile.
  struct TileSize {
    uint64_t words = 0;
    uint64_t scales = 0;
    uint64_t output_scales = 0;
  };

  absl::StatusOr<DeviceMatrix> Packed(DeviceFormat format, std::initializer_list<RowPart> parts,
                                      ShardRange columns) {
    Packing packing = {.format = format, .parts = parts, .columns = columns, .part_scales = {}};
    DeviceMatrix matrix = {
        .format = format, .outputs = NumRows(parts), .depth = columns.size(), .data = {}, .packed = {}};
    const uint32_t num_tiles = NumPackedTiles(matrix.outputs);
    const uint64_t num_groups = NumInputGroups(matrix.depth);
    const bool has_floats = format == DeviceFormat::kFp8;
    const TileSize size = {.words = num_groups * PackedGroupWords(format),
                           .scales = has_floats ? 0 : num_groups * kPackedOutputs,
                           .output_scales = has_floats ? kPackedOutputs : 0};
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<uint32_t> words,
                            ops_->Allocate<uint32_t>(num_tiles * size.words, "weights"));
    DeviceSpan<Bf16> scales;
    DeviceSpan<float> output_scales;
    if (has_floats) {
      TANDEM_ASSIGN_OR_RETURN(output_scales,
                              ops_->Allocate<float>(num_tiles * size.output_scales, "weights"));
      for (const RowPart& part : parts) {
        if (scales_matrices_) packing.part_scales.push_back(ScaleOf(part.tensor));
      }
    } else {
      TANDEM_ASSIGN_OR_RETURN(scales, ops_->Allocate<Bf16>(num_tiles * size.scales, "weights"));
    }
    matrix.packed = {words, scales, output_scales};
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
      TANDEM_RETURN_IF_ERROR(UploadAll(staged.words, words.data + first * size.words));
      TANDEM_RETURN_IF_ERROR(UploadAll(staged.scales, scales.data + first * size.scales));
      TANDEM_RETURN_IF_ERROR(
          UploadAll(staged.output_scales, output_scales.data + first * size.output_scales));
      TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
    }
    for (const RowPart& part : parts) {
      TANDEM_RETURN_IF_ERROR(Report(part.tensor, uint64_t{part.rows.size()} * columns.size()));
    }
    return matrix;
  }

  template <typename T>
  absl::Status UploadAll(const std::vector<T>& from, T* to) {
    return from.empty() ? absl::OkStatus() : ops_->Upload(to, from.data(), from.size() * sizeof(T));
  }

  // Scales are those of whole tensors and of whole outputs, whatever part of them the rank has: weights do
  // not depend on the number of ranks.
  static void PackTile(const Packing& packing, uint32_t tile, uint32_t* words, Bf16* scales,
                       float* output_scales) {
    std::vector<float> weights(static_cast<size_t>(packing.parts.begin()->tensor.shape.at(1)));
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

  // One for a whole tensor.
  float ScaleOf(const TensorView& tensor) {
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

  const bool scales_matrices_;
  const float norm_offset_;
  ThreadTeam* const packers_;  // Null where nothing is packed.
  DeviceOps* const ops_;
  LoadProgress* const progress_;
};

// Some outputs of a matrix, from a whole tile on.
DeviceMatrix OutputsOf(const DeviceMatrix& matrix, ShardRange outputs) {
  DeviceMatrix part = matrix;
  part.outputs = outputs.size();
  if (matrix.format == DeviceFormat::kBf16) {
    part.data =
        matrix.data.Part(uint64_t{outputs.begin} * matrix.depth, uint64_t{outputs.size()} * matrix.depth);
    return part;
  }
  const uint64_t first_group = uint64_t{outputs.begin / kPackedOutputs} * NumInputGroups(matrix.depth);
  const uint64_t num_groups = uint64_t{NumPackedTiles(outputs.size())} * NumInputGroups(matrix.depth);
  const uint32_t group_words = PackedGroupWords(matrix.format);
  part.packed.words = matrix.packed.words.Part(first_group * group_words, num_groups * group_words);
  part.packed.scales = matrix.packed.scales.Part(first_group * kPackedOutputs, num_groups * kPackedOutputs);
  return part;
}

ShardRange Times(ShardRange range, uint32_t factor) {
  return {range.begin * factor, range.end * factor};
}

absl::StatusOr<DeviceWeights::Layer> UploadLayer(const LayerWeights& from, const ModelConfig& config,
                                                 DeviceFormat format, const Shard& shard, Uploader* up) {
  const auto head_dim = static_cast<uint32_t>(config.head_dim);
  const ShardRange queries = Times(shard.heads, head_dim);
  const ShardRange kv = Times(shard.kv_heads, head_dim);
  const ShardRange middle = shard.intermediate;
  DeviceWeights::Layer to;
  TANDEM_ASSIGN_OR_RETURN(to.input_norm, up->Norm(from.input_norm, from.input_norm_bias));
  TANDEM_ASSIGN_OR_RETURN(to.query_key_value,
                          up->Rows(format, {{from.query, queries}, {from.key, kv}, {from.value, kv}}));
  TANDEM_ASSIGN_OR_RETURN(
      to.query_key_value_bias,
      up->Vector({{from.query_bias, queries}, {from.key_bias, kv}, {from.value_bias, kv}}));
  TANDEM_ASSIGN_OR_RETURN(to.query_norm, up->NormVector(from.query_norm));
  TANDEM_ASSIGN_OR_RETURN(to.key_norm, up->NormVector(from.key_norm));
  TANDEM_ASSIGN_OR_RETURN(to.attention_out, up->Columns(format, from.attention_out, queries));
  TANDEM_ASSIGN_OR_RETURN(to.attention_output_norm,
                          up->Norm(from.attention_output_norm, from.attention_output_norm_bias));
  TANDEM_ASSIGN_OR_RETURN(to.mlp_norm, up->Norm(from.post_attention_norm, from.post_attention_norm_bias));
  if (from.gate.exists()) {
    TANDEM_ASSIGN_OR_RETURN(to.gate_up, up->Rows(format, {{from.gate, middle}, {from.up, middle}}));
  } else {
    TANDEM_ASSIGN_OR_RETURN(to.gate_up, up->Rows(format, {{from.up, middle}}));
  }
  TANDEM_ASSIGN_OR_RETURN(to.gate_up_bias, up->Vector({{from.gate_bias, middle}, {from.up_bias, middle}}));
  TANDEM_ASSIGN_OR_RETURN(to.down, up->Columns(format, from.down, middle));
  if (config.block.parallel) {
    TANDEM_ASSIGN_OR_RETURN(to.down_bias, up->Sum(from.attention_out_bias, from.down_bias));
  } else {
    TANDEM_ASSIGN_OR_RETURN(to.attention_out_bias, up->Vector(from.attention_out_bias));
    TANDEM_ASSIGN_OR_RETURN(to.down_bias, up->Vector(from.down_bias));
  }
  TANDEM_ASSIGN_OR_RETURN(to.mlp_output_norm, up->Norm(from.mlp_output_norm, from.mlp_output_norm_bias));
  return to;
}

absl::StatusOr<DeviceWeights::Head> UploadHead(const HeadWeights& from, DeviceFormat format, Uploader* up) {
  DeviceWeights::Head to;
  const auto outputs = static_cast<uint32_t>(from.projection.shape.at(0));
  TANDEM_ASSIGN_OR_RETURN(to.projection, up->Rows(format, {{from.projection, {0, outputs}}}));
  TANDEM_ASSIGN_OR_RETURN(to.projection_bias, up->Vector(from.projection_bias));
  TANDEM_ASSIGN_OR_RETURN(to.embedding_norm, up->Vector(from.embedding_norm));
  TANDEM_ASSIGN_OR_RETURN(to.state_norm, up->Vector(from.state_norm));
  return to;
}

}  // namespace

absl::StatusOr<DeviceWeights> UploadWeights(const Model& model, WeightType type, const Shard& shard,
                                            DeviceOps* ops, LoadProgress* progress) {
  const DeviceFormat format = FormatFor(type);
  std::unique_ptr<ThreadTeam> packers;
  if (format != DeviceFormat::kBf16) {
    TANDEM_ASSIGN_OR_RETURN(packers, MakePackers());
  }
  Uploader up(type == WeightType::kFp8Tensor, model.config().block.norm_weight_offset, packers.get(), ops,
              progress);
  const DeviceFormat format_of_tokens = FormatOfTokens(type);
  DeviceWeights weights;
  // Before the others take their time.
  if (format_of_tokens == DeviceFormat::kBf16) {
    TANDEM_RETURN_IF_ERROR(CheckType(model.embedding()));
    TANDEM_RETURN_IF_ERROR(CheckType(model.output()));
  }
  for (const LayerWeights& layer : model.layers()) {
    TANDEM_ASSIGN_OR_RETURN(DeviceWeights::Layer uploaded,
                            UploadLayer(layer, model.config(), format, shard, &up));
    weights.layers.push_back(uploaded);
  }
  const OuterWeights& outer = model.outer();
  TANDEM_ASSIGN_OR_RETURN(weights.final_norm, up.Norm(model.final_norm(), outer.final_norm_bias));
  TANDEM_ASSIGN_OR_RETURN(weights.positions, up.Matrix(outer.positions));
  TANDEM_ASSIGN_OR_RETURN(weights.embedding_norm, up.Norm(outer.embedding_norm, outer.embedding_norm_bias));
  const auto vocab = static_cast<uint32_t>(model.config().vocab_size);
  TANDEM_ASSIGN_OR_RETURN(weights.embedding, up.Rows(format_of_tokens, {{model.embedding(), {0, vocab}}}));
  ShardRange outputs = shard.vocab;
  if (model.config().head.has_value()) {
    TANDEM_ASSIGN_OR_RETURN(weights.head, UploadHead(model.head(), format, &up));
    outputs = {0, static_cast<uint32_t>(model.output().shape.at(0))};
  }
  // A head may share both with its target, whose output matrix may be the embedding.
  if (model.output().data == model.embedding().data && model.output().shape == model.embedding().shape) {
    TANDEM_ASSIGN_OR_RETURN(weights.output, up.Prepared(OutputsOf(weights.embedding, outputs)));
  } else {
    TANDEM_ASSIGN_OR_RETURN(weights.output, up.Rows(format_of_tokens, {{model.output(), outputs}}));
  }
  TANDEM_RETURN_IF_ERROR(ops->Synchronize());
  return weights;
}

absl::StatusOr<std::vector<DevicePosition>> UploadMedusa(const Model& model, WeightType type, DeviceOps* ops,
                                                         LoadProgress* progress) {
  const DeviceFormat format = FormatFor(type);
  std::unique_ptr<ThreadTeam> packers;
  if (format != DeviceFormat::kBf16) {
    TANDEM_ASSIGN_OR_RETURN(packers, MakePackers());
  }
  Uploader up(type == WeightType::kFp8Tensor, model.config().block.norm_weight_offset, packers.get(), ops,
              progress);
  const auto hidden = static_cast<uint32_t>(model.config().hidden_size);
  const auto vocab = static_cast<uint32_t>(model.config().vocab_size);
  std::vector<DevicePosition> positions;
  for (const HeadWeights::Position& from : model.head().positions) {
    DevicePosition to;
    for (size_t i = 0; i < from.blocks.size(); ++i) {
      TANDEM_ASSIGN_OR_RETURN(to.blocks.emplace_back(), up.Rows(format, {{from.blocks[i], {0, hidden}}}));
      TANDEM_ASSIGN_OR_RETURN(to.block_biases.emplace_back(), up.Vector(from.block_biases[i]));
    }
    if (model.config().head->shares_output && !positions.empty()) {
      to.output = positions.front().output;
    } else {
      TANDEM_ASSIGN_OR_RETURN(to.output, up.Rows(FormatOfTokens(type), {{from.output, {0, vocab}}}));
    }
    positions.push_back(std::move(to));
  }
  TANDEM_RETURN_IF_ERROR(ops->Synchronize());
  return positions;
}

}  // namespace tandem

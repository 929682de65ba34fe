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
    case WeightType::kAsInFile:
    case WeightType::kBf16:
      break;
  }
  return DeviceFormat::kBf16;
}

// Matrices of tokens have more bits than the others, as the CPU engine's.
DeviceFormat FormatOfTokens(WeightType type) {
  const DeviceFormat format = FormatFor(type);
  return format == DeviceFormat::kInt4 ? DeviceFormat::kInt8 : format;
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

class Uploader {
 public:
  Uploader(ThreadTeam* packers, DeviceOps* ops, LoadProgress* progress)
      : packers_(packers), ops_(ops), progress_(progress) {}

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
      const auto* from = static_cast<const char*>(part.tensor.data);
      const uint64_t count = uint64_t{part.rows.size()} * depth;
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
  absl::StatusOr<DeviceSpan<const float>> Vector(std::initializer_list<RowPart> parts) {
    std::vector<float> joined;
    for (const RowPart& part : parts) {
      if (!part.tensor.exists()) continue;
      std::vector<float> floats(part.rows.size());
      ConvertRowsToFloat(part.tensor, part.rows.begin, part.rows.size(), absl::MakeSpan(floats));
      joined.insert(joined.end(), floats.begin(), floats.end());
      TANDEM_RETURN_IF_ERROR(Report(part.tensor, part.rows.size()));
    }
    if (joined.empty()) return DeviceSpan<const float>();
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<float> data, ops_->Allocate<float>(joined.size(), "weights"));
    TANDEM_RETURN_IF_ERROR(ops_->Upload(data.data, joined.data(), joined.size() * sizeof(float)));
    TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
    return DeviceSpan<const float>(data);
  }
  absl::StatusOr<DeviceSpan<const float>> Vector(const TensorView& tensor) {
    if (!tensor.exists()) return DeviceSpan<const float>();
    return Vector({{tensor, {0, static_cast<uint32_t>(tensor.shape.at(0))}}});
  }

  absl::StatusOr<DeviceMatrix> Prepared(const DeviceMatrix& matrix) {
    if (matrix.format == DeviceFormat::kBf16) {
      TANDEM_RETURN_IF_ERROR(ops_->PrepareProduct(matrix.outputs, matrix.depth));
    }
    return matrix;
  }

 private:
  static absl::Status CheckType(const TensorView& tensor) {
    if (tensor.dtype == TensorView::DType::kBF16) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("the model's files hold a matrix ", ShapeText(tensor.shape), " in ",
                     tensor.dtype == TensorView::DType::kF32 ? "float32" : "float16",
                     "; on a GPU matrices are kept in bfloat16, and nothing is rounded silently: convert the "
                     "model first"));
  }
  // Numbers of a tensor have been copied.
  absl::Status Report(const TensorView& tensor, uint64_t count) {
    const uint64_t number_bytes = tensor.dtype == TensorView::DType::kF32 ? 4 : 2;
    return progress_ == nullptr ? absl::OkStatus() : progress_->Add(count * number_bytes);
  }

  static uint32_t NumRows(std::initializer_list<RowPart> parts) {
    uint32_t num_rows = 0;
    for (const RowPart& part : parts) num_rows += part.rows.size();
    return num_rows;
  }

  // Inputs `columns` of the parts on top of one another, in whatever their files hold them, rounded to
  // `format`; some tiles at a time.
  absl::StatusOr<DeviceMatrix> Packed(DeviceFormat format, std::initializer_list<RowPart> parts,
                                      ShardRange columns) {
    DeviceMatrix matrix = {
        .format = format, .outputs = NumRows(parts), .depth = columns.size(), .data = {}, .packed = {}};
    const uint32_t num_tiles = NumPackedTiles(matrix.outputs);
    const uint64_t tile_words = uint64_t{NumInputGroups(matrix.depth)} * PackedGroupWords(format);
    const uint64_t tile_scales = uint64_t{NumInputGroups(matrix.depth)} * kPackedOutputs;
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<uint32_t> words,
                            ops_->Allocate<uint32_t>(num_tiles * tile_words, "weights"));
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<Bf16> scales,
                            ops_->Allocate<Bf16>(num_tiles * tile_scales, "weights"));
    matrix.packed = {words, scales};
    const auto most_tiles = static_cast<uint32_t>(
        std::clamp<uint64_t>(kStagedBytes / (tile_words * sizeof(uint32_t)), 1, num_tiles));
    for (uint32_t first = 0; first < num_tiles; first += most_tiles) {
      const uint32_t count = std::min(most_tiles, num_tiles - first);
      std::vector<uint32_t> staged_words(count * tile_words);
      std::vector<Bf16> staged_scales(count * tile_scales);
      packers_->Run([&](int thread) {
        const Share share = ShareOf(count, thread, packers_->num_threads());
        for (uint32_t tile = share.begin; tile < share.end; ++tile) {
          PackTile(format, parts, columns, first + tile, &staged_words[tile * tile_words],
                   &staged_scales[tile * tile_scales]);
        }
      });
      TANDEM_RETURN_IF_ERROR(ops_->Upload(words.data + first * tile_words, staged_words.data(),
                                          staged_words.size() * sizeof(uint32_t)));
      TANDEM_RETURN_IF_ERROR(ops_->Upload(scales.data + first * tile_scales, staged_scales.data(),
                                          staged_scales.size() * sizeof(Bf16)));
      TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
    }
    for (const RowPart& part : parts) {
      TANDEM_RETURN_IF_ERROR(Report(part.tensor, uint64_t{part.rows.size()} * columns.size()));
    }
    return matrix;
  }

  static void PackTile(DeviceFormat format, std::initializer_list<RowPart> parts, ShardRange columns,
                       uint32_t tile, uint32_t* words, Bf16* scales) {
    std::vector<float> weights(static_cast<size_t>(parts.begin()->tensor.shape.at(1)));
    const uint32_t begin = tile * kPackedOutputs;
    uint32_t part_begin = 0;
    for (const RowPart& part : parts) {
      const uint32_t part_end = part_begin + part.rows.size();
      for (uint32_t output = std::max(begin, part_begin); output < std::min(begin + kPackedOutputs, part_end);
           ++output) {
        ConvertRowsToFloat(part.tensor, part.rows.begin + (output - part_begin), 1, absl::MakeSpan(weights));
        PackOutput(format, absl::MakeConstSpan(weights).subspan(columns.begin, columns.size()),
                   output - begin, words, scales);
      }
      part_begin = part_end;
    }
  }

  ThreadTeam* const packers_;
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
  TANDEM_ASSIGN_OR_RETURN(to.input_norm, up->Vector(from.input_norm));
  TANDEM_ASSIGN_OR_RETURN(to.query_key_value,
                          up->Rows(format, {{from.query, queries}, {from.key, kv}, {from.value, kv}}));
  TANDEM_ASSIGN_OR_RETURN(
      to.query_key_value_bias,
      up->Vector({{from.query_bias, queries}, {from.key_bias, kv}, {from.value_bias, kv}}));
  TANDEM_ASSIGN_OR_RETURN(to.query_norm, up->Vector(from.query_norm));
  TANDEM_ASSIGN_OR_RETURN(to.key_norm, up->Vector(from.key_norm));
  TANDEM_ASSIGN_OR_RETURN(to.attention_out, up->Columns(format, from.attention_out, queries));
  TANDEM_ASSIGN_OR_RETURN(to.attention_out_bias, up->Vector(from.attention_out_bias));
  TANDEM_ASSIGN_OR_RETURN(to.post_attention_norm, up->Vector(from.post_attention_norm));
  TANDEM_ASSIGN_OR_RETURN(to.gate_up, up->Rows(format, {{from.gate, middle}, {from.up, middle}}));
  TANDEM_ASSIGN_OR_RETURN(to.gate_up_bias, up->Vector({{from.gate_bias, middle}, {from.up_bias, middle}}));
  TANDEM_ASSIGN_OR_RETURN(to.down, up->Columns(format, from.down, middle));
  TANDEM_ASSIGN_OR_RETURN(to.down_bias, up->Vector(from.down_bias));
  return to;
}

}  // namespace

absl::StatusOr<DeviceWeights> UploadWeights(const Model& model, WeightType type, const Shard& shard,
                                            DeviceOps* ops, LoadProgress* progress) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadTeam> packers, MakePackers());
  Uploader up(packers.get(), ops, progress);
  const DeviceFormat format = FormatFor(type);
  const DeviceFormat format_of_tokens = FormatOfTokens(type);
  DeviceWeights weights;
  for (const LayerWeights& layer : model.layers()) {
    TANDEM_ASSIGN_OR_RETURN(DeviceWeights::Layer uploaded,
                            UploadLayer(layer, model.config(), format, shard, &up));
    weights.layers.push_back(uploaded);
  }
  TANDEM_ASSIGN_OR_RETURN(weights.final_norm, up.Vector(model.final_norm()));
  const auto vocab = static_cast<uint32_t>(model.config().vocab_size);
  TANDEM_ASSIGN_OR_RETURN(weights.embedding, up.Rows(format_of_tokens, {{model.embedding(), {0, vocab}}}));
  if (model.config().tied_embeddings) {
    TANDEM_ASSIGN_OR_RETURN(weights.output, up.Prepared(OutputsOf(weights.embedding, shard.vocab)));
  } else {
    TANDEM_ASSIGN_OR_RETURN(weights.output, up.Rows(format_of_tokens, {{model.output(), shard.vocab}}));
  }
  TANDEM_RETURN_IF_ERROR(ops->Synchronize());
  return weights;
}

}  // namespace tandem

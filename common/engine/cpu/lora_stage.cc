#include "common/engine/cpu/lora_stage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/adapter_fit.h"

namespace tandem {
namespace {

// Rows in one work item.
constexpr uint32_t kReducedRows = 16;
// As many rows as kernels process together.
constexpr uint32_t kTilesAtOnce = 4;

// A matrix of zeros with this many outputs, for the outputs before a part's own.
TensorView ZerosLike(const TensorView& b, uint32_t outputs, std::vector<float>* zeros) {
  zeros->assign(static_cast<size_t>(outputs) * static_cast<size_t>(b.shape[1]) + 1, 0.0f);
  return {.dtype = TensorView::DType::kF32, .shape = {outputs, b.shape[1]}, .data = zeros->data()};
}

}  // namespace

// A pair and the position of its outputs.
struct LoraStage::PlacedPair {
  const LoraPair* pair = nullptr;
  LoraProduct product = LoraProduct::kQueryKeyValue;
  uint32_t first_output = 0;
};

LoraStage::LoraStage(const ModelConfig& config, const KernelTable& kernels, ThreadTeam* team,
                     uint32_t max_rows)
    : config_(config), kernels_(kernels), team_(team), max_rows_(max_rows) {}

absl::StatusOr<std::unique_ptr<LoraStage>> LoraStage::Create(const ModelConfig& config,
                                                             const KernelTable& kernels, ThreadTeam* team,
                                                             uint32_t max_rows) {
  std::unique_ptr<LoraStage> stage(new LoraStage(config, kernels, team, max_rows));
  for (int i = 0; i < team->num_threads(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(stage->scratch_.emplace_back().products,
                            RowBuffer::Allocate(max_rows, kTilesAtOnce * kTileOutputs));
  }
  return stage;
}

size_t LoraStage::InputOf(LoraProduct product) {
  switch (product) {
    case LoraProduct::kQueryKeyValue:
      return 0;
    case LoraProduct::kAttentionOut:
      return 1;
    case LoraProduct::kGate:
    case LoraProduct::kUp:
      return 2;
    case LoraProduct::kDown:
      break;
  }
  return 3;
}

absl::StatusOr<LoraStage::Input> LoraStage::PackInput(absl::Span<const PlacedPair> pairs) {
  Input input;
  std::vector<TensorView> reductions;
  uint32_t num_reduced = 0;
  std::vector<float> zeros;
  for (const PlacedPair& placed : pairs) {
    const LoraPair& pair = *placed.pair;
    if (!pair.exists()) continue;
    Part part{.product = placed.product,
              .first_reduced = num_reduced,
              .first_tile = placed.first_output / kTileOutputs,
              .skipped = placed.first_output % kTileOutputs,
              .scale = pair.scale};
    // Pairs with one `a` come from one tensor, and are neighbours.
    if (!reductions.empty() && reductions.back().data == pair.a.data) {
      part.first_reduced -= static_cast<uint32_t>(pair.a.shape[0]);
    } else {
      reductions.push_back(pair.a);
      num_reduced += static_cast<uint32_t>(pair.a.shape[0]);
    }
    const TensorView before = ZerosLike(pair.b, part.skipped, &zeros);
    TANDEM_ASSIGN_OR_RETURN(part.b,
                            PackedMatrix::Pack({before, pair.b}, WeightFormat::kF32, kernels_, team_));
    input.parts.push_back(std::move(part));
  }
  if (reductions.empty()) return input;
  TANDEM_ASSIGN_OR_RETURN(input.a, PackedMatrix::Pack(reductions, WeightFormat::kF32, kernels_, team_));
  return input;
}

// Makes the buffers of reduced inputs wide enough for the adapter.
absl::Status LoraStage::MakeRoom(const Packed& adapter) {
  for (size_t i = 0; i < kNumInputs; ++i) {
    uint32_t widest = 0;
    for (const auto& layer : adapter.layers) widest = std::max(widest, layer[i].a.num_outputs());
    if (widest <= reduced_[i].width()) continue;
    TANDEM_ASSIGN_OR_RETURN(reduced_[i], RowBuffer::Allocate(max_rows_, widest));
  }
  groups_.reserve(adapters_.size() + 1);
  return absl::OkStatus();
}

absl::StatusOr<AdapterId> LoraStage::AddAdapter(const LoraAdapter& adapter) {
  TANDEM_RETURN_IF_ERROR(CheckAdapterFits(adapter, config_));
  const auto query = static_cast<uint32_t>(config_.query_size());
  const auto kv = static_cast<uint32_t>(config_.kv_size());
  Packed packed;
  for (const LoraLayer& layer : adapter.layers()) {
    const std::vector<PlacedPair> inputs[kNumInputs] = {
        {{&layer.query, LoraProduct::kQueryKeyValue, 0},
         {&layer.key, LoraProduct::kQueryKeyValue, query},
         {&layer.value, LoraProduct::kQueryKeyValue, query + kv}},
        {{&layer.attention_out, LoraProduct::kAttentionOut, 0}},
        {{&layer.gate, LoraProduct::kGate, 0}, {&layer.up, LoraProduct::kUp, 0}},
        {{&layer.down, LoraProduct::kDown, 0}}};
    auto& to = packed.layers.emplace_back();
    for (size_t i = 0; i < kNumInputs; ++i) {
      TANDEM_ASSIGN_OR_RETURN(to[i], PackInput(inputs[i]));
    }
  }
  TANDEM_RETURN_IF_ERROR(MakeRoom(packed));
  adapters_.emplace(++last_, std::move(packed));
  return last_;
}

absl::Status LoraStage::DropAdapter(AdapterId adapter) {
  if (adapters_.erase(adapter) > 0) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("adapter ", adapter, ": this engine does not hold it"));
}

void LoraStage::Plan(absl::Span<const ActiveRow> rows) {
  groups_.clear();
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const AdapterId adapter = rows[i].row->adapter;
    if (adapter == kNoAdapter) continue;
    const Packed& packed = adapters_.find(adapter)->second;
    if (groups_.empty() || groups_.back().adapter != &packed) groups_.push_back({&packed, {i, i}});
    groups_.back().rows.end = i + 1;
  }
}

void LoraStage::Reduce(int thread, size_t layer, LoraProduct product, const ProductInputs& inputs) {
  const auto num_threads = static_cast<uint32_t>(team_->num_threads());
  const size_t which = InputOf(product);
  // A single thread has nothing to share, and kernels are faster with several tiles.
  const uint32_t at_once = num_threads == 1 ? kTilesAtOnce : 1;
  uint32_t item = 0;
  for (const Group& group : groups_) {
    const PackedMatrix& a = group.adapter->layers[layer][which].a;
    for (uint32_t tile = 0; tile < a.num_tiles(); tile += at_once) {
      for (uint32_t row = group.rows.begin; row < group.rows.end; row += kReducedRows) {
        if (item++ % num_threads != static_cast<uint32_t>(thread)) continue;
        a.Multiply({tile, std::min(tile + at_once, a.num_tiles())}, inputs,
                   Share{row, std::min(row + kReducedRows, group.rows.end)}, reduced_[which].rows());
      }
    }
  }
}

void LoraStage::Add(int thread, size_t layer, LoraProduct product, Share tiles, float* const* outputs) const {
  const size_t which = InputOf(product);
  for (const Group& group : groups_) {
    for (const Part& part : group.adapter->layers[layer][which].parts) {
      if (part.product != product) continue;
      AddPart(part, which, group.rows, tiles, scratch_[static_cast<size_t>(thread)].products, outputs);
    }
  }
}

void LoraStage::AddPart(const Part& part, size_t input, Share rows, Share tiles, const RowBuffer& products,
                        float* const* outputs) const {
  const uint32_t begin = std::max(tiles.begin, part.first_tile);
  const uint32_t end = std::min(tiles.end, part.first_tile + part.b.num_tiles());
  const RowBuffer& reduced = reduced_[input];
  for (uint32_t tile = begin; tile < end; tile += kTilesAtOnce) {
    const Share own = {tile - part.first_tile, std::min(tile + kTilesAtOnce, end) - part.first_tile};
    part.b.MultiplyFloats(own, reduced.row(rows.begin) + part.first_reduced, reduced.stride(),
                          rows.end - rows.begin, products.rows());
    const uint32_t first = own.begin == 0 ? part.skipped : 0;
    const uint32_t size =
        std::min(own.end * kTileOutputs, part.b.num_outputs()) - own.begin * kTileOutputs - first;
    for (uint32_t row = rows.begin; row < rows.end; ++row) {
      float* const addend = products.row(row - rows.begin) + first;
      if (part.scale != 1.0f) kernels_.scale(part.scale, size, addend);
      kernels_.add(addend, size, outputs[row] + size_t{tile} * kTileOutputs + first);
    }
  }
}

}  // namespace tandem

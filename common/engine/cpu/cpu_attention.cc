#include "common/engine/cpu/cpu_attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status_macros.h"

namespace tandem {
namespace {

// Work items per thread. A thread takes the next item when it is done with one. More items even out
// differences in length; fewer items let more rows share what they load.
constexpr uint32_t kItemsPerThread = 3;

uint32_t NumBlocks(const RowContext& context) {
  return (context.num_committed + kBlockTokens - 1) / kBlockTokens;
}

uint32_t NumSharedBlocks(const RowContext& a, const RowContext& b) {
  const uint32_t least = std::min(NumBlocks(a), NumBlocks(b));
  // Rows of one session usually name the same list, at the same address.
  if (a.blocks.data() == b.blocks.data()) return least;
  return static_cast<uint32_t>(
      std::mismatch(a.blocks.begin(), a.blocks.begin() + least, b.blocks.begin()).first - a.blocks.begin());
}

// Sorts rows by their lists of blocks. Rows that share the start of their contexts become neighbours: what
// two rows share, all rows between them share too.
bool ComesBefore(const RowContext& a, const RowContext& b) {
  const uint32_t shared = NumSharedBlocks(a, b);
  if (shared < NumBlocks(a) && shared < NumBlocks(b)) return a.blocks[shared] < b.blocks[shared];
  // Tails count only after the blocks. Otherwise a long tail would be listed in two places.
  if (NumBlocks(a) != NumBlocks(b)) return NumBlocks(a) < NumBlocks(b);
  return a.length() < b.length();
}

constexpr uint32_t DivideRoundingUp(uint32_t a, uint32_t b) {
  return (a + b - 1) / b;
}

}  // namespace

CpuAttention::CpuAttention(const ModelConfig& config, const KernelTable& kernels, ThreadTeam* team)
    : config_(config),
      kernels_(kernels),
      team_(team),
      num_kv_heads_(static_cast<uint32_t>(config.num_kv_heads)),
      heads_per_kv_(static_cast<uint32_t>(config.num_heads / config.num_kv_heads)),
      scale_(static_cast<float>(
          config.block.attention_scale.value_or(1.0 / std::sqrt(static_cast<double>(config.head_dim))))) {
  if (config.block.positions == PositionKind::kAlibi) slopes_ = AlibiSlopes(config.num_heads);
}

absl::StatusOr<std::unique_ptr<CpuAttention>> CpuAttention::Create(const ModelConfig& config,
                                                                   const KernelTable& kernels,
                                                                   ThreadTeam* team, const Options& options) {
  std::unique_ptr<CpuAttention> attention(new CpuAttention(config, kernels, team));
  TANDEM_ASSIGN_OR_RETURN(attention->kv_, KvStore::Create(config, options.kv_type, options.num_blocks));
  attention->query_stride_ =
      options.query_stride > 0 ? options.query_stride : static_cast<size_t>(config.head_dim);
  attention->output_stride_ =
      options.output_stride > 0 ? options.output_stride : static_cast<size_t>(config.value_dim());
  TANDEM_RETURN_IF_ERROR(attention->BuildRotations(options.max_context));
  attention->FindWindows(options.max_rows);
  TANDEM_RETURN_IF_ERROR(attention->AllocateScratch(options));
  return attention;
}

absl::Status CpuAttention::BuildRotations(uint32_t max_context) {
  if (config_.block.positions != PositionKind::kRotary) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(rotary_, RotaryTable::Build(config_, max_context));
  if (!config_.block.local_rope_theta.has_value()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(local_rotary_, RotaryTable::BuildLocal(config_, max_context));
  return absl::OkStatus();
}

void CpuAttention::ReachPositions(absl::Span<const ActiveRow> rows) {
  uint32_t longest = 0;
  for (const ActiveRow& active : rows) longest = std::max(longest, active.position + 1);
  rotary_.ExtendTo(longest);
  local_rotary_.ExtendTo(longest);
}

bool CpuAttention::LooksAhead(uint32_t layer) const {
  if (!config_.head.has_value() || config_.head->block.num_slots == 0) return false;
  const HeadConfig::Block& block = config_.head->block;
  return config_.window(layer) > 0 ? block.windowed_layers_look_ahead : block.full_layers_look_ahead;
}

void CpuAttention::FindWindows(uint32_t max_rows) {
  // 0 means no window, and is the widest.
  const auto sees_more = [](const WindowRows& a, const WindowRows& b) {
    return std::pair(a.window - 1, a.looks_ahead) > std::pair(b.window - 1, b.looks_ahead);
  };
  std::vector<WindowRows> of_layers;
  for (uint32_t layer = 0; layer < static_cast<uint32_t>(config_.num_layers); ++layer) {
    of_layers.push_back({static_cast<uint32_t>(config_.window(layer)), LooksAhead(layer), {}});
  }
  windows_ = of_layers;
  std::sort(windows_.begin(), windows_.end(), sees_more);
  const auto is_same = [](const WindowRows& a, const WindowRows& b) {
    return a.window == b.window && a.looks_ahead == b.looks_ahead;
  };
  windows_.erase(std::unique(windows_.begin(), windows_.end(), is_same), windows_.end());
  for (WindowRows& of_window : windows_) of_window.rows.reserve(max_rows);
  for (const WindowRows& of_layer : of_layers) {
    const auto found = std::find_if(windows_.begin(), windows_.end(),
                                    [&](const WindowRows& known) { return is_same(known, of_layer); });
    window_of_layer_.push_back(static_cast<uint32_t>(found - windows_.begin()));
  }
}

absl::Status CpuAttention::AllocateScratch(const Options& options) {
  const auto head_dim = static_cast<uint64_t>(config_.head_dim);
  const uint64_t value_stride = (static_cast<uint64_t>(config_.value_dim()) + kLanes - 1) / kLanes * kLanes;
  const auto allocate = [](uint64_t num_floats) {
    return AlignedBuffer::Allocate(num_floats, sizeof(float), "attention's scratch");
  };
  for (int thread = 0; thread < team_->num_threads(); ++thread) {
    ThreadScratch scratch;
    if (ResolvedKvType(options.kv_type) != KvType::kF32) {
      constexpr uint64_t kPositions = uint64_t{kAttentionBlocks} * kBlockTokens;
      TANDEM_ASSIGN_OR_RETURN(scratch.wide_keys, allocate(kPositions * head_dim));
      TANDEM_ASSIGN_OR_RETURN(scratch.wide_values, allocate(kPositions * value_stride));
    }
    TANDEM_ASSIGN_OR_RETURN(scratch.scores, allocate(uint64_t{kMaxQueries} * kScoreStride));
    TANDEM_ASSIGN_OR_RETURN(scratch.sums, allocate(kMaxQueries * value_stride));
    TANDEM_ASSIGN_OR_RETURN(scratch.totals, allocate(uint64_t{kMaxQueries} * kLanes));
    TANDEM_ASSIGN_OR_RETURN(scratch.greatest, allocate(kMaxQueries));
    thread_scratch_.push_back(std::move(scratch));
  }
  order_.reserve(options.max_rows);
  groups_.reserve(options.max_rows);
  return absl::OkStatus();
}

void CpuAttention::Plan(absl::Span<const ActiveRow> rows, const RowBuffer& query_key_value,
                        const RowBuffer& output) {
  OrderRows(rows);
  ReachPositions(rows);
  for (WindowRows& of_window : windows_) {
    of_window.rows.clear();
    for (size_t i = 0; i < rows.size(); ++i) {
      const RowContext& context = rows[order_[i]].row->context;
      const uint32_t window = of_window.window;
      AttentionRow row;
      row.queries = query_key_value.row(order_[i]);
      row.outputs = output.row(order_[i]);
      row.blocks = context.blocks.data();
      row.tail = context.tail.data();
      row.num_committed = context.num_committed;
      const uint32_t num_seen = of_window.looks_ahead ? context.length() : rows[order_[i]].position + 1;
      row.num_tail = num_seen - context.num_committed;
      const uint32_t window_end = rows[order_[i]].window_end;
      row.first_position = window > 0 && window_end > window ? window_end - window : 0;
      if (i > 0) row.num_shared_blocks = NumSharedBlocks(rows[order_[i - 1]].row->context, context);
      of_window.rows.push_back(row);
    }
  }
  SplitHeads(static_cast<uint32_t>(rows.size()));
  GroupRows();
}

void CpuAttention::OrderRows(absl::Span<const ActiveRow> rows) {
  order_.resize(rows.size());
  for (uint32_t i = 0; i < order_.size(); ++i) order_[i] = i;
  std::sort(order_.begin(), order_.end(), [rows](uint32_t a, uint32_t b) {
    return ComesBefore(rows[a].row->context, rows[b].row->context);
  });
}

// Heads that share keys and values are computed together if enough work for every thread remains.
void CpuAttention::SplitHeads(uint32_t num_rows) {
  const uint32_t num_items = std::max(1u, num_rows * num_kv_heads_);
  const uint32_t wanted_parts =
      std::min(heads_per_kv_, DivideRoundingUp(static_cast<uint32_t>(team_->num_threads()), num_items));
  heads_per_item_ = std::min(DivideRoundingUp(heads_per_kv_, wanted_parts), kMaxQueries);
  parts_per_kv_ = DivideRoundingUp(heads_per_kv_, heads_per_item_);
}

// Groups are made for the widest window. They only divide the work; results do not depend on them.
void CpuAttention::GroupRows() {
  const std::vector<AttentionRow>& rows = windows_.front().rows;
  uint64_t num_positions = 0;
  const auto positions_of = [](const AttentionRow& row) {
    return uint64_t{row.num_committed} + row.num_tail - row.first_position;
  };
  for (const AttentionRow& row : rows) num_positions += positions_of(row);
  // A single thread needs no balance.
  const auto num_threads = static_cast<uint32_t>(team_->num_threads());
  const uint32_t items_per_group = num_kv_heads_ * parts_per_kv_;
  const uint32_t num_groups =
      num_threads == 1 ? 1 : DivideRoundingUp(kItemsPerThread * num_threads, items_per_group);
  const uint64_t most_positions = (num_positions + num_groups - 1) / num_groups;
  const uint32_t most_rows = kMaxQueries / heads_per_item_;
  groups_.clear();
  uint64_t in_group = 0;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const uint64_t positions = positions_of(rows[i]);
    if (groups_.empty() || i - groups_.back().begin == most_rows || in_group + positions > most_positions) {
      groups_.push_back({i, i});
      in_group = 0;
    }
    in_group += positions;
    groups_.back().end = i + 1;
  }
}

const RotaryTable* CpuAttention::RotationOf(uint32_t layer) const {
  const LayerVariant variant = config_.block.layer(layer);
  if (config_.block.positions != PositionKind::kRotary || !variant.rotates) return nullptr;
  return variant.is_local && config_.block.local_rope_theta.has_value() ? &local_rotary_ : &rotary_;
}

void CpuAttention::Turn(uint32_t layer, uint32_t position, float* numbers) const {
  if (const RotaryTable* const rotation = RotationOf(layer)) rotation->Rotate(position, numbers);
}

void CpuAttention::NormaliseHeads(const std::vector<float>& norm, int32_t num_heads, float* heads) const {
  if (norm.empty()) return;
  const auto head_dim = static_cast<size_t>(config_.head_dim);
  const float epsilon = config_.rms_norm_epsilon;
  if (config_.block.qk_norm == QkNorm::kAll) {
    kernels_.rms_norm(heads, norm.data(), norm.size(), epsilon, heads);
    return;
  }
  for (int32_t h = 0; h < num_heads; ++h, heads += head_dim) {
    kernels_.rms_norm(heads, norm.data(), head_dim, epsilon, heads);
  }
}

void CpuAttention::Prepare(int thread, uint32_t layer, absl::Span<const ActiveRow> rows,
                           const std::vector<float>& query_norm, const std::vector<float>& key_norm,
                           const RowBuffer& query_key_value) {
  BeginLayer(thread);
  const auto head_dim = static_cast<size_t>(config_.head_dim);
  const RotaryTable* const rotation = RotationOf(layer);
  const Share share = ShareOf(static_cast<uint32_t>(rows.size()), thread, team_->num_threads());
  for (uint32_t i = share.begin; i < share.end; ++i) {
    float* const query = query_key_value.row(i);
    float* const key = query + config_.query_size();
    NormaliseHeads(query_norm, config_.num_heads, query);
    NormaliseHeads(key_norm, config_.num_kv_heads, key);
    if (rotation != nullptr) {
      float* head = query;
      for (int32_t h = 0; h < config_.num_heads + config_.num_kv_heads; ++h, head += head_dim) {
        rotation->Rotate(rows[i].position, head);
      }
    }
    kv_.Write(layer, rows[i].slot, key, key + config_.kv_size());
  }
}

void CpuAttention::StoreKeysAndValues(int thread, uint32_t layer, absl::Span<const ActiveRow> rows,
                                      const std::vector<float>& key_norm, const RowBuffer& query_key_value) {
  const RotaryTable* const rotation = RotationOf(layer);
  const Share share = ShareOf(static_cast<uint32_t>(rows.size()), thread, team_->num_threads());
  for (uint32_t i = share.begin; i < share.end; ++i) {
    float* const key = query_key_value.row(i) + config_.query_size();
    NormaliseHeads(key_norm, config_.num_kv_heads, key);
    for (int32_t h = 0; rotation != nullptr && h < config_.num_kv_heads; ++h) {
      rotation->Rotate(rows[i].position, key + h * config_.head_dim);
    }
    kv_.Write(layer, rows[i].slot, key, key + config_.kv_size());
  }
}

void CpuAttention::Attend(int thread, uint32_t layer, const std::vector<float>& sinks) {
  ThreadScratch& scratch = thread_scratch_[static_cast<size_t>(thread)];
  AttentionArgs args;
  args.head_dim = static_cast<uint32_t>(config_.head_dim);
  args.value_dim = static_cast<uint32_t>(config_.value_dim());
  args.query_stride = query_stride_;
  args.output_stride = output_stride_;
  args.scale = scale_;
  args.score_cap = config_.block.score_cap;
  args.wide_keys = scratch.wide_keys.data<float>();
  args.wide_values = scratch.wide_values.data<float>();
  args.scores = scratch.scores.data<float>();
  args.sums = scratch.sums.data<float>();
  args.totals = scratch.totals.data<float>();
  args.greatest = scratch.greatest.data<float>();
  const auto num_items = static_cast<uint32_t>(groups_.size()) * num_kv_heads_ * parts_per_kv_;
  for (;;) {
    const uint32_t item = next_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= num_items) return;
    AttendItem(layer, sinks, item, &args);
  }
}

void CpuAttention::AttendItem(uint32_t layer, const std::vector<float>& sinks, uint32_t item,
                              AttentionArgs* args) const {
  const uint32_t part = item % parts_per_kv_;
  const uint32_t kv_head = item / parts_per_kv_ % num_kv_heads_;
  const Group& group = groups_[item / parts_per_kv_ / num_kv_heads_];
  args->rows = &windows_[window_of_layer_[layer]].rows[group.begin];
  args->num_rows = group.end - group.begin;
  const uint32_t first_head = part * heads_per_item_;
  args->first_head = kv_head * heads_per_kv_ + first_head;
  args->num_heads = std::min(heads_per_item_, heads_per_kv_ - first_head);
  if (!slopes_.empty()) args->slopes = &slopes_[args->first_head];
  if (!sinks.empty()) args->sinks = &sinks[args->first_head];
  kv_.Locate(layer, kv_head, args);
  kernels_.attend(*args);
}

}  // namespace tandem

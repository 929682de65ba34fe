#include "common/engine/cpu/expert_stage.h"

#include <algorithm>

#include "common/base/status_macros.h"

namespace tandem {
namespace {

// The same as CpuAttention's.
constexpr uint32_t kExpertItemsPerThread = 3;

constexpr uint32_t AlignedSlot(uint32_t slot) {
  return (slot + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
}

}  // namespace

ExpertStage::ExpertStage(const ModelConfig& config, const KernelTable& kernels, ThreadTeam* team)
    : block_(config.block),
      num_experts_(static_cast<uint32_t>(config.block.experts.num_experts)),
      num_chosen_(static_cast<uint32_t>(config.block.experts.num_chosen)),
      hidden_size_(static_cast<uint32_t>(config.hidden_size)),
      kernels_(kernels),
      team_(team) {}

absl::StatusOr<std::unique_ptr<ExpertStage>> ExpertStage::Create(const ModelConfig& config,
                                                                 const KernelTable& kernels, ThreadTeam* team,
                                                                 uint32_t max_rows) {
  std::unique_ptr<ExpertStage> stage(new ExpertStage(config, kernels, team));
  TANDEM_RETURN_IF_ERROR(stage->Allocate(max_rows));
  return stage;
}

absl::Status ExpertStage::Allocate(uint32_t max_rows) {
  const ExpertsDescription& experts = block_.experts;
  const auto intermediate = static_cast<uint32_t>(experts.intermediate_size);
  const uint32_t num_choices = max_rows * num_chosen_;
  // Each group except the last may end with slots that no row uses.
  const uint32_t most_groups = std::min(num_experts_, num_choices);
  const uint32_t num_slots = num_choices + most_groups * (kRowAlignment - 1);
  TANDEM_ASSIGN_OR_RETURN(router_outputs_,
                          RowBuffer::Allocate(max_rows, num_experts_ + (experts.shared_gate ? 1 : 0)));
  TANDEM_ASSIGN_OR_RETURN(gathered_, ProductInputs::Allocate(kernels_, num_slots, hidden_size_));
  TANDEM_ASSIGN_OR_RETURN(middle_.gate, ProductInputs::Allocate(kernels_, num_slots, intermediate));
  TANDEM_ASSIGN_OR_RETURN(middle_.up, RowBuffer::Allocate(num_slots, intermediate));
  TANDEM_ASSIGN_OR_RETURN(outputs_, RowBuffer::Allocate(num_slots, hidden_size_));
  TANDEM_ASSIGN_OR_RETURN(sums_, RowBuffer::Allocate(max_rows, hidden_size_));
  for (int i = 0; i < team_->num_threads(); ++i) choosers_.emplace_back(experts, kernels_);
  choices_.resize(num_choices);
  next_slot_.resize(num_experts_);
  groups_.reserve(most_groups);
  return absl::OkStatus();
}

absl::Span<ExpertChoice> ExpertStage::ChoicesOf(uint32_t row) {
  return {&choices_[size_t{row} * num_chosen_], num_chosen_};
}

void ExpertStage::Run(int thread, const CpuWeights::Experts& experts, const ProductInputs& inputs,
                      uint32_t num_rows) {
  const PackedMatrix& router = experts.router;
  const Share tiles = MyShare(router.num_tiles(), thread);
  router.Multiply(tiles, inputs, {0, num_rows}, router_outputs_.rows());
  AddBias(experts.router_bias, kernels_,
          {tiles.begin * kTileOutputs, std::min(tiles.end * kTileOutputs, num_experts_)}, {0, num_rows},
          router_outputs_.rows());
  team_->Barrier();
  const Share rows = MyShare(num_rows, thread);
  for (uint32_t row = rows.begin; row < rows.end; ++row) {
    choosers_[static_cast<size_t>(thread)].Choose(router_outputs_.row(row), experts.selection_bias,
                                                  ChoicesOf(row));
  }
  team_->Barrier();
  if (thread == 0) GroupRows(num_rows);
  team_->Barrier();
  Gather(thread, experts.each.front().up, inputs, num_rows);
  team_->Barrier();
  MultiplyGatesAndUps(experts);
  team_->Barrier();
  MultiplyDowns(experts);
  team_->Barrier();
  for (uint32_t row = rows.begin; row < rows.end; ++row) Sum(row);
}

void ExpertStage::GroupRows(uint32_t num_rows) {
  const absl::Span<ExpertChoice> choices(choices_.data(), size_t{num_rows} * num_chosen_);
  std::fill(next_slot_.begin(), next_slot_.end(), 0u);
  for (const ExpertChoice& choice : choices) ++next_slot_[choice.expert];
  groups_.clear();
  uint32_t end = 0;
  for (uint32_t expert = 0; expert < num_experts_; ++expert) {
    if (next_slot_[expert] == 0) continue;
    const uint32_t begin = AlignedSlot(end);
    end = begin + next_slot_[expert];
    groups_.push_back({expert, {begin, end}});
    next_slot_[expert] = begin;
  }
  for (ExpertChoice& choice : choices) choice.slot = next_slot_[choice.expert]++;
  num_read_ += groups_.size();
  const auto num_groups = static_cast<uint32_t>(groups_.size());
  const auto num_threads = static_cast<uint32_t>(team_->num_threads());
  // A single thread needs no balance.
  parts_per_group_ =
      num_threads == 1 ? 1 : (kExpertItemsPerThread * num_threads + num_groups - 1) / num_groups;
  next_gate_item_.store(0, std::memory_order_relaxed);
  next_down_item_.store(0, std::memory_order_relaxed);
}

void ExpertStage::Gather(int thread, const PackedMatrix& next, const ProductInputs& inputs,
                         uint32_t num_rows) {
  const Share mine = MyShare(num_rows * num_chosen_, thread);
  for (uint32_t i = mine.begin; i < mine.end; ++i) {
    const uint32_t slot = choices_[i].slot;
    std::copy_n(inputs.floats().row(i / num_chosen_), hidden_size_, gathered_.floats().row(slot));
    gathered_.Prepare(next.kernel(), {slot, slot + 1}, {0, hidden_size_});
  }
}

void ExpertStage::MultiplyGatesAndUps(const CpuWeights::Experts& experts) {
  const uint32_t num_items = static_cast<uint32_t>(groups_.size()) * parts_per_group_;
  for (;;) {
    const uint32_t item = next_gate_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= num_items) return;
    const Group& group = groups_[item / parts_per_group_];
    const CpuWeights::Mlp& mlp = experts.each[group.expert];
    const Share tiles =
        GroupedTiles(mlp, static_cast<int>(item % parts_per_group_), static_cast<int>(parts_per_group_));
    MultiplyGateAndUp(block_, kernels_, mlp, tiles, group.slots, gathered_, &middle_);
  }
}

void ExpertStage::MultiplyDowns(const CpuWeights::Experts& experts) {
  const uint32_t num_items = static_cast<uint32_t>(groups_.size()) * parts_per_group_;
  for (;;) {
    const uint32_t item = next_down_item_.fetch_add(1, std::memory_order_relaxed);
    if (item >= num_items) return;
    const Group& group = groups_[item / parts_per_group_];
    const CpuWeights::Mlp& mlp = experts.each[group.expert];
    const Share tiles = ShareOf(mlp.down.num_tiles(), static_cast<int>(item % parts_per_group_),
                                static_cast<int>(parts_per_group_));
    mlp.down.Multiply(tiles, middle_.gate, group.slots, outputs_.rows());
    AddBias(mlp.down_bias, kernels_,
            {tiles.begin * kTileOutputs, std::min(tiles.end * kTileOutputs, hidden_size_)}, group.slots,
            outputs_.rows());
  }
}

void ExpertStage::Sum(uint32_t row) {
  float* const sum = sums_.row(row);
  std::fill_n(sum, hidden_size_, 0.0f);
  for (const ExpertChoice& choice : ChoicesOf(row)) {
    float* const output = outputs_.row(choice.slot);
    kernels_.scale(choice.weight, hidden_size_, output);
    kernels_.add(output, hidden_size_, sum);
  }
}

float ExpertStage::SharedWeight(uint32_t row) const {
  float exponent = -router_outputs_.row(row)[num_experts_];
  kernels_.exponential(1, &exponent);
  return 1.0f / (1.0f + exponent);
}

}  // namespace tandem

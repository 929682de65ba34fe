#include "common/engine/cpu/block_stage.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/feed_forward.h"
#include "common/engine/step_validator.h"
#include "common/model/tensor_convert.h"

namespace tandem {

BlockStage::BlockStage(const ModelConfig& config, const CpuWeights& weights, const KernelTable& kernels,
                       ThreadTeam* team, CpuAttention* attention)
    : config_(config), weights_(weights), kernels_(kernels), team_(team), attention_(attention) {}

uint32_t BlockStage::NumKvBlocks(const ModelConfig& config, uint32_t max_rows) {
  const auto num_slots = static_cast<uint32_t>(config.head->block.num_slots);
  return (max_rows / num_slots * num_slots + kBlockTokens - 1) / kBlockTokens;
}

absl::StatusOr<std::unique_ptr<BlockStage>> BlockStage::Create(const ModelConfig& config,
                                                               const CpuWeights& weights,
                                                               const KernelTable& kernels, ThreadTeam* team,
                                                               CpuAttention* attention,
                                                               const Options& options) {
  std::unique_ptr<BlockStage> stage(new BlockStage(config, weights, kernels, team, attention));
  stage->blocks_per_pass_ = options.max_rows / stage->num_slots();
  if (stage->blocks_per_pass_ == 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_rows is ", options.max_rows, "; expected at least ",
                                                   stage->num_slots(), ", the slots of the head's block"));
  }
  stage->first_slot_ = options.num_blocks * kBlockTokens;
  const auto hidden = static_cast<uint32_t>(config.hidden_size);
  TANDEM_ASSIGN_OR_RETURN(
      stage->states_, ProductInputs::Allocate(kernels, options.max_rows, weights.head.projection.depth()));
  TANDEM_ASSIGN_OR_RETURN(stage->projected_, RowBuffer::Allocate(options.max_rows, hidden));
  TANDEM_ASSIGN_OR_RETURN(stage->context_, ProductInputs::Allocate(kernels, options.max_rows, hidden));
  TANDEM_ASSIGN_OR_RETURN(
      stage->query_key_value_,
      RowBuffer::Allocate(options.max_rows, static_cast<uint32_t>(config.projected_size())));
  if (const PackedMatrix& outputs = weights.head.tokens_before_outputs; outputs.num_outputs() > 0) {
    TANDEM_ASSIGN_OR_RETURN(stage->before_, ProductInputs::Allocate(kernels, 1, outputs.depth()));
    TANDEM_ASSIGN_OR_RETURN(stage->added_by_token_, RowBuffer::Allocate(1, outputs.num_outputs()));
  }
  stage->read_.reserve(options.max_rows);
  stage->tails_.resize(stage->blocks_per_pass_);
  stage->slots_.resize(size_t{stage->blocks_per_pass_} * stage->num_slots());
  return stage;
}

void BlockStage::ReadStates(absl::Span<const StepRow> rows) {
  read_.clear();
  for (const StepRow& row : rows) {
    read_.push_back({.row = &row, .position = row.context.length() - 1, .slot = LastSlot(row.context)});
  }
  attention_->ReachPositions(read_);
  team_->Run([this, rows](int thread) { ReadStatesIn(thread, rows); });
}

void BlockStage::ReadStatesIn(int thread, absl::Span<const StepRow> rows) {
  const auto num_rows = static_cast<uint32_t>(rows.size());
  const Share mine = ShareOf(num_rows, thread, team_->num_threads());
  for (uint32_t i = mine.begin; i < mine.end; ++i) {
    std::ranges::copy(rows[i].state->values, states_.floats().row(i));
  }
  const PackedMatrix& projection = weights_.head.projection;
  states_.Prepare(projection.kernel(), mine, {0, projection.depth()});
  team_->Barrier();
  projection.Multiply(ShareOf(projection.num_tiles(), thread, team_->num_threads()), states_, num_rows,
                      projected_.rows());
  team_->Barrier();
  for (uint32_t i = mine.begin; i < mine.end; ++i) {
    kernels_.rms_norm(projected_.row(i), weights_.head.state_norm.data(), projected_.width(),
                      config_.rms_norm_epsilon, context_.floats().row(i));
  }
  // Nobody needs the queries: the first tiles.
  const uint32_t first = static_cast<uint32_t>(config_.query_size()) / kTileOutputs;
  for (uint32_t layer = 0; layer < weights_.layers.size(); ++layer) {
    const CpuWeights::Layer& of_layer = weights_.layers[layer];
    const PackedMatrix& matrix = of_layer.query_key_value;
    context_.Prepare(matrix.kernel(), mine, {0, matrix.depth()});
    team_->Barrier();
    const Share share = ShareOf(matrix.num_tiles() - first, thread, team_->num_threads());
    const Share tiles = {first + share.begin, first + share.end};
    matrix.Multiply(tiles, context_, num_rows, query_key_value_.rows());
    AddBias(of_layer.query_key_value_bias, kernels_, matrix.OutputsOf(tiles), {0, num_rows},
            query_key_value_.rows());
    team_->Barrier();
    attention_->StoreKeysAndValues(thread, layer, read_, of_layer.key_norm, query_key_value_);
  }
}

uint32_t BlockStage::LayOut(absl::Span<const StepRow> rows, size_t* next, absl::Span<ActiveRow> active) {
  num_laid_out_ = 0;
  for (; *next < rows.size() && num_laid_out_ < blocks_per_pass_; ++*next) {
    if (rows[*next].logits != nullptr) AddBlock(rows[*next], active);
  }
  return num_laid_out_ * num_slots();
}

void BlockStage::AddBlock(const StepRow& row, absl::Span<ActiveRow> active) {
  const HeadConfig::Block& block = config_.head->block;
  const uint32_t first = num_laid_out_ * num_slots();
  std::vector<SlotId>& tail = tails_[num_laid_out_++];
  tail.assign(row.context.tail.begin(), row.context.tail.end());
  for (uint32_t i = 0; i < num_slots(); ++i) tail.push_back(first_slot_ + first + i);
  const RowContext context = {
      .blocks = row.context.blocks, .num_committed = row.context.num_committed, .tail = tail};
  const uint32_t anchor = row.context.length();
  float* logits = row.logits;
  for (uint32_t i = 0; i < num_slots(); ++i) {
    StepRow& slot = slots_[first + i];
    slot = {.token = i == 0 ? row.token : block.mask_token, .context = context};
    if (i > 0 || block.guesses_from_anchor) {
      slot.logits = logits;
      logits += config_.vocab_size;
    }
    const uint32_t position = anchor + i;
    active[first + i] = {.row = &slot,
                         .position = position,
                         .slot = first_slot_ + first + i,
                         .window_end = block.window_ends_at_anchor ? anchor : position + 1};
  }
}

void BlockStage::AddTokenBefore(TokenId token, float* logits) {
  const PackedMatrix& outputs = weights_.head.tokens_before_outputs;
  ConvertRowsToFloat(weights_.head.tokens_before, token, 1, {before_.floats().row(0), outputs.depth()});
  before_.Prepare(outputs.kernel(), {0, 1}, {0, outputs.depth()});
  team_->Run([&](int thread) {
    outputs.Multiply(ShareOf(outputs.num_tiles(), thread, team_->num_threads()), before_, 1,
                     added_by_token_.rows());
  });
  const float* const added = added_by_token_.row(0);
  const TokenIds& tokens = weights_.head.draft_tokens;
  if (tokens.empty()) kernels_.add(added, outputs.num_outputs(), logits);
  for (size_t i = 0; i < tokens.size(); ++i) logits[tokens[i]] += added[i];
}

void BlockStage::Embed(int thread, absl::Span<const ActiveRow> slots, const RowBuffer& hidden) const {
  const Share mine = ShareOf(static_cast<uint32_t>(slots.size()), thread, team_->num_threads());
  for (uint32_t i = mine.begin; i < mine.end; ++i) {
    ConvertRowsToFloat(weights_.head.embedding, slots[i].row->token, 1, {hidden.row(i), hidden.width()});
  }
}

}  // namespace tandem

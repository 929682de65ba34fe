#include "common/engine/cuda/cuda_medusa_engine.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cuda/row_products.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<CudaMedusaEngine>> CudaMedusaEngine::Create(const Model& model,
                                                                           const CudaEngine::Options& options,
                                                                           std::unique_ptr<DeviceOps> ops) {
  constexpr uint32_t kMostRows = 65536;
  constexpr uint32_t kMostBlocks = std::numeric_limits<SlotId>::max() / kBlockTokens;
  constexpr uint32_t kUsualBlocks = 4096;
  if (options.max_rows < 1 || options.max_rows > kMostRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_rows is ", options.max_rows, "; expected 1 to ", kMostRows));
  }
  if (options.num_blocks > kMostBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_blocks is ", options.num_blocks, "; expected up to ", kMostBlocks));
  }
  if (const uint32_t world_size = ops->parallel().world_size; world_size > 1) {
    return absl::InvalidArgumentError(absl::StrCat("a draft head on ", world_size, " GPUs; expected one"));
  }
  std::unique_ptr<CudaMedusaEngine> engine(
      new CudaMedusaEngine(model.config(), options.max_rows, std::move(ops)));
  engine->num_blocks_ = options.num_blocks != 0 ? options.num_blocks : kUsualBlocks;
  const ModelConfig& config = engine->config_;
  engine->validator_ = std::make_unique<StepValidator>(StepValidator::Options{
      .vocab_size = config.vocab_size,
      .num_blocks = engine->num_blocks_,
      .max_rows = options.max_rows,
      .max_context = std::min(static_cast<uint32_t>(config.max_context), engine->num_blocks_ * kBlockTokens),
      .target_state_size = config.head->state_size()});
  TANDEM_RETURN_IF_ERROR(
      CheckProductMemory(options.weight_type, /*has_experts=*/false, kRowTile, *engine->ops_));
  TANDEM_ASSIGN_OR_RETURN(engine->positions_,
                          UploadMedusa(model, options.weight_type, engine->ops_.get(), options.progress));
  TANDEM_RETURN_IF_ERROR(engine->AllocateScratch(options.weight_type));
  return engine;
}

absl::Status CudaMedusaEngine::AllocateScratch(WeightType weight_type) {
  const uint64_t positions = positions_.size();
  const char* const what = "Medusa heads' activations";
  const uint64_t tile = kRowTile * hidden_size();
  TANDEM_ASSIGN_OR_RETURN(read_, ops_->Allocate<float>(tile, what));
  TANDEM_ASSIGN_OR_RETURN(states_, ops_->Allocate<float>(tile, what));
  TANDEM_ASSIGN_OR_RETURN(products_, ops_->Allocate<float>(tile, what));
  TANDEM_ASSIGN_OR_RETURN(inputs_, ops_->Allocate<Bf16>(tile, what));
  uint64_t output_rows = kRowTile;
  if (config_.head->shares_output) {
    output_rows = PaddedRows(positions * kMostTogether);
    TANDEM_ASSIGN_OR_RETURN(all_inputs_, ops_->Allocate<Bf16>(output_rows * hidden_size(), what));
  }
  TANDEM_ASSIGN_OR_RETURN(rounded_,
                          AllocateRoundedInputs(weight_type, output_rows, hidden_size(), ops_.get()));
  TANDEM_ASSIGN_OR_RETURN(logits_, ops_->Allocate<float>(output_rows * vocab_size(), "logits"));
  TANDEM_ASSIGN_OR_RETURN(void* staged,
                          ops_->AllocateHostBytes(kMostTogether * hidden_size() * sizeof(float), "states"));
  staged_states_ = static_cast<float*>(staged);
  TANDEM_ASSIGN_OR_RETURN(
      staged, ops_->AllocateHostBytes(positions * kMostTogether * vocab_size() * sizeof(float), "logits"));
  staged_logits_ = static_cast<float*>(staged);
  return ops_->Synchronize();
}

absl::Status CudaMedusaEngine::Step(absl::Span<const StepRow> rows) {
  TANDEM_RETURN_IF_ERROR(ops_->BindThread());
  TANDEM_RETURN_IF_ERROR(validator_->CheckRows(rows));
  std::vector<const StepRow*> wanted;
  for (const StepRow& row : rows) {
    if (row.logits == nullptr) continue;
    wanted.push_back(&row);
    if (wanted.size() < kMostTogether) continue;
    TANDEM_RETURN_IF_ERROR(RunHeads(wanted));
    wanted.clear();
  }
  return wanted.empty() ? absl::OkStatus() : RunHeads(wanted);
}

absl::Status CudaMedusaEngine::RunHeads(absl::Span<const StepRow* const> rows) {
  const auto num_rows = static_cast<uint32_t>(rows.size());
  for (uint32_t i = 0; i < num_rows; ++i) {
    std::ranges::copy(rows[i]->state->values, staged_states_ + i * hidden_size());
  }
  TANDEM_RETURN_IF_ERROR(ops_->Upload(read_.data, staged_states_, num_rows * hidden_size() * sizeof(float)));
  const uint64_t row_states = num_rows * hidden_size();
  const uint64_t row_logits = num_rows * vocab_size();
  const bool shares_output = config_.head->shares_output;
  for (uint64_t i = 0; i < positions_.size(); ++i) {
    const DevicePosition& position = positions_[i];
    if (shares_output) {
      TANDEM_RETURN_IF_ERROR(RunBlocks(position, num_rows, all_inputs_.Part(i * row_states, row_states)));
      continue;
    }
    TANDEM_RETURN_IF_ERROR(RunBlocks(position, num_rows, inputs_));
    TANDEM_RETURN_IF_ERROR(
        MultiplyRows(position.output, inputs_, logits_, BucketOf(num_rows), rounded_, ops_.get()));
    TANDEM_RETURN_IF_ERROR(
        ops_->Download(staged_logits_ + i * row_logits, logits_.data, row_logits * sizeof(float)));
  }
  if (shares_output) {
    // The product reads the big matrix once for all positions.
    const uint64_t all_rows = positions_.size() * num_rows;
    TANDEM_RETURN_IF_ERROR(MultiplyRows(positions_.front().output, all_inputs_, logits_,
                                        BucketOf(static_cast<uint32_t>(all_rows)), rounded_, ops_.get()));
    TANDEM_RETURN_IF_ERROR(
        ops_->Download(staged_logits_, logits_.data, all_rows * vocab_size() * sizeof(float)));
  }
  TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
  for (uint32_t row = 0; row < num_rows; ++row) {
    for (uint64_t i = 0; i < positions_.size(); ++i) {
      std::copy_n(staged_logits_ + i * row_logits + row * vocab_size(), vocab_size(),
                  rows[row]->logits + i * vocab_size());
    }
  }
  return absl::OkStatus();
}

absl::Status CudaMedusaEngine::RunBlocks(const DevicePosition& position, uint32_t num_rows,
                                         DeviceSpan<Bf16> states) {
  const auto hidden = static_cast<uint32_t>(hidden_size());
  AddBlockKernel add;
  add.from = read_;
  add.to = states_;
  add.inputs = position.blocks.empty() ? states : inputs_;
  add.hidden_size = hidden;
  TANDEM_RETURN_IF_ERROR(ops_->Launch(add, GateShape(num_rows, hidden)));
  for (size_t i = 0; i < position.blocks.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(
        MultiplyRows(position.blocks[i], inputs_, products_, BucketOf(num_rows), rounded_, ops_.get()));
    add.from = states_;
    add.product = products_;
    add.bias = position.block_biases[i];
    add.inputs = i + 1 == position.blocks.size() ? states : inputs_;
    TANDEM_RETURN_IF_ERROR(ops_->Launch(add, GateShape(num_rows, hidden)));
  }
  return absl::OkStatus();
}

}  // namespace tandem

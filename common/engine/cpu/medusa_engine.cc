#include "common/engine/cpu/medusa_engine.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/kernels.h"
#include "common/engine/cpu/product_inputs.h"
#include "common/engine/cpu/row_buffer.h"
#include "common/engine/cpu/thread_team.h"
#include "common/engine/step_validator.h"

namespace tandem {
namespace {

// The most rows that go through the heads together. Each needs memory for all of them.
constexpr uint32_t kMostTogether = 32;

class MedusaEngine final : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const Model& model, const CpuEngineOptions& options);

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return num_blocks_; }
  uint32_t max_rows() const override { return max_rows_; }
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override { return validator_->CheckCopies(copies); }

 private:
  MedusaEngine() = default;

  absl::Status AllocateScratch();
  uint32_t num_positions() const { return static_cast<uint32_t>(weights_.head.positions.size()); }
  Share MyShare(uint32_t count, int thread) const { return ShareOf(count, thread, team_->num_threads()); }
  // The next matrix for a position's states.
  const PackedMatrix& AfterBlocks(uint32_t position, size_t blocks_done) const;

  // The work of each thread of the team for the rows in wanted_.
  void RunHeads(int thread);
  void ReadStates(int thread);
  void RunBlock(int thread, size_t block);
  void AddToStates(int thread, size_t block);
  void MultiplyOutputs(int thread);

  ModelConfig config_;
  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<ThreadTeam> team_;
  CpuWeights weights_;
  uint32_t num_blocks_ = 0;
  uint32_t max_rows_ = 0;
  std::optional<StepValidator> validator_;

  std::vector<const StepRow*> wanted_;  // Rows with logits, at most kMostTogether.
  std::vector<float> ones_;             // [hidden]
  std::vector<ProductInputs> states_;   // [positions][rows, hidden]
  std::vector<RowBuffer> products_;     // Likewise.
  // [positions * rows, hidden], if all positions share one output matrix.
  ProductInputs all_states_;
  std::vector<float*> logits_;  // Position by position, all rows of each.
};

absl::StatusOr<std::unique_ptr<Engine>> MedusaEngine::Create(const Model& model,
                                                             const CpuEngineOptions& options) {
  std::unique_ptr<MedusaEngine> engine(new MedusaEngine);
  engine->config_ = model.config();
  engine->max_rows_ = options.max_rows;
  // Enough blocks for windows of a few tokens in many sessions.
  constexpr uint32_t kBlocks = 4096;
  engine->num_blocks_ = options.num_blocks != 0 ? options.num_blocks : kBlocks;
  if (engine->num_blocks_ > std::numeric_limits<SlotId>::max() / kBlockTokens) {
    return absl::InvalidArgumentError(absl::StrCat("num_blocks is ", engine->num_blocks_,
                                                   "; expected at most ",
                                                   std::numeric_limits<SlotId>::max() / kBlockTokens));
  }
  TANDEM_ASSIGN_OR_RETURN(engine->kernels_, SelectKernels(options.instruction_set));
  TANDEM_ASSIGN_OR_RETURN(engine->team_, ThreadTeam::Create(options.num_threads, options.cpus));
  TANDEM_ASSIGN_OR_RETURN(engine->weights_, PackWeights(model, options.weight_type, *engine->kernels_,
                                                        engine->team_.get(), options.progress));
  TANDEM_RETURN_IF_ERROR(engine->AllocateScratch());
  return engine;
}

absl::Status MedusaEngine::AllocateScratch() {
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  const uint32_t together = std::min(max_rows_, kMostTogether);
  for (uint32_t position = 0; position < num_positions(); ++position) {
    TANDEM_ASSIGN_OR_RETURN(ProductInputs states, ProductInputs::Allocate(*kernels_, together, hidden));
    TANDEM_ASSIGN_OR_RETURN(RowBuffer products, RowBuffer::Allocate(together, hidden));
    states_.push_back(std::move(states));
    products_.push_back(std::move(products));
  }
  if (config_.head->shares_output) {
    TANDEM_ASSIGN_OR_RETURN(all_states_,
                            ProductInputs::Allocate(*kernels_, together * num_positions(), hidden));
  }
  ones_.assign(hidden, 1.0f);
  wanted_.reserve(together);
  logits_.reserve(size_t{together} * num_positions());
  validator_.emplace(StepValidator::Options{
      .vocab_size = config_.vocab_size,
      .num_blocks = num_blocks_,
      .max_rows = max_rows_,
      .max_context = std::min(static_cast<uint32_t>(config_.max_context), num_blocks_ * kBlockTokens),
      .target_state_size = config_.head->state_size()});
  return absl::OkStatus();
}

absl::Status MedusaEngine::Step(absl::Span<const StepRow> rows) {
  TANDEM_RETURN_IF_ERROR(validator_->CheckRows(rows));
  const size_t together = std::min(max_rows_, kMostTogether);
  size_t next = 0;
  while (next < rows.size()) {
    wanted_.clear();
    for (; next < rows.size() && wanted_.size() < together; ++next) {
      if (rows[next].logits != nullptr) wanted_.push_back(&rows[next]);
    }
    if (wanted_.empty()) break;
    logits_.clear();
    for (uint32_t position = 0; position < num_positions(); ++position) {
      for (const StepRow* row : wanted_) {
        logits_.push_back(row->logits + size_t{position} * static_cast<size_t>(config_.vocab_size));
      }
    }
    team_->Run([this](int thread) { RunHeads(thread); });
  }
  return absl::OkStatus();
}

void MedusaEngine::RunHeads(int thread) {
  ReadStates(thread);
  team_->Barrier();
  for (size_t block = 0; block < static_cast<size_t>(config_.head->num_blocks); ++block) {
    RunBlock(thread, block);
    team_->Barrier();
    AddToStates(thread, block);
    team_->Barrier();
  }
  MultiplyOutputs(thread);
}

const PackedMatrix& MedusaEngine::AfterBlocks(uint32_t position, size_t blocks_done) const {
  const CpuWeights::Head::Position& weights = weights_.head.positions[position];
  if (blocks_done < weights.blocks.size()) return weights.blocks[blocks_done];
  return config_.head->shares_output ? weights_.output : weights.output;
}

void MedusaEngine::ReadStates(int thread) {
  const auto num_rows = static_cast<uint32_t>(wanted_.size());
  const Share rows = MyShare(num_rows, thread);
  for (uint32_t position = 0; position < num_positions(); ++position) {
    ProductInputs& states = states_[position];
    for (uint32_t i = rows.begin; i < rows.end; ++i) {
      std::ranges::copy(wanted_[i]->state->values, states.floats().row(i));
    }
    const PackedMatrix& next = AfterBlocks(position, 0);
    states.Prepare(next.kernel(), rows, {0, next.depth()});
  }
}

// product = W state + b
void MedusaEngine::RunBlock(int thread, size_t block) {
  const auto num_rows = static_cast<uint32_t>(wanted_.size());
  for (uint32_t position = 0; position < num_positions(); ++position) {
    const PackedMatrix& matrix = weights_.head.positions[position].blocks[block];
    const std::vector<float>& bias = weights_.head.positions[position].block_biases[block];
    const RowBuffer& product = products_[position];
    const Share tiles = MyShare(matrix.num_tiles(), thread);
    matrix.Multiply(tiles, states_[position], num_rows, product.rows());
    if (bias.empty()) continue;
    const uint32_t begin = std::min(tiles.begin * kTileOutputs, matrix.num_outputs());
    const uint32_t end = std::min(tiles.end * kTileOutputs, matrix.num_outputs());
    for (uint32_t i = 0; i < num_rows; ++i) {
      kernels_->add(bias.data() + begin, end - begin, product.row(i) + begin);
    }
  }
}

// state = state + silu(product)
void MedusaEngine::AddToStates(int thread, size_t block) {
  const auto num_rows = static_cast<uint32_t>(wanted_.size());
  const Share share = MyShare(num_rows * num_positions(), thread);
  for (uint32_t i = share.begin; i < share.end; ++i) {
    const uint32_t position = i / num_rows;
    const uint32_t row = i % num_rows;
    float* const product = products_[position].row(row);
    ProductInputs& states = states_[position];
    kernels_->silu_multiply(ones_.data(), ones_.size(), product);
    kernels_->add(product, ones_.size(), states.floats().row(row));
    const PackedMatrix& next = AfterBlocks(position, block + 1);
    states.Prepare(next.kernel(), {row, row + 1}, {0, next.depth()});
  }
}

void MedusaEngine::MultiplyOutputs(int thread) {
  const auto num_rows = static_cast<uint32_t>(wanted_.size());
  if (!config_.head->shares_output) {
    for (uint32_t position = 0; position < num_positions(); ++position) {
      const PackedMatrix& output = AfterBlocks(position, weights_.head.positions[position].blocks.size());
      output.Multiply(MyShare(output.num_tiles(), thread), states_[position], num_rows,
                      logits_.data() + size_t{position} * num_rows);
    }
    return;
  }
  // The product reads the big matrix once for all positions.
  const uint32_t num_states = num_rows * num_positions();
  const Share share = MyShare(num_states, thread);
  for (uint32_t i = share.begin; i < share.end; ++i) {
    std::copy_n(states_[i / num_rows].floats().row(i % num_rows), ones_.size(), all_states_.floats().row(i));
  }
  all_states_.Prepare(weights_.output.kernel(), share, {0, weights_.output.depth()});
  team_->Barrier();
  weights_.output.Multiply(MyShare(weights_.output.num_tiles(), thread), all_states_, num_states,
                           logits_.data());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateMedusaEngine(const Model& model,
                                                           const CpuEngineOptions& options) {
  return MedusaEngine::Create(model, options);
}

}  // namespace tandem

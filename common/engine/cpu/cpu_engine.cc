#include "common/engine/cpu/cpu_engine.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_attention.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/expert_stage.h"
#include "common/engine/cpu/feed_forward.h"
#include "common/engine/cpu/head_stage.h"
#include "common/engine/cpu/kv_store.h"
#include "common/engine/cpu/medusa_engine.h"
#include "common/engine/cpu/product_inputs.h"
#include "common/engine/cpu/row_buffer.h"
#include "common/engine/cpu/thread_team.h"
#include "common/engine/step_validator.h"

namespace tandem {
namespace {

static_assert(kNumActivationKernels == kNumActivations);

// The outputs of some tiles of a matrix.
Share OutputsOf(Share tiles, const PackedMatrix& matrix) {
  const uint32_t end = std::min(tiles.end * kTileOutputs, matrix.num_outputs());
  return {std::min(tiles.begin * kTileOutputs, end), end};
}

class CpuEngine final : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::shared_ptr<const Model> model,
                                                        const CpuEngineOptions& options);

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return num_blocks_; }
  uint32_t max_rows() const override { return max_rows_; }
  bool has_features() const override { return true; }
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override;
  uint64_t experts_read() const { return experts_ == nullptr ? 0 : experts_->num_read(); }

 private:
  CpuEngine() = default;

  absl::Status AllocateScratch();
  absl::Status AllocateFeedForward();

  // The step, as each thread of the team runs it. Functions below end where the others' results are needed
  // next: the caller puts the barrier.
  void RunStep(int thread);
  void Embed(int thread);
  void ProjectEmbedding(int thread);
  void RunLayer(int thread, uint32_t layer);
  // Attention's outputs into the stream, then what the feed-forward part makes of it.
  void RunSequential(int thread, const CpuWeights::Layer& weights);
  // Both from the same stream, and then both into it.
  void RunParallel(int thread, const CpuWeights::Layer& weights);
  // Into normed_, prepared for the product with `next`.
  void Normalise(int thread, const NormWeights& norm, const PackedMatrix& next);
  // Without weights the row stays as it is.
  void NormaliseRow(const NormWeights& norm, const float* row, float* out) const;
  // Moves the rows that are computed to the end to the front, and there is nothing left of the others.
  void DropFinishedRows(int thread);
  void KeepRowsWithLogits(int thread);
  // Hands out the states after so many layers, of this thread's rows.
  void TakeFeatures(int thread, uint32_t num_layers);
  bool IsComputedToTheEnd(const StepRow& row) const;
  // What a part of a layer ends in.
  struct Addition {
    const PackedMatrix& matrix;
    const std::vector<float>& bias;
    const NormWeights& output_norm;
    const NormWeights& sum_norm;
  };
  // Has barriers of its own where there are norms.
  void AddToStream(int thread, const Addition& addition, const ProductInputs& inputs);
  // Prepares this thread's rows of `inputs` for the product with `next`, once all threads have written
  // theirs. Whether there was anything to do.
  bool PrepareRows(int thread, const PackedMatrix& next, ProductInputs* inputs);
  // The end of it, of one row: norms and adds `addend` to the stream.
  void AddRow(const Addition& addition, uint32_t row, float* addend) const;
  // The feed-forward part as far as the product with `down`, that of experts to their sums. Has barriers of
  // its own where there are experts.
  void FeedForward(int thread, const CpuWeights::Layer& weights);
  // Its outputs into the stream.
  void AddFeedForward(int thread, const CpuWeights::Layer& weights);
  FeedForwardScratch& ScratchOf(const CpuWeights::Layer& weights) {
    return weights.experts.exist() ? shared_ : middle_;
  }
  void ComputeLogits(int thread);
  // What a feed-forward part prepares its inputs for. A router takes them as they are.
  static const PackedMatrix& FirstOf(const CpuWeights::Layer& weights) {
    return weights.mlp.up.num_outputs() > 0 ? weights.mlp.up : weights.experts.router;
  }
  absl::Span<const ActiveRow> ActiveRows() const { return {active_.data(), num_active_}; }
  Share MyShare(uint32_t count, int thread) const { return ShareOf(count, thread, team_->num_threads()); }

  ModelConfig config_;
  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<ThreadTeam> team_;
  CpuWeights weights_;
  std::unique_ptr<HeadStage> head_;      // Of a draft head.
  std::shared_ptr<const Model> mapped_;  // Likewise: rows of its embedding are read from the file.
  std::unique_ptr<CpuAttention> attention_;
  std::unique_ptr<ExpertStage> experts_;  // Of a model with experts.
  uint32_t num_blocks_ = 0;
  uint32_t max_rows_ = 0;
  uint32_t max_context_ = 0;

  std::optional<StepValidator> validator_;

  std::vector<ActiveRow> active_;
  uint32_t num_rows_ = 0;    // Of the step,
  uint32_t num_last_ = 0;    // of these through all of the last layer,
  uint32_t num_wanted_ = 0;  // with logits,
  uint32_t num_active_ = 0;  // and still to be computed.
  bool asks_for_features_ = false;
  std::vector<float*> logits_;
  RowBuffer hidden_;           // [max_rows, hidden]
  ProductInputs normed_;       // [max_rows, hidden]
  RowBuffer projected_;        // [max_rows, hidden]
  ProductInputs attended_;     // [max_rows, query_size]
  RowBuffer query_key_value_;  // [max_rows, query_size + 2 * kv_size]
  FeedForwardScratch middle_;  // [max_rows, intermediate], where layers are dense
  FeedForwardScratch shared_;  // [max_rows, shared_size], where there is a shared expert
  ProductInputs narrow_;       // [max_rows, embedding_size], where that is another width than hidden's
};

absl::StatusOr<uint32_t> CountBlocks(const ModelConfig& config, const CpuEngineOptions& options) {
  if (options.num_blocks != 0) return options.num_blocks;
  const std::optional<uint64_t> block_bytes = KvStore::BytesPerBlock(config, options.kv_type);
  if (!block_bytes.has_value() || *block_bytes == 0 || options.kv_bytes < *block_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_bytes is ", options.kv_bytes, "; one block of ", kBlockTokens, " tokens takes ",
                     block_bytes.value_or(std::numeric_limits<uint64_t>::max()), " bytes"));
  }
  // KvStore says so if there are too many for slot numbers.
  return static_cast<uint32_t>(
      std::min<uint64_t>(options.kv_bytes / *block_bytes, std::numeric_limits<SlotId>::max() / kBlockTokens));
}

absl::StatusOr<std::unique_ptr<Engine>> CpuEngine::Create(std::shared_ptr<const Model> owned_model,
                                                          const CpuEngineOptions& options) {
  const Model& model = *owned_model;
  std::unique_ptr<CpuEngine> engine(new CpuEngine);
  engine->config_ = model.config();
  engine->max_rows_ = options.max_rows;
  TANDEM_ASSIGN_OR_RETURN(engine->kernels_, SelectKernels(options.instruction_set));
  TANDEM_ASSIGN_OR_RETURN(engine->team_, ThreadTeam::Create(options.num_threads, options.cpus));
  TANDEM_ASSIGN_OR_RETURN(engine->num_blocks_, CountBlocks(engine->config_, options));
  engine->max_context_ =
      std::min(static_cast<uint32_t>(engine->config_.max_context), engine->num_blocks_ * kBlockTokens);
  TANDEM_ASSIGN_OR_RETURN(engine->attention_,
                          CpuAttention::Create(engine->config_, *engine->kernels_, engine->team_.get(),
                                               {.kv_type = options.kv_type,
                                                .num_blocks = engine->num_blocks_,
                                                .max_rows = engine->max_rows_,
                                                .max_context = engine->max_context_}));
  TANDEM_RETURN_IF_ERROR(engine->AllocateScratch());
  TANDEM_ASSIGN_OR_RETURN(engine->weights_, PackWeights(model, options.weight_type, *engine->kernels_,
                                                        engine->team_.get(), options.progress));
  if (!engine->config_.head.has_value()) return engine;
  TANDEM_ASSIGN_OR_RETURN(engine->head_,
                          HeadStage::Create(engine->config_, engine->weights_, *engine->kernels_,
                                            engine->team_.get(), engine->max_rows_));
  engine->mapped_ = std::move(owned_model);
  return engine;
}

absl::Status CpuEngine::AllocateScratch() {
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  const auto query = static_cast<uint32_t>(config_.query_size());
  const auto kv = static_cast<uint32_t>(config_.kv_size());
  TANDEM_ASSIGN_OR_RETURN(hidden_, RowBuffer::Allocate(max_rows_, hidden));
  TANDEM_ASSIGN_OR_RETURN(normed_, ProductInputs::Allocate(*kernels_, max_rows_, hidden));
  TANDEM_ASSIGN_OR_RETURN(projected_, RowBuffer::Allocate(max_rows_, hidden));
  TANDEM_ASSIGN_OR_RETURN(attended_, ProductInputs::Allocate(*kernels_, max_rows_, query));
  TANDEM_ASSIGN_OR_RETURN(query_key_value_, RowBuffer::Allocate(max_rows_, query + 2 * kv));
  TANDEM_RETURN_IF_ERROR(AllocateFeedForward());
  if (config_.block.embedding_size > 0) {
    const auto narrow = static_cast<uint32_t>(config_.block.embedding_size);
    TANDEM_ASSIGN_OR_RETURN(narrow_, ProductInputs::Allocate(*kernels_, max_rows_, narrow));
  }
  StepValidator::Options checks{.vocab_size = config_.vocab_size,
                                .num_blocks = num_blocks_,
                                .max_rows = max_rows_,
                                .max_context = max_context_,
                                .feature_layers = static_cast<uint32_t>(config_.num_layers),
                                .own_state_size = hidden};
  if (config_.head.has_value()) checks.target_state_size = config_.head->state_size();
  validator_.emplace(checks);
  active_.resize(max_rows_);
  logits_.resize(max_rows_);
  return absl::OkStatus();
}

absl::Status CpuEngine::AllocateFeedForward() {
  const auto allocate = [this](int32_t size, FeedForwardScratch* scratch) -> absl::Status {
    const auto width = static_cast<uint32_t>(size);
    TANDEM_ASSIGN_OR_RETURN(scratch->gate, ProductInputs::Allocate(*kernels_, max_rows_, width));
    if (!config_.block.gated) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(scratch->up, RowBuffer::Allocate(max_rows_, width));
    return absl::OkStatus();
  };
  bool is_dense = false;
  for (size_t i = 0; i < static_cast<size_t>(config_.num_layers); ++i) {
    if (!config_.block.has_experts(i)) is_dense = true;
  }
  if (is_dense) TANDEM_RETURN_IF_ERROR(allocate(config_.intermediate_size, &middle_));
  const ExpertsDescription& experts = config_.block.experts;
  if (!experts.exist()) return absl::OkStatus();
  if (experts.shared_size > 0) TANDEM_RETURN_IF_ERROR(allocate(experts.shared_size, &shared_));
  TANDEM_ASSIGN_OR_RETURN(experts_, ExpertStage::Create(config_, *kernels_, team_.get(), max_rows_));
  return absl::OkStatus();
}

absl::Status CpuEngine::Step(absl::Span<const StepRow> rows) {
  TANDEM_RETURN_IF_ERROR(validator_->CheckRows(rows));
  if (rows.empty()) return absl::OkStatus();
  num_rows_ = static_cast<uint32_t>(rows.size());
  num_active_ = num_rows_;
  num_last_ = 0;
  num_wanted_ = 0;
  asks_for_features_ = false;
  for (uint32_t i = 0; i < num_rows_; ++i) {
    active_[i] = {&rows[i], rows[i].context.length() - 1, LastSlot(rows[i].context)};
    if (rows[i].logits != nullptr) logits_[num_wanted_++] = rows[i].logits;
    if (rows[i].features != nullptr) asks_for_features_ = true;
    if (IsComputedToTheEnd(rows[i])) ++num_last_;
  }
  if (experts_ != nullptr) experts_->BeginStep();
  if (head_ != nullptr) head_->Plan(ActiveRows(), hidden_);
  attention_->Plan(ActiveRows(), query_key_value_, attended_.floats());
  team_->Run([this](int thread) { RunStep(thread); });
  return absl::OkStatus();
}

absl::Status CpuEngine::CopyKv(absl::Span<const KvCopy> copies) {
  TANDEM_RETURN_IF_ERROR(validator_->CheckCopies(copies));
  for (const KvCopy& copy : copies) attention_->Copy(copy.from, copy.to);
  return absl::OkStatus();
}

void CpuEngine::RunStep(int thread) {
  if (head_ == nullptr) {
    Embed(thread);
  } else {
    head_->Begin(thread, ActiveRows(), hidden_);
  }
  for (uint32_t layer = 0; layer < weights_.layers.size(); ++layer) {
    // The embedding and the previous layer are complete.
    team_->Barrier();
    RunLayer(thread, layer);
  }
  if (num_last_ == 0) return;
  team_->Barrier();
  TakeFeatures(thread, static_cast<uint32_t>(weights_.layers.size()));
  if (num_wanted_ == 0) return;
  if (num_wanted_ < num_last_) {
    team_->Barrier();
    KeepRowsWithLogits(thread);
  }
  ComputeLogits(thread);
  if (head_ == nullptr || head_->drafts_all_tokens()) return;
  team_->Barrier();
  const Share rows = MyShare(num_wanted_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) head_->Spread(thread, logits_[i]);
}

void CpuEngine::Embed(int thread) {
  const bool is_narrow = config_.block.embedding_size > 0;
  const float scale = config_.block.embedding_scale;
  const Share rows = MyShare(num_active_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    float* const embedded = is_narrow ? narrow_.floats().row(i) : hidden_.row(i);
    weights_.embedding().CopyOutput(static_cast<uint32_t>(active_[i].row->token), embedded);
    if (scale != 1.0f) kernels_->scale(scale, weights_.embedding().depth(), embedded);
  }
  if (is_narrow) ProjectEmbedding(thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    float* const hidden = hidden_.row(i);
    if (!weights_.positions.empty()) {
      const uint32_t place = active_[i].position + static_cast<uint32_t>(config_.block.position_offset);
      kernels_->add(&weights_.positions[size_t{place} * hidden_.width()], hidden_.width(), hidden);
    }
    if (weights_.embedding_norm.exists()) NormaliseRow(weights_.embedding_norm, hidden, hidden);
  }
}

void CpuEngine::ProjectEmbedding(int thread) {
  const PackedMatrix& matrix = weights_.project_in;
  narrow_.Prepare(matrix.kernel(), MyShare(num_active_, thread), {0, matrix.depth()});
  team_->Barrier();
  matrix.Multiply(MyShare(matrix.num_tiles(), thread), narrow_, num_active_, hidden_.rows());
  team_->Barrier();
}

void CpuEngine::ComputeLogits(int thread) {
  const bool is_narrow = config_.block.embedding_size > 0;
  Normalise(thread, weights_.final_norm, is_narrow ? weights_.project_out : weights_.output);
  team_->Barrier();
  if (is_narrow) {
    const PackedMatrix& matrix = weights_.project_out;
    matrix.Multiply(MyShare(matrix.num_tiles(), thread), normed_, num_wanted_, narrow_.floats().rows());
    team_->Barrier();
    if (PrepareRows(thread, weights_.output, &narrow_)) team_->Barrier();
  }
  const PackedMatrix& output = weights_.output;
  const Share tiles = MyShare(output.num_tiles(), thread);
  output.Multiply(tiles, is_narrow ? narrow_ : normed_, num_wanted_, logits_.data());
  const uint32_t begin = tiles.begin * kTileOutputs;
  const uint32_t end = std::min(tiles.end * kTileOutputs, output.num_outputs());
  const BlockDescription& block = config_.block;
  for (uint32_t i = 0; i < num_wanted_ && begin < end; ++i) {
    if (block.logit_scale != 1.0f) kernels_->scale(block.logit_scale, end - begin, logits_[i] + begin);
    if (block.logit_cap != 0.0f) kernels_->cap(block.logit_cap, end - begin, logits_[i] + begin);
  }
}

void CpuEngine::RunLayer(int thread, uint32_t layer) {
  const CpuWeights::Layer& weights = weights_.layers[layer];
  const PackedMatrix& projection = weights.query_key_value;
  TakeFeatures(thread, layer);
  if (head_ == nullptr) {
    Normalise(thread, weights.input_norm, projection);
  } else {
    head_->ReadForAttention(thread, ActiveRows(), projection, hidden_);
  }
  team_->Barrier();
  const Share tiles = MyShare(projection.num_tiles(), thread);
  projection.Multiply(tiles, head_ == nullptr ? normed_ : head_->attention_inputs(), num_active_,
                      query_key_value_.rows());
  AddBias(weights.query_key_value_bias, *kernels_, OutputsOf(tiles, projection), {0, num_active_},
          query_key_value_.rows());
  team_->Barrier();
  attention_->Prepare(thread, layer, ActiveRows(), weights.query_norm, weights.key_norm, query_key_value_);
  team_->Barrier();
  if (layer + 1 == weights_.layers.size()) {
    // From here on a row computes only its own logits and features: its keys and values are written.
    if (num_last_ == 0) return;
    if (num_last_ < num_rows_) DropFinishedRows(thread);
  }
  attention_->Attend(thread, layer, weights.sinks);
  team_->Barrier();
  if (PrepareRows(thread, weights.attention_out, &attended_)) team_->Barrier();
  if (config_.block.parallel) {
    RunParallel(thread, weights);
  } else {
    RunSequential(thread, weights);
  }
}

void CpuEngine::RunSequential(int thread, const CpuWeights::Layer& weights) {
  AddToStream(thread,
              {weights.attention_out, weights.attention_out_bias, weights.attention_output_norm,
               weights.attention_sum_norm},
              attended_);
  team_->Barrier();
  Normalise(thread, weights.mlp_norm, FirstOf(weights));
  team_->Barrier();
  FeedForward(thread, weights);
  team_->Barrier();
  AddFeedForward(thread, weights);
}

// Both additions are of the same outputs, but for experts: no thread waits for another between them.
void CpuEngine::RunParallel(int thread, const CpuWeights::Layer& weights) {
  Normalise(thread, weights.mlp_norm, FirstOf(weights));
  team_->Barrier();
  FeedForward(thread, weights);
  team_->Barrier();
  AddToStream(thread,
              {weights.attention_out, weights.attention_out_bias, weights.attention_output_norm,
               weights.attention_sum_norm},
              attended_);
  AddFeedForward(thread, weights);
}

void CpuEngine::Normalise(int thread, const NormWeights& norm, const PackedMatrix& next) {
  const Share rows = MyShare(num_active_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    NormaliseRow(norm, hidden_.row(i), normed_.floats().row(i));
  }
  normed_.Prepare(next.kernel(), rows, {0, next.depth()});
}

void CpuEngine::NormaliseRow(const NormWeights& norm, const float* row, float* out) const {
  const size_t width = hidden_.width();
  if (!norm.exists()) {
    std::copy_n(row, width, out);
  } else if (config_.block.norm == NormKind::kLayer) {
    kernels_->layer_norm(row, norm.weight.data(), norm.bias.data(), width, config_.rms_norm_epsilon, out);
  } else {
    kernels_->rms_norm(row, norm.weight.data(), width, config_.rms_norm_epsilon, out);
  }
}

bool CpuEngine::PrepareRows(int thread, const PackedMatrix& next, ProductInputs* inputs) {
  if (next.kernel().prepare == nullptr) return false;
  inputs->Prepare(next.kernel(), MyShare(num_active_, thread), {0, next.depth()});
  return true;
}

bool CpuEngine::IsComputedToTheEnd(const StepRow& row) const {
  if (row.logits != nullptr) return true;
  const FeatureRequest* const features = row.features;
  return features != nullptr &&
         (features->final_norm || features->layers.back() == static_cast<uint32_t>(config_.num_layers));
}

void CpuEngine::TakeFeatures(int thread, uint32_t num_layers) {
  if (!asks_for_features_) return;
  const Share rows = MyShare(num_active_, thread);
  const uint32_t width = hidden_.width();
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    const FeatureRequest* const request = active_[i].row->features;
    if (request == nullptr) continue;
    const auto found = std::lower_bound(request->layers.begin(), request->layers.end(), num_layers);
    if (found != request->layers.end() && *found == num_layers) {
      std::copy_n(hidden_.row(i), width, request->states + (found - request->layers.begin()) * size_t{width});
    }
    if (num_layers == weights_.layers.size() && request->final_norm) {
      NormaliseRow(weights_.final_norm, hidden_.row(i),
                   request->states + request->layers.size() * size_t{width});
    }
  }
}

void CpuEngine::DropFinishedRows(int thread) {
  if (thread == 0) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < num_active_; ++i) {
      if (!IsComputedToTheEnd(*active_[i].row)) continue;
      if (kept != i) {
        active_[kept] = active_[i];
        std::copy_n(hidden_.row(i), hidden_.width(), hidden_.row(kept));
        std::copy_n(query_key_value_.row(i), config_.query_size(), query_key_value_.row(kept));
      }
      ++kept;
    }
    num_active_ = kept;
    attention_->Plan(ActiveRows(), query_key_value_, attended_.floats());
  }
  team_->Barrier();
}

void CpuEngine::KeepRowsWithLogits(int thread) {
  if (thread == 0) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < num_active_; ++i) {
      if (active_[i].row->logits == nullptr) continue;
      if (kept != i) std::copy_n(hidden_.row(i), hidden_.width(), hidden_.row(kept));
      ++kept;
    }
    num_active_ = kept;
  }
  team_->Barrier();
}

// hidden = sum_norm(hidden + scale * output_norm(matrix * input + bias))
void CpuEngine::AddToStream(int thread, const Addition& addition, const ProductInputs& inputs) {
  const PackedMatrix& matrix = addition.matrix;
  const float scale = config_.block.residual_scale;
  const Share tiles = MyShare(matrix.num_tiles(), thread);
  matrix.Multiply(tiles, inputs, num_active_, projected_.rows());
  const Share outputs = OutputsOf(tiles, matrix);
  AddBias(addition.bias, *kernels_, outputs, {0, num_active_}, projected_.rows());
  if (!addition.output_norm.exists()) {
    const uint32_t size = outputs.end - outputs.begin;
    for (uint32_t i = 0; i < num_active_ && size > 0; ++i) {
      float* const projected = projected_.row(i) + outputs.begin;
      if (scale != 1.0f) kernels_->scale(scale, size, projected);
      kernels_->add(projected, size, hidden_.row(i) + outputs.begin);
    }
    if (!addition.sum_norm.exists()) return;
  }
  team_->Barrier();
  const Share rows = MyShare(num_active_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    if (addition.output_norm.exists()) {
      AddRow(addition, i, projected_.row(i));
    } else {
      NormaliseRow(addition.sum_norm, hidden_.row(i), hidden_.row(i));
    }
  }
}

void CpuEngine::AddRow(const Addition& addition, uint32_t row, float* addend) const {
  const float scale = config_.block.residual_scale;
  const uint32_t width = hidden_.width();
  if (addition.output_norm.exists()) NormaliseRow(addition.output_norm, addend, addend);
  if (scale != 1.0f) kernels_->scale(scale, width, addend);
  kernels_->add(addend, width, hidden_.row(row));
  if (addition.sum_norm.exists()) NormaliseRow(addition.sum_norm, hidden_.row(row), hidden_.row(row));
}

// Each thread makes the same outputs of gate and up, in whole groups that it can prepare for the next
// product.
void CpuEngine::FeedForward(int thread, const CpuWeights::Layer& weights) {
  if (weights.mlp.up.num_outputs() > 0) {
    MultiplyGateAndUp(config_.block, *kernels_, weights.mlp,
                      GroupedTiles(weights.mlp, thread, team_->num_threads()), {0, num_active_}, normed_,
                      &ScratchOf(weights));
  }
  if (weights.experts.exist()) experts_->Run(thread, weights.experts, normed_, num_active_);
}

void CpuEngine::AddFeedForward(int thread, const CpuWeights::Layer& weights) {
  const PackedMatrix& down = weights.mlp.down;
  const Addition addition = {down, weights.mlp.down_bias, weights.mlp_output_norm, weights.mlp_sum_norm};
  if (!weights.experts.exist()) {
    AddToStream(thread, addition, middle_.gate);
    return;
  }
  const bool is_shared = down.num_outputs() > 0;
  if (is_shared) {
    const Share tiles = MyShare(down.num_tiles(), thread);
    down.Multiply(tiles, shared_.gate, num_active_, projected_.rows());
    AddBias(addition.bias, *kernels_, OutputsOf(tiles, down), {0, num_active_}, projected_.rows());
  }
  team_->Barrier();
  const Share rows = MyShare(num_active_, thread);
  for (uint32_t i = rows.begin; i < rows.end; ++i) {
    float* const sum = experts_->sum(i);
    if (is_shared) {
      kernels_->scale(experts_->SharedWeight(i), hidden_.width(), projected_.row(i));
      kernels_->add(projected_.row(i), hidden_.width(), sum);
    }
    AddRow(addition, i, sum);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateCpuEngine(std::shared_ptr<const Model> model,
                                                        const CpuEngineOptions& options) {
  constexpr uint32_t kMostRows = 65536;
  if (options.max_rows < 1 || options.max_rows > kMostRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_rows is ", options.max_rows, "; expected 1 to ", kMostRows));
  }
  TANDEM_RETURN_IF_ERROR(ValidateCpuWeightType(options.weight_type));
  TANDEM_RETURN_IF_ERROR(ValidateWeightType(*model, options.weight_type));
  const std::optional<HeadConfig>& head = model->config().head;
  if (head.has_value() && head->kind == HeadConfig::Kind::kMedusa) return CreateMedusaEngine(*model, options);
  return CpuEngine::Create(std::move(model), options);
}

uint64_t ExpertsRead(const Engine& engine) {
  const auto* const cpu_engine = dynamic_cast<const CpuEngine*>(&engine);
  return cpu_engine == nullptr ? 0 : cpu_engine->experts_read();
}

}  // namespace tandem

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/block_stage.h"
#include "common/engine/cpu/cpu_attention.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cpu/draft_logits.h"
#include "common/engine/cpu/expert_stage.h"
#include "common/engine/cpu/feed_forward.h"
#include "common/engine/cpu/head_stage.h"
#include "common/engine/cpu/kernel_table.h"
#include "common/engine/cpu/latent_stage.h"
#include "common/engine/cpu/lora_stage.h"
#include "common/engine/cpu/product_inputs.h"
#include "common/engine/cpu/row_buffer.h"
#include "common/engine/cpu/thread_team.h"
#include "common/engine/engine.h"
#include "common/engine/step_validator.h"
#include "common/model/model.h"

namespace tandem {

// The engine of cpu_engine.h. cpu_engine.cc creates it and starts steps; cpu_forward.cc is the work of every
// thread of its team in a step.
class CpuEngine final : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::shared_ptr<const Model> model,
                                                        const CpuEngineOptions& options);

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return num_blocks_; }
  uint32_t max_rows() const override { return max_rows_; }
  // A DFlash head's rows are not rows of its layers.
  bool has_features() const override { return block_ == nullptr; }
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override;
  absl::Status AddTokenBefore(TokenId token, absl::Span<float> logits) override;
  // Not for draft heads or latent attention.
  bool has_adapters() const override { return !config_.head.has_value() && latent_ == nullptr; }
  absl::StatusOr<AdapterId> AddAdapter(const LoraAdapter& adapter) override;
  absl::Status DropAdapter(AdapterId adapter) override;
  uint64_t experts_read() const { return experts_ == nullptr ? 0 : experts_->num_read(); }

 private:
  CpuEngine() = default;

  absl::Status CreateAttention(KvType kv_type);
  absl::Status AllocateScratch();
  absl::Status AllocateFeedForward();
  absl::Status CreateHead();
  // Runs the first num_rows_ of active_ through the layers.
  void RunActive();

  // One step, as each thread of the team runs it. The functions below return where they would need other
  // threads' results; the caller adds the barrier.
  void RunStep(int thread);
  void Embed(int thread);
  void ProjectEmbedding(int thread);
  void RunLayer(int thread, uint32_t layer);
  // Decides which of the active rows attend together.
  void PlanAttention();
  // Copies a row's queries to another row's place.
  void MoveQueries(uint32_t from, uint32_t to);
  // Adds attention's outputs to the stream, then those of the feed-forward part.
  void RunSequential(int thread, uint32_t layer);
  // Computes both from the same stream, then adds both to it.
  void RunParallel(int thread, uint32_t layer);
  // Writes the norm to normed_ and prepares it for the product with `next`.
  void Normalise(int thread, const NormWeights& norm, const PackedMatrix& next);
  // Without weights, the row is copied.
  void NormaliseRow(const NormWeights& norm, const float* row, float* out) const;
  // Moves the rows that are needed up to the end to the front, and drops the others.
  void DropFinishedRows(int thread);
  void KeepRowsWithLogits(int thread);
  // Copies the requested states after `num_layers` layers, for this thread's rows.
  void TakeFeatures(int thread, uint32_t num_layers);
  bool IsComputedToTheEnd(const StepRow& row) const;
  // How a part of a layer ends.
  struct Addition {
    const PackedMatrix& matrix;
    const std::vector<float>& bias;
    const NormWeights& output_norm;
    const NormWeights& sum_norm;
    LoraProduct product;  // Which product this is for adapters, and in which layer.
    uint32_t layer;
  };
  Addition AttentionOf(uint32_t layer) const;
  // Call it before a product, when its inputs are complete: computes the adapters' reduced inputs. Has its
  // own barrier if there are adapters.
  void Reduce(int thread, uint32_t layer, LoraProduct product, const ProductInputs& inputs);
  // Call it after the product: adds the adapters' outputs.
  void Adapt(int thread, uint32_t layer, LoraProduct product, Share tiles, float* const* outputs) const {
    if (adapts_) lora_->Add(thread, layer, product, tiles, outputs);
  }
  // Has its own barriers if there are norms.
  void AddToStream(int thread, const Addition& addition, const ProductInputs& inputs);
  // Prepares this thread's rows of `inputs` for the product with `next`, once all threads have written
  // theirs. Returns whether there was anything to do.
  bool PrepareRows(int thread, const PackedMatrix& next, ProductInputs* inputs);
  // The end of this for one row: adds `addend` to the stream, with the norms.
  void AddRow(const Addition& addition, uint32_t row, float* addend) const;
  // The feed-forward part up to the product with `down`; with experts, up to their sums, with its own
  // barriers.
  void FeedForward(int thread, uint32_t layer);
  // Adds its outputs to the stream.
  void AddFeedForward(int thread, uint32_t layer);
  FeedForwardScratch& ScratchOf(const CpuWeights::Layer& weights) {
    return weights.experts.exist() ? shared_ : middle_;
  }
  void ComputeLogits(int thread);
  // The first matrix of a feed-forward part, for which inputs are prepared. A router takes unprepared inputs.
  static const PackedMatrix& FirstOf(const CpuWeights::Layer& weights) {
    return weights.mlp.up.num_outputs() > 0 ? weights.mlp.up : weights.experts.router;
  }
  absl::Span<const ActiveRow> ActiveRows() const { return {active_.data(), num_active_}; }
  Share MyShare(uint32_t count, int thread) const { return ShareOf(count, thread, team_->num_threads()); }

  ModelConfig config_;
  const KernelTable* kernels_ = nullptr;
  std::unique_ptr<ThreadTeam> team_;
  CpuWeights weights_;
  std::unique_ptr<HeadStage> head_;            // Of an EAGLE head or a next-token module.
  std::unique_ptr<BlockStage> block_;          // Of a DFlash head.
  std::unique_ptr<DraftLogits> draft_logits_;  // Of a draft head that drafts some of the tokens.
  std::shared_ptr<const Model> mapped_;  // Of a draft head: rows of its embedding are read from the file.
  std::unique_ptr<CpuAttention> attention_;
  std::unique_ptr<LatentStage> latent_;   // For models with latent attention.
  std::unique_ptr<ExpertStage> experts_;  // Of a model with experts.
  std::unique_ptr<LoraStage> lora_;       // Whether there ever was an adapter.
  bool adapts_ = false;                   // Whether a row of the step has one.
  uint32_t num_blocks_ = 0;
  uint32_t max_rows_ = 0;
  uint32_t max_context_ = 0;

  std::optional<StepValidator> validator_;

  std::vector<ActiveRow> active_;
  uint32_t num_rows_ = 0;    // Rows of the step, or slots of a pass.
  uint32_t num_last_ = 0;    // Those that go through all of the last layer.
  uint32_t num_wanted_ = 0;  // Those with logits.
  uint32_t num_active_ = 0;  // Those still to be computed.
  bool asks_for_features_ = false;
  std::vector<float*> logits_;
  RowBuffer hidden_;           // [max_rows, hidden]
  ProductInputs normed_;       // [max_rows, hidden]
  RowBuffer projected_;        // [max_rows, hidden]
  ProductInputs attended_;     // [max_rows, attended_size]
  RowBuffer query_key_value_;  // [max_rows, projected_size]
  FeedForwardScratch middle_;  // [max_rows, intermediate], for dense layers
  FeedForwardScratch shared_;  // [max_rows, shared_size], for a shared expert
  ProductInputs narrow_;       // [max_rows, embedding_size], if the embedding's width is not hidden_size
};

}  // namespace tandem

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cuda/device_adapters.h"
#include "common/engine/cuda/device_ops.h"
#include "common/engine/cuda/device_weights.h"
#include "common/engine/cuda/shard.h"
#include "common/engine/cuda/step_plan.h"
#include "common/engine/engine.h"
#include "common/engine/step_validator.h"
#include "common/engine/weight_type.h"
#include "common/model/load_progress.h"
#include "common/model/model.h"

namespace tandem {

class RotaryTable;

// An engine on one GPU, or on several with tensor parallelism. Weights are bfloat16, or 8-bit integers,
// 4-bit integers or 8-bit floats with scales. Products accumulate in float32; products of integers are
// exact within each group. Keys, values and inputs of products are bfloat16; everything else is float32.
// Law 1 holds by construction (ADR 9 for bfloat16 products, ADR 11 for integers, ADR 13 for 8-bit floats,
// attention_kernels.h for attention). Bits differ from those of the CPU engine. Except for integer
// weights, they may also differ between kinds of GPU and versions of cuBLASLt.
//
// A step is one upload (the step's words), one graph (captured at warm-up, or when a size first occurs),
// one download and one wait, in Finish: Start returns once the work is queued. The download has one word
// for each row that asks for a choice: the device makes the seeded choice (choice_kernels.h); with several
// ranks, rank 0 makes it from the logits of all ranks. Requested logits come first, 64 rows at a time,
// each with its own download and wait; the last one shares them with the choices if they are of the same
// 64 rows. Features come with the first of these, in float32 and in their own download. The norms that
// have the states at hand store them (row_kernels.h), so rows that ask for none cost nothing. The engine
// does not wait for copies of keys and values, unless two uploads are already in flight.
//
// A draft head of one layer (EAGLE's kinds, MTP) reads one state per row, which is uploaded with the step.
// Its logits are downloaded unchanged, and the host spreads them over the target's vocabulary. A draft
// head makes no choices.
//
// Thread rule: one thread at a time, as with every engine. Another thread may take over between calls: a
// server warms the engine up before its loop runs. A call during another, or between Start and Finish,
// returns FailedPrecondition.
//
// With several ranks, rank 0 is the engine that others call. Every other rank calls Follow, which repeats
// what rank 0 does until rank 0 is destroyed.
class CudaEngine final : public Engine {
 public:
  struct Options {
    // The number of blocks. 0: as many as fit in `kv_bytes`, over all layers of a rank.
    uint32_t num_blocks = 0;
    uint64_t kv_bytes = uint64_t{256} << 20;
    uint32_t max_rows = 512;
    WeightType weight_type = WeightType::kAsInFile;
    bool use_graphs = true;
    // The room for features that is allocated at the start, in states per row, so that no step waits for an
    // allocation. At least one for draft heads.
    uint32_t feature_states = 0;
    LoadProgress* progress = nullptr;  // Not owned, may be null.
  };

  // The weights are copied: `model` need not outlive this call. Errors: those of UploadWeights;
  // InvalidArgument for options out of range, for a model whose attention or products do not fit in the GPU's
  // shared memory, for a draft head on several ranks, for ranks that cannot share the model (MakeShard), and
  // for ranks that were started with different settings (rank_settings.h).
  static absl::StatusOr<std::unique_ptr<CudaEngine>> Create(const Model& model, const Options& options,
                                                            std::unique_ptr<DeviceOps> ops);
  // Rank 0 tells the others to stop.
  ~CudaEngine() override;

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return num_blocks_; }
  uint32_t max_rows() const override { return options_.max_rows; }
  // Draft heads make no choices: drafters need guesses with their probabilities.
  bool chooses() const override { return !is_head(); }
  bool has_features() const override { return true; }
  // Returns FailedPrecondition on a rank other than 0.
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status Start(absl::Span<const StepRow> rows) override;
  absl::Status Finish() override;
  bool overlaps() const override { return true; }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override;
  // Works only on one GPU, and not for draft heads.
  bool has_adapters() const override { return !is_head() && is_alone(); }
  absl::StatusOr<AdapterId> AddAdapter(const LoraAdapter& adapter) override;
  absl::Status DropAdapter(AdapterId adapter) override;

  // The number of experts whose weights the last step read, over all layers. Waits for the device. Call it
  // between steps.
  absl::StatusOr<uint64_t> CountExpertsRead();

  // For ranks other than 0: repeats what rank 0 does, and returns when rank 0 ends.
  absl::Status Follow();

  DeviceOps& ops() { return *ops_; }

 private:
  // The key of a captured graph: the step's number of rows and its number of wanted rows, both rounded by
  // BucketOf (at most 64 wanted rows: the first tile of logits), and everything else that depends on what
  // rows request.
  struct Bucket {
    uint32_t rows = 0;
    uint32_t wanted = 0;
    bool has_features = false;  // Only on rank 0.
    // Whether some features are of the stream after the last layer. Every rank must know this.
    bool has_final_features = false;
    bool has_adapters = false;  // Of some rows.
    // Whether the step computes anything after the last layer's keys and values.
    bool reaches_end() const { return wanted > 0 || has_final_features; }
    friend auto operator<=>(const Bucket&, const Bucket&) = default;
  };

  CudaEngine(const ModelConfig& config, const Options& options, std::unique_ptr<DeviceOps> ops)
      : config_(config), options_(options), ops_(std::move(ops)), adapters_(config_, ops_.get()) {}

  // Marks the engine as in use during a call.
  class Use;

  absl::Status Load(const Model& model);
  absl::Status AllocateScratch();
  absl::Status AllocateLogits();
  absl::Status AllocateHeadScratch();
  absl::Status AllocateExpertScratch();
  absl::Status UploadRotations();
  absl::Status UploadRotation(const RotaryTable& table, DeviceSpan<float>* to);
  absl::Status CaptureCommonBuckets();

  // Copies a step's words to the device memory of every rank.
  absl::Status SendWords(uint32_t kind);
  absl::Status EnsureWordCapacity(uint64_t num_words);
  // The most words that the state of a draft head's row takes.
  uint64_t StateWords() const;
  absl::Status EnsureFeatureRoom(uint64_t num_states);
  // Drops the captured graphs, which contain addresses of these buffers.
  void ForgetGraphs();
  absl::Status Wait();
  // What a step's rows request, in numbers, as in its words.
  struct StepSize {
    uint32_t rows = 0;
    uint32_t wanted = 0;
    uint32_t logits = 0;  // The first of the wanted rows.
    uint32_t states = 0;  // Features of all rows.
    bool has_final_features = false;
    bool has_adapters = false;
  };
  static StepSize SizeOf(const uint32_t* words);
  // The bucket whose graph computes the step and its first 64 wanted rows.
  Bucket FirstBucket(const StepSize& size) const;
  // The number of rows with logits among the 64 wanted rows from `first` on.
  static uint32_t NumLogits(const StepSize& size, uint32_t first);
  // BeginStep queues the step and the download for its first wanted rows. EndStep returns these results, and
  // then queues the other wanted rows, 64 at a time, and returns theirs.
  absl::Status BeginStep(const StepSize& size);
  absl::Status EndStep(const StepSize& size, absl::Span<const StepRow> rows);
  absl::Status DownloadWanted(const StepSize& size, uint32_t first);
  // Copies the device's results after they have arrived. If a head drafts only some tokens, the logits of the
  // others are minus infinity.
  void HandOutLogits(const float* from, float* to) const;
  void HandOutFeatures(absl::Span<const StepRow> rows) const;
  absl::Status HandOutChoices(absl::Span<const StepRow> rows);
  absl::Status RunCopies(uint32_t num_copies);

  // Queues the work of a step in the stream, or records it while a capture runs.
  absl::Status Compute(const Bucket& bucket);
  absl::Status ComputeLayer(uint32_t layer, const Bucket& bucket);
  absl::Status ComputeAttention(uint32_t layer, const Bucket& bucket);
  template <typename Kernel>
  absl::Status Attend(uint32_t layer, const Bucket& bucket);
  // The first part of a draft head, up to the input of its layer's attention.
  absl::Status BeginHead(const Bucket& bucket);
  absl::Status JoinInputs(const Bucket& bucket);
  absl::Status TakeFinalFeatures(const Bucket& bucket);
  // Logits of a tile of wanted rows, and the choices among them.
  absl::Status ComputeWanted(uint32_t first_wanted, uint32_t wanted_bucket, const Bucket& bucket);
  absl::Status ComputeLogits(uint32_t first_wanted, uint32_t wanted_bucket, const Bucket& bucket);
  // The residual stream with the addends of the previous product, of every rank, and `bias`.
  Residual Stream(DeviceSpan<const float> bias, bool adds, const Bucket& bucket) const;
  // The same after a whole layer.
  Residual StreamAfter(const DeviceWeights::Layer& weights, const Bucket& bucket) const;
  NormWeight NormOf(const DeviceNorm& norm) const;
  // values = norm(values + addend), [rows, hidden].
  absl::Status NormInPlace(DeviceSpan<float> values, DeviceSpan<const float> addend, const DeviceNorm& norm,
                           const Bucket& bucket);
  absl::Status NormAllHeads(const DeviceWeights::Layer& weights, const Bucket& bucket);
  // Parts of a layer. PrepareAttention computes its rows' keys and values. ComputeGate computes the
  // feed-forward part up to the product with `down`. ComputeParallel computes everything after attention in a
  // parallel block.
  absl::Status PrepareAttention(uint32_t layer, const Bucket& bucket);
  absl::Status ComputeGate(uint32_t layer, const Bucket& bucket);
  absl::Status ComputeParallel(uint32_t layer, const Bucket& bucket);
  // A feed-forward part with experts, and its two halves: choosing experts for each row, and computing their
  // outputs.
  absl::Status ComputeExperts(uint32_t layer, const Bucket& bucket);
  absl::Status ChooseExperts(uint32_t layer, const Bucket& bucket);
  absl::Status MultiplyExperts(const DeviceWeights::Experts& experts, const Bucket& bucket);
  // Writes the norm to normed_. `num_layers`: between layers, how many layers the stream has passed, for rows
  // that request these features; nullopt within a layer. `exact` gets the values before rounding, or is
  // empty.
  absl::Status Norm(const DeviceNorm& weights, const Residual& stream, std::optional<uint32_t> num_layers,
                    const Bucket& bucket, DeviceSpan<float> exact = {});
  absl::Status Embed(DeviceSpan<float> to, const Bucket& bucket);
  // The buffer into which norms write features; empty for steps without features.
  DeviceSpan<float> FeaturesOf(const Bucket& bucket) const;
  // `num_rows` is a bucket's. Rows up to a multiple of kRowTile exist, and may be computed.
  absl::Status Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                        uint32_t num_rows);
  // Identifies a product of a layer, for adapters.
  struct LayerProduct {
    uint32_t layer = 0;
    uint32_t input = 0;  // kQueryKeyValueInput, ...
  };
  // Computes the product and adds what the rows' adapters contribute.
  absl::Status MultiplyAdapted(const LayerProduct& product, const DeviceMatrix& matrix,
                               DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                               const Bucket& bucket);
  // Updates the kernels' data after the adapters' table has moved or reduced rows have become wider.
  absl::Status FollowAdapters();
  GateLimits Limits() const;
  // With several ranks, gathers the `size` addends of every rank.
  absl::Status GatherAddends(uint64_t size);
  // Computes the product and, with several ranks, gathers those of all ranks, for the next norm to add up.
  absl::Status MultiplyAndGather(const LayerProduct& product, const DeviceMatrix& matrix,
                                 DeviceSpan<const Bf16> inputs, const Bucket& bucket);
  absl::Status ReplayOrCompute(const Bucket& bucket);
  // Captures the graph if it does not exist yet.
  absl::StatusOr<uint32_t> GraphFor(const Bucket& bucket);

  uint64_t LayerKvSize() const;
  KvLayout Layout() const;
  bool is_alone() const { return parallel_.world_size == 1; }
  bool is_head() const { return config_.head.has_value(); }
  bool is_head(HeadConfig::Kind kind) const { return is_head() && config_.head->kind == kind; }
  FloatStates float_states() const {
    if (is_head(HeadConfig::Kind::kMtp)) return FloatStates::kAll;
    return is_head(HeadConfig::Kind::kEagle3) ? FloatStates::kOwn : FloatStates::kNone;
  }
  uint32_t num_layers() const { return static_cast<uint32_t>(config_.num_layers); }
  // The number of logits in a row, as the device computes them.
  uint32_t logit_width() const {
    return static_cast<uint32_t>(is_head() ? config_.head->draft_vocab_size : config_.vocab_size);
  }

  const ModelConfig config_;
  const Options options_;
  std::unique_ptr<DeviceOps> ops_;
  TensorParallel parallel_;
  Shard shard_;
  DeviceWeights weights_;
  DeviceAdapters adapters_;
  // Values that captured graphs contain: the address of the adapters' table, and the width of reduced rows.
  const void* adapter_table_ = nullptr;
  uint32_t adapter_width_ = 0;
  DeviceSpan<float> reduced_;  // [padded rows, adapter_width_]
  uint32_t num_blocks_ = 0;
  uint32_t max_context_ = 0;
  uint32_t padded_rows_ = 0;  // max_rows, rounded up to whole tiles.
  std::unique_ptr<StepValidator> validator_;
  std::map<Bucket, uint32_t> graphs_;
  std::atomic<bool> in_use_ = false;

  std::vector<uint32_t> words_;
  // Pinned memory of the host. One buffer is filled while the device may still read the other.
  std::array<uint32_t*, 2> staged_words_ = {};
  uint32_t num_sent_ = 0;  // Staged words since the last wait.
  DeviceSpan<uint32_t> device_words_;
  StepWords step_;
  // Between Start and Finish.
  bool is_started_ = false;
  StepSize started_size_;
  absl::Span<const StepRow> started_rows_;
  float* staged_logits_ = nullptr;     // [kRowTile, logit_width()], pinned.
  uint32_t* staged_chosen_ = nullptr;  // [max_rows], pinned.
  float* staged_features_ = nullptr;   // Pinned, of the size of features_.
  TokenIds draft_tokens_;              // As in HeadWeights.

  DeviceSpan<Bf16> kv_;  // [2 * layers][blocks][KV heads][16][KvVectorSize]: keys and values of layer 0, ...
  // [max_context][cosines, sines][rotary_dim / 2], for models with rotary positions.
  DeviceSpan<float> rotations_;
  DeviceSpan<float> local_rotations_;  // The same for layers that use local_rope_theta.
  DeviceSpan<const float> slopes_;     // [heads], of ALiBi.
  DeviceSpan<float> hidden_;           // [max_rows, hidden]
  DeviceSpan<Bf16> normed_;            // [padded rows, hidden]
  DeviceSpan<float> projected_;        // [padded rows, width of query, key and value]
  DeviceSpan<Bf16> attended_;          // [padded rows, query width]
  DeviceSpan<float> gate_up_;          // [padded rows, 2 * intermediate]
  DeviceSpan<Bf16> gated_;             // [padded rows, intermediate]
  RoundedInputs rounded_;              // [padded rows, the deepest matrix]; none for bfloat16 weights.
  DeviceSpan<float> addends_;          // [padded rows, hidden]: this rank's part.
  DeviceSpan<float> gathered_;         // [ranks][rows of the bucket, hidden]: all ranks' parts.
  uint32_t attend_rows_ = 0;           // In one pass of attention: a multiple of kAttendRows.
  SplitParts parts_;                   // Of attend_rows_ rows.
  DeviceSpan<Bf16> normed_wanted_;     // [kRowTile, hidden]
  DeviceSpan<float> logit_part_;       // [kRowTile, the most tokens of any rank]
  DeviceSpan<float> logit_parts_;      // [ranks][kRowTile, the same]
  DeviceSpan<float> logits_;           // [kRowTile, logit_width()]
  DeviceSpan<uint32_t> vocab_begins_;  // [ranks + 1]
  DeviceSpan<uint32_t> chosen_;        // [max_rows], in the order of the wanted rows.
  DeviceSpan<float> features_;         // [states, hidden]
  // Scratch memory for experts: for each row of a step, and for each of its choices ([padded rows,
  // num_chosen]).
  struct ExpertScratch {
    DeviceSpan<float> inputs;      // [padded rows, hidden], the router's inputs.
    DeviceSpan<float> routed;      // [padded rows, the router's outputs]
    DeviceSpan<uint32_t> experts;  // Of choices.
    DeviceSpan<float> weights;     // Of choices.
    ExpertPlan plan;
    DeviceSpan<uint64_t> num_read;  // [1]
    DeviceSpan<float> gate_up;      // [choices, 2 * intermediate]
    DeviceSpan<Bf16> gated;         // [choices, intermediate]
    DeviceSpan<float> outputs;      // [choices, hidden]
  };
  ExpertSizes expert_sizes() const {
    const ExpertsDescription& experts = config_.block.experts;
    return {static_cast<uint32_t>(experts.num_experts), static_cast<uint32_t>(experts.num_chosen)};
  }
  ExpertScratch experts_;
  // Only for draft heads.
  DeviceSpan<float> embedded_;         // [padded rows, hidden]
  DeviceSpan<Bf16> joined_;            // [padded rows, the projection's inputs]
  DeviceSpan<Bf16> attention_inputs_;  // [padded rows, inputs of query, key and value]
};

}  // namespace tandem

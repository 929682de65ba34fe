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
    uint32_t num_blocks = 0;  // Of keys and values; 0: as many as `kv_bytes` hold, over all layers of a rank.
    uint64_t kv_bytes = uint64_t{256} << 20;
    uint32_t max_rows = 512;
    WeightType weight_type = WeightType::kAsInFile;
    bool use_graphs = true;
    // States per row for which room for features is allocated at the start, so that no step waits for more.
    // At least one for draft heads.
    uint32_t feature_states = 0;
    LoadProgress* progress = nullptr;  // Not owned, may be null.
  };

  // The weights are copied: `model` need not live longer than this call. Errors: those of UploadWeights;
  //  InvalidArgument for options out of range, for a model that the GPU's
  // shared memory cannot hold the attention or the products of, for a draft head on several ranks, and for
  // ranks that cannot share the model (MakeShard) or were not started alike (rank_settings.h).
  static absl::StatusOr<std::unique_ptr<CudaEngine>> Create(const Model& model, const Options& options,
                                                            std::unique_ptr<DeviceOps> ops);
  // Rank 0 tells the others to stop.
  ~CudaEngine() override;

  const ModelConfig& config() const override { return config_; }
  uint32_t num_blocks() const override { return num_blocks_; }
  uint32_t max_rows() const override { return options_.max_rows; }
  // Drafters need guesses with their probabilities.
  bool chooses() const override { return !is_head(); }
  bool has_features() const override { return true; }
  // FailedPrecondition on a rank other than 0.
  absl::Status Step(absl::Span<const StepRow> rows) override;
  absl::Status Start(absl::Span<const StepRow> rows) override;
  absl::Status Finish() override;
  bool overlaps() const override { return true; }
  absl::Status CopyKv(absl::Span<const KvCopy> copies) override;
  // Only on one GPU, and not for draft heads.
  bool has_adapters() const override { return !is_head() && is_alone(); }
  absl::StatusOr<AdapterId> AddAdapter(const LoraAdapter& adapter) override;
  absl::Status DropAdapter(AdapterId adapter) override;

  // Experts whose weights the last step read, over all layers. Waits for the device; between steps.
  absl::StatusOr<uint64_t> CountExpertsRead();

  // For ranks other than 0: repeats what rank 0 does, and returns when rank 0 ends.
  absl::Status Follow();

  DeviceOps& ops() { return *ops_; }

 private:
  // The key of a captured graph: the numbers of rows of the step and of wanted rows, both rounded by BucketOf
  // (at most 64 wanted rows: the first tile of logits), and everything else that depends on what rows
  // request.
  struct Bucket {
    uint32_t rows = 0;
    uint32_t wanted = 0;
    bool has_features = false;  // Of rank 0,
    // and whether some are of the stream after the last layer, which every rank must know.
    bool has_final_features = false;
    bool has_adapters = false;  // Of some rows.
    // Past the last layer's keys and values.
    bool reaches_end() const { return wanted > 0 || has_final_features; }
    friend auto operator<=>(const Bucket&, const Bucket&) = default;
  };

  CudaEngine(const ModelConfig& config, const Options& options, std::unique_ptr<DeviceOps> ops)
      : config_(config), options_(options), ops_(std::move(ops)), adapters_(config_, ops_.get()) {}

  // While a call is under way.
  class Use;

  absl::Status Load(const Model& model);
  absl::Status AllocateScratch();
  absl::Status AllocateLogits();
  absl::Status AllocateHeadScratch();
  absl::Status AllocateExpertScratch();
  absl::Status UploadRotations();
  absl::Status UploadRotation(const RotaryTable& table, DeviceSpan<float>* to);
  absl::Status CaptureCommonBuckets();

  // The words of a step in device memory, on every rank.
  absl::Status SendWords(uint32_t kind);
  absl::Status EnsureWordCapacity(uint64_t num_words);
  // The most words of the state that a row of a draft head reads.
  uint64_t StateWords() const;
  absl::Status EnsureFeatureRoom(uint64_t num_states);
  // Captured graphs contain their addresses.
  void ForgetGraphs();
  absl::Status Wait();
  // The size of a step's requests, as in its words.
  struct StepSize {
    uint32_t rows = 0;
    uint32_t wanted = 0;
    uint32_t logits = 0;  // The first so many of the wanted.
    uint32_t states = 0;  // Features of all rows.
    bool has_final_features = false;
    bool has_adapters = false;
  };
  static StepSize SizeOf(const uint32_t* words);
  // What is captured of it, with its first 64 wanted rows.
  Bucket FirstBucket(const StepSize& size) const;
  // Rows of logits among the 64 wanted ones from `first` on.
  static uint32_t NumLogits(const StepSize& size, uint32_t first);
  // BeginStep queues the step, and the download for its first wanted rows. EndStep takes these results, and
  // then queues and takes those of the other rows, 64 at a time.
  absl::Status BeginStep(const StepSize& size);
  absl::Status EndStep(const StepSize& size, absl::Span<const StepRow> rows);
  absl::Status DownloadWanted(const StepSize& size, uint32_t first);
  // Copies the device's results, once they are there. For a head that drafts only some tokens, the logits of
  // the others are minus infinity.
  void HandOutLogits(const float* from, float* to) const;
  void HandOutFeatures(absl::Span<const StepRow> rows) const;
  absl::Status HandOutChoices(absl::Span<const StepRow> rows);
  absl::Status RunCopies(uint32_t num_copies);

  // Puts the work of a step into the stream, or records it.
  absl::Status Compute(const Bucket& bucket);
  absl::Status ComputeLayer(uint32_t layer, const Bucket& bucket);
  absl::Status ComputeAttention(uint32_t layer, const Bucket& bucket);
  // The start of a draft head's rows, up to the input of its layer's attention.
  absl::Status BeginHead(const Bucket& bucket);
  absl::Status JoinInputs(const Bucket& bucket);
  absl::Status TakeFinalFeatures(const Bucket& bucket);
  // Logits of a tile of wanted rows, and the choices among them.
  absl::Status ComputeWanted(uint32_t first_wanted, uint32_t wanted_bucket, const Bucket& bucket);
  absl::Status ComputeLogits(uint32_t first_wanted, uint32_t wanted_bucket, const Bucket& bucket);
  // The stream, and the addends of the previous product: of every rank, with `bias`.
  Residual Stream(DeviceSpan<const float> bias, bool adds, const Bucket& bucket) const;
  // The same after a whole layer.
  Residual StreamAfter(const DeviceWeights::Layer& weights, const Bucket& bucket) const;
  NormWeight NormOf(const DeviceNorm& norm) const;
  // values = norm(values + addend), [rows, hidden].
  absl::Status NormInPlace(DeviceSpan<float> values, DeviceSpan<const float> addend, const DeviceNorm& norm,
                           const Bucket& bucket);
  absl::Status NormAllHeads(const DeviceWeights::Layer& weights, const Bucket& bucket);
  // Parts of a layer: keys and values of its rows; the feed-forward part up to the product with `down`; and,
  // for a parallel block, everything after attention.
  absl::Status PrepareAttention(uint32_t layer, const Bucket& bucket);
  absl::Status ComputeGate(uint32_t layer, const Bucket& bucket);
  absl::Status ComputeParallel(uint32_t layer, const Bucket& bucket);
  // A feed-forward part with experts, and its two halves: the choice of experts for each row, and their
  // outputs.
  absl::Status ComputeExperts(uint32_t layer, const Bucket& bucket);
  absl::Status ChooseExperts(uint32_t layer, const Bucket& bucket);
  absl::Status MultiplyExperts(const DeviceWeights::Experts& experts, const Bucket& bucket);
  // Norms into normed_. Between layers, the argument gives how many layers the stream has passed, for rows
  // that request these features; nullopt within a layer. `exact`: gets the values before rounding, or is
  // empty.
  absl::Status Norm(const DeviceNorm& weights, const Residual& stream, std::optional<uint32_t> num_layers,
                    const Bucket& bucket, DeviceSpan<float> exact = {});
  absl::Status Embed(DeviceSpan<float> to, const Bucket& bucket);
  // Where norms put features; empty for steps without features.
  DeviceSpan<float> FeaturesOf(const Bucket& bucket) const;
  // `num_rows`: of a bucket. Rows up to a multiple of kRowTile exist, and may be computed.
  absl::Status Multiply(const DeviceMatrix& matrix, DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                        uint32_t num_rows);
  // Identifies a product of a layer, for adapters.
  struct LayerProduct {
    uint32_t layer = 0;
    uint32_t input = 0;  // kQueryKeyValueInput, ...
  };
  // The product, and what the rows' adapters add to it.
  absl::Status MultiplyAdapted(const LayerProduct& product, const DeviceMatrix& matrix,
                               DeviceSpan<const Bf16> inputs, DeviceSpan<float> outputs,
                               const Bucket& bucket);
  // The adapters' table may have moved, or rows may be wider: updates the data for kernels.
  absl::Status FollowAdapters();
  GateLimits Limits() const;
  // With several ranks, gathers the `size` addends of all.
  absl::Status GatherAddends(uint64_t size);
  // The product and, with several ranks, those of all: what the next norm adds.
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
  // Logits of a row as the device computes them.
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
  // The values that graphs contain: the address of the table, and the width of reduced rows.
  const void* adapter_table_ = nullptr;
  uint32_t adapter_width_ = 0;
  DeviceSpan<float> reduced_;  // [padded rows, adapter_width_]
  uint32_t num_blocks_ = 0;
  uint32_t max_context_ = 0;
  uint32_t padded_rows_ = 0;  // max_rows in whole tiles of rows.
  std::unique_ptr<StepValidator> validator_;
  std::map<Bucket, uint32_t> graphs_;
  std::atomic<bool> in_use_ = false;

  std::vector<uint32_t> words_;
  // Of the host, pinned: one is filled while the device may still read the other.
  std::array<uint32_t*, 2> staged_words_ = {};
  uint32_t num_sent_ = 0;  // Of staged words since the last wait.
  DeviceSpan<uint32_t> device_words_;
  StepWords step_;
  // Between Start and Finish.
  bool is_started_ = false;
  StepSize started_size_;
  absl::Span<const StepRow> started_rows_;
  float* staged_logits_ = nullptr;     // [kRowTile, logit_width()], pinned.
  uint32_t* staged_chosen_ = nullptr;  // [max_rows], pinned.
  float* staged_features_ = nullptr;   // As many as features_, pinned.
  TokenIds draft_tokens_;              // As in HeadWeights.

  DeviceSpan<Bf16> kv_;  // [2 * layers][blocks][KV heads][16][head_dim]: keys and values of layer 0, ...
  DeviceSpan<float> rotations_;        // [max_context][cosines, sines][rotary_dim / 2], where there are any
  DeviceSpan<float> local_rotations_;  // Likewise, of layers that turn by local_rope_theta.
  DeviceSpan<const float> slopes_;     // [heads], of ALiBi.
  DeviceSpan<float> hidden_;           // [max_rows, hidden]
  DeviceSpan<Bf16> normed_;            // [padded rows, hidden]
  DeviceSpan<float> projected_;        // [padded rows, query, key and value width]
  DeviceSpan<Bf16> attended_;          // [padded rows, query width]
  DeviceSpan<float> gate_up_;          // [padded rows, 2 * intermediate]
  DeviceSpan<Bf16> gated_;             // [padded rows, intermediate]
  RoundedInputs rounded_;              // [padded rows, the deepest matrix]; none with weights in bfloat16.
  DeviceSpan<float> addends_;          // [padded rows, hidden]: this rank's,
  DeviceSpan<float> gathered_;         // and [ranks][rows of the bucket, hidden].
  SplitParts parts_;                   // Of kAttendRows rows.
  DeviceSpan<Bf16> normed_wanted_;     // [kRowTile, hidden]
  DeviceSpan<float> logit_part_;       // [kRowTile, the largest of the ranks' tokens]
  DeviceSpan<float> logit_parts_;      // [ranks][kRowTile, as above]
  DeviceSpan<float> logits_;           // [kRowTile, logit_width()]
  DeviceSpan<uint32_t> vocab_begins_;  // [ranks + 1]
  DeviceSpan<uint32_t> chosen_;        // [max_rows], by their place among the wanted.
  DeviceSpan<float> features_;         // [states, hidden]
  // Of experts, a step's rows and their choices: [padded rows, num_chosen] of these.
  struct ExpertScratch {
    DeviceSpan<float> inputs;      // [padded rows, hidden], as the router reads them.
    DeviceSpan<float> routed;      // [padded rows, what the router gives]
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
  // Of a draft head alone.
  DeviceSpan<float> embedded_;         // [padded rows, hidden]
  DeviceSpan<Bf16> joined_;            // [padded rows, the projection's inputs]
  DeviceSpan<Bf16> attention_inputs_;  // [padded rows, what query, key and value read]
};

}  // namespace tandem

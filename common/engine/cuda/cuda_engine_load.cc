// How an engine starts: its buffers in device memory, and the graphs that it captures at the start.

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/rotary_table.h"
#include "common/engine/cuda/cuda_engine.h"
#include "common/engine/cuda/rank_settings.h"
#include "common/engine/cuda/row_products.h"

namespace tandem {
namespace {

// The number of inputs of a product that share a scale, as MakeShard expects it.
uint32_t InputGroup(WeightType type) {
  return HasIntegerWeights(type) ? kInputGroup : 1;
}

// Attention's scratch memory takes no more than 256 MiB, unless the shortest pass needs it.
constexpr uint64_t kMostAttendFloats = uint64_t{64} << 20;

// The largest number of KV heads on any rank: all ranks have the same number of blocks.
absl::StatusOr<uint32_t> MostKvHeads(const ModelConfig& config, uint32_t world_size) {
  uint32_t most = 0;
  for (uint32_t rank = 0; rank < world_size; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(const Shard shard, MakeShard(config, {rank, world_size}));
    most = std::max(most, shard.kv_heads.size());
  }
  return most;
}

absl::StatusOr<uint32_t> CountBlocks(const ModelConfig& config, const CudaEngine::Options& options,
                                     uint32_t kv_heads) {
  constexpr uint64_t kMostBlocks = UINT32_MAX / kBlockTokens;
  uint64_t num_blocks = options.num_blocks;
  if (num_blocks == 0) {
    // ModelConfig bounds each factor, so this cannot overflow.
    const uint64_t block_bytes = uint64_t{4} * static_cast<uint64_t>(config.num_layers) * kv_heads *
                                 kBlockTokens * KvVectorSize(static_cast<uint32_t>(config.head_dim));
    num_blocks = std::min(options.kv_bytes / block_bytes, kMostBlocks);
    if (num_blocks == 0) {
      return absl::InvalidArgumentError(absl::StrCat("kv_bytes is ", options.kv_bytes, "; one block of ",
                                                     kBlockTokens, " tokens takes ", block_bytes, " bytes"));
    }
  }
  if (num_blocks > kMostBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_blocks is ", num_blocks, "; expected up to ", kMostBlocks));
  }
  return static_cast<uint32_t>(num_blocks);
}

}  // namespace

absl::Status CudaEngine::Load(const Model& model) {
  parallel_ = ops_->parallel();
  // Ranks compare their settings before any check that one rank alone could fail: the others would wait for
  // it.
  if (!is_alone()) {
    const RankSettings settings = {
        .model = ModelHash(model),
        .weight_type = options_.weight_type,
        .max_rows = options_.max_rows,
        // Only one of the two is set.
        .kv_size = options_.num_blocks != 0 ? options_.num_blocks : options_.kv_bytes};
    TANDEM_RETURN_IF_ERROR(CompareRanks(settings, ops_.get()));
  }
  if (is_head() && !is_alone()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a draft head on ", parallel_.world_size, " GPUs; expected one"));
  }
  TANDEM_ASSIGN_OR_RETURN(shard_, MakeShard(config_, parallel_, InputGroup(options_.weight_type)));
  const auto head_dim = static_cast<uint32_t>(config_.head_dim);
  if (head_dim > kLongestHead) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads of ", head_dim, "; expected at most ", kLongestHead, " on a GPU"));
  }
  if (AttendSharedBytes(head_dim) > ops_->max_shared_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads of ", head_dim, " take ", AttendSharedBytes(head_dim),
                     " bytes of shared memory; this GPU has ", ops_->max_shared_bytes()));
  }
  padded_rows_ = static_cast<uint32_t>(PaddedRows(options_.max_rows));
  TANDEM_RETURN_IF_ERROR(
      CheckProductMemory(options_.weight_type, config_.block.experts.exist(), padded_rows_, *ops_));
  TANDEM_ASSIGN_OR_RETURN(const uint32_t kv_heads, MostKvHeads(config_, parallel_.world_size));
  TANDEM_ASSIGN_OR_RETURN(num_blocks_, CountBlocks(config_, options_, kv_heads));
  if (uint64_t{num_blocks_} * kBlockTokens * kv_heads > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(num_blocks_, " blocks of keys and values for ", kv_heads,
                                                   " heads; expected fewer than 2^32 tokens times heads"));
  }
  max_context_ = std::min(static_cast<uint32_t>(config_.max_context), num_blocks_ * kBlockTokens);
  StepValidator::Options checks{.vocab_size = config_.vocab_size,
                                .num_blocks = num_blocks_,
                                .max_rows = options_.max_rows,
                                .max_context = max_context_,
                                .chooses = chooses(),
                                .feature_layers = num_layers(),
                                .own_state_size = static_cast<uint32_t>(config_.hidden_size)};
  if (is_head()) checks.target_state_size = config_.head->state_size();
  validator_ = std::make_unique<StepValidator>(checks);
  TANDEM_ASSIGN_OR_RETURN(weights_,
                          UploadWeights(model, options_.weight_type, shard_, ops_.get(), options_.progress));
  draft_tokens_ = model.head().draft_tokens;
  TANDEM_RETURN_IF_ERROR(AllocateScratch());
  TANDEM_RETURN_IF_ERROR(AllocateLogits());
  TANDEM_RETURN_IF_ERROR(AllocateHeadScratch());
  TANDEM_RETURN_IF_ERROR(AllocateExpertScratch());
  TANDEM_RETURN_IF_ERROR(UploadRotations());
  TANDEM_RETURN_IF_ERROR(
      EnsureWordCapacity(FixedStepWords(options_.max_rows) +
                         uint64_t{options_.max_rows} * (StepWords::kChoiceWords + StateWords() + 64)));
  const uint64_t states_of_row = std::max(options_.feature_states, is_head() ? 1u : 0u);
  if (parallel_.rank == 0) TANDEM_RETURN_IF_ERROR(EnsureFeatureRoom(options_.max_rows * states_of_row));
  return CaptureCommonBuckets();
}

absl::Status CudaEngine::AllocateScratch() {
  const auto hidden = static_cast<uint64_t>(config_.hidden_size);
  const auto head_dim = static_cast<uint32_t>(config_.head_dim);
  const uint64_t query = uint64_t{shard_.heads.size()} * head_dim;
  const uint64_t kv = uint64_t{shard_.kv_heads.size()} * head_dim;
  const uint64_t rows = padded_rows_;
  const char* const what = "activations";
  TANDEM_ASSIGN_OR_RETURN(
      kv_, ops_->Allocate<Bf16>(2 * weights_.layers.size() * LayerKvSize(), "keys and values"));
  TANDEM_ASSIGN_OR_RETURN(hidden_, ops_->Allocate<float>(rows * hidden, what));
  TANDEM_ASSIGN_OR_RETURN(normed_, ops_->Allocate<Bf16>(rows * hidden, what));
  TANDEM_ASSIGN_OR_RETURN(projected_, ops_->Allocate<float>(rows * (query + 2 * kv), what));
  TANDEM_ASSIGN_OR_RETURN(attended_, ops_->Allocate<Bf16>(rows * query, what));
  // The intermediate size of dense layers or of shared experts.
  const uint64_t middle = std::max(shard_.intermediate.size(), shard_.shared_intermediate.size());
  TANDEM_ASSIGN_OR_RETURN(gate_up_, ops_->Allocate<float>(rows * 2 * middle, what));
  TANDEM_ASSIGN_OR_RETURN(gated_, ops_->Allocate<Bf16>(rows * middle, what));
  const auto depth = static_cast<uint32_t>(
      std::max({hidden, query, middle, uint64_t{weights_.layers.front().query_key_value.depth},
                uint64_t{weights_.head.projection.depth}}));
  const uint64_t groups =
      std::max<uint64_t>(NumInputGroups(depth), uint64_t{expert_sizes().num_chosen} *
                                                    NumInputGroups(shard_.expert_intermediate.size()));
  TANDEM_ASSIGN_OR_RETURN(rounded_, AllocateRoundedGroups(options_.weight_type, rows * groups, ops_.get()));
  const uint64_t num_addends = config_.block.parallel ? 2 : 1;
  TANDEM_ASSIGN_OR_RETURN(addends_, ops_->Allocate<float>(num_addends * rows * hidden, what));
  parts_.num_heads = shard_.heads.size();
  parts_.max_splits = SplitOf(max_context_ - 1) + 1;
  parts_.head_dim = head_dim;
  const uint64_t row_size = uint64_t{parts_.num_heads} * parts_.max_splits * (head_dim + 2);
  const uint64_t groups_of_rows = kMostAttendFloats / (kAttendRows * row_size);
  attend_rows_ =
      kAttendRows * static_cast<uint32_t>(std::clamp<uint64_t>(groups_of_rows, 1, rows / kAttendRows));
  TANDEM_ASSIGN_OR_RETURN(parts_.data, ops_->Allocate<float>(attend_rows_ * row_size, "attention's scratch"));
  if (is_alone()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(gathered_, ops_->Allocate<float>(parallel_.world_size * rows * hidden, what));
  return absl::OkStatus();
}

absl::Status CudaEngine::AllocateLogits() {
  const auto hidden = static_cast<uint64_t>(config_.hidden_size);
  const uint64_t vocab = logit_width();
  TANDEM_ASSIGN_OR_RETURN(normed_wanted_, ops_->Allocate<Bf16>(kRowTile * hidden, "activations"));
  TANDEM_ASSIGN_OR_RETURN(logits_, ops_->Allocate<float>(kRowTile * vocab, "logits"));
  TANDEM_ASSIGN_OR_RETURN(void* staged, ops_->AllocateHostBytes(kRowTile * vocab * sizeof(float), "logits"));
  staged_logits_ = static_cast<float*>(staged);
  TANDEM_ASSIGN_OR_RETURN(chosen_, ops_->Allocate<uint32_t>(options_.max_rows, "choices"));
  TANDEM_ASSIGN_OR_RETURN(staged, ops_->AllocateHostBytes(options_.max_rows * sizeof(uint32_t), "choices"));
  staged_chosen_ = static_cast<uint32_t*>(staged);
  if (is_alone()) return absl::OkStatus();
  std::vector<uint32_t> begins;
  uint64_t most_tokens = 0;
  for (uint32_t rank = 0; rank < parallel_.world_size; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(const Shard shard, MakeShard(config_, {rank, parallel_.world_size}));
    begins.push_back(shard.vocab.begin);
    most_tokens = std::max<uint64_t>(most_tokens, shard.vocab.size());
  }
  begins.push_back(static_cast<uint32_t>(vocab));
  TANDEM_ASSIGN_OR_RETURN(logit_part_, ops_->Allocate<float>(kRowTile * most_tokens, "logits"));
  TANDEM_ASSIGN_OR_RETURN(logit_parts_,
                          ops_->Allocate<float>(parallel_.world_size * kRowTile * most_tokens, "logits"));
  TANDEM_ASSIGN_OR_RETURN(vocab_begins_, ops_->Allocate<uint32_t>(begins.size(), "logits"));
  TANDEM_RETURN_IF_ERROR(ops_->Upload(vocab_begins_.data, begins.data(), begins.size() * sizeof(uint32_t)));
  return ops_->Synchronize();
}

absl::Status CudaEngine::AllocateHeadScratch() {
  if (!is_head()) return absl::OkStatus();
  const uint64_t rows = padded_rows_;
  const char* const what = "a draft head's activations";
  TANDEM_ASSIGN_OR_RETURN(embedded_,
                          ops_->Allocate<float>(rows * static_cast<uint64_t>(config_.hidden_size), what));
  if (config_.head->projects) {
    TANDEM_ASSIGN_OR_RETURN(joined_, ops_->Allocate<Bf16>(rows * weights_.head.projection.depth, what));
  }
  TANDEM_ASSIGN_OR_RETURN(attention_inputs_,
                          ops_->Allocate<Bf16>(rows * weights_.layers.front().query_key_value.depth, what));
  return absl::OkStatus();
}

absl::Status CudaEngine::UploadRotations() {
  const BlockDescription& block = config_.block;
  if (block.positions == PositionKind::kAlibi) {
    const std::vector<float> slopes = AlibiSlopes(config_.num_heads);
    TANDEM_ASSIGN_OR_RETURN(DeviceSpan<float> data, ops_->Allocate<float>(slopes.size(), "slopes"));
    TANDEM_RETURN_IF_ERROR(ops_->Upload(data.data, slopes.data(), slopes.size() * sizeof(float)));
    slopes_ = data;
    return ops_->Synchronize();
  }
  if (block.positions != PositionKind::kRotary) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(RotaryTable table, RotaryTable::Build(config_, max_context_));
  table.ExtendTo(max_context_);
  TANDEM_RETURN_IF_ERROR(UploadRotation(table, &rotations_));
  if (!block.local_rope_theta.has_value()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(RotaryTable local, RotaryTable::BuildLocal(config_, max_context_));
  local.ExtendTo(max_context_);
  return UploadRotation(local, &local_rotations_);
}

absl::Status CudaEngine::UploadRotation(const RotaryTable& table, DeviceSpan<float>* to) {
  const absl::Span<const float> values = table.values();
  TANDEM_ASSIGN_OR_RETURN(*to, ops_->Allocate<float>(values.size(), "rotations"));
  TANDEM_RETURN_IF_ERROR(ops_->Upload(to->data, values.data(), values.size() * sizeof(float)));
  return ops_->Synchronize();
}

// Captures graphs for the sizes of decoding, drafting and verifying. Other sizes, such as a prompt's, are
// captured when they first occur. Before the first capture, everything runs once, on the empty step that the
// words still describe: libraries load kernels on first use, and a capture does not allow that.
absl::Status CudaEngine::CaptureCommonBuckets() {
  const bool has_features = !features_.empty();
  // EAGLE-3 heads do not read states after a target's last layer. All heads read their own states after their
  // last layer.
  const auto bucket_of = [this](uint32_t rows, bool features) {
    return Bucket{BucketOf(rows), BucketOf(rows), features, features && is_head()};
  };
  TANDEM_RETURN_IF_ERROR(Compute(bucket_of(1, has_features)));
  TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
  if (!options_.use_graphs) return absl::OkStatus();
  for (uint32_t rows = 1; rows <= std::min(options_.max_rows, kRowTile); rows *= 2) {
    TANDEM_RETURN_IF_ERROR(GraphFor(bucket_of(rows, false)).status());
    if (has_features) TANDEM_RETURN_IF_ERROR(GraphFor(bucket_of(rows, true)).status());
  }
  return absl::OkStatus();
}

uint64_t CudaEngine::StateWords() const {
  if (!is_head()) return 0;
  // A row reads the target's states, two numbers to a word if they are bfloat16, or its own state.
  const uint64_t size = config_.head->state_size();
  return std::max(float_states() == FloatStates::kAll ? size : (size + 1) / 2,
                  static_cast<uint64_t>(config_.hidden_size));
}

}  // namespace tandem

#include "common/engine/cuda/cuda_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/rotary_table.h"
#include "common/engine/cuda/rank_settings.h"

namespace tandem {
namespace {

// What rank 0 tells the others to do (StepWords::kKind).
constexpr uint32_t kStep = 1;
constexpr uint32_t kCopies = 2;
constexpr uint32_t kStop = 3;

// Copies sent at once.
constexpr uint32_t kMostCopies = 8192;

bool HasIntegers(WeightType type) {
  return type == WeightType::kInt8 || type == WeightType::kInt4;
}

// Of matrices for which there are own kernels.
bool HasPackedWeights(WeightType type) {
  return HasIntegers(type) || IsGpuWeightType(type);
}

// Inputs of products that share a scale, as MakeShard has them.
uint32_t InputGroup(WeightType type) {
  return HasIntegers(type) ? kInputGroup : 1;
}

uint64_t Padded(uint64_t rows) {
  return (rows + kRowTile - 1) / kRowTile * kRowTile;
}

// The KV heads of the rank that has most of them: all ranks have as many blocks.
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
    // Each factor is bounded by ModelConfig: no overflow.
    const uint64_t block_bytes = uint64_t{4} * static_cast<uint64_t>(config.num_layers) * kv_heads *
                                 kBlockTokens * static_cast<uint64_t>(config.head_dim);
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

class CudaEngine::Use {
 public:
  explicit Use(CudaEngine* engine) : engine_(engine), was_in_use_(engine->in_use_.exchange(true)) {}
  ~Use() {
    if (!was_in_use_) engine_->in_use_ = false;
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  absl::Status Begin() {
    if (was_in_use_)
      return absl::FailedPreconditionError("a call of an engine while another thread's is under way");
    return engine_->ops_->BindThread();
  }

 private:
  CudaEngine* const engine_;
  const bool was_in_use_;
};

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::Create(const Model& model, const Options& options,
                                                               std::unique_ptr<DeviceOps> ops) {
  constexpr uint32_t kMostRows = 65536;
  if (options.max_rows < 1 || options.max_rows > kMostRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_rows is ", options.max_rows, "; expected 1 to ", kMostRows));
  }
  TANDEM_RETURN_IF_ERROR(ValidateGpuWeightType(options.weight_type));
  std::unique_ptr<CudaEngine> engine(new CudaEngine(model.config(), options, std::move(ops)));
  TANDEM_RETURN_IF_ERROR(engine->Load(model));
  return engine;
}

absl::Status CudaEngine::Load(const Model& model) {
  parallel_ = ops_->parallel();
  // Before anything that a rank could refuse by itself: the others would wait for it.
  if (!is_alone()) {
    const RankSettings settings = {
        .model = ModelHash(model),
        .weight_type = options_.weight_type,
        .max_rows = options_.max_rows,
        // One of the two says how many.
        .kv_size = options_.num_blocks != 0 ? options_.num_blocks : options_.kv_bytes};
    TANDEM_RETURN_IF_ERROR(CompareRanks(settings, ops_.get()));
  }
  TANDEM_ASSIGN_OR_RETURN(shard_, MakeShard(config_, parallel_, InputGroup(options_.weight_type)));
  const auto head_dim = static_cast<uint32_t>(config_.head_dim);
  if (AttendSharedBytes(head_dim) > ops_->max_shared_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("heads of ", head_dim, " take ", AttendSharedBytes(head_dim),
                     " bytes of shared memory; this GPU has ", ops_->max_shared_bytes()));
  }
  padded_rows_ = static_cast<uint32_t>(Padded(options_.max_rows));
  if (HasPackedWeights(options_.weight_type) &&
      MultiplySharedBytes(padded_rows_) > ops_->max_shared_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("products of weights in ", WeightTypeName(options_.weight_type), " take ",
                     MultiplySharedBytes(padded_rows_), " bytes of shared memory; this GPU has ",
                     ops_->max_shared_bytes()));
  }
  TANDEM_ASSIGN_OR_RETURN(const uint32_t kv_heads, MostKvHeads(config_, parallel_.world_size));
  TANDEM_ASSIGN_OR_RETURN(num_blocks_, CountBlocks(config_, options_, kv_heads));
  max_context_ = std::min(static_cast<uint32_t>(config_.max_context), num_blocks_ * kBlockTokens);
  validator_ = std::make_unique<StepValidator>(StepValidator::Options{.vocab_size = config_.vocab_size,
                                                                      .num_blocks = num_blocks_,
                                                                      .max_rows = options_.max_rows,
                                                                      .max_context = max_context_,
                                                                      .chooses = true});
  TANDEM_ASSIGN_OR_RETURN(weights_,
                          UploadWeights(model, options_.weight_type, shard_, ops_.get(), options_.progress));
  TANDEM_RETURN_IF_ERROR(AllocateScratch());
  TANDEM_RETURN_IF_ERROR(UploadRotations());
  TANDEM_RETURN_IF_ERROR(EnsureWordCapacity(FixedStepWords(options_.max_rows) +
                                            uint64_t{options_.max_rows} * (StepWords::kChoiceWords + 64)));
  return CaptureCommonBuckets();
}

absl::Status CudaEngine::AllocateScratch() {
  const auto hidden = static_cast<uint64_t>(config_.hidden_size);
  const auto vocab = static_cast<uint64_t>(config_.vocab_size);
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
  TANDEM_ASSIGN_OR_RETURN(gate_up_, ops_->Allocate<float>(rows * 2 * shard_.intermediate.size(), what));
  TANDEM_ASSIGN_OR_RETURN(gated_, ops_->Allocate<Bf16>(rows * shard_.intermediate.size(), what));
  if (HasIntegers(options_.weight_type)) {
    const uint64_t depth = std::max({hidden, query, uint64_t{shard_.intermediate.size()}});
    const uint64_t groups = rows * NumInputGroups(static_cast<uint32_t>(depth));
    TANDEM_ASSIGN_OR_RETURN(rounded_.words,
                            ops_->Allocate<uint32_t>(groups * RoundedInputs::kGroupWords, what));
    TANDEM_ASSIGN_OR_RETURN(rounded_.scales, ops_->Allocate<float>(groups, what));
  }
  TANDEM_ASSIGN_OR_RETURN(addends_, ops_->Allocate<float>(rows * hidden, what));
  TANDEM_ASSIGN_OR_RETURN(normed_wanted_, ops_->Allocate<Bf16>(kRowTile * hidden, what));
  TANDEM_ASSIGN_OR_RETURN(logits_, ops_->Allocate<float>(kRowTile * vocab, "logits"));
  parts_.num_heads = shard_.heads.size();
  parts_.max_splits = SplitOf(max_context_ - 1) + 1;
  parts_.head_dim = head_dim;
  TANDEM_ASSIGN_OR_RETURN(parts_.data, ops_->Allocate<float>(uint64_t{kAttendRows} * parts_.num_heads *
                                                                 parts_.max_splits * (head_dim + 2),
                                                             "attention's scratch"));
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
  TANDEM_ASSIGN_OR_RETURN(gathered_, ops_->Allocate<float>(parallel_.world_size * rows * hidden, what));
  TANDEM_ASSIGN_OR_RETURN(logit_part_, ops_->Allocate<float>(kRowTile * most_tokens, "logits"));
  TANDEM_ASSIGN_OR_RETURN(logit_parts_,
                          ops_->Allocate<float>(parallel_.world_size * kRowTile * most_tokens, "logits"));
  TANDEM_ASSIGN_OR_RETURN(vocab_begins_, ops_->Allocate<uint32_t>(begins.size(), "logits"));
  TANDEM_RETURN_IF_ERROR(ops_->Upload(vocab_begins_.data, begins.data(), begins.size() * sizeof(uint32_t)));
  return ops_->Synchronize();
}

absl::Status CudaEngine::UploadRotations() {
  const auto head_dim = static_cast<size_t>(config_.head_dim);
  TANDEM_ASSIGN_OR_RETURN(const RotaryTable table, RotaryTable::Build(config_, max_context_));
  std::vector<float> rotations(max_context_ * head_dim);
  for (uint32_t position = 0; position < max_context_; ++position) {
    // (1, 0) turns into (cosine, sine).
    float* turned = &rotations[position * head_dim];
    std::fill_n(turned, head_dim / 2, 1.0f);
    table.Rotate(position, turned);
  }
  TANDEM_ASSIGN_OR_RETURN(rotations_, ops_->Allocate<float>(rotations.size(), "rotations"));
  TANDEM_RETURN_IF_ERROR(ops_->Upload(rotations_.data, rotations.data(), rotations.size() * sizeof(float)));
  return ops_->Synchronize();
}

// What decoding and verifying use; other sizes, such as a prompt's, are captured when they first occur.
// Everything runs once before that, on the empty step that the words stand for as yet: libraries load kernels
// on first use, which a capture does not allow.
absl::Status CudaEngine::CaptureCommonBuckets() {
  TANDEM_RETURN_IF_ERROR(Compute({BucketOf(1), BucketOf(1)}));
  TANDEM_RETURN_IF_ERROR(ops_->Synchronize());
  if (!options_.use_graphs) return absl::OkStatus();
  for (uint32_t rows = 1; rows <= std::min(options_.max_rows, kRowTile); rows *= 2) {
    TANDEM_RETURN_IF_ERROR(GraphFor({BucketOf(rows), BucketOf(rows)}).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> CudaEngine::GraphFor(const Bucket& bucket) {
  const auto known = graphs_.find(bucket);
  if (known != graphs_.end()) return known->second;
  TANDEM_RETURN_IF_ERROR(ops_->BeginCapture());
  const absl::Status status = Compute(bucket);
  // A capture that was begun has to be ended.
  const absl::StatusOr<uint32_t> graph = ops_->EndCapture();
  TANDEM_RETURN_IF_ERROR(status);
  TANDEM_RETURN_IF_ERROR(graph.status());
  graphs_[bucket] = *graph;
  return *graph;
}

uint64_t CudaEngine::LayerKvSize() const {
  return uint64_t{num_blocks_} * shard_.kv_heads.size() * kBlockTokens *
         static_cast<uint64_t>(config_.head_dim);
}

KvLayout CudaEngine::Layout() const {
  return {.num_blocks = num_blocks_,
          .num_kv_heads = shard_.kv_heads.size(),
          .head_dim = static_cast<uint32_t>(config_.head_dim)};
}

absl::Status CudaEngine::EnsureWordCapacity(uint64_t num_words) {
  if (num_words <= device_words_.size) return absl::OkStatus();
  const uint64_t capacity = std::max(num_words, 2 * device_words_.size);
  if (capacity > UINT32_MAX) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a step of ", num_words, " words; there is room for 2^32"));
  }
  // Graphs know where the words were.
  ops_->DropGraphs();
  graphs_.clear();
  // All or none: their sizes go together.
  TANDEM_ASSIGN_OR_RETURN(const auto device, ops_->Allocate<uint32_t>(capacity, "steps"));
  std::array<uint32_t*, 2> staged = {};
  for (uint32_t*& words : staged) {
    TANDEM_ASSIGN_OR_RETURN(void* memory, ops_->AllocateHostBytes(capacity * sizeof(uint32_t), "steps"));
    words = static_cast<uint32_t*>(memory);
  }
  device_words_ = device;
  staged_words_ = staged;
  step_ = {device_words_, options_.max_rows};
  return absl::OkStatus();
}

absl::Status CudaEngine::SendWords(uint32_t kind) {
  words_[StepWords::kKind] = kind;
  words_[StepWords::kNumWords] = static_cast<uint32_t>(words_.size());
  TANDEM_RETURN_IF_ERROR(EnsureWordCapacity(words_.size()));
  if (num_sent_ == staged_words_.size()) TANDEM_RETURN_IF_ERROR(Wait());
  uint32_t* const staged = staged_words_[num_sent_++];
  const uint64_t num_bytes = words_.size() * sizeof(uint32_t);
  std::memcpy(staged, words_.data(), num_bytes);
  TANDEM_RETURN_IF_ERROR(ops_->Upload(device_words_.data, staged, num_bytes));
  if (is_alone()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(ops_->Broadcast(device_words_.data, StepWords::kHeaderWords * sizeof(uint32_t)));
  return ops_->Broadcast(device_words_.data, num_bytes);
}

absl::Status CudaEngine::Wait() {
  num_sent_ = 0;
  return ops_->Synchronize();
}

absl::Status CudaEngine::Step(absl::Span<const StepRow> rows) {
  TANDEM_RETURN_IF_ERROR(Start(rows));
  return Finish();
}

absl::Status CudaEngine::Start(absl::Span<const StepRow> rows) {
  Use use(this);
  TANDEM_RETURN_IF_ERROR(use.Begin());
  if (is_started_) return absl::FailedPreconditionError("a step while another has not been finished");
  if (parallel_.rank != 0) return absl::FailedPreconditionError("a step on a rank that follows rank 0");
  TANDEM_RETURN_IF_ERROR(validator_->CheckRows(rows));
  if (!rows.empty()) {
    // On every rank: some may hold fewer of the heads that share keys than this one.
    const uint32_t most_heads = std::min(shard_.head_map.heads_per_kv, kMaxQueriesPerItem);
    WriteStepWords(rows,
                   {.max_rows = options_.max_rows,
                    .sliding_window = static_cast<uint32_t>(config_.sliding_window.value_or(0)),
                    .rows_per_item = std::min(kMaxQueriesPerItem / most_heads, StepWords::kMaxItemRows)},
                   &words_);
    TANDEM_RETURN_IF_ERROR(SendWords(kStep));
    started_size_ = SizeOf(words_.data());
    TANDEM_RETURN_IF_ERROR(BeginStep(started_size_));
  }
  started_rows_ = rows;
  is_started_ = true;
  return absl::OkStatus();
}

absl::Status CudaEngine::Finish() {
  Use use(this);
  TANDEM_RETURN_IF_ERROR(use.Begin());
  if (!std::exchange(is_started_, false)) {
    return absl::FailedPreconditionError("the end of a step that was not started");
  }
  return started_rows_.empty() ? absl::OkStatus() : EndStep(started_size_, started_rows_);
}

CudaEngine::StepSize CudaEngine::SizeOf(const uint32_t* words) {
  return {words[StepWords::kNumRows], words[StepWords::kNumWanted], words[StepWords::kNumLogits]};
}

CudaEngine::Bucket CudaEngine::FirstBucket(const StepSize& size) {
  return {BucketOf(size.rows), size.wanted == 0 ? 0 : BucketOf(std::min(size.wanted, kRowTile))};
}

uint32_t CudaEngine::NumLogits(const StepSize& size, uint32_t first) {
  return std::min(size.logits - std::min(first, size.logits), kRowTile);
}

absl::Status CudaEngine::BeginStep(const StepSize& size) {
  TANDEM_RETURN_IF_ERROR(ReplayOrCompute(FirstBucket(size)));
  return size.wanted == 0 ? absl::OkStatus() : DownloadWanted(size, 0);
}

absl::Status CudaEngine::DownloadWanted(const StepSize& size, uint32_t first) {
  if (parallel_.rank != 0) return absl::OkStatus();
  if (const uint32_t num_logits = NumLogits(size, first); num_logits > 0) {
    const uint64_t row_bytes = static_cast<uint64_t>(config_.vocab_size) * sizeof(float);
    TANDEM_RETURN_IF_ERROR(ops_->Download(staged_logits_, logits_.data, num_logits * row_bytes));
  }
  // All choices at once, with the last rows.
  const bool is_last = size.wanted - first <= kRowTile;
  if (!is_last || size.logits == size.wanted) return absl::OkStatus();
  return ops_->Download(staged_chosen_, chosen_.data + size.logits,
                        (size.wanted - size.logits) * sizeof(uint32_t));
}

absl::Status CudaEngine::EndStep(const StepSize& size, absl::Span<const StepRow> rows) {
  // Without a wait nobody would know how long such a step takes.
  if (size.wanted == 0) return Wait();
  const Bucket bucket = FirstBucket(size);
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  auto next = rows.begin();
  for (uint32_t first = 0; first < size.wanted; first += kRowTile) {
    const uint32_t count = std::min(size.wanted - first, kRowTile);
    if (first > 0) {
      TANDEM_RETURN_IF_ERROR(ComputeWanted(first, BucketOf(count), bucket));
      TANDEM_RETURN_IF_ERROR(DownloadWanted(size, first));
    }
    if (parallel_.rank != 0) continue;
    const uint32_t num_logits = NumLogits(size, first);
    if (num_logits > 0 || first + count == size.wanted) TANDEM_RETURN_IF_ERROR(Wait());
    for (uint32_t i = 0; i < num_logits; ++i, ++next) {
      while (next->logits == nullptr) ++next;
      std::memcpy(next->logits, staged_logits_ + i * vocab, vocab * sizeof(float));
    }
  }
  return parallel_.rank == 0 ? HandOutChoices(rows) : absl::OkStatus();
}

absl::Status CudaEngine::HandOutChoices(absl::Span<const StepRow> rows) {
  const uint32_t* next = staged_chosen_;
  for (const StepRow& row : rows) {
    if (row.choice == nullptr) continue;
    const uint32_t token = *next++;
    if (token >= static_cast<uint32_t>(config_.vocab_size)) {
      return absl::InternalError(
          absl::StrCat(ops_->name(), " chose token ", token, "; there are ", config_.vocab_size));
    }
    *row.choice->token = static_cast<TokenId>(token);
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::ReplayOrCompute(const Bucket& bucket) {
  if (!options_.use_graphs) return Compute(bucket);
  TANDEM_ASSIGN_OR_RETURN(const uint32_t graph, GraphFor(bucket));
  return ops_->Replay(graph);
}

absl::Status CudaEngine::CopyKv(absl::Span<const KvCopy> copies) {
  Use use(this);
  TANDEM_RETURN_IF_ERROR(use.Begin());
  if (is_started_) return absl::FailedPreconditionError("a copy while a step has not been finished");
  if (parallel_.rank != 0) return absl::FailedPreconditionError("a copy on a rank that follows rank 0");
  TANDEM_RETURN_IF_ERROR(validator_->CheckCopies(copies));
  while (!copies.empty()) {
    const size_t count = std::min<size_t>(copies.size(), kMostCopies);
    words_.assign(StepWords::kHeaderWords, 0);
    words_[StepWords::kNumRows] = static_cast<uint32_t>(count);
    for (const KvCopy& copy : copies.first(count)) {
      words_.push_back(copy.from);
      words_.push_back(copy.to);
    }
    TANDEM_RETURN_IF_ERROR(SendWords(kCopies));
    TANDEM_RETURN_IF_ERROR(RunCopies(static_cast<uint32_t>(count)));
    copies.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::RunCopies(uint32_t num_copies) {
  CopyKvKernel copy;
  copy.copies = device_words_.Part(StepWords::kHeaderWords, uint64_t{2} * num_copies);
  copy.pool = kv_;
  copy.layout = Layout();
  copy.layer_size = LayerKvSize();
  copy.num_layers = static_cast<uint32_t>(2 * weights_.layers.size());
  copy.num_copies = num_copies;
  const uint64_t num_elements =
      uint64_t{copy.num_layers} * shard_.kv_heads.size() * static_cast<uint64_t>(config_.head_dim);
  return ops_->Launch(copy, CopyKvShape(num_elements));
}

absl::Status CudaEngine::Follow() {
  Use use(this);
  TANDEM_RETURN_IF_ERROR(use.Begin());
  if (parallel_.rank == 0) return absl::FailedPreconditionError("rank 0 follows nobody");
  for (;;) {
    constexpr uint64_t kHeaderBytes = StepWords::kHeaderWords * sizeof(uint32_t);
    TANDEM_RETURN_IF_ERROR(ops_->Broadcast(device_words_.data, kHeaderBytes));
    const uint32_t* const header = staged_words_[0];
    TANDEM_RETURN_IF_ERROR(ops_->Download(staged_words_[0], device_words_.data, kHeaderBytes));
    TANDEM_RETURN_IF_ERROR(Wait());
    const uint32_t kind = header[StepWords::kKind];
    const StepSize size = SizeOf(header);
    const uint64_t num_words = header[StepWords::kNumWords];
    TANDEM_RETURN_IF_ERROR(EnsureWordCapacity(num_words));
    TANDEM_RETURN_IF_ERROR(ops_->Broadcast(device_words_.data, num_words * sizeof(uint32_t)));
    switch (kind) {
      case kStep:
        TANDEM_RETURN_IF_ERROR(BeginStep(size));
        TANDEM_RETURN_IF_ERROR(EndStep(size, {}));
        break;
      case kCopies:
        TANDEM_RETURN_IF_ERROR(RunCopies(size.rows));
        break;
      case kStop:
        return ops_->Synchronize();
      default:
        return absl::InternalError(absl::StrCat("rank 0 asks for ", kind));
    }
  }
}

CudaEngine::~CudaEngine() {
  // Without words the engine never started, and neither did the others'.
  if (is_alone() || parallel_.rank != 0 || device_words_.empty()) return;
  words_.assign(StepWords::kHeaderWords, 0);
  if (ops_->BindThread().ok() && SendWords(kStop).ok()) ops_->Synchronize().IgnoreError();
}

}  // namespace tandem

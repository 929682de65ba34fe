#include "common/engine/cuda/cuda_engine.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

// Rank 0's commands to the others (StepWords::kKind).
constexpr uint32_t kStep = 1;
constexpr uint32_t kCopies = 2;
constexpr uint32_t kStop = 3;

// The most copies in one command.
constexpr uint32_t kMostCopies = 8192;

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

namespace {

// Refuses, by name, the parts of a description that this engine does not execute.
absl::Status CheckBlock(const Model& model, const TensorParallel& parallel) {
  const ModelConfig& config = model.config();
  const BlockDescription& block = config.block;
  std::string found;
  std::string supported = "";
  if (parallel.world_size > 1) {
    found = BeyondLlama(block);
    supported = "on several GPUs blocks as Llama's, with experts or without";
  } else if (found = OnlyOnProcessors(block); !found.empty()) {
    supported = "norms before sums, an embedding of hidden_size, experts behind attention";
  } else if (config.qk_norm && block.qk_norm == QkNorm::kAll && config.attention_bias) {
    found = "biases under norms over all queries or keys at once (attention_bias true)";
    supported = "false";
  }
  if (found.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(
      model.folder(), "/config.json: field architectures: found ", config.architecture, " with ", found,
      ", supported on the device cuda: ", supported, " (docs/reference/models.md); the device cpu runs it"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::Create(const Model& model, const Options& options,
                                                               std::unique_ptr<DeviceOps> ops) {
  constexpr uint32_t kMostRows = 65536;
  if (options.max_rows < 1 || options.max_rows > kMostRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_rows is ", options.max_rows, "; expected 1 to ", kMostRows));
  }
  const std::optional<HeadConfig>& head = model.config().head;
  if (head.has_value() && head->kind == HeadConfig::Kind::kDFlash) {
    return absl::UnimplementedError(
        absl::StrCat(model.folder(),
                     "/config.json: field architectures: a draft head of kind dflash, supported on the "
                     "device cuda: EAGLE and Medusa heads and next-token modules; the device cpu runs it"));
  }
  if (head.has_value() && !head->reads_context()) {
    return absl::InvalidArgumentError(absl::StrCat(model.folder(), ": a draft head of kind ",
                                                   HeadKindName(head->kind),
                                                   ", expected a model with layers"));
  }
  TANDEM_RETURN_IF_ERROR(CheckBlock(model, ops->parallel()));
  TANDEM_RETURN_IF_ERROR(ValidateGpuWeightType(options.weight_type));
  std::unique_ptr<CudaEngine> engine(new CudaEngine(model.config(), options, std::move(ops)));
  TANDEM_RETURN_IF_ERROR(engine->Load(model));
  return engine;
}

absl::StatusOr<uint32_t> CudaEngine::GraphFor(const Bucket& bucket) {
  const auto known = graphs_.find(bucket);
  if (known != graphs_.end()) return known->second;
  TANDEM_RETURN_IF_ERROR(ops_->BeginCapture());
  const absl::Status status = Compute(bucket);
  // Once begun, a capture must be ended, also after an error.
  const absl::StatusOr<uint32_t> graph = ops_->EndCapture();
  TANDEM_RETURN_IF_ERROR(status);
  TANDEM_RETURN_IF_ERROR(graph.status());
  graphs_[bucket] = *graph;
  return *graph;
}

uint64_t CudaEngine::LayerKvSize() const {
  return uint64_t{num_blocks_} * shard_.kv_heads.size() * kBlockTokens *
         KvVectorSize(static_cast<uint32_t>(config_.head_dim));
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
  ForgetGraphs();
  // All buffers grow or none does, because their sizes must agree.
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

absl::Status CudaEngine::EnsureFeatureRoom(uint64_t num_states) {
  const auto hidden = static_cast<uint64_t>(config_.hidden_size);
  if (num_states * hidden <= features_.size) return absl::OkStatus();
  const uint64_t size = std::max(num_states * hidden, 2 * features_.size);
  ForgetGraphs();
  TANDEM_ASSIGN_OR_RETURN(const auto features, ops_->Allocate<float>(size, "features"));
  TANDEM_ASSIGN_OR_RETURN(void* staged, ops_->AllocateHostBytes(size * sizeof(float), "features"));
  features_ = features;
  staged_features_ = static_cast<float*>(staged);
  return absl::OkStatus();
}

void CudaEngine::ForgetGraphs() {
  ops_->DropGraphs();
  graphs_.clear();
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
    // The same on every rank: another rank may hold more of the heads that share keys than this one.
    const uint32_t most_heads = std::min(shard_.head_map.heads_per_kv, kMaxQueriesPerItem);
    WriteStepWords(
        rows,
        {.max_rows = options_.max_rows,
         // If layers differ, each layer's kernel has its own window.
         .sliding_window =
             config_.block.layers.empty() ? static_cast<uint32_t>(config_.sliding_window.value_or(0)) : 0,
         .rows_per_item = std::min(kMaxQueriesPerItem / most_heads, StepWords::kMaxItemRows),
         .num_layers = num_layers(),
         .float_states = float_states(),
         .adapters = &adapters_.places()},
        &words_);
    started_size_ = SizeOf(words_.data());
    TANDEM_RETURN_IF_ERROR(EnsureFeatureRoom(started_size_.states));
    TANDEM_RETURN_IF_ERROR(SendWords(kStep));
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
  return {words[StepWords::kNumRows],
          words[StepWords::kNumWanted],
          words[StepWords::kNumLogits],
          words[StepWords::kNumStates],
          words[StepWords::kHasFinalFeatures] != 0,
          words[StepWords::kHasAdapters] != 0};
}

CudaEngine::Bucket CudaEngine::FirstBucket(const StepSize& size) const {
  return {BucketOf(size.rows), size.wanted == 0 ? 0 : BucketOf(std::min(size.wanted, kRowTile)),
          parallel_.rank == 0 && size.states > 0, size.has_final_features, size.has_adapters};
}

uint32_t CudaEngine::NumLogits(const StepSize& size, uint32_t first) {
  return std::min(size.logits - std::min(first, size.logits), kRowTile);
}

absl::Status CudaEngine::BeginStep(const StepSize& size) {
  TANDEM_RETURN_IF_ERROR(ReplayOrCompute(FirstBucket(size)));
  // Every rank has the same hidden states, so rank 0's are used.
  if (parallel_.rank == 0 && size.states > 0) {
    const uint64_t state_bytes = static_cast<uint64_t>(config_.hidden_size) * sizeof(float);
    TANDEM_RETURN_IF_ERROR(ops_->Download(staged_features_, features_.data, size.states * state_bytes));
  }
  return size.wanted == 0 ? absl::OkStatus() : DownloadWanted(size, 0);
}

absl::Status CudaEngine::DownloadWanted(const StepSize& size, uint32_t first) {
  if (parallel_.rank != 0) return absl::OkStatus();
  if (const uint32_t num_logits = NumLogits(size, first); num_logits > 0) {
    const uint64_t row_bytes = uint64_t{logit_width()} * sizeof(float);
    TANDEM_RETURN_IF_ERROR(ops_->Download(staged_logits_, logits_.data, num_logits * row_bytes));
  }
  // The last download brings all choices at once.
  const bool is_last = size.wanted - first <= kRowTile;
  if (!is_last || size.logits == size.wanted) return absl::OkStatus();
  return ops_->Download(staged_chosen_, chosen_.data + size.logits,
                        (size.wanted - size.logits) * sizeof(uint32_t));
}

absl::Status CudaEngine::EndStep(const StepSize& size, absl::Span<const StepRow> rows) {
  if (size.wanted == 0) {
    // Without this wait, nobody could measure the step's time.
    TANDEM_RETURN_IF_ERROR(Wait());
    HandOutFeatures(rows);
    return absl::OkStatus();
  }
  const Bucket bucket = FirstBucket(size);
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
      HandOutLogits(staged_logits_ + size_t{i} * logit_width(), next->logits);
    }
  }
  HandOutFeatures(rows);
  return parallel_.rank == 0 ? HandOutChoices(rows) : absl::OkStatus();
}

void CudaEngine::HandOutLogits(const float* from, float* to) const {
  if (draft_tokens_.empty()) {
    std::copy_n(from, logit_width(), to);
    return;
  }
  std::fill_n(to, config_.vocab_size, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < draft_tokens_.size(); ++i) to[draft_tokens_[i]] = from[i];
}

// The order is that of the step's words. Ranks that follow rank 0 have no rows.
void CudaEngine::HandOutFeatures(absl::Span<const StepRow> rows) const {
  const float* next = staged_features_;
  for (const StepRow& row : rows) {
    if (row.features == nullptr) continue;
    const size_t size = size_t{row.features->num_states()} * static_cast<size_t>(config_.hidden_size);
    std::copy_n(next, size, row.features->states);
    next += size;
  }
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

absl::StatusOr<AdapterId> CudaEngine::AddAdapter(const LoraAdapter& adapter) {
  if (!has_adapters()) return Engine::AddAdapter(adapter);
  Use use(this);
  TANDEM_RETURN_IF_ERROR(use.Begin());
  if (is_started_) return absl::FailedPreconditionError("an adapter while a step has not been finished");
  TANDEM_ASSIGN_OR_RETURN(const AdapterId id, adapters_.Add(adapter));
  if (const absl::Status status = FollowAdapters(); !status.ok()) {
    adapters_.Drop(id).IgnoreError();
    return status;
  }
  validator_->AllowAdapter(id);
  return id;
}

absl::Status CudaEngine::FollowAdapters() {
  if (adapter_table_ == adapters_.table().data && adapter_width_ >= adapters_.width())
    return absl::OkStatus();
  ForgetGraphs();
  adapter_table_ = adapters_.table().data;
  if (adapter_width_ >= adapters_.width()) return absl::OkStatus();
  const uint64_t size = uint64_t{padded_rows_} * adapters_.width();
  TANDEM_ASSIGN_OR_RETURN(void* const memory,
                          ops_->AllocateBlock(size * sizeof(float), "adapters' activations"));
  if (!reduced_.empty()) ops_->FreeBlock(reduced_.data);
  reduced_ = {static_cast<float*>(memory), size};
  adapter_width_ = adapters_.width();
  return absl::OkStatus();
}

absl::Status CudaEngine::DropAdapter(AdapterId adapter) {
  Use use(this);
  TANDEM_RETURN_IF_ERROR(use.Begin());
  if (is_started_) return absl::FailedPreconditionError("an adapter while a step has not been finished");
  TANDEM_RETURN_IF_ERROR(adapters_.Drop(adapter));
  validator_->ForbidAdapter(adapter);
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

absl::StatusOr<uint64_t> CudaEngine::CountExpertsRead() {
  Use use(this);
  TANDEM_RETURN_IF_ERROR(use.Begin());
  if (is_started_) return absl::FailedPreconditionError("a question while a step has not been finished");
  if (experts_.num_read.empty()) return 0;
  uint64_t num_read = 0;
  TANDEM_RETURN_IF_ERROR(ops_->Download(&num_read, experts_.num_read.data, sizeof(num_read)));
  TANDEM_RETURN_IF_ERROR(Wait());
  return num_read;
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
  // Without words, this engine never started, and the other ranks' engines did not either.
  if (is_alone() || parallel_.rank != 0 || device_words_.empty()) return;
  words_.assign(StepWords::kHeaderWords, 0);
  if (ops_->BindThread().ok() && SendWords(kStop).ok()) ops_->Synchronize().IgnoreError();
}

}  // namespace tandem

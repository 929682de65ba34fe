#include "common/engine/cpu/cpu_engine.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_forward.h"
#include "common/engine/cpu/medusa_engine.h"
#include "common/engine/kv_choice.h"

namespace tandem {
namespace {

absl::StatusOr<uint32_t> CountBlocks(const ModelConfig& config, KvType kv_type,
                                     const CpuEngineOptions& options) {
  if (options.num_blocks != 0) return options.num_blocks;
  const std::optional<uint64_t> block_bytes = KvStore::BytesPerBlock(config, kv_type);
  if (!block_bytes.has_value() || *block_bytes == 0 || options.kv_bytes < *block_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_bytes is ", options.kv_bytes, "; one block of ", kBlockTokens, " tokens takes ",
                     block_bytes.value_or(std::numeric_limits<uint64_t>::max()), " bytes"));
  }
  // KvStore returns the error if there are too many blocks for slot numbers.
  return static_cast<uint32_t>(
      std::min<uint64_t>(options.kv_bytes / *block_bytes, std::numeric_limits<SlotId>::max() / kBlockTokens));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CpuEngine::Create(std::shared_ptr<const Model> owned_model,
                                                          const CpuEngineOptions& options) {
  const Model& model = *owned_model;
  const KvType kv_type = CpuKvType(model, options.kv_type);
  std::unique_ptr<CpuEngine> engine(new CpuEngine);
  engine->config_ = model.config();
  engine->max_rows_ = options.max_rows;
  TANDEM_ASSIGN_OR_RETURN(engine->kernels_, SelectKernels(options.instruction_set));
  TANDEM_ASSIGN_OR_RETURN(engine->team_, ThreadTeam::Create(options.num_threads, options.cpus));
  TANDEM_ASSIGN_OR_RETURN(engine->num_blocks_, CountBlocks(engine->config_, kv_type, options));
  engine->max_context_ =
      std::min(static_cast<uint32_t>(engine->config_.max_context), engine->num_blocks_ * kBlockTokens);
  TANDEM_RETURN_IF_ERROR(engine->CreateAttention(kv_type));
  TANDEM_RETURN_IF_ERROR(engine->AllocateScratch());
  TANDEM_ASSIGN_OR_RETURN(engine->weights_, PackWeights(model, options.weight_type, *engine->kernels_,
                                                        engine->team_.get(), options.progress));
  if (!engine->config_.head.has_value()) return engine;
  TANDEM_RETURN_IF_ERROR(engine->CreateHead());
  engine->mapped_ = std::move(owned_model);
  return engine;
}

absl::Status CpuEngine::CreateHead() {
  const TokenIds& draft_tokens = weights_.head.draft_tokens;
  if (!draft_tokens.empty()) {
    draft_logits_ = std::make_unique<DraftLogits>(config_, draft_tokens, team_->num_threads());
  }
  if (config_.head->kind != HeadConfig::Kind::kDFlash) {
    TANDEM_ASSIGN_OR_RETURN(head_, HeadStage::Create(config_, weights_, *kernels_, team_.get(), max_rows_));
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(block_,
                          BlockStage::Create(config_, weights_, *kernels_, team_.get(), attention_.get(),
                                             {.max_rows = max_rows_, .num_blocks = num_blocks_}));
  return absl::OkStatus();
}

absl::Status CpuEngine::CreateAttention(KvType kv_type) {
  CpuAttention::Options options = {
      .kv_type = kv_type, .num_blocks = num_blocks_, .max_rows = max_rows_, .max_context = max_context_};
  if (config_.head.has_value() && config_.head->kind == HeadConfig::Kind::kDFlash) {
    // The pool knows nothing of slots' keys and values.
    options.num_blocks += BlockStage::NumKvBlocks(config_, max_rows_);
    options.max_context += static_cast<uint32_t>(config_.head->block.num_slots);
  }
  const auto attended = static_cast<uint32_t>(config_.attended_size());
  TANDEM_ASSIGN_OR_RETURN(attended_, ProductInputs::Allocate(*kernels_, max_rows_, attended));
  if (config_.block.latent.exists()) {
    TANDEM_ASSIGN_OR_RETURN(
        latent_, LatentStage::Create(config_, *kernels_, team_.get(), max_rows_, attended_.floats()));
    options.query_stride = latent_->query_stride();
    options.output_stride = latent_->sum_stride();
  }
  TANDEM_ASSIGN_OR_RETURN(attention_, CpuAttention::Create(config_, *kernels_, team_.get(), options));
  return absl::OkStatus();
}

absl::Status CpuEngine::AllocateScratch() {
  const auto hidden = static_cast<uint32_t>(config_.hidden_size);
  const auto projected = static_cast<uint32_t>(config_.projected_size());
  TANDEM_ASSIGN_OR_RETURN(hidden_, RowBuffer::Allocate(max_rows_, hidden));
  TANDEM_ASSIGN_OR_RETURN(normed_, ProductInputs::Allocate(*kernels_, max_rows_, hidden));
  TANDEM_ASSIGN_OR_RETURN(projected_, RowBuffer::Allocate(max_rows_, hidden));
  TANDEM_ASSIGN_OR_RETURN(query_key_value_, RowBuffer::Allocate(max_rows_, projected));
  TANDEM_RETURN_IF_ERROR(AllocateFeedForward());
  if (config_.block.embedding_size > 0) {
    const auto narrow = static_cast<uint32_t>(config_.block.embedding_size);
    TANDEM_ASSIGN_OR_RETURN(narrow_, ProductInputs::Allocate(*kernels_, max_rows_, narrow));
  }
  StepValidator::Options checks{.vocab_size = config_.vocab_size,
                                .num_blocks = num_blocks_,
                                .max_rows = max_rows_,
                                .max_context = max_context_};
  const bool is_block = config_.head.has_value() && config_.head->kind == HeadConfig::Kind::kDFlash;
  if (!is_block) {
    checks.feature_layers = static_cast<uint32_t>(config_.num_layers);
    checks.own_state_size = hidden;
  }
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
  if (block_ != nullptr) {
    block_->ReadStates(rows);
    for (size_t next = 0; next < rows.size();) {
      num_rows_ = block_->LayOut(rows, &next, absl::MakeSpan(active_));
      if (num_rows_ > 0) RunActive();
    }
    return absl::OkStatus();
  }
  num_rows_ = static_cast<uint32_t>(rows.size());
  adapts_ = false;
  for (uint32_t i = 0; i < num_rows_; ++i) {
    const uint32_t length = rows[i].context.length();
    active_[i] = {&rows[i], length - 1, LastSlot(rows[i].context), length};
    if (rows[i].adapter != kNoAdapter) adapts_ = true;
  }
  if (adapts_) {
    std::sort(active_.begin(), active_.begin() + num_rows_, [](const ActiveRow& a, const ActiveRow& b) {
      return std::pair(a.row->adapter, a.row) < std::pair(b.row->adapter, b.row);
    });
  }
  RunActive();
  return absl::OkStatus();
}

void CpuEngine::RunActive() {
  num_active_ = num_rows_;
  num_last_ = 0;
  num_wanted_ = 0;
  asks_for_features_ = false;
  if (adapts_) lora_->Plan(ActiveRows());
  for (const ActiveRow& active : ActiveRows()) {
    const StepRow& row = *active.row;
    if (row.logits != nullptr) logits_[num_wanted_++] = row.logits;
    if (row.features != nullptr) asks_for_features_ = true;
    if (IsComputedToTheEnd(row)) ++num_last_;
  }
  if (experts_ != nullptr) experts_->BeginStep();
  if (head_ != nullptr) head_->Plan(ActiveRows(), hidden_);
  PlanAttention();
  team_->Run([this](int thread) { RunStep(thread); });
}

absl::Status CpuEngine::CopyKv(absl::Span<const KvCopy> copies) {
  TANDEM_RETURN_IF_ERROR(validator_->CheckCopies(copies));
  for (const KvCopy& copy : copies) attention_->Copy(copy.from, copy.to);
  return absl::OkStatus();
}

absl::Status CpuEngine::AddTokenBefore(TokenId token, absl::Span<float> logits) {
  if (block_ == nullptr || config_.head->block.markov_rank == 0) {
    return Engine::AddTokenBefore(token, logits);
  }
  if (token < 0 || token >= config_.vocab_size || logits.size() != static_cast<size_t>(config_.vocab_size)) {
    return absl::InvalidArgumentError(absl::StrCat("token ", token, " before ", logits.size(),
                                                   " logits; expected a token below ", config_.vocab_size,
                                                   " and as many logits"));
  }
  block_->AddTokenBefore(token, logits.data());
  return absl::OkStatus();
}

absl::StatusOr<AdapterId> CpuEngine::AddAdapter(const LoraAdapter& adapter) {
  if (!has_adapters()) return Engine::AddAdapter(adapter);
  if (lora_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(lora_, LoraStage::Create(config_, *kernels_, team_.get(), max_rows_));
  }
  TANDEM_ASSIGN_OR_RETURN(const AdapterId id, lora_->AddAdapter(adapter));
  validator_->AllowAdapter(id);
  return id;
}

absl::Status CpuEngine::DropAdapter(AdapterId adapter) {
  if (lora_ == nullptr) return Engine::DropAdapter(adapter);
  TANDEM_RETURN_IF_ERROR(lora_->DropAdapter(adapter));
  validator_->ForbidAdapter(adapter);
  return absl::OkStatus();
}

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

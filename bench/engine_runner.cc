#include "bench/engine_runner.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/model_shapes.h"
#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/cpu/cpu_weights.h"
#include "common/engine/cuda/create_cuda_engine.h"
#include "common/engine/cuda/cuda_engine.h"

namespace tandem {
namespace {

constexpr uint64_t kRandomSeed = 1;

// Models in float32 are measured too where bf16 is asked for, and said to be.
WeightType EngineWeightType(WeightDtype dtype) {
  switch (dtype) {
    case WeightDtype::kInt8:
      return WeightType::kInt8;
    case WeightDtype::kInt4:
      return WeightType::kInt4;
    case WeightDtype::kW8A8:
      return WeightType::kW8A8;
    case WeightDtype::kW4A8:
      return WeightType::kW4A8;
    case WeightDtype::kFp8:
      return WeightType::kFp8;
    case WeightDtype::kExact:
      return WeightType::kExact;
    case WeightDtype::kF32:
    case WeightDtype::kBf16:
    case WeightDtype::kQuantized:
      break;
  }
  return WeightType::kAsInFile;
}

// Of the last step, on either kind of device.
absl::StatusOr<uint64_t> ExpertsReadBy(Engine* engine) {
  auto* const cuda_engine = dynamic_cast<CudaEngine*>(engine);
  if (cuda_engine != nullptr) return cuda_engine->CountExpertsRead();
  return ExpertsRead(*engine);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Model>> LoadModel(const ModelSource& source) {
  if (source.folder.empty() == source.shape.empty()) {
    return absl::InvalidArgumentError("expected either a model folder or --shape");
  }
  if (!source.folder.empty() && !source.head_target.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const Model> target, Model::Load(source.head_target));
    return Model::LoadHead(source.folder, target);
  }
  if (!source.folder.empty()) return Model::Load(source.folder);
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ModelShape(source.shape));
  return Model::Random(config, kRandomSeed);
}

absl::StatusOr<std::unique_ptr<EngineRunner>> EngineRunner::Create(const std::shared_ptr<const Model>& model,
                                                                   const Options& options) {
  const auto max_context = static_cast<uint32_t>(model->config().max_context);
  if (options.most_rows == 0 || options.most_context == 0 || options.most_rows >= max_context ||
      options.most_context > max_context - options.most_rows) {
    return absl::InvalidArgumentError(absl::StrCat("a context of ", options.most_context, " and ",
                                                   options.most_rows, " rows: expected at least 1 each, and ",
                                                   max_context, " together, the model's context"));
  }
  if (model->config().head.has_value() && model->config().head->gives_levels()) {
    return absl::InvalidArgumentError(
        "Medusa and DFlash heads have no rows in trees, expected a head that reads its own states");
  }
  const bool is_quantized = HoldsQuantized(*model);
  const bool keeps_codes =
      options.weight_dtype == WeightDtype::kQuantized || options.weight_dtype == WeightDtype::kExact;
  if (is_quantized ? options.weight_dtype == WeightDtype::kBf16 : keeps_codes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight dtype ", WeightDtypeName(options.weight_dtype), " of ", model->folder(), ", whose files are ",
        is_quantized ? "quantised: expected auto, exact, int8, int4, w8a8 or w4a8"
                     : "not quantised: expected bf16, int8, int4, w8a8, w4a8 or fp8"));
  }
  std::unique_ptr<EngineRunner> runner(new EngineRunner(options));
  CpuEngineOptions engine_options;
  engine_options.weight_type = EngineWeightType(options.weight_dtype);
  engine_options.kv_type = options.kv_type;
  engine_options.num_threads = options.threads;
  engine_options.instruction_set = options.instruction_set;
  engine_options.max_rows = std::max(options.most_rows, kPromptRows);
  // The tree's context, and a prompt or a greedy continuation beside it.
  engine_options.num_blocks = (2 * options.most_context + options.most_rows) / kBlockTokens + 8;
  if (options.device.is_cuda) {
    TANDEM_ASSIGN_OR_RETURN(runner->engine_, CreateCudaEngine(*model, {.index = options.device.index},
                                                              {.num_blocks = engine_options.num_blocks,
                                                               .max_rows = engine_options.max_rows,
                                                               .weight_type = engine_options.weight_type}));
  } else {
    TANDEM_ASSIGN_OR_RETURN(runner->engine_, CreateCpuEngine(model, engine_options));
  }
  if (!options.adapter.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const LoraAdapter> adapter,
                            LoraAdapter::Load(options.adapter, model->config()));
    TANDEM_ASSIGN_OR_RETURN(runner->adapter_, runner->engine_->AddAdapter(*adapter));
  }
  const bool is_f32 = model->output().dtype == TensorView::DType::kF32;
  runner->stored_dtype_ =
      is_f32 && options.weight_dtype == WeightDtype::kBf16 ? WeightDtype::kF32 : options.weight_dtype;
  runner->pool_ = std::make_unique<BlockPool>(
      BlockPool::Options{.num_blocks = runner->engine_->num_blocks(), .prefix_cache = false});
  runner->logits_.resize(size_t{options.most_rows} * static_cast<size_t>(model->config().vocab_size));
  if (keeps_codes) {
    const StepWork floats = TreeStepWork(model->config(), WeightDtype::kQuantized, 1, 1, options.tree);
    runner->stored_share_ = static_cast<double>(BytesReadPerStep(*model, engine_options.weight_type)) /
                            static_cast<double>(floats.weight_bytes);
  }
  if (model->config().head.has_value()) runner->MakeStates();
  TANDEM_RETURN_IF_ERROR(runner->SetContext(options.most_context));
  return runner;
}

void EngineRunner::MakeStates() {
  const auto hidden = static_cast<size_t>(config().hidden_size);
  const size_t state_size = config().head->state_size();
  last_layer_ = static_cast<uint32_t>(config().num_layers);
  zeros_.resize(std::max(hidden, state_size));
  target_state_ = {.values = absl::MakeConstSpan(zeros_).first(state_size)};
  own_state_ = {.values = absl::MakeConstSpan(zeros_).first(hidden), .own = true};
  outputs_.resize(options_.most_rows * hidden);
  for (uint32_t row = 0; row < options_.most_rows; ++row) {
    FeatureRequest request{.states = &outputs_[row * hidden]};
    if (config().head->own_state_is_normed) {
      request.final_norm = true;
    } else {
      request.layers = absl::MakeConstSpan(&last_layer_, 1);
    }
    output_requests_.push_back(request);
  }
}

TokenIds EngineRunner::SomeTokens(uint32_t num_tokens) const {
  const auto vocab = static_cast<uint64_t>(config().vocab_size);
  TokenIds tokens(num_tokens);
  for (uint64_t i = 0; i < num_tokens; ++i) tokens[i] = static_cast<TokenId>(i * 7919 % vocab);
  return tokens;
}

absl::Status EngineRunner::ComputePrompt(absl::Span<const TokenId> tokens, SequenceKv* kv) {
  const auto length = static_cast<uint32_t>(tokens.size());
  prompt_experts_[length].clear();
  std::vector<StepRow> rows;
  for (uint32_t position = 0; position < length; ++position) {
    rows.push_back({.token = tokens[position],
                    .context = kv->CommittedRow(position),
                    .state = config().head.has_value() ? &target_state_ : nullptr,
                    .adapter = adapter_});
    if (position + 1 == length) rows.back().logits = logits_.data();
    if (rows.size() == kPromptRows || position + 1 == length) {
      TANDEM_RETURN_IF_ERROR(engine_->Step(rows));
      TANDEM_ASSIGN_OR_RETURN(const uint64_t num_experts, ExpertsReadBy(engine_.get()));
      prompt_experts_[length].push_back(num_experts);
      rows.clear();
    }
  }
  return absl::OkStatus();
}

absl::Status EngineRunner::SetContext(uint32_t num_tokens) {
  if (num_tokens == 0 || num_tokens > options_.most_context) {
    return absl::InvalidArgumentError(
        absl::StrCat("a context of ", num_tokens, " tokens, expected 1 to ", options_.most_context));
  }
  context_ = num_tokens;
  paths_.clear();
  kv_ = std::make_unique<SequenceKv>(pool_.get(), /*salt=*/0);
  const TokenIds tokens = SomeTokens(num_tokens);
  kv_->Start(tokens);
  TANDEM_RETURN_IF_ERROR(kv_->Reserve(num_tokens));
  const uint32_t computed = std::min(num_tokens, kBlockTokens);
  TANDEM_RETURN_IF_ERROR(ComputePrompt(absl::MakeConstSpan(tokens).first(computed), kv_.get()));
  std::vector<KvCopy> copies;
  for (uint32_t position = computed; position < num_tokens; ++position) {
    copies.push_back({.from = kv_->CommittedSlot(position % computed), .to = kv_->CommittedSlot(position)});
  }
  TANDEM_RETURN_IF_ERROR(engine_->CopyKv(copies));
  for (const int32_t parent : TreeParents(options_.tree, options_.most_rows)) {
    std::vector<SlotId> path;
    if (parent >= 0) path = paths_[static_cast<size_t>(parent)];
    TANDEM_ASSIGN_OR_RETURN(const SlotId slot, kv_->AllocateScratch());
    path.push_back(slot);
    paths_.push_back(std::move(path));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> EngineRunner::TreeStep(uint32_t num_rows) {
  if (num_rows == 0 || num_rows > options_.most_rows) {
    return absl::InvalidArgumentError(absl::StrCat(num_rows, " rows, expected 1 to ", options_.most_rows));
  }
  const auto vocab = static_cast<size_t>(config().vocab_size);
  const bool is_head = config().head.has_value();
  // As a verifier asks.
  const bool chooses = engine_->chooses();
  const SamplingParameters greedy = {.temperature = 0.0f};
  TokenId chosen = 0;
  const SeededChoice choice = {.sampling = &greedy, .position = context_, .token = &chosen};
  std::vector<StepRow> rows;
  for (uint32_t i = 0; i < num_rows; ++i) {
    rows.push_back({.token = static_cast<TokenId>(i % vocab),
                    .context = {.blocks = kv_->blocks(), .num_committed = context_, .tail = paths_[i]},
                    .logits = chooses ? nullptr : &logits_[i * vocab],
                    .choice = chooses ? &choice : nullptr,
                    .features = is_head ? &output_requests_[i] : nullptr,
                    .state = is_head ? &own_state_ : nullptr,
                    .adapter = adapter_});
  }
  const absl::Time start = absl::Now();
  TANDEM_RETURN_IF_ERROR(engine_->Step(rows));
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  TANDEM_ASSIGN_OR_RETURN(tree_experts_[num_rows], ExpertsReadBy(engine_.get()));
  return seconds;
}

absl::StatusOr<double> EngineRunner::Prefill(uint32_t num_tokens) {
  if (num_tokens == 0 || num_tokens > options_.most_context) {
    return absl::InvalidArgumentError(
        absl::StrCat("a prompt of ", num_tokens, " tokens, expected 1 to ", options_.most_context));
  }
  const TokenIds tokens = SomeTokens(num_tokens);
  SequenceKv kv(pool_.get(), /*salt=*/0);
  kv.Start(tokens);
  TANDEM_RETURN_IF_ERROR(kv.Reserve(num_tokens));
  const absl::Time start = absl::Now();
  TANDEM_RETURN_IF_ERROR(ComputePrompt(tokens, &kv));
  return absl::ToDoubleSeconds(absl::Now() - start);
}

absl::StatusOr<TokenIds> EngineRunner::Greedy(absl::Span<const TokenId> prompt, uint32_t num_tokens) {
  if (config().head.has_value()) return absl::InvalidArgumentError("a draft head follows a target");
  if (prompt.empty() || num_tokens > options_.most_context ||
      prompt.size() > options_.most_context - num_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("a prompt of ", prompt.size(), " tokens and ", num_tokens,
                                                   " more, expected a prompt and at most ",
                                                   options_.most_context, " together"));
  }
  SequenceKv kv(pool_.get(), /*salt=*/0);
  kv.Start(prompt);
  TANDEM_RETURN_IF_ERROR(kv.Reserve(static_cast<uint32_t>(prompt.size()) + num_tokens));
  TANDEM_RETURN_IF_ERROR(ComputePrompt(prompt, &kv));
  const auto vocab = static_cast<size_t>(config().vocab_size);
  auto position = static_cast<uint32_t>(prompt.size());
  TokenIds tokens;
  while (tokens.size() < num_tokens) {
    const auto best = std::max_element(logits_.begin(), logits_.begin() + static_cast<ptrdiff_t>(vocab));
    tokens.push_back(static_cast<TokenId>(best - logits_.begin()));
    const StepRow row = {.token = tokens.back(),
                         .context = kv.CommittedRow(position++),
                         .logits = logits_.data(),
                         .adapter = adapter_};
    TANDEM_RETURN_IF_ERROR(engine_->Step(absl::MakeConstSpan(&row, 1)));
  }
  return tokens;
}

StepWork EngineRunner::AsStored(StepWork work) const {
  work.weight_bytes = static_cast<uint64_t>(static_cast<double>(work.weight_bytes) * stored_share_);
  return work;
}

StepWork EngineRunner::TreeWork(uint32_t num_rows) const {
  const auto found = tree_experts_.find(num_rows);
  return AsStored(TreeStepWork(config(), stored_dtype_, num_rows, context_, options_.tree, options_.kv_type,
                               found == tree_experts_.end() ? std::nullopt : std::optional(found->second)));
}

std::vector<StepWork> EngineRunner::PrefillWork(uint32_t num_tokens) const {
  std::vector<StepWork> passes;
  const auto found = prompt_experts_.find(num_tokens);
  for (uint32_t first = 0; first < num_tokens; first += kPromptRows) {
    const uint32_t count = std::min(kPromptRows, num_tokens - first);
    const bool known = found != prompt_experts_.end() && passes.size() < found->second.size();
    passes.push_back(AsStored(
        PromptStepWork(config(), stored_dtype_, first, count, first + count == num_tokens, options_.kv_type,
                       known ? std::optional(found->second[passes.size()]) : std::nullopt)));
  }
  return passes;
}

absl::Span<const float> EngineRunner::logits(uint32_t row) const {
  const auto vocab = static_cast<size_t>(config().vocab_size);
  return absl::MakeConstSpan(logits_).subspan(row * vocab, vocab);
}

}  // namespace tandem

#include "drafter/models/model_host.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/engine/cuda/create_cuda_engine.h"
#include "common/engine/sequence_kv.h"
#include "common/grammar/constraint.h"
#include "drafter/models/target_vocabulary.h"

namespace tandem {
namespace {

// Below this a tree has no room behind the window.
constexpr uint32_t kMinContext = 4;
// What sources say to have: they look at the most recent tokens of any text.
constexpr uint32_t kSourceContext = 1 << 20;

absl::StatusOr<MergeSpec> ParseMergeSpec(absl::string_view value) {
  const size_t equals = value.find('=');
  const std::vector<absl::string_view> parts =
      absl::StrSplit(equals == absl::string_view::npos ? "" : value.substr(equals + 1), '+');
  if (equals == 0 || parts.size() < 2) {
    return absl::InvalidArgumentError(absl::StrCat("--merge: \"", value, "\", expected NAME=MODEL+SOURCE"));
  }
  MergeSpec spec{.name = std::string(value.substr(0, equals)), .model = std::string(parts[0])};
  for (size_t i = 1; i < parts.size(); ++i) {
    TANDEM_ASSIGN_OR_RETURN(SourceSpec source, ParseSourceSpec(parts[i]));
    spec.sources.push_back(source);
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::vector<MergeSpec>> ParseMergeSpecs(const std::vector<std::string>& values,
                                                       const std::vector<ModelSpec>& models) {
  std::vector<MergeSpec> specs;
  absl::flat_hash_set<std::string> names;
  for (const ModelSpec& model : models) names.insert(model.name);
  for (const std::string& value : values) {
    TANDEM_ASSIGN_OR_RETURN(MergeSpec spec, ParseMergeSpec(value));
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--merge: the name \"", spec.name, "\" is used twice, expected unique names"));
    }
    if (absl::c_none_of(models, [&](const ModelSpec& model) {
          return model.name == spec.model && !NamesSource(model.folder);
        })) {
      return absl::InvalidArgumentError(absl::StrCat("--merge: \"", spec.model, "\" in \"", value,
                                                     "\", expected a --model that has a folder"));
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

absl::StatusOr<std::vector<ModelSpec>> ParseModelSpecs(const std::vector<std::string>& values) {
  std::vector<ModelSpec> specs;
  absl::flat_hash_set<std::string> names;
  for (const std::string& value : values) {
    ModelSpec spec{value.substr(0, value.find(':')), value};
    if (!NamesSource(value)) {
      TANDEM_ASSIGN_OR_RETURN(spec, ParseModelSpec(value));
    }
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--model: the name \"", spec.name, "\" is used twice, expected unique names"));
    }
    specs.push_back(std::move(spec));
  }
  if (specs.empty()) return absl::InvalidArgumentError("--model: none, expected at least one");
  return specs;
}

absl::Status MarkPlainHeads(const std::vector<std::string>& names, bool all_known,
                            std::vector<ModelSpec>* specs) {
  for (const std::string& name : names) {
    const auto found = absl::c_find_if(*specs, [&](const ModelSpec& spec) { return spec.name == name; });
    if (found != specs->end()) {
      found->plain_eagle3 = true;
    } else if (all_known) {
      return absl::InvalidArgumentError(
          absl::StrCat("--plain-eagle3: \"", name, "\", expected the name of a --model"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::Open(
    const std::vector<ModelSpec>& specs, const std::vector<MergeSpec>& merges, const std::string& head_target,
    const std::vector<std::string>& target_vocabularies) {
  std::unique_ptr<ModelHost> host(new ModelHost);
  std::vector<TargetVocabulary> targets;
  for (const std::string& folder : target_vocabularies) {
    TANDEM_ASSIGN_OR_RETURN(targets.emplace_back(), LoadTargetVocabulary(folder));
  }
  // Mapped once for all heads.
  std::shared_ptr<const Model> target;
  if (!head_target.empty()) {
    TANDEM_ASSIGN_OR_RETURN(target, Model::Load(head_target));
  }
  for (const ModelSpec& spec : specs) {
    const auto shared = std::make_shared<Hosted>();
    host->hosted_.push_back(shared);
    Hosted& hosted = *shared;
    hosted.spec = spec;
    if (NamesSource(spec.folder)) {
      TANDEM_ASSIGN_OR_RETURN(const SourceSpec source, ParseSourceSpec(spec.folder));
      hosted.source = std::make_unique<SourceHost>(source);
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const bool is_head, Model::IsHead(spec.folder, head_target));
    TANDEM_ASSIGN_OR_RETURN(hosted.model, Model::LoadHead(spec.folder, is_head ? target : nullptr,
                                                          {.plain_eagle3 = spec.plain_eagle3}));
    const ModelConfig& config = hosted.model->config();
    if (config.head.has_value() && config.head->norm_output_may_be_plain) {
      LogWarning(
          "config.json says norm_output: true, so the head is run as EAGLE-3.1. SpecForge wrote the same for "
          "plain EAGLE-3 heads from May to September 2026: if this is one of them, name it in --plain-eagle3",
          {{"model", spec.name}, {"folder", spec.folder}});
    }
    // A head's tokens are its target's, so that it has no other vocabularies.
    TANDEM_ASSIGN_OR_RETURN(
        const std::shared_ptr<const Tokenizer> tokenizer,
        Tokenizer::LoadForModel(is_head && target != nullptr ? head_target : spec.folder, config.vocab_size));
    if (config.max_context < static_cast<int32_t>(kMinContext)) {
      return absl::InvalidArgumentError(absl::StrCat(spec.folder, "/config.json: a context of ",
                                                     config.max_context, " tokens, expected at least ",
                                                     kMinContext));
    }
    hosted.vocabulary_fingerprint = tokenizer->Fingerprint(config.vocab_size);
    for (const TargetVocabulary& other : targets) {
      if (config.head.has_value() || other.fingerprint == hosted.vocabulary_fingerprint) continue;
      hosted.other_vocabularies.push_back(Compare(tokenizer, config.vocab_size, other));
    }
    hosted.grammar_vocabulary = host->VocabularyFor(
        *tokenizer, hosted, (is_head && target != nullptr ? target : hosted.model)->generation_defaults());
    TANDEM_ASSIGN_OR_RETURN(hosted.stop_head, StopHead::LoadIfPresent(spec.folder, config.hidden_size));
    hosted.weight_bytes = hosted.model->weight_bytes();
    hosted.progress = std::make_unique<LoadProgress>(spec.name, hosted.weight_bytes);
  }
  for (const MergeSpec& merge : merges) {
    const auto merged = std::make_shared<Merged>();
    merged->name = merge.name;
    merged->hosted =
        *absl::c_find_if(host->hosted_, [&](const auto& hosted) { return hosted->spec.name == merge.model; });
    for (const SourceSpec& source : merge.sources) {
      merged->sources.push_back(std::make_unique<SourceHost>(source));
    }
    host->merged_.push_back(merged);
  }
  return host;
}

std::shared_ptr<const GrammarVocabulary> ModelHost::VocabularyFor(const Tokenizer& tokenizer,
                                                                  const Hosted& hosted,
                                                                  const GenerationDefaults& defaults) const {
  for (const auto& other : hosted_) {
    if (other->grammar_vocabulary != nullptr &&
        other->vocabulary_fingerprint == hosted.vocabulary_fingerprint &&
        other->grammar_vocabulary->end_tokens() == defaults.eos_tokens) {
      return other->grammar_vocabulary;
    }
  }
  // Without one the model drafts freely.
  return VocabularyOf(tokenizer, hosted.model->config().vocab_size, defaults.eos_tokens).value_or(nullptr);
}

WeightType ModelHost::WeightTypeOf(const Model& model, const Options& options) {
  const bool free = options.weight_type == WeightType::kAsInFile && !options.device.is_cuda;
  // Integers of files already have few bits.
  if (!free || HoldsIntegers(model)) return options.weight_type;
  const bool few_bits = HoldsQuantized(model) || KeptWeightType(model, options.weight_type) != "f32";
  return few_bits ? WeightType::kInt8 : options.weight_type;
}

namespace {

absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const std::shared_ptr<const Model>& model,
                                                   const ModelHost::Options& options,
                                                   LoadProgress* progress) {
  const auto num_blocks = static_cast<uint32_t>((options.kv_tokens + kBlockTokens - 1) / kBlockTokens);
  if (options.device.is_cuda) {
    return CreateCudaDrafter(
        *model,
        {.index = options.device.index,
         .memory_limit = options.gpu_memory_limit,
         .low_priority = options.gpu_low_priority},
        {.num_blocks = num_blocks, .weight_type = options.weight_type, .progress = progress});
  }
  CpuEngineOptions engine_options;
  engine_options.num_blocks = num_blocks;
  engine_options.num_threads = options.num_threads;
  engine_options.cpus = options.cpus;
  engine_options.instruction_set = options.instruction_set;
  engine_options.weight_type = ModelHost::WeightTypeOf(*model, options);
  engine_options.kv_type = options.kv_type;
  engine_options.progress = progress;
  return CreateCpuEngine(model, engine_options);
}

}  // namespace

absl::Status ModelHost::Load(const Options& options) {
  feature_type_ = options.feature_type;
  for (const auto& shared : hosted_) {
    Hosted& hosted = *shared;
    if (hosted.source != nullptr) continue;
    hosted.progress->StopWhen(options.stopped);
    TANDEM_ASSIGN_OR_RETURN(hosted.engine, OpenEngine(hosted.model, options, hosted.progress.get()));
    hosted.progress->Finish();
    if (options.pace.has_value()) hosted.engine = PaceEngine(std::move(hosted.engine), *options.pace);
    hosted.pool = std::make_unique<BlockPool>(BlockPool::Options{.num_blocks = hosted.engine->num_blocks()});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<const Model*, double>> ModelHost::MeasureLevels(const Clock& clock) {
  constexpr int kPasses = 3;
  std::map<const Model*, double> seconds;
  absl::Duration left = kMeasuringTime;
  for (const auto& shared : hosted_) {
    const Hosted& hosted = *shared;
    if (hosted.engine == nullptr) continue;
    SequenceKv kv(hosted.pool.get(), /*salt=*/0);
    kv.Start(TokenIds(1, 0));
    TANDEM_RETURN_IF_ERROR(kv.Reserve(1));
    const ModelConfig& config = hosted.engine->config();
    std::vector<float> logits(config.logits_size());
    // Of a head: a row of a tree, which reads a state of its own, or one that gives all levels, which reads
    // the target's.
    const bool own = !config.head.has_value() || !config.head->gives_levels();
    const std::vector<float> state(own ? static_cast<size_t>(config.hidden_size) : config.head->state_size());
    const InputState input{.values = state, .own = own};
    const StepRow row{.token = 0,
                      .context = kv.CommittedRow(0),
                      .logits = logits.data(),
                      .state = config.head.has_value() ? &input : nullptr};
    absl::Duration fastest = absl::InfiniteDuration();
    // The first in any case; a further one if it will end in time.
    for (int pass = 0; pass == 0 || (pass < kPasses && fastest <= left); ++pass) {
      const absl::Time start = clock.Now();
      TANDEM_RETURN_IF_ERROR(hosted.engine->Step({&row, 1}));
      const absl::Duration took = clock.Now() - start;
      fastest = std::min(fastest, took);
      left -= took;
    }
    const int levels = config.head.has_value() ? config.head->num_positions : 1;
    seconds[hosted.model.get()] = absl::ToDoubleSeconds(fastest) / levels;
  }
  return seconds;
}

double ModelHost::load_progress() const {
  double done = 0.0;
  double total = 0.0;
  for (const auto& hosted : hosted_) {
    if (hosted->source != nullptr) continue;
    done += hosted->progress->ratio() * static_cast<double>(hosted->weight_bytes);
    total += static_cast<double>(hosted->weight_bytes);
  }
  return total > 0.0 ? done / total : 1.0;
}

std::vector<DraftModel> ModelHost::draft_models() const {
  std::vector<DraftModel> models;
  for (const auto& shared : hosted_) {
    const Hosted& hosted = *shared;
    if (hosted.source != nullptr) {
      models.push_back(
          {.name = hosted.spec.name, .context_length = kSourceContext, .sources = {hosted.source.get()}});
      continue;
    }
    const ModelConfig& config = hosted.engine->config();
    // Medusa heads hold nothing of the text.
    const bool holds_context = !config.head.has_value() || config.head->reads_context();
    const uint32_t held = holds_context ? hosted.pool->num_blocks() * kBlockTokens : kSourceContext;
    models.push_back({.name = hosted.spec.name,
                      .engine = hosted.engine.get(),
                      .pool = hosted.pool.get(),
                      .vocabulary_fingerprint = hosted.vocabulary_fingerprint,
                      .context_length = std::min(held, static_cast<uint32_t>(config.max_context)),
                      .stop_head = hosted.stop_head.get(),
                      .feature_type = feature_type_,
                      .other_vocabularies = hosted.other_vocabularies});
  }
  for (const auto& merged : merged_) {
    const auto model = absl::c_find_if(
        models, [&](const DraftModel& candidate) { return candidate.name == merged->hosted->spec.name; });
    DraftModel copy = *model;
    copy.name = merged->name;
    for (const auto& source : merged->sources) copy.sources.push_back(source.get());
    models.push_back(std::move(copy));
  }
  return models;
}

std::shared_ptr<void> ModelHost::Hold(absl::string_view name) const {
  for (const auto& hosted : hosted_) {
    if (hosted->spec.name == name) return hosted;
  }
  for (const auto& merged : merged_) {
    if (merged->name == name) return merged;
  }
  return nullptr;
}

void ModelHost::Drop(absl::string_view name) {
  std::erase_if(merged_, [name](const auto& merged) { return merged->name == name; });
  std::erase_if(hosted_, [name](const auto& hosted) { return hosted->spec.name == name; });
}

std::string ModelHost::MadeOf(absl::string_view name) const {
  for (const auto& merged : merged_) {
    if (merged->name == name) return merged->hosted->spec.name;
  }
  return "";
}

ModelHost::Memory ModelHost::MemoryOf(const Model& model, const Options& options) {
  const absl::string_view kept = KeptWeightType(model, WeightTypeOf(model, options));
  // In eighths of a bit, with the scales.
  uint64_t weight_eighths = 256;
  if (kept == "f16" || kept == "bf16") weight_eighths = 128;
  if (kept == "int8" || kept == "w8a8" || kept == "fp8" || kept == "fp8-tensor") weight_eighths = 66;
  if (kept == "int4" || kept == "w4a8") weight_eighths = 34;
  const ModelConfig& config = model.config();
  uint64_t number_bytes = 2;
  if (options.kv_type == KvType::kInt8) number_bytes = 1;
  if (options.kv_type == KvType::kF32) number_bytes = 4;
  // Medusa heads hold nothing of the text.
  const bool holds_context = !config.head.has_value() || config.head->reads_context();
  const uint64_t tokens =
      holds_context ? (options.kv_tokens + kBlockTokens - 1) / kBlockTokens * kBlockTokens : 0;
  const uint64_t numbers = static_cast<uint64_t>(config.num_layers) *
                           static_cast<uint64_t>(config.num_kv_heads) *
                           static_cast<uint64_t>(config.head_dim + config.value_dim());
  return {.weights = model.num_parameters() * weight_eighths / 64, .kv = tokens * numbers * number_bytes};
}

ModelHost::Description ModelHost::Describe(const std::string& name, const Hosted& hosted) const {
  return {name, hosted.model, hosted.vocabulary_fingerprint, hosted.grammar_vocabulary,
          hosted.other_vocabularies};
}

std::vector<ModelHost::Description> ModelHost::descriptions() const {
  std::vector<Description> descriptions;
  for (const auto& hosted : hosted_) descriptions.push_back(Describe(hosted->spec.name, *hosted));
  for (const auto& merged : merged_) descriptions.push_back(Describe(merged->name, *merged->hosted));
  return descriptions;
}

}  // namespace tandem

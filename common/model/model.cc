#include "common/model/model.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/model/block_tensors.h"
#include "common/model/file_tensors.h"
#include "common/model/gguf_config.h"
#include "common/model/gguf_model.h"
#include "common/model/head_tensors.h"
#include "common/model/quantized_tensors.h"
#include "common/model/random_weights.h"
#include "common/model/target_fingerprint.h"
#include "common/model/weight_files.h"

namespace tandem {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;
// Of MiMo's files, which a next-token module is read from.
constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
constexpr char kOutputName[] = "lm_head.weight";
constexpr char kHeadProjectionName[] = "fc.weight";
constexpr char kNextTokenModules[] = "model.mtp_layers.";

absl::StatusOr<ModelConfig> ReadConfig(const std::string& folder) {
  if (GgufFile::IsPath(folder)) return ReadGgufConfig(folder);
  const std::string path = absl::StrCat(folder, "/config.json");
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxConfigBytes));
  return ParseModelConfig(text, path);
}

absl::Status CheckTokens(const TokenIds& tokens, int32_t vocab_size, absl::string_view path) {
  for (TokenId token : tokens) {
    if (token < 0 || token >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": field eos_token_id: found ", token,
                                                     ", expected ids below vocab_size, which is ",
                                                     vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& folder,
                                                          const ModelConfig& config) {
  // A head's text ends where the target's does; what its own file says is often another model's.
  if (!config.head.has_value()) {
    TANDEM_RETURN_IF_ERROR(
        CheckTokens(config.eos_tokens, config.vocab_size, absl::StrCat(folder, "/config.json")));
  }
  const std::string path = absl::StrCat(folder, "/generation_config.json");
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxConfigBytes);
  GenerationDefaults defaults;
  if (text.ok()) {
    TANDEM_ASSIGN_OR_RETURN(defaults, ParseGenerationDefaults(*text, path));
    TANDEM_RETURN_IF_ERROR(CheckTokens(defaults.eos_tokens, config.vocab_size, path));
  } else if (!absl::IsNotFound(text.status())) {
    return text.status();
  }
  if (defaults.eos_tokens.empty()) defaults.eos_tokens = config.eos_tokens;
  std::erase_if(defaults.eos_tokens, [&](TokenId token) { return token < 0 || token >= config.vocab_size; });
  return defaults;
}

bool SameContent(const TensorView& a, const TensorView& b) {
  return a.dtype != TensorView::DType::kQuantized && a.dtype == b.dtype && a.shape == b.shape &&
         std::memcmp(a.data, b.data, a.num_bytes()) == 0;
}

bool IsSameFolder(absl::string_view a, absl::string_view b) {
  return !a.empty() && absl::StripSuffix(a, "/") == absl::StripSuffix(b, "/");
}

// `config` is what the folder's config.json says.
absl::Status ApplyHeadOptions(const HeadOptions& options, const std::string& folder, ModelConfig* config) {
  if (!options.plain_eagle3) return absl::OkStatus();
  if (!config->head.has_value() || !config->head->norm_output_may_be_plain) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder,
                     "/config.json: field norm_output: --plain-eagle3 expects it to be true, in a head of "
                     "architecture LlamaForCausalLMEagle3"));
  }
  config->head->own_state_is_normed = false;
  config->head->norm_output_may_be_plain = false;
  return absl::OkStatus();
}

// Makes the configuration of a target that of the next-token module in its files.
absl::Status UseNextTokenModule(const Model& target, ModelConfig* config) {
  if (config->num_next_token_modules != 1) {
    return absl::UnimplementedError(absl::StrCat(
        target.folder(), "/config.json: field num_nextn_predict_layers: found ",
        config->num_next_token_modules,
        ", supported for a draft head that is read from its target's own folder: 1 (one next-token module, "
        "named ",
        kNextTokenModules, "0)"));
  }
  const TensorNames& names = config->block.names;
  if (names.next_token_modules_are_layers) {
    return absl::UnimplementedError(absl::StrCat(
        target.folder(), "/config.json: field architectures: found ", config->architecture,
        ", whose next-token module is layer ", config->num_layers,
        ", supported for a draft head that is read from its target's own folder: a module named ",
        kNextTokenModules, "0"));
  }
  config->num_layers = 1;
  config->head = NextTokenModule();
  config->head->target_fingerprint = TargetFingerprint(target);
  return absl::OkStatus();
}

}  // namespace

// Takes the tensors that the configuration asks for from their source.
class Model::Reader {
 public:
  explicit Reader(Model& model)
      : model_(model), config_(model.config_), taker_(model.weights_.get()), blocks_(config_, &taker_) {}

  absl::Status ReadAll() {
    TANDEM_RETURN_IF_ERROR(config_.head.has_value() ? ReadHead() : ReadModel());
    model_.weight_bytes_ = taker_.num_bytes();
    model_.num_parameters_ = taker_.num_parameters();
    return absl::OkStatus();
  }

 private:
  absl::Status ReadModel() {
    const TensorNames& names = blocks_.names();
    const std::string root = blocks_.FindRoot();
    TANDEM_RETURN_IF_ERROR(Take(absl::StrCat(root, names.embedding, ".weight"),
                                {config_.vocab_size, config_.embedding_size()}, model_.embedding_));
    TANDEM_RETURN_IF_ERROR(blocks_.ReadOuter(root, model_.outer_, model_.final_norm_));
    TANDEM_RETURN_IF_ERROR(ReadOutput());
    model_.layers_.resize(static_cast<size_t>(config_.num_layers));
    for (size_t i = 0; i < model_.layers_.size(); ++i) {
      TANDEM_RETURN_IF_ERROR(blocks_.ReadLayer(absl::StrCat(root, names.layers, i, "."),
                                               config_.block.has_experts(i), model_.layers_[i]));
    }
    for (int32_t i = 0; i < config_.num_next_token_modules; ++i) {
      const std::string module = names.next_token_modules_are_layers
                                     ? absl::StrCat(root, names.layers, config_.num_layers + i, ".")
                                     : std::string(kNextTokenModules);
      model_.weights_->IgnoreBelow(module, /*others=*/false);
    }
    return model_.weights_->Finish(config_.architecture);
  }

  absl::Status Take(const std::string& name, const std::vector<int64_t>& shape, TensorView& out) {
    return taker_.Take(name, shape, out);
  }
  absl::Status TakeIf(bool wanted, const std::string& name, const std::vector<int64_t>& shape,
                      TensorView& out) {
    return taker_.TakeIf(wanted, name, shape, out);
  }

  // A draft head's tensors; the embedding and, of a head for all tokens, the output matrix may be the
  // target's.
  absl::Status ReadHead() {
    const HeadConfig& head = *config_.head;
    if (head.kind == HeadConfig::Kind::kMedusa) return ReadMedusa();
    if (head.kind == HeadConfig::Kind::kMtp) return ReadNextTokenModule();
    const absl::Status read = head.kind == HeadConfig::Kind::kDFlash ? ReadDFlash() : ReadEagle();
    TANDEM_RETURN_IF_ERROR(CheckUnreadTensors(model_.weights_->NamesLeft(), read.ok(),
                                              absl::StrCat(model_.folder_, "/config.json")));
    return read.ok() ? model_.weights_->Finish(config_.architecture) : read;
  }

  absl::Status ReadEagle() {
    const HeadConfig& head = *config_.head;
    const int64_t hidden = config_.hidden_size;
    TensorSource& weights = *model_.weights_;
    const Model* const target = model_.target_.get();
    const HeadTensorNames names =
        FindHeadTensors([&](const std::string& name) { return weights.Contains(name); }, head);
    TANDEM_RETURN_IF_ERROR(TakeOrShare(names.InRoot("embed_tokens.weight"), {config_.vocab_size, hidden},
                                       target == nullptr ? nullptr : &target->embedding(),
                                       model_.embedding_));
    TANDEM_RETURN_IF_ERROR(TakeOrShare(kOutputName, {head.draft_vocab_size, hidden},
                                       target == nullptr ? nullptr : &target->output(), model_.output_));
    TANDEM_RETURN_IF_ERROR(ReadProjection(names));
    TANDEM_RETURN_IF_ERROR(ReadFirstLayer(names.InRoot(names.layers.front())));
    for (size_t i = 1; i < static_cast<size_t>(config_.num_layers); ++i) {
      const bool named = i < names.layers.size();
      const std::string prefix = names.InRoot(named ? names.layers[i] : absl::StrCat("layers.", i, "."));
      LayerWeights& layer = model_.layers_.emplace_back();
      TANDEM_RETURN_IF_ERROR(Take(prefix + (named ? names.input_norms[i] : "input_layernorm.weight"),
                                  {hidden}, layer.input_norm));
      TANDEM_RETURN_IF_ERROR(blocks_.ReadAttention(prefix, hidden, layer));
      TANDEM_RETURN_IF_ERROR(blocks_.ReadFeedForward(prefix, /*has_experts=*/false, layer));
      // vLLM's layers all have one, and only the first one reads it.
      weights.Ignore(prefix + "hidden_norm.weight");
    }
    if (head.kind == HeadConfig::Kind::kEagle3) {
      TANDEM_RETURN_IF_ERROR(Take(names.InRoot("norm.weight"), {hidden}, model_.final_norm_));
    }
    return ReadDraftTokens();
  }

  // Layers like a model's, with what they read of the target in front. The mask is a token like others.
  absl::Status ReadDFlash() {
    const HeadConfig& head = *config_.head;
    const int64_t hidden = config_.hidden_size;
    const Model* const target = model_.target_.get();
    TANDEM_RETURN_IF_ERROR(TakeOrShare("embed_tokens.weight", {config_.vocab_size, hidden},
                                       target == nullptr ? nullptr : &target->embedding(),
                                       model_.embedding_));
    TANDEM_RETURN_IF_ERROR(TakeOrShare(kOutputName, {head.draft_vocab_size, hidden},
                                       target == nullptr ? nullptr : &target->output(), model_.output_));
    TANDEM_RETURN_IF_ERROR(
        Take(kHeadProjectionName, {hidden, int64_t{head.state_size()}}, model_.head_.projection));
    TANDEM_RETURN_IF_ERROR(Take("hidden_norm.weight", {hidden}, model_.head_.state_norm));
    if (model_.weights_->Contains(absl::StrCat("layers.", config_.num_layers, ".self_attn.q_proj.weight"))) {
      return absl::InvalidArgumentError(absl::StrCat(
          model_.folder_, "/config.json: field num_hidden_layers: found ", config_.num_layers,
          ", expected as many layers as the file has, of which one is \"layers.", config_.num_layers, "\""));
    }
    for (int32_t i = 0; i < config_.num_layers; ++i) {
      TANDEM_RETURN_IF_ERROR(blocks_.ReadLayer(absl::StrCat("layers.", i, "."), /*has_experts=*/false,
                                               model_.layers_.emplace_back()));
    }
    TANDEM_RETURN_IF_ERROR(Take("norm.weight", {hidden}, model_.final_norm_));
    const int64_t rank = head.block.markov_rank;
    TANDEM_RETURN_IF_ERROR(TakeIf(rank > 0, "markov_head.markov_w1.weight", {config_.vocab_size, rank},
                                  model_.head_.tokens_before));
    TANDEM_RETURN_IF_ERROR(TakeIf(rank > 0, "markov_head.markov_w2.weight", {head.draft_vocab_size, rank},
                                  model_.head_.tokens_before_outputs));
    if (head.block.has_confidence) {
      TensorView weight, bias;
      TANDEM_RETURN_IF_ERROR(Take("confidence_head.proj.weight",
                                  {1, hidden + (head.block.confidence_reads_token ? rank : 0)}, weight));
      TANDEM_RETURN_IF_ERROR(Take("confidence_head.proj.bias", {1}, bias));
      taker_.Uncount(weight);
      taker_.Uncount(bias);
    }
    return ReadDraftTokens();
  }

  // What stands between the target's states and the first layer.
  absl::Status ReadProjection(const HeadTensorNames& names) {
    const HeadConfig& head = *config_.head;
    const int64_t hidden = config_.hidden_size;
    const bool is_eagle3 = head.kind == HeadConfig::Kind::kEagle3;
    const std::string name = names.InRoot(kHeadProjectionName);
    if (!head.projects) {
      if (!model_.weights_->Contains(name)) return absl::OkStatus();
      return absl::UnimplementedError(
          absl::StrCat(model_.folder_,
                       "/config.json: field eagle_config.use_aux_hidden_state: found false "
                       "beside a tensor \"",
                       name, "\", supported: true"));
    }
    const int64_t inputs = is_eagle3 ? int64_t{head.state_size()} : 2 * hidden;
    TANDEM_RETURN_IF_ERROR(Take(name, {hidden, inputs}, model_.head_.projection));
    const std::string bias = names.InRoot("fc.bias");
    TANDEM_RETURN_IF_ERROR(
        TakeIf(model_.weights_->Contains(bias), bias, {hidden}, model_.head_.projection_bias));
    switch (head.state_norms) {
      case HeadConfig::StateNorms::kNone:
        return absl::OkStatus();
      case HeadConfig::StateNorms::kTogether:
        return Take(names.InRoot("input_norm.weight"), {inputs}, model_.head_.input_norms.emplace_back());
      case HeadConfig::StateNorms::kEach:
        break;
    }
    for (uint32_t i = 0; i < head.num_states(); ++i) {
      TANDEM_RETURN_IF_ERROR(Take(names.InRoot(absl::StrCat("fc_norm.", i, ".weight")),
                                  {head.target_hidden_size}, model_.head_.input_norms.emplace_back()));
    }
    return absl::OkStatus();
  }

  absl::Status ReadFirstLayer(const std::string& prefix) {
    const bool is_eagle3 = config_.head->kind == HeadConfig::Kind::kEagle3;
    const int64_t hidden = config_.hidden_size;
    LayerWeights& layer = model_.layers_.emplace_back();
    TANDEM_RETURN_IF_ERROR(
        TakeIf(is_eagle3, prefix + "input_layernorm.weight", {hidden}, model_.head_.embedding_norm));
    TANDEM_RETURN_IF_ERROR(
        TakeIf(is_eagle3, prefix + "hidden_norm.weight", {hidden}, model_.head_.state_norm));
    TANDEM_RETURN_IF_ERROR(blocks_.ReadAttention(prefix, is_eagle3 ? 2 * hidden : hidden, layer));
    return blocks_.ReadFeedForward(prefix, /*has_experts=*/false, layer);
  }

  // As their authors name them, HEAD.BLOCK.linear.weight and HEAD.BLOCKS.weight, or as vLLM does,
  // blocks.HEAD.layers.BLOCK.weight without biases and lm_heads.HEAD.weight. Where they are part of something
  // bigger, a name stands in front.
  absl::Status ReadMedusa() {
    const HeadConfig& head = *config_.head;
    const int64_t hidden = config_.hidden_size, vocab = config_.vocab_size;
    TensorSource& weights = *model_.weights_;
    std::string prefix;
    bool is_vllm = false;
    for (const char* const candidate : {"", "medusa_head.", "medusa_heads."}) {
      for (const bool vllm : {false, true}) {
        const std::string first =
            absl::StrCat(candidate, vllm ? "blocks.0.layers.0.weight" : "0.0.linear.weight");
        if (!weights.Contains(first)) continue;
        prefix = candidate;
        is_vllm = vllm;
      }
    }
    const auto output_name = [&](int32_t position) {
      return is_vllm ? absl::StrCat(prefix, "lm_heads.", position, ".weight")
                     : absl::StrCat(prefix, position, ".", head.num_blocks, ".weight");
    };
    if (head.shares_output) {
      // vLLM keeps a copy of the target's.
      const Model* const target = model_.target_.get();
      TANDEM_RETURN_IF_ERROR(TakeOrShare(is_vllm ? output_name(0) : kOutputName, {vocab, hidden},
                                         target == nullptr ? nullptr : &target->output(), model_.output_));
    }
    for (int32_t i = 0; i < head.num_positions; ++i) {
      HeadWeights::Position& position = model_.head_.positions.emplace_back();
      for (int32_t j = 0; j < head.num_blocks; ++j) {
        const std::string block = is_vllm ? absl::StrCat(prefix, "blocks.", i, ".layers.", j)
                                          : absl::StrCat(prefix, i, ".", j, ".linear");
        TANDEM_RETURN_IF_ERROR(Take(block + ".weight", {hidden, hidden}, position.blocks.emplace_back()));
        const bool has_bias = !is_vllm || weights.Contains(block + ".bias");
        TANDEM_RETURN_IF_ERROR(
            TakeIf(has_bias, block + ".bias", {hidden}, position.block_biases.emplace_back()));
      }
      if (head.shares_output) {
        position.output = model_.output_;
      } else {
        TANDEM_RETURN_IF_ERROR(Take(output_name(i), {vocab, hidden}, position.output));
      }
    }
    model_.output_ = model_.head_.positions.front().output;
    return weights.Finish(config_.architecture);
  }

  // The first module in a target's files, all else of which is the target's: it has been read as such.
  absl::Status ReadNextTokenModule() {
    const int64_t hidden = config_.hidden_size;
    const std::string prefix = absl::StrCat(kNextTokenModules, "0.");
    if (const Model* const target = model_.target_.get(); target != nullptr) {
      model_.embedding_ = target->embedding();
      model_.output_ = target->output();
    } else {
      TANDEM_RETURN_IF_ERROR(Take(kEmbeddingName, {config_.vocab_size, hidden}, model_.embedding_));
      TANDEM_RETURN_IF_ERROR(Take(kOutputName, {config_.vocab_size, hidden}, model_.output_));
    }
    TANDEM_RETURN_IF_ERROR(Take(prefix + "input_proj.weight", {hidden, 2 * hidden}, model_.head_.projection));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "token_layernorm.weight", {hidden}, model_.head_.embedding_norm));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "hidden_layernorm.weight", {hidden}, model_.head_.state_norm));
    LayerWeights& layer = model_.layers_.emplace_back();
    TANDEM_RETURN_IF_ERROR(Take(prefix + "input_layernorm.weight", {hidden}, layer.input_norm));
    TANDEM_RETURN_IF_ERROR(blocks_.ReadAttention(prefix, hidden, layer));
    TANDEM_RETURN_IF_ERROR(blocks_.ReadFeedForward(prefix, /*has_experts=*/false, layer));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "final_layernorm.weight", {hidden}, model_.final_norm_));
    model_.weights_->IgnoreBelow(prefix, /*others=*/true);
    return model_.weights_->Finish(config_.architecture);
  }

  // The head's own tensor, or the target's.
  absl::Status TakeOrShare(const std::string& name, const std::vector<int64_t>& shape,
                           const TensorView* shared, TensorView& out) {
    if (model_.weights_->Contains(name) || model_.folder_.empty()) return Take(name, shape, out);
    if (shared == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(model_.folder_, ": tensor \"", name,
                                                     "\" is missing, expected with shape ", ShapeText(shape),
                                                     ", or a target to take it from (--head-target)"));
    }
    if (shared->shape != shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(model_.folder_, ": tensor \"", name, "\" is missing, and the target's has shape ",
                       ShapeText(shared->shape), ", expected ", ShapeText(shape)));
    }
    out = *shared;
    return absl::OkStatus();
  }

  // d2t holds, for each output, how far its token lies behind it.
  absl::Status ReadDraftTokens() {
    const int32_t count = config_.head->draft_vocab_size;
    model_.weights_->Ignore("t2d");
    if (count == config_.vocab_size && !model_.weights_->Contains("d2t")) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, model_.weights_->TakeIntegers("d2t", count));
    std::vector<bool> seen(static_cast<size_t>(config_.vocab_size));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t offset = offsets[static_cast<size_t>(i)];
      // Compared before the sum, which could overflow.
      if (offset < -i || offset >= config_.vocab_size - i || seen[static_cast<size_t>(i + offset)]) {
        return absl::InvalidArgumentError(
            absl::StrCat(model_.folder_, ": tensor \"d2t\": ", offset, " at ", i,
                         ", expected a token of its own below vocab_size, which is ", config_.vocab_size));
      }
      seen[static_cast<size_t>(i + offset)] = true;
      model_.head_.draft_tokens.push_back(static_cast<TokenId>(i + offset));
    }
    return absl::OkStatus();
  }

  absl::Status ReadOutput() {
    std::string name = absl::StrCat(blocks_.names().outputs.front(), ".weight");
    bool in_files = false;
    for (const std::string& candidate : blocks_.names().outputs) {
      if (in_files || !model_.weights_->Contains(absl::StrCat(candidate, ".weight"))) continue;
      name = absl::StrCat(candidate, ".weight");
      in_files = true;
    }
    const bool separate = !config_.tied_embeddings || in_files;
    TANDEM_RETURN_IF_ERROR(
        TakeIf(separate, name, {config_.vocab_size, config_.embedding_size()}, model_.output_));
    if (!config_.tied_embeddings) return absl::OkStatus();
    if (separate && !SameContent(model_.embedding_, model_.output_)) {
      // The file was written with an output projection of its own, and config.json is wrong about it; the
      // transformers library decides the same.
      LogWarning(
          absl::StrCat(name, " differs from the embedding, not tied although tie_word_embeddings is true"),
          {{"folder", model_.folder_}});
      model_.config_.tied_embeddings = false;
      return absl::OkStatus();
    }
    if (separate) taker_.Uncount(model_.output_);
    model_.output_ = model_.embedding_;
    return absl::OkStatus();
  }

  Model& model_;
  const ModelConfig& config_;
  TensorTaker taker_;
  BlockTensors blocks_;
};

std::vector<TensorView> DenseMatrices(const LayerWeights& layer) {
  return {layer.query, layer.key,           layer.value, layer.query_down, layer.query_up, layer.kv_down,
          layer.kv_up, layer.attention_out, layer.gate,  layer.up,         layer.down};
}

absl::StatusOr<bool> Model::IsHead(const std::string& folder, const std::string& target_folder) {
  if (GgufFile::IsPath(folder)) return false;
  if (IsSameFolder(folder, target_folder)) return true;
  TANDEM_ASSIGN_OR_RETURN(const ModelConfig config, ReadConfig(folder));
  if (config.head.has_value()) return true;
  TANDEM_ASSIGN_OR_RETURN(const WeightFiles weights, WeightFiles::Open(folder));
  const auto has_tensor = [&](const std::string& name) { return weights.Contains(name); };
  return weights.Contains(kHeadProjectionName) || IsEagle3ByTensors(has_tensor);
}

absl::StatusOr<Model::Settings> Model::ReadSettings(const std::string& folder) {
  Settings settings;
  TANDEM_ASSIGN_OR_RETURN(settings.config, ReadConfig(folder));
  if (GgufFile::IsPath(folder)) {
    TANDEM_RETURN_IF_ERROR(CheckTokens(settings.config.eos_tokens, settings.config.vocab_size, folder));
    settings.generation_defaults.eos_tokens = settings.config.eos_tokens;
    return settings;
  }
  TANDEM_ASSIGN_OR_RETURN(settings.generation_defaults, ReadGenerationDefaults(folder, settings.config));
  return settings;
}

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const std::string& folder) {
  return LoadHead(folder, nullptr);
}

absl::StatusOr<std::shared_ptr<const Model>> Model::LoadGguf(const std::string& path,
                                                             const std::shared_ptr<const Model>& target) {
  if (target != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a draft head's folder, for the target in ", target->folder()));
  }
  TANDEM_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  TANDEM_ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(file));
  TANDEM_RETURN_IF_ERROR(CheckTokens(config.eos_tokens, config.vocab_size, path));
  GenerationDefaults defaults;
  defaults.eos_tokens = config.eos_tokens;
  std::unique_ptr<TensorSource> weights = MakeGgufTensors(std::move(file), config);
  // Not make_shared: the constructor is private.
  std::shared_ptr<Model> model(new Model(path, std::move(config), std::move(defaults), std::move(weights)));
  TANDEM_RETURN_IF_ERROR(Reader(*model).ReadAll());
  return model;
}

absl::StatusOr<std::shared_ptr<const Model>> Model::LoadHead(const std::string& folder,
                                                             std::shared_ptr<const Model> target,
                                                             const HeadOptions& options) {
  if (GgufFile::IsPath(folder)) return LoadGguf(folder, target);
  TANDEM_ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(folder));
  TANDEM_RETURN_IF_ERROR(ApplyHeadOptions(options, folder, &config));
  TANDEM_ASSIGN_OR_RETURN(GenerationDefaults defaults, ReadGenerationDefaults(folder, config));
  TANDEM_ASSIGN_OR_RETURN(WeightFiles weights, WeightFiles::Open(folder));
  const auto has_tensor = [&](const std::string& name) { return weights.Contains(name); };
  if (!config.head.has_value() && IsEagle3ByTensors(has_tensor)) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder,
        "/config.json: field draft_vocab_size: absent, expected in the configuration of an EAGLE-3 head "
        "(its weights have a layer \"midlayer\")"));
  }
  if (!config.head.has_value() && weights.Contains(kHeadProjectionName)) config.head = EagleByTensors();
  if (target != nullptr && !config.head.has_value() && IsSameFolder(folder, target->folder())) {
    TANDEM_RETURN_IF_ERROR(UseNextTokenModule(*target, &config));
  }
  if (config.head.has_value() && config.quantization.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(folder, "/config.json: field quantization_config.quant_method: found \"",
                     config.quantization->method, "\", supported for a draft head: none"));
  }
  if (config.head.has_value()) {
    if (config.head->kind == HeadConfig::Kind::kEagle || config.head->kind == HeadConfig::Kind::kEagle3) {
      TANDEM_RETURN_IF_ERROR(SetHeadLayers(FindHeadTensors(has_tensor, *config.head),
                                           absl::StrCat(folder, "/config.json"),
                                           target == nullptr ? nullptr : &target->config(), &config));
    }
    TANDEM_RETURN_IF_ERROR(FinishHeadConfig(absl::StrCat(folder, "/config.json"),
                                            target == nullptr ? nullptr : &target->config(), &config));
  } else if (target != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, "/config.json: expected a draft head's, for the target in ", target->folder()));
  }
  std::unique_ptr<TensorSource> source;
  if (config.quantization.has_value()) {
    source = MakeQuantizedTensors(std::move(weights), *config.quantization,
                                  absl::StrCat(config.block.names.embedding, ".weight"));
  } else {
    source = std::make_unique<FileTensors>(std::move(weights));
  }
  // Not make_shared: the constructor is private.
  std::shared_ptr<Model> model(new Model(folder, std::move(config), std::move(defaults), std::move(source)));
  model->target_ = std::move(target);
  TANDEM_RETURN_IF_ERROR(Reader(*model).ReadAll());
  return model;
}

absl::StatusOr<std::shared_ptr<const Model>> Model::Random(const ModelConfig& config, uint64_t seed) {
  std::shared_ptr<Model> model(
      new Model(/*folder=*/"", config, GenerationDefaults(), std::make_unique<RandomWeights>(seed)));
  TANDEM_RETURN_IF_ERROR(Reader(*model).ReadAll());
  return model;
}

}  // namespace tandem

#include "common/model/model.h"

#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/mapped_pages.h"
#include "common/base/status_macros.h"
#include "common/model/random_weights.h"
#include "common/model/strict_json.h"
#include "common/model/weight_files.h"

namespace tandem {
namespace {

constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr char kEmbeddingName[] = "model.embed_tokens.weight";
constexpr char kOutputName[] = "lm_head.weight";
constexpr char kFinalNormName[] = "model.norm.weight";

absl::StatusOr<ModelConfig> ReadConfig(const std::string& folder) {
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
  TANDEM_RETURN_IF_ERROR(
      CheckTokens(config.eos_tokens, config.vocab_size, absl::StrCat(folder, "/config.json")));
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
  return defaults;
}

// Older checkpoints carry the rotary frequencies, which follow from the configuration.
bool IsRotaryBuffer(absl::string_view name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq");
}

bool SameContent(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.num_bytes()) == 0;
}

// Tensors of a folder's files, keeping count of those taken.
class FileTensors final : public TensorSource {
 public:
  explicit FileTensors(WeightFiles files) : files_(std::move(files)) {}

  bool Contains(const std::string& name) const override { return files_.Contains(name); }

  absl::StatusOr<TensorView> Take(const std::string& name, const std::vector<int64_t>& shape) override {
    const absl::StatusOr<TensorView> found = files_.Tensor(name);
    if (absl::IsNotFound(found.status())) {
      return absl::InvalidArgumentError(absl::StrCat(
          files_.path(), ": tensor \"", name, "\" is missing, expected with shape ", ShapeText(shape)));
    }
    if (!found.ok()) return found.status();
    if (found->shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat(files_.FileOf(name), ": tensor \"", name, "\": shape ",
                                                     ShapeText(found->shape), ", expected ", ShapeText(shape),
                                                     " as in config.json"));
    }
    taken_.insert(name);
    return found;
  }

  // A tensor that nobody asked for means that config.json does not describe this model.
  absl::Status Finish(const std::string& architecture) override {
    for (const std::string& name : files_.names()) {
      if (taken_.contains(name) || IsRotaryBuffer(name)) continue;
      return absl::InvalidArgumentError(absl::StrCat(files_.FileOf(name), ": tensor \"", PrintableText(name),
                                                     "\": expected only the tensors of the ", architecture,
                                                     " that config.json describes"));
    }
    return absl::OkStatus();
  }

  void Release(const TensorView& tensor) const override { DropMappedPages(tensor.data, tensor.num_bytes()); }

 private:
  WeightFiles files_;
  absl::flat_hash_set<std::string> taken_;
};

}  // namespace

// Takes the tensors that the configuration asks for from their source.
class Model::Reader {
 public:
  explicit Reader(Model& model) : model_(model), config_(model.config_) {}

  absl::Status ReadAll() {
    TANDEM_RETURN_IF_ERROR(
        Take(kEmbeddingName, {config_.vocab_size, config_.hidden_size}, model_.embedding_));
    TANDEM_RETURN_IF_ERROR(Take(kFinalNormName, {config_.hidden_size}, model_.final_norm_));
    TANDEM_RETURN_IF_ERROR(ReadOutput());
    model_.layers_.resize(config_.num_layers);
    for (int32_t i = 0; i < config_.num_layers; ++i) {
      const std::string prefix = absl::StrCat("model.layers.", i, ".");
      TANDEM_RETURN_IF_ERROR(ReadAttention(prefix, model_.layers_[i]));
      TANDEM_RETURN_IF_ERROR(ReadFeedForward(prefix, model_.layers_[i]));
    }
    return model_.weights_->Finish(config_.architecture);
  }

 private:
  absl::Status Take(const std::string& name, const std::vector<int64_t>& shape, TensorView& out) {
    TANDEM_ASSIGN_OR_RETURN(out, model_.weights_->Take(name, shape));
    model_.weight_bytes_ += out.num_bytes();
    model_.num_parameters_ += static_cast<uint64_t>(out.num_elements());
    return absl::OkStatus();
  }

  absl::Status TakeIf(bool wanted, const std::string& name, const std::vector<int64_t>& shape,
                      TensorView& out) {
    return wanted ? Take(name, shape, out) : absl::OkStatus();
  }

  absl::Status ReadOutput() {
    const bool separate = !config_.tied_embeddings || model_.weights_->Contains(kOutputName);
    TANDEM_RETURN_IF_ERROR(
        TakeIf(separate, kOutputName, {config_.vocab_size, config_.hidden_size}, model_.output_));
    if (!config_.tied_embeddings) return absl::OkStatus();
    if (separate && !SameContent(model_.embedding_, model_.output_)) {
      // The file was written with an output projection of its own, and config.json is wrong about it; the
      // transformers library decides the same.
      LogWarning("lm_head.weight differs from the embedding, not tied although tie_word_embeddings is true",
                 {{"folder", model_.folder_}});
      model_.config_.tied_embeddings = false;
      return absl::OkStatus();
    }
    if (separate) {
      model_.weight_bytes_ -= model_.output_.num_bytes();
      model_.num_parameters_ -= static_cast<uint64_t>(model_.output_.num_elements());
    }
    model_.output_ = model_.embedding_;
    return absl::OkStatus();
  }

  absl::Status ReadAttention(const std::string& layer, LayerWeights& weights) {
    const std::string prefix = layer + "self_attn.";
    const int64_t hidden = config_.hidden_size, query = config_.query_size(), kv = config_.kv_size();
    TANDEM_RETURN_IF_ERROR(Take(layer + "input_layernorm.weight", {hidden}, weights.input_norm));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "q_proj.weight", {query, hidden}, weights.query));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "k_proj.weight", {kv, hidden}, weights.key));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "v_proj.weight", {kv, hidden}, weights.value));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "o_proj.weight", {hidden, query}, weights.attention_out));
    const bool bias = config_.attention_bias;
    TANDEM_RETURN_IF_ERROR(TakeIf(bias, prefix + "q_proj.bias", {query}, weights.query_bias));
    TANDEM_RETURN_IF_ERROR(TakeIf(bias, prefix + "k_proj.bias", {kv}, weights.key_bias));
    TANDEM_RETURN_IF_ERROR(TakeIf(bias, prefix + "v_proj.bias", {kv}, weights.value_bias));
    TANDEM_RETURN_IF_ERROR(
        TakeIf(config_.attention_output_bias, prefix + "o_proj.bias", {hidden}, weights.attention_out_bias));
    const std::vector<int64_t> head = {config_.head_dim};
    TANDEM_RETURN_IF_ERROR(TakeIf(config_.qk_norm, prefix + "q_norm.weight", head, weights.query_norm));
    return TakeIf(config_.qk_norm, prefix + "k_norm.weight", head, weights.key_norm);
  }

  absl::Status ReadFeedForward(const std::string& layer, LayerWeights& weights) {
    const std::string prefix = layer + "mlp.";
    const int64_t hidden = config_.hidden_size, intermediate = config_.intermediate_size;
    TANDEM_RETURN_IF_ERROR(
        Take(layer + "post_attention_layernorm.weight", {hidden}, weights.post_attention_norm));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "gate_proj.weight", {intermediate, hidden}, weights.gate));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "up_proj.weight", {intermediate, hidden}, weights.up));
    TANDEM_RETURN_IF_ERROR(Take(prefix + "down_proj.weight", {hidden, intermediate}, weights.down));
    const bool bias = config_.mlp_bias;
    TANDEM_RETURN_IF_ERROR(TakeIf(bias, prefix + "gate_proj.bias", {intermediate}, weights.gate_bias));
    TANDEM_RETURN_IF_ERROR(TakeIf(bias, prefix + "up_proj.bias", {intermediate}, weights.up_bias));
    return TakeIf(bias, prefix + "down_proj.bias", {hidden}, weights.down_bias);
  }

  Model& model_;
  const ModelConfig& config_;
};

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const std::string& folder) {
  TANDEM_ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(folder));
  TANDEM_ASSIGN_OR_RETURN(GenerationDefaults defaults, ReadGenerationDefaults(folder, config));
  TANDEM_ASSIGN_OR_RETURN(WeightFiles weights, WeightFiles::Open(folder));
  // Not make_shared: the constructor is private.
  std::shared_ptr<Model> model(new Model(folder, std::move(config), std::move(defaults),
                                         std::make_unique<FileTensors>(std::move(weights))));
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

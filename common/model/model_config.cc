#include "common/model/model_config.h"

#include <algorithm>
#include <array>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/head_format.h"
#include "common/model/json_fields.h"

namespace tandem {
namespace {

// Where a range excludes 0.
constexpr double kSmallestPositive = 1e-6;

using Json = nlohmann::json;

constexpr int32_t kMaxHidden = 65536;
constexpr int32_t kMaxLayers = 1024;
constexpr int32_t kMaxHeads = 1024;
constexpr int32_t kMaxHeadDim = 1024;
constexpr int32_t kMaxIntermediate = 1 << 20;
constexpr int32_t kMaxVocabulary = 1 << 22;
constexpr int32_t kMaxContext = 1 << 24;
// What Medusa heads say to have: they read one state, of however long a text.
constexpr int32_t kContextOfMedusa = 1 << 20;

enum class Family { kLlama, kMistral, kQwen2, kQwen3 };

// What an architecture's config.json may leave out stands for what the transformers library assumes there.
// Zero heads or width: derived from the other sizes.
struct Architecture {
  Family family;
  absl::string_view name;
  absl::string_view model_type;
  int32_t default_kv_heads;
  int32_t default_head_dim;
  int32_t default_context;
};
constexpr std::array<Architecture, 5> kArchitectures = {{
    {Family::kLlama, "LlamaForCausalLM", "llama", 0, 0, 2048},
    {Family::kMistral, "MistralForCausalLM", "mistral", 8, 0, 131072},
    {Family::kQwen2, "Qwen2ForCausalLM", "qwen2", 32, 0, 32768},
    {Family::kQwen2, "MiMoForCausalLM", "mimo", 32, 0, 32768},
    {Family::kQwen3, "Qwen3ForCausalLM", "qwen3", 32, 128, 32768},
}};
constexpr absl::string_view kSupported =
    "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, MiMoForCausalLM, Qwen3ForCausalLM";

// Fields which change the result when they are set and which nothing here implements.
constexpr std::array<absl::string_view, 6> kRefusedFields = {
    "quantization_config", "compression_config",     "num_experts",
    "num_local_experts",   "attn_logit_softcapping", "final_logit_softcapping"};

absl::StatusOr<Architecture> ReadArchitecture(const JsonFields& fields) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> model_type, fields.String("model_type"));
  const Json* const names = fields.Find("architectures");
  if (names == nullptr && !model_type.has_value())
    return fields.Unexpected("architectures", "a list of one name");
  std::optional<std::string> name;
  if (names != nullptr) {
    if (!names->is_array() || names->size() != 1 || !(*names)[0].is_string()) {
      return fields.Unexpected("architectures", "a list of one name");
    }
    name = (*names)[0].get<std::string>();
  }
  for (const Architecture& candidate : kArchitectures) {
    if (name.has_value() ? *name != candidate.name : *model_type != candidate.model_type) continue;
    if (model_type.has_value() && *model_type != candidate.model_type) {
      return fields.Unexpected(
          "model_type", absl::StrCat(candidate.model_type, ", as the architecture is ", candidate.name));
    }
    return candidate;
  }
  return fields.Unsupported(name.has_value() ? "architectures" : "model_type", kSupported);
}

absl::Status CheckRefusedFields(const JsonFields& fields) {
  for (absl::string_view name : kRefusedFields) {
    if (fields.Find(name) != nullptr) return fields.Unsupported(name, "none");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto activation, fields.String("hidden_act"));
  if (activation.value_or("silu") != "silu") return fields.Unsupported("hidden_act", "silu");
  TANDEM_ASSIGN_OR_RETURN(const bool several_axes, fields.BoolOr("use_mrope", false));
  if (several_axes) return fields.Unsupported("use_mrope", "false");
  return absl::OkStatus();
}

absl::Status ReadSizes(const JsonFields& fields, const Architecture& architecture, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(config.hidden_size, fields.RequiredInt("hidden_size", 1, kMaxHidden));
  TANDEM_ASSIGN_OR_RETURN(config.num_layers, fields.RequiredInt("num_hidden_layers", 1, kMaxLayers));
  TANDEM_ASSIGN_OR_RETURN(config.num_heads, fields.RequiredInt("num_attention_heads", 1, kMaxHeads));
  TANDEM_ASSIGN_OR_RETURN(config.intermediate_size,
                          fields.RequiredInt("intermediate_size", 1, kMaxIntermediate));
  TANDEM_ASSIGN_OR_RETURN(config.vocab_size, fields.RequiredInt("vocab_size", 1, kMaxVocabulary));
  TANDEM_ASSIGN_OR_RETURN(config.max_context, fields.IntOr("max_position_embeddings", 1, kMaxContext,
                                                           architecture.default_context));

  TANDEM_ASSIGN_OR_RETURN(const auto kv_heads, fields.Int("num_key_value_heads", 1, kMaxHeads));
  // Null says "as many as heads"; only an absent field has the architecture's own default.
  const bool kv_heads_absent = !fields.Has("num_key_value_heads");
  const int32_t fallback = kv_heads_absent ? architecture.default_kv_heads : 0;
  config.num_kv_heads = kv_heads.value_or(fallback > 0 ? fallback : config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    return fields.Unexpected(
        "num_attention_heads",
        absl::StrCat("a multiple of num_key_value_heads, which is ", config.num_kv_heads));
  }

  TANDEM_ASSIGN_OR_RETURN(const auto head_dim, fields.Int("head_dim", 2, kMaxHeadDim));
  if (head_dim.has_value()) {
    config.head_dim = *head_dim;
  } else if (architecture.default_head_dim > 0) {
    config.head_dim = architecture.default_head_dim;
  } else {
    config.head_dim = config.hidden_size / config.num_heads;
    if (config.hidden_size % config.num_heads != 0) {
      return fields.Unexpected("hidden_size", absl::StrCat("a multiple of num_attention_heads, which is ",
                                                           config.num_heads, ", when head_dim is not given"));
    }
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMaxHeadDim) {
    return fields.Unexpected(
        "head_dim", absl::StrCat("an even number up to ", kMaxHeadDim, " (rotary positions turn pairs), not ",
                                 config.head_dim));
  }
  return absl::OkStatus();
}

absl::Status ReadRopeScaling(const JsonFields& rope, absl::string_view type, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  if (type == "default") return absl::OkStatus();
  if (type != "linear" && type != "llama3") {
    return rope.Unsupported(rope.Find("rope_type") != nullptr ? "rope_type" : "type",
                            "default, linear, llama3");
  }
  TANDEM_ASSIGN_OR_RETURN(const auto factor, rope.Number("factor", 1.0, 1e6));
  if (!factor.has_value()) return rope.Unexpected("factor", "a number of at least 1");
  scaling.factor = *factor;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    return absl::OkStatus();
  }
  scaling.kind = RopeScaling::Kind::kLlama3;
  TANDEM_ASSIGN_OR_RETURN(const auto low, rope.Number("low_freq_factor", 1e-6, 1e6));
  TANDEM_ASSIGN_OR_RETURN(const auto high, rope.Number("high_freq_factor", 1e-6, 1e6));
  if (!low.has_value()) return rope.Unexpected("low_freq_factor", "a number");
  if (!high.has_value() || *high <= *low) {
    return rope.Unexpected("high_freq_factor",
                           absl::StrCat("a number above low_freq_factor, which is ", *low));
  }
  scaling.low_frequency_factor = *low;
  scaling.high_frequency_factor = *high;
  TANDEM_ASSIGN_OR_RETURN(scaling.original_context,
                          rope.IntOr("original_max_position_embeddings", 1, kMaxContext, config.max_context));
  return absl::OkStatus();
}

// Rotary settings are spelled `rope_theta` + `rope_scaling` up to transformers 4 and `rope_parameters` from 5
// on; a non-empty rope_scaling wins where a file has both, and what the object does not name is looked up
// beside it.
absl::Status ReadRope(const JsonFields& fields, absl::string_view path, ModelConfig& config) {
  constexpr double kMaxTheta = 1e15;
  TANDEM_ASSIGN_OR_RETURN(config.rope_theta, fields.NumberOr("rope_theta", 1.0, kMaxTheta, 10000.0));
  TANDEM_ASSIGN_OR_RETURN(const double rotary_share, fields.NumberOr("partial_rotary_factor", 0.0, 1.0, 1.0));
  if (rotary_share != 1.0) return fields.Unsupported("partial_rotary_factor", "1");
  for (absl::string_view name : {"rope_scaling", "rope_parameters"}) {
    const Json* const object = fields.Find(name);
    if (object == nullptr || (object->is_object() && object->empty())) continue;
    if (!object->is_object()) return fields.Unexpected(name, "an object or null");
    const JsonFields rope(*object, path, absl::StrCat(name, "."));
    for (const auto& [key, value] : object->items()) {
      if (value.is_object()) return rope.Unsupported(key, "one setting for all layers");
    }
    TANDEM_ASSIGN_OR_RETURN(config.rope_theta,
                            rope.NumberOr("rope_theta", 1.0, kMaxTheta, config.rope_theta));
    TANDEM_ASSIGN_OR_RETURN(const double share, rope.NumberOr("partial_rotary_factor", 0.0, 1.0, 1.0));
    if (share != 1.0) return rope.Unsupported("partial_rotary_factor", "1");
    TANDEM_ASSIGN_OR_RETURN(const auto new_type, rope.String("rope_type"));
    TANDEM_ASSIGN_OR_RETURN(const auto old_type, rope.String("type"));
    return ReadRopeScaling(rope, new_type.value_or(old_type.value_or("default")), config);
  }
  return absl::OkStatus();
}

// Sets config.sliding_window for a Qwen model, where the first `max_window_layers` layers see everything.
// Only the same window in every layer, or none, is supported.
absl::Status ReadQwenWindow(const JsonFields& fields, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const bool used, fields.BoolOr("use_sliding_window", false));
  TANDEM_ASSIGN_OR_RETURN(const int32_t full_layers,
                          fields.IntOr("max_window_layers", 0, std::numeric_limits<int32_t>::max(), 28));
  std::optional<int32_t> window;
  if (used) {
    TANDEM_ASSIGN_OR_RETURN(window, fields.Int("sliding_window", 1, kMaxContext));
    if (!window.has_value() && !fields.Has("sliding_window")) window = 4096;
  }
  int32_t num_sliding = window.has_value() ? std::max(0, config.num_layers - full_layers) : 0;
  if (const Json* const types = fields.Find("layer_types"); types != nullptr) {
    if (!types->is_array() || static_cast<int64_t>(types->size()) != config.num_layers) {
      return fields.Unexpected("layer_types", absl::StrCat("a list of ", config.num_layers));
    }
    num_sliding = 0;
    for (const Json& type : *types) {
      if (type != "full_attention" && type != "sliding_attention") {
        return fields.Unsupported("layer_types", "full_attention, sliding_attention");
      }
      num_sliding += type == "sliding_attention" ? 1 : 0;
    }
    if (num_sliding > 0 && !window.has_value()) {
      return fields.Unexpected("sliding_window",
                               "a number and use_sliding_window true, for sliding_attention layers");
    }
  }
  if (num_sliding == 0) return absl::OkStatus();
  if (num_sliding != config.num_layers) {
    return fields.Unsupported(fields.Find("layer_types") != nullptr ? "layer_types" : "max_window_layers",
                              "the same attention in every layer");
  }
  config.sliding_window = window;
  return absl::OkStatus();
}

absl::Status ReadVariant(const JsonFields& fields, Family family, ModelConfig& config) {
  switch (family) {
    case Family::kLlama: {
      if (const Json* const types = fields.Find("layer_types"); types != nullptr) {
        const bool all_full =
            types->is_array() && std::all_of(types->begin(), types->end(),
                                             [](const Json& type) { return type == "full_attention"; });
        if (!all_full) return fields.Unsupported("layer_types", "full_attention");
      }
      TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
      TANDEM_ASSIGN_OR_RETURN(config.mlp_bias, fields.BoolOr("mlp_bias", false));
      config.attention_output_bias = config.attention_bias;
      return absl::OkStatus();
    }
    case Family::kMistral: {
      if (fields.Find("layer_types") != nullptr) return fields.Unsupported("layer_types", "none");
      TANDEM_ASSIGN_OR_RETURN(config.sliding_window, fields.Int("sliding_window", 1, kMaxContext));
      if (!fields.Has("sliding_window")) config.sliding_window = 4096;
      return absl::OkStatus();
    }
    case Family::kQwen2:
      config.attention_bias = true;
      return ReadQwenWindow(fields, config);
    case Family::kQwen3: {
      TANDEM_ASSIGN_OR_RETURN(config.attention_bias, fields.BoolOr("attention_bias", false));
      config.attention_output_bias = config.attention_bias;
      config.qk_norm = true;
      return ReadQwenWindow(fields, config);
    }
  }
  return absl::InternalError("unknown architecture");
}

absl::StatusOr<Json> ParseObject(absl::string_view json, absl::string_view path) {
  TANDEM_ASSIGN_OR_RETURN(Json object, ParseStrictJson(json, path));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found ", PrintableValue(object), ", expected an object"));
  }
  return object;
}

}  // namespace

namespace {

absl::StatusOr<ModelConfig> ReadModelConfig(const Json& object, absl::string_view path,
                                            absl::string_view prefix) {
  const JsonFields fields(object, path, prefix);
  TANDEM_ASSIGN_OR_RETURN(const Architecture architecture, ReadArchitecture(fields));
  ModelConfig config;
  config.architecture = std::string(architecture.name);
  TANDEM_RETURN_IF_ERROR(CheckRefusedFields(fields));
  TANDEM_RETURN_IF_ERROR(ReadSizes(fields, architecture, config));
  TANDEM_ASSIGN_OR_RETURN(const double epsilon, fields.NumberOr("rms_norm_eps", 1e-12, 1.0, 1e-6));
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  TANDEM_RETURN_IF_ERROR(ReadRope(fields, path, config));
  TANDEM_ASSIGN_OR_RETURN(config.tied_embeddings, fields.BoolOr("tie_word_embeddings", false));
  TANDEM_RETURN_IF_ERROR(ReadVariant(fields, architecture.family, config));
  TANDEM_ASSIGN_OR_RETURN(config.num_next_token_modules,
                          fields.IntOr("num_nextn_predict_layers", 0, kMaxLayers, 0));
  TANDEM_ASSIGN_OR_RETURN(config.eos_tokens, fields.Tokens("eos_token_id"));
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view json, absl::string_view path) {
  TANDEM_ASSIGN_OR_RETURN(Json object, ParseObject(json, path));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<ParsedHead> head, ParseHeadConfig(object, path));
  if (!head.has_value()) return ReadModelConfig(object, path, "");
  if (head->layer == nullptr) {
    ModelConfig config;
    config.architecture = "MedusaModel";
    config.hidden_size = head->hidden_size;
    config.vocab_size = head->vocab_size;
    config.max_context = kContextOfMedusa;
    config.head = head->config;
    return config;
  }
  // The layer is a Llama's, whatever the head as a whole calls itself, or in a description of its own a
  // Qwen3's.
  const bool nested = head->layer != &object;
  Json layer = *head->layer;
  const bool is_qwen3 = nested && layer.value("model_type", Json()) == "qwen3";
  layer["architectures"] = Json::array({is_qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM"});
  if (!nested) layer["model_type"] = "llama";
  TANDEM_ASSIGN_OR_RETURN(ModelConfig config,
                          ReadModelConfig(layer, path, nested ? "transformer_layer_config." : ""));
  if (config.num_layers != 1) {
    return absl::UnimplementedError(absl::StrCat(path, ": field num_hidden_layers: found ", config.num_layers,
                                                 ", supported for a draft head: 1"));
  }
  config.head = head->config;
  return config;
}

// The ranges are those of a request's parameters: a default that no request may have would make every request
// fail.
absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(absl::string_view json, absl::string_view path) {
  TANDEM_ASSIGN_OR_RETURN(const Json object, ParseObject(json, path));
  const JsonFields fields(object, path);
  GenerationDefaults defaults;
  TANDEM_ASSIGN_OR_RETURN(defaults.eos_tokens, fields.Tokens("eos_token_id"));
  TANDEM_ASSIGN_OR_RETURN(defaults.temperature, fields.Number("temperature", 0.0, 100.0));
  TANDEM_ASSIGN_OR_RETURN(defaults.top_p, fields.Number("top_p", kSmallestPositive, 1.0));
  TANDEM_ASSIGN_OR_RETURN(defaults.min_p, fields.Number("min_p", 0.0, 1.0));
  TANDEM_ASSIGN_OR_RETURN(defaults.top_k, fields.Int("top_k", 0, std::numeric_limits<int32_t>::max()));
  TANDEM_ASSIGN_OR_RETURN(defaults.repetition_penalty,
                          fields.Number("repetition_penalty", kSmallestPositive, 10.0));
  return defaults;
}

}  // namespace tandem

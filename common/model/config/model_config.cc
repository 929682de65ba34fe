#include "common/model/config/model_config.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/family.h"
#include "common/model/config/fields.h"
#include "common/model/config/head_format.h"
#include "common/model/config/json_fields.h"

namespace tandem {
namespace {

// Where a range excludes 0.
constexpr double kSmallestPositive = 1e-6;

using Json = nlohmann::json;

constexpr int32_t kMostModules = 1024;
// What Medusa heads say to have: they read one state, of however long a text.
constexpr int32_t kContextOfMedusa = 1 << 20;

// In families that have no experts.
constexpr std::array<absl::string_view, 2> kExpertFields = {"num_experts", "num_local_experts"};

// Fields which change the result when they are set and which nothing here implements.
absl::Status CheckRefusedFields(const JsonFields& fields) {
  if (fields.Find("compression_config") != nullptr) return fields.Unsupported("compression_config", "none");
  TANDEM_ASSIGN_OR_RETURN(const bool several_axes, fields.BoolOr("use_mrope", false));
  if (several_axes) return fields.Unsupported("use_mrope", "false");
  return absl::OkStatus();
}

absl::Status ReadQuantizationOf(const JsonFields& fields, ModelConfig& config) {
  constexpr char kField[] = "quantization_config";
  const Json* const object = fields.Find(kField);
  if (object == nullptr) return absl::OkStatus();
  if (!object->is_object()) return fields.Unexpected(kField, "an object or null");
  const JsonFields inner = fields.Inner(*object, kField);
  TANDEM_ASSIGN_OR_RETURN(config.quantization, ReadQuantization(inner));
  if (!config.block.matrices_transposed) return absl::OkStatus();
  return inner.Unsupported(
      "quant_method", absl::StrCat("none for a ", config.architecture, ", whose matrices are transposed"));
}

absl::StatusOr<Json> ParseObject(absl::string_view json, absl::string_view path) {
  TANDEM_ASSIGN_OR_RETURN(Json object, ParseStrictJson(json, path));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": found ", PrintableValue(object), ", expected an object"));
  }
  return object;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const Json& object, absl::string_view path,
                                            absl::string_view prefix) {
  const JsonFields fields(object, path, prefix);
  TANDEM_ASSIGN_OR_RETURN(const Family family, FindFamily(fields));
  ModelConfig config;
  config.architecture = std::string(family.architecture);
  TANDEM_RETURN_IF_ERROR(CheckRefusedFields(fields));
  TANDEM_RETURN_IF_ERROR(family.read(fields, config));
  if (!family.reads_quantization) TANDEM_RETURN_IF_ERROR(ReadQuantizationOf(fields, config));
  for (const absl::string_view name : kExpertFields) {
    if (!config.block.experts.exist() && fields.Find(name) != nullptr)
      return fields.Unsupported(name, "none");
  }
  TANDEM_ASSIGN_OR_RETURN(config.num_next_token_modules,
                          fields.IntOr("num_nextn_predict_layers", 0, kMostModules, 0));
  return config;
}

// A Llama has no windows, but a head with its layer may.
absl::Status ReadHeadWindows(const JsonFields& fields, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<bool> slides, ReadLayerTypes(fields, config.num_layers));
  if (std::count(slides.begin(), slides.end(), true) == 0) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::optional<int32_t> window, fields.Int("sliding_window", 1, kMostContext));
  if (!window.has_value())
    return fields.Unexpected("sliding_window", "a number, for sliding_attention layers");
  // Who reads one field and who reads the other would disagree.
  TANDEM_ASSIGN_OR_RETURN(const bool used, fields.BoolOr("use_sliding_window", true));
  if (!used) return fields.Unexpected("use_sliding_window", "true, for sliding_attention layers");
  SetWindows(slides, *window, config);
  return absl::OkStatus();
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
  // Qwen3's, as a DFlash head's are everywhere.
  const bool nested = head->layer != &object;
  Json layer = *head->layer;
  const bool is_qwen3 = head->layer_is_qwen3 || (nested && layer.value("model_type", Json()) == "qwen3");
  layer["architectures"] = Json::array({is_qwen3 ? "Qwen3ForCausalLM" : "LlamaForCausalLM"});
  if (!nested || is_qwen3) layer["model_type"] = is_qwen3 ? "qwen3" : "llama";
  const absl::string_view prefix = nested ? "transformer_layer_config." : "";
  Json layer_types;
  if (!is_qwen3) layer_types = std::exchange(layer["layer_types"], Json());
  TANDEM_ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(layer, path, prefix));
  if (!is_qwen3) {
    layer["layer_types"] = std::move(layer_types);
    TANDEM_RETURN_IF_ERROR(ReadHeadWindows(JsonFields(layer, path, prefix), config));
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

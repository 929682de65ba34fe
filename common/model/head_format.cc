#include "common/model/head_format.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/json_fields.h"

namespace tandem {
namespace {

constexpr char kAuxiliaryLayers[] = "eagle_aux_hidden_state_layer_ids";
constexpr int32_t kMostTargetLayers = 1024;
constexpr int32_t kMostNumbers = 1 << 22;
// As many as a drafter may ask for.
constexpr size_t kMostFeatureLayers = 8;

// `first`: what the file's 0 stands for, in numbers of layers.
absl::Status ReadFeatureLayers(const JsonFields& fields, int32_t first, HeadConfig* head) {
  const nlohmann::json* const ids = fields.Find(kAuxiliaryLayers);
  if (ids == nullptr) return absl::OkStatus();
  const std::string expected =
      absl::StrCat("a list of 1 to ", kMostFeatureLayers, " numbers of layers, ascending");
  if (!ids->is_array() || ids->empty() || ids->size() > kMostFeatureLayers) {
    return fields.Unexpected(kAuxiliaryLayers, expected);
  }
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_integer() || id < 0 || id > kMostTargetLayers) {
      return fields.Unexpected(kAuxiliaryLayers, expected);
    }
    const auto layer = static_cast<uint32_t>(id.get<int32_t>() + first);
    if (!head->feature_layers.empty() && layer <= head->feature_layers.back()) {
      return fields.Unexpected(kAuxiliaryLayers, expected);
    }
    head->feature_layers.push_back(layer);
  }
  return absl::OkStatus();
}

absl::Status ReadTarget(const JsonFields& fields, HeadConfig* head) {
  TANDEM_ASSIGN_OR_RETURN(head->target_hidden_size, fields.IntOr("target_hidden_size", 1, 65536, 0));
  TANDEM_ASSIGN_OR_RETURN(head->draft_vocab_size, fields.IntOr("draft_vocab_size", 1, kMostNumbers, 0));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> fingerprint,
                          fields.String("tandem_target_fingerprint"));
  if (!fingerprint.has_value()) return absl::OkStatus();
  uint64_t number = 0;
  if (fingerprint->size() != 16 || !absl::SimpleHexAtoi(*fingerprint, &number)) {
    return fields.Unexpected("tandem_target_fingerprint", "16 hexadecimal digits");
  }
  head->target_fingerprint = number;
  return absl::OkStatus();
}

absl::StatusOr<ParsedHead> ParseSpeculators(const nlohmann::json& object, const std::string& type,
                                            absl::string_view path) {
  const JsonFields fields(object, path);
  ParsedHead parsed;
  parsed.config.numbered_layer = true;
  if (type != "eagle3") return fields.Unsupported("speculators_model_type", "eagle3");
  TANDEM_ASSIGN_OR_RETURN(parsed.config.norm_before_residual, fields.BoolOr("norm_before_residual", false));
  for (const char* const other : {"norm_before_fc", "fc_norm", "norm_output"}) {
    TANDEM_ASSIGN_OR_RETURN(const bool set, fields.BoolOr(other, false));
    if (set) return fields.Unsupported(other, "false");
  }
  // These are read as vLLM does: the state that the layer of this number is about to see.
  TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(fields, 0, &parsed.config));
  TANDEM_RETURN_IF_ERROR(ReadTarget(fields, &parsed.config));
  parsed.layer = fields.Find("transformer_layer_config");
  if (parsed.layer == nullptr || !parsed.layer->is_object()) {
    return fields.Unexpected("transformer_layer_config", "an object that describes the layer");
  }
  return parsed;
}

}  // namespace

absl::StatusOr<std::optional<ParsedHead>> ParseHeadConfig(const nlohmann::json& object,
                                                          absl::string_view path) {
  const JsonFields fields(object, path);
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> speculator,
                          fields.String("speculators_model_type"));
  if (speculator.has_value()) return ParseSpeculators(object, *speculator, path);
  const nlohmann::json* const names = fields.Find("architectures");
  const bool named = names != nullptr && names->is_array() && names->size() == 1;
  const bool is_eagle3 = named && (*names)[0] == "LlamaForCausalLMEagle3";
  if (!is_eagle3 && !(named && (*names)[0] == "LlamaForCausalLMEagle")) return std::nullopt;
  ParsedHead parsed{.config = is_eagle3 ? HeadConfig() : EagleByTensors(), .layer = &object};
  TANDEM_RETURN_IF_ERROR(ReadTarget(fields, &parsed.config));
  if (!is_eagle3) return parsed;
  if (const nlohmann::json* const eagle = fields.Find("eagle_config"); eagle != nullptr) {
    if (!eagle->is_object()) return fields.Unexpected("eagle_config", "an object");
    const JsonFields inner(*eagle, path, "eagle_config.");
    TANDEM_ASSIGN_OR_RETURN(const bool reads_states, inner.BoolOr("use_aux_hidden_state", true));
    if (!reads_states) return inner.Unsupported("use_aux_hidden_state", "true");
    // These are read as SGLang does: the output of the layer of this number, counted from 0.
    TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(inner, 1, &parsed.config));
  }
  if (parsed.config.feature_layers.empty()) {
    TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(fields, 0, &parsed.config));
  }
  return parsed;
}

}  // namespace tandem

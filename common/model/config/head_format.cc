#include "common/model/config/head_format.h"

#include <initializer_list>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/json_fields.h"

namespace tandem {
namespace {

constexpr char kAuxiliaryLayers[] = "eagle_aux_hidden_state_layer_ids";
constexpr int32_t kMostTargetLayers = 1024;
constexpr int32_t kMostNumbers = 1 << 22;
constexpr int32_t kMostHidden = 65536;
// Of Medusa: no more positions than a tree is deep, and more blocks than anybody trains.
constexpr int32_t kMostPositions = 32;
constexpr int32_t kMostBlocks = 64;
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
  TANDEM_ASSIGN_OR_RETURN(head->target_hidden_size, fields.IntOr("target_hidden_size", 1, kMostHidden, 0));
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

// Fields that change what an EAGLE-3 head computes and that nothing here implements, as SpecForge,
// speculators and ModelOpt call them, and with which value they change nothing.
struct FixedSetting {
  const char* name;
  bool value;
};

absl::Status CheckFixed(const JsonFields& fields, std::initializer_list<FixedSetting> settings) {
  for (const FixedSetting& setting : settings) {
    TANDEM_ASSIGN_OR_RETURN(const bool value, fields.BoolOr(setting.name, setting.value));
    if (value != setting.value) return fields.Unsupported(setting.name, setting.value ? "true" : "false");
  }
  return absl::OkStatus();
}

absl::StatusOr<ParsedHead> ParseSpeculators(const nlohmann::json& object, const std::string& type,
                                            absl::string_view path) {
  const JsonFields fields(object, path);
  ParsedHead parsed;
  parsed.config.numbered_layer = true;
  if (type != "eagle3") return fields.Unsupported("speculators_model_type", "eagle3");
  TANDEM_ASSIGN_OR_RETURN(parsed.config.norm_before_residual, fields.BoolOr("norm_before_residual", false));
  TANDEM_ASSIGN_OR_RETURN(parsed.config.own_state_is_normed, fields.BoolOr("norm_output", false));
  TANDEM_RETURN_IF_ERROR(CheckFixed(fields, {{"norm_before_fc", false}, {"fc_norm", false}}));
  // These are read as vLLM does: the state that the layer of this number is about to see.
  TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(fields, 0, &parsed.config));
  TANDEM_RETURN_IF_ERROR(ReadTarget(fields, &parsed.config));
  parsed.layer = fields.Find("transformer_layer_config");
  if (parsed.layer == nullptr || !parsed.layer->is_object()) {
    return fields.Unexpected("transformer_layer_config", "an object that describes the layer");
  }
  return parsed;
}

// Their authors' configuration has these fields and little else; vLLM's has names of its own for two of them.
absl::StatusOr<ParsedHead> ParseMedusa(const JsonFields& fields) {
  ParsedHead parsed;
  HeadConfig& head = parsed.config;
  head.kind = HeadConfig::Kind::kMedusa;
  head.feature_final_norm = true;
  const auto either = [&](const char* ours, const char* others) {
    return fields.Find(ours) == nullptr && fields.Find(others) != nullptr ? others : ours;
  };
  TANDEM_ASSIGN_OR_RETURN(head.num_positions,
                          fields.RequiredInt(either("medusa_num_heads", "num_heads"), 1, kMostPositions));
  TANDEM_ASSIGN_OR_RETURN(head.num_blocks,
                          fields.IntOr(either("medusa_num_layers", "num_hidden_layers"), 0, kMostBlocks, 1));
  TANDEM_ASSIGN_OR_RETURN(head.shares_output, fields.BoolOr("original_lm_head", false));
  TANDEM_ASSIGN_OR_RETURN(parsed.hidden_size, fields.IntOr("hidden_size", 1, kMostHidden, 0));
  TANDEM_ASSIGN_OR_RETURN(parsed.vocab_size, fields.IntOr("vocab_size", 1, kMostNumbers, 0));
  TANDEM_ASSIGN_OR_RETURN(const int32_t drafted,
                          fields.IntOr("truncated_vocab_size", 1, kMostNumbers, parsed.vocab_size));
  if (drafted != parsed.vocab_size) return fields.Unsupported("truncated_vocab_size", "vocab_size");
  TANDEM_ASSIGN_OR_RETURN(const double scale, fields.NumberOr("logit_scale", 0.0, 1e6, 1.0));
  if (scale != 1.0) return fields.Unsupported("logit_scale", "1");
  TANDEM_RETURN_IF_ERROR(ReadTarget(fields, &head));
  if (head.draft_vocab_size != 0) return fields.Unsupported("draft_vocab_size", "none, for Medusa heads");
  return parsed;
}

bool IsMedusa(const JsonFields& fields) {
  const nlohmann::json* const type = fields.Find("model_type");
  return fields.Find("medusa_num_heads") != nullptr || (type != nullptr && *type == "medusa");
}

}  // namespace

absl::StatusOr<std::optional<ParsedHead>> ParseHeadConfig(const nlohmann::json& object,
                                                          absl::string_view path) {
  const JsonFields fields(object, path);
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> speculator,
                          fields.String("speculators_model_type"));
  if (speculator.has_value()) return ParseSpeculators(object, *speculator, path);
  if (IsMedusa(fields)) return ParseMedusa(fields);
  const nlohmann::json* const names = fields.Find("architectures");
  const bool named = names != nullptr && names->is_array() && names->size() == 1;
  const bool is_eagle3 = named && (*names)[0] == "LlamaForCausalLMEagle3";
  if (!is_eagle3 && !(named && (*names)[0] == "LlamaForCausalLMEagle")) return std::nullopt;
  ParsedHead parsed{.config = is_eagle3 ? HeadConfig() : EagleByTensors(), .layer = &object};
  TANDEM_RETURN_IF_ERROR(ReadTarget(fields, &parsed.config));
  if (!is_eagle3) return parsed;
  TANDEM_ASSIGN_OR_RETURN(parsed.config.own_state_is_normed, fields.BoolOr("norm_output", false));
  parsed.config.norm_output_may_be_plain = parsed.config.own_state_is_normed;
  TANDEM_RETURN_IF_ERROR(CheckFixed(fields, {{"norm_before_fc", false}, {"fc_norm", false}}));
  if (const nlohmann::json* const eagle = fields.Find("eagle_config"); eagle != nullptr) {
    if (!eagle->is_object()) return fields.Unexpected("eagle_config", "an object");
    const JsonFields inner(*eagle, path, "eagle_config.");
    TANDEM_RETURN_IF_ERROR(CheckFixed(inner, {{"use_aux_hidden_state", true},
                                              {"use_input_layernorm_in_first_layer", true},
                                              {"use_last_layernorm", true},
                                              {"use_mtp_layernorm", false}}));
    TANDEM_ASSIGN_OR_RETURN(const int32_t parallel_steps, inner.IntOr("parallel_draft_step", 1, 1024, 1));
    if (parallel_steps != 1) return inner.Unsupported("parallel_draft_step", "1");
    // These are read as SGLang does: the output of the layer of this number, counted from 0.
    TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(inner, 1, &parsed.config));
  }
  if (parsed.config.feature_layers.empty()) {
    TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(fields, 0, &parsed.config));
  }
  return parsed;
}

}  // namespace tandem

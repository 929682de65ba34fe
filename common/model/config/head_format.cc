#include "common/model/config/head_format.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/block_format.h"
#include "common/model/config/fields.h"
#include "common/model/config/head_fields.h"
#include "common/model/config/json_fields.h"

namespace tandem {
namespace {

constexpr char kAuxiliaryLayers[] = "eagle_aux_hidden_state_layer_ids";
// Of Medusa: more than anybody trains.
constexpr int32_t kMostBlocks = 64;
constexpr size_t kUsualFeatureLayers = 3;

// Fields that change what an EAGLE-3 head computes and that nothing here implements, and with which value
// they change nothing.
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

// Sets `*value` if the field is there. What another place of the file said must be the same.
absl::Status ReadSwitch(const JsonFields& fields, const char* name, std::optional<bool>* value) {
  TANDEM_ASSIGN_OR_RETURN(const bool found, fields.BoolOr(name, value->value_or(false)));
  if (fields.Find(name) == nullptr) return absl::OkStatus();
  if (value->has_value() && **value != found) {
    return fields.Unexpected(
        name, **value ? "true, as outside of eagle_config" : "false, as outside of eagle_config");
  }
  *value = found;
  return absl::OkStatus();
}

// The norms of EAGLE-3.1. They stand in the file itself or in its eagle_config, which is then `inner`.
absl::Status ReadNorms(const JsonFields& fields, const JsonFields* inner, HeadConfig* head) {
  std::optional<bool> output, each, together;
  for (const JsonFields* const place : {&fields, inner}) {
    if (place == nullptr) continue;
    TANDEM_RETURN_IF_ERROR(ReadSwitch(*place, "norm_output", &output));
    TANDEM_RETURN_IF_ERROR(ReadSwitch(*place, "fc_norm", &each));
    TANDEM_RETURN_IF_ERROR(ReadSwitch(*place, "norm_before_fc", &together));
    if (each.value_or(false) && together.value_or(false)) {
      return place->Unexpected(place->Find("norm_before_fc") != nullptr ? "norm_before_fc" : "fc_norm",
                               "at most one of norm_before_fc and fc_norm to be true");
    }
  }
  head->own_state_is_normed = output.value_or(false);
  if (each.value_or(false)) head->state_norms = HeadConfig::StateNorms::kEach;
  if (together.value_or(false)) head->state_norms = HeadConfig::StateNorms::kTogether;
  return absl::OkStatus();
}

// Fields of drafters that look like EAGLE-3 heads and are none: they would be read without a word, and draft
// from what they are not trained for.
absl::Status CheckNoOtherDrafter(const JsonFields& fields) {
  for (const char* const name :
       {"ptd_token_id", "pard_token", "mask_token_id", "dflash_config", "markov_rank"}) {
    if (fields.Find(name) != nullptr) {
      return fields.Unsupported(name, "none, in an EAGLE head");
    }
  }
  if (fields.Find("kv_lora_rank") != nullptr) {
    return fields.Unsupported("kv_lora_rank", "none, in a draft head");
  }
  return absl::OkStatus();
}

absl::StatusOr<ParsedHead> ParseSpeculators(const nlohmann::json& object, const std::string& type,
                                            absl::string_view path) {
  const JsonFields fields(object, path);
  if (type == "dflash" || type == "dspark") return ParseSpeculatorsDFlash(object, type == "dspark", path);
  ParsedHead parsed;
  parsed.config.numbered_layer = true;
  if (type != "eagle3") return fields.Unsupported("speculators_model_type", "eagle3, dflash, dspark");
  TANDEM_RETURN_IF_ERROR(CheckNoOtherDrafter(fields));
  TANDEM_ASSIGN_OR_RETURN(parsed.config.norm_before_residual, fields.BoolOr("norm_before_residual", false));
  TANDEM_RETURN_IF_ERROR(ReadNorms(fields, nullptr, &parsed.config));
  // These are read as vLLM does: the state that the layer of this number is about to see.
  TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(fields, kAuxiliaryLayers, 0, &parsed.config));
  TANDEM_RETURN_IF_ERROR(ReadHeadTarget(fields, &parsed.config));
  parsed.layer = fields.Find("transformer_layer_config");
  if (parsed.layer == nullptr || !parsed.layer->is_object()) {
    return fields.Unexpected("transformer_layer_config", "an object that describes the layer");
  }
  return parsed;
}

// ModelOpt's and SpecForge's object inside the file. A field that is not known might change anything.
absl::Status ReadEagleConfig(const nlohmann::json& object, const JsonFields& inner, HeadConfig* head) {
  static constexpr std::array<absl::string_view, 12> kKnown = {
      kAuxiliaryLayers, "use_aux_hidden_state", "use_input_layernorm_in_first_layer", "use_last_layernorm",
      "use_mtp_layernorm", "next_layer_regular", "parallel_draft_step", "norm_output", "fc_norm",
      "norm_before_fc",
      // Of parallel steps, of which there are none, and of training.
      "parallel_draft_heads_num_layers", "ttt_length"};
  for (const auto& [name, value] : object.items()) {
    if (!value.is_null() && std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
      return inner.Unsupported(name, "none: no field of this name is known");
    }
  }
  TANDEM_RETURN_IF_ERROR(CheckFixed(inner, {{"use_input_layernorm_in_first_layer", true},
                                            {"use_last_layernorm", true},
                                            {"use_mtp_layernorm", false},
                                            {"next_layer_regular", true}}));
  TANDEM_ASSIGN_OR_RETURN(const int32_t parallel_steps, inner.IntOr("parallel_draft_step", 1, 1024, 1));
  if (parallel_steps != 1) return inner.Unsupported("parallel_draft_step", "1");
  // As trainers mean them: the output of the layer of this number, counted from 0. Some files have the other
  // meaning, which only the target's number of layers tells (FinishHeadConfig).
  TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(inner, kAuxiliaryLayers, 1, head));
  head->layers_may_be_states = !head->feature_layers.empty();
  TANDEM_ASSIGN_OR_RETURN(const bool several, inner.BoolOr("use_aux_hidden_state", true));
  if (several) return absl::OkStatus();
  if (!head->feature_layers.empty()) {
    return inner.Unexpected(kAuxiliaryLayers, "none, as use_aux_hidden_state is false");
  }
  head->feature_final_norm = true;
  head->projects = false;
  return absl::OkStatus();
}

// A head whose file describes its layer itself: SpecForge, SGLang, the authors, AngelSlim, ModelOpt.
absl::StatusOr<ParsedHead> ParseFlatEagle3(const nlohmann::json& object, absl::string_view path) {
  const JsonFields fields(object, path);
  ParsedHead parsed{.layer = &object};
  HeadConfig& head = parsed.config;
  TANDEM_RETURN_IF_ERROR(CheckNoOtherDrafter(fields));
  TANDEM_RETURN_IF_ERROR(ReadHeadTarget(fields, &head));
  if (const nlohmann::json* const eagle = fields.Find("eagle_config"); eagle != nullptr) {
    if (!eagle->is_object()) return fields.Unexpected("eagle_config", "an object");
    const JsonFields inner(*eagle, path, "eagle_config.");
    TANDEM_RETURN_IF_ERROR(ReadEagleConfig(*eagle, inner, &head));
    TANDEM_RETURN_IF_ERROR(ReadNorms(fields, &inner, &head));
  } else {
    TANDEM_RETURN_IF_ERROR(ReadNorms(fields, nullptr, &head));
  }
  head.norm_output_may_be_plain = head.own_state_is_normed;
  TANDEM_ASSIGN_OR_RETURN(head.norm_before_residual, fields.BoolOr("norm_before_residual", false));
  if (head.num_states() == 0) TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(fields, kAuxiliaryLayers, 0, &head));
  const auto read = static_cast<int32_t>(head.num_states() == 0 ? kUsualFeatureLayers : head.num_states());
  TANDEM_ASSIGN_OR_RETURN(const int32_t counted,
                          fields.IntOr("num_aux_hidden_states", 1, kMostTargetLayers, read));
  if (counted != read) {
    return fields.Unexpected("num_aux_hidden_states",
                             absl::StrCat(read, ", as many states as the head reads"));
  }
  if (!head.projects && head.state_norms != HeadConfig::StateNorms::kNone) {
    return fields.Unsupported("eagle_config.use_aux_hidden_state", "true beside fc_norm or norm_before_fc");
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
  TANDEM_ASSIGN_OR_RETURN(parsed.vocab_size, fields.IntOr("vocab_size", 1, kMostTokens, 0));
  TANDEM_ASSIGN_OR_RETURN(const int32_t drafted,
                          fields.IntOr("truncated_vocab_size", 1, kMostTokens, parsed.vocab_size));
  if (drafted != parsed.vocab_size) return fields.Unsupported("truncated_vocab_size", "vocab_size");
  TANDEM_ASSIGN_OR_RETURN(const double scale, fields.NumberOr("logit_scale", 0.0, 1e6, 1.0));
  if (scale != 1.0) return fields.Unsupported("logit_scale", "1");
  TANDEM_RETURN_IF_ERROR(ReadHeadTarget(fields, &head));
  if (fields.Find("draft_vocab_size") != nullptr) {
    return fields.Unsupported("draft_vocab_size", "none, for Medusa heads");
  }
  head.draft_vocab_size = 0;
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
  if (names == nullptr || !names->is_array() || names->size() != 1 || !(*names)[0].is_string())
    return std::nullopt;
  const auto& name = (*names)[0].get_ref<const std::string&>();
  if (name == "DFlashDraftModel" || name == "DSparkDraftModel") {
    return ParseDFlash(object, name == "DSparkDraftModel", path);
  }
  if (name == "Qwen3DSparkModel") return ParseDeepSpec(object, path);
  // The authors' EAGLE-3 heads call themselves what their layer is. No model drafts a part of its vocabulary.
  const bool is_authors = name == "LlamaForCausalLM" && (fields.Find("draft_vocab_size") != nullptr ||
                                                         fields.Find("truncated_vocab_size") != nullptr);
  if (is_authors || name == "LlamaForCausalLMEagle3" || name == "Eagle3LlamaForCausalLM") {
    return ParseFlatEagle3(object, path);
  }
  if (name != "LlamaForCausalLMEagle" && name != "EagleLlamaForCausalLM") return std::nullopt;
  ParsedHead parsed{.config = EagleByTensors(), .layer = &object};
  TANDEM_RETURN_IF_ERROR(ReadHeadTarget(fields, &parsed.config));
  return parsed;
}

}  // namespace tandem

#include "common/model/config/block_format.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/head_fields.h"
#include "common/model/config/json_fields.h"

namespace tandem {
namespace {

constexpr int32_t kMostMarkovRank = 8192;

// Fields of what looks like DFlash or DSpark and is more.
absl::Status CheckIsPlain(const JsonFields& fields) {
  for (const char* const name :
       {"dspark_bonus_anchor", "dspark_markov_rank", "dspark_fixup_head_type", "selector_rank",
        "conv_kernel_size", "gru_hidden_dim", "hc_mult", "aux_hidden_norms", "kv_lora_rank"}) {
    if (fields.Find(name) != nullptr) return fields.Unsupported(name, "none, in a DFlash or DSpark head");
  }
  return absl::OkStatus();
}

// What counts where a file does not say it.
struct MarkovDefaults {
  int32_t rank = 0;
  bool has_confidence = false;
  bool confidence_reads_token = false;
};

// DSpark's heads beside the block.
absl::Status ReadMarkov(const JsonFields& fields, const MarkovDefaults& absent, HeadConfig* head) {
  TANDEM_ASSIGN_OR_RETURN(head->block.markov_rank,
                          fields.IntOr("markov_rank", 0, kMostMarkovRank, absent.rank));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String("markov_head_type"));
  if (head->block.markov_rank > 0 && type.has_value() && *type != "vanilla") {
    return fields.Unsupported("markov_head_type", "vanilla");
  }
  TANDEM_ASSIGN_OR_RETURN(head->block.has_confidence,
                          fields.BoolOr("enable_confidence_head", absent.has_confidence));
  TANDEM_ASSIGN_OR_RETURN(head->block.confidence_reads_token,
                          fields.BoolOr("confidence_head_with_markov", absent.confidence_reads_token));
  if (head->block.has_confidence && head->block.confidence_reads_token && head->block.markov_rank == 0) {
    return fields.Unexpected("confidence_head_with_markov", "false without a markov_rank above 0");
  }
  return absl::OkStatus();
}

// Plain DFlash says nothing of them.
absl::Status CheckNoMarkov(const JsonFields& fields) {
  for (const char* const name : {"markov_rank", "markov_head_type", "enable_confidence_head"}) {
    if (fields.Find(name) != nullptr) return fields.Unsupported(name, "none, in a DFlash head");
  }
  return absl::OkStatus();
}

absl::Status ReadBlock(const JsonFields& fields, HeadConfig* head) {
  TANDEM_ASSIGN_OR_RETURN(head->block.guesses_from_anchor,
                          fields.BoolOr("sample_from_anchor", head->block.guesses_from_anchor));
  const int32_t unread = head->block.guesses_from_anchor ? 0 : 1;
  TANDEM_ASSIGN_OR_RETURN(head->block.num_slots,
                          fields.RequiredInt("block_size", 1 + unread, kMostPositions + unread));
  head->num_positions = head->block.num_slots - unread;
  return absl::OkStatus();
}

// The layers are a Qwen3's, whatever the description calls itself. What it leaves out is then another
// model's default.
absl::Status CheckLayer(const JsonFields& fields) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String("model_type"));
  if (!type.has_value() || *type == "qwen3") return absl::OkStatus();
  for (const char* const name : {"head_dim", "num_key_value_heads", "max_position_embeddings"}) {
    if (fields.Find(name) == nullptr) {
      return fields.Unexpected(name, "a number beside a model_type that is not qwen3");
    }
  }
  return absl::OkStatus();
}

// Where the file says whether slots see those behind them, it says so for all layers.
absl::Status ReadCausal(const JsonFields& fields, const char* name, HeadConfig* head) {
  if (fields.Find(name) == nullptr) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const bool causal, fields.BoolOr(name, false));
  head->block.full_layers_look_ahead = head->block.windowed_layers_look_ahead = !causal;
  return absl::OkStatus();
}

absl::Status CheckNumber(const JsonFields& fields, const char* name, double plain,
                         absl::string_view supported) {
  TANDEM_ASSIGN_OR_RETURN(const double value, fields.NumberOr(name, -1e9, 1e9, plain));
  return value == plain ? absl::OkStatus() : fields.Unsupported(name, supported);
}

absl::Status CheckOff(const JsonFields& fields, const char* name) {
  TANDEM_ASSIGN_OR_RETURN(const bool value, fields.BoolOr(name, false));
  return value ? fields.Unsupported(name, "false") : absl::OkStatus();
}

// A field that is not known might change anything.
absl::Status ReadInner(const nlohmann::json& object, const JsonFields& inner, bool is_dspark,
                       HeadConfig* head) {
  static constexpr std::array<absl::string_view, 20> kKnown = {
      "mask_token_id", "target_layer_ids", "block_size", "causal", "sample_from_anchor", "projector_type",
      "use_swa", "swa_window_size", "attention_sink_bias", "attention_value_scale", "output_multiplier",
      "final_logit_softcapping", "markov_rank", "markov_head_type", "enable_confidence_head",
      "confidence_head_with_markov",
      // Of training, or what other fields say too.
      "num_anchors", "loss_decay_gamma", "confidence_head_alpha", "attention_mode"};
  for (const auto& [name, value] : object.items()) {
    if (!value.is_null() && std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
      return inner.Unsupported(name, "none: no field of this name is known");
    }
  }
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> projector, inner.String("projector_type"));
  const char* const kind = is_dspark ? "dspark" : "dflash";
  if (projector.has_value() && *projector != kind) return inner.Unsupported("projector_type", kind);
  if (is_dspark) {
    TANDEM_ASSIGN_OR_RETURN(const double weight, inner.NumberOr("confidence_head_alpha", 0.0, 1e9, 0.0));
    TANDEM_RETURN_IF_ERROR(ReadMarkov(inner, {.has_confidence = weight > 0.0}, head));
  } else {
    TANDEM_RETURN_IF_ERROR(CheckNoMarkov(inner));
  }
  TANDEM_RETURN_IF_ERROR(CheckOff(inner, "use_swa"));
  TANDEM_RETURN_IF_ERROR(CheckOff(inner, "attention_sink_bias"));
  TANDEM_RETURN_IF_ERROR(CheckNumber(inner, "attention_value_scale", 1.0, "1"));
  TANDEM_RETURN_IF_ERROR(CheckNumber(inner, "output_multiplier", 1.0, "1"));
  TANDEM_RETURN_IF_ERROR(CheckNumber(inner, "final_logit_softcapping", 0.0, "none"));
  TANDEM_RETURN_IF_ERROR(ReadCausal(inner, "causal", head));
  return ReadFeatureLayers(inner, "target_layer_ids", 1, head);
}

// Older files of DSpark heads do not say which position slots guess, but how many tokens are proposed: as
// many as slots, or one less. The wrong choice would draft next to nothing that is right.
absl::Status CheckProposal(const JsonFields& fields, HeadConfig* head) {
  const int32_t slots = head->block.num_slots;
  std::optional<int32_t> proposed;
  if (const nlohmann::json* const config = fields.Find("speculators_config");
      config != nullptr && config->is_object()) {
    const nlohmann::json methods = config->value("proposal_methods", nlohmann::json());
    if (methods.is_array() && !methods.empty() && methods[0].is_object()) {
      const nlohmann::json tokens = methods[0].value("speculative_tokens", nlohmann::json());
      if (tokens == slots) proposed = slots;
      if (tokens == slots - 1) proposed = slots - 1;
    }
  }
  if (fields.Find("sample_from_anchor") != nullptr) return absl::OkStatus();
  if (!proposed.has_value()) {
    return fields.Unsupported(
        "sample_from_anchor",
        "true or false, in a DSpark head that does not propose block_size tokens or one less");
  }
  if (*proposed > kMostPositions) {
    return fields.Unexpected("block_size",
                             absl::StrCat("at most ", kMostPositions, " where every slot guesses"));
  }
  head->block.guesses_from_anchor = *proposed == slots;
  head->num_positions = *proposed;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParsedHead> ParseDFlash(const nlohmann::json& object, bool is_dspark, absl::string_view path) {
  const JsonFields fields(object, path);
  ParsedHead parsed{.layer = &object, .layer_is_qwen3 = true};
  HeadConfig& head = parsed.config;
  head.kind = HeadConfig::Kind::kDFlash;
  head.layers_field = "dflash_config.target_layer_ids";
  TANDEM_RETURN_IF_ERROR(CheckIsPlain(fields));
  TANDEM_RETURN_IF_ERROR(CheckNoMarkov(fields));
  TANDEM_RETURN_IF_ERROR(CheckLayer(fields));
  TANDEM_RETURN_IF_ERROR(ReadHeadTarget(fields, &head));
  TANDEM_ASSIGN_OR_RETURN(head.num_target_layers, fields.IntOr("num_target_layers", 1, kMostTargetLayers, 0));
  const nlohmann::json* const dflash = fields.Find("dflash_config");
  if (dflash == nullptr || !dflash->is_object()) return fields.Unexpected("dflash_config", "an object");
  const JsonFields inner(*dflash, path, "dflash_config.");
  TANDEM_RETURN_IF_ERROR(ReadInner(*dflash, inner, is_dspark, &head));
  // What the file itself says counts more.
  TANDEM_RETURN_IF_ERROR(ReadCausal(fields, "is_causal", &head));
  // SpecForge trains DSpark's slots for the next position, and drafts as if each guessed its own.
  if (is_dspark && inner.Find("sample_from_anchor") == nullptr &&
      fields.Find("sample_from_anchor") == nullptr) {
    return inner.Unsupported("sample_from_anchor", "true or false, in a DSpark head");
  }
  TANDEM_ASSIGN_OR_RETURN(head.block.guesses_from_anchor, inner.BoolOr("sample_from_anchor", false));
  TANDEM_RETURN_IF_ERROR(ReadBlock(fields.Find("block_size") != nullptr ? fields : inner, &head));
  TANDEM_ASSIGN_OR_RETURN(
      head.block.mask_token,
      (inner.Find("mask_token_id") != nullptr || fields.Find("mask_token_id") == nullptr ? inner : fields)
          .RequiredInt("mask_token_id", 0, kMostTokens));
  TANDEM_ASSIGN_OR_RETURN(const bool halves, fields.BoolOr("is_neox_style", true));
  if (!halves) return fields.Unsupported("is_neox_style", "true");
  return parsed;
}

absl::StatusOr<ParsedHead> ParseSpeculatorsDFlash(const nlohmann::json& object, bool is_dspark,
                                                  absl::string_view path) {
  const JsonFields fields(object, path);
  ParsedHead parsed{.layer = fields.Find("transformer_layer_config"), .layer_is_qwen3 = true};
  HeadConfig& head = parsed.config;
  head.kind = HeadConfig::Kind::kDFlash;
  head.layers_field = "aux_hidden_state_layer_ids";
  head.block.window_ends_at_anchor = true;
  TANDEM_RETURN_IF_ERROR(CheckIsPlain(fields));
  if (parsed.layer == nullptr || !parsed.layer->is_object()) {
    return fields.Unexpected("transformer_layer_config", "an object that describes the layers");
  }
  TANDEM_RETURN_IF_ERROR(CheckLayer(JsonFields(*parsed.layer, path, "transformer_layer_config.")));
  TANDEM_RETURN_IF_ERROR(ReadHeadTarget(fields, &head));
  TANDEM_RETURN_IF_ERROR(is_dspark ? ReadMarkov(fields, {256, true, true}, &head) : CheckNoMarkov(fields));
  TANDEM_RETURN_IF_ERROR(ReadBlock(fields, &head));
  if (is_dspark) TANDEM_RETURN_IF_ERROR(CheckProposal(fields, &head));
  TANDEM_ASSIGN_OR_RETURN(head.block.mask_token, fields.RequiredInt("mask_token_id", 0, kMostTokens));
  TANDEM_ASSIGN_OR_RETURN(head.block.windowed_layers_look_ahead,
                          fields.BoolOr("sliding_window_non_causal", false));
  // As in an EAGLE-3 head: the state that the layer of this number is about to see.
  TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(fields, head.layers_field, 0, &head));
  if (head.feature_layers.empty()) {
    return fields.Unexpected(head.layers_field, "the numbers of the states that the head reads");
  }
  return parsed;
}

absl::StatusOr<ParsedHead> ParseDeepSpec(const nlohmann::json& object, absl::string_view path) {
  const JsonFields fields(object, path);
  ParsedHead parsed{.layer = &object, .layer_is_qwen3 = true};
  HeadConfig& head = parsed.config;
  head.kind = HeadConfig::Kind::kDFlash;
  head.layers_field = "target_layer_ids";
  head.block.guesses_from_anchor = true;
  TANDEM_RETURN_IF_ERROR(CheckIsPlain(fields));
  TANDEM_RETURN_IF_ERROR(CheckLayer(fields));
  TANDEM_RETURN_IF_ERROR(ReadHeadTarget(fields, &head));
  TANDEM_ASSIGN_OR_RETURN(head.num_target_layers, fields.IntOr("num_target_layers", 1, kMostTargetLayers, 0));
  TANDEM_RETURN_IF_ERROR(ReadFeatureLayers(fields, head.layers_field, 1, &head));
  TANDEM_RETURN_IF_ERROR(ReadBlock(fields, &head));
  TANDEM_RETURN_IF_ERROR(ReadMarkov(fields, {}, &head));
  TANDEM_RETURN_IF_ERROR(ReadCausal(fields, "is_causal", &head));
  TANDEM_ASSIGN_OR_RETURN(head.block.mask_token, fields.RequiredInt("mask_token_id", 0, kMostTokens));
  return parsed;
}

}  // namespace tandem

#include "common/model/config/fields.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr int32_t kMostLayers = 1024;
constexpr int32_t kMostHeads = 1024;
constexpr int32_t kMostHeadDim = 1024;
constexpr int32_t kMostVocabulary = 1 << 22;

struct ActivationName {
  absl::string_view name;
  Activation activation;
};
constexpr std::array kActivations = {
    ActivationName{"silu", Activation::kSilu},
    ActivationName{"swish", Activation::kSilu},
    ActivationName{"gelu", Activation::kGelu},
    ActivationName{"gelu_new", Activation::kGeluTanh},
    ActivationName{"gelu_fast", Activation::kGeluTanh},
    ActivationName{"gelu_pytorch_tanh", Activation::kGeluTanh},
    ActivationName{"relu", Activation::kRelu},
};

absl::Status ReadHeadDim(const JsonFields& fields, const SizeFields& names, ModelConfig& config) {
  std::optional<int32_t> head_dim;
  if (names.head_dim_given) {
    TANDEM_ASSIGN_OR_RETURN(head_dim, fields.Int("head_dim", 2, kMostHeadDim));
  }
  if (head_dim.has_value()) {
    config.head_dim = *head_dim;
  } else if (names.default_head_dim > 0) {
    config.head_dim = names.default_head_dim;
  } else {
    config.head_dim = config.hidden_size / config.num_heads;
    if (config.hidden_size % config.num_heads != 0) {
      return fields.Unexpected(names.hidden, absl::StrCat("a multiple of ", names.heads, ", which is ",
                                                          config.num_heads, ", when head_dim is not given"));
    }
  }
  if (config.head_dim % 2 != 0 || config.head_dim > kMostHeadDim) {
    return fields.Unexpected("head_dim",
                             absl::StrCat("an even number up to ", kMostHeadDim,
                                          " (rotary positions turn pairs), not ", config.head_dim));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> RequiredNumber(const JsonFields& fields, absl::string_view name, double least,
                                      double most, absl::string_view expected) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<double> number, fields.Number(name, least, most));
  if (!number.has_value()) return fields.Unexpected(name, expected);
  return *number;
}

absl::Status ReadLlama3(const JsonFields& rope, RopeScaling& scaling) {
  TANDEM_ASSIGN_OR_RETURN(scaling.low_frequency_factor,
                          RequiredNumber(rope, "low_freq_factor", 1e-6, 1e6, "a number"));
  TANDEM_ASSIGN_OR_RETURN(const auto high, rope.Number("high_freq_factor", 1e-6, 1e6));
  if (!high.has_value() || *high <= scaling.low_frequency_factor) {
    return rope.Unexpected("high_freq_factor", absl::StrCat("a number above low_freq_factor, which is ",
                                                            scaling.low_frequency_factor));
  }
  scaling.high_frequency_factor = *high;
  return absl::OkStatus();
}

// 0.1 m ln(factor) + 1: Peng et al., 2023, equation 22.
double YarnMagnitude(double factor, double m) {
  return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

absl::Status ReadYarn(const JsonFields& rope, RopeScaling& scaling) {
  TANDEM_ASSIGN_OR_RETURN(scaling.beta_fast, rope.NumberOr("beta_fast", 1e-3, 1e6, 32.0));
  TANDEM_ASSIGN_OR_RETURN(scaling.beta_slow, rope.NumberOr("beta_slow", 1e-3, 1e6, 1.0));
  TANDEM_ASSIGN_OR_RETURN(scaling.truncate, rope.BoolOr("truncate", true));
  TANDEM_ASSIGN_OR_RETURN(const double mscale, rope.NumberOr("mscale", 0.0, 1e3, 0.0));
  TANDEM_ASSIGN_OR_RETURN(const double mscale_all, rope.NumberOr("mscale_all_dim", 0.0, 1e3, 0.0));
  scaling.all_dim_magnitude = YarnMagnitude(scaling.factor, mscale_all);
  const double by_factor = mscale > 0 && mscale_all > 0 ? YarnMagnitude(scaling.factor, mscale) /
                                                              YarnMagnitude(scaling.factor, mscale_all)
                                                        : YarnMagnitude(scaling.factor, 1.0);
  TANDEM_ASSIGN_OR_RETURN(scaling.attention_factor, rope.NumberOr("attention_factor", 1e-3, 1e3, by_factor));
  return absl::OkStatus();
}

// Which of the two lists divides the frequencies is fixed by how long the model's context is: by the length
// of each text, as transformers does it, keys that are stored would change with every token beyond the
// original context.
absl::Status ReadLongRope(const JsonFields& rope, const ModelConfig& config, RopeScaling& scaling) {
  const bool is_long = config.max_context > scaling.original_context;
  const double stretch = static_cast<double>(config.max_context) / scaling.original_context;
  TANDEM_ASSIGN_OR_RETURN(scaling.factor, rope.NumberOr("factor", 1e-3, 1e6, stretch));
  const double by_factor =
      scaling.factor <= 1
          ? 1.0
          : std::sqrt(1 + std::log(scaling.factor) / std::log(static_cast<double>(scaling.original_context)));
  TANDEM_ASSIGN_OR_RETURN(scaling.attention_factor, rope.NumberOr("attention_factor", 1e-3, 1e3, by_factor));
  for (const absl::string_view name : {"short_factor", "long_factor"}) {
    const Json* const list = rope.Find(name);
    const auto count = static_cast<size_t>(config.rotary_dim() / 2);
    bool valid = list != nullptr && list->is_array() && list->size() == count;
    if (valid) {
      valid = std::all_of(list->begin(), list->end(), [](const Json& number) {
        return number.is_number() && number.get<double>() >= 1e-3 && number.get<double>() <= 1e6;
      });
    }
    if (!valid) return rope.Unexpected(name, absl::StrCat("a list of ", count, " numbers from 0.001 to 1e6"));
    if (is_long == (name == "long_factor")) scaling.divisors = list->get<std::vector<double>>();
  }
  return absl::OkStatus();
}

absl::Status ReadRopeScaling(const JsonFields& fields, const JsonFields& rope, absl::string_view type,
                             ModelConfig& config) {
  using Kind = RopeScaling::Kind;
  RopeScaling& scaling = config.rope_scaling;
  if (type == "default") return absl::OkStatus();
  constexpr absl::string_view kFactor = "a number of at least 1";
  const absl::string_view original = "original_max_position_embeddings";
  // Phi-3 has it beside the object.
  TANDEM_ASSIGN_OR_RETURN(const int32_t beside, fields.IntOr(original, 1, kMostContext, config.max_context));
  if (type == "longrope" || type == "su") {
    scaling.kind = Kind::kLongRope;
    TANDEM_ASSIGN_OR_RETURN(scaling.original_context, rope.IntOr(original, 2, kMostContext, beside));
    return ReadLongRope(rope, config, scaling);
  }
  if (type != "linear" && type != "llama3" && type != "dynamic" && type != "yarn") {
    return rope.Unsupported(rope.Find("rope_type") != nullptr ? "rope_type" : "type",
                            "default, linear, llama3, dynamic, yarn, longrope");
  }
  TANDEM_ASSIGN_OR_RETURN(scaling.factor, RequiredNumber(rope, "factor", 1.0, 1e6, kFactor));
  if (type == "linear") {
    scaling.kind = Kind::kLinear;
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(scaling.original_context, rope.IntOr(original, 1, kMostContext, beside));
  if (type == "llama3") {
    scaling.kind = Kind::kLlama3;
    return ReadLlama3(rope, scaling);
  }
  scaling.kind = type == "yarn" ? Kind::kYarn : Kind::kDynamic;
  if (type == "yarn") {
    TANDEM_RETURN_IF_ERROR(ReadYarn(rope, scaling));
  } else {
    scaling.original_context = config.max_context;
  }
  const double stretched = std::floor(scaling.original_context * scaling.factor);
  config.max_context =
      std::max(config.max_context, static_cast<int32_t>(std::min<double>(stretched, kMostContext)));
  return absl::OkStatus();
}

absl::Status SetRotaryShare(const JsonFields& fields, absl::string_view name, double share,
                            ModelConfig& config) {
  const auto turned = static_cast<int32_t>(config.head_dim * share);
  if (turned < 2 || turned % 2 != 0) {
    return fields.Unexpected(name, absl::StrCat("an even number of a head's ", config.head_dim,
                                                " numbers from 2 on, not ", turned));
  }
  config.block.rotary_dim = turned == config.head_dim ? 0 : turned;
  return absl::OkStatus();
}

}  // namespace

absl::string_view AnyOf(const JsonFields& fields, std::initializer_list<absl::string_view> names) {
  for (const absl::string_view name : names) {
    if (fields.Find(name) != nullptr) return name;
  }
  return *names.begin();
}

absl::Status ReadSizes(const JsonFields& fields, const SizeFields& names, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(config.hidden_size, fields.RequiredInt(names.hidden, 1, kMostHidden));
  TANDEM_ASSIGN_OR_RETURN(config.num_layers, fields.RequiredInt(names.layers, 1, kMostLayers));
  TANDEM_ASSIGN_OR_RETURN(config.num_heads, fields.RequiredInt(names.heads, 1, kMostHeads));
  if (!names.intermediate.empty()) {
    TANDEM_ASSIGN_OR_RETURN(config.intermediate_size,
                            fields.RequiredInt(names.intermediate, 1, kMostIntermediate));
  }
  TANDEM_ASSIGN_OR_RETURN(config.vocab_size, fields.RequiredInt("vocab_size", 1, kMostVocabulary));
  TANDEM_ASSIGN_OR_RETURN(config.max_context,
                          fields.IntOr(names.context, 1, kMostContext, names.default_context));
  config.num_kv_heads = config.num_heads;
  if (!names.kv_heads.empty()) {
    TANDEM_ASSIGN_OR_RETURN(const auto kv_heads, fields.Int(names.kv_heads, 1, kMostHeads));
    // Null says "as many as heads"; only an absent field has the architecture's own default.
    const int32_t fallback = fields.Has(names.kv_heads) ? 0 : names.default_kv_heads;
    config.num_kv_heads = kv_heads.value_or(fallback > 0 ? fallback : config.num_heads);
    if (config.num_heads % config.num_kv_heads != 0) {
      return fields.Unexpected(
          names.heads, absl::StrCat("a multiple of ", names.kv_heads, ", which is ", config.num_kv_heads));
    }
  }
  return ReadHeadDim(fields, names, config);
}

absl::Status ReadEpsilon(const JsonFields& fields, absl::string_view name, double absent,
                         ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(const double epsilon, fields.NumberOr(name, 1e-12, 1.0, absent));
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  return absl::OkStatus();
}

absl::StatusOr<Activation> ReadActivation(const JsonFields& fields, absl::string_view name,
                                          absl::string_view absent) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> found, fields.String(name));
  std::string supported;
  for (const ActivationName& known : kActivations) {
    if (known.name == found.value_or(std::string(absent))) return known.activation;
    absl::StrAppend(&supported, supported.empty() ? "" : ", ", known.name);
  }
  return fields.Unsupported(name, supported);
}

absl::Status ExpectSilu(const JsonFields& fields) {
  TANDEM_ASSIGN_OR_RETURN(const auto activation, fields.String("hidden_act"));
  return activation.value_or("silu") == "silu" ? absl::OkStatus() : fields.Unsupported("hidden_act", "silu");
}

absl::Status ExpectFixed(const JsonFields& fields, std::initializer_list<FixedField> fixed) {
  for (const FixedField& field : fixed) {
    TANDEM_ASSIGN_OR_RETURN(const bool value, fields.BoolOr(field.name, field.value));
    if (value != field.value) return fields.Unsupported(field.name, field.value ? "true" : "false");
  }
  return absl::OkStatus();
}

absl::Status ExpectAbsent(const JsonFields& fields, std::initializer_list<absl::string_view> names) {
  for (const absl::string_view name : names) {
    if (fields.Find(name) != nullptr) return fields.Unsupported(name, "none");
  }
  return absl::OkStatus();
}

absl::Status ReadRopeObject(const JsonFields& fields, const JsonFields& rope, const RopeFields& names,
                            ModelConfig& config) {
  constexpr double kMostTheta = 1e15;
  TANDEM_ASSIGN_OR_RETURN(config.rope_theta, rope.NumberOr("rope_theta", 1.0, kMostTheta, config.rope_theta));
  TANDEM_ASSIGN_OR_RETURN(const auto share, rope.Number("partial_rotary_factor", 0.0, 1.0));
  if (share.has_value()) {
    if (names.share.empty() && *share != 1.0) return rope.Unsupported("partial_rotary_factor", "1");
    TANDEM_RETURN_IF_ERROR(SetRotaryShare(rope, "partial_rotary_factor", *share, config));
  }
  TANDEM_ASSIGN_OR_RETURN(const auto new_type, rope.String("rope_type"));
  TANDEM_ASSIGN_OR_RETURN(const auto old_type, rope.String("type"));
  return ReadRopeScaling(fields, rope, new_type.value_or(old_type.value_or("default")), config);
}

absl::Status ReadRope(const JsonFields& fields, const RopeFields& names, ModelConfig& config) {
  constexpr double kMostTheta = 1e15;
  TANDEM_ASSIGN_OR_RETURN(config.rope_theta,
                          fields.NumberOr(names.theta, 1.0, kMostTheta, names.default_theta));
  const absl::string_view share_name = names.share.empty() ? "partial_rotary_factor" : names.share;
  TANDEM_ASSIGN_OR_RETURN(const double share, fields.NumberOr(share_name, 0.0, 1.0, names.default_share));
  if (names.share.empty() && share != 1.0) return fields.Unsupported(share_name, "1");
  TANDEM_RETURN_IF_ERROR(SetRotaryShare(fields, share_name, share, config));
  for (absl::string_view name : {"rope_scaling", "rope_parameters"}) {
    const Json* const object = fields.Find(name);
    if (object == nullptr || (object->is_object() && object->empty())) continue;
    if (!object->is_object()) return fields.Unexpected(name, "an object or null");
    const JsonFields rope = fields.Inner(*object, name);
    for (const auto& [key, value] : object->items()) {
      if (value.is_object()) return rope.Unsupported(key, "one setting for all layers");
    }
    return ReadRopeObject(fields, rope, names, config);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> ReadLayerTypes(const JsonFields& fields, int32_t num_layers) {
  std::vector<bool> slides;
  const Json* const types = fields.Find("layer_types");
  if (types == nullptr) return slides;
  if (!types->is_array() || static_cast<int64_t>(types->size()) != num_layers) {
    return fields.Unexpected("layer_types", absl::StrCat("a list of ", num_layers));
  }
  for (const Json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return fields.Unsupported("layer_types", "full_attention, sliding_attention");
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

void SetWindows(const std::vector<bool>& slides, int32_t window, ModelConfig& config) {
  const auto num_sliding = std::count(slides.begin(), slides.end(), true);
  if (num_sliding == 0) return;
  config.sliding_window = window;
  if (num_sliding == static_cast<int64_t>(slides.size())) return;
  config.block.layers.resize(slides.size());
  for (size_t i = 0; i < slides.size(); ++i) config.block.layers[i].has_window = slides[i];
}

absl::Status ReadExpertCounts(const JsonFields& fields, absl::string_view name, int32_t default_experts,
                              int32_t default_chosen, ModelConfig& config) {
  ExpertsDescription& experts = config.block.experts;
  TANDEM_ASSIGN_OR_RETURN(experts.num_experts, fields.IntOr(name, 1, kMostExperts, default_experts));
  TANDEM_ASSIGN_OR_RETURN(experts.num_chosen,
                          fields.IntOr("num_experts_per_tok", 1, kMostExperts, default_chosen));
  if (experts.num_chosen > experts.num_experts) {
    return fields.Unexpected("num_experts_per_tok",
                             absl::StrCat("at most ", name, ", which is ", experts.num_experts));
  }
  return absl::OkStatus();
}

void SetSparseLayers(const std::vector<bool>& sparse, ModelConfig& config) {
  if (std::count(sparse.begin(), sparse.end(), false) == 0) return;
  config.block.layers.resize(sparse.size());
  for (size_t i = 0; i < sparse.size(); ++i) config.block.layers[i].is_sparse = sparse[i];
}

absl::Status ReadEnds(const JsonFields& fields, bool tied_when_absent, ModelConfig& config) {
  TANDEM_ASSIGN_OR_RETURN(config.tied_embeddings, fields.BoolOr("tie_word_embeddings", tied_when_absent));
  TANDEM_ASSIGN_OR_RETURN(config.eos_tokens, fields.Tokens("eos_token_id"));
  return absl::OkStatus();
}

}  // namespace tandem

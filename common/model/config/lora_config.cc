#include "common/model/config/lora_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/json_fields.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr double kMostLoraAlpha = 1e6;
constexpr size_t kMostLoraNames = 4096;

// Fields that change nothing of what is computed with the tensors in the file, or that are read below.
constexpr absl::string_view kLoraFields[] = {"peft_type",
                                             "task_type",
                                             "r",
                                             "lora_alpha",
                                             "use_rslora",
                                             "target_modules",
                                             "rank_pattern",
                                             "alpha_pattern",
                                             "bias",
                                             "use_dora",
                                             "modules_to_save",
                                             "exclude_modules",
                                             "layers_to_transform",
                                             "init_lora_weights",
                                             "base_model_name_or_path",
                                             "revision",
                                             "inference_mode",
                                             "lora_dropout",
                                             "fan_in_fan_out",
                                             "auto_mapping",
                                             "peft_version",
                                             "layers_pattern",
                                             "megatron_core",
                                             "qalora_group_size",
                                             "loftq_config",
                                             "eva_config",
                                             "runtime_config",
                                             "ensure_weight_tying",
                                             "lora_bias"};

// Null, false, or nothing in it.
bool SaysNothing(const Json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  return (value.is_object() || value.is_array() || value.is_string()) &&
         (value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty());
}

absl::Status ExpectNothing(const JsonFields& fields, absl::string_view name) {
  const Json* const value = fields.Find(name);
  return value == nullptr || SaysNothing(*value) ? absl::OkStatus() : fields.Unsupported(name, "none");
}

bool IsModuleName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
  });
}

bool Means(absl::string_view name, absl::string_view module) {
  return module == name || absl::EndsWith(module, absl::StrCat(".", name));
}

absl::StatusOr<std::vector<std::string>> ReadNames(const JsonFields& fields, absl::string_view name) {
  std::vector<std::string> names;
  const Json* const value = fields.Find(name);
  if (value == nullptr) return names;
  const std::string expected = absl::StrCat("a list of at most ", kMostLoraNames, " modules' names");
  if (!value->is_array() || value->size() > kMostLoraNames) return fields.Unexpected(name, expected);
  for (const Json& each : *value) {
    if (!each.is_string() || !IsModuleName(each.get_ref<const std::string&>())) {
      return fields.Unexpected(name, expected);
    }
    names.push_back(each.get<std::string>());
  }
  return names;
}

// Names to numbers. `read` turns one of the object's fields into a number.
template <typename Number, typename Read>
absl::Status ReadPattern(const JsonFields& fields, absl::string_view name, const Read& read,
                         std::map<std::string, Number>* out) {
  const Json* const value = fields.Find(name);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_object() || value->size() > kMostLoraNames) {
    return fields.Unexpected(name, absl::StrCat("an object of at most ", kMostLoraNames, " modules' names"));
  }
  const JsonFields inner = fields.Inner(*value, name);
  for (const auto& [key, each] : value->items()) {
    if (!IsModuleName(key)) return inner.Unsupported(key, "names of modules, without patterns");
    if (each.is_null()) return inner.Unexpected(key, "a number");
    TANDEM_ASSIGN_OR_RETURN((*out)[key], read(inner, key));
  }
  return absl::OkStatus();
}

absl::Status ReadLayers(const JsonFields& fields, LoraConfig* config) {
  constexpr absl::string_view kName = "layers_to_transform";
  const Json* const value = fields.Find(kName);
  if (value == nullptr) return absl::OkStatus();
  constexpr int32_t kMostLayers = 65536;
  const auto add = [&](const Json& each) {
    const bool valid = each.is_number_unsigned() && each.get<uint64_t>() < kMostLayers;
    if (valid) config->layers->push_back(each.get<int32_t>());
    return valid;
  };
  config->layers.emplace();
  bool valid = true;
  if (value->is_array()) {
    valid = value->size() <= kMostLayers;
    for (size_t i = 0; valid && i < value->size(); ++i) valid = add((*value)[i]);
    if (value->empty()) config->layers.reset();
  } else {
    valid = add(*value);
  }
  return valid ? absl::OkStatus() : fields.Unexpected(kName, "a layer's number or a list of them");
}

// Some initialisations move a part of the model's weights into the adapter: it fits a model that is not in
// any file.
absl::Status CheckInitialisation(const JsonFields& fields) {
  const Json* const value = fields.Find("init_lora_weights");
  if (value == nullptr || value->is_boolean()) return absl::OkStatus();
  if (value->is_string()) {
    const std::string& name = value->get_ref<const std::string&>();
    for (const absl::string_view harmless : {"gaussian", "eva", "orthogonal"}) {
      if (name == harmless) return absl::OkStatus();
    }
  }
  return fields.Unsupported(
      "init_lora_weights", "true, false, gaussian, eva or orthogonal: others change the model's own weights");
}

absl::Status CheckSupported(const JsonFields& fields, const Json& object) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> type, fields.String("peft_type"));
  if (!type.has_value()) return fields.Unexpected("peft_type", "LORA");
  if (*type != "LORA") return fields.Unsupported("peft_type", "LORA");
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> task, fields.String("task_type"));
  if (task.has_value() && *task != "CAUSAL_LM") return fields.Unsupported("task_type", "CAUSAL_LM");
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> bias, fields.String("bias"));
  if (bias.has_value() && *bias != "none") return fields.Unsupported("bias", "none");
  for (const char* const flag : {"use_dora", "lora_bias"}) {
    TANDEM_ASSIGN_OR_RETURN(const bool set, fields.BoolOr(flag, false));
    if (set) return fields.Unsupported(flag, "false");
  }
  TANDEM_RETURN_IF_ERROR(ExpectNothing(fields, "modules_to_save"));
  TANDEM_RETURN_IF_ERROR(CheckInitialisation(fields));
  for (const auto& [name, value] : object.items()) {
    if (std::find(std::begin(kLoraFields), std::end(kLoraFields), name) != std::end(kLoraFields)) continue;
    TANDEM_RETURN_IF_ERROR(ExpectNothing(fields, name));
  }
  return absl::OkStatus();
}

template <typename Number>
absl::StatusOr<Number> NumberOf(const std::map<std::string, Number>& numbers, absl::string_view field,
                                absl::string_view module, Number otherwise, const std::string& path) {
  const std::string* named = nullptr;
  for (const auto& [name, number] : numbers) {
    if (!Means(name, module)) continue;
    if (named != nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": field ", field, ": \"", *named, "\" and \"",
                                                     name, "\" both mean ", module, ", expected one"));
    }
    named = &name;
    otherwise = number;
  }
  return otherwise;
}

}  // namespace

absl::StatusOr<int32_t> LoraConfig::RankOf(absl::string_view module) const {
  return NumberOf(ranks, "rank_pattern", module, rank, path);
}

absl::StatusOr<float> LoraConfig::ScaleOf(absl::string_view module) const {
  TANDEM_ASSIGN_OR_RETURN(const int32_t own_rank, RankOf(module));
  TANDEM_ASSIGN_OR_RETURN(const double own_alpha, NumberOf(alphas, "alpha_pattern", module, alpha, path));
  const double divisor = rank_stabilised ? std::sqrt(own_rank) : own_rank;
  return static_cast<float>(own_alpha / divisor);
}

bool LoraConfig::Targets(absl::string_view module, int32_t layer) const {
  const auto means = [&](const std::string& name) { return Means(name, module); };
  if (!targets.has_value() || std::none_of(targets->begin(), targets->end(), means)) return false;
  if (std::any_of(excluded.begin(), excluded.end(), means)) return false;
  return !layers.has_value() || std::find(layers->begin(), layers->end(), layer) != layers->end();
}

absl::StatusOr<LoraConfig> ParseLoraConfig(absl::string_view json, absl::string_view path) {
  TANDEM_ASSIGN_OR_RETURN(const Json object, ParseStrictJson(json, path));
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": expected a JSON object"));
  const JsonFields fields(object, path);
  LoraConfig config;
  config.path = std::string(path);
  TANDEM_RETURN_IF_ERROR(CheckSupported(fields, object));
  TANDEM_ASSIGN_OR_RETURN(config.rank, fields.RequiredInt("r", 1, kMostLoraRank));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<double> alpha, fields.Number("lora_alpha", 0, kMostLoraAlpha));
  if (!alpha.has_value()) return fields.Unexpected("lora_alpha", "a number");
  config.alpha = *alpha;
  TANDEM_ASSIGN_OR_RETURN(config.rank_stabilised, fields.BoolOr("use_rslora", false));
  TANDEM_RETURN_IF_ERROR(ReadPattern(
      fields, "rank_pattern",
      [](const JsonFields& inner, absl::string_view name) {
        return inner.RequiredInt(name, 1, kMostLoraRank);
      },
      &config.ranks));
  TANDEM_RETURN_IF_ERROR(ReadPattern(
      fields, "alpha_pattern",
      [](const JsonFields& inner, absl::string_view name) {
        return inner.NumberOr(name, 0, kMostLoraAlpha, 0);
      },
      &config.alphas));
  const Json* const targets = fields.Find("target_modules");
  if (targets == nullptr) return fields.Unexpected("target_modules", "modules' names, or a pattern");
  if (!targets->is_string()) {
    TANDEM_ASSIGN_OR_RETURN(config.targets, ReadNames(fields, "target_modules"));
  }
  TANDEM_ASSIGN_OR_RETURN(config.excluded, ReadNames(fields, "exclude_modules"));
  TANDEM_RETURN_IF_ERROR(ReadLayers(fields, &config));
  return config;
}

}  // namespace tandem

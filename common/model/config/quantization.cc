#include "common/model/config/quantization.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem {
namespace {

using Json = nlohmann::json;

constexpr char kMethods[] = "awq, gptq, compressed-tensors, fp8";
constexpr char kFormats[] = "float-quantized, int-quantized, naive-quantized, pack-quantized";
// Of inputs or outputs that share a scale.
constexpr int32_t kMostShared = 1 << 24;

// Names of modules that are kept as plain floats. Their tensors say the same, so that names are not compared.
absl::Status ExpectNames(const JsonFields& fields, absl::string_view name) {
  const Json* const names = fields.Find(name);
  if (names == nullptr) return absl::OkStatus();
  bool valid = names->is_array();
  for (size_t i = 0; valid && i < names->size(); ++i) valid = (*names)[i].is_string();
  return valid ? absl::OkStatus() : fields.Unexpected(name, "a list of names");
}

// -1: all inputs share a scale.
absl::StatusOr<int32_t> ReadGroupSize(const JsonFields& fields) {
  TANDEM_ASSIGN_OR_RETURN(const int32_t size, fields.IntOr("group_size", -1, kMostShared, 0));
  if (size == 0) {
    return fields.Unexpected("group_size", absl::StrCat("-1 or a whole number from 1 to ", kMostShared));
  }
  return size == -1 ? 0 : size;
}

absl::StatusOr<Quantization> ReadAwq(const JsonFields& fields) {
  Quantization quantization;
  quantization.layout = Quantization::Layout::kAwq;
  TANDEM_ASSIGN_OR_RETURN(quantization.bits, fields.RequiredInt("bits", 1, 32));
  if (quantization.bits != 4) return fields.Unsupported("bits", "4");
  // Files say `version`, newer libraries `format`.
  for (const char* const name : {"version", "format"}) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> version, fields.String(name));
    if (version.has_value() && !absl::EqualsIgnoreCase(*version, "gemm")) {
      return fields.Unsupported(name, "gemm");
    }
  }
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> backend, fields.String("backend"));
  if (backend == "llm-awq") return fields.Unsupported("backend", "files in the layout of autoawq");
  TANDEM_ASSIGN_OR_RETURN(const bool zero_point, fields.BoolOr("zero_point", true));
  if (!zero_point) return fields.Unsupported("zero_point", "true");
  TANDEM_ASSIGN_OR_RETURN(quantization.inputs_per_scale, ReadGroupSize(fields));
  TANDEM_RETURN_IF_ERROR(ExpectNames(fields, "modules_to_not_convert"));
  return quantization;
}

// Settings of single modules, by patterns: those with "-:" in front are kept as they are.
absl::Status ExpectNoSettingsOfModules(const JsonFields& fields) {
  const Json* const dynamic = fields.Find("dynamic");
  if (dynamic == nullptr) return absl::OkStatus();
  if (!dynamic->is_object()) return fields.Unexpected("dynamic", "an object or null");
  for (const auto& [pattern, settings] : dynamic->items()) {
    if (absl::StartsWith(pattern, "-:")) continue;
    return fields.Unsupported("dynamic", "patterns that begin with -:, of modules that are not quantised");
  }
  return absl::OkStatus();
}

absl::StatusOr<Quantization> ReadGptq(const JsonFields& fields) {
  Quantization quantization;
  quantization.layout = Quantization::Layout::kGptq;
  TANDEM_ASSIGN_OR_RETURN(quantization.bits, fields.RequiredInt("bits", 1, 32));
  if (quantization.bits != 4 && quantization.bits != 8) return fields.Unsupported("bits", "4, 8");
  const absl::string_view format_name =
      fields.Find("checkpoint_format") != nullptr ? "checkpoint_format" : "format";
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> format, fields.String(format_name));
  if (format.has_value() && *format != "gptq" && *format != "gptq_v2") {
    return fields.Unsupported(format_name, "gptq, gptq_v2");
  }
  quantization.zeros_less_one = format != "gptq_v2";
  TANDEM_ASSIGN_OR_RETURN(const bool is_marlin, fields.BoolOr("is_marlin_format", false));
  if (is_marlin) return fields.Unsupported("is_marlin_format", "false");
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> pack_dtype, fields.String("pack_dtype"));
  if (pack_dtype.has_value() && *pack_dtype != "int32") return fields.Unsupported("pack_dtype", "int32");
  TANDEM_RETURN_IF_ERROR(ExpectNoSettingsOfModules(fields));
  TANDEM_ASSIGN_OR_RETURN(quantization.symmetric, fields.BoolOr("sym", false));
  TANDEM_ASSIGN_OR_RETURN(quantization.needs_group_index, fields.BoolOr("desc_act", false));
  TANDEM_ASSIGN_OR_RETURN(quantization.inputs_per_scale, ReadGroupSize(fields));
  TANDEM_RETURN_IF_ERROR(ExpectNames(fields, "modules_to_not_convert"));
  return quantization;
}

// [outputs, inputs] that share a scale.
absl::Status ReadBlock(const JsonFields& fields, absl::string_view name, Quantization* quantization) {
  const Json* const block = fields.Find(name);
  bool valid = block != nullptr && block->is_array() && block->size() == 2;
  int32_t sizes[2] = {};
  for (size_t i = 0; valid && i < 2; ++i) {
    const Json& size = (*block)[i];
    valid = size.is_number_unsigned() && size.get<uint64_t>() >= 1 && size.get<uint64_t>() <= kMostShared;
    if (valid) sizes[i] = size.get<int32_t>();
  }
  if (!valid) {
    return fields.Unexpected(name, absl::StrCat("a list of two whole numbers from 1 to ", kMostShared));
  }
  quantization->outputs_per_scale = sizes[0];
  quantization->inputs_per_scale = sizes[1];
  return absl::OkStatus();
}

absl::Status ReadStrategy(const JsonFields& weights, Quantization* quantization) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> strategy, weights.String("strategy"));
  if (strategy == "block") return ReadBlock(weights, "block_structure", quantization);
  if (strategy == "tensor") {
    quantization->outputs_per_scale = 0;
    return absl::OkStatus();
  }
  if (strategy == "channel") return absl::OkStatus();
  if (strategy == "group") {
    TANDEM_ASSIGN_OR_RETURN(quantization->inputs_per_scale, ReadGroupSize(weights));
    return absl::OkStatus();
  }
  if (strategy.has_value()) return weights.Unsupported("strategy", "tensor, channel, group, block");
  // Left out, it follows from the group size.
  if (weights.Find("group_size") == nullptr) {
    quantization->outputs_per_scale = 0;
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(quantization->inputs_per_scale, ReadGroupSize(weights));
  return absl::OkStatus();
}

// What the fields of a group's `weights` say.
absl::StatusOr<Quantization> ReadWeights(const JsonFields& weights, const std::string& format) {
  const bool is_packed = format == "pack-quantized";
  Quantization quantization;
  quantization.format = format;
  quantization.layout = is_packed ? Quantization::Layout::kPacked : Quantization::Layout::kPlain;
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> type, weights.String("type"));
  const bool may_be_float = format == "float-quantized" || format == "naive-quantized";
  const bool may_be_int = format != "float-quantized";
  quantization.is_float = type == "float";
  if (quantization.is_float ? !may_be_float : !may_be_int || type.value_or("int") != "int") {
    return weights.Unsupported("type", may_be_float && may_be_int ? "float, int"
                                       : may_be_float             ? "float"
                                                                  : "int");
  }
  TANDEM_ASSIGN_OR_RETURN(quantization.bits, weights.IntOr("num_bits", 1, 32, 8));
  if (quantization.bits != 8 && !(is_packed && quantization.bits == 4)) {
    return weights.Unsupported("num_bits", is_packed ? "4, 8" : "8");
  }
  TANDEM_ASSIGN_OR_RETURN(quantization.symmetric, weights.BoolOr("symmetric", true));
  if (quantization.is_float && !quantization.symmetric) return weights.Unsupported("symmetric", "true");
  TANDEM_RETURN_IF_ERROR(ReadStrategy(weights, &quantization));
  if (is_packed && !quantization.symmetric && quantization.outputs_per_scale != 1) {
    return weights.Unsupported("symmetric", "true, for scales of more than one output");
  }
  // Where scales belong to groups of inputs in another order, "group" or true.
  const Json* const order = weights.Find("actorder");
  if (order != nullptr && !order->is_string() && !order->is_boolean()) {
    return weights.Unexpected("actorder", "a string, true or false");
  }
  quantization.needs_group_index =
      order != nullptr && (*order == "group" || *order == "dynamic" || *order == true);
  if (quantization.needs_group_index && (!is_packed || quantization.inputs_per_scale == 0)) {
    return weights.Unsupported("actorder", absl::StrCat("weight, for ", format));
  }
  return quantization;
}

bool KeepNumbersAlike(const Quantization& a, const Quantization& b) {
  return a.is_float == b.is_float && a.bits == b.bits && a.symmetric == b.symmetric &&
         a.outputs_per_scale == b.outputs_per_scale && a.inputs_per_scale == b.inputs_per_scale &&
         a.needs_group_index == b.needs_group_index;
}

// Fields which change the result where they are more than null or empty.
absl::Status ExpectEmpty(const JsonFields& fields, absl::string_view name) {
  const Json* const value = fields.Find(name);
  if (value == nullptr || (value->is_object() && value->empty())) return absl::OkStatus();
  if (value->is_object() && value->value("format", Json()) == "dense") return absl::OkStatus();
  return fields.Unsupported(name, "none");
}

absl::StatusOr<Quantization> ReadCompressedTensors(const JsonFields& fields) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> format, fields.String("format"));
  if (!format.has_value() || (*format != "float-quantized" && *format != "int-quantized" &&
                              *format != "naive-quantized" && *format != "pack-quantized")) {
    return fields.Unsupported("format", kFormats);
  }
  TANDEM_RETURN_IF_ERROR(ExpectEmpty(fields, "sparsity_config"));
  TANDEM_RETURN_IF_ERROR(ExpectEmpty(fields, "transform_config"));
  TANDEM_RETURN_IF_ERROR(ExpectNames(fields, "ignore"));
  const Json* const groups = fields.Find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    return fields.Unexpected("config_groups", "an object of groups");
  }
  std::optional<Quantization> quantization;
  const JsonFields group_fields = fields.Inner(*groups, "config_groups");
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) return fields.Unexpected("config_groups", "an object of groups");
    const JsonFields inner = group_fields.Inner(group, PrintableText(name));
    TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> own_format, inner.String("format"));
    if (own_format.has_value() && own_format != format) {
      return inner.Unsupported("format", absl::StrCat(*format, ", as all matrices are kept"));
    }
    const Json* const weights = inner.Find("weights");
    if (weights == nullptr || !weights->is_object()) return inner.Unexpected("weights", "an object");
    TANDEM_ASSIGN_OR_RETURN(const Quantization read, ReadWeights(inner.Inner(*weights, "weights"), *format));
    if (quantization.has_value() && !KeepNumbersAlike(*quantization, read)) {
      return inner.Unsupported("weights", "what the first group says: all matrices kept alike");
    }
    if (!quantization.has_value()) quantization = read;
  }
  return *quantization;
}

absl::StatusOr<Quantization> ReadFp8(const JsonFields& fields) {
  Quantization quantization;
  quantization.layout = Quantization::Layout::kPlain;
  quantization.bits = 8;
  quantization.is_float = true;
  quantization.outputs_per_scale = 0;
  quantization.symmetric = true;
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> format, fields.String("fmt"));
  if (format.has_value() && *format != "e4m3") return fields.Unsupported("fmt", "e4m3");
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> experts, fields.String("expert_dtype"));
  if (experts.has_value() && *experts != "fp8") return fields.Unsupported("expert_dtype", "fp8");
  if (fields.Find("weight_block_size") != nullptr) {
    TANDEM_RETURN_IF_ERROR(ReadBlock(fields, "weight_block_size", &quantization));
  }
  TANDEM_RETURN_IF_ERROR(ExpectNames(fields, "modules_to_not_convert"));
  TANDEM_RETURN_IF_ERROR(ExpectNames(fields, "ignored_layers"));
  return quantization;
}

absl::StatusOr<Quantization> ReadOf(const std::string& method, const JsonFields& fields) {
  if (method == "awq") return ReadAwq(fields);
  if (method == "gptq") return ReadGptq(fields);
  if (method == "compressed-tensors") return ReadCompressedTensors(fields);
  if (method == "fp8") return ReadFp8(fields);
  return fields.Unsupported("quant_method", kMethods);
}

}  // namespace

absl::StatusOr<Quantization> ReadQuantization(const JsonFields& fields) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> method, fields.String("quant_method"));
  TANDEM_ASSIGN_OR_RETURN(Quantization quantization, ReadOf(method.value_or(""), fields));
  quantization.method = *method;
  return quantization;
}

}  // namespace tandem

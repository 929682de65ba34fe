#include "common/model/gguf_rotary.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

constexpr char kFactors[] = "rope_freqs.weight";
// Longrope's, for the longest context and for the original one.
constexpr char kLongFactors[] = "rope_factors_long.weight";
constexpr char kShortFactors[] = "rope_factors_short.weight";
constexpr float kLeastFactor = 1e-3f;
constexpr float kMostFactor = 1e6f;

const nlohmann::json* Find(const GgufFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? nullptr : &*found;
}

absl::Status Unexpected(const GgufFile& file, const std::string& key, absl::string_view expected) {
  const nlohmann::json* const value = Find(file, key);
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": key ", key, ": found ",
                                                 value == nullptr ? "nothing" : PrintableValue(*value),
                                                 ", expected ", expected));
}

absl::StatusOr<std::vector<float>> ReadFactors(const GgufFile& file, const char* name) {
  const GgufTensor* const tensor = file.Find(name);
  const auto error = [&](absl::string_view expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.path(), ": tensor \"", name, "\": expected ", expected));
  };
  if (tensor == nullptr || tensor->type != GgufType::kF32 || tensor->shape.size() != 1) {
    return error("a vector of F32");
  }
  std::vector<float> factors(static_cast<size_t>(tensor->shape[0]));
  std::memcpy(factors.data(), tensor->bytes.data(), tensor->bytes.size());
  const bool valid = std::all_of(factors.begin(), factors.end(),
                                 [](float f) { return f >= kLeastFactor && f <= kMostFactor; });
  if (!valid) return error(absl::StrCat("factors of ", kLeastFactor, " to ", kMostFactor));
  return factors;
}

absl::StatusOr<nlohmann::json> ReadLongRope(const GgufFile& file, const std::string& prefix) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> longs, ReadFactors(file, kLongFactors));
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> shorts, ReadFactors(file, kShortFactors));
  const std::string original_key = prefix + "rope.scaling.original_context_length";
  const nlohmann::json* const original = Find(file, original_key);
  if (original == nullptr) return Unexpected(file, original_key, "a number, beside longrope's factors");
  nlohmann::json scaling = {{"rope_type", "longrope"},
                            {"long_factor", longs},
                            {"short_factor", shorts},
                            {"original_max_position_embeddings", *original}};
  if (const nlohmann::json* const factor = Find(file, prefix + "rope.scaling.attn_factor")) {
    scaling["attention_factor"] = *factor;
  }
  return scaling;
}

// What cosines and sines are multiplied by, beside yarn's own factor.
absl::Status ReadAttentionFactor(const GgufFile& file, const std::string& prefix, nlohmann::json* scaling) {
  const std::string key = prefix + "rope.scaling.attn_factor";
  const nlohmann::json* const factor = Find(file, key);
  if (factor == nullptr) return absl::OkStatus();
  if (!factor->is_number() || !(*factor >= 1e-3 && *factor <= 1e3)) {
    return Unexpected(file, key, "a number from 0.001 to 1000");
  }
  const std::string stretch_key = prefix + "rope.scaling.factor";
  const nlohmann::json* const stretch = Find(file, stretch_key);
  if (stretch == nullptr || !stretch->is_number() || !(*stretch >= 1.0 && *stretch <= 1e6)) {
    return Unexpected(file, stretch_key, "a number from 1 to 1000000");
  }
  if (*factor == 1.0) return absl::OkStatus();
  (*scaling)["attention_factor"] = factor->get<double>() * (0.1 * std::log(stretch->get<double>()) + 1.0);
  return absl::OkStatus();
}

// DeepSeek's yarn: scores grow with the stretch as config.json's mscale_all_dim says, a tenth of which the
// file has, and turned numbers do not, since mscale is the same.
absl::Status ReadMagnitude(const GgufFile& file, const std::string& prefix, nlohmann::json* scaling) {
  (*scaling)["attention_factor"] = 1.0;
  const std::string key = prefix + "rope.scaling.yarn_log_multiplier";
  const nlohmann::json* const tenth = Find(file, key);
  if (tenth == nullptr) return absl::OkStatus();
  if (!tenth->is_number() || !(*tenth >= 0 && *tenth <= 100)) {
    return Unexpected(file, key, "a number from 0 to 100");
  }
  // The number that somebody wrote in decimals, and a float32 holds nearly.
  (*scaling)["mscale_all_dim"] = std::round(tenth->get<double>() * 1e7) / 1e6;
  return absl::OkStatus();
}

bool AreLlama3s(const std::vector<float>& factors, const RopeScaling& scaling, const ModelConfig& config) {
  for (size_t i = 0; i < factors.size(); ++i) {
    const double wavelength =
        2 * M_PI * std::pow(config.rope_theta, 2.0 * static_cast<double>(i) / config.rotary_dim());
    const double share = (scaling.original_context / wavelength - scaling.low_frequency_factor) /
                         (scaling.high_frequency_factor - scaling.low_frequency_factor);
    const double kept = std::clamp(share, 0.0, 1.0);
    const double expected = 1 / ((1 - kept) / scaling.factor + kept);
    if (!(std::abs(factors[i] - expected) <= 1e-3 * expected)) return false;
  }
  return true;
}

}  // namespace

bool IsGgufRopeTensor(absl::string_view name) {
  return name == kFactors || name == kLongFactors || name == kShortFactors;
}

absl::StatusOr<nlohmann::json> ReadGgufRopeScaling(const GgufFile& file, const std::string& prefix) {
  const std::string key = prefix + "rope.scaling.type";
  const nlohmann::json* const named = Find(file, key);
  if (named != nullptr && !named->is_string()) return Unexpected(file, key, "a name");
  const std::string type = named == nullptr ? "none" : named->get<std::string>();
  if (file.Find(kLongFactors) != nullptr && (type == "none" || type == "longrope")) {
    return ReadLongRope(file, prefix);
  }
  if (type == "none") return nlohmann::json();
  if (type != "linear" && type != "yarn") {
    return absl::UnimplementedError(absl::StrCat(file.path(), ": key ", key, ": found ", PrintableText(type),
                                                 ", supported: none, linear, yarn, longrope"));
  }
  nlohmann::json scaling = {{"rope_type", type}};
  for (const auto& [name, field] :
       {std::pair("factor", "factor"),
        std::pair("original_context_length", "original_max_position_embeddings"),
        std::pair("yarn_beta_fast", "beta_fast"), std::pair("yarn_beta_slow", "beta_slow")}) {
    if (const nlohmann::json* value = Find(file, absl::StrCat(prefix, "rope.scaling.", name))) {
      scaling[field] = *value;
    }
  }
  if (prefix == "deepseek2.") {
    TANDEM_RETURN_IF_ERROR(ReadMagnitude(file, prefix, &scaling));
  } else if (type == "yarn") {
    TANDEM_RETURN_IF_ERROR(ReadAttentionFactor(file, prefix, &scaling));
  }
  // No key says it: the model's authors fix it.
  if (prefix == "gpt-oss.") scaling["truncate"] = false;
  return scaling;
}

absl::Status UseGgufRopeFactors(const GgufFile& file, ModelConfig* config) {
  if (file.Find(kFactors) == nullptr) return absl::OkStatus();
  RopeScaling& scaling = config->rope_scaling;
  if (scaling.kind != RopeScaling::Kind::kNone) {
    return absl::UnimplementedError(absl::StrCat(file.path(), ": tensor \"", kFactors,
                                                 "\": found beside another scaling, supported: alone"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<float> factors, ReadFactors(file, kFactors));
  if (static_cast<int64_t>(factors.size()) != config->rotary_dim() / 2) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor \"", kFactors,
                                                   "\": ", factors.size(), " factors, expected ",
                                                   config->rotary_dim() / 2));
  }
  RopeScaling llama3 = {.kind = RopeScaling::Kind::kLlama3,
                        .factor = *std::max_element(factors.begin(), factors.end())};
  if (llama3.factor >= 1 && AreLlama3s(factors, llama3, *config)) {
    scaling = llama3;
    return absl::OkStatus();
  }
  scaling.kind = RopeScaling::Kind::kLongRope;
  scaling.original_context = config->max_context;
  scaling.divisors.assign(factors.begin(), factors.end());
  return absl::OkStatus();
}

}  // namespace tandem

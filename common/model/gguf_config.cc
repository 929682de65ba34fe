#include "common/model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

struct GgufArchitecture {
  absl::string_view name;
  absl::string_view model;  // config.json's
  absl::string_view model_type;
  bool permuted;  // Queries and keys: pairs that positions turn together lie side by side.
  bool has_experts = false;
};
constexpr GgufArchitecture kGgufArchitectures[] = {
    {"llama", "LlamaForCausalLM", "llama", true},
    {"mistral", "MistralForCausalLM", "mistral", true},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", false},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", false},
    // Mixtral says that it is a Llama.
    {"llama", "MixtralForCausalLM", "mixtral", true, true},
    {"qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe", false, true},
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", false, true},
    {"deepseek2", "DeepseekV2ForCausalLM", "deepseek_v2", false, true},
    // DeepSeek-V3 says that it is a V2; how experts are chosen tells.
    {"deepseek2", "DeepseekV3ForCausalLM", "deepseek_v3", false, true},
};
constexpr char kDeepSeek[] = "deepseek2";
constexpr int64_t kMostCount = 1 << 24;
// Of expert_gating_func.
constexpr int64_t kSoftmax = 1;
constexpr int64_t kSigmoid = 2;

absl::Status Refused(const GgufFile& file, absl::string_view key, absl::string_view found,
                     absl::string_view supported) {
  return absl::UnimplementedError(
      absl::StrCat(file.path(), ": key ", key, ": found ", found, ", supported: ", supported));
}

// Reads keys into the fields of a config.json.
class ConfigReader {
 public:
  explicit ConfigReader(const GgufFile& file) : file_(file) {}

  absl::StatusOr<ModelConfig> Read() {
    const std::string name = Text("general.architecture").value_or("");
    const nlohmann::json* const count = Find(absl::StrCat(name, ".expert_count"));
    const bool has_experts = count != nullptr && *count != 0;
    for (const GgufArchitecture& candidate : kGgufArchitectures) {
      if (candidate.name != name || candidate.has_experts != has_experts) continue;
      if (name != kDeepSeek) return ReadOf(candidate);
      TANDEM_ASSIGN_OR_RETURN(const bool is_v3, IsDeepSeekV3());
      if (is_v3 == (candidate.model_type == "deepseek_v3")) return ReadOf(candidate);
    }
    for (const GgufArchitecture& candidate : kGgufArchitectures) {
      if (candidate.name != name) continue;
      return Refused(file_, absl::StrCat(name, ".expert_count"),
                     count == nullptr ? "nothing" : PrintableValue(*count),
                     candidate.has_experts ? "a number from 1 on" : "none");
    }
    return Refused(file_, "general.architecture", PrintableText(name),
                   "llama, mistral, qwen2, qwen3, qwen2moe, qwen3moe, deepseek2");
  }

 private:
  const nlohmann::json* Find(absl::string_view key) const {
    const auto found = file_.metadata().find(std::string(key));
    return found == file_.metadata().end() ? nullptr : &*found;
  }
  std::optional<std::string> Text(absl::string_view key) const {
    const nlohmann::json* value = Find(key);
    return value != nullptr && value->is_string() ? std::optional(value->get<std::string>()) : std::nullopt;
  }

  // A key of the architecture's, under the name that config.json gives it, where it is there.
  void Copy(absl::string_view key, const char* field) {
    if (const nlohmann::json* value = Find(absl::StrCat(prefix_, key))) config_[field] = *value;
  }

  absl::StatusOr<bool> IsDeepSeekV3() const {
    const std::string key = absl::StrCat(kDeepSeek, ".expert_gating_func");
    const nlohmann::json* const function = Find(key);
    if (function == nullptr || *function == kSoftmax) return false;
    if (*function == kSigmoid) return true;
    return Refused(file_, key, PrintableValue(*function), "1 (softmax), 2 (sigmoid)");
  }

  // A number that there has to be.
  absl::StatusOr<int64_t> Count(absl::string_view key) const {
    const nlohmann::json* const value = Find(absl::StrCat(prefix_, key));
    // Below what any model has, so that differences cannot overflow.
    if (value != nullptr && value->is_number_integer() && *value >= 0 && *value <= kMostCount) {
      return value->get<int64_t>();
    }
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": key ", prefix_, key, ": found ",
                                                   value == nullptr ? "nothing" : PrintableValue(*value),
                                                   ", expected a number from 0 to ", kMostCount));
  }
  bool Has(absl::string_view key) const { return Find(absl::StrCat(prefix_, key)) != nullptr; }

  absl::StatusOr<ModelConfig> ReadOf(const GgufArchitecture& architecture) {
    prefix_ = absl::StrCat(architecture.name, ".");
    TANDEM_RETURN_IF_ERROR(CheckRequired(architecture));
    config_["architectures"] = {std::string(architecture.model)};
    config_["model_type"] = std::string(architecture.model_type);
    Copy("embedding_length", "hidden_size");
    Copy("block_count", "num_hidden_layers");
    Copy("feed_forward_length", "intermediate_size");
    Copy("attention.head_count", "num_attention_heads");
    // Absent, there are as many as heads.
    config_["num_key_value_heads"] = nullptr;
    Copy("attention.head_count_kv", "num_key_value_heads");
    Copy("attention.key_length", "head_dim");
    Copy("attention.layer_norm_rms_epsilon", "rms_norm_eps");
    Copy("context_length", "max_position_embeddings");
    Copy("rope.freq_base", "rope_theta");
    config_["sliding_window"] = nullptr;
    const bool is_deepseek = architecture.name == kDeepSeek;
    if (is_deepseek) {
      TANDEM_RETURN_IF_ERROR(ReadLatent());
      ReadDeepSeekExperts(architecture);
    } else if (architecture.has_experts) {
      ReadExperts(architecture);
    }
    if (architecture.model_type == "llama") {
      config_["attention_bias"] = file_.Find("blk.0.attn_q.bias") != nullptr;
      config_["mlp_bias"] = file_.Find("blk.0.ffn_gate.bias") != nullptr;
    }
    config_["tie_word_embeddings"] = file_.Find("output.weight") == nullptr;
    const GgufTensor* const embedding = file_.Find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": tensor \"token_embd.weight\": expected a matrix of that name"));
    }
    config_["vocab_size"] = embedding->shape[0];
    TANDEM_RETURN_IF_ERROR(ReadEnds());
    TANDEM_RETURN_IF_ERROR(RefuseOthers(is_deepseek));
    TANDEM_RETURN_IF_ERROR(ReadScaling(is_deepseek));
    // Qwen3's heads are not hidden_size / heads wide unless the file says nothing of them.
    if (!is_deepseek && !config_.contains("head_dim") && HasInt("hidden_size") &&
        HasInt("num_attention_heads")) {
      const auto heads = config_["num_attention_heads"].get<int64_t>();
      if (heads > 0) config_["head_dim"] = config_["hidden_size"].get<int64_t>() / heads;
    }
    // Every string in it is ours or a number's, so that nothing can be malformed.
    const std::string text = config_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    TANDEM_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, file_.path()));
    if (!is_deepseek && config.head_dim != RotaryNumbers(config)) {
      return Refused(file_, absl::StrCat(prefix_, "rope.dimension_count"),
                     absl::StrCat(RotaryNumbers(config)), "all numbers of a head");
    }
    TANDEM_RETURN_IF_ERROR(CheckFactors(config));
    return config;
  }

  // The keys without which llama.cpp refuses a file too. What is not here has a value that the format's
  // authors take for an absent key: as many heads of keys and values as heads, heads of embedding_length /
  // head_count numbers, a base of positions of 10000.
  absl::Status CheckRequired(const GgufArchitecture& architecture) const {
    std::vector<absl::string_view> required = {"context_length", "embedding_length", "block_count",
                                               "attention.head_count", "attention.layer_norm_rms_epsilon"};
    if (architecture.has_experts) required.push_back("expert_used_count");
    if (architecture.name == kDeepSeek) {
      for (const char* key : {"leading_dense_block_count", "expert_feed_forward_length",
                              "expert_shared_count", "attention.kv_lora_rank", "rope.dimension_count"}) {
        required.push_back(key);
      }
    } else if (!architecture.has_experts) {
      required.push_back("feed_forward_length");
    }
    for (const absl::string_view key : required) {
      const nlohmann::json* const value = Find(absl::StrCat(prefix_, key));
      if (value != nullptr && value->is_number()) continue;
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": key ", prefix_, key, ": found ",
                                                     value == nullptr ? "nothing" : PrintableValue(*value),
                                                     ", expected a number"));
    }
    return absl::OkStatus();
  }

  void ReadExperts(const GgufArchitecture& architecture) {
    Copy("expert_count", "num_local_experts");
    Copy("expert_used_count", "num_experts_per_tok");
    Copy("expert_feed_forward_length", "moe_intermediate_size");
    Copy("expert_shared_feed_forward_length", "shared_expert_intermediate_size");
    // Of dense layers, of which such files have none.
    if (!config_.contains("intermediate_size")) {
      Copy("expert_feed_forward_length", "intermediate_size");
    }
    // No key says it: the format's authors fix it for each architecture.
    config_["norm_topk_prob"] = architecture.model_type == "qwen3_moe";
  }

  // Latent attention. Newer files say the sizes of heads in the keys that end in _mla, and in the older ones
  // those of what is kept of a token.
  absl::Status ReadLatent() {
    TANDEM_ASSIGN_OR_RETURN(const int64_t heads, Count("attention.head_count"));
    if (Has("attention.head_count_kv")) {
      TANDEM_ASSIGN_OR_RETURN(const int64_t kv_heads, Count("attention.head_count_kv"));
      if (kv_heads != heads && kv_heads != 1) {
        return Refused(file_, absl::StrCat(prefix_, "attention.head_count_kv"), absl::StrCat(kv_heads),
                       absl::StrCat("1, or attention.head_count, which is ", heads));
      }
    }
    const bool is_newer = Has("attention.key_length_mla");
    TANDEM_ASSIGN_OR_RETURN(const int64_t keys,
                            Count(is_newer ? "attention.key_length_mla" : "attention.key_length"));
    TANDEM_ASSIGN_OR_RETURN(const int64_t values,
                            Count(is_newer ? "attention.value_length_mla" : "attention.value_length"));
    TANDEM_ASSIGN_OR_RETURN(const int64_t turned, Count("rope.dimension_count"));
    TANDEM_ASSIGN_OR_RETURN(config_["kv_lora_rank"], Count("attention.kv_lora_rank"));
    config_["q_lora_rank"] = nullptr;
    if (Has("attention.q_lora_rank")) {
      TANDEM_ASSIGN_OR_RETURN(config_["q_lora_rank"], Count("attention.q_lora_rank"));
    }
    config_.erase("head_dim");
    config_["num_key_value_heads"] = heads;
    config_["qk_rope_head_dim"] = turned;
    config_["qk_nope_head_dim"] = keys - turned;
    config_["v_head_dim"] = values;
    return absl::OkStatus();
  }

  void ReadDeepSeekExperts(const GgufArchitecture& architecture) {
    const bool is_v3 = architecture.model_type == "deepseek_v3";
    // What a file does not say is what the format's authors take it for.
    config_["n_shared_experts"] = nullptr;
    config_["first_k_dense_replace"] = 0;
    config_["routed_scaling_factor"] = 1.0;
    config_["norm_topk_prob"] = false;
    config_["n_group"] = 1;
    config_["topk_group"] = 1;
    Copy("expert_count", "n_routed_experts");
    Copy("expert_used_count", "num_experts_per_tok");
    Copy("expert_feed_forward_length", "moe_intermediate_size");
    Copy("expert_shared_count", "n_shared_experts");
    Copy("leading_dense_block_count", "first_k_dense_replace");
    Copy("expert_weights_scale", "routed_scaling_factor");
    Copy("expert_weights_norm", "norm_topk_prob");
    Copy("expert_group_count", "n_group");
    Copy("expert_group_used_count", "topk_group");
    // 0 says nothing either.
    if (config_["n_shared_experts"] == 0) config_["n_shared_experts"] = nullptr;
    for (const char* field : {"routed_scaling_factor", "n_group", "topk_group"}) {
      if (config_[field] == 0) config_[field] = 1;
    }
    if (!config_.contains("intermediate_size"))
      config_["intermediate_size"] = config_["moe_intermediate_size"];
    if (is_v3) {
      config_["topk_method"] = "noaux_tc";
    } else {
      config_["topk_method"] = config_["n_group"] == 1 ? "greedy" : "group_limited_greedy";
    }
  }

  bool HasInt(const char* field) const {
    return config_.contains(field) && config_[field].is_number_integer();
  }

  int64_t RotaryNumbers(const ModelConfig& config) const {
    const nlohmann::json* const count = Find(absl::StrCat(prefix_, "rope.dimension_count"));
    return count != nullptr && count->is_number_integer() ? count->get<int64_t>() : config.head_dim;
  }

  absl::Status ReadEnds() {
    nlohmann::json ends = nlohmann::json::array();
    for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
      const nlohmann::json* const id = Find(key);
      if (id == nullptr) continue;
      if (!id->is_number_integer()) {
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": key ", key, ": expected a token's id"));
      }
      if (std::find(ends.begin(), ends.end(), *id) == ends.end()) ends.push_back(*id);
    }
    if (!ends.empty()) config_["eos_token_id"] = ends;
    return absl::OkStatus();
  }

  // What would change the result and is not described by config.json's fields above.
  absl::Status RefuseOthers(bool is_deepseek) const {
    for (absl::string_view key :
         {"expert_weights_scale", "expert_group_count", "attention.sliding_window",
          "attention.temperature_scale", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
          "embedding_scale", "residual_scale", "attention.scale"}) {
      const nlohmann::json* const value = Find(absl::StrCat(prefix_, key));
      if (value == nullptr || *value == 0 || (is_deepseek && absl::StartsWith(key, "expert_"))) continue;
      return Refused(file_, absl::StrCat(prefix_, key), PrintableValue(*value), "none");
    }
    const nlohmann::json* const values = Find(absl::StrCat(prefix_, "attention.value_length"));
    const nlohmann::json* const keys = Find(absl::StrCat(prefix_, "attention.key_length"));
    if (!is_deepseek && values != nullptr && keys != nullptr && *values != *keys) {
      return Refused(file_, absl::StrCat(prefix_, "attention.value_length"), PrintableValue(*values),
                     "that of attention.key_length");
    }
    if (Find("split.count") != nullptr && *Find("split.count") > 1) {
      return Refused(file_, "split.count", PrintableValue(*Find("split.count")), "one file");
    }
    return absl::OkStatus();
  }

  absl::Status ReadScaling(bool is_deepseek) {
    const std::string key = absl::StrCat(prefix_, "rope.scaling.type");
    const std::string type = Text(key).value_or("none");
    nlohmann::json scaling;
    if (type == "linear" || type == "yarn") {
      scaling["rope_type"] = type;
      for (const auto& [name, field] :
           {std::pair("factor", "factor"),
            std::pair("original_context_length", "original_max_position_embeddings")}) {
        if (const nlohmann::json* value = Find(absl::StrCat(prefix_, "rope.scaling.", name)))
          scaling[field] = *value;
      }
      if (is_deepseek) TANDEM_RETURN_IF_ERROR(ReadMagnitude(&scaling));
      config_["rope_scaling"] = scaling;
      return absl::OkStatus();
    }
    if (type != "none") return Refused(file_, key, PrintableText(type), "none, linear, yarn");
    // Llama 3's is in the file as what it makes of each frequency.
    if (const GgufTensor* const factors = file_.Find(kGgufRopeFactors)) {
      if (factors->type != GgufType::kF32 || factors->shape.size() != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": tensor \"", kGgufRopeFactors, "\": expected a vector of F32"));
      }
      std::vector<float> values(static_cast<size_t>(factors->shape[0]));
      std::memcpy(values.data(), factors->bytes.data(), factors->bytes.size());
      const float most = *std::max_element(values.begin(), values.end());
      if (!(most >= 1 && most <= 1e6f)) {
        return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor \"", kGgufRopeFactors,
                                                       "\": expected factors of 1 to 1000000"));
      }
      config_["rope_scaling"] = {{"rope_type", "llama3"},
                                 {"factor", most},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 8192}};
    }
    return absl::OkStatus();
  }

  // DeepSeek's yarn: scores grow with the stretch as config.json's mscale_all_dim says, a tenth of which the
  // file has, and turned numbers do not, since mscale is the same.
  absl::Status ReadMagnitude(nlohmann::json* scaling) const {
    (*scaling)["attention_factor"] = 1.0;
    const std::string key = absl::StrCat(prefix_, "rope.scaling.yarn_log_multiplier");
    const nlohmann::json* const tenth = Find(key);
    if (tenth == nullptr) return absl::OkStatus();
    if (!tenth->is_number() || !(*tenth >= 0 && *tenth <= 100)) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": key ", key, ": found ",
                                                     PrintableValue(*tenth),
                                                     ", expected a number from 0 to 100"));
    }
    // The number that somebody wrote in decimals, and a float32 holds nearly.
    (*scaling)["mscale_all_dim"] = std::round(tenth->get<double>() * 1e7) / 1e6;
    return absl::OkStatus();
  }

  // Whether the factors are those of Llama 3's scaling, whose other settings no key holds.
  absl::Status CheckFactors(const ModelConfig& config) const {
    const GgufTensor* const factors = file_.Find(kGgufRopeFactors);
    if (factors == nullptr || config.rope_scaling.kind != RopeScaling::Kind::kLlama3) return absl::OkStatus();
    const RopeScaling& scaling = config.rope_scaling;
    const int64_t half = config.head_dim / 2;
    bool same = factors->shape[0] == half;
    for (int64_t i = 0; same && i < half; ++i) {
      float found;
      std::memcpy(&found, factors->bytes.data() + i * static_cast<int64_t>(sizeof(float)), sizeof(found));
      const double wavelength =
          2 * M_PI * std::pow(config.rope_theta, 2.0 * static_cast<double>(i) / config.head_dim);
      const double share = (scaling.original_context / wavelength - scaling.low_frequency_factor) /
                           (scaling.high_frequency_factor - scaling.low_frequency_factor);
      const double kept = std::clamp(share, 0.0, 1.0);
      const double expected = 1 / ((1 - kept) / scaling.factor + kept);
      same = std::abs(found - expected) <= 1e-3 * expected;
    }
    if (same) return absl::OkStatus();
    return Refused(file_, kGgufRopeFactors, "other factors",
                   "those of Llama 3's scaling of a context of 8192 (low_freq_factor 1, high_freq_factor 4)");
  }

  const GgufFile& file_;
  std::string prefix_;
  nlohmann::json config_ = nlohmann::json::object();
};

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file) {
  return ConfigReader(file).Read();
}

absl::StatusOr<ModelConfig> ReadGgufConfig(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  return ReadGgufConfig(file);
}

bool HasPairedRows(const ModelConfig& config) {
  for (const GgufArchitecture& architecture : kGgufArchitectures) {
    if (architecture.model == config.architecture) return architecture.permuted;
  }
  return false;
}

}  // namespace tandem

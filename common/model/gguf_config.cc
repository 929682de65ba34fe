#include "common/model/gguf_config.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config/strict_json.h"
#include "common/model/gguf_architecture.h"
#include "common/model/gguf_rotary.h"

namespace tandem {
namespace {

constexpr char kDeepSeek[] = "deepseek2";
constexpr int64_t kMostCount = 1 << 24;
// Layers for which lists are made: more than any model has.
constexpr int64_t kMostListedLayers = 4096;
constexpr GgufKeyField kKeys[] = {{"embedding_length", "hidden_size"},
                                  {"block_count", "num_hidden_layers"},
                                  {"feed_forward_length", "intermediate_size"},
                                  {"attention.head_count", "num_attention_heads"},
                                  {"attention.head_count_kv", "num_key_value_heads"},
                                  {"attention.key_length", "head_dim"},
                                  {"context_length", "max_position_embeddings"},
                                  {"rope.freq_base", "rope_theta"}};
constexpr absl::string_view kRequiredKeys[] = {"context_length", "embedding_length", "block_count",
                                               "attention.head_count"};
constexpr char kRmsEpsilonKey[] = "attention.layer_norm_rms_epsilon";
constexpr char kLayerEpsilonKey[] = "attention.layer_norm_epsilon";
// What would change the result, where the architecture's table does not read it.
constexpr absl::string_view kRefusedKeys[] = {"expert_weights_scale",
                                              "expert_group_count",
                                              "attention.sliding_window",
                                              "attn_logit_softcapping",
                                              "final_logit_softcapping",
                                              "attention.temperature_scale",
                                              "logit_scale",
                                              "embedding_scale",
                                              "residual_scale",
                                              "attention.scale",
                                              "attention.clamp_kqv",
                                              "attention.max_alibi_bias"};
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
    for (const GgufArchitecture& candidate : GgufArchitectures()) {
      if (candidate.name != name || candidate.has_experts != has_experts) continue;
      if (name != kDeepSeek) return ReadOf(candidate);
      TANDEM_ASSIGN_OR_RETURN(const bool is_v3, IsDeepSeekV3());
      if (is_v3 == (candidate.model_type == "deepseek_v3")) return ReadOf(candidate);
    }
    for (const GgufArchitecture& candidate : GgufArchitectures()) {
      if (candidate.name != name) continue;
      return Refused(file_, absl::StrCat(name, ".expert_count"),
                     count == nullptr ? "nothing" : PrintableValue(*count),
                     candidate.has_experts ? "a number from 1 on" : "none");
    }
    return Refused(file_, "general.architecture", PrintableText(name), GgufArchitectureNames());
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

  absl::Status ExpectKeys(const GgufArchitecture& architecture) const {
    std::vector<absl::string_view> required(std::begin(kRequiredKeys), std::end(kRequiredKeys));
    const bool is_rms = absl::string_view(architecture.epsilon) == kRmsEpsilonField;
    required.push_back(is_rms ? kRmsEpsilonKey : kLayerEpsilonKey);
    required.push_back(architecture.has_experts ? "expert_used_count" : "feed_forward_length");
    required.insert(required.end(), architecture.required.begin(), architecture.required.end());
    for (const absl::string_view key : required) {
      // Some are lists with a number for each layer.
      const nlohmann::json* const value = Find(absl::StrCat(prefix_, key));
      if (value != nullptr && (value->is_number() || value->is_boolean() || value->is_array())) continue;
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": key ", prefix_, key, ": found ",
                                                     value == nullptr ? "nothing" : PrintableValue(*value),
                                                     ", expected a number, as an architecture ",
                                                     architecture.name, " has"));
    }
    return absl::OkStatus();
  }

  // By the first layer's tensors.
  void ReadBiases() {
    const auto has = [this](const char* name) { return file_.Find(name) != nullptr; };
    const bool attention = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
    config_["attention_bias"] = attention;
    config_["use_bias"] = attention;
    config_["mlp_bias"] = has("blk.0.ffn_gate.bias") || has("blk.0.ffn_up.bias");
  }

  absl::StatusOr<ModelConfig> ReadOf(const GgufArchitecture& architecture) {
    prefix_ = absl::StrCat(architecture.name, ".");
    TANDEM_RETURN_IF_ERROR(ExpectKeys(architecture));
    config_["architectures"] = {std::string(architecture.model)};
    config_["model_type"] = std::string(architecture.model_type);
    // Absent, there are as many as heads.
    config_["num_key_value_heads"] = nullptr;
    for (const GgufKeyField& key : kKeys) Copy(key.key, key.field);
    for (const GgufKeyField& key : architecture.keys) Copy(key.key, key.field);
    const bool is_rms = absl::string_view(architecture.epsilon) == kRmsEpsilonField;
    Copy(is_rms ? kRmsEpsilonKey : kLayerEpsilonKey, architecture.epsilon);
    ReadBiases();
    const bool is_deepseek = architecture.name == kDeepSeek;
    if (is_deepseek) {
      TANDEM_RETURN_IF_ERROR(ReadLatent());
      ReadDeepSeekExperts(architecture);
    } else if (architecture.has_experts) {
      ReadExperts(architecture);
    }
    TANDEM_RETURN_IF_ERROR(ReadWindows(architecture));
    TANDEM_RETURN_IF_ERROR(ReadRotary(architecture));
    config_["tie_word_embeddings"] = file_.Find("output.weight") == nullptr;
    const GgufTensor* const embedding = file_.Find("token_embd.weight");
    if (embedding == nullptr || embedding->shape.size() != 2) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_.path(), ": tensor \"token_embd.weight\": expected a matrix of that name"));
    }
    config_["vocab_size"] = embedding->shape[0];
    TANDEM_RETURN_IF_ERROR(ReadEnds());
    TANDEM_RETURN_IF_ERROR(RefuseOthers(architecture));
    // Every string in it is ours or a number's, so that nothing can be malformed.
    const std::string text = config_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    TANDEM_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, file_.path()));
    if (!is_deepseek && config.rotary_dim() != RotaryNumbers(config.rotary_dim())) {
      return Refused(file_, absl::StrCat(prefix_, "rope.dimension_count"),
                     absl::StrCat(RotaryNumbers(config.rotary_dim())), "all numbers of a head");
    }
    TANDEM_RETURN_IF_ERROR(UseGgufRopeFactors(file_, &config));
    // Files hold norms' weights with what a family adds to them.
    config.block.norm_weight_offset = 0.0f;
    return config;
  }

  // Layers with a window, and those without.
  absl::Status ReadWindows(const GgufArchitecture& architecture) {
    const std::string key = absl::StrCat(prefix_, "attention.sliding_window");
    const nlohmann::json* const window = Find(key);
    const bool has_window = window != nullptr && *window != 0;
    if (architecture.window_every == 0 || (!has_window && architecture.windows_vary)) {
      config_["sliding_window"] = nullptr;
    } else if (window != nullptr) {
      config_["sliding_window"] = *window;
    }
    if (architecture.window_every < 2) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(const int64_t layers, Count("block_count"));
    if (layers > kMostListedLayers) return absl::OkStatus();  // Which is refused.
    const nlohmann::json* const pattern = Find(key + "_pattern");
    const bool is_list = pattern != nullptr && pattern->is_array();
    if (is_list ? static_cast<int64_t>(pattern->size()) != layers ||
                      !std::all_of(pattern->begin(), pattern->end(),
                                   [](const nlohmann::json& slides) { return slides.is_boolean(); })
                : pattern != nullptr && (!pattern->is_number_unsigned() || *pattern == 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": key ", key, "_pattern: expected a number of layers, one of which has ",
          "no window, or a list of ", layers, " booleans"));
    }
    const uint64_t every = pattern != nullptr && !is_list ? pattern->get<uint64_t>()
                                                          : static_cast<uint64_t>(architecture.window_every);
    nlohmann::json types = nlohmann::json::array();
    for (uint64_t i = 0; i < static_cast<uint64_t>(layers); ++i) {
      const bool slides = is_list ? (*pattern)[i].get<bool>() : (i + 1) % every != 0;
      const bool has_none = !has_window && architecture.windows_vary;
      types.push_back(slides && !has_none ? "sliding_attention" : "full_attention");
    }
    config_["layer_types"] = std::move(types);
    return absl::OkStatus();
  }

  // Scores' scale, heads' width, and how positions turn them.
  absl::Status ReadRotary(const GgufArchitecture& architecture) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t hidden, Count("embedding_length"));
    TANDEM_ASSIGN_OR_RETURN(const int64_t layers, Count("block_count"));
    if (architecture.name != kDeepSeek) {
      TANDEM_ASSIGN_OR_RETURN(const int64_t heads, Count("attention.head_count"));
      int64_t head_dim = heads > 0 ? hidden / heads : 0;
      if (Has("attention.key_length")) {
        TANDEM_ASSIGN_OR_RETURN(head_dim, Count("attention.key_length"));
      } else {
        // Not in every family heads are so wide where nothing says so.
        config_["head_dim"] = head_dim;
      }
      if (architecture.layers_scaled_by_hidden != 0) {
        const bool by_hidden = layers == architecture.layers_scaled_by_hidden && heads > 0;
        config_["query_pre_attn_scalar"] = by_hidden
                                               ? static_cast<double>(hidden) / static_cast<double>(heads)
                                               : static_cast<double>(head_dim);
      }
      if (architecture.rotary_share != nullptr && Has("rope.dimension_count") && head_dim > 0) {
        TANDEM_ASSIGN_OR_RETURN(const int64_t turned, Count("rope.dimension_count"));
        // A little more, since the family rounds down; not more than all.
        const double share = (static_cast<double>(turned) + 0.25) / static_cast<double>(head_dim);
        config_[architecture.rotary_share] = turned == head_dim ? 1.0 : share;
      } else if (architecture.rotary_share != nullptr) {
        config_[architecture.rotary_share] = 1.0;
      }
    }
    TANDEM_ASSIGN_OR_RETURN(nlohmann::json scaling, ReadGgufRopeScaling(file_, prefix_));
    // gpt-oss expects one.
    if (scaling.is_null() && architecture.model_type == "gpt_oss") scaling = {{"rope_type", "default"}};
    if (!scaling.is_null()) config_["rope_scaling"] = std::move(scaling);
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
    // gpt-oss says the size of experts so.
    if (architecture.model_type == "gpt_oss") Copy("expert_feed_forward_length", "intermediate_size");
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

  int64_t RotaryNumbers(int64_t if_absent) const {
    const nlohmann::json* const count = Find(absl::StrCat(prefix_, "rope.dimension_count"));
    return count != nullptr && count->is_number_integer() ? count->get<int64_t>() : if_absent;
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

  // Whether ReadOf has read a key that others are refused for.
  static bool IsRead(const GgufArchitecture& architecture, absl::string_view key) {
    if (architecture.name == kDeepSeek && absl::StartsWith(key, "expert_")) return true;
    if (architecture.window_every > 0 && key == "attention.sliding_window") return true;
    return std::any_of(architecture.keys.begin(), architecture.keys.end(),
                       [key](const GgufKeyField& read) { return read.key == key; });
  }

  absl::Status RefuseOthers(const GgufArchitecture& architecture) const {
    for (const absl::string_view key : kRefusedKeys) {
      const nlohmann::json* const value = Find(absl::StrCat(prefix_, key));
      if (value == nullptr || *value == 0 || IsRead(architecture, key)) continue;
      return Refused(file_, absl::StrCat(prefix_, key), PrintableValue(*value), "none");
    }
    const nlohmann::json* const local = Find(absl::StrCat(prefix_, "rope.freq_base_swa"));
    const nlohmann::json* const base = Find(absl::StrCat(prefix_, "rope.freq_base"));
    if (local != nullptr && !IsRead(architecture, "rope.freq_base_swa") &&
        (base == nullptr || *local != *base)) {
      return Refused(file_, absl::StrCat(prefix_, "rope.freq_base_swa"), PrintableValue(*local),
                     "that of rope.freq_base");
    }
    const nlohmann::json* const values = Find(absl::StrCat(prefix_, "attention.value_length"));
    const nlohmann::json* const keys = Find(absl::StrCat(prefix_, "attention.key_length"));
    if (architecture.name != kDeepSeek && values != nullptr && keys != nullptr && *values != *keys) {
      return Refused(file_, absl::StrCat(prefix_, "attention.value_length"), PrintableValue(*values),
                     "that of attention.key_length");
    }
    return absl::OkStatus();
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

}  // namespace tandem

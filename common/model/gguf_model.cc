#include "common/model/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "common/base/mapped_pages.h"
#include "common/base/status_macros.h"
#include "common/model/gguf_dequantize.h"
#include "common/model/quantized_blocks.h"
#include "common/model/strict_json.h"
#include "common/model/tensor_convert.h"

namespace tandem {
namespace {

constexpr char kRopeFactors[] = "rope_freqs.weight";

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
};

// Names in a folder and in a file; those of a layer stand behind "model.layers.N." and "blk.N.".
struct NamePair {
  absl::string_view folder;
  absl::string_view file;
};
constexpr NamePair kOuterNames[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"}, {"lm_head", "output"}};
constexpr NamePair kLayerNames[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
};
// Of an expert, behind "mlp.experts.N." or, Mixtral's, "block_sparse_moe.experts.N."; in a file, the matrices
// of all experts are one tensor.
constexpr NamePair kExpertNames[] = {
    {"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"}, {"down_proj", "ffn_down_exps"},
    {"w1", "ffn_gate_exps"},        {"w3", "ffn_up_exps"},      {"w2", "ffn_down_exps"},
};

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
      if (candidate.name == name && candidate.has_experts == has_experts) return ReadOf(candidate);
    }
    for (const GgufArchitecture& candidate : kGgufArchitectures) {
      if (candidate.name != name) continue;
      return Refused(file_, absl::StrCat(name, ".expert_count"),
                     count == nullptr ? "nothing" : PrintableValue(*count),
                     candidate.has_experts ? "a number from 1 on" : "none");
    }
    return Refused(file_, "general.architecture", PrintableText(name),
                   "llama, mistral, qwen2, qwen3, qwen2moe, qwen3moe");
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

  absl::StatusOr<ModelConfig> ReadOf(const GgufArchitecture& architecture) {
    prefix_ = absl::StrCat(architecture.name, ".");
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
    if (architecture.has_experts) ReadExperts(architecture);
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
    TANDEM_RETURN_IF_ERROR(RefuseOthers());
    TANDEM_RETURN_IF_ERROR(ReadScaling());
    // Qwen3's heads are not hidden_size / heads wide unless the file says nothing of them.
    if (!config_.contains("head_dim") && HasInt("hidden_size") && HasInt("num_attention_heads")) {
      const auto heads = config_["num_attention_heads"].get<int64_t>();
      if (heads > 0) config_["head_dim"] = config_["hidden_size"].get<int64_t>() / heads;
    }
    // Every string in it is ours or a number's, so that nothing can be malformed.
    const std::string text = config_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    TANDEM_ASSIGN_OR_RETURN(ModelConfig config, ParseModelConfig(text, file_.path()));
    if (config.head_dim != RotaryNumbers(config)) {
      return Refused(file_, absl::StrCat(prefix_, "rope.dimension_count"),
                     absl::StrCat(RotaryNumbers(config)), "all numbers of a head");
    }
    TANDEM_RETURN_IF_ERROR(CheckFactors(config));
    return config;
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
  absl::Status RefuseOthers() const {
    for (absl::string_view key :
         {"expert_weights_scale", "expert_group_count", "attention.sliding_window",
          "attention.temperature_scale", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
          "embedding_scale", "residual_scale", "attention.scale"}) {
      const nlohmann::json* const value = Find(absl::StrCat(prefix_, key));
      if (value == nullptr || *value == 0) continue;
      return Refused(file_, absl::StrCat(prefix_, key), PrintableValue(*value), "none");
    }
    const nlohmann::json* const values = Find(absl::StrCat(prefix_, "attention.value_length"));
    const nlohmann::json* const keys = Find(absl::StrCat(prefix_, "attention.key_length"));
    if (values != nullptr && keys != nullptr && *values != *keys) {
      return Refused(file_, absl::StrCat(prefix_, "attention.value_length"), PrintableValue(*values),
                     "that of attention.key_length");
    }
    if (Find("split.count") != nullptr && *Find("split.count") > 1) {
      return Refused(file_, "split.count", PrintableValue(*Find("split.count")), "one file");
    }
    return absl::OkStatus();
  }

  absl::Status ReadScaling() {
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
      config_["rope_scaling"] = scaling;
      return absl::OkStatus();
    }
    if (type != "none") return Refused(file_, key, PrintableText(type), "none, linear, yarn");
    // Llama 3's is in the file as what it makes of each frequency.
    if (const GgufTensor* const factors = file_.Find(kRopeFactors)) {
      if (factors->type != GgufType::kF32 || factors->shape.size() != 1) {
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": tensor \"", kRopeFactors, "\": expected a vector of F32"));
      }
      std::vector<float> values(static_cast<size_t>(factors->shape[0]));
      std::memcpy(values.data(), factors->bytes.data(), factors->bytes.size());
      const float most = *std::max_element(values.begin(), values.end());
      if (!(most >= 1 && most <= 1e6f)) {
        return absl::InvalidArgumentError(
            absl::StrCat(file_.path(), ": tensor \"", kRopeFactors, "\": expected factors of 1 to 1000000"));
      }
      config_["rope_scaling"] = {{"rope_type", "llama3"},
                                 {"factor", most},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 8192}};
    }
    return absl::OkStatus();
  }

  // Whether the factors are those of Llama 3's scaling, whose other settings no key holds.
  absl::Status CheckFactors(const ModelConfig& config) const {
    const GgufTensor* const factors = file_.Find(kRopeFactors);
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
    return Refused(file_, kRopeFactors, "other factors",
                   "those of Llama 3's scaling of a context of 8192 (low_freq_factor 1, high_freq_factor 4)");
  }

  const GgufFile& file_;
  std::string prefix_;
  nlohmann::json config_ = nlohmann::json::object();
};

// "model.layers.3.mlp.up_proj.weight" as "blk.3.ffn_up.weight".
std::optional<std::string> FileName(absl::string_view name) {
  for (absl::string_view kind : {".weight", ".bias"}) {
    absl::string_view stem = name;
    if (!absl::ConsumeSuffix(&stem, kind)) continue;
    for (const NamePair& pair : kOuterNames) {
      if (pair.folder == stem) return absl::StrCat(pair.file, kind);
    }
    if (!absl::ConsumePrefix(&stem, "model.layers.")) return std::nullopt;
    const size_t dot = stem.find('.');
    if (dot == absl::string_view::npos) return std::nullopt;
    for (const NamePair& pair : kLayerNames) {
      if (pair.folder == stem.substr(dot + 1))
        return absl::StrCat("blk.", stem.substr(0, dot), ".", pair.file, kind);
    }
  }
  return std::nullopt;
}

// The tensor that holds an expert's matrix with those of all others, and which of them it is.
struct ExpertPlace {
  std::string file_name;
  int64_t expert = 0;
};
std::optional<ExpertPlace> FindExpert(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "model.layers.") || !absl::ConsumeSuffix(&name, ".weight")) {
    return std::nullopt;
  }
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '.');
  // LAYER.mlp.experts.EXPERT.gate_proj
  ExpertPlace place;
  if (parts.size() != 5 || parts[2] != "experts" || !absl::SimpleAtoi(parts[3], &place.expert)) {
    return std::nullopt;
  }
  for (const NamePair& pair : kExpertNames) {
    if (pair.folder != parts[4]) continue;
    place.file_name = absl::StrCat("blk.", parts[0], ".", pair.file, ".weight");
    return place;
  }
  return std::nullopt;
}

class GgufTensors final : public TensorSource {
 public:
  GgufTensors(GgufFile file, const ModelConfig& config)
      : file_(std::move(file)), head_dim_(config.head_dim), num_experts_(config.block.experts.num_experts) {
    for (const GgufArchitecture& architecture : kGgufArchitectures) {
      if (architecture.model == config.architecture) permuted_ = architecture.permuted;
    }
  }

  bool Contains(const std::string& name) const override { return Find(name) != nullptr; }

  absl::StatusOr<TensorView> Take(const std::string& name, const std::vector<int64_t>& shape) override {
    if (const std::optional<ExpertPlace> place = FindExpert(name)) return TakeExpert(*place, shape);
    const GgufTensor* const found = Find(name);
    const std::string file_name = FileName(name).value_or(name);
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_.path(), ": tensor \"", file_name, "\" is missing, expected with shape ", ShapeText(shape)));
    }
    // A matrix of one output, a shared expert's gate, may be a vector in the file.
    const bool is_vector =
        shape.size() == 2 && shape[0] == 1 && found->shape == std::vector<int64_t>{shape[1]};
    if (found->shape != shape && !is_vector) return WrongShape(file_name, *found, shape);
    taken_.insert(file_name);
    const bool reordered = permuted_ && (absl::StrContains(name, ".self_attn.q_proj.") ||
                                         absl::StrContains(name, ".self_attn.k_proj."));
    return View({.type = found->type, .shape = shape, .bytes = found->bytes}, reordered);
  }

  absl::StatusOr<std::vector<int64_t>> TakeIntegers(const std::string& name, int64_t count) override {
    return absl::InvalidArgumentError(
        absl::StrCat(file_.path(), ": tensor \"", name, "\" is missing, expected with ", count, " integers"));
  }

  absl::Status Finish(const std::string& architecture) override {
    for (const std::string& name : file_.names()) {
      if (taken_.contains(name) || name == kRopeFactors) continue;
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor \"", PrintableText(name),
                                                     "\": expected only the tensors of the ", architecture,
                                                     " that the file's keys describe"));
    }
    if (!quantized_.empty()) {
      LogInfo("quantised weights become those of --weight-dtype; auto: kept as they are",
              {{"file", file_.path()}, {"kept", absl::StrCat(quantized_.size())}});
    }
    return absl::OkStatus();
  }

  void Release(const TensorView& tensor) const override {
    if (tensor.dtype == TensorView::DType::kQuantized) return tensor.quantized->Release();
    // Only what the mapping holds can be read again.
    const auto* const begin = static_cast<const char*>(tensor.data);
    for (const auto& copy : copies_) {
      if (copy.get() == begin) return;
    }
    DropMappedPages(tensor.data, tensor.num_bytes());
  }

 private:
  absl::Status WrongShape(const std::string& file_name, const GgufTensor& found,
                          const std::vector<int64_t>& shape) const {
    return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor \"", file_name, "\": shape ",
                                                   ShapeText(found.shape), ", expected ", ShapeText(shape),
                                                   " as the file's keys say"));
  }

  absl::StatusOr<TensorView> TakeExpert(const ExpertPlace& place, const std::vector<int64_t>& shape) {
    const GgufTensor* const found = file_.Find(place.file_name);
    const std::vector<int64_t> whole = {num_experts_, shape.at(0), shape.at(1)};
    if (found == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(file_.path(), ": tensor \"", place.file_name,
                                                     "\" is missing, expected with shape ",
                                                     ShapeText(whole)));
    }
    if (found->shape != whole || place.expert >= num_experts_)
      return WrongShape(place.file_name, *found, whole);
    taken_.insert(place.file_name);
    // Rows are whole blocks, so matrices are too.
    const size_t size = found->bytes.size() / static_cast<size_t>(num_experts_);
    return View({.type = found->type,
                 .shape = shape,
                 .bytes = found->bytes.substr(static_cast<size_t>(place.expert) * size, size)},
                /*reordered=*/false);
  }

  // In the file, or where that is not how it lies there, a copy.
  absl::StatusOr<TensorView> View(const GgufTensor& tensor, bool reordered) {
    const std::optional<TensorView::DType> plain = PlainType(tensor.type);
    if (!plain.has_value() && tensor.shape.size() == 2) {
      const QuantizedBlocks& matrix =
          *quantized_.emplace_back(std::make_unique<QuantizedBlocks>(tensor, reordered ? head_dim_ : 0));
      TensorView view = {
          .dtype = TensorView::DType::kQuantized, .shape = tensor.shape, .data = matrix.codes()};
      view.quantized = &matrix;
      return view;
    }
    if (plain.has_value() && !reordered) {
      return TensorView{.dtype = *plain, .shape = tensor.shape, .data = tensor.bytes.data()};
    }
    return Copy(tensor, reordered);
  }

  const GgufTensor* Find(const std::string& name) const {
    const std::optional<std::string> file_name = FileName(name);
    return file_name.has_value() ? file_.Find(*file_name) : nullptr;
  }

  static std::optional<TensorView::DType> PlainType(GgufType type) {
    if (type == GgufType::kF32) return TensorView::DType::kF32;
    if (type == GgufType::kF16) return TensorView::DType::kF16;
    if (type == GgufType::kBF16) return TensorView::DType::kBF16;
    return std::nullopt;
  }

  // A copy in memory: rows in their order, a quantised vector as float32.
  absl::StatusOr<TensorView> Copy(const GgufTensor& tensor, bool reordered) {
    const std::optional<TensorView::DType> plain = PlainType(tensor.type);
    TensorView view{.dtype = plain.value_or(TensorView::DType::kF32), .shape = tensor.shape};
    std::unique_ptr<char[]> copy(new (std::nothrow) char[view.num_bytes()]);
    if (copy == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat(file_.path(), ": no memory for ", view.num_bytes(), " bytes of a tensor"));
    }
    const int64_t num_rows = tensor.shape[0];
    const auto from_bytes = static_cast<int64_t>(tensor.bytes.size()) / num_rows;
    const auto to_bytes = static_cast<int64_t>(view.num_bytes()) / num_rows;
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t from = reordered ? RowInPairs(row, head_dim_) : row;
      const absl::string_view bytes =
          tensor.bytes.substr(static_cast<size_t>(from * from_bytes), static_cast<size_t>(from_bytes));
      char* const to = copy.get() + row * to_bytes;
      if (plain.has_value()) {
        std::memcpy(to, bytes.data(), bytes.size());
      } else {
        DequantizeBlocks(
            tensor.type, bytes,
            absl::MakeSpan(reinterpret_cast<float*>(to), static_cast<size_t>(to_bytes) / sizeof(float)));
      }
    }
    view.data = copy.get();
    copies_.push_back(std::move(copy));
    return view;
  }

  GgufFile file_;
  int64_t head_dim_;
  int64_t num_experts_;
  bool permuted_ = false;
  absl::flat_hash_set<std::string> taken_;
  std::vector<std::unique_ptr<char[]>> copies_;
  std::vector<std::unique_ptr<const QuantizedBlocks>> quantized_;
};

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file) {
  return ConfigReader(file).Read();
}

absl::StatusOr<ModelConfig> ReadGgufConfig(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  return ReadGgufConfig(file);
}

std::unique_ptr<TensorSource> MakeGgufTensors(GgufFile file, const ModelConfig& config) {
  return std::make_unique<GgufTensors>(std::move(file), config);
}

}  // namespace tandem

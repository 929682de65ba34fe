#include "common/engine/cpu/testing/random_model.h"

#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/hash.h"
#include "common/base/temporary_folder.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// Collects tensors and writes them as one safetensors file.
class SafetensorsWriter {
 public:
  SafetensorsWriter(TensorView::DType dtype, uint64_t seed) : dtype_(dtype), seed_(seed) {}

  // The range for the next tensors.
  void set_dtype(TensorView::DType dtype) { dtype_ = dtype; }

  // Uniform in center +- spread.
  void Add(const std::string& name, const std::vector<int64_t>& shape, double center, double spread) {
    const size_t begin = data_.size();
    int64_t count = 1;
    for (int64_t size : shape) count *= size;
    for (int64_t i = 0; i < count; ++i) {
      const double uniform = static_cast<double>(Mix64(seed_++) >> 11) * 0x1.0p-52 - 1;
      Append(static_cast<float>(center + spread * uniform));
    }
    entries_.push_back(absl::StrCat("\"", name, "\":{\"dtype\":\"", TypeName(), "\",\"shape\":[",
                                    absl::StrJoin(shape, ","), "],\"data_offsets\":[", begin, ",",
                                    data_.size(), "]}"));
  }
  void AddMatrix(const std::string& name, int64_t outputs, int64_t depth) {
    Add(name, {outputs, depth}, 0, 2 / std::sqrt(static_cast<double>(depth)));
  }

  std::string Bytes() const {
    const std::string header = absl::StrCat("{", absl::StrJoin(entries_, ","), "}");
    const uint64_t size = header.size();
    return absl::StrCat(std::string(reinterpret_cast<const char*>(&size), sizeof(size)), header, data_);
  }

 private:
  const char* TypeName() const {
    return dtype_ == TensorView::DType::kF32 ? "F32" : dtype_ == TensorView::DType::kF16 ? "F16" : "BF16";
  }

  void Append(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (dtype_ == TensorView::DType::kF32) {
      data_.append(reinterpret_cast<const char*>(&bits), 4);
      return;
    }
    uint16_t half = static_cast<uint16_t>(bits >> 16);
    if (dtype_ == TensorView::DType::kF16) {
      // Truncated; below the smallest normal half, zero.
      const int exponent = static_cast<int>((bits >> 23) & 0xff) - 127 + 15;
      const uint32_t sign = (bits >> 16) & 0x8000;
      half = static_cast<uint16_t>(
          exponent <= 0 ? sign : sign | static_cast<uint32_t>(exponent) << 10 | ((bits >> 13) & 0x3ff));
    }
    data_.append(reinterpret_cast<const char*>(&half), 2);
  }

  TensorView::DType dtype_;
  uint64_t seed_;
  std::vector<std::string> entries_;
  std::string data_;
};

std::string ConfigJson(const ModelConfig& config) {
  const auto boolean = [](bool value) { return value ? "true" : "false"; };
  std::string model_type = "llama";
  if (config.architecture == "MistralForCausalLM") model_type = "mistral";
  if (config.architecture == "Qwen3ForCausalLM") model_type = "qwen3";
  std::string json = absl::StrCat(
      "{\"architectures\":[\"", config.architecture, "\"],\"model_type\":\"", model_type,
      "\",\"hidden_act\":\"silu\",\"hidden_size\":", config.hidden_size,
      ",\"intermediate_size\":", config.intermediate_size, ",\"num_hidden_layers\":", config.num_layers,
      ",\"num_attention_heads\":", config.num_heads, ",\"num_key_value_heads\":", config.num_kv_heads,
      ",\"head_dim\":", config.head_dim, ",\"vocab_size\":", config.vocab_size,
      ",\"max_position_embeddings\":", config.max_context, ",\"rms_norm_eps\":", config.rms_norm_epsilon,
      ",\"rope_theta\":", config.rope_theta, ",\"tie_word_embeddings\":", boolean(config.tied_embeddings));
  if (config.sliding_window.has_value())
    absl::StrAppend(&json, ",\"sliding_window\":", *config.sliding_window);
  if (model_type == "llama") {
    absl::StrAppend(&json, ",\"attention_bias\":", boolean(config.attention_bias),
                    ",\"mlp_bias\":", boolean(config.mlp_bias));
  }
  return absl::StrCat(json, "}");
}

void AddLayer(const RandomModelOptions& options, int32_t index, SafetensorsWriter* writer) {
  const ModelConfig& config = options.config;
  const std::string layer = absl::StrCat("model.layers.", index, ".");
  const std::string attention = absl::StrCat(layer, "self_attn.");
  const std::string mlp = absl::StrCat(layer, "mlp.");
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const auto add_norm = [&](const std::string& name, int64_t size) { writer->Add(name, {size}, 1, 0.5); };
  const auto add_projection = [&](const std::string& name, int64_t outputs, int64_t depth, bool bias) {
    writer->AddMatrix(absl::StrCat(name, ".weight"), outputs, depth);
    if (bias) writer->Add(absl::StrCat(name, ".bias"), {outputs}, 0, 0.5);
  };
  add_norm(absl::StrCat(layer, "input_layernorm.weight"), hidden);
  add_norm(absl::StrCat(layer, "post_attention_layernorm.weight"), hidden);
  add_projection(absl::StrCat(attention, "q_proj"), config.query_size(), hidden, config.attention_bias);
  add_projection(absl::StrCat(attention, "k_proj"), config.kv_size(), hidden, config.attention_bias);
  add_projection(absl::StrCat(attention, "v_proj"), config.kv_size(), hidden, config.attention_bias);
  add_projection(absl::StrCat(attention, "o_proj"), hidden, config.query_size(), config.attention_bias);
  if (config.qk_norm) {
    add_norm(absl::StrCat(attention, "q_norm.weight"), config.head_dim);
    add_norm(absl::StrCat(attention, "k_norm.weight"), config.head_dim);
  }
  writer->set_dtype(options.gate_dtype.value_or(options.dtype));
  add_projection(absl::StrCat(mlp, "gate_proj"), intermediate, hidden, config.mlp_bias);
  writer->set_dtype(options.dtype);
  add_projection(absl::StrCat(mlp, "up_proj"), intermediate, hidden, config.mlp_bias);
  add_projection(absl::StrCat(mlp, "down_proj"), hidden, intermediate, config.mlp_bias);
}

}  // namespace

std::shared_ptr<const Model> MakeRandomModel(const RandomModelOptions& options) {
  const ModelConfig& config = options.config;
  if (config.head.has_value()) {
    absl::StatusOr<std::shared_ptr<const Model>> head = Model::Random(config, options.seed);
    if (!head.ok()) ADD_FAILURE() << head.status();
    return head.ok() ? *std::move(head) : nullptr;
  }
  SafetensorsWriter writer(options.dtype, options.seed << 32);
  writer.Add("model.embed_tokens.weight", {config.vocab_size, config.hidden_size}, 0, 1);
  if (!config.tied_embeddings) writer.AddMatrix("lm_head.weight", config.vocab_size, config.hidden_size);
  writer.Add("model.norm.weight", {config.hidden_size}, 1, 0.5);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) AddLayer(options, layer, &writer);

  const TemporaryFolder folder;
  folder.Write("config.json", ConfigJson(config));
  folder.Write("model.safetensors", writer.Bytes());
  // The weights stay mapped.
  absl::StatusOr<std::shared_ptr<const Model>> model = Model::Load(folder.path());
  if (!model.ok()) {
    ADD_FAILURE() << model.status();
    return nullptr;
  }
  return *std::move(model);
}

}  // namespace tandem

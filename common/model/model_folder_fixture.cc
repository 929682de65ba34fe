#include "common/model/model_folder_fixture.h"

#include "absl/strings/str_cat.h"

namespace tandem {

std::string SafetensorsBytes(absl::string_view header, absl::string_view data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(header.size() >> (8 * i)));
  return absl::StrCat(bytes, header, data);
}

std::string SafetensorsBytes(const TensorShapes& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, shape] : tensors) {
    int64_t num_elements = 1;
    for (int64_t size : shape) num_elements *= size;
    const size_t begin = data.size();
    for (int64_t i = 0; i < num_elements; ++i) {
      data.push_back(static_cast<char>(i * 7 + begin));
      data.push_back(0x3f);  // Numbers around 1.
    }
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  return SafetensorsBytes(header.dump(), data);
}

nlohmann::json SmallConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 8},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"intermediate_size", 6},
          {"vocab_size", 10},
          {"max_position_embeddings", 64},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"rope_scaling", nullptr},
          {"tie_word_embeddings", false},
          {"eos_token_id", 2},
          {"hidden_act", "silu"}};
}

TensorShapes SmallTensors() {
  return {{"lm_head.weight", {10, 8}},
          {"model.embed_tokens.weight", {10, 8}},
          {"model.layers.0.input_layernorm.weight", {8}},
          {"model.layers.0.mlp.down_proj.weight", {8, 6}},
          {"model.layers.0.mlp.gate_proj.weight", {6, 8}},
          {"model.layers.0.mlp.up_proj.weight", {6, 8}},
          {"model.layers.0.post_attention_layernorm.weight", {8}},
          {"model.layers.0.self_attn.k_proj.weight", {4, 8}},
          {"model.layers.0.self_attn.o_proj.weight", {8, 8}},
          {"model.layers.0.self_attn.q_proj.weight", {8, 8}},
          {"model.layers.0.self_attn.v_proj.weight", {4, 8}},
          {"model.norm.weight", {8}}};
}

}  // namespace tandem

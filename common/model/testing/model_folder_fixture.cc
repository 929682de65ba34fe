#include "common/model/testing/model_folder_fixture.h"

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/model/tensor_convert.h"

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

double SumOfWeights(const Model& model) {
  double sum = 0;
  const auto add = [&sum](const TensorView& view) {
    if (!view.exists()) return;
    std::vector<float> values(view.num_elements());
    ConvertToFloat(view, absl::MakeSpan(values));
    for (float value : values) sum += value;
  };
  for (const TensorView* view : {&model.embedding(), &model.output(), &model.final_norm()}) add(*view);
  for (const LayerWeights& layer : model.layers()) {
    for (const TensorView* view :
         {&layer.input_norm, &layer.query, &layer.key, &layer.value, &layer.attention_out,
          &layer.post_attention_norm, &layer.gate, &layer.up, &layer.down, &layer.query_bias,
          &layer.query_norm, &layer.gate_bias, &layer.query_down, &layer.query_latent_norm, &layer.query_up,
          &layer.kv_down, &layer.kv_latent_norm, &layer.kv_up}) {
      add(*view);
    }
  }
  for (const LayerWeights& layer : model.layers()) {
    for (const TensorView* view :
         {&layer.router, &layer.router_bias, &layer.shared_gate, &layer.sinks, &layer.selection_bias}) {
      add(*view);
    }
    for (const ExpertWeights& expert : layer.experts) {
      for (const TensorView* view :
           {&expert.gate, &expert.up, &expert.down, &expert.gate_bias, &expert.up_bias, &expert.down_bias}) {
        add(*view);
      }
    }
  }
  const HeadWeights& head = model.head();
  for (const TensorView* view :
       {&head.projection, &head.projection_bias, &head.embedding_norm, &head.state_norm}) {
    add(*view);
  }
  for (const HeadWeights::Position& position : head.positions) {
    for (const TensorView& view : position.blocks) add(view);
    for (const TensorView& view : position.block_biases) add(view);
    add(position.output);
  }
  return sum;
}

}  // namespace tandem

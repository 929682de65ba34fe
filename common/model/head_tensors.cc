#include "common/model/head_tensors.h"

#include <array>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/model/config/strict_json.h"

namespace tandem {
namespace {

// More than anybody trains.
constexpr int kMostHeadLayers = 64;

bool HasLayer(HasTensor has_tensor, const std::string& prefix) {
  return has_tensor(prefix + "self_attn.q_proj.weight");
}

// A part of a tensor's name, the field that goes with it, and what is supported.
struct TensorOfField {
  absl::string_view part;
  absl::string_view field;
  absl::string_view supported;
  // Whether other values of the field are supported, which the file may have meant.
  bool depends = false;
};

// The first one that fits counts.
constexpr std::array kFieldsOfTensors = {
    TensorOfField{"fc_norm.", "fc_norm", "true beside such tensors", true},
    TensorOfField{"aux_hidden_norms.", "aux_hidden_norms", "none"},
    TensorOfField{"input_norm.", "norm_before_fc", "true beside such a tensor", true},
    TensorOfField{"mask_hidden", "ptd_token_id", "none (P-EAGLE)"},
    TensorOfField{"parallel_draft_heads.", "eagle_config.parallel_draft_step", "1"},
    TensorOfField{"kv_a_proj", "kv_lora_rank", "none, in a draft head"},
    TensorOfField{"kv_b_proj", "kv_lora_rank", "none, in a draft head"},
    TensorOfField{"q_norm.", "transformer_layer_config.model_type", "qwen3 beside such a tensor", true},
    TensorOfField{"k_norm.", "transformer_layer_config.model_type", "qwen3 beside such a tensor", true},
    TensorOfField{"self_attn.sinks", "architectures", "a head without attention sinks"},
    TensorOfField{"mlp.experts.", "num_experts", "none, in a draft head"},
    TensorOfField{"mlp.gate.weight", "num_experts", "none, in a draft head"},
    TensorOfField{"self_attn.q_proj.bias", "attention_bias", "true beside such a tensor", true},
    TensorOfField{"self_attn.k_proj.bias", "attention_bias", "true beside such a tensor", true},
    TensorOfField{"self_attn.v_proj.bias", "attention_bias", "true beside such a tensor", true},
    TensorOfField{"self_attn.o_proj.bias", "attention_bias", "true beside such a tensor", true},
    TensorOfField{"_proj.bias", "mlp_bias", "true beside such a tensor", true},
    TensorOfField{"_packed", "quantization_config", "none, in a draft head"},
    TensorOfField{"_scale", "quantization_config", "none, in a draft head"},
    TensorOfField{".qweight", "quantization_config", "none, in a draft head"},
    TensorOfField{".qzeros", "quantization_config", "none, in a draft head"},
    TensorOfField{"markov_", "markov_rank", "above 0 beside such a tensor, in a DSpark head", true},
    TensorOfField{"confidence_", "enable_confidence_head", "true beside such a tensor, in a DSpark head",
                  true},
    TensorOfField{"candidate_selector.", "selector_rank", "none (DFlash 2)"},
    TensorOfField{"_conv.", "conv_kernel_size", "none (DFlash 2)"},
    TensorOfField{"mask_embedding", "mask_token_id",
                  "a token of the target, without an embedding of its own"},
    TensorOfField{"g_proj.weight", "architectures", "layers without gates in attention"},
    TensorOfField{"prefix_gru.", "projector_type", "none (Domino)"},
    TensorOfField{"eh_proj.", "num_nextn_predict_layers", "a module named model.mtp_layers.0", true},
    TensorOfField{"mtp.", "mtp_num_hidden_layers", "a module named model.mtp_layers.0", true},
    TensorOfField{"mtp_layers.", "num_nextn_predict_layers", "1, in the target's own folder", true},
    TensorOfField{".hidden_norm.", "architectures", "LlamaForCausalLMEagle3 beside such a tensor", true},
    TensorOfField{".input_layernorm.", "eagle_config.use_input_layernorm_in_first_layer",
                  "false, in an EAGLE head of this kind", true},
    TensorOfField{"norm.weight", "eagle_config.use_last_layernorm", "false, in an EAGLE head of this kind",
                  true},
    TensorOfField{"layers.", "num_hidden_layers", "the number of layers in the file", true},
};

}  // namespace

std::string HeadTensorNames::InRoot(absl::string_view name) const {
  return absl::StrCat(root, name);
}

HeadTensorNames FindHeadTensors(HasTensor has_tensor, const HeadConfig& head) {
  HeadTensorNames names;
  const std::string usual = head.numbered_layer ? "layers.0." : "midlayer.";
  const std::string other = head.numbered_layer ? "midlayer." : "layers.0.";
  bool found = false;
  for (const char* const root : {"", "model."}) {
    for (const std::string& first : {usual, other}) {
      if (found || !HasLayer(has_tensor, root + first)) continue;
      found = names.found = true;
      names.root = root;
      names.layers = {first};
    }
  }
  if (!found) names.layers = {usual};
  names.input_norms = {"input_layernorm.weight"};
  for (int i = 1; found && i < kMostHeadLayers; ++i) {
    const std::string numbered = absl::StrCat("layers.", i, ".");
    const std::string additional = absl::StrCat("additional_layers.", i - 1, ".");
    if (HasLayer(has_tensor, names.root + numbered)) {
      names.layers.push_back(numbered);
      names.input_norms.emplace_back("input_layernorm.weight");
    } else if (HasLayer(has_tensor, names.root + additional)) {
      names.layers.push_back(additional);
      names.input_norms.emplace_back("hidden_norm.weight");
    } else {
      break;
    }
  }
  return names;
}

bool IsEagle3ByTensors(HasTensor has_tensor) {
  for (const char* const root : {"", "model."}) {
    if (has_tensor(absl::StrCat(root, "midlayer.hidden_norm.weight"))) return true;
  }
  return false;
}

absl::Status SetHeadLayers(const HeadTensorNames& names, absl::string_view path, const ModelConfig* target,
                           ModelConfig* config) {
  const auto count = static_cast<int32_t>(names.layers.size());
  const auto mismatch = [&](absl::string_view expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": field num_hidden_layers: found ", config->num_layers, ", expected ", expected));
  };
  if (count > 1 && config->head->kind != HeadConfig::Kind::kEagle3) {
    return absl::UnimplementedError(absl::StrCat(path, ": field num_hidden_layers: the file has ", count,
                                                 " layers, supported for an EAGLE head of this kind: 1"));
  }
  // Without a layer, the tensor that is missing is what there is to say.
  if (config->num_layers == count || !names.found) return absl::OkStatus();
  if (count > 1) return mismatch(absl::StrCat(count, ", as many layers as the file has"));
  if (target == nullptr) {
    return mismatch(
        "1, as many layers as the file has, or the target's number, with the target (--head-target)");
  }
  if (config->num_layers != target->num_layers) {
    return mismatch(absl::StrCat("1, as many layers as the file has, or the target's ", target->num_layers));
  }
  config->num_layers = 1;
  if (config->block.layers.size() > 1) config->block.layers.resize(1);
  return absl::OkStatus();
}

absl::Status CheckUnreadTensors(const std::vector<std::string>& names, bool all_read,
                                absl::string_view path) {
  for (const TensorOfField& known : kFieldsOfTensors) {
    if (known.depends && !all_read) continue;
    for (const std::string& name : names) {
      if (!absl::StrContains(name, known.part)) continue;
      return absl::UnimplementedError(absl::StrCat(path, ": field ", known.field,
                                                   ": the weights have a tensor \"", PrintableText(name),
                                                   "\", supported: ", known.supported));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem

#!/usr/bin/env python3
"""Makes gguf/NAME.gguf: tiny DeepSeek models of families/NAME.json, with the first one's weights, as llama.cpp's
converter lays them out. Needs the `gguf` package (0.19.0, of llama.cpp's authors) and numpy.

    make_gguf_models.py

deepseek-v2-lite is laid out as older files are, with attn_kv_b in one; the others with its parts for keys and for
values, and the sizes of heads in keys that end in _mla. What llama.cpp has no key for, yarn's mscale beside
mscale_all_dim, is taken to be the same: so it is in the published models.
"""

import json
import pathlib

import gguf
import numpy

from seeded_values import values

HERE = pathlib.Path(__file__).resolve().parent
KINDS = {"f32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16}
MODELS = {"deepseek-v2-lite": "bf16", "deepseek-v2": "bf16", "deepseek-v3": "f32"}
BIAS = "mlp.gate.e_score_correction_bias"


def add_keys(writer, config, is_older):
    is_v3 = config["model_type"] == "deepseek_v3"
    turned = config["qk_rope_head_dim"]
    keys = config["qk_nope_head_dim"] + turned
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    if is_older:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(keys)
        writer.add_value_length(config["v_head_dim"])
    else:
        writer.add_head_count_kv(1)
        writer.add_key_length(config["kv_lora_rank"] + turned)
        writer.add_value_length(config["kv_lora_rank"])
        writer.add_key_length_mla(keys)
        writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(turned)
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if is_v3 else gguf.ExpertGatingFuncType.SOFTMAX)
    if config["n_group"] is not None:
        prefix = gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.DEEPSEEK2]
        writer.add_uint32(f"{prefix}.expert_group_count", config["n_group"])
        writer.add_uint32(f"{prefix}.expert_group_used_count", config["topk_group"])
    writer.add_eos_token_id(config["eos_token_id"])


def split_latent(array, config):
    """attn_k_b and attn_v_b."""
    heads = array.reshape(config["num_attention_heads"], -1, config["kv_lora_rank"])
    keys, parts = heads[:, :config["qk_nope_head_dim"]], heads[:, config["qk_nope_head_dim"]:]
    return numpy.ascontiguousarray(keys.transpose(0, 2, 1)), numpy.ascontiguousarray(parts)


def make(name, kind):
    golden = json.loads((HERE / "families" / f"{name}.json").read_text())
    config, seed = golden["config"], golden["models"][0]["seed"]
    is_older = name == "deepseek-v2-lite"
    writer = gguf.GGUFWriter(HERE / "gguf" / f"{name}.gguf", "deepseek2")
    add_keys(writer, config, is_older)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, config["num_hidden_layers"])

    def add(target, array):
        # Vectors and routers are never rounded.
        is_plain = array.ndim == 1 or "ffn_gate_inp" in target
        as_kind = KINDS["f32" if is_plain else kind]
        writer.add_tensor(target, gguf.quants.quantize(array, as_kind), raw_dtype=as_kind)

    experts = {}
    for index, (tensor, shape, center, step, bits) in enumerate(golden["tensors"]):
        array = values(seed, index, shape, center, step, bits)
        parts = tensor.split(".")
        if parts[1] == "layers" and int(parts[2]) >= config["num_hidden_layers"]:
            continue
        if ".experts." in tensor:
            experts.setdefault((parts[2], parts[-2]), {})[int(parts[5])] = array
        elif tensor.endswith(BIAS):
            add(f"blk.{parts[2]}.exp_probs_b.bias", array)
        elif tensor.endswith("kv_b_proj.weight") and not is_older:
            keys, parts_of_values = split_latent(array, config)
            add(f"blk.{parts[2]}.attn_k_b.weight", keys)
            add(f"blk.{parts[2]}.attn_v_b.weight", parts_of_values)
        elif tensor.endswith("kv_b_proj.weight"):
            add(f"blk.{parts[2]}.attn_kv_b.weight", array)
        else:
            add(names.get_name(tensor, try_suffixes=(".weight", ".bias")), array)
    for (layer, matrix), each in experts.items():
        stacked = numpy.stack([each[i] for i in range(len(each))])
        add(f"blk.{layer}.ffn_{matrix.removesuffix('_proj')}_exps.weight", stacked)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    (HERE / "gguf").mkdir(exist_ok=True)
    for name, kind in MODELS.items():
        make(name, kind)


if __name__ == "__main__":
    main()

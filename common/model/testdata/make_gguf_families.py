#!/usr/bin/env python3
"""Makes gguf/NAME.gguf: tiny models of families/NAME.json, with the first one's weights, as llama.cpp's converter
(conversion/ in its repository) writes them: its keys and names of tensors, norms with what the family adds to their
weights, rows of queries and keys in pairs, queries, keys and values one after the other. Needs the `gguf` package
(0.19.0, of llama.cpp's authors) and numpy.

    make_gguf_families.py

What has no key, and llama.cpp takes for granted, is in OVERRIDES: a folder must say it to compute the same.
"""

import json
import pathlib

import gguf
import numpy

from seeded_values import values

HERE = pathlib.Path(__file__).resolve().parent
ARCH = gguf.MODEL_ARCH
# Of a name: the architecture, and whether rows of queries and keys are paired.
MODELS = {"gemma2": (ARCH.GEMMA2, False), "gemma3": (ARCH.GEMMA3, False), "phi3": (ARCH.PHI3, False),
          "phi4-mini": (ARCH.PHI3, False), "granite": (ARCH.GRANITE, True), "olmo2": (ARCH.OLMO2, False),
          "glm4": (ARCH.GLM4, False), "smollm3": (ARCH.SMOLLM3, True), "starcoder2": (ARCH.STARCODER2, False),
          "gpt-oss": (ARCH.GPT_OSS, False), "gpt2": (ARCH.GPT2, False), "gpt-neox": (ARCH.GPTNEOX, False),
          "gpt-neox-sequential": (ARCH.GPTNEOX, False), "bloom": (ARCH.BLOOM, False), "mixtral": (ARCH.LLAMA, True)}
OVERRIDES = {"gemma2": {"query_pre_attn_scalar": 16}, "gemma3": {"query_pre_attn_scalar": 16},
             "smollm3": {"no_rope_layers": None, "no_rope_layer_interval": 4}, "starcoder2": {"sliding_window": None},
             "gpt-oss": {"swiglu_limit": 7.0}, "gpt-neox-sequential": {"hidden_act": "gelu"},
             "mixtral": {"sliding_window": None}}
LAYER_NORMS = ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon")


def first(config, *names):
    return next((config[name] for name in names if config.get(name) is not None), None)


def add_rope(writer, config, head):
    rope = config.get("rope_parameters")
    if rope is None:
        return
    rope = rope.get("full_attention", rope)
    share = rope.get("partial_rotary_factor", 1.0)
    writer.add_rope_dimension_count(int(share * head))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        stretch = config["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(float(numpy.sqrt(1 + numpy.log(stretch) / numpy.log(original))))
        for length in ("long", "short"):
            writer.add_tensor(f"rope_factors_{length}.weight", numpy.array(rope[f"{length}_factor"], numpy.float32))


def add_keys(writer, arch, config):
    hidden = first(config, "hidden_size", "n_embd")
    heads = first(config, "num_attention_heads", "n_head")
    head = first(config, "head_dim") or hidden // heads
    writer.add_context_length(first(config, "max_position_embeddings", "n_positions", "seq_length"))
    writer.add_embedding_length(hidden)
    writer.add_block_count(first(config, "num_hidden_layers", "n_layer"))
    writer.add_feed_forward_length(first(config, "intermediate_size", "n_inner") or 4 * hidden)
    writer.add_head_count(heads)
    if config.get("num_key_value_heads") is not None:
        writer.add_head_count_kv(config["num_key_value_heads"])
    if config.get("head_dim") is not None:
        writer.add_key_length(head)
        writer.add_value_length(head)
    if config.get("rms_norm_eps") is not None:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(first(config, *LAYER_NORMS))
    add_rope(writer, config, head)
    if config.get("sliding_window") is not None:
        writer.add_sliding_window(config["sliding_window"])
    if arch == ARCH.GEMMA3:
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if arch == ARCH.GEMMA2:
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch == ARCH.GRANITE:
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if arch == ARCH.GPTNEOX:
        writer.add_parallel_residual(config["use_parallel_residual"])
    if config.get("num_local_experts") is not None:
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if arch == ARCH.GPT_OSS:
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_tokenizer_model("none")


def paired(array, heads):
    """Of each head, the row in place 2j is the j-th, and that in place 2j + 1 the one half a head behind it."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return numpy.ascontiguousarray(halves.swapaxes(1, 2)).reshape(array.shape)


def stacked(array, heads):
    """All queries, all keys, all values, of heads that have one of each."""
    parts = array.reshape(heads, 3, array.shape[0] // heads // 3, *array.shape[1:])
    return numpy.ascontiguousarray(parts.swapaxes(0, 1)).reshape(array.shape)


def converted(tensor, array, arch, config, is_paired):
    """Pairs of a Hugging Face name and what the file has of it."""
    heads = first(config, "num_attention_heads", "n_head")
    if is_paired and ".q_proj." in tensor:
        array = paired(array, heads)
    if is_paired and ".k_proj." in tensor:
        array = paired(array, config["num_key_value_heads"])
    if arch in (ARCH.GPTNEOX, ARCH.BLOOM) and ".query_key_value." in tensor:
        array = stacked(array, heads)
    if arch == ARCH.GPT2 and tensor.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
        array = array.T
    if arch in (ARCH.GEMMA2, ARCH.GEMMA3) and tensor.endswith("norm.weight"):
        array = array + numpy.float32(1)
    if arch == ARCH.GPT_OSS and ".experts." in tensor:
        kind = "bias" if tensor.endswith("_bias") else "weight"
        stem = tensor.removesuffix("_bias")
        if kind == "weight":
            array = array.swapaxes(-1, -2)
        if stem.endswith("gate_up_proj"):
            # Gates and ups alternate.
            rows = (array[:, 0::2], array[:, 1::2])
            return [(stem.replace("gate_up_proj", f"{part}_proj.{kind}"), each)
                    for part, each in zip(("gate", "up"), rows)]
        return [(f"{stem}.{kind}", array)]
    return [(tensor + ".weight" if tensor.endswith("sinks") else tensor, array)]


def make(name):
    arch, is_paired = MODELS[name]
    golden = json.loads((HERE / "families" / f"{name}.json").read_text())
    config, seed = golden["config"] | OVERRIDES.get(name, {}), golden["models"][0]["seed"]
    num_layers = first(config, "num_hidden_layers", "n_layer")
    writer = gguf.GGUFWriter(HERE / "gguf" / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[arch])
    add_keys(writer, arch, config)
    names = gguf.get_tensor_name_map(arch, num_layers)

    def add(target, array):
        is_plain = array.ndim == 1 or "ffn_gate_inp" in target
        kind = gguf.GGMLQuantizationType.F32 if is_plain else gguf.GGMLQuantizationType.BF16
        writer.add_tensor(target, gguf.quants.quantize(numpy.ascontiguousarray(array), kind), raw_dtype=kind)

    experts = {}
    for index, (tensor, shape, center, step, bits) in enumerate(golden["tensors"]):
        array = values(int(seed), index, shape, center, step, bits)
        if "block_sparse_moe.experts." in tensor:
            parts = tensor.split(".")
            experts.setdefault((parts[2], parts[-2]), {})[int(parts[5])] = array
            continue
        for source, each in converted(tensor, array, arch, config, is_paired):
            # The package knows BLOOM's names without the prefix.
            source = source.removeprefix("transformer.") if arch == ARCH.BLOOM else source
            target = names.get_name(source, try_suffixes=(".weight", ".bias"))
            assert target is not None, f"{name}: no name for {source}"
            add(target, each)
    for (layer, matrix), each in experts.items():
        target = {"w1": "gate", "w2": "down", "w3": "up"}[matrix]
        add(f"blk.{layer}.ffn_{target}_exps.weight", numpy.stack([each[i] for i in range(len(each))]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    for name in MODELS:
        make(name)
    (HERE / "gguf" / "overrides.json").write_text(json.dumps(OVERRIDES, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

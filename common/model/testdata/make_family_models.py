#!/usr/bin/env python3
"""Writes families/NAME.json beside this script: tiny models of every family, with reference values from the
transformers library.

No weights are kept: they follow from a seed, in seeded_values.py and in common/model/testing/family_fixture.cc.
Tensor t of the list, element i, with x = Mix64(seed * 2^40 + t * 2^24 + i), is

    center + step * (2 * (x >> (64 - bits)) + 1 - 2^bits)

which bfloat16 holds exactly. Each file holds

    config      config.json, as transformers saves it
    tensors     [name, shape, center, step, bits], sorted by name
    models      for each of two seeds: sequences with tokens in, logits at some positions, and greedy tokens that
                follow (end-of-sequence tokens do not stop it) with the smallest gap between best and second best

Logits are computed in float32 arithmetic, with eager attention and without a cache, and written with 6
significant digits. Sequences are longer than windows and original contexts. Experts are chosen by numbers that lie
well apart, so that rounding does not choose others. Needs torch and transformers 5; the
output depends on their versions, which is why it is checked in. Run: make_family_models.py [NAME ...]
"""

import json
import pathlib
import sys
import tempfile

import numpy
import safetensors.numpy
import torch
import transformers

from seeded_values import values

GREEDY_TOKENS = 12
# Greedy tokens must not hang on the order of a sum, nor repeat one token: seeds are tried until every gap and
# the number of different tokens is at least this.
MIN_MARGIN = 0.004
MIN_DISTINCT = 4
# Between the last expert that a router takes and the next one.
MIN_ROUTER_GAP = 0.05
NUM_SEEDS = 2

ENDS = dict(pad_token_id=None, bos_token_id=1, eos_token_id=2)
SMALL = dict(vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, **ENDS)
GATED = dict(intermediate_size=48, num_key_value_heads=2, **SMALL)
WINDOWS = ["sliding_attention", "full_attention", "sliding_attention"]


def rope(kind, theta=10000.0, **fields):
    return dict(rope_type=kind, rope_theta=theta, **fields)


LONG = dict(original_max_position_embeddings=16, max_position_embeddings=64)


LATENT = dict(kv_lora_rank=20, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10, num_key_value_heads=4,
              intermediate_size=48, moe_intermediate_size=24, max_position_embeddings=64, **SMALL)


def longrope(dim):
    return rope("longrope", short_factor=[1.0 + 0.05 * i for i in range(dim // 2)],
                long_factor=[1.0 + 0.9 * i for i in range(dim // 2)], original_max_position_embeddings=16)


# name -> (configuration, lengths of sequences, whether to continue greedily)
MODELS = {
    "opt": (transformers.OPTConfig(ffn_dim=72, max_position_embeddings=64, word_embed_proj_dim=32, **SMALL),
            [5, 40], True),
    # As OPT-350m: norms behind sums, no final norm, a narrower embedding; and an output matrix of its own.
    "opt-350m": (transformers.OPTConfig(ffn_dim=72, max_position_embeddings=64, word_embed_proj_dim=20,
                                        do_layer_norm_before=False, tie_word_embeddings=False, **SMALL),
                 [5, 40], True),
    "bloom": (transformers.BloomConfig(seq_length=128, **{**SMALL, "num_attention_heads": 4}), [5, 40], True),
    # Not a power of two of heads, and contexts of more than one chunk of attention.
    "bloom-6-heads": (transformers.BloomConfig(seq_length=512, **{**SMALL, "num_attention_heads": 6,
                                                                  "hidden_size": 48}), [300], True),
    "gpt-neox": (transformers.GPTNeoXConfig(intermediate_size=56, max_position_embeddings=64, rotary_pct=0.25,
                                            **{**SMALL, "num_attention_heads": 2}), [5, 40], True),
    "gpt-neox-sequential": (transformers.GPTNeoXConfig(
        intermediate_size=56, max_position_embeddings=64, rotary_pct=0.5, use_parallel_residual=False,
        hidden_act="gelu_new", **SMALL), [5, 40], True),
    "gpt2": (transformers.GPT2Config(n_positions=64, vocab_size=61, n_embd=32, n_layer=2, n_head=4, **ENDS),
             [5, 40], True),
    "llama-yarn": (transformers.LlamaConfig(
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16), max_position_embeddings=64,
        **GATED), [5, 40], True),
    # transformers chooses frequencies by the length of the text, we those of the longest: this length.
    "llama-dynamic": (transformers.LlamaConfig(rope_parameters=rope("dynamic", factor=2.0),
                                               max_position_embeddings=24, **GATED), [48], False),
    "qwen2-yarn": (transformers.Qwen2Config(
        rope_parameters=rope("yarn", 1e6, factor=2.0, original_max_position_embeddings=32, beta_fast=16.0),
        max_position_embeddings=64, tie_word_embeddings=True, **GATED), [5, 40], True),
    "qwen3-windows": (transformers.Qwen3Config(
        head_dim=16, use_sliding_window=True, sliding_window=8, max_window_layers=1, max_position_embeddings=64,
        **{**GATED, "num_hidden_layers": 3}), [5, 40], True),
    "ministral": (transformers.MinistralConfig(head_dim=8, sliding_window=8, layer_types=WINDOWS, max_position_embeddings=64,
                                               **{**GATED, "num_hidden_layers": 3}), [5, 40], True),
    "phi3": (transformers.Phi3Config(sliding_window=9, max_position_embeddings=64,
                                     original_max_position_embeddings=64, **GATED), [5, 40], True),
    "phi3-longrope": (transformers.Phi3Config(rope_parameters=longrope(8), **LONG, **GATED), [20, 40], True),
    # As Phi-4-mini: three quarters of a head turn.
    "phi4-mini": (transformers.Phi3Config(
        rope_parameters=dict(longrope(12), partial_rotary_factor=0.75), **LONG,
        **{**GATED, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}),
        [20, 40], True),
    "gemma2": (transformers.Gemma2Config(head_dim=16, query_pre_attn_scalar=20, sliding_window=8,
                                         max_position_embeddings=64, attn_logit_softcapping=4.0,
                                         final_logit_softcapping=6.0, **{**GATED, "num_hidden_layers": 3}),
               [5, 40], True),
    "gemma3": (transformers.Gemma3TextConfig(
        head_dim=16, query_pre_attn_scalar=20, sliding_window=8, max_position_embeddings=64, layer_types=WINDOWS,
        rope_parameters=dict(full_attention=rope("linear", 1e6, factor=8.0), sliding_attention=rope("default")),
        **{**GATED, "num_hidden_layers": 3}), [5, 40], True),
    "smollm3": (transformers.SmolLM3Config(max_position_embeddings=64, no_rope_layer_interval=2,
                                           **{**GATED, "num_hidden_layers": 3}), [5, 40], True),
    "olmo2": (transformers.Olmo2Config(max_position_embeddings=64, **GATED), [5, 40], True),
    "granite": (transformers.GraniteConfig(max_position_embeddings=64, embedding_multiplier=6.0,
                                           attention_multiplier=0.2, residual_multiplier=0.6, logits_scaling=1.5,
                                           attention_bias=True, mlp_bias=True, **GATED), [5, 40], True),
    "mixtral": (transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=64,
                                           sliding_window=12, **GATED), [5, 40], True),
    # A dense layer first, and three of six experts beside a shared one.
    "qwen2-moe": (transformers.Qwen2MoeConfig(
        moe_intermediate_size=24, shared_expert_intermediate_size=40, num_experts=6, num_experts_per_tok=3,
        mlp_only_layers=[0], max_position_embeddings=64, **{**GATED, "num_hidden_layers": 3}), [5, 40], True),
    # The first and the last layer slide.
    "qwen2-moe-windows": (transformers.Qwen2MoeConfig(
        moe_intermediate_size=24, shared_expert_intermediate_size=40, num_experts=4, num_experts_per_tok=2,
        mlp_only_layers=[0, 1], use_sliding_window=True, sliding_window=8, max_window_layers=3,
        max_position_embeddings=64, **{**GATED, "num_hidden_layers": 3}), [5, 40], True),
    "qwen3-moe-windows": (transformers.Qwen3MoeConfig(
        head_dim=16, moe_intermediate_size=24, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True,
        use_sliding_window=True, sliding_window=8, mlp_only_layers=[0], max_position_embeddings=64, **GATED),
        [5, 40], True),
    # As DeepSeek-V2-Lite: queries without a latent, experts in no groups.
    "deepseek-v2-lite": (transformers.DeepseekV2Config(
        q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2, first_k_dense_replace=1,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.707,
                             mscale_all_dim=0.707), **{**LATENT, "num_hidden_layers": 3}), [5, 40], True),
    # Scores that are not scaled to 1, and those of groups.
    "deepseek-v2": (transformers.DeepseekV2Config(
        q_lora_rank=24, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1,
        topk_method="group_limited_greedy", n_group=4, topk_group=2, routed_scaling_factor=2.5, **LATENT),
        [5, 40], True),
    "deepseek-v3": (transformers.DeepseekV3Config(
        q_lora_rank=24, n_routed_experts=8, num_experts_per_tok=2, first_k_dense_replace=1, n_group=4, topk_group=2,
        rope_parameters=rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0,
                             mscale_all_dim=0.5), **LATENT), [5, 40], True),
    # What V3's configuration can say and V3 does not.
    "deepseek-v3-plain": (transformers.DeepseekV3Config(
        q_lora_rank=None, n_routed_experts=6, num_experts_per_tok=2, first_k_dense_replace=0, n_group=1, topk_group=1,
        norm_topk_prob=False, rope_interleave=False, routed_scaling_factor=1.0, **{**LATENT, "num_hidden_layers": 1}),
        [5, 40], True),
    # Experts in every other layer, of whose weights the sum is 1.
    "qwen3-moe": (transformers.Qwen3MoeConfig(
        head_dim=16, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
        decoder_sparse_step=2, max_position_embeddings=64, **{**GATED, "num_hidden_layers": 3}), [5, 40], True),
    # Gates beyond their limit, too.
    "gpt-oss": (transformers.GptOssConfig(
        head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8, swiglu_limit=0.75,
        rope_parameters=rope("yarn", 150000.0, factor=4.0, original_max_position_embeddings=16, truncate=False),
        max_position_embeddings=64, **{**GATED, "num_hidden_layers": 3, "intermediate_size": 32}), [5, 40], True),
    "glm4": (transformers.Glm4Config(max_position_embeddings=64, head_dim=16, **GATED), [5, 40], True),
    "starcoder2": (transformers.Starcoder2Config(sliding_window=8, max_position_embeddings=64, **GATED), [5, 40], True),
    # No window, no bias but those of norms, and an output matrix of its own.
    "starcoder2-plain": (transformers.Starcoder2Config(
        use_bias=False, tie_word_embeddings=False, max_position_embeddings=64,
        rope_parameters=rope("default", 100000.0), **GATED), [5, 40], True),
}


def distribution(name, shape, config):
    """Activations stay near 1, attention is far from uniform, no norm or bias is trivial; a tied embedding is
    small, or every token would predict itself."""
    if len(shape) == 1 and name.endswith(".bias"):
        return 0.0, 2.0 ** -6, 4
    if len(shape) == 1:
        return (0.0 if "Gemma" in type(config).__name__ else 1.0), 2.0 ** -5, 4
    if any(part in name for part in ("embed", "wte", "wpe")):
        tied = config.tie_word_embeddings and "pos" not in name and "wpe" not in name
        return 0.0, 2.0 ** (-10 if tied else -8), 8
    # Routers decide by a wide margin.
    if name.endswith(("block_sparse_moe.gate.weight", "mlp.gate.weight", "mlp.router.weight")):
        return 0.0, 2.0 ** -8, 8
    if any(part in name for part in ("q_proj", "k_proj", "query_key_value", "qkv_proj", "c_attn")):
        return 0.0, 2.0 ** -9, 8
    is_inner = any(part in name for part in ("mlp", "fc", "block_sparse_moe"))
    return 0.0, 2.0 ** -10 if is_inner else 2.0 ** -9, 8


def rounded(numbers):
    return [float(f"{number:.6g}") for number in numbers]


def choice_gap(values, count):
    """By how much the `count`-th greatest lies before the next one, at least."""
    if count >= values.shape[-1]:
        return float("inf")
    best = values.topk(count + 1).values
    return (best[:, -2] - best[:, -1]).min().item()


def layer_gap(config, logits, bias):
    """The least gap between what a row of a layer takes and what comes next, of experts and of groups."""
    is_sigmoid = config.model_type == "deepseek_v3"
    # Where a sigmoid is steepest it rises by a quarter of what its argument does.
    values, unit = (logits.sigmoid() + bias, 0.25) if is_sigmoid else (logits, 1.0)
    gap, is_grouped = float("inf"), is_sigmoid or getattr(config, "topk_method", "") == "group_limited_greedy"
    if is_grouped and config.n_group > 1:
        groups = values.view(len(values), config.n_group, -1)
        sums = groups.topk(2 if is_sigmoid else 1).values.sum(-1)
        gap = choice_gap(sums, config.topk_group)
        left_out = sums < sums.topk(config.topk_group).values[:, -1:]
        values = groups.masked_fill(left_out.unsqueeze(-1), float("-inf")).view(len(values), -1)
    return min(gap, choice_gap(values, config.num_experts_per_tok)) / unit


def router_gap(model, tokens):
    """layer_gap of all layers; infinite where there are no experts."""
    if not getattr(model.config, "num_experts_per_tok", 0):
        return float("inf")
    routers = model(torch.tensor([tokens]), use_cache=False, output_router_logits=True).router_logits
    routers = [logits for logits in routers if logits is not None]
    biases = [module.e_score_correction_bias for module in model.modules()
              if hasattr(module, "e_score_correction_bias")] or [None] * len(routers)
    assert len(routers) == len(biases) > 0
    return min(layer_gap(model.config, logits, bias) for logits, bias in zip(routers, biases))


def sequence_case(model, tokens, continues):
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        greedy, margins = [], []
        for _ in range(GREEDY_TOKENS if continues else 0):
            best = model(torch.tensor([tokens + greedy]), use_cache=False).logits[0, -1].topk(2)
            margins.append((best.values[0] - best.values[1]).item())
            greedy.append(best.indices[0].item())
        gap = router_gap(model, tokens + greedy)
    positions = sorted({0, len(tokens) // 3, len(tokens) - 1})
    return dict(tokens=tokens, positions=positions, logits=[rounded(logits[p].tolist()) for p in positions],
                greedy=greedy, margin=min(margins, default=1.0), router_gap=gap)


def cases_of(config, folder, tensors, names, lengths, continues, seed):
    """The sequences of one seed; nothing if its greedy tokens are not fit for a test."""
    state = {name: values(seed, index, shape, center, step, bits)
             for index, (name, shape, center, step, bits) in enumerate(tensors)}
    safetensors.numpy.save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    random = numpy.random.default_rng(seed)
    sequences = []
    for length in lengths:
        tokens = random.integers(0, config.vocab_size, length).tolist()
        case = sequence_case(model.eval(), tokens, continues)
        if case["margin"] < MIN_MARGIN or continues and len(set(case["greedy"])) < MIN_DISTINCT:
            return None
        if case["router_gap"] < MIN_ROUTER_GAP:
            return None
        del case["margin"], case["router_gap"]
        sequences.append(case)
    return dict(seed=seed, sequences=sequences)


def write(path, config, tensors, models):
    """One line per tensor and list of numbers, so that a change shows as a readable difference."""
    def lines(fields, separator):
        return separator.join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())

    texts = []
    for model in models:
        sequences = ",\n   ".join("{" + lines(case, ",\n    ") + "}" for case in model["sequences"])
        texts.append(f'{{"seed": {model["seed"]}, "sequences": [\n   {sequences}]}}')
    path.write_text("".join([
        '{"config": ', json.dumps(config, sort_keys=True), ',\n "tensors": [\n  ',
        ",\n  ".join(json.dumps(tensor) for tensor in tensors), '],\n "models": [\n  ', ",\n  ".join(texts), "]}\n"]))
    json.loads(path.read_text())


def make(name):
    config, lengths, continues = MODELS[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        saved = safetensors.numpy.load_file(folder / "model.safetensors")
        tensors = [[tensor, list(array.shape), *distribution(tensor, array.shape, config)]
                   for tensor, array in sorted(saved.items())]
        models, seed = [], 0
        while len(models) < NUM_SEEDS and seed < 400:
            seed += 1
            cases = cases_of(config, folder, tensors, saved, lengths, continues, seed)
            if cases is not None:
                models.append(cases)
        assert len(models) == NUM_SEEDS, f"{name}: no seeds with wide enough gaps"
        path = pathlib.Path(__file__).parent / "families" / f"{name}.json"
        write(path, json.loads((folder / "config.json").read_text()), tensors, models)
        print(f"{name}: seeds {[model['seed'] for model in models]}, {path.stat().st_size} bytes", flush=True)


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or MODELS:
        make(name)


if __name__ == "__main__":
    main()

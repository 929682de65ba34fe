#!/usr/bin/env python3
"""Writes the tiny-* model folders beside this script: random models of every supported architecture, with
reference logits from the transformers library.

Each folder holds config.json, the weights, and golden.json:

    tensors     name -> shape, sum of the elements, and sum of (i + 1) * element i, in float64
    sequences   tokens in; full logits at some positions; hidden states of the last token: after 0, 1, .. all
                layers, then normed; 24 greedy tokens that follow (end-of-sequence tokens do not stop it), and
                the smallest gap between the best and second-best logit on the way

Logits are computed in float32 arithmetic, with eager attention and without a cache, from the weights as saved
and written with 7 significant digits. Needs torch and transformers 5; the output depends on their versions,
which is why it is checked in. Run: make_tiny_models.py [output folder]
"""

import json
import pathlib
import shutil
import sys

import torch
import transformers

GREEDY_TOKENS = 24
POSITIONS = {1: [0], 7: [0, 3, 6], 40: [0, 7, 8, 22, 39]}

COMMON = dict(pad_token_id=None, bos_token_id=1, eos_token_id=2, max_position_embeddings=128)

# Greedy tokens must not hang on the order of a sum, nor repeat one token: seeds are tried until every gap and
# every number of different tokens is at least this.
MIN_MARGIN = 0.003
MIN_DISTINCT = 8

# name -> (configuration, dtype of the weights, fields of config.json in the spelling of transformers 4)
MODELS = {
    "tiny-llama": (
        transformers.LlamaConfig(
            vocab_size=131, hidden_size=32, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
            rms_norm_eps=1e-5, tie_word_embeddings=False, **COMMON),
        torch.float32, dict(rope_theta=10000.0, rope_scaling=None)),
    "tiny-llama3": (
        transformers.LlamaConfig(
            vocab_size=257, hidden_size=48, intermediate_size=72, num_hidden_layers=3, num_attention_heads=6,
            num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                                 high_freq_factor=4.0, original_max_position_embeddings=64), **COMMON),
        torch.bfloat16, dict(rope_theta=500000.0, rope_scaling=dict(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=64))),
    "tiny-llama-linear": (
        transformers.LlamaConfig(
            vocab_size=131, hidden_size=40, intermediate_size=64, num_hidden_layers=2, num_attention_heads=5,
            num_key_value_heads=5, rms_norm_eps=1e-6, attention_bias=True, mlp_bias=True,
            tie_word_embeddings=False,
            rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0), **COMMON),
        torch.float16, dict(rope_theta=10000.0, rope_scaling=dict(type="linear", factor=4.0))),
    "tiny-mistral": (
        transformers.MistralConfig(
            vocab_size=131, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, rms_norm_eps=1e-5, sliding_window=8, tie_word_embeddings=False, **COMMON),
        torch.float32, None),
    "tiny-qwen2": (
        transformers.Qwen2Config(
            vocab_size=257, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3,
            num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON),
        torch.bfloat16, dict(rope_theta=1000000.0)),
    "tiny-qwen3": (
        transformers.Qwen3Config(
            vocab_size=131, hidden_size=40, intermediate_size=56, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=False,
            rope_parameters=dict(rope_type="default", rope_theta=1000000.0), **COMMON),
        torch.bfloat16, None),
}
SHARDED = {"tiny-qwen3": "30KB"}
WITHOUT_GENERATION_CONFIG = {"tiny-mistral"}


def randomise(model, generator):
    """Weights that keep activations near 1, attention far from uniform, and no norm or bias trivial.

    A tied embedding is small, or every token would predict itself.
    """
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            value = 1.0 + 0.25 * noise
        elif name.endswith(".bias"):
            value = 0.3 * noise
        elif name.endswith("embed_tokens.weight") and not model.config.tie_word_embeddings:
            value = noise
        elif name.endswith(("q_proj.weight", "k_proj.weight")):
            value = 1.5 * noise / parameter.shape[1] ** 0.5
        elif name.endswith("embed_tokens.weight"):
            value = 0.5 * noise / parameter.shape[1] ** 0.5
        else:
            value = noise / parameter.shape[1] ** 0.5
        parameter.data.copy_(value)


def rounded(values):
    return [float(f"{value:.7g}") for value in values]


def last_states(model, tokens):
    """Of the last token: the residual stream after 0, 1, .. all layers, and what the final norm makes of it."""
    unnormed = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, inputs: unnormed.append(inputs[0][0, -1]))
    states = model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
    hook.remove()
    # The library's last state is normed already.
    return [state[0, -1] for state in states[:-1]] + unnormed + [states[-1][0, -1]]


def sequence_case(model, tokens):
    with torch.no_grad():
        states = last_states(model, tokens)
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        greedy, margins = [], []
        for _ in range(GREEDY_TOKENS):
            best = model(torch.tensor([tokens + greedy]), use_cache=False).logits[0, -1].topk(2)
            margins.append((best.values[0] - best.values[1]).item())
            greedy.append(best.indices[0].item())
    positions = POSITIONS[len(tokens)]
    return dict(tokens=tokens, positions=positions, logits=[rounded(logits[p].tolist()) for p in positions],
                states=[rounded(state.tolist()) for state in states], greedy=greedy, min_margin=rounded([min(margins)])[0])


def tensor_sums(state):
    sums = {}
    for name, tensor in sorted(state.items()):
        flat = tensor.double().flatten()
        weights = torch.arange(1, flat.numel() + 1, dtype=torch.float64)
        sums[name] = dict(shape=list(tensor.shape), sum=flat.sum().item(),
                          weighted_sum=(flat * weights).sum().item())
    return sums


def write_golden(path, tensors, cases):
    """One line per tensor and per list of numbers, so that a change shows as a readable difference."""
    def lines(fields, separator):
        return separator.join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())

    note = "float32 arithmetic on the weights as saved; greedy does not stop at end-of-sequence tokens"
    sequences = ",\n".join("  {" + lines(case, ",\n   ") + "}" for case in cases)
    path.write_text("".join([
        '{"note": ', json.dumps(note), ',\n "tensors": {\n  ', lines(tensors, ",\n  "),
        '},\n "sequences": [\n', sequences, "]}\n"]))
    json.loads(path.read_text())


def edit_config(path, old_spelling):
    config = json.loads(path.read_text())
    if old_spelling is not None:
        config.pop("rope_parameters")
        config.pop("layer_types", None)
        config["torch_dtype"] = config.pop("dtype")
        config["transformers_version"] = "4.44.0"
        config.update(old_spelling)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def make(name, root, seed):
    """Writes one folder; says whether its greedy tokens are fit for a test."""
    config, dtype, old_spelling = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    randomise(model, generator)
    model.tie_weights()
    folder = root / name
    shutil.rmtree(folder, ignore_errors=True)
    model.to(dtype).save_pretrained(folder, max_shard_size=SHARDED.get(name, "1GB"))
    edit_config(folder / "config.json", old_spelling)
    if name in WITHOUT_GENERATION_CONFIG:
        (folder / "generation_config.json").unlink()

    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    state = {key: value for key, value in loaded.state_dict().items()
             if key != "lm_head.weight" or not config.tie_word_embeddings}
    sequences = [torch.randint(0, config.vocab_size, (length,), generator=generator).tolist()
                 for length in POSITIONS]
    cases = [sequence_case(loaded.eval(), tokens) for tokens in sequences]
    write_golden(folder / "golden.json", tensor_sums(state), cases)
    for file in folder.iterdir():
        file.chmod(0o644)
    margin = min(case["min_margin"] for case in cases)
    distinct = min(len(set(case["greedy"])) for case in cases)
    print(f"{name}: seed {seed}, smallest gap {margin}, fewest different tokens {distinct}")
    return margin >= MIN_MARGIN and distinct >= MIN_DISTINCT


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for name in MODELS:
        seed = 1
        while not make(name, root, seed):
            seed += 1


if __name__ == "__main__":
    main()

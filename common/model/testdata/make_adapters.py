#!/usr/bin/env python3
"""Writes adapters/NAME.json beside this script: LoRA adapters of the tiny models in families/, with reference
values from peft and transformers.

As make_family_models.py, which says how tensors follow from a seed. Each file holds

    family      the model, in families/, and which of its seeds
    config      adapter_config.json, as peft saves it, without what it says of paths and versions
    tensors     [name, shape, center, step, bits] of adapter_model.safetensors, sorted by name
    adapters    for each of two seeds of these: sequences as in families/, computed with the adapter

Logits are computed in float32, and not merged. Needs torch, transformers 5 and peft.
Run: make_adapters.py [NAME ...]
"""

import json
import pathlib
import sys
import tempfile

import numpy
import peft
import safetensors.numpy
import torch
import transformers

import make_family_models as families
from seeded_values import values

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# name -> (family, settings, lengths of sequences)
ADAPTERS = {
    "llama": ("llama-yarn", dict(r=8, lora_alpha=16, target_modules=ALL, rank_pattern={"v_proj": 3},
                                 alpha_pattern={"layers.1.self_attn.q_proj": 5}), [5, 40]),
    # Biases, and one layer alone.
    "qwen2": ("qwen2-yarn", dict(r=4, lora_alpha=6, use_rslora=True, target_modules=["q_proj", "v_proj", "down_proj"],
                                 layers_to_transform=[1]), [5, 40]),
    # Queries, keys and values in one matrix, gates and ups too.
    "phi3": ("phi3", dict(r=6, lora_alpha=12, target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
             [5, 40]),
    # The same of each head in turn, in parallel blocks.
    "gpt-neox": ("gpt-neox", dict(r=5, lora_alpha=8, target_modules=["query_key_value", "dense", "dense_h_to_4h",
                                                                     "dense_4h_to_h"]), [5, 40]),
    "gpt2": ("gpt2", dict(r=7, lora_alpha=7, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"]), [5, 40]),
    # Experts are as they were.
    "mixtral": ("mixtral", dict(r=8, lora_alpha=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]), [5, 40]),
}
LEFT_OUT = ("base_model_name_or_path", "peft_version", "revision", "auto_mapping")


def write_tensors(path, tensors, seed):
    state = {name: values(seed, index, shape, center, step, bits)
             for index, (name, shape, center, step, bits) in enumerate(tensors)}
    safetensors.numpy.save_file(state, path, metadata={"format": "pt"})


def load_base(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")


def describe(base, settings, folder):
    """What peft saves of such an adapter: its configuration, and its tensors' names and shapes."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", **settings)
    peft.get_peft_model(base, config).save_pretrained(folder)
    saved = safetensors.numpy.load_file(folder / "adapter_model.safetensors")
    tensors = [[name, list(array.shape), 0.0, 2.0 ** -10, 8] for name, array in sorted(saved.items())]
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = sorted(config["target_modules"])
    return {key: value for key, value in config.items() if key not in LEFT_OUT}, tensors


def cases_of(base_folder, folder, tensors, lengths, seed):
    write_tensors(folder / "adapter_model.safetensors", tensors, seed)
    plain = load_base(base_folder).eval()
    model = peft.PeftModel.from_pretrained(load_base(base_folder), folder).eval()
    random = numpy.random.default_rng(seed)
    sequences = []
    for length in lengths:
        tokens = random.integers(0, plain.config.vocab_size, length).tolist()
        case = families.sequence_case(model, tokens, True)
        if case["margin"] < families.MIN_MARGIN or len(set(case["greedy"])) < families.MIN_DISTINCT:
            return None
        if case["router_gap"] < families.MIN_ROUTER_GAP:
            return None
        # The adapter is to show.
        if families.sequence_case(plain, tokens, True)["greedy"] == case["greedy"]:
            return None
        del case["margin"], case["router_gap"]
        sequences.append(case)
    return dict(seed=seed, sequences=sequences)


def write(path, family, base_seed, config, tensors, adapters):
    def lines(fields, separator):
        return separator.join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in fields.items())

    texts = []
    for adapter in adapters:
        sequences = ",\n   ".join("{" + lines(case, ",\n    ") + "}" for case in adapter["sequences"])
        texts.append(f'{{"seed": {adapter["seed"]}, "sequences": [\n   {sequences}]}}')
    path.write_text("".join([
        f'{{"family": "{family}", "seed": {base_seed},\n "config": ', json.dumps(config, sort_keys=True),
        ',\n "tensors": [\n  ', ",\n  ".join(json.dumps(tensor) for tensor in tensors), '],\n "adapters": [\n  ',
        ",\n  ".join(texts), "]}\n"]))
    json.loads(path.read_text())


def make(name):
    family, settings, lengths = ADAPTERS[name]
    here = pathlib.Path(__file__).parent
    golden = json.loads((here / "families" / f"{family}.json").read_text())
    base_seed = golden["models"][0]["seed"]
    with tempfile.TemporaryDirectory() as temporary:
        base_folder, folder = pathlib.Path(temporary) / "base", pathlib.Path(temporary) / "adapter"
        base_folder.mkdir()
        (base_folder / "config.json").write_text(json.dumps(golden["config"]))
        write_tensors(base_folder / "model.safetensors", golden["tensors"], base_seed)
        config, tensors = describe(load_base(base_folder), settings, folder)
        adapters, seed = [], 0
        while len(adapters) < families.NUM_SEEDS and seed < 400:
            seed += 1
            cases = cases_of(base_folder, folder, tensors, lengths, seed)
            if cases is not None:
                adapters.append(cases)
        assert len(adapters) == families.NUM_SEEDS, f"{name}: no seeds with wide enough gaps"
        path = here / "adapters" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        write(path, family, base_seed, config, tensors, adapters)
        print(f"{name}: seeds {[each['seed'] for each in adapters]}, {path.stat().st_size} bytes", flush=True)


def main():
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    for name in sys.argv[1:] or ADAPTERS:
        make(name)


if __name__ == "__main__":
    main()

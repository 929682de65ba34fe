"""LoRA adapters of the demo target, as PEFT writes them, with random numbers: for tests and measurements. As a program:
adapter_folder.py FOLDER [SEED [RANK]]."""

import array
import json
import pathlib
import random
import struct
import sys

LAYERS, HIDDEN, KEYS, INNER = 8, 384, 128, 1024
# module -> (outputs, inputs)
MODULES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEYS, HIDDEN),
    "self_attn.v_proj": (KEYS, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INNER, HIDDEN),
    "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}


def make_adapter(folder, seed=1, rank=16):
    """Writes one with all modules, that changes outputs without making them nonsense; returns the folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True)
    numbers = random.Random(seed)
    header, data, size = {}, [], 0

    def add(name, rows, columns, greatest):
        nonlocal size
        values = array.array("f", (numbers.uniform(-greatest, greatest) for _ in range(rows * columns)))
        header[name] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [size, size + 4 * len(values)]}
        size += 4 * len(values)
        data.append(values.tobytes())

    for layer in range(LAYERS):
        for module, (outputs, inputs) in MODULES.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            add(f"{name}.lora_A.weight", rank, inputs, 1.7 / inputs**0.5)
            add(f"{name}.lora_B.weight", outputs, rank, 0.6 / rank**0.5)
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({module.split(".")[1] for module in MODULES}),
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    make_adapter(sys.argv[1], *map(int, sys.argv[2:]))

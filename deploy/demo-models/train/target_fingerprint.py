"""Computes the number by which a drafter checks that a head was trained for a verifier's target.

    python target_fingerprint.py --target ../tandem-target-15m

Prints the value for the field "tandem_target_fingerprint" of a head's config.json; the training scripts write it there.
It is the number of common/model/target_fingerprint.h.
"""

import argparse
import json
import pathlib
import struct

import torch
from safetensors import safe_open

MASK = (1 << 64) - 1


def combine(seed, value):
    """HashCombine of common/base/hash.h."""
    x = seed ^ ((value + 0x9E3779B97F4A7C15 + (seed << 6) + (seed >> 2)) & MASK)
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def hash_bytes(data, seed):
    """HashBytes of common/base/hash.h."""
    number = combine(seed, len(data))
    padded = data + bytes(-len(data) % 8)
    for (word,) in struct.iter_unpack("<Q", padded):
        number = combine(number, word)
    return number


class Weights:
    """Tensors of a model folder, whether its weights are in one file or several."""

    def __init__(self, folder):
        self._folder = pathlib.Path(folder)
        index = self._folder / "model.safetensors.index.json"
        self._files = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.exists() else None

    def read(self, name):
        """The tensor as little-endian float32, or nothing if the model does not have it."""
        if self._files is not None and name not in self._files:
            return b""
        file = self._files[name] if self._files is not None else "model.safetensors"
        with safe_open(self._folder / file, framework="pt") as tensors:
            if name not in tensors.keys():
                return b""
            return tensors.get_tensor(name).to(torch.float32).numpy().astype("<f4").tobytes()


def target_fingerprint(folder):
    """As 16 hexadecimal digits."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text(encoding="utf-8"))
    weights = Weights(folder)
    names = ["model.norm.weight"]
    for layer in range(config["num_hidden_layers"]):
        names += [f"model.layers.{layer}.{norm}.weight" for norm in ("input_layernorm", "post_attention_layernorm")]
    norms = b"".join(weights.read(name) for name in names)
    number = hash_bytes(norms, combine(config["hidden_size"], config["num_hidden_layers"]))
    return f"{number or 1:016x}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, type=pathlib.Path, help="folder of the target model")
    print(target_fingerprint(parser.parse_args().target))


if __name__ == "__main__":
    main()

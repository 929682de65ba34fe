#!/usr/bin/env python3
"""Writes a model folder with another one's dimensions and tokenizer, and random weights.

As a drafter it costs what the other costs and guesses at random: the worst that speculation can meet. Needs NumPy.
"""

import argparse
import pathlib
import shutil

import grow_model
import numpy as np

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    source = REPOSITORY / "deploy" / "demo-models" / "tandem-draft-general-1m"
    parser.add_argument("--source", type=pathlib.Path, default=source, help="model folder to imitate")
    parser.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "build" / "models" / "random-1m")
    parser.add_argument("--seed", type=int, default=1, help="of the weights (default %(default)s)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(args.seed)
    tensors = {}
    for name, values in grow_model.read_tensors(args.source).items():
        # Norms stay near 1; matrices keep the scale of a row's sum, so that no output is certain.
        scale = 1.0 / np.sqrt(values.shape[-1]) if values.ndim > 1 else 0.02
        tensors[name] = (scale * random.standard_normal(values.shape) + (values.ndim == 1)).astype("<f4")
    grow_model.write_tensors(args.out / "model.safetensors", tensors)
    for name in (*grow_model.COPIED, "config.json"):
        if (args.source / name).exists():
            shutil.copyfile(args.source / name, args.out / name)
    print(args.out)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes a copy of a model folder with shuffled weights, each matrix by itself.

As a drafter, the copy costs as much as the original and guesses at random. It is the worst case for speculation, and the
control for every measurement of a drafter.
"""

import argparse
import array
import json
import pathlib
import random
import shutil

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
# Type codes of `array` by bytes of an element; order within an element does not matter here.
TYPE_CODES = {"BF16": "H", "F16": "H", "F32": "I"}


def shuffle_weights(source, folder, seed=1):
    """Copies the model folder `source` to a new folder `folder`, and returns `folder`."""
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    data = 8 + int.from_bytes(content[:8], "little")  # After the header and its length.
    draws = random.Random(seed)
    for name, tensor in sorted(json.loads(content[8:data]).items()):
        if name == "__metadata__":
            continue
        begin, end = (data + offset for offset in tensor["data_offsets"])
        weights = array.array(TYPE_CODES[tensor["dtype"]], bytes(content[begin:end]))
        draws.shuffle(weights)
        content[begin:end] = weights.tobytes()
    path.write_bytes(content)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    source = REPOSITORY / "deploy" / "demo-models" / "tandem-draft-general-1m"
    parser.add_argument("--source", type=pathlib.Path, default=source, help="model folder to copy")
    parser.add_argument("--out", type=pathlib.Path, default=REPOSITORY / "build" / "models" / "random-1m")
    parser.add_argument("--seed", type=int, default=1, help="seed of the shuffle (default %(default)s)")
    args = parser.parse_args()
    print(shuffle_weights(args.source, args.out, args.seed))


if __name__ == "__main__":
    main()

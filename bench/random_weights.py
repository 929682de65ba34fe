"""A model that guesses at random: the rival explanation beside every figure of a drafter."""

import array
import pathlib
import random
import shutil


def shuffle_weights(source, folder, seed=7):
    """Copies the model folder `source`, of 16-bit weights, to `folder` with all weights in random order; returns it."""
    folder = pathlib.Path(folder)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")  # Behind the header and its length.
    weights = array.array("H", bytes(content[begin:]))
    random.Random(seed).shuffle(weights)
    content[begin:] = weights.tobytes()
    path.write_bytes(content)
    return folder

#!/usr/bin/env python3
"""Makes mxfp4_matrices.json: random MXFP4 tensors as gpt-oss has them, and the numbers that the transformers library
(5.24) makes of them, a list for each output of each expert. Scales that are not numbers or overflow are left out:
that library multiplies by 2^128 for the first.

    make_mxfp4_matrices.py
"""

import json
import pathlib

import numpy
import torch
from transformers.integrations import mxfp4

EXPERTS, OUTPUTS, GROUPS = 2, 3, 2


def main():
    rng = numpy.random.default_rng(5)
    blocks = rng.integers(0, 256, (EXPERTS, OUTPUTS, GROUPS, 16), dtype=numpy.uint8)
    scales = rng.integers(118, 132, (EXPERTS, OUTPUTS, GROUPS), dtype=numpy.uint8)
    scales[0, 0, 0] = 1
    scales[1, 2, 1] = 251
    # [experts, inputs, outputs]
    values = mxfp4.convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32)
    numbers = values.transpose(1, 2).double().numpy()
    path = pathlib.Path(__file__).resolve().parent / "mxfp4_matrices.json"
    path.write_text(json.dumps({"blocks": blocks.tolist(), "scales": scales.tolist(), "numbers": numbers.tolist()}) + "\n")


if __name__ == "__main__":
    main()

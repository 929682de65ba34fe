#!/usr/bin/env python3
"""Makes gguf_blocks.json: random blocks of every quantised type of GGUF, and the numbers that the `gguf` package
(0.19.0, of llama.cpp's authors) makes of them.

    make_gguf_blocks.py
"""

import json
import pathlib

import gguf
import numpy

HERE = pathlib.Path(__file__).resolve().parent
NUM_BLOCKS = 3
TYPES = ("Q8_0", "Q4_0", "IQ4_NL", "MXFP4", "Q4_K", "Q5_K", "Q6_K", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "IQ1_S",
         "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS", "TQ1_0", "TQ2_0")
WITH_MINIMUM = ("Q4_K", "Q5_K", "Q4_1", "Q5_1", "Q2_K")
# Where the scale of a block is, if not in front.
AT = {"Q6_K": 208, "Q2_K": 80, "Q3_K": 108, "TQ1_0": 52, "TQ2_0": 64}


def main():
    rng = numpy.random.default_rng(3)
    cases = []
    for name in TYPES:
        kind = getattr(gguf.GGMLQuantizationType, name)
        _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (NUM_BLOCKS, block_bytes), dtype=numpy.uint8)
        # Scales are halves, of ordinary size; those of MXFP4 are powers of two, the smallest ones too.
        scales = rng.uniform(-0.1, 0.1, (NUM_BLOCKS, 2)).astype(numpy.float16).view(numpy.uint8)
        if name == "MXFP4":
            blocks[:, 0] = [0, 1, 120]
        elif name == "IQ1_M":
            # Four bits of the scale in each of the last four words.
            for word in range(4):
                bits = scales[:, word // 2] >> (word % 2 * 4) & 15
                blocks[:, 49 + 2 * word] = blocks[:, 49 + 2 * word] & 15 | bits << 4
        else:
            at = AT.get(name, 0)
            blocks[:, at:at + 2] = scales[:, :2]
            if name in WITH_MINIMUM:
                blocks[:, at + 2:at + 4] = scales[:, 2:]
        numbers = gguf.quants.dequantize(blocks, kind).astype(numpy.float32).reshape(-1)
        cases.append({"type": int(kind), "name": name, "bytes": blocks.tobytes().hex(),
                      "bits": numbers.view(numpy.uint32).tolist()})
    text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n"
    (HERE / "gguf_blocks.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

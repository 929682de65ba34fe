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


def main():
    rng = numpy.random.default_rng(3)
    cases = []
    for name in ("Q8_0", "Q4_0", "IQ4_NL", "MXFP4", "Q4_K", "Q5_K", "Q6_K"):
        kind = getattr(gguf.GGMLQuantizationType, name)
        _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (NUM_BLOCKS, block_bytes), dtype=numpy.uint8)
        # Scales are halves, of ordinary size; those of MXFP4 are powers of two, the smallest ones too.
        scales = rng.uniform(-0.1, 0.1, (NUM_BLOCKS, 2)).astype(numpy.float16).view(numpy.uint8)
        at = block_bytes - 2 if name == "Q6_K" else 0
        if name == "MXFP4":
            blocks[:, 0] = [0, 1, 120]
        else:
            blocks[:, at:at + 2] = scales[:, :2]
            if name in ("Q4_K", "Q5_K"):
                blocks[:, 2:4] = scales[:, 2:]
        numbers = gguf.quants.dequantize(blocks, kind).astype(numpy.float32).reshape(-1)
        cases.append({"type": int(kind), "name": name, "bytes": blocks.tobytes().hex(),
                      "bits": numbers.view(numpy.uint32).tolist()})
    text = "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n"
    (HERE / "gguf_blocks.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

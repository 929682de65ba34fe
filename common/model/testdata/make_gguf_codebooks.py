#!/usr/bin/env python3
"""Makes ../gguf_codebooks.cc: the codebooks of GGUF's types IQ1, IQ2 and IQ3, packed. They are part of the format; the
`gguf` package (0.19.0, of llama.cpp's authors) has them.

    make_gguf_codebooks.py
"""

import pathlib

import numpy
from gguf import quants

HERE = pathlib.Path(__file__).resolve().parent
BOOKS = {"kIq1Codebook": quants.IQ1_S, "kIq2XxsCodebook": quants.IQ2_XXS, "kIq2XsCodebook": quants.IQ2_XS,
         "kIq2SCodebook": quants.IQ2_S, "kIq3XxsCodebook": quants.IQ3_XXS, "kIq3SCodebook": quants.IQ3_S}
PER_LINE = 13


def packed(book):
    """An integer for each vector of a codebook."""
    book.init_grid()
    vectors = book.grid.reshape(book.grid_shape).astype(int)
    bits = 2 if book.grid_shape[1] == 8 else 3
    codes = numpy.searchsorted(numpy.array(book.grid_map), vectors)
    assert (numpy.array(book.grid_map)[codes] == vectors).all()
    return [sum(int(code) << (bits * i) for i, code in enumerate(row)) for row in codes]


def main():
    lines = ["// Made by testdata/make_gguf_codebooks.py.", '#include "common/model/gguf_codebooks.h"', "",
             "#include <array>", "#include <cstdint>", "", "namespace tandem {", "", "// clang-format off"]
    for name, book in BOOKS.items():
        entries = packed(book)
        lines.append(f"const std::array<uint16_t, {len(entries)}> {name} = {{")
        for at in range(0, len(entries), PER_LINE):
            lines.append("    " + " ".join(f"0x{entry:04x}," for entry in entries[at:at + PER_LINE]))
        lines.append("};")
    lines += ["// clang-format on", "", "}  // namespace tandem"]
    (HERE.parent / "gguf_codebooks.cc").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

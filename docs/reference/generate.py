#!/usr/bin/env python3
"""Makes the reference pages that follow from the code, so that they cannot go stale.

    docs/reference/generate.py --bin-dir build/dev/bin           writes docs/generated/{flags,config,api}.md
    docs/reference/generate.py --bin-dir build/dev/bin --check   fails if a page differs from what it would write

flags.md is what the binaries print for --help; config.md and api.md are the comments of proto/. Change the text there.
Needs only the standard library.
"""

import argparse
import os
import pathlib
import sys

sys.dont_write_bytecode = True

import flag_pages  # noqa: E402  (without its bytecode in the source folder)
import proto_pages  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGES = ROOT / "docs" / "generated"


def pages(bin_dir):
    """(name, text) of every page. Without a folder of binaries, flags.md is left out."""
    protos = proto_pages.read_protos(ROOT / "proto")
    yield "api.md", proto_pages.api_page(protos)
    yield "config.md", proto_pages.config_page(protos)
    if bin_dir is not None:
        yield "flags.md", flag_pages.flags_page(bin_dir)


def difference(name, old, new):
    """The first line that differs, for people."""
    before, after = old.split("\n"), new.split("\n")
    number = next((i for i, pair in enumerate(zip(before, after)) if pair[0] != pair[1]), min(len(before), len(after)))
    line = lambda lines: lines[number] if number < len(lines) else "(the page ends)"  # noqa: E731
    return f"docs/generated/{name}:{number + 1}:\n  is     {line(before)[:300]}\n  should {line(after)[:300]}"


def main():
    parser = argparse.ArgumentParser(description="Makes docs/generated/flags.md, config.md and api.md.")
    parser.add_argument("--bin-dir", type=pathlib.Path, help="built binaries; without it flags.md is left as it is")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a page is stale")
    args = parser.parse_args()
    stale = False
    for name, text in pages(args.bin_dir):
        path = PAGES / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old == text:
            continue
        if not args.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote docs/generated/{name}")
            continue
        stale = True
        print(difference(name, old, text))
    if stale:
        bin_dir = os.path.relpath(args.bin_dir, ROOT) if args.bin_dir else "build/dev/bin"
        print(f"generate.py: stale pages; to renew them: docs/reference/generate.py --bin-dir {bin_dir}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

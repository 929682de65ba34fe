#!/usr/bin/env python3
"""Writes the notices that the licences of compiled-in libraries want beside programs.

    deploy/packages/notices.py build/release/bin > THIRD_PARTY

Shared libraries come in packages of their own, with theirs. The texts are those that the headers' packages and XGrammar's sources
have.
"""

import argparse
import pathlib
import sys
import tarfile

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "deploy"))
sys.dont_write_bytecode = True

import sbom  # noqa: E402

# Its licence asks for no notice beside object code, and its list of authors has 48,000 lines.
WITHOUT_NOTICE = ("libboost",)
# In XGrammar's sources, of what is compiled: neither of its tests nor of its traces.
XGRAMMAR_FILES = ("LICENSE", "NOTICE", "3rdparty/dlpack/LICENSE")
# Its licence is at the head of its one file.
PICOJSON = "3rdparty/picojson/picojson.h"


def heading(text):
    return f"{'=' * 80}\n{text}\n{'=' * 80}\n"


def header_notices():
    for names in sbom.HEADERS:
        found = next(filter(None, map(sbom.package_component, names)), None)
        if found is None:
            raise SystemExit(f"notices.py: {' or '.join(names)} is not installed, so its notice is not known")
        name = found["name"]
        title = f"{name} {found['version']} (headers of Debian's package)"
        if name.startswith(WITHOUT_NOTICE):
            yield heading(f"{title}: Boost Software License 1.0, https://www.boost.org/LICENSE_1_0.txt")
        else:
            text = pathlib.Path(f"/usr/share/doc/{name}/copyright").read_text(encoding="utf-8")
            yield heading(title) + text


def xgrammar_notices():
    version = sbom.xgrammar()["version"]
    path = REPOSITORY / "build" / "cache" / f"xgrammar-{version}.tar.gz"
    if not path.exists():
        raise SystemExit(f"notices.py: {path}: not there; deploy/fetch_xgrammar.sh fetches it")
    with tarfile.open(path) as archive:

        def read(name):
            return archive.extractfile(f"xgrammar-{version}/{name}").read().decode()

        for name in XGRAMMAR_FILES:
            yield heading(f"XGrammar {version}, {name}") + read(name)
        comment, ended, _ = read(PICOJSON).partition("*/")
        if not comment.startswith("/*") or not ended:
            raise SystemExit(f"notices.py: {PICOJSON} of XGrammar {version} does not begin with its licence any more")
        yield heading(f"XGrammar {version}, {PICOJSON}") + comment + ended + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path, help="folder of the programs")
    arguments = parser.parse_args()
    print("Tandem's programs contain code of these libraries. Tandem itself: see LICENSE.\n")
    print(*header_notices(), sep="\n")
    if (arguments.bin / "tandem-grammar").exists():
        print(*xgrammar_notices(), sep="\n")


if __name__ == "__main__":
    main()

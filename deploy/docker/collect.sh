#!/usr/bin/env bash
# collect.sh BIN OUT: collects the contents of the run-time image. OUT/root gets its files, OUT/packages a list of the
# packages whose libraries the binaries link.
set -euo pipefail

bin=${1:?usage: collect.sh BIN OUT}
out=${2:?usage: collect.sh BIN OUT}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
binaries=(tandem-router tandem-verifier tandem-grammar tandem-drafter tandem)

mkdir -p "$out/root/usr/local/bin" "$out/root/opt/tandem/demo-models"
linked=()
for name in "${binaries[@]}"; do
  strip -o "$out/root/usr/local/bin/$name" "$bin/$name"
  linked+=("$bin/$name")
done
# Built with -DTANDEM_CUDA=ON. docs/operate/gpu.md lists where binaries look for it.
if [[ -f $bin/tandem-cuda.so ]]; then
  mkdir -p "$out/root/usr/local/lib/tandem"
  strip --strip-unneeded -o "$out/root/usr/local/lib/tandem/tandem-cuda.so" "$bin/tandem-cuda.so"
  linked+=("$bin/tandem-cuda.so")
fi
install -m 755 "$repository"/deploy/docker/tandem-{demo-models,verifier-ranks} "$out/root/usr/local/bin/"
for folder in "$repository"/deploy/demo-models/tandem-*; do
  cp -r "$folder" "$out/root/opt/tandem/demo-models/"
done
chmod -R a+rX "$out/root"

# Libraries that belong to no package come with the machine, for example a GPU's driver.
ldd "${linked[@]}" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u |
  while read -r library; do
    # Packages list files with or without /usr before /lib, and CUDA's list the folder that a link points to. Failure is
    # fine: dpkg -S fails if any of these names belongs to no package, and at most one of them does. A library that
    # belongs to no package under any name comes with the machine.
    dpkg -S "$library" "/usr$library" "${library#/usr}" "$(realpath "$library")" 2>/dev/null || true
  done | sed 's/:.*//' | sort -u >"$out/packages"
[[ -s $out/packages ]] || { echo "collect.sh: no package owns a library of $bin" >&2 && exit 1; }

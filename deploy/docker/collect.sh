#!/usr/bin/env bash
# collect.sh BIN OUT: what the run-time image gets. OUT/root has its files, OUT/packages the packages of the libraries
# that the binaries were linked with.
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
# With -DTANDEM_CUDA=ON; docs/gpu.md says where binaries look for it.
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

# Libraries that belong to no package come with the machine, as a GPU's driver does.
ldd "${linked[@]}" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' | sort -u |
  while read -r library; do
    # Packages name files with and without /usr before /lib, and CUDA's by a folder that links lead to. Failure is fine:
    # dpkg -S fails when one of the names is no package's, and all but one of them never are; a library that belongs to
    # no package by any name comes with the machine.
    dpkg -S "$library" "/usr$library" "${library#/usr}" "$(realpath "$library")" 2>/dev/null || true
  done | sed 's/:.*//' | sort -u >"$out/packages"
[[ -s $out/packages ]] || { echo "collect.sh: no package has a library of $bin" >&2 && exit 1; }

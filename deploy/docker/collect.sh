#!/usr/bin/env bash
# collect.sh BUILD OUT: collects the contents of the run-time image. OUT/root gets its files, OUT/packages a list of the
# packages whose libraries the programs load.
set -euo pipefail

build=${1:?usage: collect.sh BUILD OUT}
out=${2:?usage: collect.sh BUILD OUT}
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
programs="$out/root/usr/local/bin"

mkdir -p "$out/root/opt/tandem/demo-models"
cmake --install "$build" --component programs --strip --prefix "$out/root/usr/local"
install -m 755 "$repository"/deploy/docker/tandem-{demo-models,verifier-ranks} "$programs"
for folder in "$repository"/deploy/demo-models/tandem-*; do
  cp -r "$folder" "$out/root/opt/tandem/demo-models/"
done
chmod -R a+rX "$out/root"

python3 -B "$repository/deploy/sbom.py" --packages "$programs" >"$out/packages"
[[ -s $out/packages ]] || { echo "collect.sh: no package owns a library of $programs" >&2 && exit 1; }

#!/usr/bin/env bash
# Makes what people install: a .deb, a tarball, the Python client's wheel, the bill of materials, and their checksums.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build_dir="$repository/build/release"
output="$repository/build/packages"
build=true
python=""
maintainer=()
programs=(tandem tandem-router tandem-verifier tandem-drafter tandem-grammar)

usage() {
  cat <<'EOF'
usage: deploy/package.sh [options]

Builds Tandem and makes packages for machines like this one:

  tandem_VERSION_ARCHITECTURE.deb         programs, units, dashboards, manifests, documents, the Python client
  tandem-VERSION-linux-PROCESSOR.tar.gz   the same, to run from any folder
  tandem_client-VERSION-py3-none-any.whl  the Python client
  tandem-VERSION.cdx.json                 the bill of materials of the programs in the .deb
  SHA256SUMS                              checksums of all these

docs/operate/packages.md says how to install and run them. The same sources give the same files on the same machine, by the
time in SOURCE_DATE_EPOCH, by default that of the last commit.

  --build-dir DIR     where the programs are built, with the preset release if it is new (default build/release)
  --output DIR        where the packages go (default build/packages)
  --no-build          take the programs of --build-dir as they are
  --python FILE       a Python with setuptools and grpcio-tools, to make the client with. By default pip downloads them, into
                      an environment in the build folder; pip's own settings decide where from
  --maintainer TEXT   "Name <address>" of who answers for the .deb
  --help              show this help
EOF
}

fail() {
  echo "package.sh: $*" >&2
  exit 1
}

while (($# > 0)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --no-build) build=false ;;
    --build-dir | --output | --python | --maintainer)
      [[ -n ${2-} ]] || { echo "package.sh: $1 needs a value" >&2 && exit 2; }
      case $1 in
        --build-dir) build_dir=$(realpath -m "$2") ;;
        --output) output=$(realpath -m "$2") ;;
        --python) python=$(command -v "$2") || fail "--python: no such program: $2" ;;
        --maintainer)
          [[ $2 =~ ^[^\<\>]+\ \<[^\<\>@]+@[^\<\>@]+\>$ ]] || fail "--maintainer: expected 'Name <address>', got '$2'"
          maintainer=("-DTANDEM_PACKAGE_MAINTAINER=$2")
          ;;
      esac
      shift
      ;;
    *)
      echo "package.sh: unknown option '$1'; --help lists them" >&2
      exit 2
      ;;
  esac
  shift
done

missing=()
for tool in cmake cpack ninja dpkg-shlibdeps file python3 strip; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
((${#missing[@]} == 0)) ||
  fail "missing here: ${missing[*]}. On Debian: apt-get install binutils cmake dpkg-dev file ninja-build python3 python3-venv"

if [[ -z ${SOURCE_DATE_EPOCH-} ]]; then
  SOURCE_DATE_EPOCH=$(git -C "$repository" log -1 --format=%ct) ||
    fail "no git tells the time of the last commit: set SOURCE_DATE_EPOCH, in seconds since 1970"
fi
export SOURCE_DATE_EPOCH

build_programs() {
  if [[ ! -f $build_dir/CMakeCache.txt ]]; then
    cmake --preset release -S "$repository" -B "$build_dir" -DTANDEM_TESTS=OFF "${maintainer[@]}"
  elif ((${#maintainer[@]} > 0)); then
    cmake "${maintainer[@]}" "$build_dir" >/dev/null
  fi
  "$repository/deploy/build.py" "$build_dir" "${programs[@]}"
}

build_client() {
  local sources="$scratch/client" command
  mkdir -p "$sources"
  # A copy: the build leaves things beside its sources.
  cp -r "$repository/proto" "$sources/"
  rm -rf "$sources"/proto/python/{build,*.egg-info} "$build_dir/wheel"
  if [[ -n $python ]]; then
    command=("$python" -m pip wheel --no-build-isolation)
  else
    python3 -m venv "$build_dir/wheel-python" || fail "python3 makes no environment. On Debian: apt-get install python3-venv"
    command=("$build_dir/wheel-python/bin/python" -m pip wheel)
  fi
  "${command[@]}" --quiet --disable-pip-version-check --no-deps --wheel-dir "$build_dir/wheel" "$sources/proto/python" ||
    fail "pip could not make the client's wheel; --python names a Python that has setuptools and grpcio-tools"
}

# Into a folder of their own first: packages of two runs never lie beside each other.
write_packages() {
  local made="$scratch/packages" debs tarballs wheels
  cpack --config "$build_dir/CPackConfig.cmake" -B "$made" >"$scratch/cpack.log" 2>&1 ||
    { cat "$scratch/cpack.log" >&2 && fail "cpack could not make the packages"; }
  debs=("$made"/*.deb) tarballs=("$made"/*.tar.gz) wheels=("$build_dir"/wheel/*.whl)
  mkdir -p "$output"
  rm -f "$output"/{tandem_*.deb,tandem-*.tar.gz,tandem_client-*.whl,tandem-*.cdx.json,SHA256SUMS}
  cp "${debs[0]}" "${tarballs[0]}" "${wheels[0]}" "$output/"
  dpkg-deb --fsys-tarfile "${debs[0]}" | tar -xO ./usr/share/tandem/sbom.json \
    >"$output/tandem-$(dpkg-deb --field "${debs[0]}" Version).cdx.json"
  (cd "$output" && sha256sum -- tandem_*.deb tandem-*.tar.gz tandem_client-*.whl tandem-*.cdx.json >SHA256SUMS)
}

if $build; then
  build_programs
elif [[ ! -f $build_dir/CPackConfig.cmake ]]; then
  fail "--no-build: $build_dir is not a configured build folder"
elif ((${#maintainer[@]} > 0)); then
  fail "--maintainer is for a build, and there is --no-build"
fi
for program in "${programs[@]}"; do
  [[ -x $build_dir/bin/$program ]] || fail "$build_dir/bin/$program is not there, and packages have all programs"
done
scratch=$(mktemp -d "$build_dir/packages.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
build_client
write_packages

cd "$output"
echo "package.sh: in $output:"
while read -r digest name; do
  printf '%10d KB  %s  %s\n' $((($(stat -c %s "$name") + 999) / 1000)) "$digest" "$name"
done <SHA256SUMS

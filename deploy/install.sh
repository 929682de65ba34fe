#!/usr/bin/env bash
# Installs the packages for building and testing Tandem on Debian 12. If all are installed, ends within a second.
# docs/inside/dependencies.md says what each library is for.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: deploy/install.sh [--aarch64] [--clang] [--no-test-programs] [--check] [--help]

Installs the Debian 12 packages for building and testing Tandem, with sudo if you are not root, and downloads the
sources of XGrammar. For a mirror or a machine without network, see deploy/fetch_xgrammar.sh --help.

  --aarch64   also install packages for the preset aarch64: a cross compiler, arm64 libraries, and QEMU
  --clang     also install packages for the presets asan, tsan and fuzz: clang 19 with its runtime libraries, and lld
  --no-test-programs
              leave out the programs that only tests start, such as Prometheus, etcd and a browser
  --check     install nothing; list what is missing and exit 1 if anything is
EOF
}

packages=(
  # Tools.
  cmake ninja-build g++ ccache pkg-config git ca-certificates protobuf-compiler protobuf-compiler-grpc clang-format
  python3 python3-venv python3-cryptography curl openssl
  # Libraries.
  libgrpc++-dev libprotobuf-dev libabsl-dev prometheus-cpp-dev libpcre2-dev libutf8proc-dev
  nlohmann-json3-dev libyaml-cpp-dev libcli11-dev libssl-dev libeigen3-dev libsqlite3-dev libboost1.81-dev
  # Tests and benchmarks.
  libgtest-dev libgmock-dev libbenchmark-dev
)
# Programs that tests start.
test_programs=(prometheus etcd-server etcd-client chromium dpkg-dev file)
# For the preset aarch64.
cross_packages=(
  g++-aarch64-linux-gnu qemu-user-static
  libabsl-dev:arm64 libpcre2-dev:arm64 libutf8proc-dev:arm64 libgtest-dev:arm64 libgmock-dev:arm64
)
# For the presets asan, tsan and fuzz. Debian 12 has several; of clang 14, its default, lambdas could not capture structured
# bindings.
clang_packages=(clang-19 libclang-rt-19-dev lld-19 llvm-19)

check_only=false
aarch64=false
clang=false
with_test_programs=true
while (($# > 0)); do
  case $1 in
    --aarch64) aarch64=true ;;
    --clang) clang=true ;;
    --no-test-programs) with_test_programs=false ;;
    --check) check_only=true ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "install.sh: unknown option '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

if $with_test_programs; then packages+=("${test_programs[@]}"); fi
if $aarch64; then packages+=("${cross_packages[@]}"); fi
if $clang; then packages+=("${clang_packages[@]}"); fi

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  {
    echo "install.sh: this is not a Debian system. Tandem is built and tested on Debian 12 (bookworm)."
    echo "Use a Debian 12 machine or container, or install the equivalents of these packages yourself:"
    printf '  %s\n' "${packages[@]}"
  } >&2
  exit 1
fi

# A package without an architecture after the colon must be installed for this machine; other architectures of it may
# be installed too.
native=$(dpkg --print-architecture)
missing=()
for package in "${packages[@]}"; do
  wanted=$native
  if [[ $package == *:* ]]; then wanted=${package#*:}; fi
  states=$(dpkg-query -W -f '${Architecture} ${db:Status-Status}\n' "$package" 2>/dev/null) || states=absent
  grep -Eqx "($wanted|all) installed" <<<"$states" || missing+=("$package")
done

fetch=("$(dirname "${BASH_SOURCE[0]}")/fetch_xgrammar.sh")
if $check_only; then fetch+=(--check); fi

if ((${#missing[@]} == 0)); then
  echo "install.sh: all ${#packages[@]} packages are installed"
  exec "${fetch[@]}"
fi
if $check_only; then
  echo "install.sh: missing: ${missing[*]}" >&2
  "${fetch[@]}" || true # It names what it misses; the exit code is the same either way.
  exit 1
fi

# shellcheck source=/dev/null
version_id=$(. /etc/os-release && echo "${ID:-unknown} ${VERSION_ID:-}")
if [[ $version_id != "debian 12" ]]; then
  echo "install.sh: note: this is $version_id; Tandem is tested on Debian 12, other versions may lack a package" >&2
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "install.sh: not root, and sudo is not there. As root, run: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "install.sh: installing ${#missing[@]} packages: ${missing[*]}"
if $aarch64 && [[ $native != arm64 ]]; then
  # Does nothing if the architecture is known already.
  "${as_root[@]}" dpkg --add-architecture arm64
fi
"${as_root[@]}" apt-get -q update
# A package that asks questions would stop an unattended run for ever.
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=600 install --no-install-recommends "${missing[@]}"
"${fetch[@]}"
echo "install.sh: done"

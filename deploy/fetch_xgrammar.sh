#!/usr/bin/env bash
# Downloads the sources of XGrammar (docs/inside/dependencies.md) into build/cache and checks their digest. Does nothing if they
# are already there.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: deploy/fetch_xgrammar.sh [--check] [--help]

Downloads XGrammar's source distribution with pip into build/cache, where CMake looks for it.

  --check   download nothing; exit with 1 if the file is missing
  --help    show this help

Environment:
  TANDEM_XGRAMMAR_FILE=FILE    use this file, without a download; the script checks its digest too
  TANDEM_PYPI_MIRROR=ADDRESS   index to download from, in place of PyPI; pip's settings, such as PIP_INDEX_URL, apply too
EOF
}

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
requirement=$repository/common/grammar/xgrammar.txt
cache=$repository/build/cache
check_only=false
while (($# > 0)); do
  case $1 in
    --check) check_only=true ;;
    -h | --help)
      usage
      exit 0
      ;;
    *)
      echo "fetch_xgrammar.sh: unknown option '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

version=$(sed -n 's/^xgrammar==\([^ ]*\) .*/\1/p' "$requirement")
digest=$(sed -n 's/.*--hash=sha256:\([0-9a-f]*\)$/\1/p' "$requirement")
archive=$cache/xgrammar-$version.tar.gz

matches() { [[ -f $1 && $(sha256sum <"$1") == "$digest  -" ]]; }

if matches "$archive"; then
  echo "fetch_xgrammar.sh: XGrammar $version is already there"
  exit 0
fi
if $check_only; then
  echo "fetch_xgrammar.sh: missing: $archive" >&2
  exit 1
fi
mkdir -p "$cache"

if [[ -n ${TANDEM_XGRAMMAR_FILE:-} ]]; then
  if ! matches "$TANDEM_XGRAMMAR_FILE"; then
    echo "fetch_xgrammar.sh: $TANDEM_XGRAMMAR_FILE: expected xgrammar-$version.tar.gz, SHA-256 $digest" >&2
    exit 1
  fi
  cp "$TANDEM_XGRAMMAR_FILE" "$archive.new" && mv "$archive.new" "$archive"
  echo "fetch_xgrammar.sh: copied XGrammar $version from $TANDEM_XGRAMMAR_FILE"
  exit 0
fi

work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
mirror=()
if [[ -n ${TANDEM_PYPI_MIRROR:-} ]]; then mirror=(--index-url "$TANDEM_PYPI_MIRROR"); fi
# pip checks the digest before it opens the archive.
if ! { python3 -m venv "$work/venv" &&
  "$work/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --no-binary xgrammar \
    --require-hashes "${mirror[@]}" --dest "$work" --requirement "$requirement"; } ||
  ! matches "$work/xgrammar-$version.tar.gz"; then
  {
    echo "fetch_xgrammar.sh: pip could not download XGrammar $version. Do one of these:"
    echo "  use an index that you can reach:      TANDEM_PYPI_MIRROR=ADDRESS deploy/fetch_xgrammar.sh"
    echo "  copy xgrammar-$version.tar.gz here:    TANDEM_XGRAMMAR_FILE=FILE deploy/fetch_xgrammar.sh"
    echo "  build without XGrammar:               cmake ... -DTANDEM_GRAMMAR=OFF"
  } >&2
  exit 1
fi
mv "$work/xgrammar-$version.tar.gz" "$archive"
echo "fetch_xgrammar.sh: downloaded XGrammar $version"

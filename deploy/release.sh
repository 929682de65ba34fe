#!/usr/bin/env bash
# Prepares a release: sets the version, dates the changelog, makes the packages, commits and tags.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"

usage() {
  cat <<'EOF'
usage: deploy/release.sh VERSION [--sign] [--skip-tests] [--help]

Prepares release VERSION, such as 0.2.0, on the current branch:

  1. checks that the tree is clean, that the tag is new, and that CHANGELOG.md has a section "## [VERSION] - Unreleased"
  2. writes VERSION to CMakeLists.txt and proto/python/pyproject.toml, and today's date to the changelog
  3. runs tests/run.sh --sanitizers --aarch64
  4. makes the packages in build/packages: .deb, tarball, Python client, bill of materials, checksums (deploy/package.sh)
  5. commits "Release VERSION" and makes the annotated tag vVERSION

It pushes nothing. If a step fails, it restores the files that it changed.

  --sign         sign the tag with the key that git is configured with
  --skip-tests   leave out step 3, for a tree whose tests have just passed
EOF
}

version= sign=--annotate skip_tests=false
while (($# > 0)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --sign) sign=--sign ;;
    --skip-tests) skip_tests=true ;;
    -*)
      echo "release.sh: unknown option '$1'; --help lists them" >&2
      exit 2
      ;;
    *)
      if [[ -n $version ]]; then
        echo "release.sh: one VERSION is expected, not '$version' and '$1'" >&2
        exit 2
      fi
      version=$1
      ;;
  esac
  shift
done

refuse() {
  echo "release.sh: $1" >&2
  exit 1
}

if [[ ! $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
  echo "release.sh: '$version' is not a version; expected three numbers such as 0.2.0" >&2
  exit 2
fi
if [[ -n $(git status --porcelain) ]]; then refuse "the tree has changes that are not committed: git status"; fi
if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then refuse "the tag v$version exists already"; fi
if ! grep -qF "## [$version] - Unreleased" CHANGELOG.md; then
  refuse "CHANGELOG.md: expected a section '## [$version] - Unreleased'"
fi

released=false
restore() {
  if ! $released; then git checkout --quiet -- CHANGELOG.md CMakeLists.txt proto/python/pyproject.toml; fi
}
trap restore EXIT

# replace FILE BEFORE AFTER: by extended regular expression, in exactly one line.
replace() {
  local file=$1 before=$2 after=$3 lines
  lines=$(grep -cE "$before" "$file" || true)  # grep fails if it counts 0; the next line reports that.
  if [[ $lines != 1 ]]; then refuse "$file: expected one line that matches '$before', found $lines"; fi
  sed -i -E "s/$before/$after/" "$file"
}
replace CMakeLists.txt '^project\(tandem VERSION [0-9.]+ ' "project(tandem VERSION $version "
replace proto/python/pyproject.toml '^version = "[0-9.]+"$' "version = \"$version\""
replace CHANGELOG.md "^## \[$version\] - Unreleased$" "## [$version] - $(date +%Y-%m-%d)"

if ! $skip_tests; then tests/run.sh --sanitizers --aarch64; fi

# The commit's own time, so that who makes packages of the tag gets the same ones.
SOURCE_DATE_EPOCH=$(date +%s)
export SOURCE_DATE_EPOCH GIT_COMMITTER_DATE="@$SOURCE_DATE_EPOCH +0000"
deploy/package.sh

git commit --quiet -m "Release $version" -- CHANGELOG.md CMakeLists.txt proto/python/pyproject.toml
released=true
git tag "$sign" -m "Tandem $version" "v$version"
echo "tagged v$version. To publish it: git push --follow-tags"

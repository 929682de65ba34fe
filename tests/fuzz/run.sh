#!/usr/bin/env bash
# Builds the libFuzzer programs and runs them, one after the other or several at once: docs/testing.md.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repository"

seconds=60
runs=-1
jobs=1
build=true
chosen=()
readonly folder=build/fuzz
readonly work=build/fuzzing

usage() {
  cat <<'EOF'
usage: tests/fuzz/run.sh [--seconds N | --hours N | --runs N] [--target NAME]... [--jobs N] [--no-build] [--list] [--help]

Builds the preset fuzz (clang: deploy/install.sh --clang) and runs every target, each for a minute. What was found lies in
build/fuzzing/findings/NAME, and what was reached in build/fuzzing/corpus/NAME, where the next run goes on.

  --seconds N    each target for so many seconds
  --hours N      all targets together for so many hours, in equal parts; fractions are fine
  --runs N       each target for so many inputs, however long that takes
  --target NAME  this one alone; may be given several times
  --jobs N       so many targets at once (default 1)
  --no-build     the programs are there
  --list         list the targets

Exits 1 if anything was found. A finding is seen again with build/fuzz/bin/fuzz_NAME FILE, made smaller with
build/fuzz/bin/fuzz_NAME -minimize_crash=1 -runs=100000 FILE, and kept in tests/fuzz/regressions/NAME, from where every
build tries it (fuzz_test).
EOF
}

need() {
  (($# >= 2)) || { echo "run.sh: $1 needs a value" >&2 && exit 2; }
}

hours=
list=false
while (($# > 0)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --seconds) need "$@" && seconds=$2 && shift ;;
    --hours) need "$@" && hours=$2 && shift ;;
    --runs) need "$@" && runs=$2 && seconds=0 && shift ;;
    --target) need "$@" && chosen+=("$2") && shift ;;
    --jobs) need "$@" && jobs=$2 && shift ;;
    --no-build) build=false ;;
    --list) list=true ;;
    *)
      echo "run.sh: unknown option '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

# As CMakeLists.txt names them.
mapfile -t targets < <(sed 's/#.*//' tests/fuzz/CMakeLists.txt | tr '\n' ' ' | grep -oE '[ (]TARGETS [a-z0-9_ ]*' | tr ' ' '\n' |
  grep -v -e '^TARGETS$' -e '^$' | sort)
if $list; then
  printf '%s\n' "${targets[@]}"
  exit 0
fi
for name in "${chosen[@]}"; do
  printf '%s\n' "${targets[@]}" | grep -Fxq -- "$name" || { echo "run.sh: no target '$name'; see --list" >&2 && exit 2; }
done
if ((${#chosen[@]} > 0)); then targets=("${chosen[@]}"); fi
if [[ -n $hours ]]; then
  seconds=$(python3 -c "print(max(1, int($hours * 3600 * $jobs / ${#targets[@]})))")
fi

if $build; then
  export CCACHE_BASEDIR="$repository" CCACHE_NOHASHDIR=1
  cmake --preset fuzz -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=16
  cmake --build "$folder" --parallel "$(nproc)" --target "${targets[@]/#/fuzz_}"
fi

# Files that targets write for every input cost least where there is no disk.
if [[ -d /dev/shm && -w /dev/shm ]]; then export TMPDIR=/dev/shm; fi
export ASAN_OPTIONS="detect_leaks=1:${ASAN_OPTIONS:-}" UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"

# run_target NAME: leaves one line for the table in $work/results.
run_target() {
  local name=$1 program=$folder/bin/fuzz_$1 corpus=$work/corpus/$1 findings=$work/findings/$1 log=$work/logs/$1
  local started=$SECONDS result=ok options=()
  mkdir -p "$corpus" "$findings"
  TANDEM_FUZZ_SEEDS=$work/seeds/$name "$program" >"$log" 2>&1 || { echo "$name: the seeds were not made, see $log" && return; }
  if [[ -f tests/fuzz/dictionaries/$name.dict ]]; then options+=("-dict=tests/fuzz/dictionaries/$name.dict"); fi
  if ((seconds > 0)); then options+=("-max_total_time=$seconds"); fi
  local known=()
  if [[ -d tests/fuzz/regressions/$name ]]; then known=("tests/fuzz/regressions/$name"); fi
  "$program" "${options[@]}" -runs="$runs" -timeout=30 -rss_limit_mb=3000 -print_final_stats=1 -artifact_prefix="$findings/" \
    "$corpus" "$work/seeds/$name" "${known[@]}" >"$log" 2>&1 || result=FOUND
  local inputs reached
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
  reached=$(grep -o ' cov: [0-9]*' "$log" | tail -1 | tr -dc 0-9)
  printf '%-20s %-6s %12s %8d %8s %8d\n' "$name" "$result" "${inputs:-?}" $((SECONDS - started)) "${reached:-?}" \
    "$(find "$corpus" -type f | wc -l)" >"$work/results/$name"
  cat "$work/results/$name"
}

mkdir -p "$work"/{corpus,findings,seeds,logs,results}
rm -f "$work"/results/*
printf '%-20s %-6s %12s %8s %8s %8s\n' target result inputs seconds edges corpus
for name in "${targets[@]}"; do
  while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
  run_target "$name" &
done
wait

if grep -q FOUND "$work"/results/* || (($(find "$work/results" -type f | wc -l) < ${#targets[@]})); then
  echo "run.sh: found something; the ends of the logs:" >&2
  for name in "${targets[@]}"; do
    grep -qs ' ok ' "$work/results/$name" || { echo "== $name" && tail -n 25 "$work/logs/$name"; } >&2
  done
  exit 1
fi

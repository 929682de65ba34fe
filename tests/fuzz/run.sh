#!/usr/bin/env bash
# Builds the libFuzzer programs and runs them, one after another or several at a time. See docs/inside/testing.md.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$repository"

seconds=60
runs=-1
jobs=1
build=true
chosen=()
further=()
readonly folder=build/fuzz
readonly work=build/fuzzing

usage() {
  cat <<'EOF'
usage: tests/fuzz/run.sh [--seconds N | --hours N | --runs N] [--target NAME]... [--jobs N] [--no-build] [--list] [--help]
                         [-- LIBFUZZER_OPTION...]

Builds the preset fuzz (needs clang: deploy/install.sh --clang) and runs every target for a minute. Findings go to
build/fuzzing/findings/NAME. Inputs that reached new code go to build/fuzzing/corpus/NAME, and the next run starts from
them.

  --seconds N    run each target for N seconds (default 60)
  --hours N      run all targets for N hours in total, in equal parts; N may be a fraction
  --runs N       run each target for N inputs, with no time limit
  --target NAME  run only this target; repeat for several
  --jobs N       run N targets at a time (default 1)
  --no-build     use the programs that are already built
  --list         list the targets

What follows -- goes to libFuzzer. Inputs grow to 4,096 bytes, and long ones are slow: -max_len=512 tries many more.

Exits with 1 if it finds anything. For each finding:

  1. reproduce it:  build/fuzz/bin/fuzz_NAME FILE
  2. minimise it:   build/fuzz/bin/fuzz_NAME -minimize_crash=1 -runs=100000 FILE
  3. keep it in tests/fuzz/regressions/NAME, where fuzz_test replays it in every build
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
    --)
      further=("${@:2}")
      break
      ;;
    *)
      echo "run.sh: unknown option '$1'" >&2
      usage >&2
      exit 2
      ;;
  esac
  shift
done

# The names in CMakeLists.txt.
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

# Targets write files for every input; that is fastest in memory.
if [[ -d /dev/shm && -w /dev/shm ]]; then export TMPDIR=/dev/shm; fi
export ASAN_OPTIONS="detect_leaks=1:${ASAN_OPTIONS:-}" UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}"

# run_target NAME: leaves one line for the table in $work/results.
run_target() {
  local name=$1 program=$folder/bin/fuzz_$1 corpus=$work/corpus/$1 findings=$work/findings/$1 log=$work/logs/$1
  # Longer stacks of allocations would take up to an eighth of the time. Reproduce a finding to see them.
  local started=$SECONDS result=ok options=() asan=malloc_context_size=2:$ASAN_OPTIONS
  mkdir -p "$corpus" "$findings"
  TANDEM_FUZZ_SEEDS=$work/seeds/$name "$program" >"$log" 2>&1 || { echo "$name: could not make the seeds; see $log" && return; }
  if [[ -f tests/fuzz/dictionaries/$name.dict ]]; then options+=("-dict=tests/fuzz/dictionaries/$name.dict"); fi
  case $name in
    # Other threads free what an input has allocated. libFuzzer would look for leaks after every input, which would take two
    # thirds of the time. Leaks are still found at the end; no input reproduces them, so their stacks must be whole.
    otlp) options+=(-detect_leaks=0) asan=$ASAN_OPTIONS ;;
  esac
  if ((seconds > 0)); then options+=("-max_total_time=$seconds"); fi
  local known=()
  if [[ -d tests/fuzz/regressions/$name ]]; then known=("tests/fuzz/regressions/$name"); fi
  options+=("-runs=$runs" -timeout=30 -rss_limit_mb=3000 -print_final_stats=1 "-artifact_prefix=$findings/")
  ASAN_OPTIONS=$asan "$program" "${options[@]}" "${further[@]}" \
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
  echo "run.sh: findings; last lines of their logs:" >&2
  for name in "${targets[@]}"; do
    grep -qs ' ok ' "$work/results/$name" || { echo "== $name" && tail -n 25 "$work/logs/$name"; } >&2
  done
  exit 1
fi

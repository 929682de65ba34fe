#!/usr/bin/env bash
# Installs packages, builds everything and runs every test. CI runs it as it stands here, and then --part any.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$repository"

preset=dev
quick=false
sanitizers=false
aarch64=false
part=
clients=false
unity=ON
rerun=true
changed=false
base=
ctest_arguments=()
cores=$(nproc)
# Tests of services, engine and telemetry, whose code has threads, run under ThreadSanitizer. The simulation is not among them: it runs a whole
# cluster in one thread.
readonly threaded_tests='rpc|engine_cpu|router_(core|service|etcd|feedback|http|live|registry|spool|vllm|cli)|verifier_(test|service)|drafter_service|metrics|tracing'
# Scripts, benchmarks, and tests that take many minutes under a sanitizer. To run the latter anyway:
# tests/run.sh --preset asan -- -R "e2e_test|cuda_engine".
readonly unsanitized='^tidy|^changed|^compose|^sbom|^quickstart|^e2e|^cuda_engine|^bench|^chaos|^dashboards|^hostile|^k8s|^learning|^live_page|^masks|^packages|^plan|^reading_grade|^reference|^soak'
# Of the tests under AddressSanitizer, those that take about half of its time, compiling included.
readonly router_part='^router|^cluster|^simulation|^fuzz|^grpc|^common_rpc'
# Tests that speak gRPC take long to compile, and already run under ThreadSanitizer. tests/run.sh --preset asan also runs
# them under AddressSanitizer.
readonly remote='service_test|cli|end_to_end|rpc_streams'

usage() {
  cat <<'EOF'
usage: tests/run.sh [--preset P] [--quick] [--sanitizers] [--aarch64] [--clients] [--incremental]
                    [--no-rerun] [--help] [-- ctest arguments]
       tests/run.sh --changed [--base REV] [--preset P] [--incremental]
       tests/run.sh --part P

Installs missing packages, builds everything and runs every test. Lists at the end what was skipped, why, and how to run
what failed alone. Failed tests run once more, one at a time, and those that pass then are listed: on a shared machine,
other processes can delay a test of whole processes by seconds.

  --changed      only build and run the tests that a change touches, and tidy: two minutes at most for most changes, in a
                 build folder that has been built before. The change is what differs from where the branch left main,
                 uncommitted and new files included. tests/changed/changed.py --help says which tests that are
  --base REV     compare with this revision instead of main
  --preset P     CMake preset to test (default dev); see CMakePresets.json
  --quick        skip tests labelled slow or integration
  --sanitizers   then run the C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer, and the tests of
                 concurrent code under ThreadSanitizer
  --aarch64      then cross-compile the CPU engine for 64-bit Arm and run its tests under QEMU
  --part P       run only one part of what is not run otherwise, the first four of --sanitizers --aarch64:
                   asan-router   AddressSanitizer and UndefinedBehaviorSanitizer for router, RPC, simulations and fuzz targets
                   asan-rest     the same for all other tests
                   tsan          ThreadSanitizer
                   aarch64       64-bit Arm
                   first-steps   the README's first command and the pages for new users, as a user who is not root, in a
                                 clone in a folder with a space in its name (needs root)
                   any           one of these, chosen by a hash of the sources: the same sources always get the same part
  --clients      then install other clients (LiteLLM, LangChain, llm, the stubs of vLLM's gateways; half a gigabyte) and
                 test them
  --incremental  compile each source alone, so that a change compiles less. Otherwise the sources of a target are compiled
                 together (a unity build), which halves the time of a first build or better
  --no-rerun     do not run failed tests a second time
  -- ...         arguments for ctest, for example: tests/run.sh -- -R tokenizer
EOF
}

while (($# > 0)); do
  case $1 in
    -h | --help)
      usage
      exit 0
      ;;
    --preset)
      (($# >= 2)) || { echo "run.sh: --preset needs a value" >&2 && exit 2; }
      preset=$2
      shift
      ;;
    --quick) quick=true ;;
    --sanitizers) sanitizers=true ;;
    --aarch64) aarch64=true ;;
    --part)
      [[ -n ${2-} ]] || { echo "run.sh: --part needs a value" >&2 && exit 2; }
      part=$2
      shift
      ;;
    --clients) clients=true ;;
    --incremental) unity=OFF ;;
    --no-rerun) rerun=false ;;
    --changed) changed=true ;;
    --base)
      (($# >= 2)) || { echo "run.sh: --base needs a value" >&2 && exit 2; }
      base=$2
      shift
      ;;
    --)
      shift
      ctest_arguments+=("$@")
      break
      ;;
    *)
      echo "run.sh: unknown option '$1'; options of ctest come after --" >&2
      exit 2
      ;;
  esac
  shift
done

if [[ -n $part ]] && { $sanitizers || $aarch64; }; then
  echo "run.sh: --part selects its tests itself: use it without --sanitizers and --aarch64" >&2
  exit 2
fi
if [[ -n $part ]] && { $quick || $clients || ((${#ctest_arguments[@]} > 0)); }; then
  echo "run.sh: --part selects its tests itself: use it without --quick, --clients and arguments of ctest" >&2
  exit 2
fi
if [[ $part != @(|asan-router|asan-rest|tsan|aarch64|first-steps|any) ]]; then
  echo "run.sh: unknown part '$part': expected asan-router, asan-rest, tsan, aarch64, first-steps or any" >&2
  exit 2
fi
if $changed && { $quick || $sanitizers || $aarch64 || [[ -n $part ]] || $clients || ((${#ctest_arguments[@]} > 0)); }; then
  echo "run.sh: --changed selects the tests itself: of the other options it takes --base, --preset, --incremental and --no-rerun" >&2
  exit 2
fi
if [[ -n $base ]] && ! $changed; then
  echo "run.sh: --base is for --changed" >&2
  exit 2
fi

summary=()
results_of=()  # Presets whose tests have run.
failed=false
ahead=()  # Processes in the background.
packages=  # The one that installs packages: it is not stopped half-way.

print_summary() {
  local status=$? preset
  for preset in "${results_of[@]}"; do
    if [[ -f build/$preset/results.xml ]]; then python3 -B tests/results/results.py "build/$preset" || true; fi # It only lists.
  done
  printf '\n%-28s %-8s %s\n' stage result seconds
  printf '%s\n' "${summary[@]}"
  if ((${#ahead[@]} > 0)); then kill "${ahead[@]}" 2>/dev/null || true; fi  # They may have ended already.
  if [[ -n $packages ]]; then
    echo "run.sh: waiting for the end of deploy/install.sh (build/packages.log)"
    wait "$packages" || true  # The run has failed already, and its status is kept.
  fi
  exit "$status"
}
trap print_summary EXIT

# stage NAME [--go-on] command...: runs a command, records its result and time. Without --go-on, a failure ends the run.
stage() {
  local name=$1 go_on=false started=$SECONDS result=ok
  shift
  if [[ $1 == --go-on ]]; then
    go_on=true
    shift
  fi
  printf '\n==> %s\n' "$name"
  "$@" || result=FAILED
  summary+=("$(printf '%-28s %-8s %d' "$name" "$result" $((SECONDS - started)))")
  if [[ $result == FAILED ]]; then
    failed=true
    $go_on || exit 1
  fi
}

# finished PROCESS LOG: waits for a process in the background, and prints its log if it failed.
finished() {
  local process=$1 log=$2
  wait "$process" || { cat "$log" && return 1; }
}

# python_environment FOLDER REQUIREMENTS: a virtual environment for Python tests, rebuilt when its requirements change.
python_environment() {
  local folder=$1 requirements=$2 stamp
  stamp=$(sha256sum tests/requirements.txt "$requirements")
  if [[ -f $folder/stamp && $(<"$folder/stamp") == "$stamp" ]]; then
    echo "run.sh: $folder is up to date"
    return 0
  fi
  rm -rf "$folder"
  python3 -m venv "$folder" || return 1
  "$folder/bin/pip" install --quiet --disable-pip-version-check -r "$requirements" || return 1
  printf '%s\n' "$stamp" >"$folder/stamp"
}

# Presets share objects through the compiler cache, whichever folder they build in. With CCACHE_DEPEND it knows what a
# compilation reads from the compiler itself, and runs no preprocessor before it. The sloppiness is what it asks of those who
# precompile headers; no source has __DATE__ or __TIME__.
export CCACHE_BASEDIR="$repository" CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1 CCACHE_SLOPPINESS=pch_defines,time_macros

# The CUDA module compiles and links without a GPU, and its tests skip cases that need one. It is not built with
# sanitizers, which do not support CUDA, nor for other architectures.
cuda=OFF
if [[ $preset == dev || $preset == release ]]; then
  if [[ -n $(command -v nvcc) || -x /usr/local/cuda/bin/nvcc ]]; then
    cuda=ON
  else
    echo "run.sh: no CUDA toolkit found: tandem-cuda.so is not built"
  fi
fi

# configure PRESET [settings...]
configure() {
  local preset=$1 precompiled=OFF
  shift
  # g++ takes 20 s to precompile the same headers, and then reads them hardly faster than before.
  if [[ $preset == @(asan|tsan) ]]; then precompiled=$unity; fi
  cmake --preset "$preset" -DTANDEM_TEST_PYTHON="$repository/build/python/bin/python" -DCMAKE_UNITY_BUILD=$unity \
    -DCMAKE_UNITY_BUILD_BATCH_SIZE=64 -DTANDEM_PCH=$precompiled "$@"
}

# build PRESET [targets...]
build() {
  local preset=$1
  shift
  deploy/build.py "build/$preset" --jobs "$cores" -- "$@"
}

run_ctest() {
  local preset=$1 folder=build/$1 failures
  shift
  local ctest=(ctest --test-dir "$folder" --output-on-failure --no-tests=error --timeout 600)
  rm -f "$folder/Testing/Temporary/LastTestsFailed.log"
  # The whole output of tests that pass goes to the results too: it says which cases were skipped, and why.
  "${ctest[@]}" --parallel $((2 * cores)) --test-output-size-passed 10000000 --output-junit "$repository/$folder/results.xml" "$@" && return 0
  # ctest lists no failed test if it failed itself.
  if ! $rerun || [[ ! -s $folder/Testing/Temporary/LastTestsFailed.log ]]; then return 1; fi
  failures=$(sed 's/^[0-9]*://' "$folder/Testing/Temporary/LastTestsFailed.log" | paste -sd ' ')
  rm "$folder/Testing/Temporary/LastTestsFailed.log" # The second run decides (tests/results).
  printf '\n==> second run: %s\n' "$failures"
  # Select by name: --rerun-failed selects by number, and numbers change without the selection.
  "${ctest[@]}" -R "^(${failures// /|})\$" || return 1
  summary+=("$(printf '%-28s %-8s %s' "$preset: second run" ok "$failures")")
}

# Test executables of PRESET that the ctest selection runs. The executable of test x is the target tandem_x.
test_targets() {
  local preset=$1 known
  shift
  known=$(cmake --build "build/$preset" --target help | sed -n 's/^\(tandem_[a-z0-9_]*\): phony$/\1/p')
  ctest --test-dir "build/$preset" -N "$@" 2>/dev/null | sed -n 's/^ *Test *#[0-9]*: \([a-z0-9_]*\)$/tandem_\1/p' |
    grep -Fx -f <(printf '%s\n' "$known")
}

# Tests kernels and engine on emulated 64-bit Arm. All demo models and the whole row invariance test would take minutes, so
# only the smallest demo model and one model with random weights run.
emulated() {
  local bin=build/aarch64/bin
  local qemu=(qemu-aarch64-static -cpu max) invariance result=0
  "${qemu[@]}" "$bin/tandem_row_invariance_test" --gtest_filter='*HoldsForEveryThreadCountAndInstructionSet/Llama*' \
    >build/aarch64-invariance.log 2>&1 &
  invariance=$!
  TANDEM_EXPECTED_KERNELS=neon-i8mm "${qemu[@]}" "$bin/tandem_common_engine_cpu_test" --gtest_filter='-*target_15m:*code_1m:*math_1m:*general_4m' || result=1
  wait "$invariance" || result=1
  cat build/aarch64-invariance.log
  return $result
}

# The sanitizer stages, and their tests. Scripts have nothing to sanitize, and ThreadSanitizer does not understand the fibers of
# the emulated GPU.
asan=$sanitizers
tsan=$sanitizers
asan_selection=(-LE slow -E "$unsanitized|$remote")
tsan_selection=(-LE slow -E "$unsanitized|^verifier_cuda" -R "$threaded_tests")

# Chooses a part.
any_part() {
  local parts=(asan-router asan-rest tsan aarch64 first-steps) hash
  hash=$(find common drafter proto router tests verifier -type f ! -path '*/__pycache__/*' -print0 | LC_ALL=C sort -z |
    xargs -0 cat | sha256sum)
  echo "${parts[16#${hash:0:8} % ${#parts[@]}]}"
}

if [[ $part == any ]]; then part=$(any_part); fi
case $part in
  '') ;;
  asan-router)
    asan=true
    asan_selection=(-LE slow -E "$unsanitized|$remote" -R "$router_part")
    ;;
  asan-rest)
    asan=true
    asan_selection=(-LE slow -E "$unsanitized|$remote|$router_part")
    ;;
  tsan) tsan=true ;;
  aarch64) aarch64=true ;;
esac
if [[ -n $part ]]; then summary+=("$(printf '%-28s %s' part "$part")"); fi

# What is emulated.
readonly aarch64_targets=(tandem_common_engine_cpu_test tandem_row_invariance_test)

# prepare PRESET [ctest-selection...]: configures and builds what the later stages of a preset run.
prepare() {
  local preset=$1 targets=("${aarch64_targets[@]}")
  shift
  configure "$preset" || return 1
  if [[ $preset != aarch64 ]]; then mapfile -t targets < <(test_targets "$preset" "$@"); fi
  build "$preset" "${targets[@]}"
}

# prepare_ahead PRESET [ctest-selection...]: the same in the background, after those before it, on CPU time that the tests
# leave: many tests mostly wait for processes. A build that fails here fails again in its own stage, which reports it.
prepare_ahead() {
  local before=
  if ((${#ahead[@]} > 0)); then before=${ahead[-1]}; fi
  {
    renice -n 19 "$BASHPID" >/dev/null
    if [[ -n $before ]]; then tail --pid="$before" -f /dev/null; fi
    prepare "$@" || true  # The stage itself reports the failure.
  } >"build/$1-ahead.log" 2>&1 &
  ahead+=("$!")
  ahead_of[$1]=$!
}
declare -A ahead_of=()

# built_ahead PRESET: waits for what prepare_ahead began, if it did.
built_ahead() {
  if [[ -n ${ahead_of[$1]-} ]]; then stage "$1: background build" --go-on wait "${ahead_of[$1]}"; fi
}

# sanitized PRESET ctest-selection...
sanitized() {
  local preset=$1 targets
  shift
  built_ahead "$preset"
  stage "$preset: configure" configure "$preset"
  mapfile -t targets < <(test_targets "$preset" "$@")
  if ((${#targets[@]} == 0)); then
    echo "run.sh: no tests for $preset" >&2
    exit 1
  fi
  stage "$preset: build" build "$preset" "${targets[@]}"
  results_of+=("$preset")
  stage "$preset: test" --go-on run_ctest "$preset" "$@"
}

# Which tests a change touches: lines of a test's name, a tab, and its target.
select_changed() {
  python3 -B tests/changed/changed.py --build "build/$preset" ${base:+--base "$base"} >build/changed.txt
}

run_changed() {
  local names=(tidy) targets=() name target
  if [[ ! -f build/$preset/build.ninja ]]; then
    stage "$preset: configure" configure "$preset" -DTANDEM_CUDA=$cuda
    stage "$preset: first build" build "$preset"
  fi
  # A list of sources may have changed.
  stage "$preset: build files" cmake --build "build/$preset" --target build.ninja
  stage "$preset: selection" select_changed
  while IFS=$'\t' read -r name target; do
    names+=("$name")
    # Scripts run the programs.
    if [[ -n $target ]]; then targets+=("$target"); else targets+=(tandem tandem-router tandem-verifier tandem-drafter); fi
  done <build/changed.txt
  printf '%s\n' "${names[@]}"
  if ((${#targets[@]} > 0)); then stage "$preset: build" build "$preset" "${targets[@]}"; fi
  results_of+=("$preset")
  stage "$preset: test" --go-on run_ctest "$preset" -R "^($(IFS='|' && echo "${names[*]}"))\$"
}

# What must be there before anything is built. Libraries of another architecture are of the same version as this machine's, so
# installing them can replace these.
needs=()
if [[ $preset == @(asan|tsan|fuzz) ]]; then needs+=(--clang); fi
if $aarch64 || [[ $preset == aarch64 ]]; then needs+=(--aarch64); fi
needs_later=("${needs[@]}")
if $asan || $tsan; then needs_later+=(--clang); fi

if $changed; then
  run_changed
  if $failed; then exit 1; fi
  exit 0
fi

selection=()
if $quick; then selection+=(-LE 'slow|integration'); fi

mkdir -p build
stage "packages" deploy/install.sh --no-test-programs "${needs[@]}"
# Beside the build: both wait for the network much of the time. sudo could ask for a password, and nobody would see that.
if ((EUID == 0)); then
  deploy/install.sh "${needs_later[@]}" >build/packages.log 2>&1 &
  packages=$!
else
  stage "further packages" deploy/install.sh "${needs_later[@]}"
fi
python_environment build/python tests/requirements.txt >build/python.log 2>&1 &
ahead+=("$!")
# A test of a published model is skipped without it.
deploy/models.sh smollm2-135m >/dev/null 2>build/model.log &
model=$!
if [[ -z $part ]]; then
  stage "$preset: configure" configure "$preset" -DTANDEM_CUDA=$cuda
  stage "$preset: build" build "$preset"
fi
if [[ -n $packages ]]; then
  stage "further packages" finished "$packages" build/packages.log
  packages=
fi
stage "python environment" finished "${ahead[0]}" build/python.log
ahead=()
wait "$model" || { echo "run.sh: no published model, so its test is skipped:" && cat build/model.log; }
if [[ -z $part ]]; then
  if $asan; then prepare_ahead asan "${asan_selection[@]}"; fi
  if $tsan; then prepare_ahead tsan "${tsan_selection[@]}"; fi
  if $aarch64; then prepare_ahead aarch64; fi
  results_of+=("$preset")
  stage "$preset: test" --go-on run_ctest "$preset" "${selection[@]}" "${ctest_arguments[@]}"
fi

if $asan; then sanitized asan "${asan_selection[@]}"; fi
if $tsan; then sanitized tsan "${tsan_selection[@]}"; fi

if $aarch64; then
  built_ahead aarch64
  stage "aarch64: configure" configure aarch64
  stage "aarch64: build" build aarch64 "${aarch64_targets[@]}"
  stage "aarch64: test" --go-on emulated
fi

if [[ $part == first-steps ]]; then stage "first steps" --go-on tests/first_steps/run.sh; fi

if $clients; then
  stage "clients: environment" python_environment build/clients tests/clients/requirements.txt
  for name in clients vllm_stubs; do
    stage "clients: $name" --go-on python3 -B tests/e2e/run_python_test.py --python=build/clients/bin/python \
      --work-dir "build/$preset/e2e" --bin-dir "build/$preset/bin" "tests/clients/${name}_test.py"
  done
fi

if $failed; then exit 1; fi

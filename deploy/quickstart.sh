#!/usr/bin/env bash
# From a fresh clone to streamed text: installs packages, builds, and starts one drafter process (four draft models and a
# draft head), one verifier and one router on loopback. Streams generations with drafters that the router chooses, then
# measures the speed with and without speculation. Stops everything that it started when it ends.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
models="$repository/deploy/demo-models"
target=tandem-target-15m
draft_models=(general-1m code-1m math-1m general-4m)
head=eagle3
drafters=("${draft_models[@]}" "$head")

build_dir="$repository/build/quickstart"
bin_dir=""
json_file=""
tokens=96
pairs=5
serve=false
admin=false
cores=$(nproc)
verifier_threads=$((cores > 1 ? cores - 1 : 1))
drafter_threads=1
readonly start_deadline_seconds=60
readonly stop_deadline_seconds=10
readonly serve_endpoint=127.0.0.1:7001
readonly serve_http=127.0.0.1:7080

usage() {
  cat <<EOF
usage: deploy/quickstart.sh [options]

Installs missing packages, builds Tandem and starts its services with the demo models. Streams a story, a piece of code
and a maths answer, each with the drafter that the router chooses, and JSON that follows a schema. Then prints how fast
the target model runs with speculation off and on. The services stop when the script ends. The first run takes several
minutes, mostly for the build; later runs start in seconds.

  --serve               keep the services up for your own calls until Ctrl-C, in place of measuring
  --admin               with --serve: its token may also change tenants and drafters, and calibrate
  --json FILE           also write the measurements to FILE
  --tokens N            most tokens per generation (default $tokens)
  --pairs N             off/on pairs to measure for each row of the table (default $pairs)
  --build-dir DIR       build in DIR (default build/quickstart)
  --bin-dir DIR         use the binaries in DIR; skips installing and building
  --verifier-threads N  threads of the target model (default: all cores but one, here $verifier_threads)
  --drafter-threads N   threads of the draft models (default $drafter_threads)
  --help                show this help
EOF
}

fail() {
  echo "quickstart.sh: $*" >&2
  exit 1
}

# Prints a heading with the seconds since the start.
say() { printf '\n==> [%3d s] %s\n' "$SECONDS" "$*"; }

parse_options() {
  while (($# > 0)); do
    case $1 in
      -h | --help)
        usage
        exit 0
        ;;
      --serve)
        serve=true
        shift
        ;;
      --admin)
        admin=true
        shift
        ;;
      --json | --tokens | --pairs | --build-dir | --bin-dir | --verifier-threads | --drafter-threads)
        (($# >= 2)) || fail "$1 needs a value"
        set_option "$1" "$2"
        shift 2
        ;;
      *)
        echo "quickstart.sh: unknown option '$1'" >&2
        usage >&2
        exit 2
        ;;
    esac
  done
  if $admin && ! $serve; then fail "--admin needs --serve"; fi
}

set_option() {
  case $1 in
    --json) json_file=$2 ;;
    --build-dir) build_dir=$(realpath -m "$2") ;;
    --bin-dir) bin_dir=$(realpath -e "$2") || fail "--bin-dir: no such folder: $2" ;;
    *)
      [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] || fail "$1: expected a number from 1 to 9999, got '$2'"
      local name=${1#--}
      printf -v "${name//-/_}" '%s' "$2"
      ;;
  esac
}

build() {
  say "Packages"
  "$repository/deploy/install.sh" --no-test-programs
  say "Building (the first build takes several minutes)"
  cmake --preset quickstart -S "$repository" -B "$build_dir" --log-level=WARNING >/dev/null
  "$repository/deploy/build.py" "$build_dir" --jobs "$cores" \
    tandem-router tandem-verifier tandem-grammar tandem-drafter tandem
  bin_dir="$build_dir/bin"
}

pids=()
names=()
scratch=""

stop_services() {
  local i
  for i in "${!pids[@]}"; do
    kill -TERM "${pids[i]}" 2>/dev/null || continue
  done
  for i in "${!pids[@]}"; do
    if ! timeout "$stop_deadline_seconds" tail --pid="${pids[i]}" -f /dev/null; then
      echo "quickstart.sh: ${names[i]} did not stop within $stop_deadline_seconds s: killing it" >&2
      kill -KILL "${pids[i]}" 2>/dev/null || continue
    fi
    wait "${pids[i]}" 2>/dev/null || continue
  done
  pids=()
}

on_exit() {
  local status=$?
  trap - EXIT INT TERM
  stop_services
  [[ -z $scratch ]] || rm -rf "$scratch"
  # 130 is Ctrl-C, 143 is SIGTERM: neither is a failure.
  if ((status != 0 && status != 130 && status != 143)); then
    local name
    for name in "${names[@]}"; do
      printf '\n--- last lines of %s\n' "$logs/$name.log" >&2
      tail -n 15 "$logs/$name.log" >&2 || continue
    done
  fi
  exit "$status"
}

# start NAME command...: runs a service in the background, its output going to a log.
start() {
  local name=$1
  shift
  "$@" >"$logs/$name.log" 2>&1 </dev/null &
  pids+=("$!")
  names+=("$name")
}

# wait_for INDEX ENDPOINT: returns once the service accepts requests. Fails at once if its process ends.
wait_for() {
  local pid=${pids[$1]} name=${names[$1]} endpoint=$2
  local deadline=$((SECONDS + start_deadline_seconds))
  until "$bin_dir/tandem" info --endpoint "$endpoint" --token "$token" --json 2>"$scratch/info.err" |
    grep -q '"serving":true'; do
    kill -0 "$pid" 2>/dev/null || fail "$name ended during start-up; its log is below"
    if ((SECONDS >= deadline)); then
      cat "$scratch/info.err" >&2
      fail "$name did not serve on $endpoint within $start_deadline_seconds s"
    fi
    sleep 0.1 # Between two polls; the deadline above bounds them.
  done
  echo "    $name serves on $endpoint"
}

free_ports() {
  python3 - "$1" <<'EOF'
import random
import socket
import sys

# Ports below the range that the system uses for outgoing connections, so that no connection takes one before its service
# does. All stay bound until the last is found, so that no two are equal.
found = []
for port in random.SystemRandom().sample(range(20000, 30000), 1000):
    if len(found) == int(sys.argv[1]):
        break
    probe = socket.socket()
    try:
        probe.bind(("127.0.0.1", port))
        found.append(probe)
    except OSError:
        probe.close()
print(*(probe.getsockname()[1] for probe in found))
EOF
}

# A YAML single-quoted scalar.
yaml() { printf "'%s'" "${1//\'/\'\'}"; }

write_router_config() {
  local verifier=$1 drafter=$2 name
  echo "models:"
  echo "  - name: $target"
  echo "    folder: $(yaml "$models/$target")"
  echo "    verifiers: ['$verifier']"
  echo "drafters:"
  for name in "${drafters[@]}"; do
    echo "  - name: $name"
    echo "    endpoint: '$drafter'"
    echo "    draft_model: $name"
  done
  echo "tenants:"
  echo "  - name: quickstart"
  echo "    token: '$token'"
  echo "    drafter_policy: auto"
  if $admin; then echo "    admin: true"; fi
}

start_services() {
  local ports
  read -r -a ports < <(free_ports 7)
  ((${#ports[@]} == 7)) || fail "could not find free ports"
  local drafter="127.0.0.1:${ports[0]}" verifier="127.0.0.1:${ports[1]}"
  router="127.0.0.1:${ports[2]}"
  local live=()
  if $serve; then
    router=$serve_endpoint
    live_page="127.0.0.1:${ports[6]}"
    live=(--live-listen "$live_page" --live-all --live-prompts --http-listen "$serve_http")
  fi

  local drafter_models=() name
  for name in "${draft_models[@]}"; do
    drafter_models+=(--model "$name=$models/tandem-draft-$name")
  done
  drafter_models+=(--model "$head=$models/tandem-eagle3-15m" --head-target "$models/$target")
  write_router_config "$verifier" "$drafter" >"$scratch/router.yaml"

  start drafter "$bin_dir/tandem-drafter" "${drafter_models[@]}" --listen "$drafter" \
    --metrics-listen "127.0.0.1:${ports[3]}" --threads "$drafter_threads" --local-sockets "$scratch/sockets"
  start verifier "$bin_dir/tandem-verifier" --model "$target=$models/$target" --listen "$verifier" \
    --metrics-listen "127.0.0.1:${ports[4]}" --threads "$verifier_threads" --local-sockets "$scratch/sockets"
  start router "$bin_dir/tandem-router" --config "$scratch/router.yaml" --listen "$router" \
    --calibration "$models/calibration.bin" --metrics-listen "127.0.0.1:${ports[5]}" "${live[@]}"
  wait_for 0 "$drafter"
  wait_for 1 "$verifier"
  wait_for 2 "$router"
}

parse_options "$@"
[[ -n $bin_dir ]] || build
logs="$build_dir/logs"
mkdir -p "$logs"

# Otherwise gRPC would send even loopback calls to a proxy from the environment.
export no_proxy="127.0.0.1,localhost${no_proxy:+,$no_proxy}"
export no_grpc_proxy=$no_proxy

trap on_exit EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
scratch=$(mktemp -d)
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
# The server listens on loopback only, so the token may be short enough to type.
if $serve; then token=quickstart; fi

say "Starting the services"
start_services

report=(python3 "$repository/deploy/quickstart_report.py" --tandem "$bin_dir/tandem" --endpoint "$router"
  --token "$token" --drafters "$(IFS=, && echo "${drafters[*]}")" --max-tokens "$tokens" --pairs "$pairs")
if $serve; then
  "${report[@]}" --no-measuring
  say "Serving on $router until Ctrl-C. In another terminal:"
  echo "    $bin_dir/tandem chat --endpoint $router --token $token"
  echo "    export OPENAI_BASE_URL=http://$serve_http/v1 OPENAI_API_KEY=$token   # for clients of OpenAI's API"
  echo "    live page, with each round of every generation: http://$live_page/"
  wait -n "${pids[@]}" || true # Ignore its status: no service may end before Ctrl-C.
  fail "a service ended; the logs are below"
fi
[[ -z $json_file ]] || report+=(--json "$json_file")
"${report[@]}"

say "Done. The services' logs are in $logs"

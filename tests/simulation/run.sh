#!/usr/bin/env bash
# Runs the simulations over many seeds, with one process per core, for example overnight.
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=$repository/build/dev/bin
seeds=10000
first=1
jobs=$(nproc)

usage() {
  cat <<'TEXT'
usage: tests/simulation/run.sh [--seeds N] [--first S] [--jobs J] [--bin FOLDER]

Runs the cluster, disk and storm simulations over many seeds, prints their logs, and exits with 1 if a seed fails.

  --seeds N     number of seeds: N for cluster and storm, a fifth for disk (default 10000)
  --first S     first seed of the cluster simulation (default 1)
  --jobs J      cluster processes at a time (default: one per core)
  --bin FOLDER  folder of the test programs (default build/dev/bin)
TEXT
}

while (($# > 0)); do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --seeds | --first | --jobs | --bin)
      (($# >= 2)) || { echo "run.sh: $1 needs a value" >&2 && exit 2; }
      declare "${1#--}=$2"
      shift
      ;;
    *) echo "run.sh: unknown option '$1'" >&2 && usage >&2 && exit 2 ;;
  esac
  shift
done

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
share=$(((seeds + jobs - 1) / jobs))
workers=()
for ((job = 0; job < jobs; ++job)); do
  TANDEM_CLUSTER_FIRST=$((first + job * share)) TANDEM_CLUSTER_SEEDS=$share \
    "$bin/tandem_cluster_test" --gtest_filter='ClusterTest.*' >"$logs/cluster-$job" 2>&1 &
  workers+=("$!")
done
failed=0
for worker in "${workers[@]}"; do wait "$worker" || failed=1; done

TANDEM_DISK_SEEDS=$((seeds / 5 + 1)) "$bin/tandem_cluster_test" --gtest_filter='DiskTest.*' >"$logs/disk" 2>&1 || failed=1
TANDEM_SIMULATION_SEEDS=$seeds "$bin/tandem_simulation_test" --gtest_filter='SimulationTest.*' >"$logs/storm" 2>&1 || failed=1
cat "$logs"/*
exit "$failed"

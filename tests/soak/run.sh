#!/usr/bin/env bash
# Runs soak.py with the Python of the client tests: tests/soak/run.sh SCENARIO [options]. TANDEM_BIN_DIR is the folder of
# the binaries (default build/dev/bin). TANDEM_TEST_PYTHON is an interpreter with the packages of tests/requirements.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec python3 -B tests/e2e/run_python_test.py --python "${TANDEM_TEST_PYTHON:-build/python/bin/python}" \
  --work-dir build/e2e --bin-dir "${TANDEM_BIN_DIR:-build/dev/bin}" tests/soak/soak.py "$@"

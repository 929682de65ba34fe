#!/usr/bin/env bash
# soak.py with the Python that the client tests have: tests/soak/run.sh SCENARIO [options]. TANDEM_BIN_DIR names the
# folder of the binaries (default build/dev/bin), TANDEM_TEST_PYTHON an interpreter with tests/requirements.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
exec python3 -B tests/e2e/run_python_test.py --python "${TANDEM_TEST_PYTHON:-build/python/bin/python}" \
  --work-dir build/e2e --bin-dir "${TANDEM_BIN_DIR:-build/dev/bin}" tests/soak/soak.py "$@"

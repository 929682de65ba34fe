"""Every scenario in its short form, some at a time: what they wait for is mostly the simulated steps of a target."""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from run import SKIPPED  # noqa: E402

SCENARIOS = ("kills", "upgrade", "overload", "etcd", "certificates", "slow-reader", "long-prompts", "fairness",
             "routers", "cancels", "connections")  # fmt: skip
AT_A_TIME = 3
PATIENCE_SECONDS = 240


class SoakTest(unittest.TestCase):
    def test_short_forms(self):
        def run(scenario, report):
            command = [sys.executable, "-B", str(HERE / "soak.py"), scenario, "--short", "--report", str(report)]
            return subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=PATIENCE_SECONDS
            )

        with tempfile.TemporaryDirectory(prefix="tandem-soak-") as folder, concurrent.futures.ThreadPoolExecutor(
            AT_A_TIME
        ) as pool:
            reports = {name: pathlib.Path(folder) / name for name in SCENARIOS}
            running = {name: pool.submit(run, name, report) for name, report in reports.items()}
            for name, future in running.items():
                with self.subTest(name):
                    done = future.result()
                    print(done.stdout, flush=True)
                    if done.returncode == SKIPPED:
                        continue
                    self.assertEqual(done.returncode, 0)
                    self.assertTrue(json.loads(reports[name].read_text())["kept"])


if __name__ == "__main__":
    unittest.main()

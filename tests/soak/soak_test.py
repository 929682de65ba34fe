"""Runs every scenario in its short form, some at a time, because they mostly wait for simulated steps of a target."""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]

from cluster import MetricsWatch, series  # noqa: E402
from load import Record, Records  # noqa: E402
from run import SKIPPED  # noqa: E402

SCENARIOS = ("kills", "upgrade", "upgrade-etcd", "overload", "etcd", "certificates", "slow-reader", "long-prompts", "fairness",
             "routers", "cancels", "connections")  # fmt: skip
AT_A_TIME = 3
PATIENCE_SECONDS = 240


def record(code, begin=0.0, end=1.0, digest="right"):
    return Record(0, begin, begin, end, code, "", None, 1, digest, [], 0.0)


class JudgeTest(unittest.TestCase):
    """The watchers of processes and clients find what they must find."""

    def test_lost_metrics(self):
        watch = MetricsWatch(None)
        first = series('# HELP a_total x\na_total{code="OK"} 5\na_total{code="NO"} 2\ng 7\n')
        self.assertEqual(first, {'a_total{code="OK"}': 5, 'a_total{code="NO"}': 2, "g": 7})
        watch.take("router-0", 1, first)
        watch.take("router-0", 1, {'a_total{code="OK"}': 6, 'a_total{code="NO"}': 2, "g": 1})
        self.assertEqual(watch.findings, [])
        # Another process of the same part begins anew.
        watch.take("router-0", 2, {'a_total{code="OK"}': 1})
        self.assertEqual(watch.findings, [])
        watch.take("router-0", 1, {'a_total{code="OK"}': 5, "g": 1})
        self.assertEqual(len(watch.findings), 2)
        self.assertIn("went from 6 to 5", watch.findings[0])
        self.assertIn('a_total{code="NO"} has gone', watch.findings[1])

    def test_records(self):
        records = Records([record("OK"), record("RESOURCE_EXHAUSTED"), record("UNAVAILABLE"), record("OK", 5, 7, "wrong")], [])
        self.assertEqual(len(records.ok), 2)
        self.assertEqual([failed.code for failed in records.failed], ["UNAVAILABLE"])
        self.assertEqual(len(records.wrong(["right"])), 1)
        self.assertEqual(records.rate(0, 2), 0.5)
        self.assertEqual(records.p(0.99), 2)


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

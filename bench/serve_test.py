#!/usr/bin/env python3
"""bench/serve.py on real binaries: a short sweep over shapes on slowed-down engines, and what it leaves behind."""

import argparse
import json
import pathlib
import subprocess
import sys
import unittest

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
ARGS = argparse.Namespace()


class DriverTest(unittest.TestCase):
    def run_driver(self, *arguments):
        command = [sys.executable, "-B", str(REPOSITORY / "bench" / "serve.py")]
        command += ["--bin-dir", str(ARGS.bin_dir), "--out", str(ARGS.work_dir), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=540)

    def test_sweep_on_simulated_engines(self):
        done = self.run_driver(
            *("--shape", "chain=--branching 1 --nodes-per-level 1", "--shape", "tree="),
            *("--simulate-target-ms", "6+0.1", "--simulate-draft-ms", "0.5", "--"),
            *("--drafter", "off,code-1m", "--model", "chain,tree", "--policy", "fixed", "--max-window", "3"),
            *("--max-tokens", "10", "--num-prompts", "1", "--repetitions", "2", "--concurrency", "2"),
            *("--rate", "50", "--quiet"),
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("SIMULATED", done.stdout)
        report = json.loads((ARGS.work_dir / "serve.json").read_text())
        self.assertIs(report["simulated"], True)
        self.assertEqual(
            [c["label"] for c in report["configurations"]],
            ["off", "code-1m fixed w3 @chain", "code-1m fixed w3 @tree"],
        )
        self.assertEqual(len(report["summaries"]), 3 * 2 * 3)
        growth = []
        for request in report["requests"]:
            rounds = request["rounds"]
            self.assertEqual(sum(tokens for _, tokens in request["chunks"]), len(request["tokens"]))
            for entry in rounds:
                self.assertGreaterEqual(entry["verify_seconds"], 0.006)
                self.assertLessEqual(entry["depth"], 3)
                if request["configuration"].endswith("chain"):
                    self.assertEqual(entry["nodes"], entry["depth"])
            here = [message for entry in rounds for message in entry["growth"]]
            self.assertTrue(all(message["received"] > request["start"] for message in here))
            self.assertFalse(here and request["configuration"] == "off")
            growth += here
        # A drafter that starves may miss requests, not all of them.
        self.assertTrue(growth)

        (curve,) = report["calibration"]
        self.assertEqual(curve["drafter"], "code-1m")
        judged = sum(one["count"] for one in curve["bins"])
        self.assertGreater(judged, 0)
        # Warm-up's candidates count here as well; so does not what lay below a wrong one.
        self.assertGreaterEqual(judged, sum(sum(r["accepted_per_position"]) for r in report["summaries"]))
        self.assertEqual([one["score"] for one in curve["bins"]], sorted(one["score"] for one in curve["bins"]))
        for one in curve["bins"]:
            for share in ("score", "expected", "accepted"):
                self.assertGreaterEqual(one[share], 0.0)
                self.assertLessEqual(one[share], 1.0)

    def test_a_server_that_does_not_start_is_named(self):
        done = self.run_driver("--simulate-target-ms", "soon", "--", "--drafter", "off")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("verifier-target does not serve", done.stderr)
        self.assertIn("expected milliseconds", done.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, required=True)
    parser.add_argument("--work-dir", type=pathlib.Path, required=True)
    ARGS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)

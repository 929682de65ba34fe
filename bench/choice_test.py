#!/usr/bin/env python3
"""bench/choice.py: its arithmetic on results made up, and a short run on real binaries."""

import argparse
import json
import pathlib
import subprocess
import sys
import unittest

import choice

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
ARGS = argparse.Namespace()
NAMES = ["none", "small", "large"]


def record(kind, seconds, chosen, tokens=10):
    """Every configuration's seconds, one for each repetition, and the router's choices."""
    results = {
        name: [{"seconds": s, "tokens": tokens, "drafter": name.partition(":")[0]} for s in times]
        for name, times in seconds.items()
    }
    results["auto"] = [{"seconds": 1.0, "tokens": tokens, "drafter": drafter} for drafter in chosen]
    return {"kind": kind, "results": results}


class ArithmeticTest(unittest.TestCase):
    def test_oracle_and_regret(self):
        records = [
            record("a", {"none": [2.0], "small": [1.0], "large": [4.0]}, ["small"]),
            record("b", {"none": [2.0], "small": [4.0], "large": [1.0]}, ["none"]),
        ]
        summary = choice.summarise(records, NAMES)
        self.assertEqual(summary["rates"], {"none": 5.0, "small": 4.0, "large": 4.0})
        self.assertEqual(summary["single"], "none")
        self.assertEqual(summary["oracle"], 10.0)
        self.assertAlmostEqual(summary["chosen"], 20 / 3)
        self.assertAlmostEqual(summary["regret"], 1 / 3)
        self.assertEqual(summary["auto"], 10.0)
        self.assertEqual(summary["choices"], {"none": 1, "small": 1, "large": 0})
        self.assertIsNone(summary["oracle_blind"])

    def test_a_blind_oracle_has_no_luck(self):
        # By the mean `small` is the best; found in one repetition and rated in the other, the luckier one is never met.
        records = [record("a", {"none": [9.0, 9.0], "small": [1.0, 3.0], "large": [5.0, 2.0]}, ["small", "large"])]
        summary = choice.summarise(records, NAMES)
        self.assertAlmostEqual(summary["oracle"], 20 / 4)
        self.assertAlmostEqual(summary["oracle_blind"], 20 / (5 + 3))
        # The mean of each choice's repetitions: 2 and 3.5.
        self.assertAlmostEqual(summary["chosen"], 20 / 5.5)

    def test_gains_over_standard_speculation(self):
        seconds = {"none": [4.0], "small": [2.0], "large": [1.6], "small:4": [3.0], "large:2": [2.0]}
        records = [record("a", seconds, ["large"]), record("b", dict(seconds, large=[2.0], small=[1.0]), ["small"])]
        parts = {"a": records[:1], "b": records[1:], "all": records}
        summaries = {label: choice.summarise(part, NAMES, ["small:4", "large:2"]) for label, part in parts.items()}
        self.assertEqual(summaries["all"]["standard"], "large:2")
        # `small` takes 3 s for everything, `large` 3.6, what was chosen 2.6, standard speculation 4.
        self.assertEqual(
            choice.table_of_gains(summaries).splitlines()[2:],
            [
                "| without drafter selection (small) | +0.0% | +100.0% | +33.3% |",
                "| with drafter selection | +25.0% | +100.0% | +53.8% |",
            ],
        )

    def test_prompts_are_split_without_overlap(self):
        texts = [f"prompt {i}" for i in range(7)]
        args = argparse.Namespace(
            prompts=[("a", False, texts), ("b", True, texts)], calibrate=2, learn=3, evaluate=3, max_prompt_bytes=100
        )
        parts = choice.split_prompts(args, choice.random.Random(3))
        self.assertEqual([len(part) for part in parts], [4, 3, 6])
        of_a = [prompt["text"] for part in parts for prompt in part if prompt["kind"] == "a"]
        self.assertEqual(len(of_a), len(set(of_a)))
        args.evaluate = 4
        with self.assertRaisesRegex(RuntimeError, "a: 7 prompts, expected at least 8"):
            choice.split_prompts(args, choice.random.Random(3))


class DriverTest(unittest.TestCase):
    def test_short_run(self):
        ARGS.work_dir.mkdir(parents=True, exist_ok=True)
        prompts = ARGS.work_dir / "prompts.txt"
        prompts.write_text("Once upon a time\nThe old man said\nIn the morning\n", encoding="utf-8")
        command = [sys.executable, "-B", str(REPOSITORY / "bench" / "choice.py"), "--bin-dir", str(ARGS.bin_dir)]
        command += ["--out", str(ARGS.work_dir), "--prompts", f"story={prompts}", "--prompts", f"chats:chat={prompts}"]
        command += ["--calibrate", "0", "--learn", "3", "--evaluate", "1", "--repetitions", "2", "--warm-up", "1"]
        command += ["--paces", "general-1m=0.5,ngram=0", "--simulate-target-ms", "4+0.1", "--max-tokens", "8"]
        command += ["--fixed", "general-1m:2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=540)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("SIMULATED", done.stdout)
        self.assertIn("over general-1m:2", done.stdout)
        result = json.loads((ARGS.work_dir / "choice.json").read_text(encoding="utf-8"))
        # One that was never tried is tried first: what was pinned before that taught the router nothing.
        self.assertEqual(result["learned"][0], "general-1m")
        self.assertEqual(len(result["learned"]), 3)
        self.assertEqual(set(result["summaries"]), {"story", "chats", "all"})
        for one in result["records"]:
            self.assertEqual(list(one["results"]), ["none", "general-1m", "ngram", "general-1m:2", "auto"])
            for name, results in one["results"].items():
                self.assertEqual(len(results), 2)
                for entry in results:
                    self.assertEqual(entry["tokens"], 8)
                    # A prompt and the rest, a pass for each at least.
                    self.assertGreater(entry["seconds"], 0.008)
                    if name != "auto":
                        self.assertEqual(entry["drafter"], name.partition(":")[0])

    def test_an_unknown_drafter_is_named(self):
        command = [sys.executable, "-B", str(REPOSITORY / "bench" / "choice.py"), "--prompts", f"a={__file__}"]
        done = subprocess.run([*command, "--fixed", "huge:4"], capture_output=True, text=True, check=False, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--fixed: no such drafters in --paces: huge", done.stderr)
        done = subprocess.run([*command, "--draft-model", "tiny=folder"], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--draft-model: no pace in --paces for: tiny", done.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, required=True)
    parser.add_argument("--work-dir", type=pathlib.Path, required=True)
    ARGS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)

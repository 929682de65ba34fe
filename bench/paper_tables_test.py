#!/usr/bin/env python3
"""bench/paper_tables.py: its formulas, its tables of made-up results, and one run on real binaries, cut short."""

import argparse
import pathlib
import subprocess
import sys
import unittest

import paper_tables

ARGS = argparse.Namespace()


def made_up(speed_ups):
    """A report with these speed-ups by (dataset, drafter, policy, window, model)."""
    configurations = {}
    summaries = []
    for (dataset, drafter, policy, window, model), speed_up in speed_ups.items():
        label = f"{drafter} {policy} {window} {model}"
        configurations[label] = {
            "label": label, "drafter": drafter, "policy": policy, "max_window": window, "model": model,
        }  # fmt: skip
        summaries.append(
            {
                "dataset": dataset,
                "configuration": label,
                "speed_up": {"median": speed_up},
                "tokens_per_second": 100 * speed_up,
            }
        )
    return paper_tables.Report(
        {"simulated": False, "configurations": list(configurations.values()), "summaries": summaries}
    )


class FormulaTest(unittest.TestCase):
    def test_windows_are_those_of_objective_1(self):
        # As worked out by hand in common/speculation/policies/window_policy_test.cc.
        self.assertEqual(paper_tables.best_window(0.5, 0.1), 2)
        self.assertEqual(paper_tables.best_window(0.5, 0.6), 0)
        self.assertAlmostEqual(paper_tables.expected_tokens(0.5, 3), 1.875)

    def test_windows_grow_with_accuracy_and_shrink_with_cost(self):
        for ratio in paper_tables.COST_RATIOS:
            windows = [paper_tables.best_window(a, ratio) for a in paper_tables.ACCURACIES]
            self.assertEqual(windows, sorted(windows))
            self.assertLess(windows[-1], paper_tables.MOST_WINDOW)
        for accuracy in paper_tables.ACCURACIES:
            windows = [paper_tables.best_window(accuracy, c) for c in paper_tables.COST_RATIOS]
            self.assertEqual(windows, sorted(windows, reverse=True))


class TableTest(unittest.TestCase):
    def test_table_1_compares_with_the_window_that_is_best_over_all(self):
        speed_ups = {}
        for dataset, by_window in {"code": {2: 1.0, 4: 1.5, 8: 1.0}, "maths": {2: 1.2, 4: 1.0, 8: 1.1}}.items():
            for window, speed_up in by_window.items():
                speed_ups[dataset, "a", "fixed", window, ""] = speed_up
            speed_ups[dataset, "a", "analytic", 0, ""] = 1.2
            speed_ups[dataset, "a", "goodput", 0, ""] = 1.8
        lines = paper_tables.table_1(made_up(speed_ups), ["a"]).splitlines()
        self.assertEqual(lines[2], "| 15M / a | code | 1.50x (window 4) | -20.0 % | 1.20x | +20.0 % | 1.80x |")
        self.assertEqual(lines[3], "| 15M / a | maths | 1.00x (window 4) | +20.0 % | 1.20x | +80.0 % | 1.80x |")

    def test_table_12_marks_the_best_history_of_each_window(self):
        speed_ups = {
            ("code", "a", "", window, f"h{history}"): history + (10 if (history, window) == (5, 8) else 0)
            for history in paper_tables.HISTORIES
            for window in paper_tables.LARGEST_WINDOWS
        }
        lines = paper_tables.table_12(made_up(speed_ups), "a").splitlines()
        self.assertEqual(lines[2], "| code | 5 | 500.0 | 500.0 | 500.0 | **1500.0** |")
        self.assertEqual(lines[4], "| code | 7 | **700.0** | **700.0** | **700.0** | 700.0 |")

    def test_table_3_has_a_column_for_each_method(self):
        methods = (*paper_tables.METHODS, *paper_tables.TRAINED)
        report = made_up({("code", "a", method, 0, ""): 1.5 + i for i, method in enumerate(methods)})
        table = paper_tables.table_3(report, "a")
        self.assertIn("| code | 1.50x | 2.50x | 3.50x |", table)
        self.assertIn("| none | none | a stop head", table)

    def test_settings_that_are_not_there_are_named(self):
        with self.assertRaisesRegex(RuntimeError, "0 configurations have .*'b'"):
            made_up({("code", "a", "fsm", 0, ""): 1.0}).label(drafter="b")

    def test_errors_are_read_from_the_bench(self):
        output = "10 prompts\n\n| drafter | a | b | c | d |\n| --- | --- | --- | --- | --- |\n"
        output += "| tandem-draft-x | 0.4 | 0.3 | 0.2 | 0.1 |\n"
        self.assertEqual(paper_tables.trigram_errors(output, ["x"]), ["0.3"])


class RunTest(unittest.TestCase):
    def test_a_short_run_makes_every_table(self):
        command = [sys.executable, "-B", str(pathlib.Path(paper_tables.__file__)), "--bin-dir", str(ARGS.bin_dir)]
        command += ["--out", str(ARGS.work_dir), "--drafters", "general-1m", "--num-prompts", "1"]
        command += ["--max-tokens", "8", "--max-prompt-tokens", "16", "--repetitions", "1", "--fixed-windows", "2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=540)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for title in ("Table 1:", "Table 3:", "Table 12:", "Table 13:", "Figure 2:", "Figure 4:"):
            self.assertIn(title, done.stdout)
        for dataset in ("code", "maths", "story"):
            self.assertIn(f"| 15M / general-1m | {dataset} |", done.stdout)

    def test_an_unknown_part_is_refused(self):
        with self.assertRaises(SystemExit):
            paper_tables.parse_arguments(["table-99"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin-dir", type=pathlib.Path, required=True)
    parser.add_argument("--work-dir", type=pathlib.Path, required=True)
    ARGS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)

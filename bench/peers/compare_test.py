#!/usr/bin/env python3
"""Tests of what compare.py and compare_servers.py compute, without llama.cpp: a small script plays the programs."""

import pathlib
import sys
import tempfile
import unittest

import compare
import compare_servers

ECHO = """
import json, sys
print(json.dumps({"ready": True, "name": sys.argv[1], "detail": "script"}), flush=True)
for line in sys.stdin:
    question = json.loads(line)
    if question["run"] == "fail":
        print(json.dumps({"error": "refused"}), flush=True)
    else:
        # The first pass of a turn is slow: it must not count.
        print(json.dumps({"seconds": [9.0] + [float(sys.argv[2])] * (question["count"] - 1),
                          "floor_seconds": 0.5}), flush=True)
"""


def program(name, seconds):
    return compare.Program([sys.executable, "-c", ECHO, name, str(seconds)])


class CompareTest(unittest.TestCase):
    def test_turns_leave_out_the_warm_up(self):
        programs = [program("tandem", 1.0), program("peer", 2.0)]
        passes = compare.passes_of([1, 16], 512)
        seconds, floors = compare.take_turns(programs, passes, turns=3, count=2)
        for one in programs:
            one.close()
        self.assertEqual(list(seconds), ["decode, 1 row", "16 rows", "prefill of 512"])
        self.assertEqual(seconds["16 rows"], {"tandem": [1.0] * 3, "peer": [2.0] * 3})
        self.assertEqual(floors["prefill of 512"], 0.5)

    def test_ratio_is_the_median_of_the_turns_ratios(self):
        rows = compare.summarise({"1 row": {"tandem": [1.0, 2.0, 4.0], "peer": [3.0, 2.0, 8.0]}}, {"1 row": 0.5}, "tandem")
        self.assertEqual(rows[0]["ratios"], {"peer": 2.0})
        self.assertEqual(rows[0]["median_seconds"], {"tandem": 2.0, "peer": 3.0})
        table = compare.markdown(rows, "tandem").split("\n")
        self.assertEqual(table[0], "| pass | tandem, ms | floor, ms | of floor | peer, ms | peer / tandem |")
        self.assertEqual(table[2], "| 1 row | 2000.000 | 500.000 | 25 % | 3000.000 | 2.00 |")

    def test_a_table_without_ours(self):
        rows = compare.summarise({"1 row": {"peer": [1.0]}}, {}, "tandem")
        self.assertEqual(compare.markdown(rows, "tandem").split("\n")[2], "| 1 row | - | - | - | 1000.000 | - |")

    def test_errors_of_a_program_are_raised(self):
        one = program("tandem", 1.0)
        with self.assertRaisesRegex(RuntimeError, "refused"):
            one.ask(run="fail")
        one.close()
        with self.assertRaisesRegex(RuntimeError, "without an answer"):
            compare.Program([sys.executable, "-c", ""])

    def test_common_prefix(self):
        self.assertEqual(compare.common_prefix([1, 2, 3], [1, 2, 4]), 2)
        self.assertEqual(compare.common_prefix([1, 2], [1, 2, 4]), 2)


class CompareServersTest(unittest.TestCase):
    def test_a_summary_has_medians_of_the_turns(self):
        turns = [{"code": {"ours": 30.0}, "story": {"ours": rate}} for rate in (10.0, 30.0, 60.0)]
        self.assertEqual(compare_servers.summarise(turns), {"ours": {"code": 30.0, "story": 30.0, "all": 30.0}})
        table = compare_servers.markdown(compare_servers.summarise(turns)).split("\n")
        self.assertEqual(table, ["| tokens/s | code | story | all |", "| --- | --- | --- | --- |", "| ours | 30 | 30 | 30 |"])

    def test_prompts_of_every_kind(self):
        prompts = compare_servers.read_prompts(compare_servers.serve.PROMPTS, 2)
        self.assertEqual({kind: len(texts) for kind, texts in prompts.items()}, {"code": 2, "maths": 2, "story": 2})
        self.assertRegex(prompts["maths"][0], r"^Question: .*\nAnswer:$")

    def test_a_server_that_ends_is_reported_with_its_output(self):
        with tempfile.TemporaryDirectory() as folder:
            script = "import sys; sys.exit('no such model')"
            server = compare_servers.HttpServer([sys.executable, "-c", script], pathlib.Path(folder) / "log")
            with self.assertRaisesRegex(RuntimeError, "no such model"):
                server.wait_ready()
            server.stop()


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests what control_group.py reads and computes, without services."""

import unittest
from unittest import mock

import control_group
from completions import Completion

PAGE = """# TYPE tandem_speculation_speedup gauge
tandem_speculation_speedup{drafter="none",requests="1"} 1.25
tandem_speculation_speedup_low{drafter="none",requests="1"} 1.1
tandem_speculation_speedup_high{drafter="none",requests="1"} 1.4
tandem_speculation_speedup{drafter="eagle3",requests="4"} 2
"""


class ControlGroupTest(unittest.TestCase):
    def test_series_are_read_by_drafter_and_load(self):
        found = control_group.measured(PAGE)
        self.assertEqual(found[("none", 1)], {"": 1.25, "_low": 1.1, "_high": 1.4})
        self.assertEqual(found[("eagle3", 4)], {"": 2.0})

    def test_prompts_do_not_count(self):
        self.assertAlmostEqual(control_group.rate([Completion("a b c", 3, 5.0, 6.0), Completion("a", 1, 9.0, 9.0)]), 2.0)
        self.assertEqual(control_group.rate([Completion("a", 1, 1.0, 1.0)]), 0.0)

    def test_pairs_alternate_and_outputs_are_compared(self):
        sent = []

        def run(url, key, bodies, concurrency):
            plain = "tandem" in bodies[0]
            sent.append(plain)
            return [Completion(text, 3, 0.0, 2.0 if plain else 1.0) for text in (body["prompt"] for body in bodies)], 1.0

        with mock.patch.object(control_group.completions, "run", run):
            self.assertEqual(control_group.pairs([{"prompt": "a"}, {"prompt": "b"}], 1, 1, "url", "key"), [2.0, 2.0])
        self.assertEqual(sent, [False, True, True, False])

        def differs(url, key, bodies, concurrency):
            return [Completion(str("tandem" in bodies[0]), 3, 0.0, 1.0)], 1.0

        with mock.patch.object(control_group.completions, "run", differs):
            with self.assertRaisesRegex(RuntimeError, "not that without"):
                control_group.pairs([{"prompt": "a"}], 1, 1, "url", "key")


if __name__ == "__main__":
    unittest.main()

"""The judges of scenarios find what they must find."""

import math
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from measure import Report, quantile, slope  # noqa: E402


class MeasureTest(unittest.TestCase):
    def test_quantiles(self):
        self.assertEqual(quantile([3, 1, 2], 0.5), 2)
        self.assertEqual(quantile(range(1000), 0.99), 990)
        self.assertEqual(quantile([5], 0.99), 5)
        self.assertTrue(math.isnan(quantile([], 0.5)))

    def test_a_leak_has_a_slope(self):
        """Even below noise that is larger than what leaks between two samples."""
        noise = [0.0, 3.0, -2.0, 1.0, -3.0, 2.0]
        leaking = [(t, 100 + 0.01 * t + noise[t % 6]) for t in range(1200)]
        self.assertAlmostEqual(slope(leaking), 0.01, delta=0.002)

    def test_one_step_is_no_leak(self):
        stepping = [(t, 100 if t < 50 else 140) for t in range(1200)]
        self.assertEqual(slope(stepping), 0)
        self.assertEqual(slope([(0, 1), (1, 2)]), 0)

    def test_broken_promises_are_named(self):
        report = Report("overload", strict=True)
        report.promise("goodput", 0.95, ">=", 0.9)
        report.promise("failed requests", 0, "==", 0)
        self.assertEqual(report.broken, [])
        report.promise("p99", 2.5, "<=", 2)
        # Without a measurement, a promise is not kept.
        report.promise("recovery", math.nan, "<=", 10)
        self.assertEqual([promise.name for promise in report.broken], ["p99", "recovery"])
        self.assertFalse(report.as_json()["kept"])
        self.assertIn("| p99 | 2.5 | <= 2 | BROKEN |", report.table())


if __name__ == "__main__":
    unittest.main()

"""Tests of the benchmarks' arithmetic. Their opponent's: tests/behaviour/baseline_test.py."""

from __future__ import annotations

import argparse
import contextlib
import io
import pathlib
import sys
import unittest

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import cpu  # noqa: E402
import driver  # noqa: E402
import ratios  # noqa: E402
import trainers  # noqa: E402


pytestmark = pytest.mark.full


class Ratios(unittest.TestCase):
    def test_pairs_alternate_who_goes_first_and_keep_their_order_inside(self):
        calls = []

        def recorder(name):
            return lambda: calls.append(name) or name

        results = ratios.interleaved(3, recorder("titan"), recorder("python"))
        self.assertEqual(results, [("titan", "python")] * 3)
        self.assertEqual(calls, ["titan", "python", "python", "titan", "titan", "python"])

    def test_the_median_decides_and_the_spread_is_shown(self):
        row = ratios.Row("speed", "", "", [1.03, 0.9, 1.02], 1.05, True)
        self.assertFalse(row.met)
        self.assertEqual(row.cells()[3:], ["1.02×", "0.9 to 1.03", "≥ 1.05×", "missed by 2.9%"])

    def test_a_spread_on_both_sides_of_the_bar_decides_nothing_whatever_its_median(self):
        for higher_is_better in (True, False):
            for samples in ([1.2, 0.9, 1.04], [1.2, 0.9, 1.06]):
                row = ratios.Row("speed", "", "", samples, 1.05, higher_is_better)
                self.assertEqual(row.verdict(), "undecided")
        self.assertEqual(ratios.Row("speed", "", "", [1.05, 1.2], 1.05, True).verdict(), "met")
        self.assertEqual(ratios.Row("speed", "", "", [1.05, 0.9], 1.05, False).verdict(), "met")

    def test_the_summary_names_what_is_undecided_and_the_medians_make_the_exit_code(self):
        rows = [
            ratios.Row("sure", "", "", [1.2], 1.05, True),
            ratios.Row("busy", "", "", [1.2, 0.9, 1.1], 1.05, True),
            ratios.Row("slow", "", "", [0.9], 1.05, True),
        ]
        for count, code in ((2, 0), (3, 1)):
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                self.assertEqual(driver.verdict(rows[:count], argparse.Namespace(quick=False, check=True, record=False)), code)
            self.assertIn(f"1 of {count} bars met\nundecided, median met: busy\n", said.getvalue())
            self.assertEqual("missed by 14.3%: slow\n" in said.getvalue(), count == 3)

    def test_a_bar_itself_is_met_in_both_directions(self):
        for higher_is_better in (True, False):
            self.assertTrue(ratios.Row("any", "", "", [0.8], 0.8, higher_is_better).met)
        self.assertFalse(ratios.Row("memory", "", "", [0.81], 0.8, False).met)


class Opponents(unittest.TestCase):
    """Of two modes of PyTorch the faster one decides, and of the memory the smaller."""

    def measurement(self, seconds: float, mebibytes: int) -> trainers.Measurement:
        return trainers.Measurement(seconds, 0.0, mebibytes << 20, 10)

    def test_the_faster_mode_is_recorded_and_the_other_shown(self):
        runs = {
            "titan": [self.measurement(1.0, 100)] * 3,
            "eager": [self.measurement(seconds, 200) for seconds in (1.9, 2.0, 2.1)],
            "compiled": [self.measurement(seconds, 300) for seconds in (1.4, 1.5, 1.6)],
        }
        rows = cpu.training_rows(cpu.WORKLOADS["long-float32"], runs)
        self.assertEqual([row.key for row in rows], ["cpu/step/8x512/float32", "", "cpu/memory/8x512/float32", ""])
        self.assertEqual([row.samples for row in rows[:2]], [[1.4, 1.5, 1.6], [1.9, 2.0, 2.1]])
        self.assertEqual([row.other for row in rows[:3]], ["2,731 tokens/s, compiled", "2,048 tokens/s, eager", "200 MiB, eager"])
        self.assertEqual([row.against for row in rows[:3:2]], ["compiled PyTorch 2.11", "eager PyTorch 2.11"])
        self.assertEqual(rows[2].samples, [0.5] * 3)

    def test_the_ratios_of_pairs_decide_where_medians_of_seconds_and_bytes_are_in_another_order(self):
        """Eager has the smaller medians, and compiled the less favourable ratios."""
        seconds = {"titan": (1, 2, 3), "eager": (1.8, 3.0, 4.8), "compiled": (1.4, 3.2, 4.5)}
        mebibytes = {"titan": (100, 50, 150), "eager": (200, 110, 300), "compiled": (210, 90, 250)}
        runs = {who: [self.measurement(*each) for each in zip(seconds[who], mebibytes[who])] for who in seconds}
        rows = cpu.training_rows(cpu.WORKLOADS["long-float32"], runs)
        found = [(row.key, row.against, round(row.median, 3)) for row in rows[:3]]
        self.assertEqual(found, [("cpu/step/8x512/float32", "compiled PyTorch 2.11", 1.5), ("", "eager PyTorch 2.11", 1.6),
                                 ("cpu/memory/8x512/float32", "compiled PyTorch 2.11", 0.556)])  # fmt: skip


if __name__ == "__main__":
    unittest.main()

"""Tests of the benchmark's arithmetic and of its opponent."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import pytest

BENCH = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.insert(0, str(BENCH))

import driver  # noqa: E402
import ratios  # noqa: E402


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
                self.assertEqual(driver.verdict(rows[:count], argparse.Namespace(quick=False, check=True)), code)
            self.assertIn(f"1 of {count} bars met\nundecided, median met: busy\n", said.getvalue())
            self.assertEqual("missed by 14.3%: slow\n" in said.getvalue(), count == 3)

    def test_a_bar_itself_is_met_in_both_directions(self):
        for higher_is_better in (True, False):
            self.assertTrue(ratios.Row("any", "", "", [0.8], 0.8, higher_is_better).met)
        self.assertFalse(ratios.Row("memory", "", "", [0.81], 0.8, False).met)


class Opponent(unittest.TestCase):
    def test_trains_in_both_precisions_and_reports_every_step(self):
        for precision in ("float32", "bfloat16"):
            with self.subTest(precision=precision), tempfile.TemporaryDirectory() as folder:
                flags = [f"--folder={folder}", "--steps=4", "--batch=1", "--length=32", f"--precision={precision}"]
                done = subprocess.run(
                    [sys.executable, str(BENCH / "python_trainer.py"), *flags], capture_output=True, text=True
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("6,163,712 total parameters", done.stdout)
                lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
                self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
                self.assertTrue(all(line["step_seconds"] > 0 and 6 < line["loss"] < 10 for line in lines))


if __name__ == "__main__":
    unittest.main()

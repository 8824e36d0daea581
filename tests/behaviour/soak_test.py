"""scripts/soak.sh in little: every kind of fault, an undisturbed run to compare with, flat memory."""

from __future__ import annotations

import json
import subprocess
import unittest
from collections import Counter

from program import FULL, ROOT
from rank_processes import RanksTest

FAULTS = 60 if FULL else 6
RESTARTED, ENDED = {"kill", "stop", "flipped bit"}, {"SIGTERM", "NaN"}


class Soak(RanksTest):
    def test_a_supervised_run_loses_no_bit_to_any_fault(self):
        self.use_dying_program()
        folder = self.folder / "soak"
        words = ("--faults", str(FAULTS), "--every", "0", "--folder", folder, "--binary", self.program)
        done = subprocess.run([ROOT / "scripts" / "soak.sh", *words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("bit for bit", done.stdout)
        self.assertIn("peak memory of rank 0", done.stdout)
        table = (folder / "table.md").read_text()
        self.assertTrue(done.stdout.endswith(table), done.stdout)
        self.assertIn(f"| faults | {FAULTS} in ", table)
        faults = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
        self.assertEqual([fault["number"] for fault in faults], list(range(1, FAULTS + 1)))
        kinds = Counter(fault["kind"] for fault in faults)
        self.assertGreaterEqual(set(kinds), RESTARTED | ENDED)  # a full disk only where one may be mounted
        for kinds_of_end, end in ((RESTARTED, "restarted"), (ENDED, "ended")):
            self.assertEqual({fault["end"] for fault in faults if fault["kind"] in kinds_of_end}, {end})
        self.expect_nothing_left()


if __name__ == "__main__":
    unittest.main()

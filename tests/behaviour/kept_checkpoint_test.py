"""A checkpoint that an earlier build saved (1ee6ff90, November 2026) is resumed as that build went on itself."""

from __future__ import annotations

import json
import tarfile
import unittest

from program import OK, ROOT, BehaviourTest

KEPT = ROOT / "tests" / "behaviour" / "kept_checkpoint"
# Loss and gradient norm of steps 6 to 8 in the run that saved step 5.
WENT_ON = [(6.1778327859938145, 0.7702551584565581), (6.3853679895401, 0.7389266329693195), (6.085052389651537, 0.7762800415389199)]
TOLERANCE = 1e-6  # processors differ in the order of their sums


class KeptCheckpoint(BehaviourTest):
    def test_it_is_resumed_as_the_run_that_saved_it_went_on(self):
        root = self.folder / "run" / "checkpoint"
        with tarfile.open(KEPT / "step-5.tar.xz") as packed:
            packed.extractall(root)  # Python 3.11.2, Debian 12's, has no filters yet
        run = self.titan(KEPT / "job.toml", f"--job.dump_folder={self.folder / 'run'}")
        self.expect(run, OK)
        self.assertIn("LOAD: step 5", run.output)
        records = [json.loads(line) for line in (self.folder / "run" / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([record["step"] for record in records], [6, 7, 8])
        for record, (loss, norm) in zip(records, WENT_ON):
            self.assertAlmostEqual(record["loss"], loss, delta=TOLERANCE * loss)
            self.assertAlmostEqual(record["grad_norm"], norm, delta=TOLERANCE * 100 * norm)
        verified = self.titan("convert", "verify", root / "step-5")
        self.expect(verified, OK)


if __name__ == "__main__":
    unittest.main()

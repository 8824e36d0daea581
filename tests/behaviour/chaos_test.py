"""scripts/chaos.sh: a run that is killed again and again loses nothing, and a script that is stopped resumes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import unittest

from program import ROOT, BehaviourTest

KILLS = 25


class Chaos(BehaviourTest):
    def chaos(self, kills: int, *words: str) -> str:
        folder = self.folder / "chaos"
        done = subprocess.run(
            [ROOT / "scripts" / "chaos.sh", str(kills), "--folder", folder, "--binary", self.program, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def record(self) -> list[dict]:
        return [json.loads(line) for line in (self.folder / "chaos" / "record.jsonl").read_text().splitlines()]

    def test_25_kills_lose_nothing_and_the_script_goes_on_where_it_stopped(self):
        self.assertIn("bit for bit", self.chaos(3))
        first = self.record()
        self.assertEqual(len(first), 3)
        printed = self.chaos(KILLS)
        self.assertIn("resuming after 3 kills", printed)
        self.assertIn("bit for bit", printed)
        record = self.record()
        self.assertEqual(record[:3], first)
        self.assertEqual([kill["number"] for kill in record], list(range(1, KILLS + 1)))
        self.assertGreaterEqual(2 * sum(kill["in_save"] for kill in record), KILLS)
        steps = [kill["committed"] for kill in record]
        self.assertEqual(steps, sorted(steps))

    def test_kills_of_a_run_with_muon_lose_nothing(self):
        kills = 100 if os.environ.get("TITAN_TEST_FULL") else 10
        self.assertIn("bit for bit", self.chaos(kills, "--option=--optimizer.name=Muon"))

    def test_what_was_changed_on_disk_between_two_runs_is_not_taken_for_a_resumed_run(self):
        self.chaos(2)
        folder = pathlib.Path(self.folder, "chaos", "run", "checkpoint")
        for path in folder.glob("step-*/__1_0.distcp"):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
        done = subprocess.run(
            [ROOT / "scripts" / "chaos.sh", "3", "--folder", self.folder / "chaos", "--binary", self.program],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ,
        )
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("chaos.sh: after ", done.stderr)


if __name__ == "__main__":
    unittest.main()

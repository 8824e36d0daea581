"""bench_control_plane in short: 24 ranks in seven processes meet, save a checkpoint and load it; what rank 0 sends."""

from __future__ import annotations

import json
import pathlib
import subprocess

from program import BehaviourTest

RANKS, OTHERS = 24, 23


class ControlPlane(BehaviourTest):
    def lines(self, *words: object) -> list[dict]:
        bench = pathlib.Path(self.program).parent / "bench_control_plane"
        done = subprocess.run([str(bench), *map(str, words)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_ranks_meet_save_and_load_with_a_few_messages_for_each(self):
        folder = pathlib.Path(self.folder) / "checkpoints"
        lines = {line["phase"]: line for line in self.lines("ranks", RANKS, 4, folder, 3)}
        self.assertEqual(lines["rendezvous"]["sent"], 3 * OTHERS)
        self.assertGreaterEqual(lines["save"]["sockets"], OTHERS)
        # A message of each rank to a decision, a question for its answer once or twice: nothing of each for each other.
        for phase, decisions in (("decide", 10), ("rehearse", 4), ("save", 2), ("load", 2)):
            each = lines[phase]["received"] / OTHERS
            self.assertLessEqual(each, 3 * (decisions + 1), phase)
            self.assertLessEqual(lines[phase]["sent_bytes"] / OTHERS, 1000 * (decisions + 1), phase)
        self.assertLessEqual(lines["end"]["keys"], OTHERS + 1)
        self.assertTrue((folder / "step-1" / ".metadata").exists())
        self.assertEqual(len(list((folder / "step-1").glob("*.distcp"))), RANKS)

    def test_a_rank_other_than_0_keeps_a_plan_of_its_own_writes_alone(self):
        (first,), (zero,), (many,) = (self.lines("plan", *words) for words in ((64, 64, 1), (256, 256, 0), (256, 256, 1)))
        self.assertEqual(first["writes"], many["writes"])
        self.assertLess(many["live"], 2 * first["live"])
        self.assertGreater(zero["live"], 50 * many["live"])

    def test_an_entry_of_the_index_needs_some_hundred_bytes_and_as_many_with_ten_times_the_entries(self):
        (few,), (many,) = (self.lines("index", tensors, 1000) for tensors in (10, 100))
        entries = many["entries"] - few["entries"]
        self.assertEqual(entries, 90_000)
        # As values of a pickle an entry needs 4 KiB. What is constant, such as the values of 1,000 entries, cancels out.
        for key, most in (("file", 200), ("held", 250), ("to_write", 20), ("to_read", 400)):
            self.assertLessEqual((many[key] - few[key]) / entries, most, key)
        self.assertTrue(few["equal"] and many["equal"])

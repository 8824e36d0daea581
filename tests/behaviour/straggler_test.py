"""A rank that computes slower than the others is named in log, metrics and page, and no other rank is.

`dying_titan_train` (dying_main.cpp) slows a rank down. Its ranks measure their computation in tensor operations: other
programs on the machine of the tests, which has fewer cores than a run has ranks, change nothing.
"""

from __future__ import annotations

import json
import random
import re
import unittest

from program import FULL, OK
from rank_processes import RanksTest

RUNS = 20 if FULL else 3
RANKS = 4
NAMED_WITHIN = 30
NAMED = re.compile(r"rank (\d+) \(host \S+?[,)].*?has computed (\d+\.\d+) times as long as the median of (\d+) ranks")


class Stragglers(RanksTest):
    def setUp(self):
        super().setUp()
        self.use_dying_program()

    def train(self, *words, **faults) -> tuple[str, list[dict]]:
        folder = self.folder / f"run-{len(self.processes)}"
        steps = f"--training.steps={NAMED_WITHIN}"
        run = self.launch_training(RANKS, steps, f"--job.dump_folder={folder}", *words, **faults)
        self.assertEqual(run.end(), OK, run.text())
        self.run_folder = folder
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return run.text(), [line for line in lines if line.get("event") == "straggler"]

    def test_a_rank_that_is_slowed_by_30_percent_is_named_and_nobody_else(self):
        pick = random.Random(5)
        for number in range(RUNS):
            rank = pick.randrange(RANKS)
            with self.subTest(number, rank=rank):
                text, events = self.train(SLOW_DOWN=f"{rank} 1.3")
                self.assertEqual([event["rank"] for event in events], [rank], text)
                self.assertLessEqual(events[0]["step"], NAMED_WITHIN)
                self.assertGreater(events[0]["ratio"], 1.15)
                self.assertEqual([int(found[0]) for found in NAMED.findall(text)], [rank])
                self.assertIn(f"rank {rank} on {events[0]['host']} is slow", (self.run_folder / "report.html").read_text())

    def test_ranks_of_the_same_speed_are_not_named(self):
        _, events = self.train(SLOW_DOWN="none 1")
        self.assertEqual(events, [])

    def test_stages_of_two_ranks_have_no_verdict(self):
        words = ["--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=4"]
        _, events = self.train(*words, SLOW_DOWN="1 1.5")
        self.assertEqual(events, [])

    def test_the_comparison_can_be_switched_off(self):
        _, events = self.train("--metrics.straggler_ratio=0", SLOW_DOWN="1 1.5")
        self.assertEqual(events, [])


if __name__ == "__main__":
    unittest.main()

"""What is said of all ranks together: the extremes of step time and memory; and what each rank says for itself."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import unittest

from program import OK
from rank_processes import Process, RanksTest

PAUSE_SECONDS = 1.5


class RankMetrics(RanksTest):
    def metrics(self, folder: str = ".") -> list[dict]:
        lines = (self.folder / "run" / folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def stop(self, run: Process):
        run.popen.send_signal(signal.SIGINT)
        run.end()
        self.expect_nothing_left()

    def test_a_rank_that_is_slow_for_a_moment_shows_in_the_slowest_step(self):
        run = self.launch_training(2)
        slow = self.process_of(run.wait_for("step:  5 "), 1)
        before = len(self.metrics())
        os.kill(slow, signal.SIGSTOP)
        begin = time.monotonic()
        time.sleep(PAUSE_SECONDS)
        paused = time.monotonic() - begin
        os.kill(slow, signal.SIGCONT)
        reached = self.metrics()[-1]["step"]
        run.wait_for(f"step: {reached + 3:2} ")
        self.stop(run)
        extremes = [line["ranks"] for line in self.metrics()]
        for one in extremes:
            self.assertLessEqual(one["fastest_step_seconds"], one["slowest_step_seconds"])
        self.assertGreaterEqual(max(one["slowest_step_seconds"] for one in extremes[before:]), paused)

    def test_the_extremes_are_those_of_the_ranks_own_metrics(self):
        run = self.launch_training(3, "--training.steps=4", "--metrics.save_for_all_ranks")
        self.assertEqual(run.end(), OK, run.text())
        by_rank = [self.metrics(), *(self.metrics(f"rank-{rank:04}") for rank in (1, 2))]
        for lines in zip(*by_rank, strict=True):
            self.assertEqual(len({(line["step"], line["loss"], line["grad_norm"]) for line in lines}), 1)
            for key, least, most in (
                ("step_seconds", "fastest_step_seconds", "slowest_step_seconds"),
                ("memory_peak_bytes", "least_memory_bytes", "most_memory_bytes"),
            ):
                own = [line[key] for line in lines]
                self.assertEqual({(line["ranks"][least], line["ranks"][most]) for line in lines}, {(min(own), max(own))})
        self.assertGreater(len({lines[-1]["memory_peak_bytes"] for lines in by_rank}), 1, "ranks differ")

    def first_losses(self, ranks: int, *words) -> tuple[float, float]:
        """Mean and maximum of the ranks' losses at step 1, with the same weights whatever the ranks."""
        run = self.launch_training(ranks, "--training.steps=1", *words)
        self.assertEqual(run.end(), OK, run.text())
        line = self.metrics()[-1]
        return line["loss"], line["global_max_loss"]

    def test_the_largest_loss_is_that_of_the_rank_with_the_hardest_tokens(self):
        alone, largest = self.first_losses(1)  # on the first half of what two ranks read
        self.assertEqual(largest, alone)
        for words in ((), ("--training.local_batch_size=1", "--training.global_batch_size=4")):
            mean, largest = self.first_losses(2, "--parallelism.data_parallel_shard_degree=-1", *words)
            if not words:
                self.assertAlmostEqual(largest, max(alone, 2 * mean - alone), places=5)
            self.assertGreater(largest, mean)

    def test_the_largest_loss_is_a_mean_over_a_ranks_own_part_of_its_samples(self):
        mean, largest = self.first_losses(2, "--parallelism.context_parallel_degree=2")
        self.assertGreater(largest, mean)
        self.assertLess(largest, 1.5 * mean)

    def test_ranks_that_compute_no_loss_do_not_count(self):
        mean, largest = self.first_losses(2, "--parallelism.pipeline_parallel_degree=2")
        self.assertAlmostEqual(largest, mean, places=6)

    def test_only_rank_0_writes_metrics_unless_all_are_to(self):
        run = self.launch_training(2, "--training.steps=1")
        self.assertEqual(run.end(), OK, run.text())
        self.assertEqual([path.parent.name for path in self.folder.rglob("metrics.jsonl")], ["run"])

    def test_every_rank_but_the_first_says_in_its_log_what_rank_0_prints(self):
        run = self.launch_training(3, "--training.steps=4")
        self.assertEqual(run.end(), OK, run.text())
        losses = re.findall(r"step: +(\d+)  loss: +(\S+)", run.text())
        self.assertEqual(len(losses), 4)
        for rank in (1, 2):
            log = (self.folder / "run" / "logs" / f"rank-{rank:04}.log").read_text()
            self.assertEqual(re.findall(r"step: +(\d+)  loss: +(\S+)", log), losses)
            for line in (f"Rank {rank} of 3, started by", "Training starts at step 1", "Training completed"):
                self.assertEqual(log.count(line), 1, log)
        logs = sorted(path.name for path in (self.folder / "run" / "logs").iterdir())
        self.assertEqual(logs, ["rank-0001.log", "rank-0002.log"])


if __name__ == "__main__":
    unittest.main()

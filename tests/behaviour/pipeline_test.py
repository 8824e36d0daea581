"""Pipelines as processes: what ranks keep, schedules from files, and validation."""

from __future__ import annotations

import re
import unittest

from program import DEBUG_CONFIG, OK, SMALL, VALIDATION, BehaviourTest, Run
from titan import shared

DETERMINED = ["--debug.seed=3", "--training.mixed_precision_param=float32", "--training.local_batch_size=8"]
SCHEDULES = ("GPipe", "1F1B", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
PIPELINE = "--parallelism.pipeline_parallel"


class PipelineTest(BehaviourTest):
    def launch(self, ranks: int, *words: object) -> Run:
        folder = self.fresh_folder()
        small = [*SMALL, "--model.override.n_layers=8", *DETERMINED, "--training.steps=2"]
        run = self.titan("launch", "-n", ranks, "--log-rank", "all", DEBUG_CONFIG, *small, *words, f"--job.dump_folder={folder}")
        run.folder = folder
        return run

    def in_pipeline(self, ranks: int, schedule: str, *words: object) -> Run:
        """A pipeline of all ranks; the schedule by its name, or by the name of a file."""
        said = [f"{PIPELINE}_degree={ranks}", f"{PIPELINE}_schedule={schedule}"]
        if schedule.endswith(".csv"):
            said[1:] = [f"{PIPELINE}_schedule=PipelineScheduleMulti", f"{PIPELINE}_schedule_csv={schedule}"]
        run = self.launch(ranks, *said, *words)
        self.expect(run, OK)
        return run

    def simulated(self, *words: object) -> list[int]:
        """The most activations that the simulation says each rank keeps."""
        run = self.titan("schedule", *words)
        self.expect(run, OK)
        table = run.output[run.output.index("activations") :]
        return [int(most) for most in re.findall(r"^\d+ +[\d.]+ +[\d.]+ +[\d.]+ +(\d+)", table, re.M)]


class Pipeline(PipelineTest):
    def test_ranks_keep_as_many_activations_as_the_simulation_says(self):
        for schedule in SCHEDULES:
            for ranks in (2, 4):
                with self.subTest(schedule, ranks=ranks):
                    run = self.in_pipeline(ranks, schedule)
                    kept = re.findall(
                        r"\[rank(\d)\].* kept the activations of at most (\d+) microbatches and stages at once, as planned",
                        run.output,
                    )
                    expected = self.simulated("--name", schedule, "--ranks", ranks, "--microbatches", 8)
                    self.assertEqual({int(rank): int(most) for rank, most in kept}, dict(enumerate(expected)), run.output[-3000:])

    def test_a_schedule_that_was_written_to_a_file_trains_as_the_named_one_to_the_bit(self):
        file = self.folder / "written.csv"
        for schedule in ("1F1B", "InterleavedZeroBubble", "DualPipeV"):
            with self.subTest(schedule):
                self.simulated("--name", schedule, "--ranks", 2, "--microbatches", 8, "--csv", file)
                named = self.in_pipeline(2, schedule)
                self.assertEqual(self.in_pipeline(2, str(file)).training("loss"), named.training("loss"))

    def test_the_schedule_of_torchtitans_tests_is_read_and_written_and_trains_the_same(self):
        file = shared("custom_schedule.csv")
        written = self.folder / "written.csv"
        self.simulated("--from", file, "--csv", written)
        self.assertEqual(written.read_text(), file.read_text())
        losses = self.in_pipeline(2, str(file)).training("loss")
        alone = self.train("--model.override.n_layers=8", *DETERMINED).training("loss")
        for mine, theirs in zip(losses, alone, strict=True):
            self.assertAlmostEqual(mine, theirs, delta=1e-5 * theirs)
        self.assertEqual(self.in_pipeline(2, str(written)).training("loss"), losses)

    def test_losses_and_validation_are_those_of_one_process_on_the_console_of_rank_0(self):
        words = [*VALIDATION, "--validation.seq_len=32", "--validation.steps=2"]
        words.append("--validation.freq=2")
        alone = self.train("--model.override.n_layers=8", *DETERMINED, *words).metrics()
        for schedule in ("1F1B", "ZBVZeroBubble"):  # whose last stage is on the last rank, and on the first
            run = self.in_pipeline(2, schedule, *words)
            for mine, theirs in zip(run.metrics(), alone, strict=True):
                for key in ("loss", "validation_loss"):
                    if key in theirs:
                        self.assertAlmostEqual(mine[key], theirs[key], delta=1e-5 * theirs[key])
            shown = re.findall(r"\[rank0\].*step: +\d+ +loss: +([\d.]+)", run.output)
            self.assertEqual(len(shown), 4, "two steps, each validated")
            self.assertTrue(all(float(loss) > 1 for loss in shown), shown)


if __name__ == "__main__":
    unittest.main()

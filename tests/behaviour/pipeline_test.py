"""Pipelines as processes: what ranks keep, schedules from files, validation, and requests that no pipeline can meet."""

from __future__ import annotations

import re
import unittest

from program import BAD_CONFIG, DEBUG_CONFIG, OK, SMALL, BehaviourTest, Run
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
        words = ["--validation.enable", "--validation.dataset=stories", "--validation.seq_len=32", "--validation.steps=2"]
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


# What is asked of so many ranks, beside a pipeline of them; and all that is told, each with what would do.
IMPOSSIBLE = {
    (4, "1F1B", "--training.local_batch_size=3"): [
        "1F1B with 4 ranks needs at least as many microbatches as ranks; no size fits a batch of 3: "
        "training.local_batch_size = 4 would"
    ],
    (4, "Interleaved1F1B", f"{PIPELINE}_microbatch_size=3"): [
        "a batch of 8 does not divide into pieces of 3; the nearest legal sizes are 2 or 4"
    ],
    (2, "DualPipeV", "--training.local_batch_size=3"): ["at least as many microbatches as stages", "local_batch_size = 4 would"],
    (4, "GPipe", f"{PIPELINE}_layers_per_stage=5"): [
        "5 layers per stage make of 10 (8 and what the ends count for) 2 stages, and 4 ranks cannot share them equally; "
        "the nearest legal values are 3"
    ],
    (4, "ZBVZeroBubble", "--model.override.n_layers=4"): ["8 stages cannot be made of 4 layers"],
    (4, "1F1B", f"{PIPELINE}_split_points=layers.2,layers.4"): ["2 split points make 3 stages", "one split point"],
    (2, "1F1B", f"{PIPELINE}_split_points=layers.9"): ['"layers.9" is no layer of this model; name layers from layers.0 to layers.7'],
    (2, "1F1B", f"{PIPELINE}_split_points=layers.2", f"{PIPELINE}_layers_per_stage=2"): ["keep one of them"],
    (2, "1F1B", "--parallelism.module_fqns_per_model_part=tok_embeddings,layers.0;layers.1,norm"): [
        "output are in no stage; list every module of the model once",
        "norm and output are in different stages; put them into the last stage together",
    ],
    (2, "1F1B", f"{PIPELINE}_first_stage_less_layers=12"): ["the first modules count for 12 layers", "use at most"],
    (2, "PipelineScheduleMulti"): ["name the file in parallelism.pipeline_parallel_schedule_csv"],
    (2, "zebra"): ['"zebra" is no such value; allowed: 1F1B, GPipe'],
    (2, "1F1B", "--optimizer.early_step_in_backward"): ["optimizer.early_step_in_backward does not go with a pipeline; switch one"],
    (3, "1F1B", "--parallelism.tensor_parallel_degree=2", "--training.seq_len=63"): [
        "Invalid parallel dims",
        "the degrees need 6 ranks",
        "training.seq_len = 63 is no multiple of 2 (tensor_parallel_degree); use 62 or 64",
    ],
    (2, "1F1B", "--training.seq_len=66", "--parallelism.context_parallel_degree=2", f"{PIPELINE}_microbatch_size=3",
     "--optimizer.early_step_in_backward", "--model.override.n_heads=3", "--parallelism.tensor_parallel_degree=2"): [
        "the degrees need 8 ranks",
        "training.seq_len = 66 is no multiple of 8",
        "use 64 or 72",
    ],
}  # fmt: skip


class ImpossiblePipeline(PipelineTest):
    def expect_refused(self, ranks: int, schedule: str, words: tuple, says: list[str]):
        run = self.launch(ranks, f"{PIPELINE}_degree={ranks}", f"{PIPELINE}_schedule={schedule}", *words)
        self.expect(run, BAD_CONFIG)
        for part in says:
            self.assertIn(part, run.errors)
        self.assertNotIn("[rank", run.output + run.errors, "nothing was started")
        told = int(re.search(r"(\d+) problems? in the configuration", run.errors)[1])
        self.assertEqual(len(set(run.errors.splitlines()[-told:])), told, "each once")

    def test_is_refused_before_the_start_with_what_would_do(self):
        for (ranks, schedule, *words), says in IMPOSSIBLE.items():
            with self.subTest(schedule, ranks=ranks, words=words):
                self.expect_refused(ranks, schedule, tuple(words), says)

    def test_files_are_refused_with_the_word_that_is_wrong(self):
        for text, says in {
            "0F0,0X1,0B0,0B1\n1F0,1B0,1F1,1B1\n": "row 1, cell 2",
            "0F0,0B0\n1B0,1F0\n": "1B0",
            "0F0,0B0\n": "the table is for 1 ranks, not 2",
            "0F0,0B0\n1F0,1B0\n": "the schedule's file is for 1",
            "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n": "more than compute actions",
        }.items():
            with self.subTest(text):
                file = self.write("mine.csv", text)
                words = (f"{PIPELINE}_schedule_csv={file}",)
                self.expect_refused(2, "PipelineScheduleSingle", words, [says])


if __name__ == "__main__":
    unittest.main()

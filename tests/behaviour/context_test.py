"""Context parallelism as processes: the numbers of one process, sequences that one process cannot hold, bad requests."""

from __future__ import annotations

import resource
import unittest

from program import DEBUG_CONFIG, FULL, OK, OUT_OF_MEMORY, SMALL, VALIDATION, BehaviourTest, Run
from training_test import distance

MIB = 1 << 20
DETERMINED = ["--debug.seed=3", "--training.mixed_precision_param=float32"]


class ContextParallel(BehaviourTest):
    def launch(self, ranks: int, *words: object, limits: dict[int, int] | None = None) -> Run:
        """`ranks` processes that share every sequence."""
        folder = self.fresh_folder()
        degree = f"--parallelism.context_parallel_degree={ranks}"
        run = self.titan(
            "launch", "-n", ranks, DEBUG_CONFIG, *SMALL, *DETERMINED, degree, *words, f"--job.dump_folder={folder}", limits=limits
        )
        run.folder = folder
        return run

    def alone(self, *words: object, **options) -> Run:
        return self.train(*DETERMINED, *words, **options)

    def test_validation_and_token_counts_are_those_of_one_process(self):
        words = [*VALIDATION, "--validation.seq_len=32", "--validation.steps=2"]
        words += ["--validation.freq=2", "--training.steps=2"]
        alone = self.alone(*words).metrics()
        shared = self.launch(2, *words)
        self.expect(shared, OK)
        for mine, theirs in zip(shared.metrics(), alone, strict=True):
            self.assertEqual(mine["step"], theirs["step"])
            for key in ("loss", "validation_loss"):
                if key in theirs:
                    self.assertAlmostEqual(mine[key], theirs[key], delta=1e-5 * theirs[key])
            self.assertEqual(mine.get("tokens_seen"), theirs.get("tokens_seen"))

    def test_a_step_with_documents_is_that_of_one_process(self):
        words = ["--model.flavor=debugmodel_flex_attn", "--debug.dump_steps=1", "--debug.dump_logits", "--training.max_norm=0"]
        alone = self.alone(*words, "--training.steps=1", steps=1).dump()
        for more in (
            ["--parallelism.context_parallel_rotate_method=allgather"],
            ["--parallelism.context_parallel_rotate_method=alltoall", "--parallelism.context_parallel_load_balancer=none"],
        ):
            run = self.launch(2, *words, *more, "--training.steps=1")
            self.expect(run, OK)
            shared = run.dump()
            self.assertTrue(shared.tokens.equal(alone.tokens))
            self.assertTrue(shared.labels.equal(alone.labels))
            self.assertLess(distance(shared.logits, alone.logits), 1e-5)
            for key, gradient in alone.gradients.items():
                self.assertLess(distance(shared.gradients[key], gradient), 1e-5, key)

    def data_of_a_short_sequence(self, *words: object) -> int:
        """The least memory, to 100 MiB, with which one process trains it: what the libraries take differs by build."""
        for amount in range(200 * MIB, 4096 * MIB, 100 * MIB):
            command = self.command(*DETERMINED, *words, "--training.seq_len=64", folder=self.fresh_folder())
            if self.titan(*command[1:], limits={resource.RLIMIT_DATA: amount}).code == OK:
                return amount
        self.fail("not even a short sequence fits")

    def test_a_sequence_too_long_for_one_process_fits_four(self):
        words = ["--model.override.dim=256", "--model.override.n_layers=6", "--training.local_batch_size=1"]
        words += ["--training.steps=1", "--training.loss_chunks=64", "--activation_checkpoint.mode=none"]
        # Of 8,192 tokens one process keeps some 800 MiB more, a rank of four a quarter of that.
        limits = {resource.RLIMIT_DATA: self.data_of_a_short_sequence(*words) + 500 * MIB}
        words.append("--training.seq_len=8192")
        self.alone(*words, limits=limits, exit_code=OUT_OF_MEMORY)
        for rotation in ("allgather", "alltoall") if FULL else ("alltoall",):
            run = self.launch(4, *words, f"--parallelism.context_parallel_rotate_method={rotation}", limits=limits)
            self.expect(run, OK)
            self.assertIn("Applied Context Parallelism to the model", run.output + run.errors)


if __name__ == "__main__":
    unittest.main()

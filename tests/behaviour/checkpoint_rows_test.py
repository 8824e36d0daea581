"""What torchtitan's integration rows with checkpoints leave out (they run in upstream_rows_test)."""

from __future__ import annotations

import unittest

from checkpoint_runs import CheckpointTest, parallel


class Rows(CheckpointTest):
    def expect_resumed(self, text: str, step: int) -> None:
        self.assertEqual(self.loaded(text), step)
        self.assertIn("Training completed", text)

    def run_row(self, ranks: int, steps: int, *words) -> str:
        return self.complete(ranks, self.folder / "run", steps, "--checkpoint.interval=10", *words)

    def test_a_model_saved_in_bfloat16_takes_half_the_room(self):
        for dtype in ("float32", "bfloat16"):
            self.run_row(2, 10, *parallel(dp_shard=2), "--checkpoint.last_save_model_only",
                         f"--checkpoint.export_dtype={dtype}", f"--checkpoint.folder={dtype}")
        sizes = [
            sum(path.stat().st_size for path in (self.folder / "run" / dtype / "step-10").glob("*.distcp"))
            for dtype in ("float32", "bfloat16")
        ]
        self.assertLess(sizes[1], 0.7 * sizes[0])

    def test_cpu_offload_with_a_pipeline(self):
        # Upstream's row also steps in backward, and was given up there: that does not go with a pipeline here either.
        words = [*parallel(pp=2, dp_shard=2), "--training.enable_cpu_offload"]
        self.run_row(4, 10, *words)
        self.expect_resumed(self.run_row(4, 12, *words), 10)

    def test_tokens_are_counted_on_when_the_data_begin_anew(self):
        self.run_row(1, 10)
        self.expect_resumed(self.run_row(2, 20, *parallel(dp_shard=2),
                                         "--checkpoint.exclude_from_loading=dataloader,optimizer"), 10)
        tokens = [numbers[2] for numbers in self.curve(self.folder / "run").values()]
        self.assertEqual(tokens, sorted(tokens))


if __name__ == "__main__":
    unittest.main()

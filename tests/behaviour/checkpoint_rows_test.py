"""torchtitan's integration rows with checkpoints: the same options, run after run in one folder, on a smaller model.

There a row passes when every run exits with 0; here the runs must also have saved and loaded what the options say.
"""

from __future__ import annotations

import unittest

from checkpoint_runs import CheckpointTest, parallel
from program import FULL

IN_2024 = "--job.generation=2024"


class Rows(CheckpointTest):
    def expect_resumed(self, text: str, step: int) -> None:
        self.assertEqual(self.loaded(text), step)
        self.assertIn("Training completed", text)

    def run_row(self, ranks: int, steps: int, *words) -> str:
        return self.complete(ranks, self.folder / "run", steps, "--checkpoint.interval=10", *words)

    def test_full_checkpoint(self):
        words = parallel(dp_shard=4)
        self.run_row(4, 10, *words)
        self.expect_resumed(self.run_row(4, 20, *words), 10)

    def test_last_save_model_only_fp32_and_bf16(self):
        for dtype in ("float32", "bfloat16"):
            with self.subTest(dtype):
                text = self.run_row(2, 10, *parallel(dp_shard=2), "--checkpoint.last_save_model_only",
                                    f"--checkpoint.export_dtype={dtype}", f"--checkpoint.folder={dtype}")
                self.assertIn(f"Saving a model only checkpoint in {dtype} at last step, step 10.", text)
        sizes = [
            sum(path.stat().st_size for path in (self.folder / "run" / dtype / "step-10").glob("*.distcp"))
            for dtype in ("float32", "bfloat16")
        ]
        self.assertLess(sizes[1], 0.7 * sizes[0])

    def test_model_weights_only_by_its_name_of_2024(self):
        text = self.complete(2, self.folder / "run", 10, *parallel(dp_shard=2), "--checkpoint.model_weights_only",
                             "--checkpoint.export_dtype=bfloat16", IN_2024)
        self.assertIn("Saving a model only checkpoint in bfloat16 at last step", text)

    def test_cpu_offload_with_a_pipeline(self):
        # Upstream's row also steps in backward, and was given up there: that does not go with a pipeline here either.
        words = [*parallel(pp=2, dp_shard=2), "--training.enable_cpu_offload"]
        self.run_row(4, 10, *words)
        self.expect_resumed(self.run_row(4, 12, *words), 10)

    def test_optional_checkpoint(self):
        self.run_row(4, 10, *parallel(dp_shard=4))
        text = self.run_row(4, 20, *parallel(dp_shard=2, tp=2),
                            "--checkpoint.exclude_from_loading=lr_scheduler,dataloader,optimizer")
        self.expect_resumed(text, 10)
        self.assertIn("lr_scheduler makes no difference", text)
        tokens = [numbers[2] for numbers in self.curve(self.folder / "run").values()]
        self.assertEqual(tokens, sorted(tokens))

    def test_pp_dp_tp(self):
        if not FULL:
            self.skipTest("eight ranks: scripts/test.sh --full")
        words = parallel(pp=2, dp_shard=2, tp=2)
        self.run_row(8, 10, *words)
        self.expect_resumed(self.run_row(8, 20, *words), 10)

    def test_cpu_offload_with_tp_dp_cp(self):
        if not FULL:
            self.skipTest("eight ranks: scripts/test.sh --full")
        words = ["--training.enable_cpu_offload", "--optimizer.early_step_in_backward", "--training.max_norm=0"]
        self.run_row(8, 10, *words, *parallel(dp_shard=2, tp=2, cp=2))
        text = self.run_row(8, 20, *words, *parallel(dp_replicate=2, tp=2, cp=2), "--checkpoint.no-enable")
        self.assertNotIn("LOAD: ", text)


if __name__ == "__main__":
    unittest.main()

"""A run that is killed and given the same command again is the run that was never killed, bit for bit.

Losses, gradient norms, weights, moments and data position, in every family of layouts, twice in a row, with saves beside
training and with accumulation; and a checkpoint of one layout continued by another, in Hugging Face's form too.
"""

from __future__ import annotations

import json
import shutil
import unittest

import safetensors.torch
import torch
from checkpoint_runs import CheckpointTest, parallel
from program import BAD_CONFIG, dump
from quantised_weights import SETTINGS, quantised

ASYNCHRONOUS = "--checkpoint.async_mode=async"
ACCUMULATING = "--training.global_batch_size=8"
TIED = ["--model.name=llama3_2", "--model.flavor=1B", "--model.override.n_kv_heads=2", "--model.override.vocab_size=2048"]
# name: ranks and options. The odd ones save beside training.
LAYOUTS = {
    "single": (1, parallel()),
    "single_accumulating": (1, [*parallel(), ACCUMULATING, ASYNCHRONOUS]),
    "ddp": (2, parallel(dp_replicate=2)),
    "fsdp": (2, [*parallel(dp_shard=2), ASYNCHRONOUS]),
    "fsdp_accumulating": (2, [*parallel(dp_shard=2), ACCUMULATING]),
    "tp": (2, [*parallel(tp=2), "--checkpoint.async_mode=async_with_pinned_mem"]),
    "pp": (2, parallel(pp=2)),
    "pp_tied": (2, [*parallel(pp=2), *TIED, ASYNCHRONOUS]),
    "cp": (2, parallel(cp=2)),
    "hsdp": (4, [*parallel(dp_replicate=2, dp_shard=2), ASYNCHRONOUS]),
    "mixed_fsdp_tp": (4, parallel(dp_shard=2, tp=2)),
    "mixed_pp_fsdp": (4, [*parallel(pp=2, dp_shard=2), ASYNCHRONOUS]),
}


class KilledTwice(CheckpointTest):
    def expect_the_unbroken_run(self, name: str):
        ranks, words = LAYOUTS[name]
        whole, broken = self.folder / "whole", self.folder / "broken"
        _, first = self.kill_after(ranks, broken, 4, *words)
        text, second = self.kill_after(ranks, broken, first + 4, *words)
        self.assertGreaterEqual(self.loaded(text), first)
        steps = second + 4
        text = self.complete(ranks, broken, steps, *words)
        self.assertGreaterEqual(self.loaded(text), second)
        self.complete(ranks, whole, steps, *words, f"--checkpoint.interval={steps}")
        self.assertEqual(self.curve(broken), self.curve(whole))
        self.assertEqual(len(self.curve(whole)), steps)
        self.expect_same_checkpoint(broken, whole, steps)

    def test_single(self):
        self.expect_the_unbroken_run("single")

    def test_single_with_accumulation(self):
        self.expect_the_unbroken_run("single_accumulating")

    def test_ddp(self):
        self.expect_the_unbroken_run("ddp")

    def test_fsdp(self):
        self.expect_the_unbroken_run("fsdp")

    def test_fsdp_with_accumulation(self):
        self.expect_the_unbroken_run("fsdp_accumulating")

    def test_hsdp(self):
        self.expect_the_unbroken_run("hsdp")

    def test_tensor_parallel(self):
        self.expect_the_unbroken_run("tp")

    def test_pipeline(self):
        self.expect_the_unbroken_run("pp")

    def test_pipeline_with_tied_embeddings(self):
        self.expect_the_unbroken_run("pp_tied")

    def test_context_parallel(self):
        self.expect_the_unbroken_run("cp")

    def test_fsdp_with_tensor_parallel(self):
        self.expect_the_unbroken_run("mixed_fsdp_tp")

    def test_pipeline_with_fsdp(self):
        self.expect_the_unbroken_run("mixed_pp_fsdp")


class OtherLayout(CheckpointTest):
    """Saved by one layout after step 2, continued by another: step 3 begins with the same bits and the same samples, and
    changes the weights by as much, which it could not with other moments."""

    # The microbatches differ, the global batch does not.
    COMMON = ["--training.global_batch_size=8", "--debug.dump_steps=3"]
    UPDATE_ERROR = 1e-3  # of a step's change of a weight, by norm: rounding of gradients, divided by small moments

    def expect_the_same_step(self, saved_by: tuple[int, list[str]], continued_by: tuple[int, list[str]], *words):
        first, second = self.folder / "first", self.folder / "second"
        words = (*self.COMMON, *words)
        self.complete(saved_by[0], first, 3, *saved_by[1], *words)
        shutil.copytree(first / "checkpoint" / "step-2", second / "checkpoint" / "step-2")
        text = self.complete(continued_by[0], second, 3, *continued_by[1], *words)
        self.assertEqual(self.loaded(text), 2)
        a, b = dump.read(first, 3), dump.read(second, 3)
        self.assertTrue(torch.equal(a.tokens, b.tokens))
        self.assertTrue(torch.equal(a.labels, b.labels))
        self.assertEqual(set(a.parameters), set(b.parameters))
        for name, weight in a.parameters.items():
            self.assertTrue(torch.equal(weight, b.parameters[name]), name)
            change = a.parameters_after[name] - weight
            error = (b.parameters_after[name] - b.parameters[name] - change).norm() / change.norm()
            self.assertLess(error.item(), self.UPDATE_ERROR, name)

    def test_one_process_to_fsdp(self):
        self.expect_the_same_step((1, parallel()), (2, parallel(dp_shard=2)))

    def test_ddp_to_tensor_parallel(self):
        self.expect_the_same_step((2, parallel(dp_replicate=2)), (2, parallel(tp=2)))

    def test_fsdp_to_a_pipeline(self):
        self.expect_the_same_step((2, parallel(dp_shard=2)), (2, parallel(pp=2)))

    def test_a_pipeline_with_tied_embeddings_to_context_parallel(self):
        self.expect_the_same_step((2, parallel(pp=2)), (2, parallel(cp=2)), *TIED)

    def test_fsdp_with_tensor_parallel_to_one_process(self):
        self.expect_the_same_step((4, parallel(dp_shard=2, tp=2)), (1, parallel()))

    def test_hsdp_to_a_pipeline_with_fsdp(self):
        self.expect_the_same_step((4, parallel(dp_replicate=2, dp_shard=2)), (4, parallel(pp=2, dp_shard=2)))


class HuggingFaceForm(CheckpointTest):
    """The last step of one layout in Hugging Face's form is what a run of another layout begins with."""

    def run_of(self, layout: list[str], folder, steps: int, *words) -> str:
        precision = "--training.mixed_precision_param=float32"
        last = (f"--training.steps={steps}", f"--debug.dump_steps={steps}", f"--job.dump_folder={folder}")
        run = self.launch_training(2, "--checkpoint.enable", precision, *layout, *words, *last)
        self.assertEqual(run.end(), 0, run.text())
        self.expect_friendly(run.text())
        return run.text()

    def expect_the_same_weights(self, saved_by: list[str], continued_by: list[str], *words):
        first, second = self.folder / "first", self.folder / "second"
        self.run_of(saved_by, first, 2, "--checkpoint.last_save_in_hf", *words)
        form = first / "checkpoint" / "step-2"
        begin = ["--checkpoint.initial_load_in_hf", f"--checkpoint.initial_load_path={form}"]
        text = self.run_of(continued_by, second, 1, *begin, *words)
        self.assertRegex(text, r"LOAD: (\d+)/\1 tensors, 0 missing, 0 unexpected from ")
        saved, begun = dump.read(first, 2).parameters_after, dump.read(second, 1).parameters
        self.assertEqual(set(saved), set(begun))
        for name, weight in saved.items():
            self.assertTrue(torch.equal(weight, begun[name]), name)

    def test_fsdp_to_tensor_parallel(self):
        self.expect_the_same_weights(parallel(dp_shard=2), parallel(tp=2))

    def test_a_pipeline_with_tied_embeddings_to_fsdp(self):
        self.expect_the_same_weights(parallel(pp=2), parallel(dp_shard=2), *TIED)

    def test_weights_quantised_in_blocks_are_the_numbers_they_stand_for(self):
        self.run_of(parallel(dp_shard=2), self.folder / "first", 1, "--checkpoint.last_save_in_hf")
        form = self.folder / "first/checkpoint/step-1"
        settings = json.loads((form / "config.json").read_text())
        stored, meant = quantised(safetensors.torch.load_file(form / "model.safetensors"))
        for name, weights, more in (("small", stored, {"quantization_config": SETTINGS}), ("wide", meant, {})):
            (self.folder / name).mkdir()
            (self.folder / name / "config.json").write_text(json.dumps({**settings, **more}))
            safetensors.torch.save_file(weights, self.folder / name / "model.safetensors")
        begin = "--checkpoint.initial_load_in_hf"
        small, wide = (f"--checkpoint.initial_load_path={self.folder / name}" for name in ("small", "wide"))
        text = self.run_of(parallel(tp=2), self.folder / "second", 1, begin, small,
                           "--checkpoint.initial_load_in_hf_quantized")
        self.assertRegex(text, r"LOAD: (\d+)/\1 tensors, .* \(Hugging Face, quantised, unverified\)")
        self.run_of(parallel(dp_shard=2), self.folder / "third", 1, begin, wide)
        a, b = (dump.read(self.folder / name, 1).parameters for name in ("second", "third"))
        self.assertEqual(set(a), set(b))
        for name, weight in a.items():
            self.assertTrue(torch.equal(weight, b[name]), name)
        for path, words, says in ((small, [], "set checkpoint.initial_load_in_hf_quantized = true"),
                                  (wide, ["--checkpoint.initial_load_in_hf_quantized"], "leave checkpoint.initial_load")):
            run = self.launch_training(2, "--checkpoint.enable", begin, path, *words, "--training.steps=1",
                                       f"--job.dump_folder={self.folder / 'fourth'}")
            self.assertEqual(run.end(), BAD_CONFIG, run.text())
            self.assertIn(says, run.text())


if __name__ == "__main__":
    unittest.main()

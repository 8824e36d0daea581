"""Checkpoints of a run on mock GPUs: what they hold, and how another run resumes from them.

The mock's optimizer adds 1 to every weight, 2 to the first moments and 3 to the second, all of which begin as 0: a number
of a checkpoint tells its step."""

from __future__ import annotations

import collections
import contextlib
import io
import pathlib
import shutil
import unittest

import torch
from mock_gpu import FUSED, MockGpu
from program import FULL, Run
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

SAVING = [
    FUSED,
    "--checkpoint.enable",
    "--checkpoint.interval=2",
    "--checkpoint.keep_latest_k=0",
    "--checkpoint.last_save_model_only=false",
]
TENSOR = "--parallelism.tensor_parallel_degree=2"
PIPELINE = "--parallelism.pipeline_parallel_degree=2"


def tensors_of(state: dict, prefix: str = ""):
    for name, value in state.items():
        if isinstance(value, dict):
            yield from tensors_of(value, f"{prefix}{name}.")
        elif isinstance(value, torch.Tensor) and value.is_floating_point():
            yield prefix + name, value


class SavedStates(MockGpu):
    def state(self, run: Run, step: int) -> dict[str, torch.Tensor]:
        """Weights and moments of a checkpoint by name, and the steps of the optimizer."""
        file = self.folder / "state.pt"
        with contextlib.redirect_stdout(io.StringIO()):
            dcp_to_torch_save(run.folder / "checkpoint" / f"step-{step}", file)
        return dict(tensors_of(torch.load(file, weights_only=False)))

    def expect_state(self, run: Run, step: int, counted: int = 0) -> None:
        """All of it is that of `step`. The count of Adam's steps is on the GPU, and the mock adds nothing to it: it is still
        `counted`, as the run began with."""
        kinds = collections.Counter()
        for name, value in self.state(run, step).items():
            kind = next((kind for kind in ("exp_avg_sq", "exp_avg", "step") if name.endswith(f".{kind}")), "weight")
            kinds[kind] += 1
            wanted = {"weight": step, "exp_avg": 2 * step, "exp_avg_sq": 3 * step, "step": counted}[kind]
            self.assertEqual({*value.float().flatten().unique().tolist()}, {float(wanted)}, (step, name))
        self.assertEqual(kinds["exp_avg"], kinds["weight"], kinds)
        self.assertEqual(kinds["exp_avg_sq"], kinds["weight"], kinds)

    def trained(self, steps: int, *words, ranks: int = 1, folder: pathlib.Path | None = None, **settings) -> Run:
        words = (*SAVING, *words, f"--training.steps={steps}")
        return self.on_gpu(*words, ranks=ranks, folder=folder, MOCK_CUDA_OPTIMIZER=1, **settings)


class Saves(SavedStates):
    """A copy that waited for too little, or that the optimizer did not wait for, shows in one of the two orders."""

    def test_a_checkpoint_from_a_gpu_holds_the_state_of_its_step(self):
        rows = [("async", "at once", 2), ("async_with_pinned_mem", "at once", 1), ("async_with_pinned_mem", "late", 2)]
        if FULL:
            rows += [("disabled", "late", 1), ("async", "late", 1)]
            rows += [("async_with_pinned_mem", "at once", 2), ("async_with_pinned_mem", "late", 1)]
        for mode, order, ranks in rows:
            with self.subTest(mode=mode, order=order, ranks=ranks):
                run = self.trained(6, f"--checkpoint.async_mode={mode}", ranks=ranks, MOCK_CUDA=order)
                for step in (2, 4, 6):
                    self.expect_state(run, step)


class Resumes(SavedStates):
    """What is loaded goes to the device: the mock copies it, where it is not cut across (that copy is a kernel)."""

    def goes_on(self, saved: Run, steps: int, *words, ranks: int = 1, **settings) -> Run:
        folder = self.fresh_folder()
        shutil.copytree(saved.folder, folder)
        run = self.trained(steps, *words, ranks=ranks, folder=folder, **settings)
        self.assertRegex(run.output, r"LOAD: step 4 from ")
        self.assertEqual(run.training("step"), list(range(1, steps + 1)))
        return run

    def test_a_run_goes_on_from_its_step_in_any_layout(self):
        pinned, beside = "--checkpoint.async_mode=async_with_pinned_mem", "--checkpoint.async_mode=async"
        alone, sharded = self.trained(4), self.trained(4, pinned, ranks=2)
        rows = {
            "alone": (alone, [], 1),
            "alone, pinned": (alone, [pinned], 1),
            "alone to fsdp": (alone, [], 2),
            "alone to fsdp, pinned": (alone, [pinned], 2),
            "alone to tensor": (alone, [TENSOR, beside], 2),
            "alone to pipeline": (alone, [PIPELINE], 2),
            "fsdp to alone": (sharded, [pinned], 1),
            "fsdp": (sharded, [pinned], 2),
            "fsdp to four": (sharded, [beside], 4),
        }
        if not FULL:
            rows = {name: rows[name] for name in ("alone, pinned", "alone to tensor", "fsdp to four")}
        for name, (saved, words, ranks) in rows.items():
            with self.subTest(name):
                self.expect_state(self.goes_on(saved, 6, *words, ranks=ranks), 6)
        with self.subTest("moments on the host"):
            # These cross in every step, so that everything has to be copied; losses are what memory happens to hold.
            words = ("--optimizer.offload", pinned, "--training.non_finite=skip")
            self.expect_state(self.goes_on(alone, 6, *words, MOCK_CUDA_HOLLOW=None), 6)
        with self.subTest("as late as CUDA allows"):
            self.expect_state(self.goes_on(alone, 6, pinned, ranks=2, MOCK_CUDA="late"), 6)

    def test_it_takes_the_memory_and_the_waits_of_a_run_that_never_ended(self):
        for words, ranks in (([], 1), (["--checkpoint.async_mode=async_with_pinned_mem"], 2)):
            with self.subTest(words=words, ranks=ranks):
                saved = self.trained(4, *words, ranks=ranks)
                quiet = [*words, "--checkpoint.interval=1000"]
                whole, resumed = self.trained(12, *quiet, ranks=ranks), self.goes_on(saved, 12, *quiet, ranks=ranks)
                peaks = [run.training("memory_peak_bytes")[-1] for run in (whole, resumed)]
                self.assertAlmostEqual(peaks[1] / peaks[0], 1, delta=0.02)
                loaded = 4 * sum(value.numel() for value in self.state(saved, 4).values()) / ranks
                copied = [run.ledgers[0]["copies"]["copy from pageable"]["amount"] for run in (whole, resumed)]
                self.assertAlmostEqual((copied[1] - copied[0]) / loaded, 1, delta=0.01)

                def run(steps, quiet=quiet, ranks=ranks, saved=saved):
                    return self.goes_on(saved, steps, *quiet, ranks=ranks)

                self.assertEqual(self.a_step_more(run, "waits", 10), {"cudaEventSynchronize": ranks})


if __name__ == "__main__":
    unittest.main()

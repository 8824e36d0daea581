"""Checkpoints that the build of commit c40bb78d (November 2026) saved at step 4 are resumed with that build's results.

Its losses, gradient norms and tensors of step 8 are in continuation.json (kept_checkpoint/record.py writes it). A processor of
the kind that it ran on must give the same bits. Others add in another order: there the comparison has a tolerance, and a
warning says that it was this one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import tarfile
import unittest
import warnings
from unittest import mock

import torch
from checkpoint_runs import parallel
from program import OK, ROOT, BehaviourTest, Run
from saved_state import state_of

KEPT = ROOT / "tests" / "behaviour" / "kept_checkpoint"
JOB, CHECKPOINTS, CONTINUATION = KEPT / "job.toml", KEPT / "checkpoints.tar.xz", KEPT / "continuation.json"
SAVED, END = 4, 8


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    checkpoint: str  # its folder in CHECKPOINTS
    words: tuple[str, ...]
    build: str  # whose bits are reproduced
    # Largest relative differences on another kind of processor, in another layout and from another build.
    loss: float
    norm: float
    tensor: float


SAVED_BY = "c40bb78d"
# Since b2fc03f9 query, key and value are one product, and so are gate and up: the gradient of their input is summed in
# another order. Float8 still multiplies by each weight alone; other products are compared with the bits of a later build.
LATER = "5aee0368"
EMULATED = ("--model.converters=quantize.linear.float8", "--quantize.linear.float8.emulate")
FLOAT8 = Case("float8", "fp32", EMULATED, SAVED_BY, loss=1e-4, norm=1e-3, tensor=1e-2)
# Weights and moments in bfloat16, with stochastic rounding.
BFLOAT16 = Case(
    "bfloat16",
    "bfloat16",
    (*EMULATED, "--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16"),
    SAVED_BY,
    loss=1e-4,
    norm=1e-3,
    tensor=1e-2,
)
FP32 = Case("fp32", "fp32", ("--training.mixed_precision_param=float32",), LATER, loss=1e-6, norm=1e-5, tensor=1e-4)
CASES = (FLOAT8, BFLOAT16, FP32)
# The libraries that compute matrix products then say for which instructions they chose their kernels.
VERBOSE = {"ONEDNN_VERBOSE": "1", "MKL_VERBOSE": "1"}
OLDEST_INSTRUCTIONS = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"}


def processor_of(version: Run, run: Run) -> dict[str, str]:
    """What decides the order of sums: the processor, the libraries, and the instructions that these use on it."""
    facts, cpu = {}, pathlib.Path("/proc/cpuinfo").read_text()
    for name, pattern, text in (
        ("vendor", r"^vendor_id\s*: (.*)$", cpu),
        ("family", r"^cpu family\s*: (.*)$", cpu),
        ("model", r"^model\s*: (.*)$", cpu),
        ("LibTorch", r"^  LibTorch  (.*)$", version.output),
        ("oneDNN", r"^onednn_verbose,v1,info,(oneDNN .*)$", run.output),
        ("oneDNN's instructions", r"^onednn_verbose,v1,info,cpu,isa:(.*)$", run.output),
        ("MKL", r"^MKL_VERBOSE (oneMKL .*?), Lnx ", run.output),
    ):
        found = re.search(pattern, text, re.MULTILINE)
        facts[name] = found[1] if found else "none"
    return facts


def described(tensor: torch.Tensor) -> list:
    """Its bytes' hash and, for comparisons with a tolerance, its norm and its product with fixed weights."""
    numbers = tensor.double().flatten()
    weights = torch.arange(numbers.numel(), dtype=torch.float64).cos()
    content = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    norm, product = (float(f"{value.item():.7g}") for value in (numbers.norm(), numbers.dot(weights)))
    return [hashlib.sha256(content).hexdigest()[:16], norm, product]


def result_of(folder: pathlib.Path) -> dict:
    """Losses and gradient norms of the steps after step 4, and the tensors of step 8."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = {str(line["step"]): [line["loss"], line["grad_norm"]] for line in lines if line["step"] > SAVED}
    state = state_of(folder / "checkpoint" / f"step-{END}")
    tensors = {name: described(value) for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {"steps": steps, "tensors": tensors}


def kept_of(case: Case) -> dict[str, dict]:
    """Steps 5 to 8, and the tensors of step 8, by build."""
    return json.loads(CONTINUATION.read_text())[case.name]


class KeptCheckpoint(BehaviourTest):
    def resume(self, case: Case, *words, launcher: tuple = (), environment: dict[str, str] | None = None) -> tuple[dict, Run]:
        """Trains from the kept checkpoint to step 8: its results, and the run."""
        folder = self.fresh_folder()
        with tarfile.open(CHECKPOINTS) as packed:
            members = [member for member in packed if member.name.split("/")[0] == case.checkpoint]
            packed.extractall(self.folder, members)  # Python 3.11.2, Debian 12's, has no filters yet
        folder.mkdir()
        (self.folder / case.checkpoint).rename(folder / "checkpoint")
        with mock.patch.dict(os.environ, environment or {}):
            run = self.titan(*launcher, JOB, *case.words, f"--job.dump_folder={folder}", *words)
        self.expect(run, OK)
        self.assertIn(f"LOAD: step {SAVED}", run.output)
        return result_of(folder), run

    def expect_close(self, case: Case, result: dict, kept: dict) -> None:
        self.assertEqual(list(result["steps"]), list(kept["steps"]))
        for step, (loss, norm) in kept["steps"].items():
            got_loss, got_norm = result["steps"][step]
            self.assertAlmostEqual(got_loss, loss, delta=case.loss * loss, msg=f"loss of step {step}")
            self.assertAlmostEqual(got_norm, norm, delta=case.norm * norm, msg=f"gradient norm of step {step}")
        self.assertEqual(sorted(result["tensors"]), sorted(kept["tensors"]))
        for name, (_, norm, product) in kept["tensors"].items():
            _, got_norm, got_product = result["tensors"][name]
            self.assertAlmostEqual(got_norm, norm, delta=case.tensor * norm, msg=name)
            self.assertAlmostEqual(got_product, product, delta=case.tensor * norm, msg=name)

    def expect_same_continuation(self, case: Case) -> None:
        kept = kept_of(case)
        result, run = self.resume(case, environment=VERBOSE)
        if case.build != SAVED_BY:
            self.expect_close(case, result, kept[SAVED_BY])
        recorded, processor = kept[case.build]["processor"], processor_of(self.titan("--version"), run)
        if processor != recorded:
            others = [name for name, value in processor.items() if value != recorded[name]]
            there = ", ".join(f"{name} is {processor[name]!r}, recorded with {recorded[name]!r}" for name in others)
            warnings.warn(f"{case.name}: compared with a tolerance, not bit for bit: {there}", stacklevel=1)
            self.expect_close(case, result, kept[case.build])
            return
        self.assertEqual(result["steps"], kept[case.build]["steps"])
        tensors = kept[case.build]["tensors"]
        self.assertEqual([name for name, value in tensors.items() if result["tensors"][name] != value], [], "other bits")

    def test_float8_products_of_fp32_weights_resume_as_in_the_build_that_saved_them(self):
        self.expect_same_continuation(FLOAT8)

    def test_bfloat16_weights_and_moments_resume_as_in_the_build_that_saved_them(self):
        self.expect_same_continuation(BFLOAT16)

    def test_fp32_products_of_the_same_weights_resume_as_in_a_later_build(self):
        self.expect_same_continuation(FP32)

    def test_other_instructions_of_the_processor_keep_to_the_tolerance(self):
        """The tolerance is tested on a machine of the recorded kind, too, where the tests above do not use it."""
        for case in CASES:
            kept = kept_of(case)[case.build]
            result, run = self.resume(case, environment=VERBOSE | OLDEST_INSTRUCTIONS)
            self.assertNotEqual(processor_of(self.titan("--version"), run), kept["processor"])
            self.assertNotEqual(result["steps"], kept["steps"], "other instructions made no difference")
            self.expect_close(case, result, kept)

    def test_two_ranks_resume_within_the_tolerance(self):
        for layout in (parallel(dp_shard=2), parallel(tp=2)):
            result, _ = self.resume(FP32, *layout, launcher=("launch", "-n", "2"))
            self.expect_close(FP32, result, kept_of(FP32)[LATER])

    def test_the_hashes_of_their_files_are_verified(self):
        with tarfile.open(CHECKPOINTS) as packed:
            packed.extractall(self.folder)
        for folder in {case.checkpoint for case in CASES}:
            self.expect(self.titan("convert", "verify", self.folder / folder / f"step-{SAVED}"), OK)


if __name__ == "__main__":
    unittest.main()

"""scripts/gpu/bench.py and the program it drives: rows that the program understands, and a summary that the script does."""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import time
import unittest
import unittest.mock

import pytest

from program import OK, ROOT, BehaviourTest

sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import bench  # noqa: E402
import card  # noqa: E402
import check  # noqa: E402
import programs  # noqa: E402

pytestmark = pytest.mark.full


class Rows(BehaviourTest):
    def session(self, device: str) -> programs.Session:
        folder = pathlib.Path(self.program).parent
        return programs.Session(
            argparse.Namespace(programs=folder, device=device, log=None, results=None, seconds=600, only="", script="bench"), time.monotonic()
        )

    def made(self, device: str) -> bench.Bench:
        return bench.Bench(self.session(device), None)

    def words(self, row: str, device: str) -> list[str]:
        return [word.replace("{folder}", str(self.folder / "run")) for word in self.made(device).words_of(row)]

    def test_every_row_is_a_config_that_can_be_planned(self):
        for device in ("cuda", "cpu"):
            for row in bench.ALL_ROWS:
                with self.subTest(device=device, row=row):
                    run = self.titan("plan", *self.words(row, device))
                    self.expect(run, OK)
                    self.assertIn("memory of rank ", run.output)

    def test_models_are_those_that_the_script_reckons_with(self):
        for key in ("8b", "3b", "1b", "8b_16_layers"):
            model = bench.MODELS[key]
            run = self.titan("plan", *self.words(f"{key}-bf16-plain", "cuda"))
            said = f"dim {model.dim}, {model.layers} layers, {model.heads} heads ({model.kv_heads} for keys and values)"
            self.assertIn(said, run.output)
            self.assertIn(f"hidden {model.hidden}, vocabulary {model.vocabulary}", run.output)

    def test_what_a_copys_rate_is_taken_for_are_the_bytes_that_the_plan_counts(self):
        """Of 8B's SwiGLU, norms, rotation and residual, as docs/kernels.md counts them; with float8 there are casts, too."""
        h200 = card.Card("NVIDIA H200", mib=143771)
        made = bench.Bench(self.session("cuda"), h200)
        m = bench.MODELS["8b"]
        seconds = made.plan("8b-bf16-fused")["seconds"]
        scale = 2 * bench.SWIGLU * m.hidden * m.sequence * m.layers / seconds["swiglu"]
        turned = 2 * 2 * (m.dim + m.dim // m.heads * m.kv_heads)  # read and written, forward and backward
        self.assertAlmostEqual(scale * seconds["rotary"] / (2 * turned * m.sequence * m.layers), 1, delta=0.02)
        moved, with_casts = made.bytes_moved("8b-bf16-fused"), made.bytes_moved("8b-float8-fused")
        self.assertGreater(moved, scale * (seconds["norm"] + seconds["optimizer"] + seconds["gradient norm"] + seconds["swiglu"]))
        self.assertGreater(with_casts, 1.2 * moved)

    def test_a_row_runs_to_a_trace_whose_kinds_of_work_the_script_reads(self):
        run = self.titan(*self.words("1b-float8-traced", "cpu"), "--training.threads=1")
        self.expect(run, OK)
        traces = self.folder / "run" / "profile_traces"
        self.assertEqual([path.name for path in traces.iterdir()], [f"iteration_{bench.TRACED}"])
        summary = self.titan("profile", "summarize", traces / f"iteration_{bench.TRACED}" / "rank0_trace.json")
        self.expect(summary, OK)
        kinds = bench.kinds_of(summary.output)
        self.assertIn("matrix products", kinds)
        self.assertIn("own loops, waits and gaps", kinds)
        length = float(summary.output.split(" step, ")[1].split(" ms")[0])
        self.assertAlmostEqual(sum(kinds.values()), length, delta=0.01 * len(kinds))

    def test_kernels_are_measured_in_the_tiny_models_shapes_and_shown_as_shares_of_a_copy(self):
        made = self.made("cpu")
        run = made.kernel_rates()
        self.assertEqual(run.verdict, "ok", run.printed)
        kernels = {kernel["name"]: kernel for kernel in run.numbers["kernels"]}
        self.assertEqual(len(kernels), 17)
        # Three arrays of 128 × 768 numbers in bf16.
        self.assertEqual(kernels["SwiGLU, forward"]["bytes"], 3 * 128 * 768 * 2)
        self.assertTrue(all(kernel["seconds"] > 0 for kernel in kernels.values()))
        lines = bench.kernel_lines(made.session)
        self.assertEqual([line.split(" | ")[0][2:] for line in lines[-17:]], list(kernels))

    def test_kernels_are_tested_and_a_test_that_nothing_takes_part_in_is_none(self):
        checks = check.Checks(self.session("cuda"))
        with unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):  # there is none
            self.assertEqual(checks.unit_tests("kernels_test").verdict, "failed: left out 1 test")

    def test_the_losses_computed_in_advance_are_those_of_a_cpu(self):
        checks = check.Checks(self.session("cpu"))
        for against, name in (("cpu", "single"), ("documents-cpu", "documents")):
            run = checks.train(name)
            self.assertEqual(run.verdict, "ok", f"{run.printed}\nscripts/gpu/first.sh --losses writes those of {against} anew")


class WrongNumbers(BehaviourTest):
    def test_rows_of_several_ranks_over_nccl_and_in_float8_are_compared_tensor_by_tensor(self):
        for row in ("fused", "one-fused", "fsdp2", "tp2-float8-fused"):
            with self.subTest(row):
                out = self.folder / row
                words = ["--packed", pathlib.Path(self.program).parent, "--out", out, "--device", "cpu", "--commit", "abc"]
                words += ["--variant", "wrong-numbers", "--row", row, "--only", "step 1 on cpu,tensors that differ"]
                command = [sys.executable, ROOT / "scripts" / "gpu" / "first.py", "first", *words]
                environment = os.environ | {"TMPDIR": str(self.folder)}
                done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertRegex(done.stdout, r"tensors that differ .* ok: \d+ tensors in both, by relative distance: ;0.00e\+00  \w")
                self.assertRegex((out / "log.txt").read_text(), r"\n\d\d+ tensors in both, by relative distance: \n0.00e\+00  \w")


if __name__ == "__main__":
    unittest.main()

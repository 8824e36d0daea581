"""scripts/gpu/bench.py and the program it drives: rows that the program understands, and a summary that the script does."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import unittest

import pytest
import unittest.mock

from program import OK, ROOT, BehaviourTest

sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import bench  # noqa: E402


pytestmark = pytest.mark.full


class Rows(BehaviourTest):
    def made(self, device: str, text: pathlib.Path | None = None) -> bench.Bench:
        programs = pathlib.Path(self.program).parent
        return bench.Bench(argparse.Namespace(programs=programs, device=device, machine="", text=text, log=None, spent=0))

    def words(self, row: str, device: str, text: pathlib.Path | None = None) -> list[str]:
        made = self.made(device, text)
        model, precision, mode = row.split("-")
        return made.words_of(made.model(model), precision, mode, str(self.folder / "run"))

    def test_every_row_is_a_config_that_can_be_planned(self):
        text = self.write("text.txt", "Once upon a time.")
        for device in ("cuda", "cpu"):
            for row in bench.ROWS:
                for corpus in (None, text):
                    with self.subTest(device=device, row=row, text=corpus):
                        run = self.titan("plan", *self.words(row, device, corpus))
                        self.expect(run, OK)
                        self.assertIn("memory of rank ", run.output)

    def test_models_are_those_that_the_script_reckons_with(self):
        for row in ("8b-bf16-plain", "3b-bf16-plain", "1b-bf16-plain"):
            model = bench.MODELS[row.split("-")[0]]
            run = self.titan("plan", *self.words(row, "cuda"))
            said = f"dim {model.dim}, {model.layers} layers, {model.heads} heads ({model.kv_heads} for keys and values)"
            self.assertIn(said, run.output)
            self.assertIn(f"hidden {model.hidden}, vocabulary {model.vocabulary}", run.output)

    def test_a_row_runs_to_a_trace_whose_kinds_of_work_the_script_reads(self):
        run = self.titan(*self.words("1b-float8-fused", "cpu"), "--training.threads=1")
        self.expect(run, OK)
        traces = self.folder / "run" / "profile_traces"
        self.assertEqual([path.name for path in traces.iterdir()], [f"iteration_{bench.LAST_STEP}"])
        summary = self.titan("profile", "summarize", traces / f"iteration_{bench.LAST_STEP}" / "rank0_trace.json")
        self.expect(summary, OK)
        kinds = bench.kinds_of(summary.output)
        self.assertIn("matrix products", kinds)
        self.assertIn("own loops, waits and gaps", kinds)
        length = float(summary.output.split(" step, ")[1].split(" ms")[0])
        self.assertAlmostEqual(sum(kinds.values()), length, delta=0.01 * len(kinds))


    def test_kernels_are_measured_in_the_tiny_models_shapes_and_shown_as_shares_of_a_copy(self):
        made = self.made("cpu")
        made.kernel_rates("8b")
        self.assertEqual(made.runs["kernel rates"].verdict, "ok", made.runs["kernel rates"].printed)
        kernels = {kernel["name"]: kernel for kernel in made.kernels["kernels"]}
        self.assertEqual(len(kernels), 13)
        # Three arrays of 128 × 768 numbers in bf16.
        self.assertEqual(kernels["SwiGLU, forward"]["bytes"], 3 * 128 * 768 * 2)
        self.assertTrue(all(kernel["seconds"] > 0 for kernel in kernels.values()))
        lines = bench.kernel_lines(made)
        self.assertEqual([line.split(" | ")[0][2:] for line in lines[-13:]], list(kernels))

    def test_kernels_are_tested_and_a_test_that_nothing_takes_part_in_is_none(self):
        made = self.made("cpu")
        made.device = "cuda"
        with unittest.mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": ""}):  # there is none
            made.kernel_tests()
        self.assertEqual(made.runs["kernels_test"].verdict, "kernels were not tested")


if __name__ == "__main__":
    unittest.main()

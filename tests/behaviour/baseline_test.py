"""scripts/gpu/baseline.py, with which benchmarks compare: from titan's own weights and tokens it has titan's loss."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from program import ROOT, BehaviourTest

BASELINE = ROOT / "scripts" / "gpu" / "baseline.py"
TINY = ["--dim=64", "--layers=2", "--heads=4", "--hidden=256", "--length=64", "--batch=2", "--threads=1"]


class Baseline(BehaviourTest):
    def baseline(self, *words) -> list[dict]:
        command = [sys.executable, str(BASELINE), "--device=cpu", *TINY, *map(str, words)]
        one_core = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, env=one_core, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def dumped(self, *words) -> tuple[str, list[dict]]:
        run = self.train("--debug.dump_steps=1", "--lr_scheduler.warmup_steps=0", *words, steps=1)
        (file,) = run.folder.rglob("step.safetensors")
        return str(file), run.metrics()

    def test_from_titans_weights_and_tokens_its_first_loss_and_norm_are_titans(self):
        for kv_heads in (4, 2):  # and with grouped queries
            with self.subTest(kv_heads=kv_heads):
                file, _ = self.dumped(f"--model.override.n_kv_heads={kv_heads}", "--training.mixed_precision_param=float32")
                titan = load_file(file)
                vocabulary = titan["param.output.weight"].shape[0]
                words = [f"--kv-heads={kv_heads}", f"--vocabulary={vocabulary}", f"--dump={file}", "--precision=float32"]
                first, *_ = self.baseline("--mode=eager", "--steps=1", *words)
                self.assertAlmostEqual(first["loss"], titan["loss"].item(), delta=1e-5 * titan["loss"].item())
                norm = titan["grad_norm"].item()
                self.assertAlmostEqual(first["grad_norm"], norm, delta=1e-4 * norm)

    def test_every_precision_prints_its_steps_and_then_one_line_about_them(self):
        for precision in ("float32", "mixed", "bfloat16"):
            with self.subTest(precision=precision):
                words = ["--kv-heads=4", "--vocabulary=512", f"--precision={precision}", "--steps=3", "--warm-up=1"]
                *steps, last = self.baseline("--mode=eager", *words)
                self.assertEqual([line["step"] for line in steps], [1, 2, 3])
                self.assertLess(abs(steps[0]["loss"] - 6.24), 0.1)  # ln 512
                self.assertTrue(all(line["step_seconds"] > 0 and line["grad_norm"] > 0 for line in steps))
                self.assertEqual([last["precision"], last["counted"], last["max_memory_reserved"]], [precision, 2, None])
                self.assertGreater(last["tokens_per_second"], 0)

    @pytest.mark.full
    def test_compiled_blocks_without_a_graph_break_have_the_same_losses(self):
        words = ["--kv-heads=2", "--vocabulary=512", "--precision=float32", "--steps=2", "--layers=10"]
        eager, compiled = (self.baseline(f"--mode={mode}", *words)[:2] for mode in ("eager", "compiled"))
        for plain, fused in zip(eager, compiled):
            self.assertAlmostEqual(plain["loss"], fused["loss"], delta=1e-4)

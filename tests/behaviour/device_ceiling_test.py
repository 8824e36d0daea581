"""bench_device_ceiling: the products that it measures are those that a training step makes."""

from __future__ import annotations

import json
import pathlib
import subprocess

from mock_gpu import ALONE, BF16, FLOAT8, FUSED, MockGpu
from program import BehaviourTest

PASSES = ["forward", "input_gradient", "weight_gradient"]
MATRICES = {"wq", "wk", "wv", "wo", "w1", "w3", "w2", "output"}
SIZES = {"dim": 64, "hidden": 256, "heads": 4, "kv_heads": 2, "layers": 3, "vocabulary": 512, "tokens": 128, "length": 64}
SHORT = ["--seconds=0.001", "--together=0.001"]


def words(program: str, device: str, precision: str, sizes: dict[str, int]) -> list[str]:
    ceiling = pathlib.Path(program).parent / "bench_device_ceiling"
    short = [word for option in SHORT for word in option.split("=")]
    return [str(ceiling), device, *map(str, sizes.values()), precision, *short]


def of_training(lines: list[dict]) -> list[dict]:
    return [line for line in lines if line.get("in_training")]


class Products(BehaviourTest):
    def lines(self, precision: str, *more: str) -> list[dict]:
        command = [*words(self.program, "cpu", precision, SIZES), *more]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def test_every_matrix_is_multiplied_in_its_three_ways_as_often_as_in_a_step(self):
        kv = SIZES["dim"] // SIZES["heads"] * SIZES["kv_heads"]
        block = 2 * SIZES["dim"] ** 2 + 2 * SIZES["dim"] * kv + 3 * SIZES["dim"] * SIZES["hidden"]
        parameters = SIZES["layers"] * block + SIZES["dim"] * SIZES["vocabulary"]
        for precision in ("bf16", "float8"):
            with self.subTest(precision):
                lines = self.lines(precision)
                for name in PASSES:
                    told = [line for line in of_training(lines) if line["pass"] == name]
                    self.assertEqual({part for line in told for part in line["product"].split("+")}, MATRICES)
                    operations = sum(2 * line["m"] * line["k"] * line["n"] * line["count"] for line in told)
                    self.assertEqual(operations, 2 * parameters * SIZES["tokens"])
                self.assertTrue(all(line["seconds"] > 0 and line["tflops"] > 0 for line in lines[:-1]))
                last = lines[-1]
                self.assertGreater(min(last["product_seconds"], last["copy_bytes_per_second"]), 0)
                alone = sum(line["seconds"] * line["count"] for line in of_training(lines))
                self.assertAlmostEqual(last["product_seconds_alone"], alone, delta=1e-9)

    def test_float8_products_accumulate_fast_where_training_does_and_the_head_stays_in_bf16(self):
        lines = self.lines("float8")
        for line in lines[:-1]:
            head = line["product"] == "output"
            self.assertEqual(line["precision"], "bf16" if head else "float8")
            self.assertEqual(line["result"], "fp32" if line["pass"] == "weight_gradient" else "bf16")
            if not head:
                self.assertEqual(line["in_training"], line["fast_accumulation"] == (line["pass"] == "forward"))


    def test_weight_gradients_of_blocks_are_measured_in_bf16_if_training_keeps_them_so(self):
        for precision in ("bf16", "float8"):
            for line in of_training(self.lines(precision, "--gradients", "bf16")):
                wide = line["pass"] == "weight_gradient" and line["product"] == "output"
                self.assertEqual(line["result"], "fp32" if wide else "bf16", line)


class OnAGpu(MockGpu):
    MODEL = {"dim": 2048, "hidden": 8192, "heads": 32, "kv_heads": 8, "layers": 2, "vocabulary": 4096, "tokens": 4096, "length": 4096}
    TRAINED = [
        "--model.name=llama3_2", "--model.flavor=1B", "--model.override.n_layers=2", "--model.override.vocab_size=4096",
        "--model.tokenizer_path=configs/tokenizers/stories.model", "--training.seq_len=4096", "--training.local_batch_size=1",
        "--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16", "--compile.cuda_graphs=false", FUSED, ALONE, BF16,
    ]  # fmt: skip

    def rates(self, precision: str, gradients: str = "fp32"):
        run = self.on_mock([*words(self.program, "cuda", precision, self.MODEL), "--gradients", gradients], self.folder)
        return run, [json.loads(line) for line in run.output.splitlines()]

    def test_the_products_of_a_step_are_those_that_are_measured_as_training_makes_them(self):
        """By the types and sizes of operands and results, as cuBLAS is told them: of the transposed matrices."""
        narrow = "--training.gradient_dtype=bfloat16"
        for precision, gradients, converted in (
            ("bf16", "fp32", []), ("float8", "fp32", [FLOAT8]), ("bf16", "bf16", [narrow]), ("float8", "bf16", [FLOAT8, narrow])
        ):  # fmt: skip
            with self.subTest(precision, gradients=gradients):
                run, lines = self.rates(precision, gradients)
                step = self.a_step_more(
                    lambda steps: self.on_gpu(*self.TRAINED, *converted, f"--training.steps={steps}"), "products", 2
                )
                self.assertEqual(set(step) - set(run.ledgers[0]["products"]), set())
                told = [line for line in of_training(lines) if line["precision"] == "bf16"]
                sizes = {"{n} x {m} x {k}".format(**line): line["accumulates"] for line in told}
                self.assertEqual({name.split(", ")[1] for name in step if name.startswith("bf16 x bf16")}, set(sizes))
                for name in (name for name in step if name.startswith("bf16 x bf16 added")):
                    self.assertTrue(sizes[name.split(", ")[1]], name)

    def test_each_attention_kernel_is_measured_forward_and_backward(self):
        _, lines = self.rates("bf16")
        told = {(line["attention"], line["pass"]): line for line in lines if "attention" in line and "pass" in line}
        kernels = ("cuDNN", "flash", "memory-efficient")
        self.assertEqual(set(told), {(kernel, way) for kernel in kernels for way in ("forward", "backward")})
        self.assertIn(lines[-1]["attention_kernel"], kernels)
        self.assertGreater(lines[-1]["attention_seconds"], 0)

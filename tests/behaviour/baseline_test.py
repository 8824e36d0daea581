"""scripts/gpu/baseline.py, with which benchmarks compare: from titan's own weights and tokens it has titan's loss."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import pathlib
import re
import subprocess
import sys
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_first_test import Machine
from program import ROOT, BehaviourTest

BASELINE = ROOT / "scripts" / "gpu" / "baseline.py"
sys.path.insert(0, str(BASELINE.parent))

import baseline  # noqa: E402

TINY = ["--dim=64", "--layers=2", "--heads=4", "--hidden=256", "--length=64", "--batch=2", "--threads=1"]


class Runs(BehaviourTest):
    def started(self, *words) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(BASELINE), "--device=cpu", *TINY, *map(str, words)]
        one_core = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
        return subprocess.run(command, capture_output=True, text=True, env=one_core, check=False)

    def baseline(self, *words) -> list[dict]:
        done = self.started(*words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def failed(self, code: int, *words) -> str:
        """The sentence, which is all that a run without a step prints, within this process."""
        self.addCleanup(torch.set_default_dtype, torch.get_default_dtype())
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        with mock.patch.object(sys, "argv", ["baseline.py", "--device=cpu", *TINY, *words]):
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                try:
                    ended = baseline.main()
                except SystemExit as end:
                    ended = end.code
        self.assertEqual(ended, code, printed.getvalue())
        (line,) = printed.getvalue().splitlines()
        (key, said), *more = json.loads(line).items()
        self.assertEqual([key, more], ["error", []])
        return said

    def dumped(self, *words) -> pathlib.Path:
        run = self.train("--debug.dump_steps=1", "--lr_scheduler.warmup_steps=0", *words, steps=1)
        (file,) = run.folder.rglob("step.safetensors")
        return file


class Baseline(Runs):
    def test_from_titans_weights_and_tokens_its_first_loss_and_norm_are_titans(self):
        grouped_queries = "--model.override.n_kv_heads=2"
        for kv_heads, words in ((4, []), (2, [grouped_queries]), (4, ["--model.override.embeddings=tied"])):
            with self.subTest(words):
                file = self.dumped("--training.mixed_precision_param=float32", *words)
                titan = load_file(file)
                self.assertEqual("param.output.weight" in titan, "--model.override.embeddings=tied" not in words)
                vocabulary = titan["param.tok_embeddings.weight"].shape[0]
                words = [f"--kv-heads={kv_heads}", f"--vocabulary={vocabulary}", f"--dump={file}", "--precision=float32"]
                first, last = self.baseline("--mode=eager", "--steps=1", *words)
                self.assertAlmostEqual(first["loss"], titan["loss"].item(), delta=1e-5 * titan["loss"].item())
                norm = titan["grad_norm"].item()
                self.assertAlmostEqual(first["grad_norm"], norm, delta=1e-4 * norm)
                self.assertEqual(last["parameters"], sum(titan[key].numel() for key in titan if key.startswith("param.")))

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

    def test_it_is_a_command_of_its_own(self):
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        words = ["--device=cpu", "--mode=eager", "--precision=float32", *TINY, "--kv-heads=4", "--steps=2"]
        done = subprocess.run([BASELINE, *words], capture_output=True, text=True, env=os.environ | {"PATH": path}, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["counted"], 1)

    def test_options_that_it_cannot_train_with_are_a_sentence(self):
        done = self.started("--kv-heads=4", "--warm-up=5", "--steps=2")
        self.assertEqual([done.returncode, done.stderr], [64, ""])
        self.assertIn("--warm-up must be below --steps", done.stdout)
        damaged = self.write("damaged.safetensors", b"no dump")
        for words, said in (
            (["--batch=0"], "--batch 0 is too small"),
            (["--length=0"], "--length 0 is too small"),
            (["--kv-heads=0"], "--kv-heads 0 is too small"),
            (["--steps=0"], "--steps 0 is too small"),
            (["--warm-up=-1"], "--warm-up -1 is too small"),
            (["--heads=3"], "--dim a multiple of 2 * --heads"),
            (["--kv-heads=3"], "--heads of --kv-heads"),
            (["--dim=wide"], "argument --dim: invalid int value: 'wide'"),
            (["--kv-heads=4", "--layers=1", "--vocabulary=1000000000000000"], "can't allocate memory"),
            (["--kv-heads=4", "--nothing"], "unrecognized arguments: --nothing"),
            (["--kv-heads=4", "--dump=nothing"], "nothing: FileNotFoundError"),
            (["--kv-heads=4", f"--dump={damaged}"], "damaged.safetensors: JSONDecodeError"),
        ):
            with self.subTest(words):
                self.assertIn(said, self.failed(64, "--mode=eager", *words))

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
    def test_no_driver_is_a_sentence(self):
        self.assertIn("cuda: RuntimeError: ", self.failed(64, "--kv-heads=4", "--device=cuda"))

    def test_a_dump_of_another_shape_or_of_numbers_that_are_not_finite_is_a_sentence(self):
        file = self.dumped("--training.mixed_precision_param=float32")
        tensors = load_file(file)
        words = ["--mode=eager", "--kv-heads=4", "--precision=float32", f"--dump={file}"]
        vocabulary = tensors["param.output.weight"].shape[0]
        self.assertIn("size mismatch for tok_embeddings.weight", self.failed(64, *words, f"--vocabulary={vocabulary + 1}"))
        tensors["param.output.weight"][0, 0] = math.inf
        save_file(tensors, file)
        self.assertRegex(self.failed(72, *words, f"--vocabulary={vocabulary}"), "step 1 has loss (nan|inf) and gradient norm nan")

    def test_each_rank_of_a_machine_has_a_card_of_its_own_by_its_local_rank(self):
        options = argparse.Namespace(device="cuda", precision="float32", threads=torch.get_num_threads(), dump=None, dim=64, heads=4, length=64)
        for cards, chosen in ((4, [mock.call(3)]), (1, [])):  # one: the launcher shows each rank its own
            with (
                self.subTest(cards=cards),
                mock.patch.dict(os.environ, {"LOCAL_RANK": "3"}),
                mock.patch("torch.cuda.device_count", return_value=cards),
                mock.patch("torch.cuda.set_device") as set_device,
                mock.patch.object(baseline, "Llama", side_effect=InterruptedError),
            ):
                self.assertRaises(InterruptedError, baseline.prepare, options, 3, 4)
                self.assertEqual(set_device.mock_calls, chosen)


class Dumps(Runs):
    """As scripts/gpu/first.sh --variant wrong-numbers reads them."""

    def expect_read(self, file: pathlib.Path) -> dict[str, torch.Tensor]:
        found, wanted = baseline.read_dump(file, "cpu"), load_file(file)
        self.assertEqual(set(found), set(wanted))
        for key in wanted:
            self.assertEqual([found[key].dtype, found[key].shape], [wanted[key].dtype, wanted[key].shape], key)
            self.assertTrue(torch.equal(found[key].view(-1).view(torch.uint8), wanted[key].view(-1).view(torch.uint8)), key)
        return found

    def test_every_type_that_titan_writes_is_read(self):
        written = re.findall(r'{at::k\w+, "(\w+)"}', (ROOT / "src" / "checkpoint" / "safetensors.cpp").read_text())
        self.assertEqual(set(baseline.TYPES), set(written))
        numbers = torch.tensor([[0.0, 1.0, 2.0], [4.0, 8.0, 16.0]])
        file = self.folder / "types.safetensors"
        save_file({name: numbers.to(kind) for name, kind in baseline.TYPES.items()}, file)
        for name, tensor in self.expect_read(file).items():
            self.assertEqual(tensor.double().tolist(), numbers.tolist(), name)

    def test_two_ranks_dump_the_tensors_of_one(self):
        for kind in ("float32", "bfloat16"):
            with self.subTest(kind):
                words = [f"--training.dtype={kind}", f"--training.mixed_precision_param={kind}", "--debug.seed=1"]
                one = self.expect_read(self.dumped("--debug.dump_logits", *words))
                ranks = self.fresh_folder()
                split = ["--training.local_batch_size=1", "--parallelism.data_parallel_shard_degree=2"]
                command = self.command("--training.steps=1", "--debug.dump_steps=1", "--debug.dump_logits", *words, *split, folder=ranks)
                self.expect(self.titan("launch", "-n", "2", *command[1:]), 0)
                two = self.expect_read(ranks / "debug" / "step-1" / "step.safetensors")
                self.assertEqual({key: one[key].dtype for key in one}, {key: two[key].dtype for key in two})
                self.assertIn(getattr(torch, kind), {tensor.dtype for tensor in two.values()})
                far = [(one[key].double() - two[key].double()).norm() / max(one[key].double().norm(), 1e-30) for key in one]
                self.assertLess(max(far), 1e-4 if kind == "float32" else 0.05)


class Compared(Machine):
    def test_the_tensor_that_is_farthest_off_on_the_card_is_named_first(self):
        numbers = torch.arange(1.0, 7.0)
        cpu = {"loss": numbers[0].double(), "tokens": numbers.long(), "param.a": numbers, "grad.a": numbers.bfloat16(), "grad.b": numbers + 0}
        cuda = cpu | {"param.a": 1.5 * numbers, "grad.b": 1.01 * numbers, "grad.a": numbers.to(torch.uint8)}
        for device, tensors in (("cpu", cpu), ("cuda", cuda)):
            save_file(tensors, self.folder / f"{device}.safetensors")
        self.behave(
            f"""case "$*" in *dump_steps*)
              case "$*" in *device=cpu*) file=cpu ;; *) file=cuda ;; esac
              mkdir -p "$folder/debug/step-1"
              cp "{self.folder}/$file.safetensors" "$folder/debug/step-1/step.safetensors"
              exit ;;
            esac
            """
        )
        self.driver("--variant", "wrong-numbers", "--only", "step 1 on cuda,step 1 on cpu,tensors that differ", code=0)
        self.assertEqual({row["verdict"] for row in self.results().values()}, {"ok"})
        compared = (self.out / "log.txt").read_text().rpartition("\n$ ")[2].splitlines()
        told = [line.split() for line in compared if re.match(r"\d\.\d\de[+-]\d\d  ", line)]
        self.assertEqual(told[:2], [["5.00e-01", "param.a"], ["1.00e-02", "grad.b"]])
        self.assertEqual({name: float(far) for far, name in told[2:]}, {"loss": 0, "tokens": 0, "grad.a": 0})

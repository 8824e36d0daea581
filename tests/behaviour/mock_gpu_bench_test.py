"""scripts/gpu/first.sh, bench.sh and check.sh from one end to the other on a mock GPU. Kernels compute nothing there, so what
looks at numbers has to fail, and nothing else."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import unittest

import pytest

from gpu_first_test import ON_H100, ON_H200
from mock_gpu import MockGpu
from program import ROOT

import check
import first

pytestmark = pytest.mark.full


class Scripts(MockGpu):
    def setUp(self):
        super().setUp()
        self.programs = pathlib.Path(self.program).parent

    def script(self, name: str, *words: str, code: int, **settings) -> str:
        """What it prints. There is no nvidia-smi: the mock's driver says what the card is."""
        ledgers = self.folder / "ledgers"
        ledgers.mkdir(exist_ok=True)
        mock = {variable: str(value) for variable, value in self.variables(1, ledgers, **settings).items()}
        command = ["bash", ROOT / "scripts" / "gpu" / name, "--packed", self.programs, "--out", self.folder / "out", "--commit", "abc", *words]
        environment = os.environ | mock | {"TMPDIR": str(self.folder)}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.page = (self.folder / "out" / "page.md").read_text()
        self.assertNotIn(str(ROOT), self.page)
        lines = (self.folder / "out" / "results.jsonl").read_text().splitlines()
        self.results = {line["row"]: line for line in map(json.loads, lines)}
        return done.stdout

    def verdicts(self, rows: list[str]) -> dict[str, str]:
        return {row: self.results[row]["verdict"] for row in rows}


class First(Scripts):
    def expect_a_visit(self, mib: int, shapes: list[str]) -> None:
        printed = self.script("first.sh", code=1, MOCK_CUDA_MIB=mib)
        self.assertLessEqual(len(printed.splitlines()), first.TABLE_LINES)
        trained = ["1b-bf16-traced", *shapes, "3b-bf16-fused", "3b-float8-fused", "1b-bf16-fused"]
        measured = [*trained, "kernel rates", *(row for row in self.results if row.endswith("-ceiling"))]
        self.assertEqual(self.verdicts(measured), dict.fromkeys(measured, "ok"))
        self.assertEqual([row for row in self.results if row.startswith("8b") and row not in measured], [])
        log = (self.folder / "out" / "log.txt").read_text()
        for row in trained:
            said = log.partition(f"$ {self.results[row]['command']}\n")[2].partition("\n$ ")[0]
            parts = re.findall(r"logits are computed in (\d+) part", said)
            self.assertEqual(parts, [str(self.results[row]["planned"]["loss_chunks"])], row)
        debug = ["single", "fused", *first.REST, *first.RANKS]
        self.assertEqual({verdict.split(" ")[0] for verdict in self.verdicts(debug).values()}, {"failed:"})
        self.assertTrue(all(line["seconds"] <= line["limit"] + 6 for line in self.results.values() if line["limit"]))
        self.assertEqual(len(list((self.folder / "out").glob("trace-*.json.gz"))), 2)
        self.assertRegex(self.page, rf"; NVIDIA H200 \(mock\), {mib} MiB; ")

    def test_a_card_of_80_gb(self):
        self.expect_a_visit(81040, ON_H100)

    def test_a_card_of_141_gb(self):
        self.expect_a_visit(143771, [*ON_H200, "8b-bf16-fused"])

    def test_a_card_that_the_programs_have_no_code_for(self):
        said = self.script("first.sh", "--only", "single", code=1, MOCK_CUDA_CAPABILITY=100)
        self.assertIn("The programs have no code for compute capability 10.x", said)
        self.assertEqual(self.verdicts(["single"]), {"single": "exit code 64"})


class Bench(Scripts):
    def test_a_row_and_all_that_stands_beside_it_are_measured(self):
        self.script("bench.sh", "--only", "1b-float8-fused,1b-float8-traced", code=1)
        page = self.page
        self.assertRegex(page, r"\| 1b-float8-fused \| [\d.]+ \| [\d,]+ tokens/s .* % of the ceiling's [\d,]+ \|")
        # The mock's kernels write nothing, and the tests of kernels see it; all else holds.
        self.assertEqual(self.results["kernels_test"]["verdict"], "exit code 1")
        measured = ["1b-float8-fused", "1b-float8-traced", "kernel rates", "1b-float8-ceiling"]
        self.assertEqual(self.verdicts(measured), dict.fromkeys(measured, "ok"))
        self.assertEqual(len(re.findall(r"^\| .* \| (?:met|missed) \|$", page, re.MULTILINE)), 17)
        self.assertRegex(page, r"1b-float8-traced, one step under the profiler, ms: ")
        self.assertIn("| 1b-float8-traced, one traced step | ms | good | likely | |", page)
        self.assertIn("    1b-float8-fused: Attention by cuDNN: ", page)
        self.assertRegex(page, r"\[ RUN      \] OnGpu/\S+\n    tests/kernels/kernels_test.cpp:\d+: Failure\n")
        self.assertIn(" FAILED TESTS\n    exit code 1\n", page)


class Check(Scripts):
    def test_losses_of_kernels_that_compute_nothing_hold_against_none(self):
        if missing := [name for name in check.TESTS if not (self.programs / name).exists()]:
            self.skipTest(f"{', '.join(missing)} are not built")
        self.script("check.sh", "--only", "train_test,single,fused,one,fsdp2", code=1)
        for row in ("single", "fused", "one", "fsdp2"):
            self.assertEqual(self.results[row]["verdict"], "failed: a loss of 0")
        self.assertEqual(self.results["train_test"]["verdict"], "ok")


if __name__ == "__main__":
    unittest.main()

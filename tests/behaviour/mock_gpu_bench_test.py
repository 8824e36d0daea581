"""scripts/gpu/bench.sh and check.sh from one end to the other on a mock GPU. Kernels compute nothing there, so what looks at
numbers has to fail, and nothing else."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import unittest

import pytest

from mock_gpu import MockGpu
from program import ROOT

sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import check  # noqa: E402


pytestmark = pytest.mark.full


class Scripts(MockGpu):
    def setUp(self):
        super().setUp()
        self.programs = pathlib.Path(self.program).parent
        tool = self.write("nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 580.1, 143771 MiB'\n")
        tool.chmod(0o755)

    def script(self, name: str, *words: str, code: int, **settings) -> str:
        """The page that it writes."""
        page, ledgers = self.folder / "page.md", self.folder / "ledgers"
        ledgers.mkdir(exist_ok=True)
        mock = {variable: str(value) for variable, value in self.variables(1, ledgers, **settings).items()}
        environment = os.environ | mock | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        command = ["bash", ROOT / "scripts" / "gpu" / name, "--packed", self.programs, "--page", page, "--commit", "abc", *words]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stdout.strip(), page.read_text().strip())
        self.assertNotIn(str(ROOT), page.read_text())
        return page.read_text()


class Bench(Scripts):
    def test_a_row_and_all_that_stands_beside_it_are_measured(self):
        page = self.script("bench.sh", "--only", "1b-float8-fused", code=1)
        self.assertIn("; NVIDIA H200, 580.1, 143771 MiB; ", page)
        row = re.search(r"^\| 1b-float8-fused \| \*\*[\d,]+\*\* \| [\d,]+ – [\d,]+ \| (.*) \|$", page, re.MULTILINE)
        self.assertTrue(row, page)
        self.assertTrue(all(float(cell.replace(",", "")) > 0 for cell in row[1].split(" | ")), row[0])
        # The mock's kernels write nothing, and the tests of kernels see it; all else holds.
        verdicts = dict(re.findall(r"^\| ([^|]+) \| [\d.]+ \| ([^|]+) \|$", page.split("| check | seconds | |")[1], re.MULTILINE))
        self.assertEqual(verdicts.pop("kernels_test"), "exit code 1")
        self.assertEqual(verdicts, dict.fromkeys(["kernel rates", "one rank, every group over NCCL", "1b-float8-ceiling"], "ok"))
        self.assertEqual(len(re.findall(r"^\| .* \| (?:met|missed) \|$", page, re.MULTILINE)), 13)
        self.assertRegex(page, r"\| 1b float8 \| [\d.]+ \| [\d.]+ \| [\d.]+ \|")
        self.assertRegex(page, r"\| 1b-float8-fused \| [\d.]+ \|")  # milliseconds by kind
        self.assertIn("    Attention by cuDNN: ", page)
        self.assertRegex(page, r"\[ RUN      \] OnGpu/\S+\n    tests/kernels/kernels_test.cpp:\d+: Failure\n")
        self.assertIn(" FAILED TESTS\n    exit code 1\n", page)

    def test_a_model_that_does_not_fit_the_card_is_a_row_that_says_so(self):
        page = self.script("bench.sh", "--only", "8b-bf16-fused", code=1, MOCK_CUDA_MIB=81559)
        self.assertIn("| 8b-bf16-fused | exit code 71 | ", page)
        self.assertRegex(page, r"titan_train: out of memory .*; it would fit with: ")
        self.assertIn("| 8b-bf16-ceiling | ", page)


class Check(Scripts):
    def test_losses_of_kernels_that_compute_nothing_hold_against_none(self):
        if missing := [name for name in check.TESTS if not (self.programs / name).exists()]:
            self.skipTest(f"{', '.join(missing)} are not built")
        page = self.script("check.sh", "--only", "train_test,single,fused,one,fsdp2", code=1)
        for row in ("single", "fused", "one", "fsdp2"):
            self.assertRegex(page, rf"\| {row} \| .* \| failed: a loss of 0 \|")
        self.assertRegex(page, r"\| train_test \| .* \| ok \|")


if __name__ == "__main__":
    unittest.main()

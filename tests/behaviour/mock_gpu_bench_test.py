"""scripts/gpu/bench.sh and check.sh from one end to the other on a mock GPU. Kernels compute nothing there, so what looks at
numbers has to fail, and nothing else."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import unittest

from mock_gpu import MockGpu
from program import ROOT


class Scripts(MockGpu):
    def setUp(self):
        super().setUp()
        self.programs = pathlib.Path(self.program).parent
        tool = self.write("nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 580.1, 143771 MiB'\n")
        tool.chmod(0o755)

    def script(self, name: str, *words: str, code: int) -> str:
        """The page that it writes."""
        page, ledgers = self.folder / "page.md", self.folder / "ledgers"
        ledgers.mkdir(exist_ok=True)
        mock = {name: str(value) for name, value in self.variables(1, ledgers).items()}
        environment = os.environ | mock | {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        command = ["bash", ROOT / "scripts" / "gpu" / name, "--packed", self.programs, "--page", page, "--commit", "abc", *words]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stdout.strip(), page.read_text().strip())
        self.assertNotIn(str(ROOT), page.read_text())
        return page.read_text()


class Bench(Scripts):
    def test_every_part_of_a_row_is_measured_and_kernels_that_compute_nothing_are_seen(self):
        page = self.script("bench.sh", "--only", "1b-bf16-fused", code=1)
        print(page)


class Check(Scripts):
    def test_losses_of_kernels_that_compute_nothing_are_no_numbers_that_agree(self):
        page = self.script("check.sh", "--only", "kernels_test,single,fused", code=1)
        print(page)


if __name__ == "__main__":
    unittest.main()

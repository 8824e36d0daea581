"""A run does not end because nobody reads its log: it saves, goes on, and its exit code tells about the run."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import unittest
from collections.abc import Callable

from program import OK, ROOT, BehaviourTest

STEPS = 30


class LostOutput(BehaviourTest):
    def setUp(self):
        super().setUp()
        self.out = self.folder / "run"

    def words(self, ranks: int) -> list[str]:
        words = self.command(
            f"--training.steps={STEPS}",
            "--checkpoint.enable",
            "--checkpoint.interval=1000",
            "--checkpoint.last_save_model_only=false",
            folder=self.out,
        )
        return words if ranks == 1 else [words[0], "launch", "-n", str(ranks), *words[1:]]

    def log_of(self, reason: str) -> str:
        """What run.json says of the log: the file that it continues in, which this returns."""
        says = json.loads((self.out / "run.json").read_text())["log"]
        self.assertRegex(says, rf"^standard output could not be written \({reason}\); the log continues in ")
        path = pathlib.Path(says.rpartition(" in ")[2])
        return (ROOT / path).read_text()

    def expect_whole_run(self, code: int, reason: str) -> None:
        self.assertEqual(code, OK)
        self.assertTrue((self.out / "checkpoint" / f"step-{STEPS}").is_dir())
        self.assertIn("Training completed", self.log_of(reason))

    def test_a_reader_that_goes_away_as_head_does_costs_nothing(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.out = self.folder / f"head-{ranks}"
                process = self.open_program(
                    self.words(ranks), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
                )
                for line in process.stdout:
                    if b"step:  1 " in line:
                        break
                process.stdout.close()
                self.expect_whole_run(process.wait(timeout=300), "Broken pipe")

    def run_with(self, ranks: int, prepare: Callable[[], None]) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.words(ranks), cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=300, preexec_fn=prepare
        )

    def test_an_output_that_is_full_or_closed_costs_nothing(self):
        def full():
            os.dup2(os.open("/dev/full", os.O_WRONLY), 1)

        for ranks in (1, 2):
            for name, prepare in (("full", full), ("closed", lambda: os.close(1))):
                with self.subTest(ranks=ranks, output=name):
                    self.out = self.folder / f"{name}-{ranks}"
                    done = self.run_with(ranks, prepare)
                    of_ranks = "No space left on device" if name == "full" else "Bad file descriptor"
                    self.expect_whole_run(done.returncode, of_ranks if ranks == 1 else "Broken pipe")
                    self.assertIn(b"standard output could not be written", done.stderr)

    def test_a_command_whose_output_is_its_result_still_fails(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([self.program, "help"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 73)
        self.assertIn("standard output could not be written", done.stderr)


if __name__ == "__main__":
    unittest.main()

"""A run does not end because its log is not read: it saves, continues, and its exit code tells about the run."""

from __future__ import annotations

import fcntl
import json
import os
import re
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
        continues = r"(the log continues in|\d+ lines of the log are in) "
        self.assertRegex(says, rf"^standard output could not be written \({reason}\); {continues}")
        path = re.search(r" in (\S+\.log)", says)[1]  # standard error may share the pipe, which is said behind it
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

    def test_a_reader_that_has_stopped_reading_costs_nothing(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.out = self.folder / f"full-pipe-{ranks}"
                ours, theirs = os.pipe()
                fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 4096)
                try:
                    process = self.open_program(
                        self.words(ranks), stdout=theirs, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
                    )
                    os.close(theirs)
                    errors = process.communicate(timeout=300)[1].decode()
                finally:
                    os.close(ours)
                self.assertIn("standard output could not be written (its reader stopped reading)", errors)
                if ranks == 1:
                    self.expect_whole_run(process.returncode, "its reader stopped reading")
                    continue
                self.assertEqual(process.returncode, OK)
                self.assertTrue((self.out / "checkpoint" / f"step-{STEPS}").is_dir())
                (file,) = self.out.rglob("rank-0000.out")  # what the launcher had read and could not pass on
                self.assertIn("Training completed", file.read_text())

    def test_a_standard_error_that_is_not_read_costs_nothing(self):
        self.out = self.folder / "errors"
        ours, theirs = os.pipe()
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 4096)
        os.write(theirs, b"x" * 4096)
        try:
            # The closed output is said on standard error.
            process = self.open_program(
                self.words(1), stdout=subprocess.PIPE, stderr=theirs, stdin=subprocess.DEVNULL
            )
            process.stdout.close()
            self.assertEqual(process.wait(timeout=300), OK)
        finally:
            os.close(ours)
            os.close(theirs)
        says = json.loads((self.out / "run.json").read_text())["log"]
        self.assertRegex(says, r"; standard error could not be written \(its reader stopped reading\); lines lost: \d+$")

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

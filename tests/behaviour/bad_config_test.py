"""A config that comes through a pipe, and the time that a wrong one takes; what is said of wrong ones: tests/golden."""

from __future__ import annotations

import os
import subprocess
import unittest

import pytest
from program import BAD_CONFIG, BehaviourTest

EXIT_LIMIT_SECONDS = 1.0


class BadConfig(BehaviourTest):
    def test_a_config_may_come_through_a_pipe_and_no_stream_is_read_for_ever(self):
        command = [self.program, "config", "show", "/dev/stdin"]
        whole = subprocess.run(command, input="[training]\nsteps = 3\n", capture_output=True, text=True, timeout=60)
        self.assertIn("steps = 3 ", whole.stdout)
        with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
            refused = subprocess.run(command, stdin=endless.stdout, capture_output=True, text=True, timeout=60)
            endless.kill()
        self.assertEqual(refused.returncode, BAD_CONFIG)
        self.assertIn("cannot read /dev/stdin: it has more than 16.00 MiB; name a TOML file", refused.stderr)

    def test_a_pipe_is_waited_for_as_long_as_something_may_write_to_it(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        run = self.titan("config", "show", pipe)
        self.expect(run, BAD_CONFIG)
        self.assertIn(f"{pipe}: no program opened this pipe for writing within 3 s; name a TOML file", run.errors)
        empty, slow = "true | {}", "(sleep 6; echo '[training]'; sleep 1; echo 'steps = 3') | {}"
        left = "echo '[training]\nsteps = 3' | (sleep 1; {})"
        for line, steps in ((empty, 10000), (slow, 3), (left, 3)):
            with self.subTest(line):
                command = line.format(f"'{self.program}' config show /dev/stdin")
                shown = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
                self.assertRegex(shown.stdout, rf"\nsteps = {steps}\b", shown.stderr)

    @pytest.mark.alone
    def test_a_config_error_is_told_within_a_second(self):
        seconds = min(self.titan("configs/debug_model.toml", "--training.stps=4").seconds for _ in range(3))
        self.assertLess(seconds, EXIT_LIMIT_SECONDS)


if __name__ == "__main__":
    unittest.main()

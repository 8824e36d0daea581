"""Ctrl-C and SIGTERM: a closing line and exit code 130, in time, whatever the run is at."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import time
import unittest

from program import INTERRUPTED, LOG_LINE, UNFRIENDLY, VALIDATION, BehaviourTest

# The program gives a step 4 s; a machine with other work takes longer to end a process. The steps here take minutes.
LIMIT_SECONDS = 20.0
CTRL_C_SECONDS = 5.0
ENDLESS = "--training.steps=1000000"
# A first step that takes minutes.
LONG_STEP = ["--training.local_batch_size=256", "--training.seq_len=2048", "--training.global_batch_size=1024"]


class Stop(BehaviourTest):
    def start(self, *words, until: str) -> subprocess.Popen:
        """Starts a run and returns once a line with `until` was printed."""
        self.output = []
        process = self.open_program(
            self.command(ENDLESS, *words, folder=self.folder / "run"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for line in process.stdout:
            self.output.append(line)
            if until in line:
                return process
        raise AssertionError(f"no line with {until!r}:\n" + "".join(self.output[-20:]))

    def finish(self, process: subprocess.Popen) -> str:
        """What is printed from now to the end, which has to come in time and with 130."""
        begin = time.monotonic()
        rest = process.communicate(timeout=60)[0]
        seconds = time.monotonic() - begin
        self.assertEqual(process.returncode, INTERRUPTED, rest[-3000:])
        self.assertLess(seconds, LIMIT_SECONDS)
        for words in UNFRIENDLY:
            self.assertNotIn(words, rest)
        return rest

    def stop(self, *words, until: str, number: int = signal.SIGINT) -> str:
        process = self.start(*words, until=until)
        process.send_signal(number)
        return self.finish(process)

    def assert_closing_line(self, rest: str) -> None:
        messages = [match[2] for match in map(LOG_LINE.match, rest.splitlines()) if match]
        self.assertTrue(any(line.startswith("stopped by a signal after step ") for line in messages), rest)
        self.assertIn("nothing was saved", rest)
        self.assertIn(str(self.folder / "run" / "metrics.jsonl"), messages[-2])

    def test_ctrl_c_between_steps_ends_with_the_step_reached_and_the_outputs(self):
        rest = self.stop(until="step:  3")
        self.assert_closing_line(rest)
        self.assertRegex(rest, r"after step \d+ of 1000000")

    def test_a_termination_request_ends_the_run_the_same_way(self):
        self.assert_closing_line(self.stop(until="step:  3", number=signal.SIGTERM))

    def test_ctrl_c_while_the_model_is_built_is_not_lost(self):
        self.assert_closing_line(self.stop(until="Building"))

    def test_ctrl_c_inside_a_long_step_does_not_wait_for_its_end(self):
        process = self.start_long_step()
        process.send_signal(signal.SIGINT)
        rest = self.finish(process)
        self.assertTrue(rest.endswith("stopped by a signal; the work under way was dropped\n"), rest)

    def test_no_thread_that_computes_can_be_interrupted_by_a_signal(self):
        process = self.start(until="step:  3")
        wanted = 1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1)
        tasks = list(pathlib.Path(f"/proc/{process.pid}/task").iterdir())
        for task in tasks:
            blocked = next(line for line in (task / "status").read_text().splitlines() if line.startswith("SigBlk:"))
            self.assertEqual(int(blocked.split()[1], 16) & wanted, wanted, (task / "comm").read_text())
        self.assertGreater(len(tasks), 1)
        process.send_signal(signal.SIGINT)
        self.finish(process)

    def test_a_second_ctrl_c_ends_the_run_at_once(self):
        process = self.start_long_step()
        process.send_signal(signal.SIGINT)
        # The second must not merge with the first: one that is no longer pending has been received.
        while self.signal_is_pending(process.pid):
            time.sleep(0.001)
        self.interrupt_at_once(process)

    def test_a_termination_request_does_not_drop_a_long_step_as_ctrl_c_does(self):
        process = self.start_long_step()
        process.send_signal(signal.SIGTERM)
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(timeout=CTRL_C_SECONDS)
        self.interrupt_at_once(process)

    def start_long_step(self) -> subprocess.Popen:
        """A run that is inside its first step: it has computed for a while since it said that training starts."""
        process = self.start(*LONG_STEP, self.long_corpus(6), until="Training starts")
        begin = self.processor_ticks(process.pid)
        while self.processor_ticks(process.pid) < begin + 50:
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        return process

    @staticmethod
    def processor_ticks(pid: int) -> int:
        """Hundredths of a second of processor time that a process has had."""
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    def interrupt_at_once(self, process: subprocess.Popen) -> None:
        """At a limit the program would say that work was dropped."""
        process.send_signal(signal.SIGINT)
        self.assertNotIn("dropped", self.finish(process))

    def test_ctrl_c_during_validation_shows_no_partial_result(self):
        process = self.start(
            *VALIDATION,
            "--validation.seq_len=64",
            "--validation.local_batch_size=1",
            "--model.override.dim=256",
            "--model.override.n_layers=6",
            until="memory by purpose, at the peak",
        )
        process.send_signal(signal.SIGINT)
        rest = self.finish(process)
        self.assertNotIn("validate step", rest)
        self.assertIn("stopped by a signal after step 1 of", rest)

    def signal_is_pending(self, pid: int) -> bool:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("ShdPnd:"):
                return bool(int(line.split()[1], 16) & 1 << (signal.SIGINT - 1))
        return False


if __name__ == "__main__":
    unittest.main()

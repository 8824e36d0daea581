"""What a person at a terminal sees: the status line, and what Ctrl-C says."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import time
import unittest

from program import INTERRUPTED, LOG_LINE, ROOT, BehaviourTest

ERASE = "\r\x1b[K"


def as_shown(text: str) -> list[str]:
    """The lines of a terminal in the end: a carriage return goes to the line's beginning, the code erases the rest."""
    return [line.split(ERASE)[-1].rstrip("\r") for line in text.split("\n")]


class Terminal(BehaviourTest):
    def run_on_terminal(self, *words, until: str = "", signals: int = 0) -> tuple[int, str]:
        """The program with a terminal of 110 columns for its output: exit code, and everything written to it."""
        ours, theirs = pty.openpty()
        os.system(f"stty -F {os.ttyname(theirs)} cols 110 rows 40 -echo")
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
        process = subprocess.Popen(self.command(*words, folder=self.folder / "run"), cwd=ROOT, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)  # fmt: skip
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        os.close(theirs)
        text = ""
        while True:
            try:
                got = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            text += got.decode(errors="replace")
            if until and until in text and signals:
                for _ in range(signals):
                    process.send_signal(signal.SIGINT)
                    time.sleep(0.05)
                signals = 0
        os.close(ours)
        return process.wait(timeout=60), text.replace("\r\n", "\n")

    def test_the_status_line_stands_below_the_lines_and_replaces_none(self):
        code, text = self.run_on_terminal("--training.steps=30", "--metrics.log_freq=10")
        self.assertEqual(code, 0, text)
        status = re.findall(r"step (\d+)/30 [\d.]+%  loss [\d.]+  tok/s [\d,]+ .*?eta \S+", text)
        self.assertTrue(status, text)
        shown = as_shown(text)
        self.assertEqual([line for line in shown if line and not LOG_LINE.match(line)], [], "every line is whole")
        steps = re.findall(r"step: +(\d+)  loss", "\n".join(shown))
        self.assertEqual(steps, ["1", "10", "20", "30"])
        self.assertTrue(any("Training completed" in line for line in shown))

    def test_quiet_shows_nothing_where_nothing_is_wrong(self):
        code, text = self.run_on_terminal("--training.steps=3", "--quiet")
        self.assertEqual((code, text), (0, ""))

    def test_ctrl_c_says_what_comes_of_it_and_twice_ends_at_once(self):
        endless = "--training.steps=1000000"
        code, text = self.run_on_terminal(endless, until="step:  3 ", signals=1)
        self.assertEqual(code, INTERRUPTED)
        self.assertIn("stopping after this step; Ctrl-C again stops at once\n", text)
        self.assertIn("stopped by a signal after step", text)
        long_step = ["--training.local_batch_size=256", "--training.seq_len=2048", "--training.global_batch_size=4096"]
        begin = time.monotonic()
        code, text = self.run_on_terminal(endless, *long_step, until="Training starts", signals=2)
        self.assertEqual(code, INTERRUPTED)
        self.assertLess(time.monotonic() - begin, 30)
        self.assertNotIn("stopped by a signal after step", text)


if __name__ == "__main__":
    unittest.main()

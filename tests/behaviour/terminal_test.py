"""What a person at a terminal sees: the status line, and what Ctrl-C says."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import unittest

from program import BAD_DATA, DEBUG_CONFIG, INTERRUPTED, LOG_LINE, NON_FINITE, SMALL, BehaviourTest, read_terminal

ENDLESS = "--training.steps=1000000"
ANNOUNCED = "Ctrl-C: this step is finished and what the config asks for is saved; Ctrl-C again ends at once"
REQUEUE = 75


def as_shown(text: str) -> list[str]:
    """The lines of a terminal in the end: a carriage return goes to the line's beginning, what follows is written over it."""
    lines = []
    for line in text.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part):]
        lines.append(shown.rstrip())
    return lines


class Terminal(BehaviourTest):
    def run_on_terminal(self, *words, until="", signals=0, pause=0.0, columns=110, kind="xterm") -> tuple[int, str]:
        """The program with a terminal for its output: exit code, and everything written to it."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environment = {**os.environ, "TERM": kind, "NO_COLOR": "1"}
        command = self.command(*words, folder=self.folder / "run")
        process = self.open_program(command, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
        os.close(theirs)
        text = ""
        while True:
            try:
                got = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            text += got.decode(errors="replace")
            if until and until in text and signals:
                time.sleep(pause)
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
        self.assertNotIn("\x1b", text, "colours are off, and nothing else writes escape codes")
        shown = as_shown(text)
        self.assertEqual([line for line in shown if line and not LOG_LINE.match(line)], [], "every line is whole")
        steps = re.findall(r"step: +(\d+)  loss", "\n".join(shown))
        self.assertEqual(steps, ["1", "10", "20", "30"])
        self.assertTrue(any("Training completed" in line for line in shown))

    def test_a_narrow_terminal_shows_less_and_never_a_second_line(self):
        code, text = self.run_on_terminal("--training.steps=30", "--metrics.log_freq=10", columns=30)
        self.assertEqual(code, 0, text)
        status = re.findall(r"(?<=\r)step \d+/30[^\r\n]*", text)
        self.assertTrue(status, text)
        self.assertLess(max(map(len, status)), 30)

    def test_a_terminal_that_erases_nothing_gets_lines_alone(self):
        code, text = self.run_on_terminal("--training.steps=3", kind="dumb")
        self.assertEqual(code, 0, text)
        self.assertNotIn("\x1b", text)
        self.assertTrue(all(LOG_LINE.match(line) for line in text.splitlines()), text)

    def test_what_ends_a_run_stands_on_a_line_of_its_own(self):
        diverging = ["--optimizer.lr=1e30", "--optimizer.weight_decay=0", "--training.non_finite=abort", "--metrics.log_freq=100"]
        code, text = self.run_on_terminal("--training.steps=100", *diverging)
        self.assertEqual(code, NON_FINITE, text)
        shown = [line for line in as_shown(text) if line]
        self.assertTrue(any(re.match(r"titan_train: step \d+: loss", line) for line in shown), text)
        self.assertEqual([line for line in shown if not LOG_LINE.match(line) and not line.startswith("titan_train: ")], [])

    def test_quiet_shows_nothing_where_nothing_is_wrong(self):
        code, text = self.run_on_terminal("--training.steps=3", "--quiet")
        self.assertEqual((code, text), (0, ""))
        self.assertTrue((self.folder / "run" / "metrics.jsonl").exists())

    def test_quiet_lets_warnings_through(self):
        diverging = ["--optimizer.lr=1e30", "--optimizer.weight_decay=0", "--training.non_finite=skip"]
        code, text = self.run_on_terminal("--training.steps=5", "--quiet", *diverging)
        self.assertEqual(code, 0, text)
        matches = [LOG_LINE.match(line) for line in text.splitlines()]
        self.assertTrue(all(match and match[1] == "WARNING" for match in matches), text)
        self.assertIn("the step is skipped", text)

    def test_ctrl_c_says_what_comes_of_it(self):
        code, text = self.run_on_terminal(ENDLESS, until="step:  3 ", signals=1)
        self.assertEqual(code, INTERRUPTED)
        shown = as_shown(text)
        self.assertEqual(shown.count(ANNOUNCED), 1, text)
        self.assertIn("stopped by a signal after step", text)

    def test_ctrl_c_saves_where_the_config_does(self):
        saving = ["--checkpoint.enable", "--checkpoint.interval=3", "--metrics.log_freq=1"]
        code, text = self.run_on_terminal(ENDLESS, *saving, until="step:  3 ", signals=1)
        self.assertEqual(code, REQUEUE, text)
        self.assertIn(ANNOUNCED, as_shown(text))
        self.assertIn("it is saved: the same command resumes from here", text)
        for words, without in (
            (["--checkpoint.load_step=3"], "checkpoint.load_step"),
            (["--checkpoint.exclude_from_loading=train_state"], "train_state in checkpoint.exclude_from_loading"),
        ):
            with self.subTest(without):
                code, text = self.run_on_terminal(ENDLESS, *saving, *words, until="step:  4 ", signals=1)
                self.assertEqual(code, REQUEUE, text)
                self.assertIn(f"it is saved: the same command without {without} resumes from here", text)

    def test_ctrl_c_twice_ends_at_once(self):
        long_step = ["--training.local_batch_size=256", "--training.seq_len=2048", self.long_corpus(2)]
        # The pause is for the step to begin: a signal before it ends the run without a step.
        code, text = self.run_on_terminal(ENDLESS, *long_step, until="Training starts", signals=2, pause=0.5)
        self.assertEqual(code, INTERRUPTED)
        self.assertIn(ANNOUNCED, as_shown(text))
        self.assertNotIn("stopped by a signal", text)


class FromOutside(BehaviourTest):
    """Control characters in whatever a user, a file or another rank brings."""

    NASTY = "a\x1b]0;b\x07\x1b[2J\x9b31m"

    def shown(self, *words) -> str:
        """All that a terminal gets."""
        ours, theirs = pty.openpty()
        process = self.open_program([self.program, *map(str, words)], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
                                    env={**os.environ, "NO_COLOR": "1"})  # fmt: skip
        os.close(theirs)
        written = read_terminal(ours)
        process.wait(timeout=60)
        return written.decode(errors="strict")

    def test_they_reach_a_terminal_as_escapes(self):
        toml = self.write("keys.toml", '["x\\u001b[2J"]\n[training]\n"st\\u001bps" = 1\n')
        tokenizer = self.write(f"{self.NASTY}.model", "no rank\n")
        corpus = self.write(f"{self.NASTY}.jsonl", '{"text": "\\u001b[31mred"}\n{"nothing": 1}\n')
        trace = {"ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
        events = [{**trace, "name": "ProfilerStep#1", "dur": 9}, {**trace, "name": self.NASTY, "cat": "cpu_op"}]
        profile = self.write("trace.json", json.dumps({"traceEvents": events}))
        for words in (
            ["config", "show", toml],
            ["config", "explain", self.NASTY],
            [f"--{self.NASTY}=1"],
            [self.NASTY],
            [f"{self.folder}/{self.NASTY}.toml"],
            ["help", self.NASTY],
            ["tokenizer", "info", tokenizer],
            ["data", "stats", "--dataset-path", corpus],
            ["data", "peek", "--dataset-path", corpus],
            ["profile", "summarize", profile],
            ["convert", "verify", self.folder / self.NASTY],
            [DEBUG_CONFIG, *SMALL, f"--model.tokenizer_path={tokenizer}"],
            ["launch", "-n", "2", DEBUG_CONFIG, *SMALL, f"--job.dump_folder={self.folder}/run", "--training.steps=1",
             "--training.dataset=text", f"--training.dataset_path={corpus}", f"--job.description={self.NASTY}"],
        ):  # fmt: skip
            with self.subTest(words[:2]):
                text = self.shown(*words)
                self.assertRegex(text, r"\\x1b", "the test shows something")
                self.assertNotRegex(text, r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

    def test_they_reach_no_log_of_another_rank(self):
        corpus = self.write(f"{self.NASTY}.jsonl", '{"text": "too short"}\n')
        words = (*SMALL, f"--job.dump_folder={self.folder}", "--training.dataset=text", f"--training.dataset_path={corpus}")
        run = self.titan("launch", "-n", "2", DEBUG_CONFIG, *words)
        self.expect(run, BAD_DATA)
        logs = (self.folder / "logs" / "rank-0001.log").read_text()
        self.assertIn(r"a\x1b]0;b\x07\x1b[2J\u009b31m.jsonl holds", logs + run.errors)
        self.assertNotRegex(logs + run.output + run.errors, r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


if __name__ == "__main__":
    unittest.main()

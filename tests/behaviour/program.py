"""Runs titan_train as a user does: what it prints, writes and exits with. `TITAN_BINARY` names the program.

A test derives from BehaviourTest; every run gets a fresh folder, a model small enough for a step to take milliseconds,
and one thread unless the test says otherwise.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))

import dump  # noqa: E402
from titan import DEBUG_CONFIG, ROOT, binary  # noqa: E402

OK, BAD_CONFIG, BAD_DATA, OUT_OF_MEMORY, NON_FINITE, STORAGE, INTERRUPTED = 0, 64, 65, 71, 72, 73, 130
TIME_LIMIT_SECONDS = 600  # only to end what hangs
FULL = bool(os.environ.get("TITAN_TEST_FULL"))

SMALL = [
    "--model.override.dim=64",
    "--model.override.n_layers=2",
    "--model.override.n_heads=4",
    "--training.local_batch_size=2",
    "--training.seq_len=64",
    "--training.threads=1",
    "--lr_scheduler.warmup_steps=0",
    "--metrics.log_freq=1",
]
CORPORA = ROOT / "configs" / "corpora"
VALIDATION = [
    "--validation.enable",
    "--validation.dataset=text",
    f"--validation.dataset_path={CORPORA / 'stories_validation.jsonl'}",
]
LOG_LINE = re.compile(r"^\[titan\] \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - root - (INFO|WARNING|ERROR) - (.*)$")
# What only a crash or a leaked exception prints.
UNFRIENDLY = ("internal error", "terminate called", "Exception raised from", "frame #", "enforce fail", "what():")


@dataclasses.dataclass
class Run:
    code: int
    output: str  # standard output
    errors: str  # standard error
    folder: pathlib.Path
    seconds: float

    def messages(self, level: str | None = None) -> list[str]:
        """The log's messages without their time stamps, all of them or those of one level."""
        found = filter(None, map(LOG_LINE.match, self.output.splitlines()))
        return [match[2] for match in found if level in (None, match[1])]

    def metrics(self) -> list[dict]:
        path = self.folder / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def training(self, key: str) -> list:
        return [line[key] for line in self.metrics() if key in line and "validation_loss" not in line]

    def dump(self, step: int = 1) -> dump.StepDump:
        return dump.read(self.folder, step)


def setter_of(limits: dict[int, int] | None) -> Callable[[], None] | None:
    """For subprocess's preexec_fn. `limits`: of the kernel, for the process and what it starts (resource.RLIMIT_*)."""

    def set_limits():
        for kind, amount in limits.items():
            resource.setrlimit(kind, (amount, amount))

    return set_limits if limits else None


def read_terminal(ours: int) -> bytes:
    """All that is written to a pseudo-terminal until its other side is closed; closes this side."""
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # how a pseudo-terminal says that the other side is closed
        pass
    os.close(ours)
    return b"".join(parts)


class BehaviourTest(unittest.TestCase):
    def setUp(self):
        self.program = binary()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="titan-behaviour-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.runs = 0

    def write(self, name: str, content: str | bytes) -> pathlib.Path:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def give_up_rights(self) -> None:
        """From now on the program may read and write only what its user may, also if that is the system's manager."""
        if os.geteuid() != 0:
            return
        without = "setpriv --bounding-set=-dac_override,-dac_read_search"
        if not shutil.which("setpriv") or os.system(f"{without} true") != 0:
            self.skipTest("no way to give up a right")
        wrapper = self.write("titan_train", f'#!/bin/sh\nexec {without} {self.program} "$@"\n')
        wrapper.chmod(0o700)
        self.program = str(wrapper)

    def fresh_folder(self) -> pathlib.Path:
        self.runs += 1
        return self.folder / f"run-{self.runs}"

    def command(self, *words, config: pathlib.Path = DEBUG_CONFIG, folder: pathlib.Path) -> list[str]:
        """Later options win, so `words` may change what SMALL says."""
        return [self.program, str(config), *SMALL, f"--job.dump_folder={folder}", *map(str, words)]

    def open_program(self, command: list[str], **options) -> subprocess.Popen:
        """A background process that the test ends. `options`: subprocess.Popen's."""
        process = subprocess.Popen(command, cwd=ROOT, **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def open_endless_run(self, *words) -> tuple[subprocess.Popen, pathlib.Path]:
        """A run that trains until stopped; its folder already has a page."""
        folder = self.fresh_folder()
        command = self.command("--training.steps=1000000", *words, folder=folder)
        process = self.open_program(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_until((folder / "report.html").exists, "the page of a run")
        return process, folder

    def long_corpus(self, copies: int) -> str:
        """The option for a corpus of 386,000 tokens times `copies`: a step larger than a corpus is refused."""
        folder = self.folder / "long_corpus"
        folder.mkdir()
        for copy in range(copies):
            (folder / f"{copy}.jsonl").symlink_to(CORPORA / "stories.jsonl")
        return f"--training.dataset_path={folder}"

    def mount(self, folder: pathlib.Path, room: str) -> pathlib.Path:
        """A small file system at `folder`; the test is skipped where that takes more rights than it has."""
        folder.mkdir(parents=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", room, "none", folder], capture_output=True, check=False)
        if done.returncode:
            self.skipTest("no right to mount a small file system")
        self.addCleanup(subprocess.run, ["umount", "--lazy", folder], check=True)
        return folder

    def wait_until(self, holds, what: str, seconds: float = 120) -> None:
        limit = time.monotonic() + seconds
        while not holds():
            self.assertLess(time.monotonic(), limit, what)
            time.sleep(0.01)

    @staticmethod
    def tree(folder: pathlib.Path) -> dict[str, str]:
        """Everything in a folder, with what it holds."""
        found = {}
        for path in sorted(folder.rglob("*")):
            if path.is_symlink():
                content = f"-> {os.readlink(path)}"
            else:
                content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
            found[str(path.relative_to(folder))] = content
        return found

    def titan(self, *words, limits: dict[int, int] | None = None, cwd: pathlib.Path = ROOT) -> Run:
        """Runs the program with exactly these words."""
        begin = time.monotonic()
        done = subprocess.run(
            [self.program, *map(str, words)],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIME_LIMIT_SECONDS,
            preexec_fn=setter_of(limits),
        )
        return Run(done.returncode, done.stdout, done.stderr, self.folder, time.monotonic() - begin)

    def train(self, *words, steps: int = 2, config=DEBUG_CONFIG, folder=None, limits=None, exit_code: int = OK) -> Run:
        """Trains the small model; fails unless the exit code is `exit_code` and nothing looks like a crash."""
        folder = folder or self.fresh_folder()
        command = self.command(f"--training.steps={steps}", *words, config=config, folder=folder)
        run = self.titan(*command[1:], limits=limits)
        run.folder = folder
        self.expect(run, exit_code)
        return run

    def expect(self, run: Run, exit_code: int) -> None:
        printed = run.output[-2000:] + run.errors[-4000:]
        self.assertEqual(run.code, exit_code, printed)
        for words in UNFRIENDLY:
            self.assertNotIn(words, run.output + run.errors)

    def refused(self, exit_code: int, says: list[str], *words, **options) -> Run:
        """Trains, expects this exit code, and each of `says` on standard error; says[-1] is the remedy."""
        run = self.train(*words, exit_code=exit_code, **options)
        for part in says:
            self.assertIn(part, run.errors)
        return run

    def config_with(self, text: str, name: str = "job.toml") -> pathlib.Path:
        """The debug config with `text` after it."""
        return self.write(name, DEBUG_CONFIG.read_text() + "\n" + text)

"""Ranks of titan_train as processes of a test: started by its launcher or by hand, watched, and none left behind."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import time
from unittest import mock

from program import ROOT, SMALL, UNFRIENDLY, BehaviourTest, setter_of

LAUNCHER, BUG, PEER_FAILURE, HANG = 69, 70, 74, 76
END_LIMIT_SECONDS = 10.0
# Variables by which launchers speak: none may leak in from around the tests.
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "MPI_", "SLURM", "PALS_", "TORCHELASTIC", "LOG_RANK")


def clean_environment(**more: object) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHER_VARIABLES)}
    return kept | {name: str(value) for name, value in more.items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A running titan_train whose output goes to a file, so that it can be looked at while it runs."""

    def __init__(
        self,
        test: RanksTest,
        words: tuple,
        environment: dict[str, str],
        limits: dict[int, int],
        cwd: pathlib.Path,
        restore_signals: bool,
    ):
        self.path = test.folder / f"output-{len(test.processes)}.txt"
        with open(self.path, "wb") as file:
            self.popen = subprocess.Popen(
                [test.program, *map(str, words)],
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=setter_of(limits),
                restore_signals=restore_signals,
            )
        test.processes.append(self)

    def text(self) -> str:
        return self.path.read_text(errors="replace")

    def wait_for(self, words: str) -> str:
        limit = time.monotonic() + 120
        while True:
            ended = self.popen.poll() is not None  # asked first: what it printed last is then in the file
            if words in self.text():
                return self.text()
            if ended or time.monotonic() > limit:
                raise AssertionError(f"no {words!r} in:\n{self.text()}")
            time.sleep(0.01)

    def end(self, limit: float = 120) -> int:
        return self.popen.wait(timeout=limit)


class RanksTest(BehaviourTest):
    def setUp(self):
        super().setUp()
        self.processes: list[Process] = []
        self.addCleanup(self.kill_all)

    def use_dying_program(self):
        beside = pathlib.Path(self.program).with_name("dying_titan_train")
        self.program = os.environ.get("TITAN_DYING_BINARY", str(beside))
        if not os.access(self.program, os.X_OK):
            self.skipTest(f"{self.program} is not built")
        # As titan_train sets it before it loads LibTorch, which this program links.
        self.enterContext(mock.patch.dict(os.environ, {"GOMP_SPINCOUNT": "3000"}))

    def kill_all(self):
        for process in self.processes:
            process.popen.kill()
            process.popen.wait()
        for pid in self.left_running():
            os.kill(pid, signal.SIGKILL)

    def left_running(self) -> list[int]:
        """Processes of this test: its folder is on their command lines."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.folder).encode() in path.read_bytes() and int(path.parts[2]) != os.getpid():
                    found.append(int(path.parts[2]))
            except (FileNotFoundError, ProcessLookupError):
                pass
        return found

    def expect_nothing_left(self):
        limit = time.monotonic() + END_LIMIT_SECONDS
        while self.left_running() and time.monotonic() < limit:
            time.sleep(0.01)
        self.assertEqual(self.left_running(), [])

    def start(
        self,
        *words,
        limits: dict[int, int] | None = None,
        cwd: pathlib.Path = ROOT,
        restore_signals: bool = True,
        **variables,
    ) -> Process:
        return Process(self, words, clean_environment(**variables), limits or {}, cwd, restore_signals)

    def options(self) -> tuple:
        return (f"--job.dump_folder={self.folder}/run", "--training.device=cpu")

    def launch(self, ranks: int, *words, log_rank: str = "0") -> Process:
        return self.start("launch", "-n", ranks, "--log-rank", log_rank, "ranks", *words, *self.options())

    @staticmethod
    def rank_variables(rank: int, size: int, port: int) -> dict[str, object]:
        """The environment variables of a rank started by hand, as torchrun sets them."""
        return {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    def by_hand(self, rank: int, size: int, port: int, *words, **variables) -> Process:
        return self.start("ranks", *words, *self.options(), **(self.rank_variables(rank, size, port) | variables))

    def train_by_hand(self, rank: int, size: int, port: int, *words, **more) -> Process:
        return self.start(*self.training(*words), **(self.rank_variables(rank, size, port) | more))

    def process_of(self, text: str, rank: int) -> int:
        """The process that the start table gives for a rank."""
        return int(re.search(rf"INFO - +{rank}  \S+ +(\d+) ", text)[1])

    @staticmethod
    def rank_processes(launcher: int) -> dict[int, int]:
        """The processes of the ranks that have become titan_train, by rank."""
        found = {}
        try:
            children = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
            for pid in children:
                words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                found |= {int(word[5:]): int(pid) for word in words if word.startswith(b"RANK=")}
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass  # one that has just ended
        return found

    def expect_friendly(self, text: str):
        for words in UNFRIENDLY:
            self.assertNotIn(words, text)

    def expect_end(self, run: Process, code: int, since: float, last_says: str):
        self.assertEqual(run.end(), code, run.text())
        self.assertLess(time.monotonic() - since, END_LIMIT_SECONDS)
        self.assertRegex(run.text().splitlines()[-1], last_says)
        self.expect_friendly(run.text())
        self.expect_nothing_left()

    def training(self, *words) -> tuple:
        """The words of a training that lasts until something ends it; later ones win."""
        small = (*SMALL, "--training.steps=1000000", "--debug.seed=1")
        return ("configs/debug_model.toml", *small, *self.options(), *words)

    def launch_training(self, ranks: int, *words, **more) -> Process:
        return self.start("launch", "-n", ranks, *self.training(*words), **more)

"""Runs that scripts/chaos.py and scripts/soak.py disturb: started, watched, and compared with an undisturbed one. Needs
nothing but Python."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
END_SECONDS = 60.0  # until all ranks are gone: after this they hang
MET = "Starting job"  # what rank 0 prints when all ranks are there
COMMITTED = re.compile(r"checkpoint (\d+) committed: ")
MORE_STEPS = 4  # after the last fault


class Broken(Exception):
    """The run did not do what it promises."""


def parse(parser: argparse.ArgumentParser, name: str, chosen: str) -> argparse.Namespace:
    """Adds the options that both scripts have, and parses. `chosen`: what the seed decides."""
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "outputs" / name)
    parser.add_argument("--seed", type=int, help=f"of the choice of {chosen}; none: another one each time")
    parser.add_argument("--option", action="append", default=[], metavar="--KEY=VALUE", help="another option of the run")
    parser.add_argument("--binary", help="the titan_train to run")
    parser.add_argument("--default-binary", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.binary = os.path.abspath(arguments.binary or arguments.default_binary or "titan_train")
    arguments.folder = arguments.folder.absolute()
    return arguments


def training(ranks: int, replicas: int) -> list[str]:
    """Options of a run with short steps, which spends much of its time in saves."""
    return [
        "--model.override.dim=64",
        "--model.override.n_layers=2",
        "--model.override.n_heads=4",
        "--training.local_batch_size=2",
        "--training.seq_len=64",
        "--training.threads=1",
        "--training.device=cpu",
        "--lr_scheduler.warmup_steps=0",
        "--lr_scheduler.total_steps=100000",
        "--lr_scheduler.decay_ratio=0",
        "--metrics.log_freq=1",
        "--debug.seed=1",
        f"--parallelism.data_parallel_shard_degree={ranks // replicas}",
        f"--parallelism.data_parallel_replicate_degree={replicas}",
        "--checkpoint.enable",
        "--checkpoint.last_save_model_only=false",
    ]


class Launched:
    """The run, started by titan_train launch; its output goes to a file."""

    def __init__(self, binary: str, ranks: int, words: list[str], output: pathlib.Path, *, restarts: int = 0, **variables: str):
        self.output = output
        self.begin = time.monotonic()
        supervised = ["--restarts", str(restarts)] if restarts else []
        config = str(ROOT / "configs" / "debug_model.toml")
        command = [binary, "launch", "-n", str(ranks), *supervised, config, *words]
        with open(output, "wb") as file:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=os.environ | variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def ended(self) -> bool:
        return self.process.poll() is not None

    def ranks(self) -> dict[int, int]:
        """Processes by rank."""
        found = {}
        launcher = self.process.pid
        try:
            for pid in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
                words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                found |= {int(word[5:]): int(pid) for word in words if word.startswith(b"RANK=")}
        except OSError:
            pass  # a process that has just ended
        return found

    def process_of(self, rank: int) -> int:
        """Waits for the rank, which may be starting."""
        while (found := self.ranks().get(rank)) is None:
            if self.ended():
                raise Broken(f"the run ended by itself:\n{self.text()}")
            time.sleep(0.001)
        return found

    def wait_for(self, words: str) -> None:
        while words not in self.text() and not self.ended():
            time.sleep(0.005)

    def kill_all(self) -> None:
        for pid in self.ranks().values():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        try:
            return self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise Broken(f"{END_SECONDS:.0f} s after a fault the ranks had not ended:\n{self.text()}") from None


class DisturbedRun:
    """A run in `folder`/run that is disturbed, and compared with one in `folder`/whole that is not."""

    def __init__(self, binary: str, ranks: int, folder: pathlib.Path, options: list[str], replicas: int = 1):
        self.binary = binary
        self.ranks = ranks
        self.replicas = replicas
        self.folder = folder
        self.options = options
        self.run = folder / "run"
        self.checkpoints = self.run / "checkpoint"
        folder.mkdir(parents=True, exist_ok=True)

    def words(self, steps: int, folder: pathlib.Path, *more: str) -> list[str]:
        return [*training(self.ranks, self.replicas), *self.options, f"--job.dump_folder={folder}", f"--training.steps={steps}", *more]

    def unfinished(self) -> list[str]:
        """Folders of a checkpoint that is being written, replaced or deleted."""
        try:
            names = os.listdir(self.checkpoints)
        except FileNotFoundError:
            return []
        return [name for name in names if re.match(r"(saving|deleting)-\d", name)]

    def newest(self) -> int:
        return max((int(path.name[5:]) for path in self.checkpoints.glob("step-*")), default=0)

    def complete(self, steps: int, folder: pathlib.Path, *more: str) -> str:
        run = Launched(self.binary, self.ranks, self.words(steps, folder, *more), self.folder / "output.txt")
        code = run.process.wait()
        if code != 0:
            raise Broken(f"a run that was not disturbed ended with exit code {code}:\n{run.text()}")
        return run.text()

    @staticmethod
    def curve(folder: pathlib.Path) -> dict[int, tuple]:
        """Loss and gradient norm by step; a step that was taken several times came out the same each time."""
        steps: dict[int, tuple] = {}
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            values = json.loads(line)
            if "event" in values:
                continue
            numbers = (values["loss"], values["grad_norm"], values["tokens_seen"])
            if steps.setdefault(values["step"], numbers) != numbers:
                raise Broken(f"step {values['step']} was {steps[values['step']]} and then {numbers}")
        return steps

    def compare(self, steps: int, *more: str) -> None:
        """With an undisturbed run of `steps` steps: losses, norms and the last checkpoint."""
        if left := self.unfinished():
            raise Broken(f"left behind in {self.checkpoints}: {', '.join(left)}")
        whole = self.folder / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        self.complete(steps, whole, f"--checkpoint.interval={steps}", *more)
        expected = self.curve(whole)
        if (found := self.curve(self.run)) != expected:
            wrong = [step for step in sorted(expected | found) if found.get(step) != expected.get(step)]
            raise Broken(f"{len(wrong)} of {steps} steps differ from the undisturbed run, the first is {wrong[0]}")
        names = [{path.name for path in (folder / f"checkpoint/step-{steps}").glob("*.distcp")} for folder in (self.run, whole)]
        if names[0] != names[1] or not names[0]:
            raise Broken(f"step {steps} has the files {names[0]}, that of the undisturbed run {names[1]}")
        for name in sorted(names[0]):
            path = f"checkpoint/step-{steps}/{name}"
            if (self.run / path).read_bytes() != (whole / path).read_bytes():
                raise Broken(f"{path} differs from the undisturbed run's")

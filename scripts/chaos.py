"""What scripts/chaos.sh does; its head says what that is. Needs nothing but Python."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
RANKS = 2
KILLED = 128 + signal.SIGKILL
ROUND_SECONDS = 4.0  # of each kill, start and end included
SAVE_LIMIT_SECONDS = 60.0  # from the start until a save that is waited for
END_SECONDS = 60.0  # until all ranks are gone: after this they hang
MET = "Starting job"  # what rank 0 prints when all ranks are there
MORE_STEPS = 4  # after the last kill
# Saving must be a good part of the time, and a step short.
TRAINING = [
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
    f"--parallelism.data_parallel_shard_degree={RANKS}",
    "--checkpoint.enable",
    "--checkpoint.last_save_model_only=false",
]


class Broken(Exception):
    """The run did not do what it promises."""


@dataclasses.dataclass
class Kill:
    """One line of the record."""

    number: int
    rank: int
    moment: float  # seconds after the start
    loaded: int  # the step that the run began with
    committed: int  # the newest step that it has said to be saved, or began with
    in_save: bool  # a checkpoint was being written or replaced
    seconds: float  # from the start until all ranks were gone


class Launched:
    """The run, started by titan_train launch; its output goes to a file."""

    def __init__(self, binary: str, words: list[str], output: pathlib.Path):
        self.output = output
        self.begin = time.monotonic()
        command = [binary, "launch", "-n", str(RANKS), str(ROOT / "configs" / "debug_model.toml"), *words]
        with open(output, "wb") as file:
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def ranks(self) -> dict[int, int]:
        """Processes by rank."""
        found = {}
        launcher = self.process.pid
        try:
            for pid in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
                words = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                found |= {int(word[5:]): int(pid) for word in words if word.startswith(b"RANK=")}
        except OSError:
            pass  # one that has just ended
        return found

    def end(self) -> int:
        try:
            return self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            for pid in self.ranks().values():
                os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
            raise Broken(f"{END_SECONDS:.0f} s after a rank was killed the others had not ended:\n{self.text()}") from None


class Chaos:
    def __init__(self, binary: str, folder: pathlib.Path, seed: int | None, options: list[str]):
        self.binary = binary
        self.options = options
        self.folder = folder
        self.run = folder / "run"
        self.checkpoints = self.run / "checkpoint"
        self.record = folder / "record.jsonl"
        self.dice = random.Random(seed)
        folder.mkdir(parents=True, exist_ok=True)
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        self.kills = [Kill(**json.loads(line)) for line in lines]
        self.load_seconds = 0.5  # from the rendezvous until a run has loaded: the last one's

    def words(self, steps: int, folder: pathlib.Path, *more: str) -> list[str]:
        return [*TRAINING, *self.options, f"--job.dump_folder={folder}", f"--training.steps={steps}", *more]

    def unfinished(self) -> list[str]:
        """Folders of a checkpoint that is being written, replaced or deleted."""
        try:
            names = os.listdir(self.checkpoints)
        except FileNotFoundError:
            return []
        return [name for name in names if re.match(r"(saving|deleting)-\d", name)]

    def loaded(self, text: str) -> int:
        """The step that a run began with; nothing that was committed before may be lost."""
        committed = self.kills[-1].committed if self.kills else 0
        line = re.search(r"LOAD: (?:step (\d+) from \S+ \(verified, [^)]*\)|nothing: .*; starting fresh)(.*)", text)
        if not line:
            raise Broken(f"no checkpoint was loaded:\n{text}")
        if line[2]:
            raise Broken(f"a checkpoint was found damaged: {line[0]}")
        step = int(line[1] or 0)
        if step < committed:
            raise Broken(f"step {committed} was committed, and the next start began with step {step}:\n{text}")
        return step

    def wait_for_words(self, run: Launched, words: str) -> None:
        while words not in run.text() and run.process.poll() is None:
            time.sleep(0.005)

    def wait_for_a_save(self, run: Launched) -> None:
        """Until somewhere within a save; what a former run left unfinished is gone when this one has loaded."""
        self.wait_for_words(run, MET)
        met = run.seconds()
        self.wait_for_words(run, "LOAD: ")
        self.load_seconds = run.seconds() - met
        while not self.unfinished() and run.seconds() < SAVE_LIMIT_SECONDS and run.process.poll() is None:
            time.sleep(0.0002)
        time.sleep(self.dice.choice([0.0, 0.001, 0.003, 0.01]) * self.dice.random())

    def wait_for_any_moment(self, run: Launched) -> None:
        """From when the ranks have met until a second after loading. Who dies before that, and who is then told, is
        for tests of the launcher."""
        self.wait_for_words(run, MET)
        moment = run.seconds() + (self.load_seconds + 1.0) * self.dice.random()
        while run.seconds() < moment and run.process.poll() is None:
            time.sleep(min(0.01, max(0.0, moment - run.seconds())))

    def kill_once(self) -> None:
        number = len(self.kills) + 1
        # One ahead of half of them, since an aimed kill may come when the save has just ended.
        aim_at_save = 2 * sum(kill.in_save for kill in self.kills) <= number
        mode = "async" if number % 2 == 0 else "disabled"
        more = ["--checkpoint.interval=2", "--checkpoint.keep_latest_k=2", f"--checkpoint.async_mode={mode}"]
        run = Launched(self.binary, self.words(1_000_000, self.run, *more), self.folder / "output.txt")
        self.wait_for_a_save(run) if aim_at_save else self.wait_for_any_moment(run)
        moment = run.seconds()
        rank = self.dice.randrange(RANKS)
        while (victim := run.ranks().get(rank)) is None:
            if run.process.poll() is not None:
                raise Broken(f"the run ended by itself:\n{run.text()}")
            time.sleep(0.001)
        os.kill(victim, signal.SIGKILL)
        code = run.end()
        text = run.text()
        if code != KILLED:
            raise Broken(f"the run ended with exit code {code}:\n{text}")
        committed = self.kills[-1].committed if self.kills else 0
        loaded = self.loaded(text) if "LOAD: " in text else committed
        said = [int(step) for step in re.findall(r"checkpoint (\d+) committed: ", text)]
        kill = Kill(
            number,
            rank,
            round(moment, 3),
            loaded,
            max([committed, loaded, *said]),
            "LOAD: " in text and bool(self.unfinished()),  # before it has loaded, they are the former run's
            round(run.seconds(), 3),
        )
        with open(self.record, "a") as file:
            file.write(json.dumps(dataclasses.asdict(kill)) + "\n")
        self.kills.append(kill)

    def complete(self, steps: int, folder: pathlib.Path, *more: str) -> str:
        run = Launched(self.binary, self.words(steps, folder, *more), self.folder / "output.txt")
        code = run.process.wait()
        if code != 0:
            raise Broken(f"a run that was not killed ended with exit code {code}:\n{run.text()}")
        return run.text()

    @staticmethod
    def curve(folder: pathlib.Path) -> dict[int, tuple]:
        """Loss and gradient norm by step; a step that was taken several times came out the same each time."""
        steps: dict[int, tuple] = {}
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            values = json.loads(line)
            numbers = (values["loss"], values["grad_norm"], values["tokens_seen"])
            if steps.setdefault(values["step"], numbers) != numbers:
                raise Broken(f"step {values['step']} was {steps[values['step']]} and then {numbers}")
        return steps

    def compare(self) -> int:
        """With an undisturbed run: its steps."""
        before = self.kills[-1].committed
        newest = max([before, *(int(path.name[5:]) for path in self.checkpoints.glob("step-*"))])
        steps = newest + MORE_STEPS
        self.loaded(self.complete(steps, self.run, "--checkpoint.interval=2", "--checkpoint.keep_latest_k=2"))
        if left := self.unfinished():
            raise Broken(f"left behind in {self.checkpoints}: {', '.join(left)}")
        whole = self.folder / "whole"
        shutil.rmtree(whole, ignore_errors=True)
        self.complete(steps, whole, f"--checkpoint.interval={steps}")
        expected = self.curve(whole)
        if (found := self.curve(self.run)) != expected:
            wrong = [step for step in sorted(expected | found) if found.get(step) != expected.get(step)]
            raise Broken(f"{len(wrong)} of {steps} steps differ from the undisturbed run, the first is {wrong[0]}")
        last = f"checkpoint/step-{steps}"
        for rank in range(RANKS):
            name = f"{last}/__{rank}_0.distcp"
            if (self.run / name).read_bytes() != (whole / name).read_bytes():
                raise Broken(f"{name} differs from the undisturbed run's")
        return steps


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.sh", description="Kills a training run N times; see the script's head.")
    parser.add_argument("kills", type=int, metavar="N", help="kills in the record at the end, earlier ones included")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "outputs" / "chaos")
    parser.add_argument("--seed", type=int, help="of the choice of ranks and moments; none: another one each time")
    parser.add_argument("--option", action="append", default=[], metavar="--KEY=VALUE", help="another option of the run")
    parser.add_argument("--binary", help="the titan_train to run")
    parser.add_argument("--default-binary", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.binary or arguments.default_binary or "titan_train")
    chaos = Chaos(binary, arguments.folder.absolute(), arguments.seed, arguments.option)
    if chaos.kills:
        print(f"resuming after {len(chaos.kills)} kills")
    try:
        while len(chaos.kills) < arguments.kills:
            chaos.kill_once()
            if len(chaos.kills) % 25 == 0:
                print(f"{len(chaos.kills)} kills, step {chaos.kills[-1].committed}", flush=True)
        steps = chaos.compare()
    except Broken as problem:
        print(f"chaos.sh: after {len(chaos.kills)} kills: {problem}", file=sys.stderr)
        return 1
    in_save = sum(kill.in_save for kill in chaos.kills)
    seconds = sorted(kill.seconds for kill in chaos.kills)
    slow = sum(value > ROUND_SECONDS for value in seconds)
    print(
        f"{len(chaos.kills)} kills, {in_save} while a checkpoint was being written, all resumed by the same command; "
        f"{seconds[len(seconds) // 2]:.1f} s each in the middle, {seconds[-1]:.1f} s at most, {slow} over {ROUND_SECONDS:.0f} s"
    )
    print(f"losses, norms and the last checkpoint of {steps} steps are those of the undisturbed run, bit for bit")
    return 0


if __name__ == "__main__":
    sys.exit(main())

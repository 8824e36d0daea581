"""What scripts/chaos.sh does; its head says what that is. Needs nothing but Python."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import sys
import time

from fault_runs import COMMITTED, MET, MORE_STEPS, Broken, DisturbedRun, Launched, parse

RANKS = 2
KILLED = 128 + signal.SIGKILL
ROUND_SECONDS = 4.0  # of each kill, start and end included
SAVE_LIMIT_SECONDS = 60.0  # from the start until a save that is waited for


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


class Chaos(DisturbedRun):
    def __init__(self, binary: str, folder: pathlib.Path, seed: int | None, options: list[str]):
        super().__init__(binary, RANKS, folder, options)
        self.record = folder / "record.jsonl"
        self.dice = random.Random(seed)
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        self.kills = [Kill(**json.loads(line)) for line in lines]
        self.load_seconds = 0.5  # from the rendezvous until a run has loaded: the last one's

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

    def wait_for_a_save(self, run: Launched) -> None:
        """Until somewhere within a save; what a former run left unfinished is gone when this one has loaded."""
        run.wait_for(MET)
        met = run.seconds()
        run.wait_for("LOAD: ")
        self.load_seconds = run.seconds() - met
        while not self.unfinished() and run.seconds() < SAVE_LIMIT_SECONDS and not run.ended():
            time.sleep(0.0002)
        time.sleep(self.dice.choice([0.0, 0.001, 0.003, 0.01]) * self.dice.random())

    def wait_for_any_moment(self, run: Launched) -> None:
        """From when the ranks have met until a second after loading. Tests of the launcher kill ranks before that."""
        run.wait_for(MET)
        moment = run.seconds() + (self.load_seconds + 1.0) * self.dice.random()
        while run.seconds() < moment and not run.ended():
            time.sleep(min(0.01, max(0.0, moment - run.seconds())))

    def kill_once(self) -> None:
        number = len(self.kills) + 1
        # One ahead of half of them, since an aimed kill may come when the save has just ended.
        aim_at_save = 2 * sum(kill.in_save for kill in self.kills) <= number
        mode = "async" if number % 2 == 0 else "disabled"
        more = ["--checkpoint.interval=2", "--checkpoint.keep_latest_k=2", f"--checkpoint.async_mode={mode}"]
        run = Launched(self.binary, RANKS, self.words(1_000_000, self.run, *more), self.folder / "output.txt")
        self.wait_for_a_save(run) if aim_at_save else self.wait_for_any_moment(run)
        moment = run.seconds()
        rank = self.dice.randrange(RANKS)
        victim = run.process_of(rank)
        os.kill(victim, signal.SIGKILL)
        code = run.end()
        text = run.text()
        if code != KILLED:
            raise Broken(f"the run ended with exit code {code}:\n{text}")
        committed = self.kills[-1].committed if self.kills else 0
        loaded = self.loaded(text) if "LOAD: " in text else committed
        said = [int(step) for step in COMMITTED.findall(text)]
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

    def finish(self) -> int:
        """Completes the run and compares it with an undisturbed one. Returns its steps."""
        steps = max(self.kills[-1].committed, self.newest()) + MORE_STEPS
        self.loaded(self.complete(steps, self.run, "--checkpoint.interval=2", "--checkpoint.keep_latest_k=2"))
        self.compare(steps)
        return steps


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.sh", description="Kills a training run N times; see the script's head.")
    parser.add_argument("kills", type=int, metavar="N", help="kills in the record at the end, earlier ones included")
    arguments = parse(parser, "chaos", "ranks and moments")
    chaos = Chaos(arguments.binary, arguments.folder, arguments.seed, arguments.option)
    if chaos.kills:
        print(f"resuming after {len(chaos.kills)} kills")
    try:
        while len(chaos.kills) < arguments.kills:
            chaos.kill_once()
            if len(chaos.kills) % 25 == 0:
                print(f"{len(chaos.kills)} kills, step {chaos.kills[-1].committed}", flush=True)
        steps = chaos.finish()
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

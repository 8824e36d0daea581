"""What scripts/soak.sh does; its head says what that is. Needs nothing but Python."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

from fault_runs import MORE_STEPS, ROOT, Broken, DisturbedRun, Launched, parse

RESTARTS = 1_000_000  # as many as there are faults
KILLED, NON_FINITE, REQUEUE, HANG, CORRUPTION, INTERRUPTED = 128 + signal.SIGKILL, 72, 75, 76, 77, 130
LAYERS = 2
# In a soak of an hour other programs may take the processors for seconds: a rank that is slow must not count as hung.
TIMEOUT_SECONDS = 6
SAVING = ["--checkpoint.interval=4", "--checkpoint.keep_latest_k=2", "--checkpoint.async_mode=async"]
RECOVERY_SECONDS = 120.0  # from a fault until a later step is saved; a run that takes longer counts as lost
# Largest growth of peak memory from the first to the last third of the soak; the rest is noise of the allocator.
RANK_GROWTH, SUPERVISOR_GROWTH_BYTES = 1.05, 2 << 20


@dataclasses.dataclass
class Fault:
    """One line of the record."""

    number: int
    kind: str
    rank: int | None  # that was hit; none: all, or the supervisor
    minute: float  # since the soak began
    end: str  # "restarted", "ended" (the harness removed the cause and gave the same command again) or "survived"
    exit_code: int | None
    seconds: float  # until a step after those before the fault was saved
    supervisor_bytes: int
    rank_bytes: int  # rank 0's peak in the attempt that the fault hit


class Soak(DisturbedRun):
    def __init__(self, binary: str, ranks: int, folder: pathlib.Path, seed: int | None, options: list[str]):
        super().__init__(binary, ranks, folder, options, replicas=2 if ranks % 2 == 0 else 1)
        if self.run.exists():
            raise Broken(f"{self.run} is there already: remove it, or name another folder with --folder")
        self.dice = random.Random(seed)
        self.faults: list[Fault] = []
        self.begin = time.monotonic()
        self.minutes = 0.0  # from the first start to the last fault's recovery
        self.filler: pathlib.Path | None = None
        self.kinds: dict[str, Callable[[], Fault]] = {"kill": self.kill, "stop": self.stop, "SIGTERM": self.terminate}
        self.launched = None
        if pathlib.Path(binary).name.startswith("dying_"):
            # titan_train sets this before it opens LibTorch; dying_titan_train links LibTorch, so it must be set here.
            os.environ["GOMP_SPINCOUNT"] = "3000"
            # Checked after every step: a weight with a flipped bit of its exponent would end the next one as not finite.
            self.options = [*self.options, "--debug.replica_check_steps=1"]
            self.kinds |= {"flipped bit": self.flip, "NaN": self.poison}

    # ---- the run

    def start(self, **variables: str) -> None:
        """`variables`: faults that the program itself makes (tests/behaviour/dying_main.cpp)."""
        words = self.words(1_000_000_000, self.run, *SAVING, f"--comm.train_timeout_seconds={TIMEOUT_SECONDS}")
        output = self.folder / f"output-{len(self.faults)}.txt"
        self.launched = Launched(self.binary, self.ranks, words, output, restarts=RESTARTS, **variables)

    def attempts(self) -> list[dict]:
        path = self.run / "attempts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait(self, holds: Callable[[], bool], what: str, seconds: float = RECOVERY_SECONDS) -> None:
        limit = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > limit:
                raise Broken(f"after {seconds:.0f} s {what}:\n{self.launched.text()[-4000:]}")
            time.sleep(0.01)

    def wait_for_save(self, after: int) -> None:
        """Until a step later than `after` is committed."""

        def holds() -> bool:
            if self.launched.ended():
                raise Broken(f"the run ended with exit code {self.launched.process.returncode}:\n{self.launched.text()[-4000:]}")
            return self.newest() > after

        self.wait(holds, f"no step after {after} was saved")

    def resident_bytes(self) -> int:
        try:
            words = pathlib.Path(f"/proc/{self.launched.process.pid}/statm").read_text().split()
        except OSError:
            return 0
        return int(words[1]) * os.sysconf("SC_PAGE_SIZE")

    def rank_peak(self) -> int:
        """Of rank 0's process, in the newest line of its metrics."""
        with open(self.run / "metrics.jsonl", "rb") as file:
            begin = max(0, os.path.getsize(file.name) - 8192)
            file.seek(begin)
            lines = file.read().split(b"\n")
        # The first line may lack its beginning, the last its end.
        peaks = [json.loads(line).get("memory_peak_rss_bytes", 0) for line in lines[1 if begin else 0 : -1]]
        return next((peak for peak in reversed(peaks) if peak), 0)

    # ---- faults: each returns what it hit and how it ended; `disturb` fills in the rest

    def fault(self, kind: str, rank: int | None, end: str, code: int | None) -> Fault:
        return Fault(len(self.faults) + 1, kind, rank, 0, end, code, 0, 0, 0)

    def restarted(self, kind: str, rank: int, codes: tuple[int, ...], before: int) -> Fault:
        """Waits until the supervisor has started the run again."""
        self.wait(lambda: len(self.attempts()) > before or self.launched.ended(), f"a {kind} of rank {rank} was not noticed")
        attempts = self.attempts()
        newest = attempts[-1] if len(attempts) > before else {}
        # Of two replicas that differ, neither is known to be right: the rank that says so first is named.
        is_named = newest.get("rank") == rank or newest.get("exit_code") == CORRUPTION
        if not newest.get("restarts") or newest["exit_code"] not in codes or not is_named:
            raise Broken(f"a {kind} of rank {rank} gave {newest or 'no restart'}:\n{self.launched.text()[-4000:]}")
        return self.fault(kind, rank, "restarted", newest["exit_code"])

    def ended(self, kind: str, rank: int | None, codes: tuple[int, ...]) -> Fault:
        """The supervisor ends by design: the same command is given again."""
        code = self.launched.end()
        if code not in codes:
            raise Broken(f"after {kind} the run ended with exit code {code}:\n{self.launched.text()[-4000:]}")
        return self.fault(kind, rank, "ended", code)

    def kill(self) -> Fault:
        before, rank = len(self.attempts()), self.dice.randrange(self.ranks)
        os.kill(self.launched.process_of(rank), signal.SIGKILL)
        return self.restarted("kill", rank, (KILLED,), before)

    def stop(self) -> Fault:
        before, rank = len(self.attempts()), self.dice.randrange(self.ranks)
        os.kill(self.launched.process_of(rank), signal.SIGSTOP)
        return self.restarted("stop", rank, (HANG,), before)

    def terminate(self) -> Fault:
        """SIGTERM to the supervisor or to one rank: the run saves and ends."""
        rank = self.dice.choice([None, self.dice.randrange(self.ranks)])
        os.kill(self.launched.process.pid if rank is None else self.launched.process_of(rank), signal.SIGTERM)
        return self.ended("SIGTERM", rank, (REQUEUE,))

    def start_with_fault(self, name: str, words: str) -> int:
        """Ends the run, and starts it with one fault some steps later. Returns the number of earlier attempts."""
        os.kill(self.launched.process.pid, signal.SIGTERM)
        self.ended(name, None, (REQUEUE,))
        once = self.folder / f"fault-{len(self.faults)}"
        before = len(self.attempts())
        step = self.newest() + self.dice.randrange(3, 12)
        self.start(FAULT_ONCE=str(once), **{name: words.format(step=step)})
        self.wait(once.exists, f"the program made no fault {name} = {words} at step {step}")
        return before

    def flip(self) -> Fault:
        """Flips a bit of a weight or a moment of one replica, after any step."""
        rank, layer = self.dice.randrange(self.ranks), self.dice.randrange(LAYERS)
        what = self.dice.choice(["weight", "0", "1"])
        number = f"{self.dice.randrange(1_000_000)} {self.dice.randrange(32)}"
        before = self.start_with_fault("FLIP_BIT", f"{rank} {{step}} after layers.{layer}.attention.wq.weight {what} {number}")
        return self.restarted("flipped bit", rank, (CORRUPTION,), before)

    def poison(self) -> Fault:
        rank, layer = self.dice.randrange(self.ranks), self.dice.randrange(LAYERS)
        self.start_with_fault("NAN_IN", f"{rank} {{step}} layers.{layer}.feed_forward.w2.weight")
        return self.ended("NaN", rank, (NON_FINITE,))

    def full_disk(self) -> Fault:
        """Saves fail until there is room again. The run continues; after a SIGTERM meanwhile it ends without a save."""
        ends = self.dice.random() < 0.5
        offset = self.launched.output.stat().st_size

        def save_failed() -> bool:
            self.fill_disk()  # again and again: the run deletes old checkpoints
            return b"No space left on device" in self.output_since(offset)

        self.wait(save_failed, "no save failed on the full disk")
        if ends:
            os.kill(self.launched.process.pid, signal.SIGTERM)
            fault = self.ended("full disk", None, (INTERRUPTED,))
        else:
            fault = self.fault("full disk", None, "survived", None)
        self.filler.unlink()
        return fault

    def fill_disk(self) -> None:
        with open(self.filler, "ab", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
            except OSError:
                pass  # full

    def output_since(self, offset: int) -> bytes:
        with open(self.launched.output, "rb") as file:
            file.seek(offset)
            return file.read()

    def small_disk(self, folder: pathlib.Path) -> bool:
        """Mounts a small file system for checkpoints; returns False without the right to mount one."""
        folder.mkdir(parents=True)
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", folder], capture_output=True, check=False)
        if done.returncode:
            return False
        self.filler = folder / "filler"
        self.kinds["full disk"] = self.full_disk
        return True

    # ---- the soak

    def disturb(self, kind: str) -> None:
        time.sleep(self.dice.random())  # else the fault would always follow the save that was waited for
        before, begin = self.newest(), time.monotonic()
        supervisor, peak = self.resident_bytes(), self.rank_peak()
        fault = self.kinds[kind]()
        if fault.end == "ended":
            self.faults.append(fault)  # names the next output
            self.start()
            self.faults.pop()
        self.wait_for_save(max(before, self.newest()))
        fault.minute = round((begin - self.begin) / 60, 2)
        fault.seconds = round(time.monotonic() - begin, 2)
        fault.supervisor_bytes, fault.rank_bytes = supervisor, peak
        self.faults.append(fault)
        with open(self.folder / "record.jsonl", "a") as file:
            file.write(json.dumps(dataclasses.asdict(fault)) + "\n")

    def train_until(self, moment: float) -> None:
        while (left := moment - time.monotonic()) > 0:
            if self.launched.ended():
                raise Broken(f"the run ended by itself:\n{self.launched.text()[-4000:]}")
            time.sleep(min(0.1, left))

    def soak(self, count: int, every: float) -> None:
        """`count` faults, one every `every` seconds or, if the run needs longer to recover, at once."""
        self.start()
        self.wait_for_save(0)
        deck: list[str] = []
        for number in range(count):
            if not deck:  # all kinds come equally often, in any order
                deck = list(self.kinds)
                self.dice.shuffle(deck)
            self.train_until(self.begin + number * every)
            self.disturb(deck.pop())
            if (number + 1) % 10 == 0:
                print(f"{number + 1} faults, step {self.newest()}", flush=True)
        self.train_until(self.begin + count * every)
        self.minutes = (time.monotonic() - self.begin) / 60

    def finish(self) -> int:
        """Ends the run a few steps later and compares it with an undisturbed one. Returns its steps."""
        os.kill(self.launched.process.pid, signal.SIGTERM)
        self.ended("the last signal", None, (REQUEUE,))
        steps = self.newest() + MORE_STEPS
        self.complete(steps, self.run, *SAVING)
        self.compare(steps)
        return steps

    def check_memory(self) -> tuple[str, str]:
        """Of rank 0 and of the supervisor, in the first and in the last third."""
        third = max(1, len(self.faults) // 3)
        first, last = self.faults[:third], self.faults[-third:]
        ranks = [max(fault.rank_bytes for fault in part) for part in (first, last)]
        supervisors = [max(fault.supervisor_bytes for fault in part) for part in (first, last)]
        words = tuple(f"{part[0] / 2**20:.1f} and {part[1] / 2**20:.1f} MiB" for part in (ranks, supervisors))
        if ranks[1] > RANK_GROWTH * ranks[0] or supervisors[1] > supervisors[0] + SUPERVISOR_GROWTH_BYTES:
            raise Broken(f"memory grows: of rank 0 {words[0]}, of the supervisor {words[1]}")
        return words

    def close(self) -> None:
        if self.launched and not self.launched.ended():
            self.launched.kill_all()
        if self.filler:
            subprocess.run(["umount", "--lazy", self.filler.parent], check=False)

    def downtimes(self) -> list[dict]:
        lines = (self.run / "metrics.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event.get("event") == "restart"]


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0


def counted(ends: Counter, wanted: str) -> str:
    """"30: 10 × kill (137), …" of the faults that ended as `wanted`."""
    rows = sorted((kind, code, count) for (kind, end, code), count in ends.items() if end == wanted)
    words = [f"{count} × {kind}" + (f" ({code})" if code is not None else "") for kind, code, count in rows]
    return f"{sum(count for _, _, count in rows)}: {', '.join(words)}" if rows else "0"


def table(soak: Soak, steps: int, memory: tuple[str, str]) -> list[str]:
    """For docs/benchmarks/reliability.md. Exit codes are in brackets."""
    kinds = Counter(fault.kind for fault in soak.faults)
    ends = Counter((fault.kind, fault.end, fault.exit_code) for fault in soak.faults)
    recovery = [fault.seconds for fault in soak.faults]
    rows = [
        ("faults", f"{len(soak.faults)} in {soak.minutes:.1f} minutes: {', '.join(f'{n} × {kind}' for kind, n in sorted(kinds.items()))}"),
        ("restarted by the supervisor", counted(ends, "restarted")),
        ("ended the supervisor by design; the same command was given again", counted(ends, "ended")),
        ("did not end the run", counted(ends, "survived")),
        (f"losses, gradient norms and last checkpoint of {steps:,} steps", "those of the undisturbed run, bit for bit"),
        ("from a fault until a later step was saved", f"median {median(recovery):.1f} s, at most {max(recovery):.1f} s"),
    ]
    if events := soak.downtimes():
        down = [event["down_seconds"] for event in events]
        parts = ", ".join(f"{part} {median([event['parts'][part] for event in events]):.2f}" for part in events[0]["parts"])
        lost = f"{sum(event['lost_steps'] for event in events)} steps, {sum(event['lost_seconds'] for event in events):.0f} s of training"
        rows += [
            ("from the end of a process to the next first step", f"median {median(down):.2f} s, at most {max(down):.2f} s ({parts})"),
            (f"lost in {len(events)} restarts", lost),
        ]
    rows += [("peak memory of rank 0, first and last third", memory[0]), ("memory of the supervisor", memory[1])]
    return ["| | |", "|---|---|", *(f"| {what} | {result} |" for what, result in rows)]


def given(words: list[str]) -> list[str]:
    """Without what soak.sh adds."""
    return words[2:] if words[:1] == ["--default-binary"] else words


def head(words: list[str]) -> str:
    """When, where and by what command it was recorded."""
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False)
    cpus = re.findall(r"^model name\s*: (.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return (
        f"Recorded on {time.strftime('%Y-%m-%d')} at commit {git.stdout.strip() or 'unknown'} on {len(cpus)} cores "
        f"({cpus[0] if cpus else 'unknown'}), load {os.getloadavg()[2]:.1f} at the end, by `{' '.join(['scripts/soak.sh', *words])}`:"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak.sh", description="Disturbs a supervised run; see the script's head.")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=60, metavar="SECONDS", help="between faults")
    parser.add_argument("--faults", type=int, help="how many; default: as many as fit into the minutes")
    parser.add_argument("--kinds", help="a comma list of them; default: all")
    parser.add_argument("--ranks", type=int, default=4)
    arguments = parse(parser, "soak", "faults and ranks")
    count = arguments.faults or max(1, int(60 * arguments.minutes / max(1.0, arguments.every)))
    soak = None
    try:
        soak = Soak(arguments.binary, arguments.ranks, arguments.folder, arguments.seed, arguments.option)
        if not soak.small_disk(soak.checkpoints):
            print("without a full disk: there is no right to mount a small file system", flush=True)
        if arguments.kinds:
            soak.kinds = {kind: soak.kinds[kind] for kind in arguments.kinds.split(",")}
        soak.soak(count, arguments.every)
        memory = soak.check_memory()
        steps = soak.finish()
        text = "\n".join((head(given(sys.argv[1:])), "", *table(soak, steps, memory)))
        (arguments.folder / "table.md").write_text(text + "\n")
        print(text)
    except Broken as problem:
        print(f"soak.sh: after {len(soak.faults) if soak else 0} faults: {problem}", file=sys.stderr)
        return 1
    finally:
        if soak:
            soak.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

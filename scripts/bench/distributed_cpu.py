"""Driver of scripts/bench/distributed_cpu.sh: runs on two and four CPU ranks, compared. Imports no torch."""

from __future__ import annotations

import dataclasses
import statistics
import sys

import driver
import ratios
import trainers
from trainers import Workload

LONG = Workload(8, 512, "float32", warm_up=3, measured=6)
SHORT = Workload(2, 64, "float32", warm_up=20, measured=150)
RANKS = 2
ONE_PROCESS_BAR = 0.95
PYTHON_BARS = {"fsdp-long": (LONG, 1.05), "fsdp-short": (SHORT, 1.5)}
FIRST_STEP_RANKS = 4
FIRST_STEP_SECONDS = 6.0
NAMES = ["one-process", *PYTHON_BARS, "first-step", "bytes"]


def on_ranks(work: Workload) -> Workload:
    """The same tokens, cut over ranks of one thread each."""
    return dataclasses.replace(work, ranks=RANKS, threads=1)


def speed_row(what: str, work: Workload, runs: list, bar: float, key: str = "") -> ratios.Row:
    """Speed of the first run of each pair as a ratio to the second's. `key`: of its record."""

    def rate(which: int) -> str:
        return f"{work.tokens / statistics.median(pair[which].step_seconds for pair in runs):,.0f} tokens/s"

    samples = [other.step_seconds / ours.step_seconds for ours, other in runs]
    return ratios.Row(f"{what}, {work.title}", rate(0), rate(1), samples, bar, True, key=key, against="PyTorch fully_shard")


def one_process_row(binary: str, work: Workload, pairs: int) -> ratios.Row:
    runs = ratios.interleaved(
        pairs, lambda: trainers.titan(binary, on_ranks(work)), lambda: trainers.titan(binary, work)
    )
    return speed_row("fsdp 2, 1 thread each, against one process of 2 threads", work, runs, ONE_PROCESS_BAR)


def python_row(binary: str, work: Workload, pairs: int, bar: float) -> ratios.Row:
    cut = on_ranks(work)
    runs = ratios.interleaved(pairs, lambda: trainers.titan(binary, cut), lambda: trainers.python(cut))
    for ours, theirs in runs:
        if ours.parameters != theirs.parameters:
            raise SystemExit(f"the models differ: {ours.parameters} and {theirs.parameters} parameters")
    return speed_row("fsdp 2, against Python fully_shard", work, runs, bar, f"distributed/fsdp/{work.batch}x{work.length}")


def first_step_row(binary: str, pairs: int) -> ratios.Row:
    samples = [trainers.seconds_to_first_step(binary, FIRST_STEP_RANKS) for _ in range(pairs)]
    shown = f"{statistics.median(samples):.2g} s"
    what = f"start to first step, {FIRST_STEP_RANKS} ranks"
    return ratios.Row(what, shown, "", samples, FIRST_STEP_SECONDS, False, " s")


def main() -> int:
    description = "Runs on several CPU ranks: ratios to one process and to Python's fully_shard."
    arguments = driver.parse("scripts/bench/distributed_cpu.sh", description, NAMES)
    pairs = 1 if arguments.quick else arguments.pairs
    print(f"{driver.machine()}\n{pairs} interleaved pairs a row", flush=True)
    rows = []
    if "one-process" in arguments.rows:
        print("measuring fsdp 2 against one process", file=sys.stderr, flush=True)
        rows.append(one_process_row(arguments.binary, LONG.shortened(arguments.quick), pairs))
    for name, (work, bar) in PYTHON_BARS.items():
        if name in arguments.rows:
            print(f"measuring {name} against Python", file=sys.stderr, flush=True)
            rows.append(python_row(arguments.binary, work.shortened(arguments.quick), pairs, bar))
    if "first-step" in arguments.rows:
        rows.append(first_step_row(arguments.binary, pairs))
    if rows:
        print(f"\n{ratios.table(rows, other='compared with')}", flush=True)
    equal = True
    if "bytes" in arguments.rows:
        sent, equal = trainers.sent_as_planned(arguments.binary, RANKS)
        print(f"\nfsdp 2 sends {sent} a step and rank: {'as planned' if equal else 'NOT what the plan says'}")
    missed = driver.verdict(rows, arguments)
    return missed if equal else 1


if __name__ == "__main__":
    sys.exit(main())

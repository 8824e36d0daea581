"""Driver of scripts/bench/against.sh: one build of titan_train against another. Imports no torch, see trainers.run."""

from __future__ import annotations

import os
import statistics
import sys

import cpu
import distributed_cpu
import driver
import ratios
import trainers
from trainers import Measurement, Workload

WORKLOADS = cpu.WORKLOADS | {
    "fsdp-long": distributed_cpu.on_ranks(distributed_cpu.LONG),
    "fsdp-short": distributed_cpu.on_ranks(distributed_cpu.SHORT),
}
SPEED_BAR = 0.98  # what a change that is not about speed may cost
MEMORY_BAR = 1.02


def rows_of(work: Workload, runs: list[tuple[Measurement, Measurement]]) -> list[ratios.Row]:
    """Speed and peak memory, of several ranks the largest one's, of the first build as ratios to the second's."""
    title = f"{work.title}, fsdp {work.ranks}" if work.ranks > 1 else work.title
    seconds = [statistics.median(run[which].step_seconds for run in runs) for which in (0, 1)]
    peaks = [statistics.median(run[which].peak_bytes for run in runs) for which in (0, 1)]
    speed = [other.step_seconds / ours.step_seconds for ours, other in runs]
    memory = [ours.peak_bytes / other.peak_bytes for ours, other in runs]
    rates = [f"{work.tokens / median:,.0f} tokens/s" for median in seconds]
    sizes = [f"{peak / 2**20:,.0f} MiB" for peak in peaks]
    return [
        ratios.Row(f"training step, {title}", *rates, speed, SPEED_BAR, True),
        ratios.Row(f"peak memory, {title}", *sizes, memory, MEMORY_BAR, False),
    ]


def measured(binary: str, other: str, work: Workload, pairs: int) -> list[tuple[Measurement, Measurement]]:
    runs = ratios.interleaved(pairs, lambda: trainers.titan(binary, work), lambda: trainers.titan(other, work))
    for ours, theirs in runs:
        if ours.parameters != theirs.parameters:
            raise SystemExit(f"the models differ: {ours.parameters} and {theirs.parameters} parameters")
    return runs


def main() -> int:
    description = "Speed and memory of a training step: ratios of one build of titan_train to another."
    arguments = driver.parse(
        "scripts/bench/against.sh",
        description,
        list(WORKLOADS),
        lambda parser: parser.add_argument("other", help="the other build's titan_train"),
    )
    if arguments.record:
        raise SystemExit("--record keeps ratios to other programs, not to another build")
    if not os.access(arguments.other, os.X_OK):
        raise SystemExit(f"no program at {arguments.other}")
    other = os.path.abspath(arguments.other)
    pairs = 1 if arguments.quick else arguments.pairs
    print(f"{driver.machine()}\n{pairs} interleaved pairs a row, 2 threads", flush=True)
    rows = []
    for work in driver.chosen(WORKLOADS, arguments):
        rows += rows_of(work, measured(arguments.binary, other, work, pairs))
    print(f"\n{ratios.table(rows, other='the other build')}", flush=True)
    return driver.verdict(rows, arguments)


if __name__ == "__main__":
    sys.exit(main())

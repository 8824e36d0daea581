"""Driver of scripts/bench/cpu.sh: measures, compares, prints the table. Imports no torch, see trainers.run."""

from __future__ import annotations

import dataclasses
import statistics
import sys

import driver
import ratios
import trainers
from trainers import Measurement, Workload

# Warm-up and measured steps are many enough that a process measures some seconds.
WORKLOADS = {
    "long-float32": Workload(8, 512, "float32", warm_up=3, measured=6),
    "long-bfloat16": Workload(8, 512, "bfloat16", warm_up=3, measured=6),
    "short-float32": Workload(1, 64, "float32", warm_up=20, measured=150),
    "short-bfloat16": Workload(1, 64, "bfloat16", warm_up=20, measured=150),
}
SPEED_BARS = {512: 1.05, 64: 1.5}
MEMORY_BAR = 0.8
CONFIG_ERROR_SECONDS = 1.0
DATA_WAIT_PERCENT = 1.0


def training_rows(binary: str, work: Workload, pairs: int) -> list[ratios.Row]:
    """Speed, memory and data wait of one workload."""
    results: list[tuple[Measurement, Measurement]] = ratios.interleaved(
        pairs, lambda: trainers.titan(binary, work), lambda: trainers.python(work)
    )
    for ours, theirs in results:
        if ours.parameters != theirs.parameters:
            raise SystemExit(f"the models differ: {ours.parameters} and {theirs.parameters} parameters")

    def rate(which: int) -> str:
        seconds = statistics.median(pair[which].step_seconds for pair in results)
        return f"{work.tokens / seconds:,.0f} tokens/s"

    def peak(which: int) -> str:
        return f"{statistics.median(pair[which].peak_bytes for pair in results) / 2**20:,.0f} MiB"

    speed = [theirs.step_seconds / ours.step_seconds for ours, theirs in results]
    memory = [ours.peak_bytes / theirs.peak_bytes for ours, theirs in results]
    waits = [100 * ours.wait_share for ours, _ in results]
    rows = [ratios.Row(f"training step, {work.title}", rate(0), rate(1), speed, SPEED_BARS[work.length], True)]
    if work.length == 512:
        rows.append(ratios.Row(f"peak memory, {work.title}", peak(0), peak(1), memory, MEMORY_BAR, False))
    waited = f"{statistics.median(waits):.2g} %"
    rows.append(ratios.Row(f"data wait share, {work.title}", waited, "", waits, DATA_WAIT_PERCENT, False, " %"))
    return rows


def config_error_row(binary: str, pairs: int) -> ratios.Row:
    samples = [trainers.seconds_to_config_error(binary) for _ in range(pairs)]
    shown = f"{statistics.median(samples):.2g} s"
    return ratios.Row("config error to exit", shown, "", samples, CONFIG_ERROR_SECONDS, False, " s")


def main() -> int:
    names = [*WORKLOADS, "config-error"]
    arguments = driver.parse("scripts/bench/cpu.sh", "Ratios to an eager Python trainer.", names)
    pairs = 1 if arguments.quick else arguments.pairs
    print(f"{driver.machine()}\n{pairs} interleaved pairs a row, 2 threads", flush=True)
    rows = []
    for name, work in WORKLOADS.items():
        if name not in arguments.rows:
            continue
        if arguments.quick:
            work = dataclasses.replace(work, warm_up=1, measured=2)
        print(f"measuring {work.title}", file=sys.stderr, flush=True)
        rows += training_rows(arguments.binary, work, pairs)
    if "config-error" in arguments.rows:
        rows.append(config_error_row(arguments.binary, pairs))
    print(f"\n{ratios.table(rows)}", flush=True)
    return driver.verdict(rows, arguments)


if __name__ == "__main__":
    sys.exit(main())

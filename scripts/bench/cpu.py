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
MODES = ["eager", "compiled"]
AGAINST = "{} PyTorch 2.11"
SPEED_BAR = 1.6  # against the faster mode
MEMORY_BAR = 0.8
CONFIG_ERROR_SECONDS = 1.0
DATA_WAIT_PERCENT = 1.0


def measured(binary: str, work: Workload, pairs: int) -> dict[str, list[Measurement]]:
    """titan_train and both modes of the baseline, one of each in every pair."""

    def python() -> list[Measurement]:
        return [trainers.python(work, mode) for mode in MODES]

    results = ratios.interleaved(pairs, lambda: trainers.titan(binary, work), python)
    for ours, theirs in results:
        if ours.parameters != theirs[0].parameters:
            raise SystemExit(f"the models differ: {ours.parameters} and {theirs[0].parameters} parameters")
    modes = {mode: [theirs[place] for _, theirs in results] for place, mode in enumerate(MODES)}
    return {"titan": [ours for ours, _ in results]} | modes


def training_rows(work: Workload, runs: dict[str, list[Measurement]]) -> list[ratios.Row]:
    """Speed against the mode with the lower ratio, which is recorded, and against the other; memory against the mode with the
    higher one; data wait. The ratio of a mode is the median over the pairs: on a busy machine the medians of seconds may be
    in another order."""

    def seconds(who: str) -> float:
        return statistics.median(run.step_seconds for run in runs[who])

    def peak(who: str) -> float:
        return statistics.median(run.peak_bytes for run in runs[who])

    def speed_row(mode: str) -> ratios.Row:
        speed = [theirs.step_seconds / ours.step_seconds for ours, theirs in zip(runs["titan"], runs[mode])]
        shown = [f"{work.tokens / seconds(who):,.0f} tokens/s" for who in ("titan", mode)]
        against = AGAINST.format(mode)
        return ratios.Row(f"training step, {work.title}", shown[0], f"{shown[1]}, {mode}", speed, SPEED_BAR, True, against=against)

    def memory_row(mode: str) -> ratios.Row:
        memory = [ours.peak_bytes / theirs.peak_bytes for ours, theirs in zip(runs["titan"], runs[mode])]
        shown = [f"{peak(who) / 2**20:,.0f} MiB" for who in ("titan", mode)]
        against = AGAINST.format(mode)
        return ratios.Row(f"peak memory, {work.title}", shown[0], f"{shown[1]}, {mode}", memory, MEMORY_BAR, False, against=against)

    fast, slow = sorted(map(speed_row, MODES), key=lambda row: row.median)
    rows = [dataclasses.replace(fast, key=f"cpu/step/{work.key}"), slow]
    if work.length == 512:
        small = max(map(memory_row, MODES), key=lambda row: row.median)
        rows.append(dataclasses.replace(small, key=f"cpu/memory/{work.key}"))
    waits = [100 * run.wait_share for run in runs["titan"]]
    waited = f"{statistics.median(waits):.2g} %"
    rows.append(ratios.Row(f"data wait share, {work.title}", waited, "", waits, DATA_WAIT_PERCENT, False, " %"))
    return rows


def config_error_row(binary: str, pairs: int) -> ratios.Row:
    samples = [trainers.seconds_to_config_error(binary) for _ in range(pairs)]
    shown = f"{statistics.median(samples):.2g} s"
    return ratios.Row("config error to exit", shown, "", samples, CONFIG_ERROR_SECONDS, False, " s")


def main() -> int:
    names = [*WORKLOADS, "config-error"]
    description = "Ratios to PyTorch, eager and compiled (scripts/gpu/baseline.py)."
    arguments = driver.parse("scripts/bench/cpu.sh", description, names)
    pairs = 1 if arguments.quick else arguments.pairs
    print(f"{driver.machine()}\n{pairs} interleaved pairs a row, 2 threads", flush=True)
    rows = []
    for work in driver.chosen(WORKLOADS, arguments):
        rows += training_rows(work, measured(arguments.binary, work, pairs))
    if "config-error" in arguments.rows:
        rows.append(config_error_row(arguments.binary, pairs))
    print(f"\n{ratios.table(rows)}", flush=True)
    return driver.verdict(rows, arguments)


if __name__ == "__main__":
    sys.exit(main())

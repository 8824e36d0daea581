"""Driver of scripts/bench/cpu.sh: measures, compares, prints the table. Imports no torch, see trainers.run."""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import platform
import statistics
import subprocess
import sys

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
OTHER_ROWS = ("config-error", "encode")


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


def run_encode(binary: str, pairs: int, check: bool) -> bool:
    """The tokenizer's row is a program of its own and prints its own table. False when it failed."""
    script = pathlib.Path(__file__).with_name("encode.py")
    command = [sys.executable, str(script), "--binary", binary, "--pairs", str(pairs)]
    return subprocess.run(command + ["--check"] * check).returncode == 0


def machine() -> str:
    model = platform.processor() or platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    load = os.getloadavg()[0]
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f} at start"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench/cpu.sh", description="Ratios to an eager Python trainer.")
    names = [*WORKLOADS, *OTHER_ROWS]
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs per row (default 7)")
    parser.add_argument("--rows", default=",".join(names), help=f"comma-separated, of {', '.join(names)}")
    parser.add_argument("--binary", help="the titan_train to measure; default: the built one")
    parser.add_argument("--default-binary", default=os.environ.get("TITAN_BINARY"), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one pair, two measured steps: does it run at all?")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    arguments = parser.parse_args()
    arguments.rows = arguments.rows.split(",")
    if unknown := set(arguments.rows) - set(names):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    arguments.binary = arguments.binary or arguments.default_binary
    if not arguments.binary or not os.access(arguments.binary, os.X_OK):
        parser.error(f"no program at {arguments.binary}: build it, or name it with --binary")
    arguments.binary = os.path.abspath(arguments.binary)
    if arguments.pairs < 1:
        parser.error("--pairs must be at least 1")
    return arguments


def main() -> int:
    arguments = parse()
    pairs = 1 if arguments.quick else arguments.pairs
    print(f"{machine()}\n{pairs} interleaved pairs a row, 2 threads", flush=True)
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
    if rows:
        print(f"\n{ratios.table(rows)}", flush=True)
    check = arguments.check and not arguments.quick
    encode_failed = "encode" in arguments.rows and not run_encode(arguments.binary, pairs, check)
    if arguments.quick:
        print("--quick: these numbers mean nothing")
        return 1 if encode_failed else 0
    missed = [row.what for row in rows if not row.met]
    print(f"\n{len(rows) - len(missed)} of {len(rows)} bars met" + "".join(f"\nmissed: {what}" for what in missed))
    return 1 if encode_failed or (missed and arguments.check) else 0


if __name__ == "__main__":
    sys.exit(main())

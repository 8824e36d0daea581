"""Driver of scripts/bench/control_plane.sh: counts of rank 0 by number of ranks, and the line through them."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile

import driver

FAR = 16384
PLANS = (64, 256, 1024, 4096, FAR)
# A phase may need this much more for each rank at the largest number of ranks than at the smallest: ranks have more digits.
GROWTH = 1.1
COUNTS = ("received", "received_bytes", "sent", "sent_bytes")


def lines_of(command: list[str]) -> list[dict]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"exit {done.returncode} from\n{' '.join(command)}\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def phases(binary: str, ranks: int, per_process: int) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        return lines_of([binary, "ranks", str(ranks), str(per_process), os.path.join(folder, "checkpoints")])


def line_through(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Constant and slope by least squares."""
    count = len(points)
    mean_x = sum(x for x, _ in points) / count
    mean_y = sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return mean_y - slope * mean_x, slope


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def each(value: float, line: dict) -> float:
    """For each rank but rank 0, and each time."""
    return value / (line["ranks"] - 1) / line["times"]


def phase_table(runs: list[list[dict]]) -> list[str]:
    rows = [
        "| phase | ranks | messages to / from rank 0, each rank | bytes to / from, each rank | processor time of rank 0 | time |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for position, first in enumerate(runs[0]):
        if first["phase"] == "end":
            continue
        for run in runs:
            line = run[position]
            to, to_bytes, back, back_bytes = (each(line[key], line) for key in COUNTS)
            rows.append(
                f"| {line['phase']} | {line['ranks']:,} | {number(to)} / {number(back)} | {number(to_bytes)} / {number(back_bytes)} "
                f"| {line['processor_seconds'] / line['times']:.3f} s | {line['seconds'] / line['times']:.2f} s |"
            )
    return rows


def fit_table(runs: list[list[dict]]) -> list[str]:
    rows = [f"| of rank 0 | formula for N ranks | {FAR:,} ranks |", "|---|---|---:|"]

    def row(what: str, points: list[tuple[float, float]], unit: str) -> None:
        constant, slope = line_through(points)
        rows.append(f"| {what} | {number(constant)} + {number(slope)} N {unit} | {number(constant + slope * FAR)} {unit} |")

    for position, first in enumerate(runs[0]):
        if first["phase"] in ("end", "idle"):
            continue
        of_phase = [run[position] for run in runs]
        for what, keys, unit in (
            ("messages", ("received", "sent"), ""),
            ("bytes", ("received_bytes", "sent_bytes"), "B"),
            ("processor time", ("processor_seconds",), "s"),
        ):
            points = [(line["ranks"], sum(line[key] for key in keys) / line["times"]) for line in of_phase]
            row(f"{first['phase']}: {what}", points, unit)
    saved = [next(line for line in run if line["phase"] == "save") for run in runs]
    row("heap after the first save", [(line["ranks"], line["live"]) for line in saved], "B")
    row("sockets", [(line["ranks"], line["sockets"]) for line in saved], "")
    return rows


def plan_table(binary: str, sizes: tuple[int, ...]) -> list[str]:
    rows = ["| ranks | shards | rank | its writes | heap kept | heap at most | processor time |", "|---:|---:|---:|---:|---:|---:|---:|"]
    for ranks in sizes:
        for shards in sorted({min(ranks, 256), ranks}):
            for rank in (0, 1):
                (line,) = lines_of([binary, "plan", str(ranks), str(shards), str(rank)])
                rows.append(
                    f"| {ranks:,} | {shards:,} | {rank} | {line['writes']:,} | {line['live'] / 2**20:,.1f} MiB "
                    f"| {line['peak'] / 2**20:,.1f} MiB | {line['processor_seconds']:.2f} s |"
                )
    return rows


def index_table(binary: str, sizes: tuple[int, ...]) -> list[str]:
    """Bytes for each entry of .metadata: by many entries, since some megabytes are needed for any number."""
    rows = ["| entries of .metadata | file | index in memory | more, to write | more, to read |", "|---:|---:|---:|---:|---:|"]
    for shards in sizes:
        (line,) = lines_of([binary, "index", "100", str(shards)])
        cells = (f"{line[key] / line['entries']:,.0f} B" for key in ("file", "held", "to_write", "to_read"))
        rows.append(f"| {line['entries']:,} | {' | '.join(cells)} |")
    return rows


def problems_of(runs: list[list[dict]]) -> list[str]:
    """What grows faster than the number of ranks."""
    found = []
    for few, many in zip(runs[0], runs[-1]):
        if few["phase"] == "end":
            continue
        for key in COUNTS:
            less, more = each(few[key], few), each(many[key], many)
            slack = 1 if key.endswith("bytes") is False else 200
            if more > GROWTH * less + slack:
                found.append(f"{few['phase']}: {key} for each rank: {number(less)} at {few['ranks']}, {number(more)} at {many['ranks']}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench/control_plane.sh", description=__doc__)
    parser.add_argument("--ranks", default="64,256,1024", help="numbers of ranks (default 64,256,1024)")
    parser.add_argument("--per-process", type=int, default=16, help="ranks as threads of one process (default 16)")
    parser.add_argument("--binary", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="8 and 24 ranks, small plans: does it run at all?")
    parser.add_argument("--check", action="store_true", help="exit 1 when a count grows faster than the number of ranks")
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.binary)
    sizes = (8, 24) if arguments.quick else tuple(int(word) for word in arguments.ranks.split(","))
    per_process = 4 if arguments.quick else arguments.per_process
    print(f"{driver.machine()}; {per_process} ranks a process, rank 0 in a process of its own\n")
    runs = [phases(binary, ranks, per_process) for ranks in sizes]
    plans = plan_table(binary, (64,) if arguments.quick else PLANS)
    tables = (phase_table(runs), fit_table(runs), plans, index_table(binary, sizes))
    print("\n\n".join("\n".join(table) for table in tables))
    found = problems_of(runs)
    for problem in found:
        print(f"\ngrows: {problem}")
    return 1 if arguments.check and found else 0


if __name__ == "__main__":
    sys.exit(main())

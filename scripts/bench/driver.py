"""What the benchmark drivers share: their command line, the machine's line, the verdict. Imports no torch."""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import sys
from collections.abc import Callable

import ratios
import records


def processor() -> str:
    model = platform.processor() or platform.machine()
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {os.cpu_count()} cores"


def machine() -> str:
    return f"{processor()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at start"


def parse(
    program: str,
    description: str,
    names: list[str],
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=program, description=description)
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs per row (default 7)")
    parser.add_argument("--rows", default=",".join(names), help=f"comma-separated, of {', '.join(names)}")
    parser.add_argument("--binary", help="the program to measure; default: the built one")
    parser.add_argument("--default-binary", default=os.environ.get("TITAN_BINARY"), help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one pair, two measured steps: does it run at all?")
    parser.add_argument("--check", action="store_true", help="exit 1 when a median misses its bar")
    parser.add_argument("--record", action="store_true", help="add the results to docs/benchmarks/records.jsonl and its tables")
    add_options(parser)
    arguments = parser.parse_args()
    arguments.rows = arguments.rows.split(",")
    if unknown := set(arguments.rows) - set(names):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if arguments.binary and arguments.record:
        parser.error("--record with --binary, which may be the program of another commit: leave --binary out, and this script builds HEAD's")
    arguments.binary = arguments.binary or arguments.default_binary
    if not arguments.binary or not os.access(arguments.binary, os.X_OK):
        parser.error(f"no program at {arguments.binary}: build it, or name it with --binary")
    arguments.binary = os.path.abspath(arguments.binary)
    if arguments.pairs < 1:
        parser.error("--pairs must be at least 1")
    if arguments.quick and arguments.record:
        parser.error("--quick measures nothing that --record could keep")
    if arguments.record and (reason := records.refusal(arguments.binary, arguments.pairs)):
        parser.error(reason)
    arguments.commit = records.head() if arguments.record else ""  # now: a later commit is not what is measured
    return arguments


def chosen(workloads: dict, arguments: argparse.Namespace):
    """The workloads among --rows, shortened by --quick, each announced when its turn comes."""
    for name, work in workloads.items():
        if name in arguments.rows:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            yield work.shortened(arguments.quick)


def verdict(rows: list[ratios.Row], arguments: argparse.Namespace) -> int:
    """Says which bars were missed and which are undecided, or that a quick run cannot tell, and keeps the records that are
    asked for; the exit code, for which the median of an undecided row counts."""
    if arguments.quick:
        print("--quick: these numbers mean nothing")
        return 0
    if arguments.record:
        for row in filter(lambda row: row.key, rows):
            records.append(row.key, row.against, row.samples, row.median, processor(), arguments.commit)
        records.write()
    met = [row for row in rows if row.met and not row.undecided]
    print(f"\n{len(met)} of {len(rows)} bars met")
    for row in rows:
        if row not in met:
            median = f", median {'met' if row.met else 'missed'}" if row.undecided else ""
            print(f"{row.verdict()}{median}: {row.what}")
    return 1 if arguments.check and not all(row.met for row in rows) else 0

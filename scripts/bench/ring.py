"""Driver of scripts/bench/ring.sh: ring attention of two ranks against one process on the same number of threads."""

from __future__ import annotations

import statistics
import subprocess
import sys

import driver
import ratios

TOKENS, HEADS, HEAD_DIM, THREADS = 16384, 8, 64, 2
BAR = 0.95
KERNELS = {"single": "titan's kernel", "libtorch": "LibTorch's SDPA"}
ROWS = (("allgather", "single"), ("alltoall", "single"), ("allgather", "libtorch"), ("alltoall", "libtorch"))


def seconds(binary: str, mode: str, tokens: int) -> float:
    """Forward and backward of one attention, in a process of its own (of two)."""
    command = [binary, mode, str(tokens), str(HEADS), str(HEAD_DIM), str(THREADS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"exit {done.returncode} from\n{' '.join(command)}\n{done.stderr[-2000:]}")
    return float(done.stdout)


def row(binary: str, mode: str, other: str, pairs: int, tokens: int) -> ratios.Row:
    results = ratios.interleaved(pairs, lambda: seconds(binary, mode, tokens), lambda: seconds(binary, other, tokens))

    def shown(which: int) -> str:
        return f"{statistics.median(pair[which] for pair in results):.2f} s"

    speed = [single / ring for ring, single in results]
    what = f"ring attention cp 2, {mode}, {tokens:,} tokens"
    told = {"key": f"ring/{mode}", "against": "the same kernel in one process of 2 threads"} if other == "single" else {}
    return ratios.Row(what, shown(0), f"{shown(1)}, {KERNELS[other]}", speed, BAR, True, **told)


def main() -> int:
    arguments = driver.parse("scripts/bench/ring.sh", "Ring attention against one process.", list(dict(ROWS)))
    pairs, tokens = (1, 1024) if arguments.quick else (arguments.pairs, TOKENS)
    print(f"{driver.machine()}; {pairs} interleaved pairs a row, {THREADS} threads")
    rows = [row(arguments.binary, *each, pairs, tokens) for each in ROWS if each[0] in arguments.rows]
    print(f"\n{ratios.table(rows, 'one process')}")
    return driver.verdict(rows, arguments)


if __name__ == "__main__":
    sys.exit(main())

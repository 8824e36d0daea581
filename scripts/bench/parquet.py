"""Reading Parquet: `titan_train data stats` against `datasets` streaming with pyarrow held to one thread, and memory.

    python scripts/bench/parquet.py --binary build/release/titan_train [--pairs 7] [--quick] [--check]

200 MB of text in documents of 2 KB, zstd, in row groups of 25 MB. Both read every document on one core; titan_train's
start and end are in its time; of Python only the loop over the documents is measured. --quick takes 20 MB.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import ratios

WRITE = """
import sys
import pyarrow, pyarrow.parquet
lines = open(sys.argv[1], encoding="utf-8").read().split("\\0")
table = pyarrow.table({"id": range(len(lines)), "text": lines})
pyarrow.parquet.write_table(table, sys.argv[2], row_group_size=int(sys.argv[3]), compression="zstd")
"""
READ = """
import sys, time
import pyarrow, datasets
pyarrow.set_cpu_count(1)
pyarrow.set_io_thread_count(1)
rows = datasets.load_dataset("parquet", data_files=sys.argv[1], split="train", streaming=True, columns=["text"])
began = time.perf_counter()
documents = size = 0
for row in rows:
    documents += 1
    size += len(row["text"].encode())
print(documents, size, time.perf_counter() - began)
"""
# The peak of a child's memory, in KiB.
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
ROWS_IN_GROUP = 12_500


def documents(size: int) -> list[str]:
    """Texts of about 2 KB of words that compress as prose does."""
    chance = random.Random(1)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randrange(2, 9))) for _ in range(20_000)]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    made = []
    while size > 0:
        text = " ".join(chance.choices(words, weights, k=340))
        size -= len(text)
        made.append(text)
    return made


class Bench:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path):
        self.options = options
        self.corpus = folder / "corpus.parquet"
        self.texts = documents((20 if options.quick else 200) * 10**6)
        (folder / "texts").write_text("\0".join(self.texts))
        subprocess.run([sys.executable, "-c", WRITE, folder / "texts", self.corpus, str(ROWS_IN_GROUP)], check=True)
        self.small = folder / "small.parquet"
        (folder / "text").write_text("one document")
        subprocess.run([sys.executable, "-c", WRITE, folder / "text", self.small, "1"], check=True)
        self.size = sum(map(len, self.texts))
        self.core = min(os.sched_getaffinity(0))

    def on_one_core(self, words: list) -> str:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(self.corpus.parent / "cache")}
        done = subprocess.run(["taskset", "-c", str(self.core), *map(str, words)], check=True, capture_output=True,
                              text=True, env=environment)  # fmt: skip
        return done.stdout

    def stats(self, corpus: pathlib.Path | None = None) -> list:
        return [self.options.binary, "data", "stats", "--dataset-path", corpus or self.corpus]

    def titan_seconds(self) -> float:
        before = os.times().elapsed
        printed = self.on_one_core(self.stats())
        seconds = os.times().elapsed - before
        if int(re.search(r"documents +([\d,]+)", printed)[1].replace(",", "")) != len(self.texts):
            raise SystemExit(f"titan_train read something else:\n{printed}")
        return seconds

    def python_seconds(self) -> float:
        count, size, seconds = self.on_one_core([sys.executable, "-c", READ, self.corpus]).split()[-3:]
        if (int(count), int(size)) != (len(self.texts), self.size):
            raise SystemExit("datasets read something else")
        return float(seconds)

    def speed(self) -> ratios.Row:
        self.titan_seconds()  # the corpus is in memory then
        pairs = ratios.interleaved(self.options.pairs, self.titan_seconds, self.python_seconds)
        titan, python = zip(*pairs)
        megabytes = self.size / 1e6
        return ratios.Row("read Parquet, zstd, 2 KB documents, one core", f"{megabytes / min(titan):.0f} MB/s",
                          f"{megabytes / min(python):.0f} MB/s", [b / a for a, b in pairs], 3.0, True)  # fmt: skip

    def memory(self) -> ratios.Row:
        """What the process holds beyond one that reads a single row, beside the text of two row groups."""

        def peak(corpus: pathlib.Path) -> float:
            words = [sys.executable, "-c", PEAK, *map(str, self.stats(corpus))]
            printed = subprocess.run(words, check=True, capture_output=True, text=True,
                                     env=os.environ | {"OMP_NUM_THREADS": "1"}).stdout  # fmt: skip
            return int(printed) * 1024 / 1e6

        more = peak(self.corpus) - peak(self.small)
        groups = 2 * ROWS_IN_GROUP * self.size / len(self.texts) / 1e6
        return ratios.Row("memory of reading, beside two row groups", f"{more:.0f} MB", f"{groups:.0f} MB", [more / groups],
                          1.0, False)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Reading Parquet: speed as a ratio, and memory.")
    parser.add_argument("--binary", required=True, help="the titan_train to measure")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs (default 7)")
    parser.add_argument("--quick", action="store_true", help="less text")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="titan-bench-") as folder:
        bench = Bench(options, pathlib.Path(folder))
        rows = [bench.speed(), bench.memory()]
    print(ratios.table(rows, other="datasets"))
    return 1 if options.check and not all(row.met for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

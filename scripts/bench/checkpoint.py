"""Driver of scripts/bench/checkpoint.sh: saves and loads beside dd and Python, compared. Imports no torch."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import driver
import ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Width, blocks, hidden width, vocabulary of a Llama: 2.17, 0.81 and 0.074 GB of weights and moments. The last is that of
# the debug model.
STATES = {"large": (1024, 9, 2816, 32000), "medium": (1024, 4, 2816, 8000), "debug": (256, 6, 768, 2048)}
QUICK = (256, 2, 768, 2048)
DISK_BAR, PYTHON_BAR, STALL_PERCENT, MEMORY_BAR, RESIDENT_BAR = 0.8, 1.5, 10, 1.1, 1.01
SAVES = 100
NAMES = ["disk", "python", "stall", "memory", "resident"]


def parameters(width: int, blocks: int, hidden: int, vocab_size: int) -> list[tuple]:
    shapes = [("tok_embeddings.weight", vocab_size, width)]
    for block in range(blocks):
        name = f"layers.{block}"
        shapes += [(f"{name}.attention.{part}.weight", width, width) for part in ("wq", "wk", "wv", "wo")]
        shapes += [(f"{name}.feed_forward.{part}.weight", hidden, width) for part in ("w1", "w3")]
        shapes += [(f"{name}.feed_forward.w2.weight", width, hidden)]
        shapes += [(f"{name}.{part}.weight", width) for part in ("attention_norm", "ffn_norm")]
    return [*shapes, ("norm.weight", width), ("output.weight", vocab_size, width)]


class Bench:
    """The program that saves, its states as files, and folders to save to."""

    def __init__(self, arguments: argparse.Namespace, folders: dict[str, pathlib.Path]):
        self.binary, self.pairs, self.quick = arguments.binary, arguments.pairs, arguments.quick
        self.folders = folders
        for name, sizes in STATES.items():
            lines = [" ".join(map(str, words)) for words in parameters(*(QUICK if self.quick else sizes))]
            self.state(name).write_text("\n".join(lines) + "\n")

    def state(self, name: str) -> pathlib.Path:
        return self.folders["disk"] / f"{name}.txt"

    def place(self, medium: str) -> pathlib.Path:
        """Where checkpoints go; nothing is there, and nothing waits to be written to the disk."""
        place = self.folders[medium] / "checkpoint"
        shutil.rmtree(place, ignore_errors=True)
        if medium == "disk":
            os.sync()
        return place

    def titan(self, what: str, state: str, medium: str, count: int = 1) -> dict:
        return output([self.binary, what, self.state(state), self.place(medium), count])

    def python(self, state: str) -> dict:
        script = ROOT / "scripts" / "bench" / "python_checkpoint.py"
        return output([sys.executable, script, self.state(state), self.place("memory")])

    def dd(self, source: pathlib.Path) -> float:
        copy = self.place("disk")
        start = time.perf_counter()
        words = ["dd", f"if={source}", f"of={copy}", "bs=1M", "conv=fdatasync", "status=none"]
        subprocess.run(words, check=True)
        seconds = time.perf_counter() - start
        copy.unlink()
        return source.stat().st_size / seconds


def output(command: list) -> dict:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"exit {done.returncode} from\n{' '.join(words)}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def rate(values: list[float]) -> str:
    median = statistics.median(values)
    return f"{median / 1e9:.2f} GB/s" if median >= 1e9 else f"{median / 1e6:.0f} MB/s"


def size(count: float) -> str:
    return f"{count / 1e9:.2g} GB"


def disk_rows(bench: Bench) -> list[ratios.Row]:
    """The bytes that dd copies are those of the checkpoint's data files, one behind the other."""
    source = bench.folders["memory"] / "source"
    bench.titan("save", "large", "memory")
    with source.open("wb") as joined:
        for part in sorted((bench.folders["memory"] / "checkpoint").glob("step-*/*.distcp")):
            with part.open("rb") as file:
                shutil.copyfileobj(file, joined, 1 << 20)
            part.unlink()
    count = source.stat().st_size

    def save() -> float:
        return count / bench.titan("save", "large", "disk")["save"]

    results = ratios.interleaved(bench.pairs, save, lambda: bench.dd(source))
    source.unlink()
    what = f"save {size(count)} to disk, hashed, against dd conv=fdatasync"
    ours, theirs = zip(*results)
    return [ratios.Row(what, rate(ours), rate(theirs), [a / b for a, b in results], DISK_BAR, True)]


def python_rows(bench: Bench) -> list[ratios.Row]:
    pairs = ratios.interleaved(
        bench.pairs, lambda: bench.titan("roundtrip", "large", "memory"), lambda: bench.python("large")
    )
    if any(ours["bytes"] != theirs["bytes"] for ours, theirs in pairs):
        raise SystemExit("the states differ")
    count = pairs[0][0]["bytes"]
    rows = []
    for what in ("save", "load"):
        ours, theirs = zip(*((count / a[what], count / b[what]) for a, b in pairs))
        title = f"{what} {size(count)} in memory-backed storage, hashed, against Python"
        samples = [a / b for a, b in zip(ours, theirs)]
        told = {"key": f"checkpoint/{what}", "against": "torch.distributed.checkpoint"}
        rows.append(ratios.Row(title, rate(ours), rate(theirs), samples, PYTHON_BAR, True, **told))
    return rows


def stall_rows(bench: Bench) -> list[ratios.Row]:
    result = bench.titan("stall", "medium", "disk", bench.pairs)
    samples = [100 * a / b for a, b in zip(result["async"], result["sync"])]
    shown = [f"{statistics.median(result[mode]):.3g} s" for mode in ("async", "sync")]
    what = f"stall of an async save of {size(result['bytes'])} to disk, against a synchronous one"
    slower = [100 * (a / b - 1) for a, b in zip(result["beside"], result["alone"])]
    print(
        f"the step of 512 tokens between the save and the next change of its state took {statistics.median(slower):.3g} % "
        f"({min(slower):.3g} to {max(slower):.3g}) longer beside the write than alone",
        flush=True,
    )
    told = {"key": "checkpoint/stall", "against": "a synchronous save"}
    return [ratios.Row(what, shown[0], shown[1], samples, STALL_PERCENT, False, " %", **told)]


def memory_rows(bench: Bench) -> list[ratios.Row]:
    results = [bench.titan("memory", "medium", "memory", 3) for _ in range(bench.pairs)]
    extra = size(statistics.median(result["extra"] for result in results))
    samples = [result["extra"] / result["bytes"] for result in results]
    what = "peak extra memory of async saves, against the bytes of the state"
    return [ratios.Row(what, extra, size(results[0]["bytes"]), samples, MEMORY_BAR, False)]


def resident_rows(bench: Bench) -> list[ratios.Row]:
    results = [bench.titan("resident", "debug", "memory", SAVES) for _ in range(bench.pairs)]
    late, early = (f"{statistics.median(r[when] for r in results) / 2**20:.1f} MiB" for when in ("late", "early"))
    samples = [result["late"] / result["early"] for result in results]
    what = f"resident memory after {SAVES} async saves of the debug model, against that after 5"
    return [ratios.Row(what, late, early, samples, RESIDENT_BAR, False)]


ROWS = dict(zip(NAMES, (disk_rows, python_rows, stall_rows, memory_rows, resident_rows)))


def add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--disk", type=pathlib.Path, help="a folder on the disk to measure; default: the binary's")
    parser.add_argument("--memory", type=pathlib.Path, default="/dev/shm", help="memory-backed (default /dev/shm)")


def main() -> int:
    description = "Checkpoints: ratios to dd and to Python's torch.distributed.checkpoint."
    arguments = driver.parse("scripts/bench/checkpoint.sh", description, NAMES, add_folders)
    arguments.pairs = 1 if arguments.quick else arguments.pairs
    disk = arguments.disk or pathlib.Path(arguments.binary).parent
    print(f"{driver.machine()}\n{arguments.pairs} interleaved pairs a row", flush=True)
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="titan-bench-", dir=disk) as on_disk,
        tempfile.TemporaryDirectory(prefix="titan-bench-", dir=arguments.memory) as in_memory,
    ):
        bench = Bench(arguments, {"disk": pathlib.Path(on_disk), "memory": pathlib.Path(in_memory)})
        for name in arguments.rows:
            print(f"measuring {name}", file=sys.stderr, flush=True)
            rows += ROWS[name](bench)
    print(f"\n{ratios.table(rows, 'compared with')}", flush=True)
    return driver.verdict(rows, arguments)


if __name__ == "__main__":
    sys.exit(main())

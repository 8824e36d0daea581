#!/usr/bin/env python3
"""What benchmarks recorded: docs/benchmarks/records.jsonl, from which README's table and those of the pages are made.

    scripts/bench/records.py            checks that the tables are those of the records; exit 1 where one is not
    scripts/bench/records.py --write    writes them
    scripts/bench/records.py --old      names the records in README that are older than the last change of what they measure;
                                        exit 1 when there are any

A record is one number of one run: key, against (what it is compared with), value, spread (smallest and largest pair),
pairs (their number; the oldest records lack it), date, commit, processor. Most benchmarks add theirs with --record. README
shows the worst of the last three of each key, pages show all. Needs no package.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOWN = 3  # of a key's last records the worst is shown
PAIRS = 7  # of a record, at least
BEGIN, END = "<!-- scripts/bench/records.py --write -->", "<!-- end of records -->"
TRAINING = ["model", "ops", "optimize", "plan", "parallel", "train", "text", "corpus", "stream"]
# Decide how fast any part is: LibTorch's version, how it is linked, the compiler's options.
BUILD = ["scripts/libtorch.sh", "cmake/LibTorch.cmake", "cmake/Compiler.cmake"]
# How pairs are run; the versions of the Python packages; what both programs train.
METHOD = ["scripts/bench/ratios.py"]
AGAINST_PYTHON = [*METHOD, "tests/reference/requirements.txt"]
DEBUG_MODEL = ["scripts/bench/trainers.py", "configs/debug_model.toml", "configs/corpora/stories.jsonl", "configs/tokenizers/stories.model"]
STEPS = [*AGAINST_PYTHON, *DEBUG_MODEL, "scripts/gpu/baseline.py"]
# May differ from HEAD when a record is made: --record itself writes them, and they are no part of what is measured.
PAGES = ["docs", "README.md"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """Keys that begin with `prefix`."""

    prefix: str
    page: str
    form: str  # of a value
    parts: list[str]  # of the program, which are measured
    method: list[str]  # files that decide how, and what it is compared with
    higher_is_better: bool = True

    @property
    def paths(self) -> list[str]:
        """A change of any of these makes a record old."""
        return [*(f"{folder}/{part}" for part in self.parts for folder in ("src", "include/titan")), *BUILD, *self.method]


@dataclasses.dataclass(frozen=True)
class Row:
    """Of README: one result for each key."""

    what: str
    keys: list[str]


KINDS = [
    Kind("cpu/step/", "cpu", "{:.3g}×", TRAINING, ["scripts/bench/cpu.py", *STEPS]),
    Kind("cpu/memory/", "cpu", "{:.3g}×", TRAINING, ["scripts/bench/cpu.py", *STEPS], higher_is_better=False),
    Kind("distributed/", "distributed_cpu", "{:.3g}×", [*TRAINING, "distributed"], ["scripts/bench/distributed_cpu.py", *STEPS]),
    Kind("ring/", "parallel_cpu", "{:.3g}×", ["ops", "distributed"], ["scripts/bench/ring.py", "tests/bench/ring_attention.cpp", *METHOD]),
    Kind("pipeline/", "parallel_cpu", "{:.3g}×", [*TRAINING, "distributed", "schedule"], ["scripts/bench/pipeline.py", *METHOD, *DEBUG_MODEL]),
    Kind("generate/", "generate", "{:.3g}×", ["model", "ops"],
         ["src/train/generate.cpp", "include/titan/train/generate.h", "scripts/bench/generate.py", *AGAINST_PYTHON]),
    Kind("data/encode/", "data", "{:.3g}×", ["text", "corpus"],
         ["scripts/bench/tokenizer_speed.py", "configs/tokenizers/stories.model", *AGAINST_PYTHON]),
    Kind("checkpoint/stall", "checkpoint", "{:.2g} % of its time", ["checkpoint"],
         ["scripts/bench/checkpoint.py", "tests/bench/checkpoint.cpp", *METHOD], higher_is_better=False),
    Kind("checkpoint/", "checkpoint", "{:.3g}×", ["checkpoint"],
         ["scripts/bench/checkpoint.py", "scripts/bench/python_checkpoint.py", "tests/bench/checkpoint.cpp", *AGAINST_PYTHON]),
    Kind("reliability/", "reliability", "{:,.0f} with the same bits", ["checkpoint", "distributed", "train"],
         ["scripts/chaos.py", "configs/debug_model.toml"]),
]  # fmt: skip
ROWS = [
    Row("speed of a training step, 8 × 512 tokens, fp32 / bf16", ["cpu/step/8x512/float32", "cpu/step/8x512/bfloat16"]),
    Row("speed of a training step, 1 × 64 tokens, fp32 / bf16", ["cpu/step/1x64/float32", "cpu/step/1x64/bfloat16"]),
    Row("peak memory, 8 × 512 tokens, fp32 / bf16", ["cpu/memory/8x512/float32", "cpu/memory/8x512/bfloat16"]),
    Row("speed of FSDP on 2 ranks, 8 × 512 / 2 × 64 tokens, fp32", ["distributed/fsdp/8x512", "distributed/fsdp/2x64"]),
    Row("speed of ring attention on 2 ranks, 16,384 tokens, by all-gather / all-to-all", ["ring/allgather", "ring/alltoall"]),
    Row("speed of a pipeline on 2 ranks, Interleaved1F1B / 1F1B", ["pipeline/Interleaved1F1B", "pipeline/1F1B"]),
    Row("speed of generation, 1B shape, each token, fp32 / bf16", ["generate/token/float32", "generate/token/bfloat16"]),
    Row("the same, 1,024 tokens to the first, fp32 / bf16", ["generate/first/float32", "generate/first/bfloat16"]),
    Row("speed of encoding text, tiktoken / SentencePiece BPE", ["data/encode/tiktoken", "data/encode/SentencePiece"]),
    Row("speed of saving / loading 2.2 GB in memory-backed storage", ["checkpoint/save", "checkpoint/load"]),
    Row("stall of an async save", ["checkpoint/stall"]),
    Row("kills of a rank, resumed by the same command", ["reliability/kills"]),
]


def kind_of(key: str) -> Kind:
    return next(kind for kind in KINDS if key.startswith(kind.prefix))


def read(root: pathlib.Path = ROOT) -> list[dict]:
    lines = (root / "docs" / "benchmarks" / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def git(root: pathlib.Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True).stdout


def head(root: pathlib.Path = ROOT) -> str:
    """The commit that is checked out."""
    return git(root, "rev-parse", "--short", "HEAD").strip()


def is_built_from(root: pathlib.Path, binary: str) -> bool:
    """Whether `binary` is in the checkout's build folder, and that was made from this checkout (it may be a link)."""
    build = (root / "build" / "release").resolve()
    cache = build / "CMakeCache.txt"
    home = f"\nCMAKE_HOME_DIRECTORY:INTERNAL={root.resolve()}\n"
    return pathlib.Path(binary).resolve().parent == build and cache.exists() and home in cache.read_text()


def refusal(binary: str, pairs: int, root: pathlib.Path = ROOT) -> str:
    """Why what `binary` shows in so many pairs is no record of the commit that is checked out; empty: it is one."""
    if pairs < PAIRS:
        return f"--record with {pairs} of at least {PAIRS} pairs: leave --pairs out, or give {PAIRS} or more"
    if not is_built_from(root, binary):
        return f"--record of {binary}, which {root / 'build/release'} did not build: start the benchmark's .sh without --binary"
    if not (root / ".git").exists():
        return f"--record outside of a git checkout, where no commit is known: clone the repository instead of copying {root}"
    excluded = [f":(exclude){page}" for page in PAGES]
    changed = [line[3:] for line in git(root, "status", "--porcelain", "--", ".", *excluded).splitlines()]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return f"--record in a checkout whose {changed[0]}{more} differs from HEAD: commit or remove the changes, and measure again"
    return ""


def append(
    key: str, against: str, samples: list[float], median: float, processor: str, commit: str, root: pathlib.Path = ROOT
) -> None:
    """Adds what was measured now, of `commit`."""
    kind_of(key)
    record = {"key": key, "against": against, "value": float(f"{median:.3g}")}
    record["spread"] = [float(f"{sample:.3g}") for sample in (min(samples), max(samples))]
    record |= {"pairs": len(samples), "date": str(datetime.date.today()), "commit": commit, "processor": processor}
    with (root / "docs" / "benchmarks" / "records.jsonl").open("a") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")


def shown(records: list[dict], key: str) -> dict:
    """The worst of the key's last records."""
    worst = min if kind_of(key).higher_is_better else max
    return worst([record for record in records if record["key"] == key][-SHOWN:], key=lambda record: record["value"])


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(cells)} |" for cells in rows)]


def readme_lines(records: list[dict]) -> list[str]:
    rows = []
    for row in ROWS:
        worst = [shown(records, key) for key in row.keys]

        def each(text: list[str]) -> str:
            return " / ".join(dict.fromkeys(text))

        results = " / ".join(kind_of(key).form.format(record["value"]) for key, record in zip(row.keys, worst))
        page = kind_of(row.keys[0]).page
        cells = [row.what, each([record["against"] for record in worst]), results]
        cells += [each([f"{record['date']}, {record['processor']}" for record in worst]), f"[{page}](docs/benchmarks/{page}.md)"]
        rows.append(cells)
    return table(["what", "compared with", "result", "recorded", "page"], rows)


def page_lines(records: list[dict], page: str) -> list[str]:
    rows = []
    for record in records:
        kind = kind_of(record["key"])
        if kind.page == page:
            spread = "{:.3g} to {:.3g}".format(*record["spread"])
            spread += f", {record['pairs']} pairs" if "pairs" in record else ""
            cells = [record["key"], record["against"], kind.form.format(record["value"]), spread]
            rows.append([*cells, record["processor"], record["date"], record["commit"]])
    return table(["record", "compared with", "median", "spread", "processor", "date", "commit"], rows)


def with_table(text: str, lines: list[str]) -> str:
    """`text` with the lines between its two marks. Throws ValueError where a mark is missing."""
    before, rest = text.split(f"{BEGIN}\n", 1)
    after = rest.split(END, 1)[1]
    return "\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"])


def documents(root: pathlib.Path = ROOT) -> dict[pathlib.Path, str]:
    """Every document with a table of records, as it must read."""
    records = read(root)
    made = {root / "README.md": readme_lines(records)}
    for page in dict.fromkeys(kind.page for kind in KINDS):
        made[root / "docs" / "benchmarks" / f"{page}.md"] = page_lines(records, page)
    return {path: with_table(path.read_text(), lines) for path, lines in made.items()}


def old_lines(records: list[dict], root: pathlib.Path = ROOT) -> list[str]:
    """Of the record of each key that README shows: how many commits have changed what it measures since."""
    lines = []
    for key in dict.fromkeys(record["key"] for record in records):
        record = shown(records, key)
        command = ["git", "-C", str(root), "log", "--format=%cs", f"{record['commit']}..HEAD", "--", *kind_of(key).paths]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        dates = told.stdout.split()
        said = f"{key}: recorded {record['date']} at {record['commit']}"
        if told.returncode != 0:
            lines.append(f"{said}, which this checkout does not know")
        elif dates:
            number = "1 commit" if len(dates) == 1 else f"{len(dates)} commits"
            lines.append(f"{said}; {number} since then changed what it measures, the last on {dates[0]}")
    return lines


def write(root: pathlib.Path = ROOT) -> None:
    for path, text in documents(root).items():
        path.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Tables of what benchmarks recorded.")
    parser.add_argument("--write", action="store_true", help="write the tables")
    parser.add_argument("--old", action="store_true", help="name those in README that are older than what they measure")
    arguments = parser.parse_args()
    if arguments.old:
        lines = old_lines(read())
        print("\n".join(lines) if lines else "no record in README is older than what it measures")
        return 1 if lines else 0
    if arguments.write:
        write()
        return 0
    differing = [path.relative_to(ROOT) for path, text in documents().items() if path.read_text() != text]
    for path in differing:
        print(f"{path} has another table than docs/benchmarks/records.jsonl gives: run scripts/bench/records.py --write")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

"""Corpora: `titan_train data tokenize` against Python's tokenizers, the .bin loader against memcpy, memory.

    python scripts/bench/data_sources.py --binary build/release/titan_train [--pairs 7] [--quick] [--check]

One table of ratios from interleaved pairs of one run; --quick takes less text.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED_DATA = ROOT.parent / "shared" / "data"
MODEL = ROOT / "configs" / "tokenizers" / "stories.model"

# Reads the same file and writes the same ids: what a person would write with the package, both cores.
PYTHON = """
import json, sys, time
import numpy, tokenizers
from transformers.convert_slow_tokenizer import TikTokenConverter
model, corpus, output, specials = sys.argv[1:5]
tokenizer = TikTokenConverter(vocab_file=model).converted()
bos, eos = int(specials), int(specials) + 1
began = time.perf_counter()
with open(corpus, encoding="utf-8") as lines, open(output, "wb") as out:
    batch = []
    def flush():
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            numpy.array([bos, *encoding.ids, eos], dtype=numpy.uint16).tofile(out)
        batch.clear()
    for line in lines:
        batch.append(json.loads(line)["text"])
        if len(batch) == 1000:
            flush()
    flush()
print(time.perf_counter() - began)
"""


def paragraphs() -> list[str]:
    shakespeare = SHARED_DATA / "tinyshakespeare.txt"
    files = [shakespeare] if shakespeare.exists() else sorted((ROOT / "docs").glob("*.md"))
    return [part for file in files for part in re.split(r"\n\n+", file.read_text()) if part.strip()]


def write_corpus(path: pathlib.Path, size: int) -> None:
    """Records of about 2 KB: paragraphs in random order, numbers between them, until there are `size` bytes."""
    chance, parts = random.Random(1), paragraphs()
    with path.open("w", encoding="utf-8") as out:
        while out.tell() < size:
            text = "\n\n".join(f"{part} {chance.randrange(10**6)}" for part in chance.choices(parts, k=12))
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


class Bench:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path):
        self.options, self.folder = options, folder
        self.corpus = folder / "corpus.jsonl"
        write_corpus(self.corpus, (8 if options.quick else 64) << 20)

    def tokenize(self, corpus: pathlib.Path, output: pathlib.Path) -> subprocess.CompletedProcess:
        words = [self.options.binary, "data", "tokenize", "--tokenizer", MODEL, "--dataset-path", corpus]
        return subprocess.run([*words, "--output", output, "--overwrite"], check=True, capture_output=True, text=True)

    def titan_seconds(self) -> float:
        before = os.times()
        self.tokenize(self.corpus, self.folder / "corpus.bin")
        return os.times().elapsed - before.elapsed

    def python_seconds(self) -> float:
        special = sum(1 for _ in MODEL.open())
        words = [sys.executable, "-c", PYTHON, MODEL, self.corpus, self.folder / "python.bin", str(special)]
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "true"}
        printed = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True, env=environment)
        return float(printed.stdout.splitlines()[-1])

    def tokenization(self) -> ratios.Row:
        self.titan_seconds()  # the corpus is in memory then
        pairs = ratios.interleaved(self.options.pairs, self.titan_seconds, self.python_seconds)
        ours, theirs = (self.folder / name for name in ("corpus.bin", "python.bin"))
        if ours.read_bytes() != theirs.read_bytes():
            raise SystemExit("the two programs wrote different ids")
        size = self.corpus.stat().st_size / 1e6
        titan, python = zip(*pairs)
        return ratios.Row("data tokenize, all cores", f"{size / min(titan):.0f} MB/s", f"{size / min(python):.1f} MB/s",
                          [b / a for a, b in pairs], 5.0, True)

    def loader(self) -> ratios.Row:
        batches = 200 if self.options.quick else 1000
        words = [self.options.loader, self.folder / "corpus.bin", MODEL, str(batches)]
        samples, speeds = [], []
        for _ in range(self.options.pairs):
            printed = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True).stdout.split()
            loader, memcpy = float(printed[1]), float(printed[3])
            samples.append(memcpy / loader)
            speeds.append((batches * 2**20 / loader / 1e9, batches * 2**20 / memcpy / 1e9))
        return ratios.Row(".bin loader, 8 × 8192, against memcpy", f"{max(s[0] for s in speeds):.1f} GB/s",
                          f"{max(s[1] for s in speeds):.1f} GB/s", samples, 0.3, True)

    def memory(self) -> ratios.Row:
        size = (128 if self.options.quick else 2048) << 20
        large = self.folder / "large.jsonl"
        block = self.corpus.read_bytes()
        with large.open("wb") as out:
            while out.tell() < size:
                out.write(block)
        words = [self.options.binary, "data", "tokenize", "--tokenizer", MODEL, "--dataset-path", large]
        script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); " \
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        printed = subprocess.run([sys.executable, "-c", script, *map(str, words), "--output", str(self.folder / "large.bin")],
                                 check=True, capture_output=True, text=True).stdout
        megabytes = int(printed) * 1024 / 1e6
        return ratios.Row(f"peak memory of data tokenize, {size >> 20} MiB", f"{megabytes:.0f} MB", "", [megabytes], 500,
                          False, " MB")


def main() -> int:
    parser = argparse.ArgumentParser(description="Corpora: speed as ratios, and memory.")
    parser.add_argument("--binary", required=True, help="the titan_train to measure")
    parser.add_argument("--loader", help="bench_token_loader; by default beside the binary")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs (default 7)")
    parser.add_argument("--quick", action="store_true", help="less text")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    options = parser.parse_args()
    options.loader = options.loader or pathlib.Path(options.binary).with_name("bench_token_loader")
    with tempfile.TemporaryDirectory(prefix="titan-bench-") as folder:
        bench = Bench(options, pathlib.Path(folder))
        rows = [bench.tokenization(), bench.loader(), bench.memory()]
    print(ratios.table(rows, other="compared with"))
    return 1 if options.check and not all(row.met for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Speed of the tokenizers against the Python packages: encoding on one thread, and training, in one table.

    python scripts/bench/tokenizer_speed.py --binary build/release/titan_train [--pairs 7] [--check]
    python scripts/bench/tokenizer_speed.py --binary build/release/titan_train --only train --megabytes 100 --pairs 3

Models are trained here with the packages, all on the same text, which is also what is encoded. Ratios decide: the pairs
are interleaved, and the fastest of a few repeats counts on both sides. Method: docs/benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import ratios
import sentencepiece
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "reference"))
import tiktoken_reference  # noqa: E402

SHARED_DATA = ROOT.parent / "shared" / "data"
REPEATS = 5
VOCABULARY = 8000
TRAINED_ON = 26  # megabytes


def corpus(folder: pathlib.Path) -> pathlib.Path:
    """Shakespeare's text, or the documentation where that is not there."""
    shared = SHARED_DATA / "tinyshakespeare.txt"
    if shared.exists():
        return shared
    made = folder / "text.txt"
    text = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("**/*.md")))
    made.write_text(text * (1_000_000 // len(text) + 1), encoding="utf-8")
    return made


def long_text(folder: pathlib.Path, megabytes: int) -> pathlib.Path:
    """Text to train on: words of one to four syllables, as frequent as words of a language are, and of a number that
    grows as a language's does (Heaps' law): 200,000 in 26 MB, twice as many in four times the text."""
    chance = random.Random(1)
    syllables = [begin + end for begin in "b c d f g h k l m n p r s t v w z ch sh tr".split() for end in "aeiou"]
    number = round(200_000 * math.sqrt(megabytes / TRAINED_ON))
    words = ["".join(chance.choices(syllables, k=chance.randint(1, 4))) for _ in range(number)]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(number)))
    made = folder / "long.txt"
    with made.open("w") as file:
        while file.tell() < megabytes * 1_000_000:
            file.write(" ".join(chance.choices(words, cum_weights=weights, k=100_000)) + ".\n")
    return made


def titan_encode(binary: str, model: pathlib.Path, text: pathlib.Path) -> float:
    """MB/s of the fastest of REPEATS encodings in one process."""
    words = [binary, "tokenizer", "encode", str(model), str(text), "--measure", str(REPEATS)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return max(float(line.split()[-2]) for line in printed.splitlines())


def package_encode(encode: Callable[[str], object], text: str) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        encode(text)
        seconds.append(time.perf_counter() - began)
    return len(text.encode("utf-8")) / min(seconds) / 1e6


def byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(tiktoken_reference.PATTERN), "isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    return tokenizer


def package_train(text: pathlib.Path, size: int) -> tuple[float, Tokenizer]:
    """1 / seconds, and what was made."""
    tokenizer = byte_level()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    began = time.perf_counter()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train([str(text)], trainer)
    return 1 / (time.perf_counter() - began), tokenizer


def titan_train(binary: str, text: pathlib.Path, size: int, output: pathlib.Path) -> float:
    """1 / seconds, the program's start and end among them."""
    words = [binary, "tokenizer", "train", "--dataset", "text", "--dataset-path", str(text), "--bytes", str(1 << 40)]
    words += ["--vocab-size", str(size + 256), "--output", str(output)]
    output.unlink(missing_ok=True)
    began = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    return 1 / (time.perf_counter() - began)


def row(what: str, bar: float, unit: str, pairs: list[tuple[float, float]]) -> ratios.Row:
    ours, theirs = (f"{statistics.median(column):.3g} {unit}" for column in zip(*pairs))
    return ratios.Row(what, ours, theirs, [mine / other for mine, other in pairs], bar, True)


def encoding(binary: str, count: int, folder: pathlib.Path) -> list[ratios.Row]:
    path = corpus(folder)
    text = path.read_text(encoding="utf-8")
    _, hugging_face = package_train(path, VOCABULARY)
    (folder / "hf").mkdir()
    hugging_face.save(str(folder / "hf" / "tokenizer.json"))
    tiktoken_model = ROOT / "configs" / "tokenizers" / "stories.model"
    kinds = [
        (
            "encode, tiktoken",
            5.0,
            tiktoken_model,
            lambda encoding: lambda t: encoding.encode(t, disallowed_special=()),
            lambda: tiktoken_reference.load(tiktoken_model),
        ),
        ("encode, HF folder", 15.0, folder / "hf", lambda made: made.encode, lambda: hugging_face),
    ]
    for kind in ("bpe", "unigram"):
        prefix = folder / kind
        sentencepiece.SentencePieceTrainer.train(
            input=str(path), model_prefix=str(prefix), vocab_size=VOCABULARY // 2, model_type=kind, minloglevel=2
        )
        model = prefix.with_suffix(".model")
        kinds.append(
            (
                f"encode, SentencePiece {kind}",
                2.0,
                model,
                lambda made: made.encode,
                lambda model=model: sentencepiece.SentencePieceProcessor(model_file=str(model)),
            )
        )
    rows = []
    for what, bar, model, encoder, make in kinds:
        encode = encoder(make())
        pairs = ratios.interleaved(
            count, lambda: titan_encode(binary, model, path), lambda: package_encode(encode, text)
        )
        rows.append(row(what, bar, "MB/s", pairs))
    return rows


def training(binary: str, count: int, folder: pathlib.Path, megabytes: int) -> ratios.Row:
    """Shown in seconds: what a person asks of it is how long it takes."""
    text, size = long_text(folder, megabytes), 4 * VOCABULARY
    pairs = ratios.interleaved(
        count, lambda: titan_train(binary, text, size, folder / "made.model"), lambda: package_train(text, size)[0]
    )
    ours, theirs = (f"{1 / statistics.median(column):.3g} s" for column in zip(*pairs))
    what = f"train {size:,} tokens on {text.stat().st_size / 1e6:.0f} MB"
    return ratios.Row(what, ours, theirs, [mine / other for mine, other in pairs], 1.0, True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Tokenizers' speed as ratios to the Python packages.")
    parser.add_argument("--binary", required=True, help="the titan_train to measure")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs (default 7)")
    parser.add_argument("--only", choices=["encode", "train"], help="leave the other rows out")
    size = f"text to train on (default {TRAINED_ON})"
    parser.add_argument("--megabytes", type=int, default=TRAINED_ON, metavar="N", help=size)
    parser.add_argument("--check", action="store_true", help="exit 1 when a median misses its bar")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if arguments.only != "train":
            rows += encoding(arguments.binary, arguments.pairs, folder)
        if arguments.only != "encode":
            rows.append(training(arguments.binary, arguments.pairs, folder, arguments.megabytes))
    print(f"\n{ratios.table(rows)}")
    return 1 if arguments.check and not all(each.met for each in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

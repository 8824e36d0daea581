"""Encode speed on one thread, titan_train against the Python package tiktoken, in one table.

    python scripts/bench/encode.py --binary build/release/titan_train [--pairs 7] [--text FILE] [--model FILE]

Without the data beside the checkout, the story tokenizer and repeated documentation text are measured instead.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED_DATA = ROOT.parent / "shared" / "data"
sys.path.insert(0, str(ROOT / "tests" / "reference"))
import tiktoken_reference  # noqa: E402

BAR = 5.0
REPEATS = 5  # encodings of the text per sample; the fastest counts on both sides


def titan_speed(binary: str, model: pathlib.Path, text: pathlib.Path) -> float:
    """MB/s of the fastest of REPEATS encodings in one process."""
    words = [binary, "tokenizer", "encode", str(model), str(text), "--measure", str(REPEATS)]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return max(float(line.split()[-2]) for line in printed.splitlines())


def tiktoken_speed(encoding, text: str, size: int) -> float:
    seconds = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        encoding.encode(text, disallowed_special=())
        seconds.append(time.perf_counter() - began)
    return size / min(seconds) / 1e6


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Encode speed as a ratio to Python's tiktoken.")
    parser.add_argument("--binary", required=True, help="the titan_train to measure")
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs (default 7)")
    parser.add_argument("--model", type=pathlib.Path, help="a tiktoken model file")
    parser.add_argument("--text", type=pathlib.Path, help="a UTF-8 text file")
    parser.add_argument("--check", action="store_true", help="exit 1 when the bar is missed")
    return parser.parse_args()


def default_text(folder: pathlib.Path) -> pathlib.Path:
    shakespeare = SHARED_DATA / "tinyshakespeare.txt"
    if shakespeare.exists():
        return shakespeare
    text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    made = folder / "text.txt"
    made.write_text(text * (1_000_000 // len(text) + 1))
    return made


def main() -> int:
    arguments = parse()
    shared_model = SHARED_DATA / "test_tiktoken.model"
    own_model = ROOT / "configs" / "tokenizers" / "stories.model"
    model = arguments.model or (shared_model if shared_model.exists() else own_model)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.text or default_text(pathlib.Path(folder))
        text = path.read_text(encoding="utf-8")
        size = len(text.encode("utf-8"))
        encoding = tiktoken_reference.load(model)
        pairs = ratios.interleaved(
            arguments.pairs,
            lambda: titan_speed(arguments.binary, model, path),
            lambda: tiktoken_speed(encoding, text, size),
        )
    titan, other = (f"{statistics.median(column):.1f} MB/s" for column in zip(*pairs))
    what = f"encode {path.name}, {model.name}"
    row = ratios.Row(what, titan, other, [mine / theirs for mine, theirs in pairs], BAR, True)
    print(f"\n{ratios.table([row])}")
    return 1 if arguments.check and not row.met else 0


if __name__ == "__main__":
    sys.exit(main())

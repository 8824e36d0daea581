"""Compares `titan_train tokenizer encode` and `decode` with the package tiktoken on many kinds of text.

    TITAN_BINARY=build/release/titan_train python tests/reference/tokenizer_oracle.py

Exit 0: all ids and bytes are identical; 77: there is no binary to test. The tokenizers are the project's own and, when
the data beside the checkout is there, its test model too.
"""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
import tempfile

import tiktoken_reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED_DATA = ROOT.parent / "shared" / "data"

# Script → (first, last) of a range of its letters. Characters that only the newest Unicode versions know are avoided:
# the two sides may carry different tables for them.
SCRIPTS = {
    "latin": (0x00C0, 0x017F), "greek": (0x03B1, 0x03C9), "cyrillic": (0x0410, 0x044F), "hebrew": (0x05D0, 0x05EA),
    "arabic": (0x0620, 0x064A), "devanagari": (0x0904, 0x0939), "bengali": (0x0985, 0x098C), "thai": (0x0E01, 0x0E2E),
    "georgian": (0x10D0, 0x10F0), "hangul": (0xAC00, 0xAE00), "hiragana": (0x3041, 0x3093), "han": (0x4E00, 0x5E00),
    "gothic": (0x10330, 0x1034A), "tamil combining": (0x0BBE, 0x0BC2), "ethiopic": (0x1200, 0x1248),
}  # fmt: skip
EMOJI = ["🙂", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "🏴‍☠️", "1️⃣"]
SPACES = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680\u180e\u2000\u2009\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
CONTRACTIONS = ["I'm", "you'LL", "it's", "WE'RE", "don't", "'ſ", "'Re", "'ve", "she'd", "'l", "'rſ", "x'é", "'K"]
NUMBERS = ["1", "12", "123", "1234", "1234567", "٣٤٥٦", "Ⅷ", "½", "²³", "1é2", "三"]
LOOKALIKES = [
    "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|reserved_special_token_7|>", "<|endoftext|>", "<s>",
]  # fmt: skip
MALFORMED = [
    b"\x80", b"\xff", b"\xc0\xaf", b"\xc2", b"\xe0\x80\x80", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x99",
    b"\xf0\x80\x80\x80", b"\xf4\x90\x80\x80", b"\xf5\x80\x80\x80", b"\xe2\x28\xa1", b"\xf0\x28\x8c\xbc",
    b"\xf1\x80\x80\xc3\xa9", b"\xe1\x80\xe2\xf0\x91",
]  # fmt: skip


def word(draw: random.Random, script: str) -> str:
    first, last = SCRIPTS[script]
    return "".join(chr(draw.randint(first, last)) for _ in range(draw.randint(1, 12)))


def mixture(draw: random.Random, length: int) -> str:
    """Everything at once, in random order and mostly without the usual spaces."""
    parts = []
    for _ in range(length):
        kind = draw.randrange(8)
        if kind <= 1:
            parts.append(word(draw, draw.choice(list(SCRIPTS))))
        elif kind == 2:
            parts.append("".join(draw.choices(SPACES, k=draw.randint(1, 4))))
        elif kind == 3:
            parts.append("".join(chr(draw.randrange(0, 0x180)) for _ in range(draw.randint(1, 6))))
        else:
            parts.append(draw.choice([EMOJI, CONTRACTIONS, NUMBERS, LOOKALIKES][kind - 4]))
        parts.append(draw.choice(["", "", " ", "  ", "\n"]))
    return "".join(parts)


def long_runs(draw: random.Random) -> dict[str, str]:
    limit = tiktoken_reference.RUN_CHARACTERS
    block = tiktoken_reference.BLOCK_CHARACTERS
    letters = "".join(draw.choices("abcdefghij", k=3 * limit))
    return {
        "letters without spaces": letters,
        "one letter": "a" * (2 * limit + 7),
        "spaces": " " * (2 * limit + 1) + "x",
        "newlines": "x" + "\n" * (limit + 3),
        "han without spaces": "".join(chr(draw.randint(0x4E00, 0x5E00)) for _ in range(limit + 11)),
        "punctuation": "!?" * limit,
        "a run of exactly the limit": "b" * limit + " " + "b" * (limit + 1) + "\t" + "c" * (limit - 1),
        "separators that only Python calls spaces": ("\x1c" * 100 + "y") * 300 + "\x1f" * (limit + 5),
        "a block's end inside a word": "word " * (block // 5 - 1) + "boundary" * 5 + " é" * limit,
        "a block's end inside a run of beyond-ASCII": "é ü " * (block // 4 - 2) + "ж" * limit,
    }


def cases() -> dict[str, bytes]:
    draw = random.Random(20240605)
    texts: dict[str, str] = {"empty": "", "one space": " ", "one newline": "\n"}
    for script in SCRIPTS:
        texts[script] = " ".join(word(draw, script) for _ in range(400)) + "\n"
    texts["control characters"] = "".join(chr(draw.randrange(0, 32)) for _ in range(4000))
    texts["all of the two-byte range"] = "".join(map(chr, range(1, 0x800)))
    texts["whitespace"] = "".join(draw.choices(SPACES + "a1.", k=8000))
    texts["contractions"] = " ".join(draw.choices(CONTRACTIONS, k=2000))
    texts["numbers"] = "".join(draw.choices(NUMBERS + [" ", "x"], k=2000))
    texts["look-alikes of special tokens"] = "".join(draw.choices(LOOKALIKES + [" ", "text"], k=1000))
    texts["ASCII at random"] = "".join(chr(draw.randrange(128)) for _ in range(60_000))
    texts["code"] = "\n".join(f"    if (x{i} == {i * i}) {{ return a['{i}']->b; }}  // it's {i}" for i in range(500))
    for number in range(8):
        texts[f"mixture {number}"] = mixture(draw, 3000)
    texts |= long_runs(draw)
    data = {name: text.encode("utf-8") for name, text in texts.items()}
    plain = [part.encode("utf-8") for part in ("abc", " ", "é", "漢字", "\n", "🙂")]
    for number in range(4):
        data[f"invalid UTF-8 {number}"] = b"".join(draw.choices(MALFORMED + plain, k=5000))
    data["bytes at random"] = draw.randbytes(50_000)
    data["cut short"] = "ends in the middle of 🙂".encode("utf-8")[:-2]
    shakespeare = SHARED_DATA / "tinyshakespeare.txt"
    if shakespeare.exists():
        data["tinyshakespeare"] = shakespeare.read_bytes()
    else:
        print(f"left out: {shakespeare} is not there")
    return data


class Program:
    """titan_train, asked through files."""

    def __init__(self, binary: str, model: pathlib.Path, folder: pathlib.Path):
        self.binary, self.model, self.file = binary, model, folder / "input"

    def ask(self, command: str, content: bytes) -> bytes:
        self.file.write_bytes(content)
        words = [self.binary, "tokenizer", command, str(self.model), str(self.file)]
        done = subprocess.run(words, capture_output=True, timeout=300)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(words)}: exit {done.returncode}\n{done.stderr.decode()}")
        return done.stdout


def compare(program: Program, encoding, name: str, content: bytes) -> bool:
    text = content.decode("utf-8", "replace")
    wanted = tiktoken_reference.encode(encoding, text)
    printed = program.ask("encode", content)
    got = [int(token) for token in printed.split()]
    if got != wanted:
        at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
        print(f"DIFFERENT {name}: id {at} is {got[at : at + 5]}, tiktoken has {wanted[at : at + 5]} after "
              f"{encoding.decode(wanted[max(0, at - 5) : at])!r}")  # fmt: skip
        return False
    if program.ask("decode", printed) != text.encode("utf-8"):
        print(f"DIFFERENT {name}: the decoded text is not what was encoded")
        return False
    return True


def main() -> int:
    binary = os.environ.get("TITAN_BINARY")
    if not binary:
        print("left out: TITAN_BINARY does not name a titan_train to test")
        return 77
    models = [ROOT / "configs" / "tokenizers" / "stories.model"]
    if (SHARED_DATA / "test_tiktoken.model").exists():
        models.append(SHARED_DATA / "test_tiktoken.model")
    else:
        print(f"left out: {SHARED_DATA / 'test_tiktoken.model'} is not there")
    all_cases = cases()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            encoding = tiktoken_reference.load(model)
            program = Program(os.path.abspath(binary), model, pathlib.Path(folder))
            wrong = [name for name, content in all_cases.items() if not compare(program, encoding, name, content)]
            size = sum(map(len, all_cases.values()))
            right = len(all_cases) - len(wrong)
            print(f"{model.name}: {right} of {len(all_cases)} texts ({size:,} bytes) encoded alike")
            failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Texts that tokenizers are compared on: scripts, emoji, control characters, long runs, look-alikes of special tokens,
invalid UTF-8; and ids at random."""

from __future__ import annotations

import itertools
import os
import pathlib
import random

import tiktoken_reference

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED_DATA = ROOT.parent / "shared" / "data"
BYTES = 5_000_000 if os.environ.get("TITAN_TEST_FULL") else 300_000

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


def generated_text(bytes_wanted: int = BYTES) -> bytes:
    draw = random.Random(7)
    scripts = list(SCRIPTS)
    alike = LOOKALIKES + EMOJI + ["</s>", "<unk>", "<pad>", " ", "text", "▁", "▁a"]
    parts: list[bytes] = []
    size = 0
    while size < bytes_wanted:
        kind = draw.randrange(5)
        if kind == 0:
            text = mixture(draw, 200)
        elif kind == 1:
            text = " ".join(word(draw, draw.choice(scripts)) for _ in range(300)) + "\n"
        elif kind == 2:
            words = [word(draw, draw.choice(scripts)) for _ in range(30)]
            text = " ".join(draw.choice(words) for _ in range(300)) + ".\n"
        elif kind == 3:
            text = "".join(draw.choices(alike, k=200))
        else:
            run = draw.choice(["a", "é", "漢", " ", "\n", "=", "\u3000"]) * draw.randrange(2000)
            text = run + "".join(chr(draw.randrange(32)) for _ in range(50))
        part = text.encode("utf-8")
        if draw.randrange(4) == 0:
            part += b"".join(draw.choices(MALFORMED, k=10)) + draw.randbytes(50)
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def plain_text(bytes_wanted: int = 1_100_000) -> bytes:
    """Sentences of made-up words, the frequent ones short: what a tokenizer learns from."""
    draw = random.Random(11)
    syllables = [first + rest for first in "bcdfghklmnprstvw" for rest in ("a", "e", "ea", "i", "o", "on", "u", "er")]
    words = ["".join(draw.choices(syllables, k=1 + min(rank // 40, draw.randint(1, 4)))) for rank in range(5000)]
    totals = list(itertools.accumulate(1 / (rank + 1) for rank in range(len(words))))
    lines, size = [], 0
    while size < bytes_wanted:
        sentence = draw.choices(words, cum_weights=totals, k=draw.randint(3, 19))
        lines.append(" ".join(sentence).capitalize() + draw.choice([".", ",", "?", "!", "; it's 12.", ":\n"]))
        size += len(lines[-1]) + 1
    return "\n".join(lines).encode()


def random_ids(size: int, count: int = 100_000) -> list[int]:
    """Ids that no text gives: bytes that make no characters, special tokens, whatever."""
    draw = random.Random(size)
    return [draw.randrange(size) for _ in range(count)]

"""Llama 3's way of encoding with the package tiktoken: the expression, and the two cuts before it."""

from __future__ import annotations

import base64
import pathlib
from collections.abc import Iterator

import tiktoken

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOCK_CHARACTERS = 400_000
RUN_CHARACTERS = 25_000
SPECIAL_TOKENS = 256


def special_tokens(first: int) -> dict[str, int]:
    """Llama 3's: named ones, and reserved ones to fill up."""
    names = ["<|begin_of_text|>", "<|end_of_text|>"]
    names += [f"<|reserved_special_token_{i}|>" for i in range(4)]
    names += ["<|start_header_id|>", "<|end_header_id|>", "<|reserved_special_token_4|>", "<|eot_id|>"]
    names += [f"<|reserved_special_token_{i}|>" for i in range(5, SPECIAL_TOKENS - 5)]
    return {name: first + i for i, name in enumerate(names)}


def load(path: pathlib.Path | str, special: bool = False) -> tiktoken.Encoding:
    """`special`: with Llama 3's special tokens, which decoding then knows; encoding takes the longer for it."""
    ranks = {}
    for line in pathlib.Path(path).read_bytes().splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    more = special_tokens(len(ranks)) if special else {}
    return tiktoken.Encoding("llama3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=more)


def runs(block: str) -> Iterator[str]:
    """Parts of `block` in which no run of only whitespace or only other characters is too long."""
    start = run_start = 0
    for index, character in enumerate(block):
        if index > run_start and character.isspace() != block[index - 1].isspace():
            run_start = index
        elif index - run_start == RUN_CHARACTERS:
            yield block[start:index]
            start = run_start = index
    yield block[start:]


def encode(encoding: tiktoken.Encoding, text: str) -> list[int]:
    ids = []
    for start in range(0, len(text), BLOCK_CHARACTERS):
        for part in runs(text[start : start + BLOCK_CHARACTERS]):
            ids += encoding.encode(part, disallowed_special=())
    return ids

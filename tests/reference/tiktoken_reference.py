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


def load(path: pathlib.Path | str) -> tiktoken.Encoding:
    ranks = {}
    for line in pathlib.Path(path).read_bytes().splitlines():
        if line:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    return tiktoken.Encoding("llama3", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})


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

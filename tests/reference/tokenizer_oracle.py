"""Compares `titan_train tokenizer encode` and `decode` with the package tiktoken on many kinds of text.

    TITAN_BINARY=build/release/titan_train python tests/reference/tokenizer_oracle.py

Exit 0: all ids and bytes are identical; 77: there is no binary to test. The tokenizers are the project's own, one that
`titan_train tokenizer train` makes here in both its forms, some of other sizes that the package `tokenizers` learns here,
and, when the data beside the checkout is there, its test model.
"""

from __future__ import annotations

import base64
import os
import pathlib
import subprocess
import sys
import tempfile

import tiktoken_reference
from tokenizer_program import Program
from tokenizer_texts import ROOT, SHARED_DATA, cases, generated_text, random_ids
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

LIMIT_SECONDS = 300  # of one command
SIZES = [300, 4000, 20_000]  # of the vocabularies that are learned here


def compare(program: Program, model: pathlib.Path, encoding, name: str, content: bytes) -> bool:
    text = content.decode("utf-8", "replace")
    wanted = tiktoken_reference.encode(encoding, text)
    printed = program.ask("encode", model, content)
    got = [int(token) for token in printed.split()]
    if got != wanted:
        at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
        print(f"DIFFERENT {name}: id {at} is {got[at : at + 5]}, tiktoken has {wanted[at : at + 5]} after "
              f"{encoding.decode(wanted[max(0, at - 5) : at])!r}")  # fmt: skip
        return False
    if program.ask("decode", model, printed) != text.encode("utf-8"):
        print(f"DIFFERENT {name}: the decoded text is not what was encoded")
        return False
    return True


def decodes_alike(program: Program, model: pathlib.Path, decode, size: int) -> bool:
    """Whether ids at random stand for what the package says: bytes that make no characters, special tokens."""
    ids = random_ids(size)
    if program.ask("decode", model, " ".join(map(str, ids)).encode()) == decode(ids).encode("utf-8"):
        return True
    print(f"DIFFERENT {model}: ids at random decode to another text")
    return False


def learned(folder: pathlib.Path, lines: list[str], size: int) -> pathlib.Path:
    """A tiktoken file of so many tokens that the package `tokenizers` learns."""
    tokenizer = Tokenizer(models.BPE())
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(tiktoken_reference.PATTERN), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    # What stands for each byte: itself, or for those that cannot be shown, in order, the characters from 256 on.
    shown = {byte: chr(byte) for byte in range(256) if chr(byte) in alphabet}
    hidden = (byte for byte in range(256) if byte not in shown)
    byte_of = {shown[byte]: byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
    ranks = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    path = folder / f"learned_{len(ranks)}.model"
    encoded = (base64.b64encode(bytes(byte_of[character] for character in token)).decode() for token, _ in ranks)
    path.write_text("".join(f"{token} {rank}\n" for rank, token in enumerate(encoded)))
    return path


def check_both_forms(binary: str, folder: pathlib.Path, text: bytes) -> bool:
    """Whether the two forms that `tokenizer train` writes give the ids that the packages give, which are the same."""
    model, hugging_face = folder / "own.model", folder / "own"
    corpus = ROOT / "configs" / "corpora" / "stories.jsonl"
    command = [binary, "tokenizer", "train", "--dataset-path", corpus, "--vocab-size", "2000", "--output", model]
    subprocess.run([*map(str, command), "--hugging-face", hugging_face], check=True, capture_output=True)
    encoding = tiktoken_reference.load(model, special=True)
    package = Tokenizer.from_file(str(hugging_face / "tokenizer.json"))
    replaced = text.decode("utf-8", "replace")
    ids = package.encode(replaced, add_special_tokens=False).ids
    begin = encoding.n_vocab - len(encoding.special_tokens_set)
    alike = ids == tiktoken_reference.encode(encoding, replaced)
    alike &= package.encode(replaced).ids == [begin, *ids]
    program = Program(binary, folder, LIMIT_SECONDS)
    for form in (model, hugging_face):
        printed = program.ask("encode", form, text, "--bos", "--eos")
        alike &= [int(id) for id in printed.split()] == [begin, *ids, begin + 1]
        alike &= decodes_alike(program, form, encoding.decode, encoding.n_vocab)
        alike &= decodes_alike(
            program, form, lambda ids: package.decode(ids, skip_special_tokens=False), encoding.n_vocab
        )
    print(f"the two forms of a tokenizer made by tokenizer train: {'alike' if alike else 'DIFFERENT'}")
    return alike


def main() -> int:
    binary = os.environ.get("TITAN_BINARY")
    if not binary:
        print("left out: TITAN_BINARY does not name a titan_train to test")
        return 77
    binary = os.path.abspath(binary)
    models = [ROOT / "configs" / "tokenizers" / "stories.model"]
    if (SHARED_DATA / "test_tiktoken.model").exists():
        models.append(SHARED_DATA / "test_tiktoken.model")
    else:
        print(f"left out: {SHARED_DATA / 'test_tiktoken.model'} is not there")
    all_cases = cases()
    scripts = {"15 scripts": generated_text()}
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        lines = scripts["15 scripts"].decode("utf-8", "replace")[:1_000_000].split("\n")
        models += [learned(folder, lines, size) for size in SIZES]
        program = Program(binary, folder, LIMIT_SECONDS)
        for model in models:
            encoding = tiktoken_reference.load(model, special=True)
            texts = scripts if model.parent == folder else all_cases | scripts
            wrong = [name for name, content in texts.items() if not compare(program, model, encoding, name, content)]
            wrong += [] if decodes_alike(program, model, encoding.decode, encoding.n_vocab) else ["ids at random"]
            size = sum(map(len, texts.values()))
            print(f"{model.name}: {len(texts) + 1 - len(wrong)} of {len(texts) + 1} comparisons alike, {size:,} bytes")
            failed += len(wrong)
        failed += 0 if check_both_forms(binary, folder, scripts["15 scripts"][:500_000]) else 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

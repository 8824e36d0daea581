"""Compares titan_train's tokenizers with the packages `tokenizers` and `sentencepiece`: ids, with and without what a
post-processor adds, and decoded text, of ids that a text gave and of ids at random.

    TITAN_BINARY=build/release/titan_train python tests/reference/packages_oracle.py [NAME ...]

Exit 0: all are identical; 77: there is no binary to test. Models are trained here with those packages, in several sizes
and with all that titan_train reads; the texts are Shakespeare's (made-up words without ../shared) and 0.3 MB
(5 MB with TITAN_TEST_FULL) of 15 scripts, emoji, control characters, long runs, look-alikes of special tokens and invalid UTF-8 (compared after Python's
replacement decoding).
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable

import sentencepiece
from tiktoken_reference import PATTERN
from tokenizer_program import Program
from tokenizer_texts import SHARED_DATA, generated_text, plain_text, random_ids
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SCRIPTS = "15 scripts"
FRAMED_BYTES = 300_000  # that are compared with what the post-processor adds
# Expressions that other models use: GPT-4o's and DeepSeek's.
CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUNCTUATION = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(folder: pathlib.Path, lines: list[str], size: int, stages: list, **more) -> Tokenizer:
    """A byte-level tokenizer of `size` ids, saved in `folder`."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=more.get("ignore_merges", False)))
    tokenizer.pre_tokenizer = stages[0] if len(stages) == 1 else pre_tokenizers.Sequence(stages)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=more.get("special", []),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.normalizer = more.get("normalizer")
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_tokens(more.get("added", []))
    if "post_processor" in more:
        tokenizer.post_processor = more["post_processor"]
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def llama2_like(folder: pathlib.Path, lines: list[str]) -> Tokenizer:
    """Characters with bytes as the last resort, and normalisation instead of a pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True, prepend_scheme="never")
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=2000, limit_alphabet=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([line[:200] for line in lines], trainer)
    tokenizer.pre_tokenizer = None
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def hugging_face_models(folder: pathlib.Path, lines: list[str]) -> dict[str, Callable[[], Tokenizer]]:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def split(expression: str):
        return pre_tokenizers.Split(Regex(expression), "isolated")

    def make(name: str, size: int, stages: list, **more) -> Callable[[], Tokenizer]:
        return lambda: byte_level(folder / name, lines, size, stages, **more)

    begin = ("<|begin_of_text|>", 0)
    frame = processors.TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    both = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    added = [
        AddedToken("<tool>", single_word=True),
        AddedToken("left", lstrip=True, normalized=False),
        AddedToken("the king", rstrip=True),
    ]
    special = [begin[0], "<|end_of_text|>", "<|eot_id|>"]
    digits = pre_tokenizers.Digits(individual_digits=True)
    return {
        "gpt2": make("gpt2", 5000, [gpt2], special=["<|endoftext|>"], post_processor=processors.ByteLevel()),
        "prefix": make(
            "prefix", 1000, [pre_tokenizers.ByteLevel(add_prefix_space=True)], special=["<s>", "</s>"],
            post_processor=processors.RobertaProcessing(("</s>", 1), ("<s>", 0)),
        ),
        "llama3": make("llama3", 20000, [split(PATTERN), plain], special=special, added=added, post_processor=frame),
        "ignore": make(
            "ignore", 2000, [split(PATTERN), plain], ignore_merges=True, special=["<s>", "</s>"],
            post_processor=processors.Sequence([processors.ByteLevel(), both]),
        ),
        "qwen2": make(
            "qwen2", 3000, [split(PATTERN.replace("{1,3}", "")), plain], special=["[CLS]", "[SEP]"],
            normalizer=normalizers.NFC(), post_processor=processors.BertProcessing(("[SEP]", 1), ("[CLS]", 0)),
        ),
        "digits": make("digits", 3000, [digits, gpt2]),
        "cases": make("cases", 3000, [split(CASES), plain]),
        "punctuation": make(
            "punctuation", 3000, [split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(PUNCTUATION), plain]
        ),
        "llama2": lambda: llama2_like(folder / "llama2", lines),
    }  # fmt: skip


SENTENCEPIECE = {
    "bpe": dict(
        vocab_size=4000, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, split_digits=True, character_coverage=0.99,
    ),
    "bpe nfkc": dict(vocab_size=2000, model_type="bpe", user_defined_symbols=["<sep>", "king"]),
    "bpe sentences": dict(vocab_size=2000, model_type="bpe", split_by_whitespace=False, add_dummy_prefix=False),
    "unigram": dict(vocab_size=4000, model_type="unigram"),
    "unigram bytes": dict(
        vocab_size=2000, model_type="unigram", byte_fallback=True, normalization_rule_name="nfkc",
        remove_extra_whitespaces=False, character_coverage=0.98, user_defined_symbols=["<sep>", "Caesar"],
    ),
    "unigram suffix": dict(
        vocab_size=2000, model_type="unigram", treat_whitespace_as_suffix=True, normalization_rule_name="nmt_nfkc_cf"
    ),
}  # fmt: skip


def sentencepiece_model(name: str, text: pathlib.Path) -> tuple[sentencepiece.SentencePieceProcessor, pathlib.Path]:
    prefix = text.with_name(name.replace(" ", "_"))
    options = {"character_coverage": 0.995} | SENTENCEPIECE[name]
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(prefix), num_threads=2, minloglevel=2, **options
    )
    model = prefix.with_suffix(".model")
    return sentencepiece.SentencePieceProcessor(model_file=str(model)), model


class ComparedProgram(Program):
    def agrees(self, name: str, model: pathlib.Path, content: bytes, encode, decode) -> bool:
        """Whether ids and decoded text are the package's."""
        wanted = encode(content.decode("utf-8", "replace"))
        got = [int(word) for word in self.ask("encode", model, content).split()]
        if got != wanted:
            at = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
            print(f"DIFFERENT {name}: id {at} is {got[at : at + 5]}, the package has {wanted[at : at + 5]} after "
                  f"{decode(wanted[max(0, at - 5) : at])!r}")  # fmt: skip
            return False
        back = self.ask("decode", model, " ".join(map(str, wanted)).encode())
        if back != decode(wanted).encode("utf-8"):
            print(f"DIFFERENT {name}: the decoded text is not the package's")
            return False
        return True

    def frames_alike(self, name: str, model: pathlib.Path, content: bytes, frame) -> bool:
        """Whether what stands before and after a text is what the package's post-processor adds."""
        got = [int(word) for word in self.ask("encode", model, content, "--bos", "--eos").split()]
        wanted = frame(content.decode("utf-8", "replace"))
        if got == wanted:
            return True
        print(f"DIFFERENT {name}: a whole text is {got[:3]} … {got[-3:]}, of the package {wanted[:3]} … {wanted[-3:]}")
        return False

    def decodes_alike(self, name: str, model: pathlib.Path, size: int, decode) -> bool:
        ids = random_ids(size)
        # In parts, since what stands at the front decides about spaces.
        for part in (ids[at : at + 1000] for at in range(0, len(ids), 10_000)):
            back, wanted = self.ask("decode", model, " ".join(map(str, part)).encode()).decode(), decode(part)
            if back != wanted:
                at = next((i for i, (a, b) in enumerate(zip(back, wanted)) if a != b), min(len(back), len(wanted)))
                print(f"DIFFERENT {name}: ids at random decode to {back[at - 9 : at + 9]!r}, of the package "
                      f"{wanted[at - 9 : at + 9]!r}")  # fmt: skip
                return False
        return True


def main() -> int:
    binary = os.environ.get("TITAN_BINARY")
    if not binary:
        print("left out: TITAN_BINARY does not name a titan_train to test")
        return 77
    shakespeare = SHARED_DATA / "tinyshakespeare.txt"
    plain = shakespeare.read_bytes() if shakespeare.exists() else plain_text()
    contents = {SCRIPTS: generated_text(), "plain text": plain}
    # What the models learn from: all of the plain text, and a part of the other one.
    lines = [line for text in contents.values() for line in text.decode("utf-8", "replace")[:1_200_000].split("\n")]
    failed = []
    asked = 0

    def check(name: str, model: pathlib.Path, size: int, encode, decode, frame=None) -> None:
        nonlocal asked
        for what, content in contents.items():
            asked += 1
            if not program.agrees(f"{name}, {what}", model, content, encode, decode):
                failed.append(name)
        asked += 1
        if not program.decodes_alike(name, model, size, decode):
            failed.append(name)
        if frame:
            asked += 1
            if not program.frames_alike(name, model, contents[SCRIPTS][:FRAMED_BYTES], frame):
                failed.append(name)

    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        program = ComparedProgram(os.path.abspath(binary), folder, limit=600)
        wanted = set(sys.argv[1:])
        kinds = hugging_face_models(folder, lines)
        if (SHARED_DATA / "hf_tokenizer").exists():
            file = SHARED_DATA / "hf_tokenizer" / "tokenizer.json"
            # Without its config, whose special tokens transformers also finds in a text.
            alone = folder / "shared"
            alone.mkdir()
            shutil.copy(file, alone)
            kinds["shared"] = lambda: Tokenizer.from_file(str(file))
        for name, make in kinds.items():
            if wanted and name not in wanted:
                continue
            tokenizer = make()
            check(
                f"Hugging Face {name}",
                folder / name,
                tokenizer.get_vocab_size(),
                lambda text: tokenizer.encode(text, add_special_tokens=False).ids,
                lambda ids: tokenizer.decode(ids, skip_special_tokens=False),
                None if name == "shared" else lambda text: tokenizer.encode(text).ids,
            )
        corpus = folder / "corpus.txt"
        corpus.write_text("\n".join(line for line in lines if len(line) < 3000), encoding="utf-8")
        for name in SENTENCEPIECE:
            if wanted and name not in wanted:
                continue
            processor, model = sentencepiece_model(name, corpus)
            check(f"SentencePiece {name}", model, processor.get_piece_size(), processor.encode, processor.decode)
    print(f"{asked - len(failed)} of {asked} comparisons alike")
    return 1 if failed or asked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

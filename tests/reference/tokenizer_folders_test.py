"""The JSON files beside a tokenizer, and the expressions of a pre-tokenizer, against `transformers` and `tokenizers`: folders
and expressions at random, each with a text at random; ids, begin and end of text must be the package's."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import sentencepiece
import transformers
from packages_oracle import byte_level, llama2_like
from tiktoken_reference import PATTERN
from tokenizers import Regex, Tokenizer, pre_tokenizers

from titan import ROOT, binary

COUNT = 600 if os.environ.get("TITAN_TEST_FULL") else 60
WORDS = ("Tell me a story about the fox, please. Once upon a time there was 12 345 Ärger über 東京 — naïve…\n\n Yes! No? red "
         "<sep> blue it's they'll").split(" ")
NAMES = ["<|im_start|>", "<|im_end|>", "<sep>", "[PAD]", "fox", "<|tool|>", "▁story", "the", "<s>", "</s>", "<unk>",
         "<|endoftext|>", "über", "  ", "\n\n", " <x>", "e"]
CLASSES = {
    "bytes": ["PreTrainedTokenizerFast", "Qwen2Tokenizer", "LlamaTokenizerFast", "GPT2Tokenizer", "GPTNeoXTokenizer", None],
    "llama": ["PreTrainedTokenizerFast", "LlamaTokenizer"],
    "files": ["Qwen2Tokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer"],
    "pieces": ["LlamaTokenizer", "PreTrainedTokenizerFast", None],
    "symbols": ["PreTrainedTokenizerFast", None],
    "tiktoken": ["PreTrainedTokenizerFast", "LlamaTokenizer"],
}
TYPES = {"bytes": ["llama", "qwen3", "gpt_neox", "gpt2", "llava", "qwen2_vl"], "llama": ["llama", "mistral", "llava"],
         "files": ["qwen2"], "pieces": ["llama", "mistral", "pixtral"], "symbols": ["llama", "mistral"],
         "tiktoken": ["llama"]}  # fmt: skip


def bases(folder: pathlib.Path) -> dict[str, int]:
    """A folder of each kind; the sizes of their vocabularies."""
    rnd = random.Random(1)
    lines = [" ".join(rnd.choice(WORDS) for _ in range(12)) for _ in range(400)]
    stages = [pre_tokenizers.Split(Regex(PATTERN), "isolated"),
              pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]  # fmt: skip
    tokenizer = byte_level(folder / "bytes", lines, 330, stages, special=["<|endoftext|>", "<|im_start|>"])
    sizes = {"bytes": tokenizer.get_vocab_size(), "llama": llama2_like(folder / "llama", lines).get_vocab_size()}
    model = json.loads((folder / "bytes/tokenizer.json").read_text())["model"]
    (folder / "files").mkdir()
    (folder / "files/vocab.json").write_text(json.dumps(model["vocab"]))
    merges = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    (folder / "files/merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))
    (folder / "text.txt").write_text("\n".join(lines))
    for name, more in (("pieces", {}), ("symbols", {"user_defined_symbols": ["fox", "<sep>"], "control_symbols": "<|tool|>"})):
        (folder / name).mkdir()
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "text.txt"), model_prefix=str(folder / f"{name}/tokenizer"), vocab_size=400, model_type="bpe",
            byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=name == "symbols", minloglevel=2,
            **more,
        )  # fmt: skip
    (folder / "tiktoken").mkdir()
    shutil.copy(ROOT / "configs/tokenizers/stories.model", folder / "tiktoken/tokenizer.model")
    own = (folder / "tiktoken/tokenizer.model").read_text().strip().count("\n") + 1
    return sizes | {"files": len(model["vocab"]), "pieces": 400, "symbols": 400, "tiktoken": own}


def flags(rnd: random.Random) -> dict[str, bool]:
    """Some flags; a missing `normalized` is the opposite of `special`."""
    shares = {"lstrip": 0.3, "rstrip": 0.3, "single_word": 0.3, "normalized": 0.4, "special": 0.6}
    return {key: rnd.random() < share for key, share in shares.items() if rnd.random() < 0.7}


def configure(folder: pathlib.Path, kind: str, size: int, rnd: random.Random) -> None:
    config: dict = {"tokenizer_class": rnd.choice(CLASSES[kind])}
    listed: list[str] = []
    step = rnd.choice([1, 1, 3])  # of ids: 3 leaves gaps
    if rnd.random() < 0.7:
        names = rnd.sample(NAMES, rnd.randint(1, 6))
        config["added_tokens_decoder"] = {str(size + step * i): {"content": x} | flags(rnd) for i, x in enumerate(names)}
        listed += names
    if rnd.random() < 0.3:
        names = rnd.sample(NAMES, rnd.randint(1, 3))
        (folder / "added_tokens.json").write_text(json.dumps({x: size + i for i, x in enumerate(names)}))
        if "added_tokens_decoder" not in config:
            listed += names
    listed = listed or ["<|im_start|>" if kind == "bytes" else "the"]
    for key in ("bos_token", "eos_token", "pad_token"):
        if rnd.random() < 0.5:
            config[key] = rnd.choice([*listed, None])
    if rnd.random() < 0.25:
        config[rnd.choice(["additional_special_tokens", "extra_special_tokens"])] = rnd.sample(NAMES, 2)
    if rnd.random() < 0.3:
        named = {key: rnd.choice([*listed, None]) for key in ("bos_token", "eos_token", "z_token") if rnd.random() < 0.6}
        (folder / "special_tokens_map.json").write_text(json.dumps(named))
    for key in ("add_bos_token", "add_eos_token", "split_special_tokens", "legacy", "add_prefix_space"):
        if rnd.random() < 0.25:
            config[key] = rnd.random() < 0.5
    for key in rnd.sample(["z_token", "image_token", "a_token"], 2 if rnd.random() < 0.25 else 0):
        config[key] = rnd.choice(NAMES)
    if rnd.random() < 0.2:
        keys = rnd.sample(["video_token", "image_token", "b_token"], 2)
        config["model_specific_special_tokens"] = {key: rnd.choice(NAMES) for key in keys}
    if rnd.random() < 0.2:
        padding = {"direction": "right", "pad_id": 0, "pad_type_id": 0, "length": None, "pad_to_multiple_of": None}
        config["tokenizer_padding"] = padding | {"pad_token": rnd.choice(NAMES)}
    if rnd.random() < 0.2 and (folder / "tokenizer.json").exists():
        file = json.loads((folder / "tokenizer.json").read_text())
        file["padding"] = {"strategy": "BatchLongest", "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                           "pad_type_id": 0, "pad_token": rnd.choice(NAMES)}  # fmt: skip
        (folder / "tokenizer.json").write_text(json.dumps(file))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if rnd.random() < 0.4:
        (folder / "config.json").write_text(json.dumps({"model_type": rnd.choice(TYPES[kind])}))


ATOMS = [r"\s", r"\S", r"\w", r"\W", r"\d", r"\p{L}", r"\p{N}", r"[a-c]", r"[^\s\p{L}]", r"[^\S\n]", r"[a[bc]\d]", r"[[:punct:]]",
         r"[[:space:]a]", "a", "b", ".", r"\n", "é", " ", r"\h", r"\R", r"\u0061", r"[^(\s|[.,!?])]", r"[\w\s]", "(?i:'S|'T)",
         r"(?m:.)"]  # fmt: skip
PLACES = ["^", "$", r"\b", r"\B", r"\A", r"\z", r"(?=\d)", r"(?!\S)", r"(?<=a)", r"(?<!\s)"]
REPEATS = ["", "", "", "+", "*", "?", "{1,3}", "+?"]
CHARACTERS = ["a", "b", "c", "A", "1", "23", " ", "  ", "\n", "\r\n", "\t", ".", ",", "!", "é", "'s", "'T", "_", "\u00a0", "東",
              "\u0301", "²"]  # fmt: skip
BEHAVIOURS = ["Isolated", "Removed", "MergedWithNext", "MergedWithPrevious", "Contiguous"]


def expression(rnd: random.Random, depth: int = 0) -> str:
    parts = []
    for _ in range(rnd.randint(1, 3)):
        kind = rnd.random()
        if kind < 0.2:
            parts.append(rnd.choice(PLACES))
        elif kind < 0.35 and depth < 2:
            parts.append(f"(?:{expression(rnd, depth + 1)}){rnd.choice(REPEATS)}")
        else:
            parts.append(rnd.choice(ATOMS) + rnd.choice(REPEATS))
    return "".join(parts) + ("|" + expression(rnd, depth + 1) if rnd.random() < 0.25 else "")


class TokenizerFolders(unittest.TestCase):
    def setUp(self):
        self.program = binary()
        folder = tempfile.TemporaryDirectory(prefix="titan-folders-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def ask(self, *words) -> str:
        done = subprocess.run([self.program, "tokenizer", *map(str, words)], capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else done.stderr

    def test_the_files_beside_a_tokenizer_count_as_in_transformers(self):
        transformers.logging.set_verbosity_error()
        sizes = bases(self.folder)
        compared = 0
        for seed in range(COUNT):
            rnd = random.Random(seed)
            kind = rnd.choice(list(sizes))
            place = self.folder / "case"
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(self.folder / kind, place)
            configure(place, kind, sizes[kind], rnd)
            text = "".join(rnd.choice([*WORDS, *NAMES, " ", "\n"]) + rnd.choice(["", " "]) for _ in range(25))
            (self.folder / "in.txt").write_bytes(text.encode())
            try:
                theirs = transformers.AutoTokenizer.from_pretrained(place)
            except ValueError:  # a begin of text that its own template cannot hold, such as " <x>"
                continue
            shown = self.ask("encode", place, self.folder / "in.txt")
            if "which is not a token of the vocabulary" in shown or "a SentencePiece model that normalises text" in shown:
                continue
            with self.subTest(seed=seed, kind=kind, config=(place / "tokenizer_config.json").read_text()):
                self.assertEqual(shown.split(), [str(id) for id in theirs.encode(text, add_special_tokens=False)])
                rows = {line.split()[0]: line.split()[1] for line in self.ask("info", place).splitlines()[1:]}
                for row, id in (("begin", theirs.bos_token_id), ("end", theirs.eos_token_id)):
                    self.assertEqual(rows[row], "none" if id is None else str(id))
                compared += 1
        self.assertGreater(compared, COUNT // 2)

    def test_expressions_cut_as_in_tokenizers(self):
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        place = self.folder / "tokenizer.json"
        compared = 0
        for seed in range(COUNT * 4):
            rnd = random.Random(seed)
            text = "".join(rnd.choice(CHARACTERS) for _ in range(rnd.randint(1, 22)))
            shown = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text[i:j])[0][0]
                     for i in range(len(text)) for j in range(i + 1, len(text) + 1)]  # fmt: skip
            vocabulary = {token: id for id, token in enumerate(dict.fromkeys([*alphabet, *shown]))}
            plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
            split = {"type": "Split", "pattern": {"Regex": expression(rnd)}, "behavior": rnd.choice(BEHAVIOURS),
                     "invert": rnd.random() < 0.2}  # fmt: skip
            place.write_text(json.dumps({
                "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, plain]}, "post_processor": None,
                "decoder": plain, "model": {"type": "BPE", "dropout": None, "unk_token": None,
                "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                "ignore_merges": True, "vocab": vocabulary, "merges": []}}))  # fmt: skip
            try:
                theirs = Tokenizer.from_file(str(place))
            except Exception:  # an expression that Oniguruma does not take
                continue
            (self.folder / "in.txt").write_bytes(text.encode())
            with self.subTest(seed=seed, split=split, text=text):
                ids = self.ask("encode", place, self.folder / "in.txt").split()
                self.assertEqual(ids, [str(id) for id in theirs.encode(text, add_special_tokens=False).ids])
                compared += 1
        self.assertGreater(compared, COUNT)


if __name__ == "__main__":
    unittest.main()

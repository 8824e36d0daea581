"""The class that reads a tokenizer, by the `model_type` of config.json and the class that tokenizer_config.json names, against
the `AutoTokenizer` of the installed `transformers`: for every model that it knows, the ids must be those of its class."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import subprocess
import tempfile
import unittest
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers
from tokenizers import pre_tokenizers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS, TOKENIZER_MAPPING_NAMES
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from titan import ROOT, binary

OTHERS = 600 if os.environ.get("TITAN_TEST_FULL") else 40  # of the models without a class of their own
NAMED = [None, "LlamaTokenizer", "Qwen2TokenizerFast", "PreTrainedTokenizerFast"]
READ_HERE = ["TokenizersBackend", "LlamaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer"]
# Each class cuts it differently: by NFC, by the rule for digits, by the file's own expression, by none.
TEXT = "a 1212's ABA e\u0301"


def write_tokenizer(folder: pathlib.Path) -> None:
    """A byte-level tokenizer whose file splits text unlike any class. Its decoder does not name ByteLevel's type, by which
    AutoTokenizer would not use the class LlamaTokenizer."""
    vocabulary = {token: id for id, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    for token in ("12", "'s", "AB", "▁", "▁a", "<unk>", "<s>", "</s>", "<|endoftext|>", "<|padding|>"):
        vocabulary[token] = len(vocabulary)
    split = {"type": "Split", "pattern": {"Regex": "A|[^A]+"}, "behavior": "Isolated", "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": split,
        "post_processor": None, "decoder": None, "added_tokens": [], "model": {"type": "BPE", "dropout": None,
        "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
        "byte_fallback": False, "vocab": vocabulary, "merges": [["1", "2"], ["'", "s"], ["A", "B"], ["▁", "a"]]}}))  # fmt: skip


class TokenizerClasses(unittest.TestCase):
    def setUp(self):
        self.program = binary()
        transformers.logging.set_verbosity_error()
        folder = tempfile.TemporaryDirectory(prefix="titan-classes-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        write_tokenizer(self.folder)
        (self.folder / "in.txt").write_text(TEXT)
        self.theirs: dict[str, list[int]] = {}

    def configure(self, model: str | None, named: str | None, **more) -> None:
        (self.folder / "config.json").write_text(json.dumps({"model_type": model} if model else {}))
        named_in = {"tokenizer_class": named} if named else {}
        (self.folder / "tokenizer_config.json").write_text(json.dumps(named_in | more))

    def class_of_transformers(self) -> str | None:
        """The class that AutoTokenizer takes; None if it takes none. Reads no vocabulary."""
        named = classmethod(lambda cls, *_, **__: cls.__name__)
        with mock.patch.object(PreTrainedTokenizerBase, "from_pretrained", named), mock.patch("builtins.input", lambda *_: "n"):
            try:
                return transformers.AutoTokenizer.from_pretrained(self.folder)
            except Exception:  # a config that needs another package, or code that is not to run
                return None

    def ids_of(self, name: str) -> list[int]:
        if name not in self.theirs:
            self.configure(None, name)
            self.theirs[name] = transformers.AutoTokenizer.from_pretrained(self.folder).encode(TEXT, add_special_tokens=False)
        return self.theirs[name]

    def ours(self) -> tuple[list[int] | None, str]:
        words = [self.program, "tokenizer", "encode", self.folder, self.folder / "in.txt"]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        return [int(id) for id in done.stdout.split()] if done.returncode == 0 else None, done.stderr

    def compare(self, models: list[str], more: dict) -> int:
        compared = 0
        for model in models:
            for named in NAMED:
                self.configure(model, named, **more)
                name = self.class_of_transformers()
                ids, said = self.ours()
                with self.subTest(model=model, named=named, theirs=name):
                    if name is None:
                        continue
                    # A class that is not read here is named in a warning. (For gpt-sw3 it is the alias of one that is.)
                    if name in READ_HERE and model != "gpt-sw3":
                        self.assertEqual(ids, self.ids_of(name), said)
                    elif name not in READ_HERE:
                        self.assertIn("is not known here; the file is read as it is", said)
                    self.assertNotIn("the model_type", said)
                    compared += 1
        return compared

    def test_every_class_cuts_the_text_in_its_own_way(self):
        ids = [tuple(self.ids_of(name)) for name in READ_HERE]
        self.assertEqual(len(set(ids)), len(ids))

    def test_every_model_with_a_class_is_read_by_it(self):
        models = [model for model, name in TOKENIZER_MAPPING_NAMES.items() if name]
        self.assertGreater(self.compare(models, {}), 3 * len(models))

    def test_models_without_a_class_are_read_by_the_named_one_and_are_known(self):
        # The class of encoder-decoder is that of the encoder that its config names.
        models = sorted(set(CONFIG_MAPPING_NAMES) - set(TOKENIZER_MAPPING_NAMES) - {"encoder-decoder"})
        chosen = random.Random(1).sample(models, min(OTHERS, len(models)))
        self.assertGreater(self.compare(["llama", *chosen], {}), 3 * len(chosen))

    def test_code_beside_the_files_is_done_without_where_there_is_a_class(self):
        code = {"auto_map": {"AutoTokenizer": ["my.MyTokenizer", None]}}
        for model in ("llama", "qwen3", "qwen2", "internlm2", "bert", None):
            for named in (None, "MyTokenizer", "PreTrainedTokenizerFast", "Qwen2Tokenizer"):
                self.configure(model, named, **code)
                name = self.class_of_transformers()
                ids, said = self.ours()
                with self.subTest(model=model, named=named, theirs=name):
                    if name is None:
                        self.assertIn("names Python code of its own", said)
                    elif name in READ_HERE:
                        self.assertEqual(ids, self.ids_of(name), said)

    def test_the_table_is_that_of_the_installed_package(self):
        table = (ROOT / "src/text/model_classes.cpp").read_text()
        rows = re.findall(r'ClassOfModels\{(?:"(\w+)"|kGenericClass),\s*((?:"[^"]*"\s*)+)\}', table)
        ours = {model: name or "TokenizersBackend" for name, models in rows for model in re.sub('["\n]', "", models).split()}
        known = set(CONFIG_MAPPING_NAMES) | MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS | set(ours)
        names = {model: (TOKENIZER_MAPPING_NAMES.get(model) or "").removesuffix("Fast") for model in known}
        theirs = {model: name.replace("MistralCommonBackend", "TokenizersBackend") for model, name in names.items() if name}
        self.assertEqual(ours, theirs)
        misnamed = re.search(r'kMisnamedModels =\s*((?:"[^"]*"\s*)+);', table)
        self.assertEqual(set(re.sub('["\n]', "", misnamed[1]).split()), MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS)


if __name__ == "__main__":
    unittest.main()

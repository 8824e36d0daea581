"""A tokenizer that is not read here: the refusal names the way out, and the lines of docs/data.md go it to its end."""

from __future__ import annotations

import json
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
import unittest

from program import OK, ROOT, BehaviourTest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXTS = ["once upon a time there was a fox", "the fox found a hät under the bridge", "and lost it agaın"] * 40
PAGE = ROOT / "docs" / "data.md"


def recipe() -> tuple[str, str]:
    """What docs/data.md says to do: the Python lines, and the command after them."""
    part = PAGE.read_text().split("### Ids of a tokenizer that is not read here")[1].split("\n## ")[0]
    python = re.search(r"```python\n(.*?)```", part, re.DOTALL)[1]
    command = re.search(r"^    (titan_train data tokenize (?:.*\\\n)*.*)$", part, re.MULTILINE)[1]
    return python, textwrap.dedent(command).replace("\\\n", " ")


class GivenIds(BehaviourTest):
    def setUp(self):
        super().setUp()
        self.write("corpus.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"], show_progress=False
        )
        tokenizer.train_from_iterator(TEXTS, trainer)
        tokenizer.save(str(self.folder / "tokenizer.json"))
        self.tokenizer = tokenizer

    def follow_recipe(self) -> pathlib.Path:
        python, command = recipe()
        done = subprocess.run([sys.executable, "-c", python], cwd=self.folder, capture_output=True, text=True, check=True)
        numbers = done.stdout.split()
        self.assertEqual(numbers, [str(self.tokenizer.get_vocab_size()), "0", "1"])
        words = shlex.split(command)[1:]
        for option, number in zip(("--vocab-size", "--bos", "--eos"), numbers, strict=True):
            words[words.index(option) + 1] = number
        self.expect(self.titan(*words, cwd=self.folder), OK)
        return self.folder / "corpus.bin"

    def test_the_recipe_of_the_documentation_gives_the_ids_and_trains_without_the_tokenizer(self):
        bin_file = self.follow_recipe()
        raw = bin_file.read_bytes()
        ids = [int.from_bytes(raw[at : at + 2], "little") for at in range(0, len(raw), 2)]
        self.assertEqual(ids, [id for text in TEXTS for id in (0, *self.tokenizer.encode(text).ids, 1)])
        (self.folder / "tokenizer.json").unlink()
        data = ("--training.dataset=text", f"--training.dataset_path={bin_file}", f"--model.tokenizer_path={bin_file}")
        data += ("--lr_scheduler.total_steps=1000",)
        saving = ("--checkpoint.enable", "--checkpoint.interval=5", "--checkpoint.last_save_model_only=false")
        run = self.train(*data, *saving, steps=20)
        self.assertIn("Ids made elsewhere: #words 300, BOS ID 0, EOS ID 1", run.messages())
        losses = run.training("loss")
        self.assertLess(sum(losses[-3:]), sum(losses[:3]) - 1)
        whole = self.train(*data, steps=25)
        self.train(*data, *saving, steps=25, folder=run.folder)
        self.assertEqual(run.training("loss")[-5:], whole.training("loss")[-5:])
        self.export_takes_the_tokenizer_along(data)
        info = self.titan("tokenizer", "info", bin_file)
        self.expect(info, OK)
        self.assertRegex(info.output, r"ids +300\n")

    def export_takes_the_tokenizer_along(self, data: tuple) -> None:
        """A model in Hugging Face's form gets what lies with the model's files, which only other programs read."""
        assets = self.folder / "assets"
        assets.mkdir()
        self.tokenizer.save(str(assets / "tokenizer.json"))
        words = (f"--model.hf_assets_path={assets}", "--checkpoint.enable", "--checkpoint.last_save_in_hf")
        run = self.train(*data, *words, steps=2)
        made = run.folder / "checkpoint" / "step-2"
        self.assertEqual((made / "tokenizer.json").read_bytes(), (assets / "tokenizer.json").read_bytes())
        self.assertEqual(json.loads((made / "config.json").read_text())["eos_token_id"], 1)
        named = self.folder / "corpus.bin"  # a file of ids is nobody's tokenizer, whatever names it
        without = self.train(*data, f"--model.hf_assets_path={named}", *words[1:], steps=2)
        self.assertIn(f"no tokenizer is exported: there is none at {named}", without.messages())
        self.assertFalse((without.folder / "checkpoint" / "step-2" / "tokenizer.model").exists())


if __name__ == "__main__":
    unittest.main()

"""The corpus and the tokenizer of the debug model are what scripts/stories.py and `tokenizer train` make."""

from __future__ import annotations

import subprocess
import sys

from program import CORPORA, OK, ROOT, BehaviourTest

SCRIPT = ROOT / "scripts" / "stories.py"


class Stories(BehaviourTest):
    def test_the_script_makes_the_files_of_the_checkout(self):
        subprocess.run([sys.executable, SCRIPT, self.folder], check=True)
        made = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        self.assertEqual(made, {path.name: path.read_bytes() for path in CORPORA.iterdir()})

    def test_no_story_of_the_validation_set_is_trained_on(self):
        trained, held_out = (
            (CORPORA / name).read_text().splitlines() for name in ("stories.jsonl", "stories_validation.jsonl")
        )
        self.assertEqual(len({*trained, *held_out}), len(trained) + len(held_out))

    def test_the_documented_commands_make_the_tokenizer(self):
        subprocess.run([sys.executable, SCRIPT, "--count=9000", self.folder], check=True)
        made = self.folder / "stories.model"
        corpus = f"--dataset-path={self.folder / 'stories.jsonl'}"
        run = self.titan("tokenizer", "train", corpus, "--bytes=8388608", "--vocab-size=2048", f"--output={made}")
        self.expect(run, OK)
        self.assertEqual(made.read_bytes(), (ROOT / "configs" / "tokenizers" / "stories.model").read_bytes())

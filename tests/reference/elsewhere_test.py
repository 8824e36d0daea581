"""A model that titan has trained, in the programs that docs/elsewhere.md names: transformers and lm_eval."""

from __future__ import annotations

import json
import os
import subprocess
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from evaluate_test import QUESTIONS, harness
from generate_test import PROMPTS, ModelTest
from titan import binary

FILES = ["config.json", "generation_config.json", "model.safetensors", "titan_manifest.json", "tokenizer.json",
         "tokenizer_config.json"]  # fmt: skip


class Elsewhere(ModelTest):
    def run_titan(self, *words: object) -> str:
        done = subprocess.run([binary(), *map(str, words)], cwd=self.folder, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def setUp(self):
        super().setUp()
        self.model("llama")
        texts = [{"text": f"{prompt} and then came number {i}."} for i in range(200) for prompt in PROMPTS]
        (self.folder / "texts.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
        self.run_titan(
            "train", "--job.dump_folder=run", "--model.from_hf=model", "--training.dataset=text",
            "--training.dataset_path=texts.jsonl", "--training.steps=10", "--training.seq_len=64",
            "--training.local_batch_size=4", "--checkpoint.enable", "--checkpoint.last_save_model_only=false",
        )  # fmt: skip
        self.run_titan("convert", "to-hf", "run", "export")

    def test_the_export_has_the_files_of_the_page_and_transformers_continues_texts_as_titan_does(self):
        names = {path.name for path in (self.folder / "export").iterdir()}
        self.assertLessEqual(set(FILES), names)
        model = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "export", dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder / "export")
        before = transformers.AutoModelForCausalLM.from_pretrained(self.folder / "model", dtype=torch.float32)
        self.assertFalse(torch.equal(model.lm_head.weight, before.lm_head.weight), "nothing was trained")
        prompts = [word for text in PROMPTS for word in ("--prompt", text)]
        for prompt, got in zip(PROMPTS, self.generate(*prompts, "--max-new-tokens", 24, "--json", model="run"), strict=True):
            ids = tokenizer(prompt, return_tensors="pt").input_ids
            text = model.generate(ids, max_new_tokens=24, do_sample=False, pad_token_id=0)[0, ids.shape[1]:].tolist()
            self.assertEqual(got["tokens"], [token for token in text if token != tokenizer.eos_token_id])

    def test_lm_eval_on_the_export_scores_as_evaluate_does_on_the_checkpoint(self):
        (self.folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS[:4]))
        words = ("--data", "questions.jsonl", "--choices", "--window", 64, "--json")
        *questions, _ = self.generate(*words, model="run", command="evaluate")
        for question, got in zip(QUESTIONS[:4], questions, strict=True):
            expected = harness(self.folder / "export", question, 64, None)
            for ours, theirs in zip(got["log_likelihoods"], expected, strict=True):
                self.assertAlmostEqual(ours, theirs, delta=1e-3)


if __name__ == "__main__":
    unittest.main()

"""titan_train evaluate against transformers: losses of texts, and multiple-choice scores as EleutherAI's harness has them."""

from __future__ import annotations

import json
import math
import os
import pathlib
import shutil
import struct
import sys
import unittest

os.environ["HF_HUB_OFFLINE"] = "1"

import tokenizers
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from generate_test import END, ModelTest, byte_tokenizer
from titan import binary

TEXTS = ["Alice was beginning to get very tired of sitting by her sister on the bank.", "Ja, ja: schön war's!", "x",
         "the rabbit-hole went straight on like a tunnel for some way, " * 3]
HARNESSES: dict = {}
QUESTIONS = [
    {"context": "Once upon a time there was a", "choices": ["king", "qq", "very long choice, which is a sentence"], "answer": 2},
    {"context": "Trailing spaces  ", "choices": ["go", "to the choice"], "answer": 0},
    {"context": "", "choices": ["Nothing before", "this"], "answer": 1},
    {"context": "ü" * 70, "choices": ["ä", "öö", "ß"], "answer": 0},
    # All that str.rstrip strips; U+200B and U+FEFF are none of it.
    *({"context": f"End{space}", "choices": ["a", "b"], "answer": 0}
      for space in [*filter(str.isspace, map(chr, range(sys.maxunicode + 1))), "\u3000 \x1f\n", "\u200b", "\ufeff"]),
]


@torch.no_grad()
def log_likelihood(model, given: list[int], scored: list[int], most: int = 10**9) -> float:
    ids = (given + scored)[-(most + 1):]
    logits = model(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)[-len(scored):]
    return sum(logits[i, token].item() for i, token in enumerate(scored))


def harness(folder: pathlib.Path, question: dict, most: int, adds_bos: bool | None) -> list[float]:
    """The sums that the installed lm_eval gives a question's choices."""
    key = (folder, most, adds_bos)
    if key not in HARNESSES:
        HARNESSES[key] = HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=1, max_length=most,
                              add_bos_token=adds_bos)  # fmt: skip
    texts = [(question["context"], " " + choice) for choice in question["choices"]]
    requests = [Instance("loglikelihood", {}, text, i) for i, text in enumerate(texts)]
    return [score for score, _ in HARNESSES[key].loglikelihood(requests, disable_tqdm=True)]


class EvaluateTest(ModelTest):
    def evaluate(self, *words: object, ranks: int = 1, code: int = 0, model: str = "model"):
        return self.generate(*words, model=model, ranks=ranks, code=code, command="evaluate")

    def write(self, name: str, records: list) -> str:
        (self.folder / name).write_text("".join(json.dumps(record) + "\n" for record in records))
        return name

    def test_losses_of_texts(self):
        theirs, tokenizer = self.model("qwen3"), byte_tokenizer()
        data = self.write("texts.jsonl", [{"text": text} for text in TEXTS])
        for window in (2048, 16):
            *documents, total = self.evaluate("--data", data, "--window", window, "--json")
            sums, counts = 0.0, 0
            for text, got in zip(TEXTS, documents, strict=True):
                ids = [*tokenizer(text).input_ids, tokenizer.eos_token_id]
                expected = 0.0
                for begin in range(0, len(ids) - 1, window):
                    part = ids[begin:begin + window + 1]
                    expected -= log_likelihood(theirs, part[:1], part[1:])
                self.assertEqual(got["tokens"], len(ids) - 1)
                self.assertAlmostEqual(got["loss"] * got["tokens"], expected, delta=1e-3)
                self.assertAlmostEqual(got["perplexity"], math.exp(got["loss"]), delta=1e-6 * got["perplexity"])
                self.assertAlmostEqual(got["bits_per_byte"],
                                       expected / math.log(2) / len(text.encode()), delta=1e-3)
                sums, counts = sums + expected, counts + len(ids) - 1
            self.assertEqual(total["documents"], len(TEXTS))
            self.assertAlmostEqual(total["loss"], sums / counts, delta=1e-5)

    def test_ids_of_nanogpt_have_the_losses_of_their_texts(self):
        self.model("qwen3")
        tokenizer = byte_tokenizer()
        ids = [id for text in TEXTS for id in [*tokenizer(text).input_ids, tokenizer.eos_token_id]]
        (self.folder / "val.bin").write_bytes(struct.pack(f"<{len(ids)}H", *ids))
        texts = self.evaluate("--data", self.write("texts.jsonl", [{"text": text} for text in TEXTS]), "--json")
        for got, expected in zip(self.evaluate("--data", "val.bin", "--nanogpt", "--json"), texts, strict=True):
            self.assertEqual({key: value for key, value in expected.items() if key != "bits_per_byte"}, got)
        refusal = self.evaluate("--data", "val.bin", code=65)
        self.assertIn("such as nanoGPT's train.bin, is read with --nanogpt", refusal)
        self.assertRegex(self.evaluate("--data", "val.bin", "--nanogpt", "--choices", code=64), "--(nanogpt|choices) excludes")

    def test_choices_are_scored_as_in_the_harness(self):
        self.model("llama")
        begins = byte_tokenizer()
        begins.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{END} $A", special_tokens=[(END, 256)])  # fmt: skip
        begins.bos_token = END
        data = self.write("questions.jsonl", QUESTIONS)
        for name, tokenizer, words, adds_bos in (("plain", byte_tokenizer(), [], None), ("begins", begins, [], None),
                                                 ("with", begins, ["--add-bos-token"], True),
                                                 ("without", begins, ["--no-bos-token"], False)):  # fmt: skip
            with self.subTest(name):
                shutil.copytree(self.folder / "model", self.folder / name)
                tokenizer.save_pretrained(self.folder / name)
                self.compare_choices(name, data, words, adds_bos)

    def compare_choices(self, name: str, data: str, words: list[str], adds_bos: bool | None) -> None:
        *questions, total = self.evaluate("--data", data, "--choices", "--window", 64, "--json", *words, model=name)
        right = right_normalised = 0
        for question, got in zip(QUESTIONS, questions, strict=True):
            if question["context"] and not question["context"].strip():
                continue
            expected = harness(self.folder / name, question, 64, adds_bos)
            for a, b in zip(got["log_likelihoods"], expected, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-3)
            normalised = [score / len(choice) for score, choice in zip(expected, question["choices"], strict=True)]
            self.assertEqual(got["choice"], expected.index(max(expected)))
            self.assertEqual(got["choice_normalised"], normalised.index(max(normalised)))
            right += got["choice"] == question["answer"]
            right_normalised += got["choice_normalised"] == question["answer"]
        self.assertEqual(total["acc"], right / len(QUESTIONS))
        self.assertEqual(total["acc_norm"], right_normalised / len(QUESTIONS))

    def test_every_layout_gives_the_same_losses(self):
        self.model("qwen2")
        data = self.write("texts.jsonl", [{"text": text} for text in TEXTS])
        alone = self.evaluate("--data", data, "--json")
        for ranks, degrees in ((2, ["tensor_parallel_degree=2"]), (2, ["data_parallel_shard_degree=2"]),
                               (2, ["context_parallel_degree=2"]), (2, ["pipeline_parallel_degree=2"]),
                               (4, ["data_parallel_replicate_degree=2", "tensor_parallel_degree=2"])):
            with self.subTest(degrees):
                words = [f"--parallelism.{degree}" for degree in degrees]
                for got, expected in zip(self.evaluate("--data", data, "--json", *words, ranks=ranks), alone, strict=True):
                    self.assertAlmostEqual(got["loss"], expected["loss"], delta=1e-5)

    def test_bad_data_is_one_sentence(self):
        self.model("llama")
        good = QUESTIONS[0]
        for bad, said in (
            ({**good, "answer": 3}, "questions.jsonl:2: answer is 3 of 3 choices"),
            ({**good, "choices": ["a", ""]}, "questions.jsonl:2: a choice is empty"),
            ({**good, "choices": []}, "choices is not a list of texts"),
            ({"context": "x", "choices": ["y"]}, "answer is missing"),
            ("text", "this is not a JSON object"),
        ):
            with self.subTest(said):
                data = self.write("questions.jsonl", [good, bad])
                self.assertIn(said, self.evaluate("--data", data, "--choices", code=65))
        self.assertIn("there is no question", self.evaluate("--data", self.write("none.jsonl", []), "--choices", code=65))
        self.assertIn("the file is empty", self.evaluate("--data", self.write("none.jsonl", []), code=65))
        self.assertIn("nowhere", self.evaluate("--data", "nowhere.jsonl", code=65))


if __name__ == "__main__":
    binary()
    unittest.main()

"""titan_train evaluate against transformers: losses of texts, and multiple-choice scores as EleutherAI's harness has them."""

from __future__ import annotations

import json
import math
import sys
import unittest

import torch

from generate_test import ModelTest, byte_tokenizer
from titan import binary

TEXTS = ["Alice was beginning to get very tired of sitting by her sister on the bank.", "Ja, ja: schön war's!", "x",
         "the rabbit-hole went straight on like a tunnel for some way, " * 3]
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


def harness(model, tokenizer, question: dict, most: int, delimiter: str = " ") -> list[float]:
    """As lm_eval.api.model and lm_eval.models.huggingface score a question's choices."""
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    scores = []
    for choice in question["choices"]:
        context, continuation = question["context"], delimiter + choice
        if not context:
            scores.append(log_likelihood(model, [tokenizer.eos_token_id], encode(continuation), most))
            continue
        spaces = len(context) - len(context.rstrip())
        if spaces:
            continuation, context = context[-spaces:] + continuation, context[:-spaces]
        whole, start = encode(context + continuation), len(encode(context))
        scores.append(log_likelihood(model, whole[:start], whole[start:], most))
    return scores


class EvaluateTest(ModelTest):
    def evaluate(self, *words: object, ranks: int = 1, code: int = 0):
        return self.generate(*words, ranks=ranks, code=code, command="evaluate")

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

    def test_choices_are_scored_as_in_the_harness(self):
        theirs, tokenizer = self.model("llama"), byte_tokenizer()
        data = self.write("questions.jsonl", QUESTIONS)
        *questions, total = self.evaluate("--data", data, "--choices", "--window", 64, "--json")
        right = right_normalised = 0
        for question, got in zip(QUESTIONS, questions, strict=True):
            expected = harness(theirs, tokenizer, question, 64)
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

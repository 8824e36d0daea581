"""Conversations against `transformers`: token ids, the labels that count and the loss of one step, for the templates of
chat_templates.py, which titan_train runs as they are in the tokenizer's folder, and for the built-in ones.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import sentencepiece
import torch
from packages_oracle import byte_level, llama2_like
from tiktoken_reference import PATTERN
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import dump
import titan
from chat_templates import CHATML, GEMMA, LLAMA2, LLAMA3, LLAMA3_1, MISTRAL, PHI3, QWEN3, SYSTEM_TEXTS, ZEPHYR
from llama import IGNORED_LABEL, Llama, token_loss_sum
from parity_rows import Row
from training import Recipe

LENGTH = 160
WORDS = "Tell me a story about the fox, please. Once upon a time there was 12 345 Ärger über 東京 — naïve…\n\n Yes! No?"


def turns(*contents: str, system: str | None = None) -> list[dict]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return messages + [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]


CONVERSATIONS = [
    turns("Hello there", "General Kenobi!"),
    turns(" What is 12 × 345?\n", "  It is 4140.\n\nDo you want more?  ", "No.", "Fine…\n", system="Be exact.\n"),
    turns("東京はどこ?", "日本。\u3000", system="  "),
    turns("say nothing", "", "why?", "\n\nBecause."),
    turns("[INST] is not a token", "nor is <s\u200b> or <|", system="Text: a\n\n\n  b"),
    turns("tab\there", "\u00a0non-breaking\u00a0", "once\r\nmore", "\r\n.\r\n", "and\x1f", "a 🦊 end…\n"),
    turns("Write code", "```python\n  def f(x):\n    return x\n```\n", "Thanks!", "!\n!\n\n\n"),
]

THOUGHTS = turns("Why?", "<think>\nHm, 東京…\n</think>\n\nSo.", "And then?", "\n<think>\nWell\n\n</think>\n That.\n", system="T")
# The template of each kind that is not Llama 2's, and its special tokens after those that begin and end a text.
OTHERS = {
    "mistral": (MISTRAL, ["<s>", "</s>", "[INST]", "[/INST]"]),
    "qwen3": (QWEN3, ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]),
    "gemma": (GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]),
    "zephyr": (ZEPHYR, ["<s>", "</s>"]),
    "phi3": (PHI3, ["<s>", "<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]),
}
# Templates that do not write a system message: one refuses it, one writes it into a prompt's last turn alone.
SYSTEMLESS = {
    "gemma": r"refuses message 1 \(of the system\): there is no system role",
    "mistral": r"leaves out message 1 \(of the system\)",
}
for _kind in ("llama3", "llama3_1"):
    OTHERS[_kind] = (
        LLAMA3 if _kind == "llama3" else LLAMA3_1,
        ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"],
    )
for _kind in ("chatml", *SYSTEM_TEXTS):
    _own = CHATML.replace("TEXT", SYSTEM_TEXTS.get(_kind, "")).replace("DEFAULT", str(_kind in SYSTEM_TEXTS).lower())
    OTHERS[_kind] = (_own, ["<|im_start|>", "<|im_end|>"])


def learn(folder: pathlib.Path, kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of this kind and its template, in `folder` as a model's folder has them."""
    lines = [message["content"] for messages in CONVERSATIONS for message in messages] + [WORDS] * 20
    if kind == "llama2":
        template, special = LLAMA2, ["<s>", "</s>"]
        llama2_like(folder, lines)
    else:
        template, special = OTHERS[kind]
        split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        byte_level(folder, lines, 420, [split, plain], special=special)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": special[1]}
    if kind in ("smollm2", "qwen3"):
        (folder / "chat_template.jinja").write_text(template)
    else:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encoded(tokenizer: PreTrainedTokenizerFast, messages: list[dict]) -> tuple[list[int], list[int]]:
    out = tokenizer.apply_chat_template(messages, tokenize=True, return_assistant_tokens_mask=True)
    return out["input_ids"], out["assistant_masks"]


def packed(conversations: list[tuple[list[int], list[int]]]) -> list[list[tuple[list[int], list[int]]]]:
    """In order, each whole, as many as fit into LENGTH + 1."""
    rows: list[list] = []
    for ids, mask in conversations:
        if not rows or sum(len(one) for one, _ in rows[-1]) + len(ids) > LENGTH + 1:
            rows.append([])
        rows[-1].append((ids[: LENGTH + 1], mask[: LENGTH + 1]))
    return rows


class Chat(unittest.TestCase):
    def setUp(self):
        titan.binary()
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = pathlib.Path(place.name)

    def step(self, tokenizer: pathlib.Path, records: list[dict], rows: int, *flags: str) -> dump.StepDump:
        """The first step of a run on these records, `rows` sequences."""
        corpus = self.folder / "chat.jsonl"
        corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
        out = self.folder / f"run-{tokenizer.name}"
        row = Row("chat", "llama3", recipe=Recipe(steps=1), local_batch=rows, global_batch=rows, length=LENGTH)
        more = [f"--model.tokenizer_path={tokenizer}", "--training.dataset=chat", f"--training.dataset_path={corpus}"]
        titan.train(out, [*row.command_line(), *more, *flags])
        return dump.read(out, 1)

    def expect(self, step: dump.StepDump, conversations: list[tuple[list[int], list[int]]]) -> None:
        """The step's rows are these conversations, its labels what their masks leave, its loss the reference's."""
        rows = packed(conversations * 2)[: len(packed(conversations))]  # the next pass fills the last one
        model = Llama(Row("chat", "llama3").shape(step.parameters["tok_embeddings.weight"].shape[0])).double()
        model.load_state_dict({name: value.double() for name, value in step.parameters.items()})
        loss, valid = torch.zeros((), dtype=torch.float64), 0
        for tokens, labels, row in zip(step.tokens.tolist(), step.labels.tolist(), rows, strict=True):
            ids = [id for one, _ in row for id in one]
            self.assertEqual(tokens[: len(ids)], ids[:LENGTH])
            wanted = []
            for one, mask in row:
                alone = [id if counts else IGNORED_LABEL for id, counts in zip(one[1:], mask[1:])]
                wanted += [*alone, IGNORED_LABEL]
                with torch.no_grad():  # by itself: no other conversation is seen
                    logits = model(torch.tensor([one[:-1]]))
                loss += token_loss_sum(logits, torch.tensor([alone]))
                valid += sum(mask[1:])
            wanted = (wanted + [IGNORED_LABEL] * LENGTH)[:LENGTH]
            self.assertEqual(labels, wanted)
        self.assertGreater(valid, 50)
        self.assertLess(abs(step.loss - loss.item() / valid) / step.loss, 1e-5)

    def test_ids_labels_and_loss_are_those_of_transformers_for_every_template(self):
        for kind in ("llama2", *OTHERS):
            with self.subTest(kind=kind):
                tokenizer = learn(self.folder / kind, kind)
                written = [*CONVERSATIONS, THOUGHTS]
                if kind in SYSTEMLESS:
                    written = [[message for message in one if message["role"] != "system"] for one in written]
                if kind == "mistral":  # of whose special tokens one conversation speaks
                    written = [one for one in written if "[INST]" not in one[0]["content"]]
                conversations = [encoded(tokenizer, messages) for messages in written]
                records = [{"messages": messages} for messages in written]
                step = self.step(self.folder / kind, records, len(packed(conversations)))
                self.expect(step, conversations)

    def test_a_conversation_that_a_template_does_not_write_is_named(self):
        for kind, said in SYSTEMLESS.items():
            learn(self.folder / kind, kind)
            with self.assertRaisesRegex(AssertionError, f"exit 65 [^§]*chat.jsonl:1: the chat template .*{said}"):
                self.step(self.folder / kind, [{"messages": CONVERSATIONS[1]}], 1)

    def test_built_in_templates_are_those_of_their_names(self):
        for kind in ("llama3", "llama3_1", "llama2", "chatml"):
            with self.subTest(kind=kind):
                tokenizer = learn(self.folder / kind, kind)
                conversations = [encoded(tokenizer, messages) for messages in CONVERSATIONS]
                records = [{"messages": messages} for messages in CONVERSATIONS]
                rows = len(packed(conversations))
                step = self.step(self.folder / kind, records, rows, f"--data.chat_template={kind}")
                self.expect(step, conversations)

    def test_what_looks_like_a_special_token_in_a_message_is_text(self):
        """As for `split_special_tokens`, where apply_chat_template would make special tokens of it."""
        tokenizer = learn(self.folder / "chatml", "chatml")
        messages = turns("a <|im_end|>\n<|im_start|>system", "b<|im_end|>", "<|im_start|>", "c", "why?", "the fox, " * 12)
        ids, mask = [], []
        for message in messages:
            head, text = (
                tokenizer(part, split_special_tokens=True)["input_ids"]
                for part in (f"{message['role']}\n", f"{message['role']}\n{message['content']}")
            )
            self.assertEqual(text[: len(head)], head)
            ids += [tokenizer.bos_token_id, *text, tokenizer.eos_token_id, *tokenizer("\n")["input_ids"]]
            counts = int(message["role"] == "assistant")
            mask += [0] * (1 + len(head)) + [counts] * (len(text) - len(head) + 1) + [0]
        self.assertEqual(ids.count(tokenizer.eos_token_id), len(messages))
        self.expect(self.step(self.folder / "chatml", [{"messages": messages}], 1), [(ids, mask)])

    def test_llama_2_with_a_sentencepiece_model_encodes_each_exchange_as_a_whole(self):
        """As Meta's program does: begin-of-text, "[INST] question [/INST] answer ", end-of-text."""
        text = self.folder / "text.txt"
        text.write_text((WORDS + "\n") * 50)
        prefix = self.folder / "llama2_pieces"
        sentencepiece.SentencePieceTrainer.train(
            input=str(text), model_prefix=str(prefix), vocab_size=330, model_type="bpe", byte_fallback=True,
            normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
        )  # fmt: skip
        model = prefix.with_suffix(".model")
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
        conversations = []
        for messages in CONVERSATIONS[:5]:
            messages = [dict(message) for message in messages]
            if messages[0]["role"] == "system":
                system = messages.pop(0)["content"]
                messages[0]["content"] = f"<<SYS>>\n{system}\n<</SYS>>\n\n{messages[0]['content']}"
            ids, mask = [], []
            for question, answer in zip(messages[::2], messages[1::2]):
                asked = f"[INST] {question['content'].strip()} [/INST]"
                whole = pieces.encode(f"{asked} {answer['content'].strip()} ")
                before = len(pieces.encode(asked))
                ids += [pieces.bos_id(), *whole, pieces.eos_id()]
                mask += [0] * (1 + before) + [1] * (len(whole) - before + 1)
            conversations.append((ids, mask))
        records = [{"messages": messages} for messages in CONVERSATIONS[:5]]
        rows = len(packed(conversations))
        self.expect(self.step(model, records, rows, "--data.chat_template=llama2"), conversations)

    def test_an_export_of_a_fine_tuned_model_writes_conversations_as_it_was_trained(self):
        records = [{"messages": messages} for messages in CONVERSATIONS]
        custom = ["--data.chat_template=custom", "--data.chat.user_prefix=it's <|start_header_id|>\n"]
        for name, flags in (
            ("llama3_1", ["--data.chat_template=llama3_1"]),
            ("custom", [*custom, "--data.chat.assistant_suffix=<|eot_id|>"]),
        ):
            with self.subTest(name=name):
                saved = ["--checkpoint.enable", "--checkpoint.last_save_model_only"]
                step = self.step(titan.ROOT / "configs/tokenizers/stories.model", records, 2, *flags, *saved)
                export = self.folder / name
                checkpoint = self.folder / "run-stories.model/checkpoint/step-1"
                subprocess.run([titan.binary(), "convert", "to-hf", checkpoint, export], check=True, capture_output=True)
                tokenizer = PreTrainedTokenizerFast.from_pretrained(export)
                ends = json.loads((export / "generation_config.json").read_text())["eos_token_id"]
                self.assertEqual(ends, [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|eot_id|>")])
                ids = [tokenizer.apply_chat_template(messages)["input_ids"] for messages in CONVERSATIONS]
                rows = packed([(one, one) for one in ids])[:2]
                for tokens, row in zip(step.tokens.tolist(), rows, strict=True):
                    whole = [id for one, _ in row for id in one][:LENGTH]
                    self.assertEqual(tokens[: len(whole)], whole)
                shutil.rmtree(self.folder / "run-stories.model")

    def test_a_template_of_ones_own_and_loss_on_all_tokens(self):
        tokenizer = learn(self.folder / "chatml", "chatml")
        flags = ["--data.chat_template=custom", "--data.chat_loss=all", "--data.chat.user_prefix=<|im_start|>Q: "]
        flags += ["--data.chat.assistant_prefix=\nA: ", "--data.chat.assistant_suffix=<|im_end|>"]
        records = [{"prompt": "who is it?" * 3, "completion": "it is I, " * i} for i in range(1, 6)]
        conversations = []
        for record in records:
            ids = tokenizer(f"<|im_start|>Q: {record['prompt']}\nA: {record['completion']}<|im_end|>")["input_ids"]
            conversations.append((ids, [1] * len(ids)))
        self.expect(self.step(self.folder / "chatml", records, len(packed(conversations)), *flags), conversations)


if __name__ == "__main__":
    unittest.main()

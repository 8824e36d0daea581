"""Fields of conversations beside role and content, against `transformers`: what its `apply_chat_template` writes for a
record, `titan_train data peek` shows, with the labels of its turns."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import tempfile
import unittest

from packages_oracle import byte_level
from tiktoken_reference import PATTERN
from tokenizers import Regex, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import titan
from chat_templates import QWEN3

SPECIAL = ["<|endoftext|>", "<|im_end|>", "<|im_start|>"]
# Names of control tokens in published templates.
CONTROL = re.compile(
    r"<\|[a-zA-Z_/0-9]+\|>|<｜[^>\s]*｜>|<(?:start|end)_of_turn>|<turn\|>|<\|turn>|<end_of_utterance>|</?think>|\[/?[A-Z_]+\]"
    r"|\[gMASK\]|<sop>"
)
# Reads names, parts of a content, thoughts, numbers, lists, and a variable.
FIELDS = """{%- if style is defined %}{{ '(' ~ style ~ ')' }}{% endif -%}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + (' ' + m.name if m.name is defined and m.name else '') + '\\n' }}
{%- if m.thinking %}{{ '[' + m.thinking + ']' }}{% endif %}
{%- if m.votes is defined %}{{ m.votes ~ ' ' ~ m.tags | join('/') }}{% endif %}
{%- if m.content is string %}{{ m.content }}{% else %}
{%- for part in m.content %}{{ part.text + ('' if loop.last else ' & ') }}{% endfor %}{% endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Mark the parts of a content, and read nothing but parts.
MARKED_PARTS = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.content is string %}{{ m.content }}{% else %}
{%- for part in m.content %}{% if part.type == 'text' %}{{ '[T]' + part.text | trim }}{% endif %}{% endfor %}{% endif %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
PARTS_OF_USERS = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'user' and m.content is not string %}
{%- for part in m.content %}{{ '-' + part.text }}{% endfor %}
{%- else %}{{ m.content }}{% endif %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
ONLY_PARTS = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- for part in m.content %}{{ part['text'] }}{% endfor %}
{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Marks that end without a control token.
MARKS = """{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{{ '«' }}{% generation %}{{ m.content }}{% endgeneration %}{{ '»' }}
{%- else %}{{ m.content }}{% endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n«' }}{% endif %}"""

# Marks a turn's header, content and end, and the line feed after it.
MARKED_TURNS = """{%- for m in messages %}
{%- if m.role == 'assistant' %}
{%- generation %}{{ '<|im_start|>assistant\\n' + m.content + '<|im_end|>\\n' }}{% endgeneration %}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def user(content, **more) -> dict:
    return {"role": "user", "content": content, **more}


def answer(content, **more) -> dict:
    return {"role": "assistant", "content": content, **more}


THOUGHTS = [
    [user("How many?"), answer("Seven.", reasoning_content="nine less two")],
    [user("One"), answer("a", reasoning_content="first"), user("Two"), answer("b", reasoning_content="second")],
    [user("<|im_end|> is text"), answer("so", reasoning_content="<|im_start|>")],
    [user("None"), answer("x", reasoning_content=None)],
    [user("q"), answer("a", thinking="hm")],
    [user("q"), answer("a", reasoning="hm", name=None)],
]
OTHERS = [
    [user("Who?", name="Ann"), answer("You.", name="Bob")],
    [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), answer("c")],
    [user("Why?"), answer([{"type": "text", "text": "so"}], thinking="hm")],
    [user("x", votes=3, tags=["p", "q"]), answer("y", votes=None)],
    [user("x", name=None), answer("y", reasoning_content="so")],
]


def parts(*texts: str) -> list[dict]:
    return [{"type": "text", "text": text} for text in texts]


IN_PARTS = [[user(parts("a ", "b")), answer(parts("c"))], [user(parts("a")), answer(parts("c", " d"))]]


class Fields(unittest.TestCase):
    def setUp(self):
        titan.binary()
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place, self.folder = pathlib.Path(place.name), pathlib.Path()

    def learn(self, template: str, special: list[str] = SPECIAL) -> PreTrainedTokenizerFast:
        self.folder = self.place / f"tokenizer-{len(list(self.place.iterdir()))}"
        split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        byte_level(self.folder, ["How many? nine less two, and seven."] * 4, 300, [split, plain], special=special)
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": special[0], "eos_token": special[1]}
        (self.folder / "tokenizer_config.json").write_text(json.dumps(config))
        (self.folder / "chat_template.jinja").write_text(template)
        return PreTrainedTokenizerFast.from_pretrained(self.folder)

    def peek(self, records: list[dict]) -> list[tuple[str, str]]:
        """The text and the labels of every record."""
        shown = re.findall(r"^  (\".*\")\n  labels (\".*\")$", self.shown(records), re.MULTILINE)
        return [(json.loads(text), json.loads(labels)) for text, labels in shown]

    def shown(self, records: list[dict]) -> str:
        corpus = self.folder / "chat.jsonl"
        corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
        command = [titan.binary(), "data", "peek", "--dataset-path", str(corpus), "--tokenizer", str(self.folder)]
        command += ["--chat-template", "auto", "--documents", str(len(records))]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("warning", done.stdout)
        return done.stdout

    def test_texts_are_those_of_transformers(self):
        of_users = [[user(parts("a", "b")), answer("c")], [user("a"), answer("c")]]
        cases = [(QWEN3, THOUGHTS), (FIELDS, OTHERS), (MARKED_PARTS, IN_PARTS), (ONLY_PARTS, IN_PARTS)]
        for template, conversations in (*cases, (PARTS_OF_USERS, of_users), (MARKED_PARTS, of_users)):
            tokenizer = self.learn(template)
            expected = [tokenizer.apply_chat_template(one, tokenize=False) for one in conversations]
            self.assertEqual([text for text, _ in self.peek([{"messages": one} for one in conversations])], expected)

    def test_templates_know_all_named_tokens(self):
        names = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token", "image_token")
        wrote = "".join(f"[{{{{ {name} if {name} is defined else '-' }}}}]" for name in names)
        template = "{% for m in messages %}{{ m.content }}{{ '<|im_end|>' }}{% endfor %}" + wrote
        self.learn(template)
        file = self.folder / "tokenizer_config.json"
        config = json.loads(file.read_text())
        more = {"pad_token": "<|im_end|>", "cls_token": {"__type": "AddedToken", "content": "<|im_start|>"}, "mask_token": None}
        for extra in ({}, more, {"extra_special_tokens": {"image_token": "<|im_start|>"}, "unk_token": "seven"}):
            with self.subTest(extra=extra):
                file.write_text(json.dumps({**config, **extra}))
                tokenizer = PreTrainedTokenizerFast.from_pretrained(self.folder)
                expected = tokenizer.apply_chat_template([user("q"), answer("a")], tokenize=False)
                self.assertEqual(self.peek([{"messages": [user("q"), answer("a")]}])[0][0], expected)

    def test_the_default_of_several_templates_is_run(self):
        self.learn("{% for m in messages %}{{ m.content + '|' }}{% endfor %}")
        more = self.folder / "additional_chat_templates"
        more.mkdir()
        for name in ("rag", "default"):
            (more / f"{name}.jinja").write_text(f"{{% for m in messages %}}{{{{ m.content + '{name}' }}}}{{% endfor %}}")
            self.check_run()
        for path in (*more.iterdir(), more, self.folder / "chat_template.jinja"):
            path.rmdir() if path.is_dir() else path.unlink()
        file = self.folder / "tokenizer_config.json"
        by_name = {"default": "{% for m in messages %}{{ m.content + '!' }}{% endfor %}", "rag": "?"}
        listed = [{"name": name, "template": text} for name, text in by_name.items()]
        for value in (by_name, listed):
            file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": value}))
            self.check_run()

    def check_run(self):
        tokenizer = PreTrainedTokenizerFast.from_pretrained(self.folder)
        expected = tokenizer.apply_chat_template([user("q"), answer("a")], tokenize=False)
        self.assertEqual(self.peek([{"messages": [user("q"), answer("a")]}])[0][0], expected)

    def test_variables_of_a_record_are_those_of_the_template(self):
        tokenizer = self.learn(FIELDS)
        conversation = [user("q"), answer("a")]
        for kwargs in ({"style": "brief"}, {"style": 3}, {"style": None}, {}):
            expected = tokenizer.apply_chat_template(conversation, tokenize=False, **kwargs)
            self.assertEqual(self.peek([{"messages": conversation, "chat_template_kwargs": kwargs}])[0][0], expected)

    def test_labels_are_the_turns_that_count_with_their_thoughts(self):
        self.learn(FIELDS)
        talk = [user("q"), answer("a", thinking="t", weight=0), user("r"), answer("b", thinking="u", weight=1)]
        trl = {"prompt": talk[:3], "completion": talk[3:]}
        share = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"}
        alpaca = {"instruction": "Add.", "input": "1 and 2", "output": "3"}
        labels = [one for _, one in self.peek([{"messages": talk}, trl, share, alpaca])]
        self.assertEqual(labels, ["[u]b<|im_end|>", "[u]b<|im_end|>", "a<|im_end|>", "3<|im_end|>"])

    def test_marks_cover_all_ids_of_their_characters(self):
        tokenizer = self.learn(MARKS)
        talks = [[user("é?"), answer(text)] for text in ("ab🦊", "🦊", "東京 é", "é seven", "e\u0301", "1 ", "nine ß")]
        expected = []
        for talk in talks:
            made = tokenizer.apply_chat_template(talk, tokenize=True, return_assistant_tokens_mask=True)
            marked = [id for id, counts in zip(made["input_ids"], made["assistant_masks"]) if counts]
            expected.append(tokenizer.decode(marked))
        self.assertEqual([labels for _, labels in self.peek([{"messages": talk} for talk in talks])], expected)

    def test_nothing_that_is_marked_in_a_turn_that_is_no_label_counts(self):
        found = importlib.util.find_spec("trl")
        self.assertIsNotNone(found, "trl of tests/reference/requirements_alone.txt is missing")
        folder = pathlib.Path(found.submodule_search_locations[0]) / "chat_templates"
        published = {path.name: path.read_text() for path in sorted(folder.glob("*.jinja"))}
        marked = {name: text for name, text in published.items() if "endgeneration" in text.split("-#}")[-1]}
        self.assertGreater(len(marked), 30)
        for name, template in {**marked, "MARKS": MARKS, "MARKED_TURNS": MARKED_TURNS}.items():
            with self.subTest(template=name):
                content = parts if name.startswith(("idefics3", "llava_next", "smolvlm")) else str
                talk = [user(content("Hi")), answer(content("seven")), user(content("many?")), answer(content("nine"))]
                silent = [talk[0], {**talk[1], "weight": 0}, *talk[2:]]
                records = [{"messages": one} for one in (silent[:2], silent, talk)]
                records.append({"prompt": talk[:3], "completion": talk[3:]})
                special = ["<s>", "</s>", *sorted({*SPECIAL, *CONTROL.findall(template)})]
                tokenizer = self.learn(template, special)
                text = tokenizer.apply_chat_template(talk, tokenize=False)
                made = tokenizer.apply_chat_template(talk, tokenize=True, return_assistant_tokens_mask=True)
                starts = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
                ids = list(zip(made["input_ids"], made["assistant_masks"], (begin for begin, _ in starts), strict=True))
                last = text.rindex("many?")  # trl's mask of a completion is 0 before it, too
                after = tokenizer.decode([id for id, counts, begin in ids if counts and begin > last])
                every = tokenizer.decode([id for id, counts, _ in ids if counts])
                self.assertIn("nine", after)
                labels = re.findall(r"^  labels (\".*\")$", self.shown(records), re.MULTILINE)
                self.assertEqual([json.loads(one) for one in labels], ["", after, every, after])

    def test_spaces_that_the_tokenizer_trims_from_offsets_do_not_count(self):
        texts = ("two and ", " seven", "many  ", "  less two ", " ", "nine less", "?")
        talks = [[user("How"), answer(text)] for text in texts]
        bare = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{{ ' and seven' }}{% endfor %}"
        kinds = [
            {"type": "ByteLevel", "add_prefix_space": add, "trim_offsets": trim, "use_regex": True}
            for add in (False, True) for trim in (False, True)
        ]
        roberta = {"type": "RobertaProcessing", "sep": [SPECIAL[1], 1], "cls": [SPECIAL[0], 0]}
        kinds += [{**roberta, "trim_offsets": trim, "add_prefix_space": add} for trim, add in ((True, True), (False, True))]
        kinds.append({"type": "Sequence", "processors": [kinds[1]]})
        for template in (MARKS, bare):
            tokenizer = self.learn(template)
            file = self.folder / "tokenizer.json"
            for kind in kinds:
                with self.subTest(kind=kind, template=template):
                    file.write_text(json.dumps({**json.loads(file.read_text()), "post_processor": kind}))
                    tokenizer = PreTrainedTokenizerFast.from_pretrained(self.folder)
                    expected = []
                    for talk in talks:
                        made = tokenizer.apply_chat_template(talk, tokenize=True, return_assistant_tokens_mask=True)
                        marked = [id for id, counts in zip(made["input_ids"], made["assistant_masks"]) if counts]
                        expected.append(tokenizer.decode(marked))
                    records = [{"messages": talk} for talk in talks]
                    self.assertEqual([labels for _, labels in self.peek(records)], expected)

    def test_forms_are_the_messages_that_they_say(self):
        tokenizer = self.learn(FIELDS)
        says = [{"role": "system", "content": "s"}, user("q"), answer("a")]
        forms = [
            {"messages": says},
            {"system": "s", "messages": says[1:]},
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
            {"prompt": says[:2], "completion": says[2:]},
            {"system": "s", "prompt": "q", "completion": "a"},
            {"system": "s", "instruction": "q", "input": "", "output": "a"},
        ]
        expected = tokenizer.apply_chat_template(says, tokenize=False)
        self.assertEqual([text for text, _ in self.peek(forms)], [expected] * len(forms))


if __name__ == "__main__":
    unittest.main()

"""The interpreter of chat templates against Jinja itself with the settings of `transformers`: every template gives the
same text and the same marks, or is refused by the name of what is not supported; what Jinja refuses is refused.
"""

from __future__ import annotations

import datetime
import importlib.util
import itertools
import json
import os
import pathlib
import random
import subprocess
import unittest

from transformers.utils import chat_template_utils

import titan
from jinja_templates import FILTERS, METHODS, OPERATORS, PREFIX, TEMPLATES, TESTS, USES, VALUES

FULL = bool(os.environ.get("TITAN_TEST_FULL"))
MESSAGES = [
    {"role": "user", "content": "Hé"},
    {"role": "assistant", "content": "x", "tag": {"b": [1, 2.5, None], "a": "q"}},
]
VARIABLES = {
    "bos_token": "<s>",
    "kw": {"nested": {"z": 1, "a": "é", "m": [True, None, 1e20]}},
    "big": 123456789012,
}


class FixedDay(datetime.datetime):
    """The day that titan's templates see (docs/data.md)."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def reference(case: dict) -> dict:
    template = chat_template_utils._compile_jinja_template
    try:
        text, marks = chat_template_utils._render_with_assistant_indices(
            compiled_template=template(case["template"]), messages=case["messages"], tools=None, documents=None,
            add_generation_prompt=case["generate"], **case["variables"],
        )  # fmt: skip
        return {"text": text, "marks": [list(mark) for mark in marks]}
    except Exception as error:  # whatever a template's Python raises
        return {"error": f"{type(error).__name__}: {error}"}


def in_characters(rendered: dict) -> list[list[int]]:
    """The marks that transformers counts in characters."""
    starts = [len(rendered["text"].encode()[:begin].decode()) for begin, _ in rendered["marks"]]
    return [[start, start + length] for start, (_, length) in zip(starts, rendered["marks"])]


class JinjaTest(unittest.TestCase):
    def setUp(self):
        self.program = pathlib.Path(titan.binary()).with_name("render_templates")
        kept = chat_template_utils.datetime
        self.addCleanup(setattr, chat_template_utils, "datetime", kept)
        chat_template_utils.datetime = FixedDay

    def rendered(self, cases: list[dict]) -> list[dict]:
        lines = "".join(json.dumps(case) + "\n" for case in cases)
        done = subprocess.run([self.program], input=lines, capture_output=True, text=True, check=True, timeout=600)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def compare(self, cases: list[dict], same: float) -> None:
        """At least the share `same` of the cases gives a text on both sides."""
        wrong, equal = [], 0
        for case, ours in zip(cases, self.rendered(cases), strict=True):
            theirs = reference(case)
            if "error" in theirs:
                right = "error" in ours
            elif "error" in ours:
                right = ours["kind"] == "unsupported"
            else:
                right = ours["text"] == theirs["text"] and in_characters(ours) == theirs["marks"]
                equal += right
            if not right:
                wrong.append(f"{case['template'][-300:]!r}\n  ours   {ours}\n  theirs {theirs}")
        self.assertEqual(wrong, [], "\n".join(wrong[:20]))
        self.assertGreaterEqual(equal, same * len(cases))

    @staticmethod
    def case(template: str, messages: list[dict] = MESSAGES, generate: bool = False, **variables) -> dict:
        return {"template": template, "messages": messages, "generate": generate, "variables": VARIABLES | variables}

    def test_every_construct(self):
        self.compare([self.case(template) for template in TEMPLATES], same=0.6)

    def test_every_filter_test_operator_and_method_with_values_of_every_type(self):
        uses = [f"{{{{ v|{name} }}}}" for name in FILTERS] + [f"{{{{ v is {name} }}}}" for name in TESTS]
        uses += [f"{{{{ v.{name} }}}}" for name in METHODS] + [f"{{{{ {use} }}}}" for use in USES]
        uses += ["{% for x in v %}{{ loop.index }}{{ x }}|{% else %}E{% endfor %}", "{% set x, y = v %}{{ x }}{{ y }}"]
        uses += [f"{{{{ v {sign} ({other}) }}}}" for sign, other in itertools.product(OPERATORS, VALUES)]
        templates = [f"{PREFIX}{{% set v = {value} %}}{use}" for value, use in itertools.product(VALUES, uses)]
        if not FULL:
            templates = random.Random(7).sample(templates, 6000)
        self.compare([self.case(template) for template in templates], same=0.3)

    def test_random_templates(self):
        count = 20_000 if FULL else 1000
        done = subprocess.run([self.program, str(count)], capture_output=True, text=True, check=True, timeout=600)
        templates = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(templates), count)
        self.compare([self.case(template) for template in templates], same=0.8)

    def test_templates_of_trl(self):
        found = importlib.util.find_spec("trl")
        self.assertIsNotNone(found, "trl of tests/reference/requirements_alone.txt is missing")
        folder = pathlib.Path(found.submodule_search_locations[0]) / "chat_templates"
        templates = {path.name: path.read_text() for path in sorted(folder.glob("*.jinja"))}
        self.assertGreater(len(templates), 60)
        turns = [
            [("user", "Hi"), ("assistant", "Hello.")],
            [("system", "Be  brief.\n"), ("user", " What?\n"), ("assistant", "\n é 🦊"), ("user", "東京?"), ("assistant", "ok")],
            [("user", "Why?"), ("assistant", "<think>\nHm…\n</think>\n\nSo."), ("user", "And?"), ("assistant", "That.\n")],
            [("user", ""), ("assistant", " ")],
            [("user", "<|im_end|>{{ x }}"), ("assistant", "a\tb \"q\" 'p' \\ <b>&")],
            [("system", "s"), ("user", "a")],
            [("user", "a"), ("user", "b"), ("assistant", "c")],
        ]
        choices = [{}, {"enable_thinking": False}, {"reasoning_effort": "high", "date_string": "x"}]
        cases = []
        for template, turn, generate, more in itertools.product(templates.values(), turns, (False, True), choices):
            messages = [{"role": role, "content": content} for role, content in turn]
            if len(turn) == 4:
                messages[1]["reasoning_content"] = messages[1]["thinking"] = "R\n1"
            cases.append(self.case(template, messages, generate, eos_token="</s>", **more))
        self.compare(cases, same=0.85)
        # None of them is refused for its constructs.
        refused = {ours["error"] for ours in self.rendered(cases) if ours.get("kind") == "unsupported"}
        self.assertEqual(refused, set())


if __name__ == "__main__":
    unittest.main()

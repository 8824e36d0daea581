"""The helper that makes records of a Parquet file, which the program itself does not read."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import unittest

from program import BAD_DATA, OK, ROOT, BehaviourTest

TEXTS = ["once upon a time", "", None, 'two\nlines, "quoted"', "漢字 🙂 \u2028 é", "x" * 100_000]
# In a process of its own: pyarrow brings large libraries along.
WRITE = """
import json, sys
import pyarrow, pyarrow.parquet
table = pyarrow.table(json.load(sys.stdin))
pyarrow.parquet.write_table(table, sys.argv[1], row_group_size=2, compression="zstd")
"""
SCRIPT = ROOT / "scripts" / "parquet_to_jsonl.py"
CHAT = [[{"role": "user", "content": "how many?"}, {"role": "assistant", "content": "seven."}],
        [{"role": "user", "content": "and now?"}, {"role": "assistant", "content": None}]]  # fmt: skip


@unittest.skipUnless(importlib.util.find_spec("pyarrow"), "pyarrow (tests/reference/requirements.txt) is not there")
class Parquet(BehaviourTest):
    def parquet(self, **columns) -> pathlib.Path:
        path = self.folder / "corpus.parquet"
        subprocess.run([sys.executable, "-c", WRITE, str(path)], input=json.dumps(columns), text=True, check=True)
        return path

    def convert(self, *words) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)

    def records(self, path: pathlib.Path) -> list[dict]:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]

    def test_the_command_that_a_refusal_names_makes_records_that_are_read(self):
        path = self.parquet(id=list(range(18)), text=TEXTS * 3)
        refusal = self.titan("data", "stats", "--dataset-path", path)
        self.expect(refusal, BAD_DATA)
        script, source, target = re.search(r"python (\S+) (\S+) (\S+)\.$", refusal.errors.strip()).groups()
        subprocess.run([sys.executable, script, source, target], cwd=ROOT, check=True)
        records = self.records(pathlib.Path(target))
        self.assertEqual([record["text"] for record in records], [text or "" for text in TEXTS * 3])
        self.assertEqual([record["id"] for record in records], list(range(18)))
        again = subprocess.run([sys.executable, script, source, target], cwd=ROOT, capture_output=True, text=True)
        self.assertIn("is there already; remove it or name another file", again.stderr)
        self.assertEqual(len(again.stderr.splitlines()), 1)
        self.assertNotEqual(again.returncode, 0)
        stats = self.titan("data", "stats", "--dataset-path", target)
        self.expect(stats, OK)
        self.assertRegex(stats.output, rf"documents +{len(TEXTS) * 3}\n")

    def test_another_column_becomes_the_text(self):
        target = self.folder / "out.jsonl"
        self.assertEqual(self.convert(self.parquet(content=TEXTS, text=["x"] * 6), target, "content").returncode, 0)
        self.assertEqual(self.records(target), [{"text": text or ""} for text in TEXTS])

    def test_conversations_and_what_is_beside_them_stay_as_they_are(self):
        target = self.folder / "out.jsonl"
        done = self.convert(self.parquet(messages=CHAT, system=["be brief", None], score=[float("nan"), 0.5]), target)
        self.assertEqual(done.returncode, 0, done.stderr)
        expected = [{"messages": CHAT[0], "system": "be brief", "score": None},
                    {"messages": CHAT[1], "system": None, "score": 0.5}]  # fmt: skip
        self.assertEqual(self.records(target), expected)

    def test_nothing_is_left_where_it_fails(self):
        damaged = self.write("damaged.parquet", "PAR1 is not enough")
        script = "import sys, pyarrow, pyarrow.parquet; pyarrow.parquet.write_table("
        script += "pyarrow.table({'text': ['a', 'b'], 'image': [b'1', b'2']}), sys.argv[1])"
        pictures = self.folder / "pictures.parquet"
        subprocess.run([sys.executable, "-c", script, pictures], check=True)
        missing = self.folder / "missing.parquet"
        before = sorted(self.folder.iterdir())
        for words, says in (((pictures,), 'column "image" holds bytes'), ((damaged,), "cannot be converted"),
                            ((pictures, "body"), 'has no column "body", only text, image'),
                            ((missing,), "cannot be converted")):  # fmt: skip
            failed = self.convert(words[0], self.folder / "out.jsonl", *words[1:])
            self.assertIn(says, failed.stderr)
            self.assertEqual(len(failed.stderr.splitlines()), 1, failed.stderr)
            self.assertNotEqual(failed.returncode, 0)
            self.assertEqual(sorted(self.folder.iterdir()), before)


if __name__ == "__main__":
    unittest.main()

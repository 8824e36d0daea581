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
path, column, texts = sys.argv[1], sys.argv[2], json.load(sys.stdin)
table = pyarrow.table({"id": range(len(texts)), column: pyarrow.array(texts, pyarrow.string())})
pyarrow.parquet.write_table(table, path, row_group_size=2, compression="zstd")
"""


@unittest.skipUnless(importlib.util.find_spec("pyarrow"), "pyarrow (tests/reference/requirements.txt) is not there")
class Parquet(BehaviourTest):
    def parquet(self, column: str) -> pathlib.Path:
        path = self.folder / "corpus.parquet"
        command = [sys.executable, "-c", WRITE, str(path), column]
        subprocess.run(command, input=json.dumps(TEXTS * 3), text=True, check=True)
        return path

    def test_the_command_that_a_refusal_names_makes_records_that_are_read(self):
        path = self.parquet("text")
        refusal = self.titan("data", "stats", "--dataset-path", path)
        self.expect(refusal, BAD_DATA)
        script, source, target = re.search(r"python (\S+) (\S+) (\S+)\.$", refusal.errors.strip()).groups()
        subprocess.run([sys.executable, script, source, target], cwd=ROOT, check=True)
        lines = pathlib.Path(target).read_text(encoding="utf-8").split("\n")
        self.assertEqual([json.loads(line)["text"] for line in lines[:-1]], [text or "" for text in TEXTS * 3])
        self.assertEqual(lines[-1], "")
        again = subprocess.run([sys.executable, script, source, target], cwd=ROOT, capture_output=True, text=True)
        self.assertIn("FileExistsError", again.stderr)
        self.assertNotEqual(again.returncode, 0)
        stats = self.titan("data", "stats", "--dataset-path", target)
        self.expect(stats, OK)
        self.assertRegex(stats.output, rf"documents +{len(TEXTS) * 3}\n")

    def test_another_column_becomes_the_text(self):
        target = self.folder / "out.jsonl"
        script = ROOT / "scripts" / "parquet_to_jsonl.py"
        subprocess.run([sys.executable, script, self.parquet("content"), target, "content"], check=True)
        self.assertEqual(json.loads(target.read_text().splitlines()[0]), {"text": TEXTS[0]})


if __name__ == "__main__":
    unittest.main()

"""What benchmarks recorded (scripts/bench/records.py), and the tables that README and the pages show of it."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))

import driver  # noqa: E402
import ratios  # noqa: E402
import records  # noqa: E402

KEY = "cpu/step/8x512/float32"


def record(value: float, commit: str = "abc", key: str = KEY) -> dict:
    date = f"2026-01-{10 + len(commit):02}"
    return {"key": key, "against": "PyTorch", "value": value, "spread": [1, 9], "date": date, "commit": commit, "processor": "P"}


class Records(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="titan-records-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def git(self, *words: str) -> str:
        named = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        return subprocess.run(["git", "-C", self.folder, *named, *words], check=True, capture_output=True, text=True).stdout

    def commit(self, path: str) -> str:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        with (self.folder / path).open("a") as file:
            file.write("changed\n")
        self.git("add", ".")
        self.git("commit", "-q", "-m", f"changes {path}")
        return self.git("rev-parse", "--short", "HEAD").strip()

    def test_tables_of_readme_and_of_the_pages_are_those_of_the_records(self):
        for path, text in records.documents().items():
            self.assertEqual(path.read_text(), text, f"{path.name}: run scripts/bench/records.py --write")

    def test_the_worst_of_the_last_three_is_shown(self):
        found = [record(value) for value in (1.1, 2.5, 1.6, 1.9)]
        self.assertEqual(records.shown(found, KEY)["value"], 1.6)
        memory = "cpu/memory/8x512/float32"
        self.assertEqual(records.shown([record(value, key=memory) for value in (0.9, 0.5, 0.7, 0.6)], memory)["value"], 0.7)

    def test_every_record_and_every_row_has_its_page_and_what_it_measures_is_there(self):
        keys = {found["key"] for found in records.read()}
        self.assertEqual(keys, {key for row in records.ROWS for key in row.keys})
        for kind in records.KINDS:
            self.assertTrue(any(records.kind_of(key) is kind for key in keys), kind.prefix)
            for path in kind.paths:
                self.assertTrue((ROOT / path).exists(), path)

    def test_a_new_record_names_the_commit_and_comes_into_the_tables(self):
        (self.folder / "docs" / "benchmarks").mkdir(parents=True)
        for path in records.documents():
            shutil.copy(path, self.folder / path.relative_to(ROOT))
        (self.folder / "docs" / "benchmarks" / "records.jsonl").write_text("".join(f"{json.dumps(found)}\n" for found in records.read()))
        self.git("init", "-q")
        commit = self.commit("src/ops/code.cpp")
        records.append(KEY, "compiled PyTorch", [1.23456, 1.1], 1.17, "a processor, 2 cores", self.folder)
        records.write(self.folder)
        page = (self.folder / "docs" / "benchmarks" / "cpu.md").read_text()
        self.assertRegex(page, rf"\| {KEY} \| compiled PyTorch \| 1.17× \| 1.1 to 1.23 \| a processor, 2 cores \| [\d-]+ \| {commit} \|")
        self.assertRegex((self.folder / "README.md").read_text(), r"8 × 512 tokens, fp32 / bf16 \| compiled PyTorch / .* \| 1.17× / ")

    def test_the_rows_of_a_benchmark_that_have_a_key_are_recorded_when_that_is_asked_for(self):
        rows = [ratios.Row("speed", "", "", [1.5, 1.7], 1.6, True, key=KEY, against="PyTorch"), ratios.Row("wait", "", "", [1], 2, False)]
        for record, kept in ((True, [(KEY, "PyTorch", [1.5, 1.7], 1.6)]), (False, [])):
            appended = []
            with (
                unittest.mock.patch.object(records, "append", lambda *words: appended.append(words[:4])),
                unittest.mock.patch.object(records, "write"),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                driver.verdict(rows, argparse.Namespace(quick=False, check=False, record=record))
            self.assertEqual(appended, kept)

    def test_a_record_is_old_once_what_it_measures_has_changed(self):
        self.git("init", "-q")
        first = self.commit("src/ops/code.cpp")
        self.commit("docs/page.md")  # no part of it
        self.assertEqual(records.old_lines([record(1.0, first)], self.folder), [])
        self.commit("src/train/code.cpp")
        (line,) = records.old_lines([record(1.0, first)], self.folder)
        self.assertIn(f"recorded 2026-01-17 at {first}; 1 commit since then changed what it measures", line)
        self.assertEqual(records.old_lines([record(1.0, first), record(1.0, self.git("rev-parse", "HEAD").strip())], self.folder), [])
        (line,) = records.old_lines([record(1.0, "0123456")], self.folder)
        self.assertIn("which this checkout does not know", line)

    def test_a_document_without_its_marks_is_named_by_an_error(self):
        with self.assertRaises(ValueError):
            records.with_table("# Page\n", ["| row |"])


if __name__ == "__main__":
    unittest.main()

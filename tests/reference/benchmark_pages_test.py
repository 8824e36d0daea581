"""What pages say of the scripts of benchmarks: how they are started, how long they take, what they allow."""

from __future__ import annotations

import ast
import os
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "gpu"))

import check  # noqa: E402

METHOD = (ROOT / "docs" / "benchmarks" / "README.md").read_text()
COMMANDS = re.compile(r"^ {4}(?:\./)?(scripts/[\w/]+\.(?:py|sh))\b|`(?:\./)?(scripts/[\w/]+\.(?:py|sh)) [^`]+`", re.M)
USAGE = re.compile(r"^ *(scripts/[\w/]+\.py)\b", re.M)


class Commands(unittest.TestCase):
    def test_a_script_that_a_page_or_its_own_usage_starts_by_its_path_can_be_started_so(self):
        found = set()
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
            found |= {left or right for left, right in COMMANDS.findall(page.read_text())}
        for script in sorted((ROOT / "scripts").rglob("*.py")):
            found |= set(USAGE.findall(ast.get_docstring(ast.parse(script.read_text()), clean=False) or ""))
        self.assertIn("scripts/bench/records.py", found)
        self.assertGreater(len(found), 20)
        for name in sorted(found):
            with self.subTest(script=name):
                self.assertTrue(os.access(ROOT / name, os.X_OK), "its mode is not executable")
                self.assertTrue((ROOT / name).read_text().startswith("#!"), "its first line names no interpreter")


class CheckOfAGpu(unittest.TestCase):
    """The section that docs/benchmarks/README.md has of scripts/gpu/check.sh."""

    section = METHOD.split("\n## What a GPU shows\n", 1)[1]

    def test_the_minutes_are_those_that_the_driver_gives_the_rows(self):
        seconds = re.search(r'"check": \(?(\d+)', (ROOT / "scripts" / "gpu" / "first.py").read_text())[1]
        words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
        self.assertIn(f"\nAt most {words[-(-int(seconds) // 60)]} minutes.", self.section)

    def test_the_bounds_of_each_row_are_those_that_it_is_held_against(self):
        told = {}
        for names, first, later in re.findall(r"^\| [^|]+ \| ([^|]+) \| ([\de-]+) \| ([\de-]+) \|$", self.section, re.M):
            told |= dict.fromkeys(re.findall(r"`([\w-]+)`", names) or ["others"], (float(first), float(later)))
        compared = {row.name: row.bars for row in check.ROWS if row.against}
        self.assertLessEqual(set(told) - {"others"}, set(compared))
        for name, bars in compared.items():
            with self.subTest(row=name):
                self.assertEqual(told.get(name, told["others"]), bars)


if __name__ == "__main__":
    unittest.main()

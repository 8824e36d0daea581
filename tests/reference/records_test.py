"""What benchmarks recorded (scripts/bench/records.py), and the tables that README and the pages show of it."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))

import cpu  # noqa: E402
import driver  # noqa: E402
import ratios  # noqa: E402
import records  # noqa: E402
import ring  # noqa: E402

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

    def test_what_makes_a_record_old_has_the_scripts_that_measure_it_and_the_files_that_these_import_or_run(self):
        method = (ROOT / "docs" / "benchmarks" / "README.md").read_text()
        for kind in records.KINDS:
            with self.subTest(kind=kind.prefix):
                (cell,) = re.findall(rf"^\| (.*) \| .* \| \[{kind.page}\.md\]\({kind.page}\.md\) \|$", method, re.M)
                named = [ROOT / "scripts/bench" / pathlib.Path(name).name for name in re.findall(r"[\w/]+\.sh", cell)]
                own = [path for script in named for path in (script.with_suffix(".py"), ROOT / "scripts" / script.with_suffix(".py").name)]
                own += [ROOT / "scripts/bench/tokenizer_speed.py"] if kind.page == "data" else []
                drivers = [str(path.relative_to(ROOT)) for path in own if path.exists()]
                self.assertTrue(set(drivers) & set(kind.paths), drivers)
                for path in set(drivers) & set(kind.paths):
                    text = (ROOT / path).read_text()
                    if re.search(r"^import ratios$", text, re.M):
                        self.assertIn("scripts/bench/ratios.py", kind.paths)
                    if re.search(r"^import trainers$", text, re.M):
                        self.assertLessEqual({"scripts/bench/trainers.py", "configs/debug_model.toml"}, set(kind.paths))
                    if "trainers.python" in text:
                        self.assertIn("scripts/gpu/baseline.py", kind.paths)
                self.assertIn("scripts/libtorch.sh", kind.paths)
                for part in kind.parts:
                    self.assertLessEqual({f"src/{part}", f"include/titan/{part}"}, set(kind.paths))

    def test_a_new_record_names_the_commit_and_comes_into_the_tables(self):
        (self.folder / "docs" / "benchmarks").mkdir(parents=True)
        for path in records.documents():
            shutil.copy(path, self.folder / path.relative_to(ROOT))
        (self.folder / "docs" / "benchmarks" / "records.jsonl").write_text("".join(f"{json.dumps(found)}\n" for found in records.read()))
        self.git("init", "-q")
        commit = self.commit("src/ops/code.cpp")
        records.append(KEY, "compiled PyTorch", [1.23456, 1.1], 1.17, "a processor, 2 cores", records.head(self.folder), self.folder)
        self.assertEqual(records.read(self.folder)[-1]["pairs"], 2)
        records.write(self.folder)
        page = (self.folder / "docs" / "benchmarks" / "cpu.md").read_text()
        self.assertRegex(page, rf"\| {KEY} \| compiled PyTorch \| 1.17× \| 1.1 to 1.23, 2 pairs \| a processor, 2 cores \| [\d-]+ \| {commit} \|")
        self.assertRegex((self.folder / "README.md").read_text(), r"8 × 512 tokens, fp32 / bf16 \| compiled PyTorch / .* \| 1.17× / ")

    def test_the_rows_of_a_benchmark_that_have_a_key_are_recorded_when_that_is_asked_for(self):
        rows = [ratios.Row("speed", "", "", [1.5, 1.7], 1.6, True, key=KEY, against="PyTorch"), ratios.Row("wait", "", "", [1], 2, False)]
        for record, kept in ((True, [(KEY, "PyTorch", [1.5, 1.7], 1.6, "abc")]), (False, [])):
            appended = []
            with (
                unittest.mock.patch.object(records, "append", lambda *words: appended.append((*words[:4], words[5]))),
                unittest.mock.patch.object(records, "write"),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                driver.verdict(rows, argparse.Namespace(quick=False, check=False, record=record, commit="abc"))
            self.assertEqual(appended, kept)

    def test_a_record_is_old_once_what_it_measures_has_changed(self):
        self.git("init", "-q")
        first = self.commit("src/ops/code.cpp")
        self.commit("docs/page.md")  # no part of it
        self.assertEqual(records.old_lines([record(1.0, first)], self.folder), [])
        self.commit("src/train/code.cpp")
        (line,) = records.old_lines([record(1.0, first)], self.folder)
        self.assertIn(f"recorded 2026-01-17 at {first}; 1 commit since then changed what it measures", line)
        (line,) = records.old_lines([record(1.0, "0123456")], self.folder)
        self.assertIn("which this checkout does not know", line)

    def test_headers_the_config_the_method_and_the_pin_of_libtorch_make_a_record_old_and_pages_do_not(self):
        self.git("init", "-q")
        for path in ("include/titan/ops/attention.h", "configs/debug_model.toml", "scripts/bench/cpu.py", "scripts/bench/trainers.py",
                     "scripts/bench/ratios.py", "scripts/libtorch.sh", "tests/reference/requirements.txt"):  # fmt: skip
            with self.subTest(path=path):
                before = self.commit("docs/page.md")
                self.commit(path)
                self.assertEqual(len(records.old_lines([record(1.0, before)], self.folder)), 1)

    def test_of_several_records_the_one_that_readme_shows_is_judged(self):
        self.git("init", "-q")
        first = self.commit("src/ops/code.cpp")
        now = self.commit("src/train/code.cpp")
        (line,) = records.old_lines([record(1.0, first), record(2.0, now)], self.folder)
        self.assertIn(f"at {first}; ", line)
        self.assertEqual(records.old_lines([record(2.0, first), record(1.0, now)], self.folder), [])
        newer = [record(value, now) for value in (3.0, 2.0, 4.0)]
        self.assertEqual(records.old_lines([record(1.0, first), *newer], self.folder), [])

    def test_a_program_that_is_not_heads_a_changed_checkout_and_few_pairs_are_no_record(self):
        self.git("init", "-q")
        code = "src/ops/code.cpp"
        for path in (".gitignore", code, "README.md", "docs/benchmarks/records.jsonl"):
            self.commit(path)
        (self.folder / ".gitignore").write_text("/build/\n")
        self.git("commit", "-q", "-a", "-m", "what is built is ignored")
        program = self.folder / "build" / "release" / "titan_train"
        program.parent.mkdir(parents=True)
        cache = program.with_name("CMakeCache.txt")
        cache.write_text(f"A:B=C\nCMAKE_HOME_DIRECTORY:INTERNAL={self.folder}\nD:E=F\n")

        def said(binary: pathlib.Path | str = program, pairs: int = 7) -> str:
            return records.refusal(str(binary), pairs, self.folder)

        self.assertEqual(said(), "")
        self.assertIn("--record with 6 of at least 7 pairs: leave --pairs out", said(pairs=6))
        self.assertRegex(said("/bin/true"), "^--record of /bin/true, which .*/build/release did not build: ")
        cache.write_text(f"A:B=C\nCMAKE_HOME_DIRECTORY:INTERNAL={self.folder}-other\nD:E=F\n")
        self.assertIn("did not build: start the benchmark's .sh without --binary", said())
        cache.write_text(f"A:B=C\nCMAKE_HOME_DIRECTORY:INTERNAL={self.folder}\nD:E=F\n")
        for page in ("README.md", "docs/benchmarks/records.jsonl"):  # which the benchmark before this one has written
            (self.folder / page).write_text("another line\n")
        self.assertEqual(said(), "")
        (self.folder / code).write_text("another program\n")
        self.assertIn(f"--record in a checkout whose {code} differs from HEAD: commit or remove the changes", said())
        (self.folder / "src/ops/new.cpp").write_text("compiled, too\n")
        self.assertIn(f"whose {code} and 1 more differs from HEAD", said())
        shutil.rmtree(self.folder / ".git")
        self.assertIn("--record outside of a git checkout", said())

    def test_every_driver_with_record_refuses_before_it_measures(self):
        cases = (["--binary", "/bin/true"], "with --binary"), (["--pairs", "1"], "at least 7 pairs"), ([], "did not build")
        for module in (cpu, ring):
            for words, reason in cases:
                with (
                    self.subTest(driver=module.__name__, words=words),
                    unittest.mock.patch.object(sys, "argv", ["driver", "--default-binary", "/bin/true", "--record", *words]),
                    contextlib.redirect_stderr(io.StringIO()) as errors,
                ):
                    with self.assertRaises(SystemExit) as ended:
                        module.main()
                    self.assertEqual(ended.exception.code, 2)
                    self.assertIn(reason, errors.getvalue())

    def test_the_command_that_readme_names_for_old_records_is_started_as_it_is_written(self):
        self.assertIn("`scripts/bench/records.py --old`", (ROOT / "README.md").read_text())
        done = subprocess.run(["scripts/bench/records.py", "--old"], cwd=ROOT, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (int(done.stdout.count(": recorded ") > 0), ""))

    def test_a_document_without_its_marks_is_named_by_an_error(self):
        with self.assertRaises(ValueError):
            records.with_table("# Page\n", ["| row |"])


if __name__ == "__main__":
    unittest.main()

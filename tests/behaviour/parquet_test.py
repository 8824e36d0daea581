"""Parquet files, read where they are: the same documents as pyarrow gives, the same training as on JSON lines, and one
sentence for every file that cannot be read."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unittest

from program import BAD_DATA, CORPORA, FULL, OK, ROOT, BehaviourTest, Run

from titan import binary

TOKENIZER = ROOT / "configs" / "tokenizers" / "stories.model"
LIBRARY = "libtitan_parquet.so"
NOT_STARTED = 127
CHAT = [
    [{"role": "user", "content": "how many?"}, {"role": "assistant", "content": "seven."}],
    [{"role": "system", "content": "be brief"}, {"role": "user", "content": "and \"now\"?"},
     {"role": "assistant", "content": "é 🙂"}],
]  # fmt: skip
# In a process of its own: pyarrow brings large libraries along.
WRITE = """
import json, sys
import pyarrow, pyarrow.parquet
table = pyarrow.table(json.load(sys.stdin))
pyarrow.parquet.write_table(table, sys.argv[1], row_group_size=int(sys.argv[2]), compression="zstd")
"""
# Columns of JSON; one that begins with a list is made of lists of values in JSON.
WRITE_JSON = """
import json, sys
import pyarrow, pyarrow.parquet
def column(name, values):
    as_json = lambda some: pyarrow.ExtensionArray.from_storage(pyarrow.json_(), pyarrow.array(map(json.dumps, some)))
    if not isinstance(values[0], list): return as_json(values)
    ends = [sum(map(len, values[:i])) for i in range(len(values) + 1)]
    return pyarrow.ListArray.from_arrays(ends, as_json([one for value in values for one in value]))
columns = {name: column(name, values) for name, values in json.load(sys.stdin).items()}
pyarrow.parquet.write_table(pyarrow.table(columns), sys.argv[1])
"""
ENCRYPT = """
import base64, sys
import pyarrow, pyarrow.parquet, pyarrow.parquet.encryption as encryption
class Kms(encryption.KmsClient):
    def __init__(self, config): super().__init__()
    def wrap_key(self, key, name): return base64.b64encode(key)
    def unwrap_key(self, key, name): return base64.b64decode(key)
factory = encryption.CryptoFactory(Kms)
for path, plaintext in ((sys.argv[1], False), (sys.argv[2], True)):
    settings = encryption.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["text"]}, plaintext_footer=plaintext)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
    table = pyarrow.table({"text": ["a", "b"], "id": [1, 2]})
    with pyarrow.parquet.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
"""
# Answers each path with the number of texts in the file, or with "damaged".
COUNT = """
import sys
import pyarrow.parquet
for line in sys.stdin:
    try:
        file = pyarrow.parquet.ParquetFile(line.rstrip("\\n"), page_checksum_verification=True)
        texts = file.read(columns=["text"], use_threads=False)["text"]
        print(len(texts) - texts.null_count, flush=True)
    except Exception:
        print("damaged", flush=True)
"""


class Counter:
    """pyarrow's count of the texts in a file, from a process that is started again if a damaged file ends it."""

    def __init__(self):
        self.process = None

    def __call__(self, path: pathlib.Path) -> str:
        if not self.process or self.process.poll() is not None:
            self.process = subprocess.Popen([sys.executable, "-c", COUNT], text=True, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE)  # fmt: skip
        self.process.stdin.write(f"{path}\n")
        self.process.stdin.flush()
        count = self.process.stdout.readline().strip()
        if not count:
            self.process.wait()  # else the next call may write to a process that is ending
        return count or "damaged"

    def close(self) -> None:
        if self.process:
            self.process.communicate()


def python(script: str | pathlib.Path, *words, **options) -> None:
    start = [sys.executable, "-c", script] if isinstance(script, str) else [sys.executable, str(script)]
    subprocess.run([*start, *map(str, words)], text=True, check=True, **options)


@unittest.skipUnless(pathlib.Path(binary()).with_name(LIBRARY).exists(), f"{LIBRARY} is not built (TITAN_PARQUET)")
@unittest.skipUnless(importlib.util.find_spec("pyarrow"), "pyarrow (tests/reference/requirements.txt) is not there")
class Parquet(BehaviourTest):
    def parquet(self, name: str = "corpus.parquet", rows_in_group: int = 2, **columns) -> pathlib.Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        python(WRITE, path, rows_in_group, input=json.dumps(columns))
        return path

    def ids_of(self, corpus: pathlib.Path, *words) -> bytes:
        output = self.folder / f"{corpus.name}.bin"
        run = self.titan("data", "tokenize", "--tokenizer", TOKENIZER, "--dataset-path", corpus, "--output", output, *words)
        self.expect(run, OK)
        return output.read_bytes() + output.with_name(output.name + ".idx").read_bytes()

    def expect_sentence(self, run: Run, exit_code: int, *says: str) -> None:
        self.expect(run, exit_code)
        self.assertEqual(len(run.errors.strip().splitlines()), 1, run.errors)
        for part in says:
            self.assertIn(part, run.errors)

    def stats(self, path: pathlib.Path, *words) -> Run:
        return self.titan("data", "stats", "--dataset-path", path, *words)

    def test_twelve_files_give_the_documents_that_pyarrow_reads(self):
        python(pathlib.Path(__file__).with_name("parquet_files.py"), self.folder, 1_000_000 if FULL else 100_000)
        found = sorted(self.folder.glob("*.parquet"))
        self.assertEqual(len(found), 12)
        for path in found:
            with self.subTest(path.stem):
                ours = self.ids_of(path, "--bad-record", "skip")
                self.assertEqual(ours, self.ids_of(path.with_suffix(".jsonl")))

    def test_peek_and_stats_name_the_format_and_where_documents_are(self):
        path = self.parquet(id=[1, 2, 3], text=["once", "upon", "a time"])
        peek = self.titan("data", "peek", "--dataset-path", path)
        self.expect(peek, OK)
        self.assertIn("Parquet, 2 row groups: id (int64), text (string)", peek.output)
        self.assertIn("corpus.parquet, row group 1, row 0 (document 2, 6 bytes)", peek.output)
        stats = self.stats(path)
        self.expect(stats, OK)
        self.assertRegex(stats.output, r"format +Parquet, 2 row groups")
        self.assertRegex(stats.output, r"documents +3\n")

    def expect_conversations_of_lines(self, path: pathlib.Path, columns: dict) -> None:
        """The conversations in `path` are written as those of the same columns as lines of JSON."""
        rows = [dict(zip(columns, row)) for row in zip(*columns.values())]
        lines = self.write(f"{path.stem}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        words = ["--tokenizer", TOKENIZER, "--chat-template", "llama3", "--documents", 10]
        shown = [self.titan("data", "peek", "--dataset-path", corpus, *words) for corpus in (path, lines)]
        for run in shown:
            self.expect(run, OK)
        ours, theirs = ([line for line in run.output.splitlines() if line.startswith("  ")] for run in shown)
        self.assertEqual(ours, theirs)
        self.assertEqual(len(ours), 3 * len(rows))

    def test_conversations_are_those_of_the_same_records_as_json_lines(self):
        forms = {
            "messages": {"messages": CHAT * 3, "score": [float("nan"), 0.5] * 3},
            "share_gpt": {"conversations": [[{"from": "human", "value": m[-2]["content"]},
                                             {"from": "gpt", "value": m[-1]["content"]}] for m in CHAT]},
            "texts": {"prompt": ["how many?"] * 2, "completion": ["seven.", "none."], "id": [1, 2]},
            "lists": {"prompt": [m[:-1] for m in CHAT], "completion": [m[-1:] for m in CHAT]},
            "alpaca": {"instruction": ["add", "say"], "input": ["1 2", None], "output": ["3", "no"]},
        }  # fmt: skip
        for name, columns in forms.items():
            with self.subTest(name):
                path = self.parquet(f"{name}.parquet", **columns)
                self.expect_conversations_of_lines(path, columns)

    def test_json_that_datasets_writes_is_read_as_what_it_holds(self):
        # `datasets` makes a column of JSON where the values of a field have several types.
        texts = ["a \"story\"\nline two é", "🙂", ""]
        path = self.folder / "texts.parquet"
        python(WRITE_JSON, path, input=json.dumps({"text": texts}))
        lines = self.write("texts.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
        self.assertEqual(self.ids_of(path), self.ids_of(lines))
        parts = [[{"role": "user", "content": [{"type": "text", "text": "how many?"}]}, CHAT[0][1]], CHAT[1]]
        forms = {
            "whole": {"messages": parts},
            "mixed": {"prompt": ["how many?", CHAT[1][:2]], "completion": ["seven.", CHAT[1][2:]]},
        }
        for name, columns in forms.items():
            path = self.folder / f"{name}.parquet"
            python(WRITE_JSON, path, input=json.dumps(columns))
            self.expect_conversations_of_lines(path, columns)

    def test_lists_of_ids_are_read_from_a_column(self):
        ids = [[3, 1, 4], [1, 5], []]
        path = self.parquet(ids=ids, note=["x"] * 3)
        lines = self.write("ids.jsonl", "".join(json.dumps({"ids": row}) + "\n" for row in ids))
        made = []
        for corpus in (path, lines):
            output = self.folder / f"{corpus.name}.bin"
            run = self.titan("data", "tokenize", "--ids", "ids", "--vocab-size", 10, "--bos", 8, "--eos", 9,
                             "--dataset-path", corpus, "--output", output)  # fmt: skip
            self.expect(run, OK)
            made.append(output.read_bytes())
        self.assertEqual(made[0], made[1])

    # ---- training

    def stories(self) -> pathlib.Path:
        """The stories of the repository in a folder of two files."""
        texts = [json.loads(line)["text"] for line in (CORPORA / "stories.jsonl").read_text().splitlines()]
        self.parquet("stories/a.parquet", rows_in_group=100, text=texts[:700])
        return self.parquet("stories/b.parquet", rows_in_group=1000, text=texts[700:]).parent

    def losses_of(self, corpus: pathlib.Path, steps: int, *words, ranks: int = 1, folder=None, **environment) -> list[float]:
        folder = folder or self.fresh_folder()
        command = self.command(f"--training.steps={steps}", "--training.dataset=text",
                               f"--training.dataset_path={corpus}", *words, folder=folder)  # fmt: skip
        if ranks > 1:
            command[1:1] = ["launch", "-n", str(ranks)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | environment, timeout=600)
        run = Run(done.returncode, done.stdout, done.stderr, folder, 0)
        self.expect(run, OK)
        return run.training("loss")

    def test_losses_on_two_ranks_are_those_of_json_lines_whichever_library_is_opened_first(self):
        steps = 100 if FULL else 10
        expected = self.losses_of(CORPORA / "stories.jsonl", steps, ranks=2)
        self.assertEqual(len(expected), steps)
        corpus = self.stories()
        self.assertEqual(self.losses_of(corpus, steps, ranks=2), expected)
        # Arrow before LibTorch, and its symbols before everyone's: more than opening it first would do.
        library = str(pathlib.Path(self.program).with_name(LIBRARY))
        self.assertEqual(self.losses_of(corpus, steps, ranks=2, LD_PRELOAD=library), expected)

    def test_a_resumed_run_reads_the_next_batch(self):
        corpus = self.stories()
        for order in ([], ["--data.shuffle=true"]):
            words = [*order, "--lr_scheduler.total_steps=1000"]
            whole = self.losses_of(corpus, 6, *words)
            folder = self.fresh_folder()
            words = [*words, "--checkpoint.enable", "--checkpoint.interval=3", "--checkpoint.last_save_model_only=false"]
            self.assertEqual(self.losses_of(corpus, 3, *words, folder=folder), whole[:3])
            self.assertEqual(self.losses_of(corpus, 6, *words, folder=folder)[-3:], whole[3:])

    def opened_by(self, *words) -> set[str]:
        """The libraries that the program opens, without versions, as the dynamic linker says."""
        log = self.fresh_folder()
        environment = os.environ | {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(log)}
        subprocess.run([self.program, *map(str, words)], env=environment, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        said = "".join(path.read_text(errors="replace") for path in self.folder.glob(f"{log.name}.*"))
        return set(re.findall(r"calling init: .*/(lib[^/]*?)\.so", said))

    def test_only_a_parquet_file_opens_arrow(self):
        arrow, torch = {"libtitan_parquet", "libparquet", "libarrow"}, {"libtitan", "libtorch_cpu"}
        self.assertEqual(self.opened_by("help") & (arrow | torch), set())
        command = self.command("--training.steps=1", folder=self.fresh_folder())
        self.assertEqual(self.opened_by(*command[1:]) & (arrow | torch), torch)
        opened = self.opened_by("data", "stats", "--dataset-path", self.parquet(text=["x"]))
        self.assertEqual(opened & (arrow | torch), arrow)

    # ---- what cannot be read

    def test_encrypted_files_are_refused(self):
        whole, columns = self.folder / "whole.parquet", self.folder / "columns.parquet"
        python(ENCRYPT, whole, columns)
        self.expect_sentence(self.stats(whole), BAD_DATA, "whole.parquet: this Parquet file is encrypted")
        self.expect_sentence(self.stats(columns), BAD_DATA, "columns.parquet: columns of this Parquet file are encrypted")

    def test_a_build_without_it_names_the_command_that_makes_it(self):
        # The program looks beside itself: a copy has no library there.
        program = self.folder / "titan_train"
        os.link(self.program, program) if os.stat(self.program).st_dev == os.stat(self.folder).st_dev else \
            program.write_bytes(pathlib.Path(self.program).read_bytes())  # fmt: skip
        program.chmod(0o755)
        run = subprocess.run([program, "data", "stats", "--dataset-path", self.parquet(text=["x"])], capture_output=True,
                             text=True)  # fmt: skip
        self.expect_sentence(Run(run.returncode, run.stdout, run.stderr, self.folder, 0), NOT_STARTED,
                             "scripts/setup.sh --parquet")  # fmt: skip

    def mutants(self, count: int):
        """Whole files of several kinds, each with a few bytes changed, cut out or added."""
        python(pathlib.Path(__file__).with_name("parquet_files.py"), self.folder, 1000)
        sources = [path.read_bytes() for path in sorted(self.folder.glob("*.parquet")) if path.stat().st_size < 10**6]
        chance = random.Random(4)
        for number in range(count):
            data = bytearray(chance.choice(sources))
            # Most of a file is pages; what Arrow trusts most is in the footer.
            footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
            begin = 0 if chance.random() < 0.4 else max(0, footer)
            for _ in range(chance.choice((1, 1, 2, 8))):
                at = chance.randrange(begin, len(data))
                kind = chance.randrange(4)
                if kind == 0:
                    data[at] ^= 1 << chance.randrange(8)
                elif kind == 1:
                    data[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
                elif kind == 2:
                    del data[at : at + chance.randrange(1, 9)]
                else:
                    data[at:at] = bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9)))
                begin = min(begin, len(data) - 1)
            yield self.write(f"mutant-{number}.parquet", bytes(data))

    def test_a_damaged_file_gives_a_sentence_or_the_documents_that_pyarrow_reads_and_never_a_signal(self):
        # Some damage leaves a file well formed: a changed letter in a page without checksum and compression, another index
        # of a dictionary, another column's name. No reader can report that; but a row that is missing must be reported.
        refused, count = 0, 2000 if FULL else 200
        count_texts = Counter()
        self.addCleanup(count_texts.close)
        for path in self.mutants(count):
            done = subprocess.run([self.program, "data", "stats", "--bad-record", "skip", "--dataset-path", path],
                                  capture_output=True, text=True, errors="replace", timeout=120)  # fmt: skip
            run = Run(done.returncode, done.stdout, done.stderr, self.folder, 0)
            if run.code == OK:
                documents = re.search(r"(?m)^documents +([\d,]+)$", run.output)
                self.assertEqual(documents[1].replace(",", ""), count_texts(path), path.name)
                path.unlink()
                continue
            refused += 1
            self.expect_sentence(run, BAD_DATA, path.name)
            path.unlink()
        self.assertGreater(refused, count // 2)


if __name__ == "__main__":
    unittest.main()

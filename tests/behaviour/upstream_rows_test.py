"""torchtitan's integration tests, row by row of upstream_rows.toml: they end well, as planned, with one process's losses.

"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import shlex
import tomllib
import unittest

import pytest
from program import BAD_CONFIG, OK, BehaviourTest, Run
from titan import DEBUG_CONFIG, ROOT, shared

TABLE = pathlib.Path(__file__).with_name("upstream_rows.toml")
SPECIFICATION = ROOT.parent / "shared" / "spec" / "torchtitan.md"
# The specification's sections: heading, the suite of a table that holds several, rows at least.
SECTIONS = {"2024-12": ("### 9.1 ", "", 25), "2026-02": ("### 9.3 ", "", 25), "h100": ("### 9.4 ", "h100", 5)}
FIRST_LOSS, LOSS = 1e-6, 1e-5  # as in the parity matrix
# Options that say how the work is divided, in either spelling.
DIVISION = re.compile(r"--(parallelism|experimental|training\.(data|tensor)_parallel)")


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    matrix: str
    ranks: int
    runs: list[str]
    title: str = ""  # where two rows have one name
    generates: bool = False  # text is generated from the checkpoint, by one process and by as many ranks
    refused: str = ""
    estimate: bool = False
    disabled: bool = False
    loss: float = LOSS
    says: list[str] = dataclasses.field(default_factory=list)

    @property
    def method(self) -> str:
        return "test_" + re.sub(r"\W+", "_", f"{self.matrix} {self.name} {self.title}".strip())


def options(text: str) -> list[list[str]]:
    """The words of a command line by option: each begins with the option."""
    groups = []
    for word in shlex.split(text):
        if word.startswith("--"):
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def degree(text: str, kind: str) -> int:
    found = re.findall(rf"{kind}_parallel_degree[ =](\d+)", text)
    return int(found[-1]) if found else 1


def read_table() -> tuple[dict[str, str], list[Row]]:
    table = tomllib.loads(TABLE.read_text())
    return table["base"], [Row(**row) for row in table["row"]]


BASE, ROWS = read_table()


class UpstreamRows(BehaviourTest):
    alone: dict[str, list[float]] = {}  # losses of single processes, by their words

    def base(self, row: Row) -> list[str]:
        """Ten steps, as torchtitan's; three of a row in which nothing happens later, but with TITAN_TEST_FULL."""
        words = shlex.split(f"{BASE['both']} {BASE[row.matrix]}")
        happens_later = re.search("checkpoint|validation|steps|profil|freq", " ".join(row.runs)) or row.says
        return words if happens_later or os.environ.get("TITAN_TEST_FULL") else [*words, "--training.steps=3"]

    def launch(self, row: Row, text: str) -> Run:
        if "{custom_schedule}" in text:
            text = text.replace("{custom_schedule}", str(shared("custom_schedule.csv")))
        words = shlex.split(text.replace("{folder}", str(self.folder)))
        launch = ["launch", "-n", row.ranks, "--log-rank", "all"] if row.ranks > 1 else []
        return self.titan(*launch, DEBUG_CONFIG, *self.base(row), *words, f"--job.dump_folder={self.folder}")

    def losses_alone(self, row: Row) -> list[float]:
        """Those of one process that is told everything but how to divide the work, and sees as many samples."""
        text = row.runs[0]
        words = [word for group in options(text) if not DIVISION.match(group[0]) for word in group]
        data_parallel = row.ranks // (degree(text, "pipeline") * degree(text, "context") * degree(text, "tensor"))
        if "float8" in text:  # a scale is that of one rank's microbatch, which in a pipeline is a single sample
            words.append(f"--training.global_batch_size={8 * data_parallel}")
            words += ["--training.local_batch_size=1"] if degree(text, "pipeline") > 1 else []
        elif "global_batch_size" not in text:
            words.append(f"--training.local_batch_size={8 * data_parallel}")
        key = shlex.join([*self.base(row), *words])
        if key not in self.alone:
            folder = self.folder / "alone"
            run = self.titan(DEBUG_CONFIG, *self.base(row), *words, f"--job.dump_folder={folder}")
            self.expect(run, OK)
            self.alone[key] = losses(folder)
        return self.alone[key]

    def expect_row(self, row: Row):
        for number, text in enumerate(row.runs):
            run = self.launch(row, text)
            self.expect(run, OK)
            if row.says:
                self.assertRegex(run.output, row.says[number])
            planned = re.findall(r"This rank sent .* in step \d+, as planned$", run.output, re.M)
            self.assertEqual(len(planned), row.ranks, run.output[-4000:])
            if number > 0:
                continue
            for step, (mine, theirs) in enumerate(zip(losses(self.folder), self.losses_alone(row), strict=True), start=1):
                self.assertAlmostEqual(mine, theirs, delta=(FIRST_LOSS if step == 1 else row.loss) * theirs, msg=f"step {step}")

        if row.generates:
            words = ["--prompt", "Once", "--max-new-tokens", "8", "--model.tokenizer_path=configs/tokenizers/stories.model"]
            alone = self.titan("generate", self.folder, *words)
            self.expect(alone, OK)
            self.assertTrue(alone.output.startswith("Once"), alone.output)
            together = self.titan("launch", "-n", row.ranks, "generate", self.folder, *words,
                                  f"--parallelism.tensor_parallel_degree={row.ranks}")
            self.expect(together, OK)
            self.assertIn(alone.output.splitlines()[0], together.output)

    def expect_estimate(self, row: Row):
        run = self.launch(row, row.runs[0])
        self.expect(run, OK)
        shown = re.findall(r"^.*(  together +\S+ \w+)$", run.output, re.M)
        self.assertEqual(len(shown), 1, run.output)
        plan = self.titan("plan", "--world", row.ranks, DEBUG_CONFIG, *self.base(row), "--training.device=cpu")
        self.assertIn(shown[0], plan.output)
        self.assertFalse((self.folder / "metrics.jsonl").exists(), "nothing was trained")

    def run_row(self, row: Row):
        if row.refused:
            run = self.launch(row, row.runs[0])
            self.expect(run, BAD_CONFIG)
            self.assertIn(row.refused, run.errors)
        elif row.estimate:
            self.expect_estimate(row)
        else:
            self.expect_row(row)


def losses(folder: pathlib.Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def method_for(row: Row):
    """A row of December 2024 that torchtitan still has runs with --full only: its layout is that of the later row, its former
    spellings are golden sessions, its generation's formulas have tests of their own."""
    repeated = row.matrix == "2024-12" and any(other.matrix == "2026-02" and other.name == row.name for other in ROWS)

    def run(self):
        self.run_row(row)

    return pytest.mark.full(run) if repeated and not (row.generates or row.refused or row.estimate) else run


for _row in ROWS:
    setattr(UpstreamRows, _row.method, method_for(_row))


class Table(unittest.TestCase):
    def test_every_row_has_a_name_of_its_own(self):
        methods = [row.method for row in ROWS]
        self.assertEqual(sorted(set(methods)), sorted(methods))

    def test_what_a_row_says_it_says_for_each_run(self):
        for row in ROWS:
            self.assertIn(len(row.says), (0, len(row.runs)), row.name)

    def test_all_rows_of_torchtitan_are_there_with_their_numbers_of_ranks(self):
        if not SPECIFICATION.exists():
            self.skipTest(f"{SPECIFICATION} is not there")
        for matrix, (heading, suite, count) in SECTIONS.items():
            wanted = sorted(upstream_rows(heading, suite))
            self.assertGreaterEqual(len(wanted), count)
            self.assertEqual(sorted((row.name, row.ranks) for row in ROWS if row.matrix == matrix), wanted)


def upstream_rows(heading: str, suite: str) -> list[tuple[str, int]]:
    """(name, ranks) of every row of the specification's section, or of a suite in it; its lines may hold several names."""
    section = SPECIFICATION.read_text().split(f"\n{heading}")[1].split("\n### ")[0]
    found = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if suite and cells.pop(0) != suite:
            continue
        if len(cells) < 3 or cells[0] == "name" or cells[0].startswith("---"):
            continue
        names = re.sub(r'\(("[^"]*"|disabled[^)]*)\)', "", cells[0]).strip()
        names = re.split(r", | / ", names)
        if len(names) > 1 and names[1].startswith("_"):  # last_save_model_only_fp32 / _bf16
            names[1] = names[0].rpartition("_")[0] + names[1]
        for name in names:
            found.append((name.strip(), ranks_of(name.strip(), cells)))
    return found


def ranks_of(name: str, cells: list[str]) -> int:
    """4/8: the rows with three dimensions of two take 8."""
    if cells[1] != "4/8":
        return int(cells[1])
    return 8 if name in ("hsdp+tp", "hsdp+cp_with_dp_shard", "fsdp+tp+cp") else 4


if __name__ == "__main__":
    unittest.main()

"""Damaged configs: one that `config show` accepts must train, or fail for want of the file it names and nothing else.

The mutants are those of tests/config/mutants.h, so the checks in C++ and these runs see the same ones.
TITAN_TEST_FULL=1 checks thousands of them and runs hundreds.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import subprocess
import unittest

from program import BAD_CONFIG, BAD_DATA, DEBUG_CONFIG, FULL, OK, UNFRIENDLY, BehaviourTest, Run

CHECKS, RUNS = (2000, 400) if FULL else (64, 24)
# What is about time and memory, not about the config's meaning.
QUICK = [
    *("--training.steps=2", "--training.local_batch_size=1", "--training.threads=1", "--metrics.log_freq=1"),
    *("--model.override.dim=64", "--model.override.n_layers=2", "--model.override.n_heads=4"),
]


class Mutants(BehaviourTest):
    def setUp(self):
        super().setUp()
        beside = pathlib.Path(self.program).with_name("config_mutants")
        self.tool = os.environ.get("TITAN_CONFIG_MUTANTS", str(beside))
        if not os.access(self.tool, os.X_OK):
            self.skipTest(f"{self.tool} is not built")

    def mutants(self, count: int) -> list[tuple[pathlib.Path, str]]:
        """The first `count` mutants of the debug config: file and edit."""
        command = [self.tool, DEBUG_CONFIG, "0", str(count), self.folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True, errors="replace")
        found = [line.split("\t", 1) for line in done.stdout.splitlines() if "\t" in line]
        self.assertEqual(len(found), count)
        return [(self.folder / f"{number}.toml", edit) for number, edit in found]

    def test_a_mutant_that_passes_the_check_does_not_fail_at_run_time(self):
        passed, refused = [], 0
        mutants = self.mutants(CHECKS)
        for (path, edit), check in zip(mutants, self.all_of(self.check_mutant, mutants), strict=True):
            with self.subTest(edit, mutant=path.name):
                self.assertIn(check.code, (OK, BAD_CONFIG), check.errors)
                if check.code == BAD_CONFIG:
                    self.assertIn(str(path), check.errors)
                    refused += 1
                else:
                    passed.append((path, edit))
        self.assertGreater(len(passed), CHECKS // 10)
        self.assertGreater(refused, CHECKS // 5)
        for (path, edit), run in zip(passed[:RUNS], self.all_of(self.run_mutant, passed[:RUNS]), strict=True):
            with self.subTest(edit, mutant=path.name):
                self.judge(run)

    def all_of(self, action, mutants: list) -> list[Run]:
        """The runs of all mutants in their order, as many at a time as there are cores."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda mutant: action(mutant[0]), mutants))

    def check_mutant(self, path: pathlib.Path) -> Run:
        return self.titan("config", "show", path)

    def run_mutant(self, path: pathlib.Path) -> Run:
        return self.titan(path, *QUICK, f"--job.dump_folder={self.folder / path.stem}")

    def judge(self, run: Run) -> None:
        if run.code == BAD_DATA:
            # `config show` does not ask whether files are there: a config may be looked at on another machine.
            self.assertRegex(run.errors, "does not exist|is not downloaded")
        else:
            self.assertEqual(run.code, OK, run.errors)
        for words in UNFRIENDLY:
            self.assertNotIn(words, run.output + run.errors)


if __name__ == "__main__":
    unittest.main()

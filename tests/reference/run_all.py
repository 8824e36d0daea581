"""Runs every check of the program from outside and prints the totals; exit code 1 when one failed.

    python tests/reference/run_all.py [--binary build/release/titan_train] [--only NAME ...] [--list] [--results FILE]

`*_test.py`, here and in tests/behaviour, are unittest modules, run in this process. `*_oracle.py` are programs of their
own, started with TITAN_BINARY in the environment; each counts as one check: exit 0 passed, 77 left out, anything else
failed. Needs requirements.txt. With --results, FILE gets what became of each: {"module: Class.test": "passed"}.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import unittest

FOLDER = pathlib.Path(__file__).resolve().parent
BEHAVIOUR = FOLDER.parent / "behaviour"
SKIPPED_EXIT = 77


class Totals:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.left_out: list[str] = []
        self.outcomes: dict[str, str] = {}

    def skip(self, what: str, reason: str) -> None:
        self.skipped += 1
        self.left_out.append(f"{what}: {reason}")

    def note(self, test_id: str, outcome: str) -> None:
        """Named as C++ tests are in reports: "training_test: Learning.test_the_loss_falls"."""
        self.outcomes[test_id.replace(".", ": ", 1)] = outcome


class CountingResult(unittest.TextTestResult):
    """Names each passed test with its time, and counts them."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.passed: list[str] = []

    def startTest(self, test):
        super().startTest(test)
        self.started = time.monotonic()
        self.problems_before = self.problems()

    def stopTest(self, test):
        super().stopTest(test)
        if self.problems() == self.problems_before:
            self.passed.append(test.id())
            self.stream.writeln(f"  {time.monotonic() - self.started:6.1f} s  {test.id()}")

    def problems(self) -> int:  # failed sub-tests included
        return len(self.failures) + len(self.errors) + len(self.skipped)


def run_tests(names: list[str], totals: Totals) -> None:
    suite = unittest.defaultTestLoader.loadTestsFromNames(names)
    runner = unittest.TextTestRunner(stream=sys.stdout, resultclass=CountingResult, verbosity=0)
    result = runner.run(suite)
    failed = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    totals.passed += len(result.passed)
    totals.failed += len(failed)
    for test, reason in result.skipped:
        totals.skip(test.id(), reason)
        totals.note(test.id(), "skipped")
    for test_id in result.passed:
        totals.note(test_id, "passed")
    for test_id in failed:
        totals.note(test_id, "failed")


def run_oracle(path: pathlib.Path, totals: Totals) -> None:
    if not os.environ.get("TITAN_BINARY"):
        totals.skip(path.stem, "TITAN_BINARY does not name a titan_train to test")
        return
    print(f"running {path.name}", flush=True)
    code = subprocess.run([sys.executable, str(path)], check=False).returncode
    if code == SKIPPED_EXIT:
        totals.skip(path.stem, "it says why above")
    elif code == 0:
        totals.passed += 1
        totals.note(path.stem, "passed")
    else:
        totals.failed += 1
        totals.note(path.stem, "failed")
        print(f"FAILED {path.name}: exit {code}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs every independent check of titan_train.")
    parser.add_argument("--binary", help="the titan_train to test; default: $TITAN_BINARY")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="file names without .py")
    parser.add_argument("--results", type=pathlib.Path, help="a JSON file to write")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    arguments = parser.parse_args()
    if arguments.binary:
        os.environ["TITAN_BINARY"] = os.path.abspath(arguments.binary)
    sys.path[:0] = [str(FOLDER), str(BEHAVIOUR)]
    tests = sorted([*FOLDER.glob("*_test.py"), *BEHAVIOUR.glob("*_test.py")])
    oracles = sorted(FOLDER.glob("*_oracle.py"))
    known = {path.stem for path in tests + oracles}
    if unknown := set(arguments.only or ()) - known:
        parser.error(f"no such check: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}")
    wanted = set(arguments.only or known)
    if arguments.list:
        print("\n".join(sorted(known)))
        return 0
    totals = Totals()
    run_tests([path.stem for path in tests if path.stem in wanted], totals)
    for path in oracles:
        if path.stem in wanted:
            run_oracle(path, totals)
    if arguments.results:
        arguments.results.write_text(json.dumps(totals.outcomes, indent=1, sort_keys=True))
    for line in totals.left_out:
        print(f"left out  {line}")
    print(f"{totals.passed} passed, {totals.failed} failed, {totals.skipped} skipped")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Counts test cases over all test programs of one ctest run, or of one pytest run.

    count_tests.py RESULTS | REPORT.xml

REPORT.xml is pytest's report. RESULTS holds one GoogleTest JSON report per program, some in folders, and ctest's own
ctest.xml. Prints "passed failed skipped". A program that ended without a report (it crashed, or is no GoogleTest program) counts as one case.
"""

import json
import pathlib
import sys
import xml.etree.ElementTree

from support_matrix import pytest_outcomes


def count_cases(report):
    passed = failed = skipped = 0
    for suite in report["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                failed += 1
            elif case["result"] == "COMPLETED":
                passed += 1
            else:
                skipped += 1
    return passed, failed, skipped


def count_pytest(report):
    outcomes = list(pytest_outcomes(report).values())
    return [outcomes.count(outcome) for outcome in ("passed", "failed", "skipped")]


def main(results):
    if results.is_file():
        print(*count_pytest(results))
        return
    totals = [0, 0, 0]
    clean_programs = failing_programs = 0
    for path in sorted(results.rglob("*.json")):
        counts = count_cases(json.loads(path.read_text()))
        totals = [total + count for total, count in zip(totals, counts)]
        if counts[1]:
            failing_programs += 1
        else:
            clean_programs += 1
    programs = xml.etree.ElementTree.parse(results / "ctest.xml").getroot()
    failures = sum(1 for program in programs.iter("testcase") if program.get("status") != "run")
    successes = sum(1 for program in programs.iter("testcase")) - failures
    # A program whose cases all passed can still fail, at exit; then the clean reports outnumber ctest's successes.
    totals[0] += max(0, successes - clean_programs)
    totals[1] += max(0, failures - failing_programs)
    print(*totals)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

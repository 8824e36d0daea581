"""Prints the tests of a run that took longest, in seconds: slowest_tests.py RESULTS, the folder of one run of scripts/test.sh."""

import json
import pathlib
import sys
import xml.etree.ElementTree

SHOWN = 15


def googletest_times(path):
    for suite in json.loads(path.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            yield float(case["time"].rstrip("s")), f"{path.stem}: {case['classname']}.{case['name']}"


def pytest_times(path):
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        yield float(case.get("time")), f"{case.get('classname')}.{case.get('name')}"


def main(results):
    times = [time for path in results.rglob("*.json") for time in googletest_times(path)]
    times += [time for path in results.glob("python-*.xml") for time in pytest_times(path)]
    for seconds, name in sorted(times, reverse=True)[:SHOWN]:
        print(f"{seconds:7.1f} s  {name}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))

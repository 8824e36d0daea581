"""Writes docs/support.md: what works on which device, and the tests that show it.

    support_matrix.py RESULTS [--write]

tests/features.toml names the features and, for each, patterns over names of tests. RESULTS is the folder of one run of
scripts/test.sh: GoogleTest's JSON reports and pytest's python-*.xml. A pattern that fits no passed test, or a failed one,
is an error, so a row cannot outlive its tests; tests named as `skippable` may be skipped, but not failed or gone. Without --write the page must be what comes out.
"""

import argparse
import dataclasses
import fnmatch
import json
import pathlib
import re
import sys
import tomllib
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
FEATURES = ROOT / "tests" / "features.toml"
PAGE = ROOT / "docs" / "support.md"
HEAD = """# What works

Each row names the tests that show it (`tests/features.toml`). The page is made from a run of the tests by
`scripts/test.sh --update-support`, and `scripts/test.sh` fails when it is not what the tests show: when one of them
failed, was left out or is gone.

* **tested**: these tests ran and passed. Those of `page_drawn_test` need Chromium, those of `mock_gpu_memory_test` a CUDA build.
* **compiles only**: the code is part of the CUDA build, and no test has run it on a GPU.
* **not built**: refused with a message when it is asked for.
* —: does not touch the device.
"""


@dataclasses.dataclass
class Feature:
    name: str
    tests: list[str] = dataclasses.field(default_factory=list)
    skippable: list[str] = dataclasses.field(default_factory=list)  # tests that need what a machine may lack
    built: bool = True  # false: the tests show that it is refused


@dataclasses.dataclass
class Part:
    title: str
    features: list[Feature]
    on_device: bool = True


def read_features(path: pathlib.Path) -> list[Part]:
    """Raises TypeError for a key that is none, KeyError for one that is missing."""
    parts = []
    for table in tomllib.loads(path.read_text())["part"]:
        features = [Feature(**entry) for entry in table.pop("feature")]
        parts.append(Part(features=features, **table))
    return parts


def googletest_outcomes(program: str, report: dict) -> dict[str, str]:
    """By "program: Suite.Case (parameter)"."""
    outcomes = {}
    for suite in report["testsuites"]:
        for case in suite["testsuite"]:
            name = f"{program}: {suite['name']}.{case['name']}"
            if parameter := case.get("value_param"):
                name += f" {parameter}" if parameter.startswith("(") else f" ({parameter})"
            outcome = "passed" if case["result"] == "COMPLETED" else "skipped"
            outcomes[name] = "failed" if case.get("failures") else outcome
    return outcomes


def pytest_outcomes(report: pathlib.Path) -> dict[str, str]:
    """By "module: Class.test"; a program that is one test has its file's name alone."""
    outcomes = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        *_, module, group = f"{case.get('classname')}".split(".")
        name = group if group == case.get("name") else f"{module}: {group}.{case.get('name')}"
        found = {child.tag for child in case}
        outcomes[name] = "failed" if found & {"failure", "error"} else "skipped" if "skipped" in found else "passed"
    return outcomes


def read_outcomes(folder: pathlib.Path) -> dict[str, str]:
    outcomes = {}
    for path in sorted(folder.rglob("*.json")):
        outcomes |= googletest_outcomes(path.stem, json.loads(path.read_text()))
    for path in sorted(folder.glob("python-*.xml")):
        outcomes |= pytest_outcomes(path)
    return outcomes


def problems_of(feature: Feature, outcomes: dict[str, str]) -> list[str]:
    patterns = feature.tests + feature.skippable
    problems = [] if patterns else [f"{feature.name}: no tests are named"]
    for pattern in patterns:
        if re.match(r"[\w ]*[*?[]", pattern):
            problems.append(f'{feature.name}: "{pattern}" does not begin with the whole name of a program or module')
            continue
        fitting = fnmatch.filter(outcomes, pattern)
        failed = [name for name in fitting if outcomes[name] == "failed"]
        if failed:
            problems.append(f"{feature.name}: failed: {', '.join(failed)}")
        elif pattern in feature.skippable and fitting:
            continue
        elif not any(outcomes[name] == "passed" for name in fitting):
            why = f"of {len(fitting)} tests none ran" if fitting else "there is no such test"
            problems.append(f'{feature.name}: "{pattern}": {why}')
    return problems


def render(parts: list[Part]) -> str:
    lines = [HEAD]
    for part in parts:
        lines += [f"## {part.title}", "", "| | CPU | CUDA | shown by |", "|---|---|---|---|"]
        for feature in part.features:
            cpu = "not built" if not feature.built else "tested" if feature.tests else "—"
            cuda = cpu if not feature.built else "compiles only" if part.on_device else "—"
            shown_by = ", ".join(f"`{pattern}`" for pattern in feature.tests + feature.skippable)
            lines.append(f"| {feature.name} | {cpu} | {cuda} | {shown_by} |")
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks or writes docs/support.md.")
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--write", action="store_true", help="write the page instead of checking it")
    arguments = parser.parse_args()
    parts = read_features(FEATURES)
    outcomes = read_outcomes(arguments.results)
    problems = [problem for part in parts for feature in part.features for problem in problems_of(feature, outcomes)]
    page = render(parts)
    if not problems and arguments.write:
        PAGE.write_text(page)
    elif not problems and (not PAGE.exists() or PAGE.read_text() != page):
        problems = [f"{PAGE.relative_to(ROOT)} is not what the tests show; run scripts/test.sh --update-support"]
    for problem in problems:
        print(f"not ok support: {problem}")
    if not problems:
        print(f"ok support: every feature of {FEATURES.relative_to(ROOT)} is shown by tests that passed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

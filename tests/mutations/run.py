"""Do the tests notice faults? Inserts each fault of faults.toml into a copy of the checkout, builds, runs the tests of its
part, and prints a row of the table of docs/benchmarks/mutations.md: which test failed first, after how many seconds.

    python3 tests/mutations/run.py             all faults; an hour or more on two cores
    python3 tests/mutations/run.py WORD...     those whose part is, or whose name contains, one of the words
    python3 tests/mutations/run.py --check     only sees that every fault still applies; builds nothing

The copy is build/mutations/checkout, with a build folder of its own; the logs are in build/mutations/logs. The checkout is
not touched. A part's tests must pass without a fault first. Exit codes: 0 all caught, 1 a fault was not caught, 70 a fault
does not apply or does not compile, or a part's tests fail without one.
"""

from __future__ import annotations

import argparse
import dataclasses
import filecmp
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "mutations"
COPY = WORK / "checkout"
NOT_CAUGHT, BROKEN = 1, 70
# A test that failed; where a program died or hung, its last test; a program that names none.
FAILED = [r"^\[  FAILED  \] (\S+?),? ", r"^(?:SUB)?(?:FAILED|ERROR)\S* (\S+)", r"(?s).*\[ RUN      \] (\S+)", r"^\s*\d+ - (\S+) \("]
FIRST_FAILURE_ENDS = {"GTEST_FAIL_FAST": "1", "PYTEST_ADDOPTS": "-x"}


@dataclasses.dataclass
class Fault:
    name: str
    part: str  # scripts/test.sh's word for the tests that must fail
    what: str
    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        times = text.count(self.old)
        if times != 1:
            stop(f'fault "{self.name}": its old text occurs {times} times in {self.file} and must occur once; '
                 "see what the code says today and mend tests/mutations/faults.toml")  # fmt: skip
        return text.replace(self.old, self.new)


def stop(message: str):
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(BROKEN)


def update_copy():
    """Makes the copy what the checkout is. Files that are the same keep their times, so that they are not compiled again."""
    listed = subprocess.run(["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            check=True, capture_output=True, text=True).stdout.split("\0")  # fmt: skip
    names = {name for name in listed if name and (ROOT / name).is_file()}
    for name in names:
        target = COPY / name
        if target.is_file() and filecmp.cmp(ROOT / name, target, shallow=False):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    for path in COPY.rglob("*"):
        name = path.relative_to(COPY)
        if path.is_file() and name.parts[0] != "build" and str(name) not in names:
            path.unlink()
    shared = WORK / "shared"
    if (ROOT.parent / "shared").is_dir() and not shared.exists():
        shared.symlink_to(ROOT.parent / "shared")


def run_tests(part: str, log: pathlib.Path) -> tuple[bool, str]:
    """Whether the part's tests pass, and what they printed."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        code = subprocess.run([COPY / "scripts" / "test.sh", part], stdin=subprocess.DEVNULL, stdout=out,
                              stderr=subprocess.STDOUT, env=os.environ | FIRST_FAILURE_ENDS).returncode  # fmt: skip
    if code not in (0, 1):
        stop(f"the tests of {part} could not be built or run: {log}")
    return code == 0, log.read_text(errors="replace")


def first_failure(printed: str) -> str:
    return next((match[1] for pattern in FAILED if (match := re.search(pattern, printed, re.MULTILINE))), "unknown")


def check_part(part: str):
    log = WORK / "logs" / f"{part}.log"
    passed, printed = run_tests(part, log)
    if not passed or not re.search(r"^[1-9]\d* passed, 0 failed$", printed, re.MULTILINE):
        stop(f"without a fault, the tests of {part} do not all pass, or there are none: {log}")


def catches(fault: Fault) -> bool:
    path = COPY / fault.file
    original = path.read_text()  # which stays what it is while somebody works on the checkout
    path.write_text(fault.applied(original))
    start = time.monotonic()
    try:
        passed, printed = run_tests(fault.part, WORK / "logs" / f"{fault.part}-{fault.name.replace(' ', '-')}.log")
    finally:
        path.write_text(original)
    result = "**not caught**" if passed else f"`{first_failure(printed)}`"
    print(f"| {fault.part} | {fault.what} | {result} | {time.monotonic() - start:.0f} |", flush=True)
    return not passed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only see that every fault still applies")
    parser.add_argument("words", nargs="*", metavar="WORD", help="a part, or a piece of a fault's name")
    arguments = parser.parse_args()
    faults = [Fault(**table) for table in tomllib.loads(pathlib.Path(__file__).with_name("faults.toml").read_text())["fault"]]
    for fault in faults:
        fault.applied((ROOT / fault.file).read_text())
    if arguments.check:
        return 0
    wanted = [f for f in faults if not arguments.words or any(w == f.part or w in f.name for w in arguments.words)]
    if not wanted:
        parser.error(f"no fault has {', '.join(arguments.words)} as its part or in its name")
    update_copy()
    checked, missed = set(), 0
    for fault in wanted:
        if fault.part not in checked:
            check_part(fault.part)
            checked.add(fault.part)
        missed += not catches(fault)
    print(f"{len(wanted) - missed} of {len(wanted)} faults were caught", file=sys.stderr)
    return NOT_CAUGHT if missed else 0


if __name__ == "__main__":
    sys.exit(main())

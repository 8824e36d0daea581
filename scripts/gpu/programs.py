"""What bench.py and check.py share: programs that are run with a time limit, and what is shown of what they print."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHOWN_LINES = 30
FAILURES, FAILURE_LINES = 3, 12  # of a GoogleTest program, with what they say


def execute(command: list[str], limit: float, environment: dict[str, str] | None = None) -> tuple[int | None, str]:
    """Exit code, none when it did not end within `limit` seconds, and what was printed. `environment`: on top of ours."""
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
            check=False,
        )
        return done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as late:
        return None, (late.stdout or b"").decode(errors="replace")
    except OSError as error:  # as a shell says that there is no such program
        return 127, str(error)


def left_out(said: str) -> str:
    """What GoogleTest did not run, or nothing. It calls it a success when nothing runs."""
    passed = re.search(r"^\[  PASSED  \] (\d+) test", said, re.MULTILINE)
    skipped = re.search(r"^\[  SKIPPED \] (\d+ tests?), listed below", said, re.MULTILINE)
    if skipped:
        return f"left out {skipped[1]}"
    return "" if passed and int(passed[1]) > 0 else "no test ran"


def end_of(printed: str) -> list[str]:
    """The lines that show what went wrong: the last ones; of GoogleTest first what the first failing cases say."""
    cases = re.findall(r"^(\[ RUN      \] .*\n(?:(?!\[ ).*\n)*\[  FAILED  \] .*)", printed, re.MULTILINE)
    lines = []
    for case in cases[:FAILURES]:
        said = case.splitlines()
        left = len(said) - FAILURE_LINES
        lines += said if left <= 1 else [*said[: FAILURE_LINES - 1], f"… {left} lines", said[-1]]
    return [*lines, *(["…"] if lines else []), *printed.splitlines()[-SHOWN_LINES:]]


def note(log: pathlib.Path | None, command: str, printed: str) -> None:
    """Adds all that a program printed to the log, if there is one."""
    if log:
        with open(log, "a") as file:
            file.write(f"$ {command}\n{printed}\n")


def result_of(printed: str) -> dict:
    """The JSON object that a program prints: on the last line that is one, for libraries may say more. Throws ValueError."""
    for line in reversed(printed.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise ValueError("no line is a JSON object")

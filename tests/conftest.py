"""Makes pytest collect the test programs beside the test modules: `*_oracle.py` is run with TITAN_BINARY in the environment and
counts as one test (exit 0 passed, 77 skipped, anything else failed)."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

TESTS = pathlib.Path(__file__).resolve().parent
SKIPPED_EXIT = 77
# Programs inherit ignored signals, but not handlers: the tests see the same program under nohup and in the background of a script.
for ignored in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(ignored) == signal.SIG_IGN:
        signal.signal(ignored, lambda number, frame: None)

sys.path[:0] = [str(TESTS / "reference"), str(TESTS / "behaviour")]


def pytest_collect_file(file_path: pathlib.Path, parent):
    if file_path.name.endswith("_oracle.py"):
        return OracleFile.from_parent(parent, path=file_path)
    return None


class OracleFile(pytest.File):
    def collect(self):
        yield Oracle.from_parent(self, name=self.path.stem)


class Oracle(pytest.Item):
    def runtest(self):
        if not os.environ.get("TITAN_BINARY"):
            pytest.skip("TITAN_BINARY does not name a titan_train to test")
        done = subprocess.run([sys.executable, str(self.path)], check=False, capture_output=True, text=True)
        if done.returncode == SKIPPED_EXIT:
            pytest.skip((done.stdout + done.stderr).strip())
        if done.returncode != 0:
            pytest.fail(f"exit {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)

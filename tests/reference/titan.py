"""Runs titan_train for a test and finds what it wrote. `TITAN_BINARY` names the program."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED_DATA = ROOT.parent / "shared" / "data"
DEBUG_CONFIG = ROOT / "configs" / "debug_model.toml"
TIME_LIMIT_SECONDS = 900


def binary() -> str:
    """Path of the program under test; the calling test is skipped when none was named."""
    path = os.environ.get("TITAN_BINARY")
    if not path:
        raise unittest.SkipTest("TITAN_BINARY does not name a titan_train to test")
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"TITAN_BINARY={path} is no executable file")
    return os.path.abspath(path)


def shared(name: str) -> pathlib.Path:
    """A file of the data that is beside the checkout; the calling test is skipped when it is not there."""
    path = SHARED_DATA / name
    if not path.exists():
        raise unittest.SkipTest(f"{name} is not in {SHARED_DATA}")
    return path


def train(folder: pathlib.Path, flags: list[str], config: pathlib.Path = DEBUG_CONFIG) -> str:
    """Trains with the outputs below `folder`, returns what was printed; a failure carries the command and its end."""
    command = [binary(), str(config), f"--job.dump_folder={folder}", *flags]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT_SECONDS
    )
    printed = done.stdout + done.stderr
    if done.returncode != 0:
        raise AssertionError(f"exit {done.returncode} from\n{' '.join(command)}\n{printed[-4000:]}")
    return printed


def metrics(folder: pathlib.Path) -> list[dict]:
    """The training lines of the run's metrics.jsonl, in order of steps."""
    found = sorted(folder.rglob("metrics.jsonl"))
    if len(found) != 1:
        raise AssertionError(f"{len(found)} files metrics.jsonl below {folder}, expected one")
    lines = [json.loads(line) for line in found[0].read_text().splitlines()]
    return sorted((line for line in lines if "loss" in line), key=lambda line: line["step"])


def end_of_text_id(config: pathlib.Path = DEBUG_CONFIG) -> int:
    """End-of-text id of the config's tiktoken file: the second id after its base vocabulary, one word a line."""
    model = tomllib.loads(config.read_text())["model"]
    path = ROOT / (model.get("tokenizer_path") or model["hf_assets_path"])
    if path.is_dir():
        (path,) = path.glob("*.model")
    return sum(1 for line in path.read_bytes().split(b"\n") if line) + 1  # the mark at the end is an empty line

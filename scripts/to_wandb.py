#!/usr/bin/env python3
"""Hands a run of titan_train over to Weights & Biases: python3 scripts/to_wandb.py DUMP_FOLDER [--follow]

Reads DUMP_FOLDER/metrics.jsonl, which is written whatever the options, and logs every line under torchtitan's names.
With --follow it continues until the run has been silent for --patience seconds. Needs `pip install wandb`, whose own
variables hold: WANDB_PROJECT (default here: torchtitan), WANDB_ENTITY or WANDB_TEAM, WANDB_NAME or WANDB_RUN_NAME,
WANDB_RUN_ID, WANDB_NOTES or WANDB_RUN_NOTES, WANDB_TAGS or WANDB_RUN_TAGS, WANDB_RUN_GROUP, WANDB_JOB_TYPE or
WANDB_RUN_JOB_TYPE, WANDB_RESUME_FROM, WANDB_FORK_FROM, WANDB_MODE.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Iterator

# Key of metrics.jsonl: name in torchtitan, factor.
NAMES = {
    "loss": ("loss_metrics/global_avg_loss", 1),
    "global_max_loss": ("loss_metrics/global_max_loss", 1),
    "grad_norm": ("grad_norm", 1),
    "lr": ("lr", 1),
    "tps": ("throughput(tps)", 1),
    "tflops": ("tflops", 1),
    "mfu_percent": ("mfu(%)", 1),
    "step_seconds": ("time_metrics/end_to_end(s)", 1),
    "data_wait_seconds": ("time_metrics/data_loading(s)", 1),
    "memory_peak_bytes": ("memory/max_reserved(GiB)", 2**-30),
    "tokens_seen": ("n_tokens_seen", 1),
    "skipped_steps": ("skipped_steps", 1),
    "validation_loss": ("validation_metrics/loss", 1),
    "validation_tps": ("validation_metrics/throughput(tps)", 1),
}
# Argument of wandb.init: variables that torchtitan reads for it.
VARIABLES = {
    "entity": "WANDB_TEAM",
    "name": "WANDB_RUN_NAME",
    "id": "WANDB_RUN_ID",
    "notes": "WANDB_RUN_NOTES",
    "tags": "WANDB_RUN_TAGS",
    "group": "WANDB_RUN_GROUP",
    "job_type": "WANDB_RUN_JOB_TYPE",
    "resume_from": "WANDB_RESUME_FROM",
    "fork_from": "WANDB_FORK_FROM",
}


def fail(code: int, text: str) -> None:
    print(f"error: {text}", file=sys.stderr)
    sys.exit(code)


def parse(line: str) -> dict | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None  # the half of a line that a full disk left
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def numbers(record: dict) -> dict[str, float]:
    """Under torchtitan's names; "nan", "inf" and "-inf" are numbers too."""
    values = {}
    for key, value in record.items():
        if key in NAMES and not isinstance(value, (dict, list)):
            name, factor = NAMES[key]
            values[name] = float(value) * factor
    for name, value in record.get("statistics", {}).items():
        for i, element in enumerate(value if isinstance(value, list) else [value]):
            values[f"statistics/{name}[{i}]" if isinstance(value, list) else f"statistics/{name}"] = float(element)
    return values


def steps_of(records: list[dict]) -> Iterator[tuple[int, dict[str, float]]]:
    """By step, rising. Where a run went back to a checkpoint, what it did the second time counts."""
    by_step: dict[int, dict[str, float]] = {}
    last = 0
    for record in records:
        step = record["step"]
        is_again = "loss" in record and "loss_metrics/global_avg_loss" in by_step.get(step, {})
        if step < last or is_again:
            by_step = {known: values for known, values in by_step.items() if known < step}
        by_step.setdefault(step, {}).update(numbers(record))
        last = step
    yield from sorted(by_step.items())


def follow(path: pathlib.Path, patience: float) -> Iterator[str]:
    """Whole lines as they are written, until none has come for `patience` seconds."""
    pending, heard = "", time.monotonic()
    with path.open() as file:
        while time.monotonic() - heard < patience:
            text = file.read()
            if not text:
                time.sleep(min(1.0, patience / 10))
                continue
            heard = time.monotonic()
            *lines, pending = (pending + text).split("\n")
            yield from lines


def begin(folder: pathlib.Path):
    try:
        import wandb
    except ImportError as error:
        fail(69, f"{error}; pip install wandb")
    given = {key: os.environ[variable] for key, variable in VARIABLES.items() if os.environ.get(variable)}
    if "tags" in given:
        given["tags"] = given["tags"].split(",")
    config = {}
    if (folder / "run.json").exists():
        config = json.loads((folder / "run.json").read_text())
    project = os.environ.get("WANDB_PROJECT", "torchtitan")
    return wandb.init(project=project, dir=str(folder), config=config.get("config", config), **given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="job.dump_folder of the run")
    parser.add_argument("--follow", action="store_true", help="go on while the run does")
    parser.add_argument("--patience", type=float, default=600, metavar="S", help="seconds of silence that end --follow")
    arguments = parser.parse_args()
    path = arguments.folder / "metrics.jsonl"
    if not path.is_file():
        fail(65, f"{path} is not there; name the folder that job.dump_folder named")
    run = begin(arguments.folder)
    if arguments.follow:
        newest = 0
        for record in filter(None, map(parse, follow(path, arguments.patience))):
            # W&B takes no step twice: of what a run repeats after a restart, the first time stays.
            if record["step"] >= newest:
                newest = record["step"]
                run.log(numbers(record), step=newest)
    else:
        for step, values in steps_of(list(filter(None, map(parse, path.read_text().split("\n"))))):
            run.log(values, step=step)
    run.finish()


if __name__ == "__main__":
    main()

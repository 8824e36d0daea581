"""Starts one training process, titan's or Python's, and reads what it measured of itself."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = ROOT / "configs" / "debug_model.toml"


@dataclasses.dataclass(frozen=True)
class Workload:
    """A training step of the debug model: batch × length tokens. Steps before `warm_up` are not measured."""

    batch: int
    length: int
    precision: str  # float32 or bfloat16
    warm_up: int
    measured: int
    threads: int = 2

    @property
    def title(self) -> str:
        return f"{self.batch} × {self.length}, {self.precision}"

    @property
    def tokens(self) -> int:
        return self.batch * self.length


@dataclasses.dataclass(frozen=True)
class Measurement:
    step_seconds: float  # median over the measured steps
    wait_share: float  # of the measured steps' time, waiting for data
    peak_bytes: int  # resident, of the whole process, as the kernel counts it
    parameters: int


def environment(threads: int) -> dict[str, str]:
    """The same for both programs: the libraries under them read these."""
    return os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def run(command: list[str], threads: int) -> tuple[str, int, int]:
    """Output, exit status and peak resident bytes of a process. The peak includes the moment before it became its own
    program, when it was this one: this one stays small."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(threads), stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return output.read().decode(errors="replace"), process.returncode, usage.ru_maxrss * 1024


def measure(command: list[str], folder: pathlib.Path, work: Workload) -> Measurement:
    printed, code, peak = run(command, work.threads)
    if code != 0:
        raise SystemExit(f"exit {code} from\n{' '.join(command)}\n{printed[-3000:]}")
    (metrics,) = folder.rglob("metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [line for line in lines if "step_seconds" in line][work.warm_up :]
    if len(steps) != work.measured:
        raise SystemExit(f"{metrics} has {len(steps)} measured steps, expected {work.measured}")
    seconds = [line["step_seconds"] for line in steps]
    share = sum(line["data_wait_seconds"] for line in steps) / sum(seconds)
    found = re.search(r"([\d,]+) total parameters", printed)
    parameters = int(found[1].replace(",", "")) if found else 0
    return Measurement(statistics.median(seconds), share, peak, parameters)


def titan(binary: str, work: Workload) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            binary,
            str(CONFIG),
            f"--job.dump_folder={folder}",
            f"--training.steps={work.warm_up + work.measured}",
            f"--training.local_batch_size={work.batch}",
            f"--training.seq_len={work.length}",
            "--training.dtype=float32",
            f"--training.mixed_precision_param={work.precision}",
            f"--training.threads={work.threads}",
            "--training.device=cpu",
            "--activation_checkpoint.mode=none",
            "--optimizer.implementation=fused",
            "--metrics.log_freq=1",
        ]
        return measure(command, pathlib.Path(folder), work)


def python(work: Workload) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            str(pathlib.Path(__file__).with_name("python_trainer.py")),
            f"--folder={folder}",
            f"--steps={work.warm_up + work.measured}",
            f"--batch={work.batch}",
            f"--length={work.length}",
            f"--precision={work.precision}",
            f"--threads={work.threads}",
        ]
        return measure(command, pathlib.Path(folder), work)


def seconds_to_config_error(binary: str) -> float:
    """Wall time from start to exit with a misspelt key in the config."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "misspelt.toml"
        config.write_text(CONFIG.read_text() + "\n[profilling]\nenable_profiling = true\n")
        begin = time.perf_counter()
        printed, code, _ = run([binary, str(config)], 2)
        elapsed = time.perf_counter() - begin
    if code != 64:
        raise SystemExit(f"a config with a misspelt section ended with exit {code}, expected 64\n{printed[-2000:]}")
    return elapsed

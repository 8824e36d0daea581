"""Starts one training run, titan's or Python's, of one or several ranks, and reads what it measured of itself."""

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
    """A training step of the debug model: batch × length tokens, cut over `ranks` processes of `threads` threads each
    (FSDP). Steps before `warm_up` are not measured."""

    batch: int
    length: int
    precision: str  # float32 or bfloat16
    warm_up: int
    measured: int
    threads: int = 2
    ranks: int = 1

    @property
    def title(self) -> str:
        return f"{self.batch} × {self.length}, {self.precision}"

    @property
    def key(self) -> str:
        return f"{self.batch}x{self.length}/{self.precision}"

    @property
    def tokens(self) -> int:
        return self.batch * self.length

    def shortened(self, quick: bool) -> Workload:
        """Itself, or enough of it to see that it runs."""
        return dataclasses.replace(self, warm_up=1, measured=2) if quick else self


@dataclasses.dataclass(frozen=True)
class Measurement:
    step_seconds: float  # median over the measured steps
    wait_share: float  # of the measured steps' time, waiting for data
    peak_bytes: int  # resident, of the whole process, as the kernel counts it
    parameters: int


def environment(threads: int) -> dict[str, str]:
    """The same for both programs: the libraries under them read these."""
    one_compiler = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # else compiled PyTorch keeps a pool of processes
    return os.environ | one_compiler | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}


def run(command: list[str], threads: int) -> tuple[str, int, int]:
    """Output, exit status and peak resident bytes of a process. The peak includes the moment before it became its own
    program, when it was this one: this one stays small."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(threads), stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return output.read().decode(errors="replace"), process.returncode, usage.ru_maxrss * 1024


def completed(command: list[str], threads: int) -> tuple[str, int]:
    """Output and peak resident bytes of a process that succeeds."""
    printed, code, peak = run(command, threads)
    if code != 0:
        raise SystemExit(f"exit {code} from\n{' '.join(command)}\n{printed[-3000:]}")
    return printed, peak


def measure(command: list[str], folder: pathlib.Path, work: Workload) -> Measurement:
    printed, peak = completed(command, work.threads)
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
        launch = ["launch", "-n", str(work.ranks)] if work.ranks > 1 else []
        command = [
            binary,
            *launch,
            str(CONFIG),
            f"--job.dump_folder={folder}",
            f"--training.steps={work.warm_up + work.measured}",
            f"--training.local_batch_size={work.batch // work.ranks}",
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


def python(work: Workload, mode: str = "eager") -> Measurement:
    """scripts/gpu/baseline.py in the sizes of the debug model; `mode`: eager or compiled."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(work.ranks)]
    command = [
        sys.executable,
        *(launch if work.ranks > 1 else []),
        str(ROOT / "scripts" / "gpu" / "baseline.py"),
        "--device=cpu",
        f"--mode={mode}",
        f"--steps={work.warm_up + work.measured}",
        f"--warm-up={work.warm_up}",
        f"--batch={work.batch // work.ranks}",
        f"--length={work.length}",
        f"--precision={'mixed' if work.precision == 'bfloat16' else work.precision}",
        f"--threads={work.threads}",
    ]
    printed, peak = completed(command, work.threads)
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    seconds = [line["step_seconds"] for line in lines if "step" in line][work.warm_up :]
    if len(seconds) != work.measured:
        raise SystemExit(f"{' '.join(command)}\nprinted {len(seconds)} measured steps, expected {work.measured}")
    return Measurement(statistics.median(seconds), 0.0, peak, lines[-1]["parameters"])


def seconds_to_first_step(binary: str, ranks: int) -> float:
    """Wall time from starting the launcher until the first step's line is there."""
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "launch", "-n", str(ranks), str(CONFIG), f"--job.dump_folder={folder}"]
        command += ["--training.steps=1", "--training.device=cpu"]
        begin = time.perf_counter()
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            printed = []
            seconds = None
            for line in process.stdout:
                printed.append(line)
                if seconds is None and re.search(r"step:\s+1\b", line):
                    seconds = time.perf_counter() - begin
    if process.returncode != 0 or seconds is None:
        raise SystemExit(f"exit {process.returncode} from\n{' '.join(command)}\n{''.join(printed)[-3000:]}")
    return seconds


def sent_as_planned(binary: str, ranks: int) -> tuple[str, bool]:
    """What a rank of the debug model sends in a step, and whether every rank counted what its plan says."""
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "launch", "-n", str(ranks), "--log-rank", "all", str(CONFIG), f"--job.dump_folder={folder}"]
        printed, _ = completed(command + ["--training.steps=2", "--training.device=cpu"], 1)
    lines = re.findall(r"This rank sent (.*) in (\d+) collectives in step 2, (.*)", printed)
    if len(lines) != ranks:
        raise SystemExit(f"{len(lines)} of {ranks} ranks said what they sent\n{printed[-3000:]}")
    return f"{lines[0][0]} in {lines[0][1]} collectives", all(line[2] == "as planned" for line in lines)


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

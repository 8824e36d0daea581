"""Driver of scripts/bench/pipeline.sh: a pipeline of two ranks against one process of two threads. Imports no torch."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
import sys
import tempfile

import driver
import ratios
import trainers
from trainers import Workload

MICROBATCHES = 16  # of one sample each
WORK = Workload(MICROBATCHES, 512, "float32", warm_up=2, measured=4)
RANKS = 2
BEST_BAR, SAME_BAR = 0.95, 1.05
# Schedule, and the first layers of its stages but the first: three of the six layers on every rank.
SCHEDULES = {
    "Interleaved1F1B": "layers.1,layers.2,layers.3,layers.4,layers.5",
    "1F1B": "layers.3",
    "ZBVZeroBubble": "layers.2,layers.4,layers.5",
}
RECORDED = ["Interleaved1F1B", "1F1B"]  # in README
SIZES = (1, 2, 4, 8, 16)  # samples of a microbatch of one process


@dataclasses.dataclass(frozen=True)
class Machine:
    """What is measured: the program, and a tokenizer of few words, which makes the six layers nearly all of the model."""

    binary: str
    tokenizer: pathlib.Path

    def run(self, work: Workload, *words: str) -> trainers.Measurement:
        with tempfile.TemporaryDirectory() as folder:
            launch = ["launch", "-n", str(work.ranks)] if work.ranks > 1 else []
            command = [
                self.binary,
                *launch,
                str(trainers.CONFIG),
                f"--job.dump_folder={folder}",
                f"--model.tokenizer_path={self.tokenizer}",
                f"--training.steps={work.warm_up + work.measured}",
                f"--training.seq_len={work.length}",
                f"--training.threads={work.threads}",
                "--training.loss_chunks=1",  # a microbatch is small enough for its logits to be held whole
                "--training.device=cpu",
                "--metrics.log_freq=1",
                *words,
            ]
            return trainers.measure(command, pathlib.Path(folder), work)

    def pipeline(self, work: Workload, schedule: str) -> trainers.Measurement:
        option = "--parallelism.pipeline_parallel"
        words = [f"{option}_degree={RANKS}", f"{option}_schedule={schedule}", f"{option}_split_points={SCHEDULES[schedule]}"]
        return self.run(dataclasses.replace(work, ranks=RANKS, threads=1), *words, f"--training.local_batch_size={work.batch}")

    def alone(self, work: Workload, size: int) -> trainers.Measurement:
        words = [f"--training.local_batch_size={size}", f"--training.global_batch_size={work.batch}"]
        return self.run(work, *words)


def best_size(machine: Machine, work: Workload) -> int:
    """The size of microbatch with which one process is fastest."""
    seconds = {size: machine.alone(work, size).step_seconds for size in SIZES}
    shown = ", ".join(f"{size}: {work.tokens / each:,.0f}" for size, each in seconds.items())
    print(f"one process, tokens/s by samples of a microbatch: {shown}", flush=True)
    return min(seconds, key=seconds.get)


def rows(machine: Machine, work: Workload, pairs: int, schedule: str, best: int) -> list[ratios.Row]:
    def speed(runs: list, which: int) -> str:
        return f"{work.tokens / statistics.median(pair[which].step_seconds for pair in runs):,.0f} tokens/s"

    found = []
    for size, bar, what in ((best, BEST_BAR, "best"), (1, SAME_BAR, "same")):
        runs = ratios.interleaved(pairs, lambda: machine.pipeline(work, schedule), lambda s=size: machine.alone(work, s))
        samples = [other.step_seconds / ours.step_seconds for ours, other in runs]
        title = f"pp {RANKS}, {schedule}, against one process, {what} microbatches ({size})"
        key = f"pipeline/{schedule}" if what == "best" and schedule in RECORDED else ""
        told = {"key": key, "against": "one process with its best microbatches"}
        found.append(ratios.Row(title, speed(runs, 0), speed(runs, 1), samples, bar, True, **told))
    return found


def make_tokenizer(binary: str, folder: str) -> pathlib.Path:
    path = pathlib.Path(folder) / "few_words.model"
    corpus = pathlib.Path(__file__).resolve().parents[2] / "configs" / "corpora" / "stories.jsonl"
    command = [binary, "tokenizer", "train", f"--dataset-path={corpus}", f"--output={path}", "--vocab-size=640"]
    printed, code, _ = trainers.run(command, 2)
    if code != 0:
        raise SystemExit(printed)
    return path


def main() -> int:
    description = "A pipeline of two ranks on two cores: ratios to one process of two threads."
    arguments = driver.parse("scripts/bench/pipeline.sh", description, list(SCHEDULES))
    pairs = 1 if arguments.quick else arguments.pairs
    work = dataclasses.replace(WORK, warm_up=1, measured=2) if arguments.quick else WORK
    print(f"{driver.machine()}\n{pairs} interleaved pairs a row, {MICROBATCHES} microbatches of 1 × {work.length}", flush=True)
    table = []
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(arguments.binary, make_tokenizer(arguments.binary, folder))
        best = best_size(machine, work)
        for schedule in arguments.rows:
            print(f"measuring {schedule}", file=sys.stderr, flush=True)
            table += rows(machine, work, pairs, schedule, best)
    print(f"\n{ratios.table(table, 'one process')}")
    return driver.verdict(table, arguments)


if __name__ == "__main__":
    sys.exit(main())

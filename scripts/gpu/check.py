"""Driver of scripts/gpu/check.sh: runs the rows below, compares losses, writes the page. Needs no package."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import math
import pathlib
import sys
import tempfile
import time

from programs import ROOT, end_of, execute, left_out, note

CONFIG = "configs/debug_model.toml"
STEPS = 20
GLOBAL_BATCH = 8
RUN_SECONDS = 90
TOTAL_SECONDS = 420  # no row is started later, so that all ends within eight minutes
# Relative, at step 1 and at any later one. Other shapes and orders of sums differ by rounding, which training amplifies;
# other processors and fused kernels round more operations differently. In bf16 fused kernels leave out some of plain
# operations' roundings; leaving out all of them, on a CPU, is 5e-5 and 4e-3 (rows single and bf16), of which the bars are
# about three times. At step 1 the bar is the same in float8, whose later steps lie
# up to 5e-3 apart between two tensor-parallel ranks and one, and for document masks, whose rows are short: four times that.
BARS = (1e-6, 1e-5)
OTHER_DEVICE_BARS = (1e-6, 1e-3)
FUSED_BARS = (1e-5, 1e-3)
FUSED_BF16_BARS = (2e-4, 1e-2)
FUSED_FLOAT8_BARS = (2e-4, 2e-2)
DOCUMENTS_BF16_BARS = (2e-4, 2e-2)
TESTS = {
    "kernels_test": "OnGpu/*:KernelsOfTheGpu.*",
    "ops_test": "AttentionKernel.OfAGpu*",
    "distributed_test": "Backends/GroupsOfOne.*",
    "train_test": "ChooseDevice.*-ChooseDevice.ACudaDeviceThatIsNotThere*",
}
BF16 = "--training.mixed_precision_param=bfloat16"
FLOAT8 = "--model.converters=quantize.linear.float8"
FUSED = "--compile.enable"
SYNC_CHECK = "--debug.sync_check"
DOCUMENTS = "--model.flavor=debugmodel_flex_attn"
OFFLOAD = ("--activation_checkpoint.mode=full", "--activation_checkpoint.offload", "--optimizer.offload")
GROUPS_OF_ONE = "--debug.groups_of_one"
# Several ranks on one card: nothing that needs the card alone, and little of it each.
ONE_CARD = {
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "2",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_DEBUG": "WARN",
}
REFUSAL = "Duplicate GPU detected"  # NCCL's words for several ranks on one card


@dataclasses.dataclass(frozen=True)
class Row:
    """One training run; its losses are compared with those of the row `against`, by `bars`."""

    name: str
    what: str
    ranks: int = 1
    data_parallel: int = 1
    words: tuple[str, ...] = ()
    on_cpu: bool = False
    against: str = "single"  # or empty: with none
    bars: tuple[float, float] = BARS


def layout(replicate: int = 1, shard: int = 1, tensor: int = 1) -> tuple[str, ...]:
    return (
        f"--parallelism.data_parallel_replicate_degree={replicate}",
        f"--parallelism.data_parallel_shard_degree={shard}",
        f"--parallelism.tensor_parallel_degree={tensor}",
    )


ROWS = [
    Row("single", "one process", against=""),
    Row("cpu", "one process on the CPU", on_cpu=True, bars=OTHER_DEVICE_BARS),
    Row("fused", "fused kernels", words=(FUSED,), bars=FUSED_BARS),
    Row("sync-check", "no call in a step waits for the card", words=(SYNC_CHECK,)),
    Row("sync-check-fused", "the same with fused kernels", words=(SYNC_CHECK, FUSED), against="fused"),
    Row("bf16", "bf16, plain operations", words=(BF16,), against=""),
    Row("bf16-fused", "bf16, fused kernels", words=(BF16, FUSED), against="bf16", bars=FUSED_BF16_BARS),
    Row("float8", "float8, plain operations", words=(BF16, FLOAT8), against=""),
    Row("float8-fused", "float8, fused kernels", words=(BF16, FLOAT8, FUSED), against="float8", bars=FUSED_FLOAT8_BARS),
    Row("deterministic", "deterministic kernels in bf16", words=(BF16, "--debug.deterministic"), against="bf16", bars=FUSED_BF16_BARS),
    Row("documents-cpu", "document masks on the CPU", words=(DOCUMENTS,), on_cpu=True, against=""),
    Row("documents", "document masks", words=(DOCUMENTS,), against="documents-cpu", bars=OTHER_DEVICE_BARS),
    Row("offload", "activations and moments on the host", words=OFFLOAD),
    Row("one", "one rank, every group over NCCL", words=(GROUPS_OF_ONE,)),
    Row("one-fused", "the same with fused kernels, a graph a block", words=(GROUPS_OF_ONE, FUSED), against="fused"),
    Row("ddp2", "DDP 2 on one card", 2, 2, layout(replicate=2)),
    Row("fsdp2", "FSDP 2 on one card", 2, 2, layout(shard=2)),
    Row("tp2", "TP 2 on one card", 2, 1, layout(tensor=2)),
    Row("fsdp2-tp2", "FSDP 2 × TP 2 on one card", 4, 2, layout(shard=2, tensor=2)),
    Row("fsdp2-fused", "FSDP 2 with fused kernels, a graph a block", 2, 2, (*layout(shard=2), FUSED), against="fused"),
    Row("tp2-fused", "TP 2 with fused kernels", 2, 1, (*layout(tensor=2), FUSED), against="fused"),
    Row("tp2-float8-fused", "TP 2 in float8 with fused kernels", 2, 1, (*layout(tensor=2), BF16, FLOAT8, FUSED),
        against="float8-fused", bars=FUSED_FLOAT8_BARS),  # fmt: skip
    # Last, because a CPU without instructions for bf16 may not be over in time.
    Row("documents-bf16-cpu", "the same in bf16 on the CPU", words=(DOCUMENTS, BF16), on_cpu=True, against=""),
    Row("documents-bf16", "in bf16", words=(DOCUMENTS, BF16), against="documents-bf16-cpu", bars=DOCUMENTS_BF16_BARS),
]


@dataclasses.dataclass
class Outcome:
    command: str
    seconds: float = 0.0
    verdict: str = "left out: no time"  # or: ok, failed, refused by NCCL
    losses: list[float] = dataclasses.field(default_factory=list)
    said: str = ""
    printed: str = ""  # its end, where it did not go well
    first: float | None = None
    later: float | None = None


class Checks:
    def __init__(self, programs: pathlib.Path, device: str, log: pathlib.Path | None):
        self.programs = programs
        self.device = device
        self.log = log
        self.begin = time.monotonic()
        self.outcomes: dict[str, Outcome] = {}

    def seconds_left(self) -> float:
        return TOTAL_SECONDS - (time.monotonic() - self.begin)

    def without_paths(self, text: str) -> str:
        """As it reads on every machine."""
        return text.replace(f"{self.programs}/", "").replace(f"{ROOT}/", "")

    def run(self, name: str, command: list[str], environment: dict[str, str]) -> Outcome:
        words = [*(f"{key}={value}" for key, value in environment.items()), *command]
        shown_words = [word for word in words if not word.startswith("--job.dump_folder=")]
        outcome = Outcome(self.without_paths(" ".join(shown_words)))
        self.outcomes[name] = outcome
        if self.seconds_left() <= 0:
            return outcome
        print(f"{name}: {outcome.command}", file=sys.stderr, flush=True)
        begin = time.monotonic()
        code, printed = execute(command, RUN_SECONDS, environment)
        outcome.seconds = time.monotonic() - begin
        outcome.said = printed
        note(self.log, outcome.command, printed)
        outcome.verdict = "ok" if code == 0 else "failed"
        if code != 0:
            reason = f"exit code {code}" if code is not None else f"not over after {RUN_SECONDS} s"
            outcome.printed = self.without_paths("\n".join([*end_of(printed), reason]))
            if REFUSAL in printed:
                outcome.verdict = "refused by NCCL"
        return outcome

    def unit_tests(self, program: str) -> None:
        outcome = self.run(program, [str(self.programs / program), f"--gtest_filter={TESTS[program]}"], {})
        if outcome.verdict == "ok" and self.device == "cuda" and (left := left_out(outcome.said)):
            outcome.verdict = f"failed: {left}"

    def train(self, row: Row) -> None:
        with tempfile.TemporaryDirectory(prefix="titan-gpu-") as folder:
            words = [
                str(self.programs / "titan_train"),
                *(("launch", "-n", str(row.ranks)) if row.ranks > 1 else ()),
                CONFIG,
                f"--training.device={'cpu' if row.on_cpu else self.device}",
                f"--training.steps={STEPS}",
                f"--training.local_batch_size={GLOBAL_BATCH // row.data_parallel}",
                *("--debug.seed=1", "--metrics.log_freq=1", f"--job.dump_folder={folder}"),
                *(("--debug.share_gpu",) if row.ranks > 1 else ()),
                *row.words,
            ]
            outcome = self.run(row.name, words, ONE_CARD if row.ranks > 1 else {})
            if outcome.verdict == "ok":
                outcome.losses = read_losses(pathlib.Path(folder) / "metrics.jsonl")
                self.compare(row, outcome)

    def compare(self, row: Row, outcome: Outcome) -> None:
        others = self.outcomes[row.against].losses if row.against in self.outcomes else []
        if len(outcome.losses) != STEPS:
            outcome.verdict = f"failed: {len(outcome.losses)} losses of {STEPS}"
        elif row.against and not others:
            outcome.verdict = f"failed: there is no row {row.against} to compare with"
        elif not all(math.isfinite(loss) for loss in outcome.losses):
            outcome.verdict = "failed: a loss that is not a number"
        elif not all(outcome.losses):
            outcome.verdict = "failed: a loss of 0"
        elif row.against:
            off = [abs(a - b) / abs(b) if b and math.isfinite(b) else math.inf for a, b in zip(outcome.losses, others)]
            outcome.first, outcome.later = off[0], max(off)
            held = outcome.first <= row.bars[0] and outcome.later <= row.bars[1]
            outcome.verdict = "ok" if held else "failed: other losses"


def read_losses(metrics: pathlib.Path) -> list[float]:
    try:
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return [float(line["loss"]) for line in lines if "loss" in line]
    except (OSError, ValueError):
        return []


def shown(number: float | None) -> str:
    return "" if number is None else f"{number:.1e}"


def page(arguments: argparse.Namespace, checks: Checks) -> str:
    what = {row.name: row.what for row in ROWS} | {name: f"`{names}`" for name, names in TESTS.items()}
    lines = [
        f"# GPU check of {datetime.date.today()}",
        "",
        f"Commit {arguments.commit}; {arguments.machine}; {time.monotonic() - checks.begin:.0f} s. Made by",
        "",
        f"    scripts/gpu/check.sh {' '.join(arguments.given)}".rstrip(),
        "",
        f"Training: the debug model, float32 where nothing else is said, {STEPS} steps of {GLOBAL_BATCH} sequences, seed 1.",
        "Losses are compared with those of the row that is named; bars are relative, at step 1 and at every step.",
        "",
        "| row | what | seconds | compared with | step 1 off by | bar | at most off by | bar | |",
        "|---|---|---:|---|---:|---:|---:|---:|---|",
    ]
    rows = {row.name: row for row in ROWS}
    for name, outcome in checks.outcomes.items():
        row = rows.get(name)
        bars = [f"{bar:.0e}" for bar in row.bars] if row and row.against else ["", ""]
        cells = [name, what[name], f"{outcome.seconds:.1f}", row.against if row else ""]
        cells += [shown(outcome.first), bars[0], shown(outcome.later), bars[1], outcome.verdict]
        lines.append(f"| {' | '.join(cells)} |")
    for name in (row.name for row in ROWS if not row.against):
        outcome = checks.outcomes.get(name)
        if outcome and outcome.losses:
            lines += ["", f"Losses of {name}: {' '.join(f'{loss:.5f}' for loss in outcome.losses)}"]
    for name, outcome in checks.outcomes.items():
        if outcome.printed:
            lines += ["", f"## {name}", "", f"    {outcome.command}", ""]
            lines += [f"    {line}".rstrip() for line in outcome.printed.splitlines()]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--log", type=pathlib.Path)
    parser.add_argument("--only")
    arguments = parser.parse_args()
    names = [*TESTS, *(row.name for row in ROWS)]
    wanted = arguments.only.split(",") if arguments.only else names
    if unknown := [name for name in wanted if name not in names]:
        print(f"error: there is no row {', '.join(unknown)}; there are {', '.join(names)}", file=sys.stderr)
        return 64
    arguments.given = [*(["--device", arguments.device] if arguments.device != "cuda" else [])]
    arguments.given += ["--only", arguments.only] if arguments.only else []
    checks = Checks(arguments.programs.resolve(), arguments.device, arguments.log)
    target = arguments.page or ROOT / "docs" / "benchmarks" / f"gpu-check-{datetime.date.today()}.md"
    rows = {row.name: row for row in ROWS}
    for name in (name for name in names if name in wanted):
        checks.train(rows[name]) if name in rows else checks.unit_tests(name)
        target.write_text(page(arguments, checks))  # each time, so that nothing is lost with the machine
    print(target.read_text())
    print(target, file=sys.stderr)
    good = ("ok", "refused by NCCL")
    return 0 if all(outcome.verdict in good for outcome in checks.outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Rows of correctness: the debug model's losses against those of other rows, or of a CPU in advance; and CUDA unit tests."""

import dataclasses
import functools
import json
import math
import pathlib
import re

from programs import Outcome, Session, ran_all, results_of, with_options

CONFIG = "configs/debug_model.toml"
STEPS, GLOBAL_BATCH = 20, 8
MOST_CASES = 6  # of a test program that are looked at again
RUN_SECONDS = 90
# Of this seed no step's loss jumps: there rounding alone would move it by percents.
SEED = 2
# Relative, at step 1 and at any later one. Other shapes and orders of sums differ by rounding, which training amplifies;
# other processors and fused kernels round more operations differently. In bf16 fused kernels leave out some of plain
# operations' roundings; leaving out all of them, on a CPU, is 5e-5 and 4e-3 (rows single and bf16), of which the bars are
# about three times. At step 1 the bar is the same in float8 and for document masks, whose rows are short.
BARS = (1e-6, 1e-5)
OTHER_DEVICE_BARS = (1e-6, 1e-3)
FUSED_BARS = (1e-5, 1e-3)
FUSED_BF16_BARS = (2e-4, 1e-2)
FUSED_FLOAT8_BARS = DOCUMENTS_BF16_BARS = (2e-4, 2e-2)
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
DEGREES = ("data_parallel_replicate", "data_parallel_shard", "tensor_parallel")
# Several ranks on one card: nothing that needs the card alone, and little of it each.
ONE_CARD = {"NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2", "NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "WARN"}
# Rows of a CPU, computed in advance (first.sh --losses): no card's time goes to them.
ON_CPU = {"cpu": (), "documents-cpu": (DOCUMENTS,), "documents-bf16-cpu": (DOCUMENTS, BF16)}
LOSSES = pathlib.Path(__file__).with_name("cpu_losses.json")


@dataclasses.dataclass(frozen=True)
class Row:
    """One training run; its losses are compared with those of the row `against`, by `bars`."""

    name: str
    what: str
    words: tuple[str, ...] = ()
    against: str = "single"  # or empty: with none
    bars: tuple[float, float] = BARS
    degrees: tuple[int, int, int] = (1, 1, 1)  # of DEGREES


ROWS = [
    Row("single", "one process", against="cpu", bars=OTHER_DEVICE_BARS),
    Row("fused", "fused kernels", words=(FUSED,), bars=FUSED_BARS),
    Row("sync-check", "no call in a step waits for the card", words=(SYNC_CHECK,)),
    Row("sync-check-fused", "the same with fused kernels", words=(SYNC_CHECK, FUSED), against="fused"),
    Row("bf16", "bf16, plain operations", words=(BF16,), against=""),
    Row("bf16-fused", "bf16, fused kernels", words=(BF16, FUSED), against="bf16", bars=FUSED_BF16_BARS),
    Row("float8", "float8, plain operations", words=(BF16, FLOAT8), against=""),
    Row("float8-fused", "float8, fused kernels", words=(BF16, FLOAT8, FUSED), against="float8", bars=FUSED_FLOAT8_BARS),
    Row("deterministic", "deterministic kernels in bf16", words=(BF16, "--debug.deterministic"), against="bf16", bars=FUSED_BF16_BARS),
    Row("documents", "document masks", words=(DOCUMENTS,), against="documents-cpu", bars=OTHER_DEVICE_BARS),
    Row("documents-bf16", "in bf16", words=(DOCUMENTS, BF16), against="documents-bf16-cpu", bars=DOCUMENTS_BF16_BARS),
    Row("offload", "activations and moments on the host", words=OFFLOAD),
    Row("one", "one rank, every group over NCCL", words=(GROUPS_OF_ONE,)),
    Row("one-fused", "the same with fused kernels, a graph a block", words=(GROUPS_OF_ONE, FUSED), against="fused"),
    Row("ddp2", "DDP 2 on one card", degrees=(2, 1, 1)),
    Row("fsdp2", "FSDP 2 on one card", degrees=(1, 2, 1)),
    Row("tp2", "TP 2 on one card", degrees=(1, 1, 2)),
    Row("fsdp2-tp2", "FSDP 2 × TP 2 on one card", degrees=(1, 2, 2)),
    Row("fsdp2-fused", "FSDP 2 with fused kernels, a graph a block", words=(FUSED,), against="fused", degrees=(1, 2, 1)),
    Row("tp2-fused", "TP 2 with fused kernels", words=(FUSED,), against="fused", degrees=(1, 1, 2)),
    Row("tp2-float8-fused", "TP 2 in float8 with fused kernels", words=(BF16, FLOAT8, FUSED), against="float8-fused",
        bars=FUSED_FLOAT8_BARS, degrees=(1, 1, 2)),  # fmt: skip
]
BY_NAME = {row.name: row for row in ROWS}


class Checks:
    def __init__(self, session: Session):
        self.session = session
        self.in_advance: dict[str, list[float]] = json.loads(LOSSES.read_text()) if LOSSES.exists() else {}

    def unit_tests(self, program: str, limit: float = RUN_SECONDS) -> Outcome:
        names = TESTS[program] if self.session.device == "cuda" else "OnHost/*"
        return self.session.run(program, [program, f"--gtest_filter={names}"], limit, read=ran_all)

    def words_of(self, row: Row, device: str) -> list[str]:
        words = [CONFIG, f"--training.device={device}", f"--training.steps={STEPS}"]
        words += [f"--training.local_batch_size={GLOBAL_BATCH // math.prod(row.degrees[:2])}", f"--debug.seed={SEED}", "--metrics.log_freq=1"]
        words += ["--job.dump_folder={folder}", *row.words]
        if (ranks := math.prod(row.degrees)) > 1:
            degrees = [f"--parallelism.{name}_degree={degree}" for name, degree in zip(DEGREES, row.degrees)]
            words = ["launch", "-n", str(ranks), *words, "--debug.share_gpu", *degrees]
        return ["titan_train", *words]

    def train(self, name: str, limit: float = RUN_SECONDS, label: str = "", extra: tuple[str, ...] = (),
              environment: dict[str, str] | None = None) -> Outcome:  # fmt: skip
        """`extra`: options on top, of a row that is called `label`."""
        row = BY_NAME[name]
        words = with_options(self.words_of(row, self.session.device), extra)
        variables = (ONE_CARD if math.prod(row.degrees) > 1 else {}) | (environment or {})
        return self.session.run(label or name, words, limit, variables, functools.partial(self.compare, row))

    def compare(self, row: Row, run: Outcome, folder: pathlib.Path) -> None:
        told = [line["loss"] for line in results_of((folder / "metrics.jsonl").read_text()) if "loss" in line]
        losses = run.numbers["losses"] = [math.nan if loss is None else float(loss) for loss in told]
        against, others, bars = self.others_of(row)
        if len(losses) != STEPS:
            run.verdict = f"failed: {len(losses)} losses of {STEPS}"
        elif row.against and not others and run.name == row.name:
            run.verdict = f"failed: there is no row {row.against} to compare with"
        elif not all(math.isfinite(loss) for loss in losses):
            run.verdict = "failed: a loss that is not a number"
        elif not all(losses):
            run.verdict = "failed: a loss of 0"
        elif row.against and others:
            off = [abs(a - b) / abs(b) if b and math.isfinite(b) else math.inf for a, b in zip(losses, others)]
            first, later = run.numbers["off"] = (off[0], max(off))
            run.verdict = "ok" if first <= bars[0] and later <= bars[1] else "failed: other losses"
            run.told = f": {first:.1e} off {against} at step 1 (bar {bars[0]:.0e}), {later:.1e} later ({bars[1]:.0e})"

    def others_of(self, row: Row) -> tuple[str, list[float], tuple[float, ...]]:
        """The losses that it is held against, whose they are, and the bars; where that row has none, those that it is held against."""
        others = self.in_advance.get(row.against) or self.session.numbers_of(row.against).get("losses", [])
        if len(others) == STEPS or row.against not in BY_NAME:
            return row.against, others, row.bars
        against, others, bars = self.others_of(BY_NAME[row.against])
        return against, others, tuple(map(sum, zip(bars, row.bars)))

    def write_losses(self) -> bool:
        """Those of a CPU, beside this script."""
        for name, words in ON_CPU.items():
            row = Row(name, "", words=words, against="")
            self.session.run(name, self.words_of(row, "cpu"), 600, read=functools.partial(self.compare, row))
        if whole := all(self.session.outcomes[name].verdict == "ok" for name in ON_CPU):
            lines = [f'"{name}": {json.dumps(self.session.outcomes[name].numbers["losses"])}' for name in ON_CPU]
            LOSSES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        return whole


def failed_cases(run: Outcome) -> list[str]:
    """Of GoogleTest, for its filter: some that failed, or the one that it was at when it ended."""
    failed = re.findall(r"^\[  FAILED  \] (\w[\w/]*\.[\w/]+)", run.printed, re.MULTILINE)
    return list(dict.fromkeys(failed))[:MOST_CASES] or re.findall(r"^\[ RUN      \] (\S+)", run.printed, re.MULTILINE)[-1:]


def check_lines(session: Session) -> list[str]:
    rows = [run for run in session.outcomes.values() if run.name in BY_NAME and run.numbers.get("losses")]
    lines = ["", f"Losses: of the debug model, float32 where nothing else is said, {STEPS} steps of {GLOBAL_BATCH} sequences, seed {SEED}."]
    lines += ["How far off the row that is named (cpu: computed in advance) is relative; \"later\" is the most.", ""]
    for run in (run for run in rows if BY_NAME[run.name].against in ("", *ON_CPU)):
        lines.append(f"* {run.name}, {BY_NAME[run.name].what}: {' '.join(f'{loss:.5f}' for loss in run.numbers['losses'])}")
    return lines if rows else []

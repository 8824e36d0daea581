"""Driver of scripts/gpu/bench.sh: runs the rows below, assembles the card's own ceiling, writes the page. Needs no package."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import json
import pathlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from check import TESTS
from programs import ROOT, end_of, execute, left_out, note, result_of

TOTAL_SECONDS = 480
RUN_SECONDS = 120
STEPS, COUNTED = 30, 20  # the last of them
WARM_UP = 3  # of the profiler, after those; then one step is traced
LAST_STEP = STEPS + WARM_UP + 1
PEAK_BF16 = {"H200": 989e12, "H100": 989e12, "A100": 312e12}
KERNEL_BAR = 85  # % of the copy's bandwidth, for each fused kernel that moves memory
NOTES = ["Attention by", "CUDA graphs", "[Ff]loat8"]  # of a row: the first two lines of each kind
HOST_KERNEL_TESTS = "OnHost/*"  # without a GPU, to try the script
NCCL_ROW = ["--debug.groups_of_one", "--training.steps=3"]


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    family: str
    flavor: str
    dim: int
    hidden: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int
    sequence: int = 8192
    config: str = "configs/llama3_8b.toml"

    @property
    def product_parameters(self) -> int:
        """Of all matrices that every token is multiplied with: the blocks' and the output layer's."""
        kv = self.dim // self.heads * self.kv_heads
        block = 2 * self.dim * self.dim + 2 * self.dim * kv + 3 * self.dim * self.hidden
        return self.layers * block + self.dim * self.vocabulary

    @property
    def parameters(self) -> int:
        """With the embedding; norms are left out."""
        tied = self.family == "llama3_2"
        return self.product_parameters + (0 if tied else self.dim * self.vocabulary)

    def flops_per_token(self, causal: bool) -> float:
        """6 for each of those parameters; attention 12·layers·dim·T, half of it under a causal mask."""
        return 6 * self.product_parameters + (6 if causal else 12) * self.layers * self.dim * self.sequence


MODELS = {
    "8b": Model("Llama 3.1 8B", "llama3_1", "8B", 4096, 14336, 32, 8, 32, 128256),
    "3b": Model("Llama 3.2 3B", "llama3_2", "3B", 3072, 8192, 24, 8, 28, 128256),
    "1b": Model("Llama 3.2 1B", "llama3_2", "1B", 2048, 8192, 32, 8, 16, 128256),
}
TINY = Model("the debug model", "llama3", "debugmodel", 256, 768, 16, 16, 6, 2048, 128, "configs/debug_model.toml")
ROWS = [f"{model}-{precision}-{mode}" for model in MODELS for precision in ("bf16", "float8") for mode in ("plain", "fused")]
SHORT = ["8b-bf16-fused", "8b-float8-fused"]
RATIOS = [
    ("fused over plain, bf16", "{}-bf16-fused", "{}-bf16-plain"),
    ("fused over plain, float8", "{}-float8-fused", "{}-float8-plain"),
    ("float8 over bf16, fused", "{}-float8-fused", "{}-bf16-fused"),
]


@dataclasses.dataclass
class Run:
    command: str
    verdict: str = "left out: no time"
    seconds: float = 0.0
    tps: float | None = None
    spread: tuple[float, float] | None = None
    memory: int | None = None
    printed: str = ""
    kinds: dict[str, float] = dataclasses.field(default_factory=dict)  # milliseconds of the traced step
    notes: list[str] = dataclasses.field(default_factory=list)


class Bench:
    def __init__(self, arguments: argparse.Namespace):
        self.programs = arguments.programs.resolve()
        self.device = arguments.device
        self.machine = arguments.machine
        self.text = arguments.text.resolve() if arguments.text else None  # programs run in another folder
        self.log = arguments.log
        self.begin = time.monotonic() - arguments.spent
        self.runs: dict[str, Run] = {}
        self.ceilings: dict[tuple[str, str], dict] = {}
        self.kernels: dict = {}

    def seconds_left(self) -> float:
        return TOTAL_SECONDS - (time.monotonic() - self.begin)

    def without_paths(self, text: str) -> str:
        """As it reads on every machine."""
        for folder in (self.programs, ROOT, *([self.text.parent] if self.text else [])):
            text = text.replace(f"{folder}/", "")
        return text

    def model(self, key: str) -> Model:
        return MODELS[key] if self.device == "cuda" else TINY

    def run(self, name: str, command: list[str], limit: float) -> Run:
        shown = [word for word in command if not word.startswith("--job.dump_folder=")]
        run = Run(self.without_paths(" ".join(shown)))
        self.runs[name] = run
        if self.seconds_left() < 10:
            return run
        print(f"{name}: {run.command}", file=sys.stderr, flush=True)
        begin = time.monotonic()
        code, printed = self.execute(command, limit)
        run.printed = self.without_paths(printed)
        run.seconds = time.monotonic() - begin
        run.verdict = "ok" if code == 0 else "not over in time" if code is None else f"exit code {code}"
        return run

    def execute(self, command: list[str], limit: float) -> tuple[int | None, str]:
        code, printed = execute(command, min(limit, self.seconds_left()))
        note(self.log, self.without_paths(" ".join(command)), printed)
        return code, printed

    def reading(self, run: Run, read: Callable[[], None]) -> None:
        """Where what a program wrote is not as it should be, its row says so, and the others go on."""
        if run.verdict != "ok":
            return
        try:
            read()
        except (OSError, ValueError, LookupError, TypeError) as error:
            run.verdict = f"what it wrote could not be read: {type(error).__name__} {self.without_paths(str(error))}"

    def words_of(self, model: Model, precision: str, mode: str, folder: str) -> list[str]:
        words = [
            model.config,
            f"--model.name={model.family}",
            f"--model.flavor={model.flavor}",
            "--model.tokenizer_path=configs/tokenizers/stories.model",
            f"--training.device={self.device}",
            f"--training.seq_len={model.sequence}",
            "--training.local_batch_size=1",
            f"--training.steps={LAST_STEP}",
            "--profiling.enable_profiling",
            f"--profiling.profile_freq={LAST_STEP}",
            f"--profiling.profiler_warmup={WARM_UP}",
            "--training.dtype=bfloat16",
            "--optimizer.state_dtype=bfloat16",
            "--activation_checkpoint.mode=none",
            "--lr_scheduler.warmup_steps=5",
            "--metrics.log_freq=1",
            "--debug.seed=1",
            f"--job.dump_folder={folder}",
        ]
        if self.device == "cuda":
            words.append(f"--model.override.vocab_size={model.vocabulary}")
        words += ["--training.dataset=text", f"--training.dataset_path={self.text or 'configs/corpora/stories.jsonl'}"]
        if precision == "float8":
            words.append("--model.converters=quantize.linear.float8")
        if mode == "fused":
            words.append("--compile.enable")
        return words

    def train(self, row: str) -> None:
        key, precision, mode = row.split("-")
        model = self.model(key)
        with tempfile.TemporaryDirectory(prefix="titan-bench-") as folder:
            run = self.run(row, [str(self.programs / "titan_train"), *self.words_of(model, precision, mode, folder)], RUN_SECONDS)
            self.reading(run, lambda: self.read(run, model, pathlib.Path(folder) / "metrics.jsonl"))
            trace = pathlib.Path(folder) / "profile_traces" / f"iteration_{LAST_STEP}" / "rank0_trace.json"
            self.reading(run, lambda: self.look_into_a_step(run, trace))

    def look_into_a_step(self, run: Run, trace: pathlib.Path) -> None:
        code, printed = self.execute([str(self.programs / "titan_train"), "profile", "summarize", str(trace)], 60)
        run.kinds = kinds_of(printed) if code == 0 else {}
        if not run.kinds:
            run.verdict = "the last step's trace could not be read"
            run.printed += self.without_paths(printed).replace(f"{trace.parents[2]}/", "")

    def read(self, run: Run, model: Model, metrics: pathlib.Path) -> None:
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        steps = [line for line in lines if "step_seconds" in line and STEPS - COUNTED < line["step"] <= STEPS]
        if len(steps) < COUNTED:
            run.verdict = f"{len(steps)} steps of {COUNTED} were counted"
            return
        rates = sorted(model.sequence / step["step_seconds"] for step in steps)
        run.tps, run.spread = statistics.median(rates), (rates[0], rates[-1])
        run.memory = max(line["memory_peak_bytes"] for line in steps)
        told = [line.split(" - INFO - ")[-1] for line in run.printed.splitlines()]
        run.notes = [line for pattern in NOTES for line in [line for line in told if re.search(pattern, line)][:2]]

    def kernel_tests(self) -> None:
        names = TESTS["kernels_test"] if self.device == "cuda" else HOST_KERNEL_TESTS
        run = self.run("kernels_test", [str(self.programs / "kernels_test"), f"--gtest_filter={names}"], 90)
        if run.verdict == "ok" and left_out(run.printed):
            run.verdict = "kernels were not tested"

    def kernel_rates(self, key: str) -> None:
        model = self.model(key)
        numbers = [model.dim, model.hidden, model.heads, model.kv_heads, model.vocabulary, model.sequence]
        run = self.run("kernel rates", [str(self.programs / "bench_kernel_rates"), self.device, *map(str, numbers)], 60)
        self.reading(run, lambda: self.keep_kernels(result_of(run.printed)))

    def every_group(self) -> None:
        with tempfile.TemporaryDirectory(prefix="titan-bench-") as folder:
            words = ["configs/debug_model.toml", f"--training.device={self.device}", *NCCL_ROW, f"--job.dump_folder={folder}"]
            name = "one rank, every group" + (" over NCCL" if self.device == "cuda" else "")
            self.run(name, [str(self.programs / "titan_train"), *words], 60)

    def ceiling(self, row: str) -> None:
        key, precision, _ = row.split("-")
        if (key, precision) in self.ceilings:
            return
        model = self.model(key)
        numbers = [model.dim, model.hidden, model.heads, model.kv_heads, model.layers, model.vocabulary, model.sequence, model.sequence]
        words = [str(self.programs / "bench_device_ceiling"), self.device, *map(str, numbers), precision]
        run = self.run(f"{key}-{precision}-ceiling", words, 60)
        self.reading(run, lambda: self.keep_ceiling(key, precision, result_of(run.printed)))

    def keep_kernels(self, result: dict) -> None:
        kernels = [{name: kernel[name] for name in ("name", "bytes", "seconds")} for kernel in result["kernels"]]
        self.kernels = {"copy_bytes_per_second": result["copy_bytes_per_second"], "kernels": kernels}

    def keep_ceiling(self, key: str, precision: str, result: dict) -> None:
        parts = ("product_seconds", "attention_seconds", "copy_bytes_per_second")
        self.ceilings[key, precision] = {part: result[part] for part in parts}

    def ceiling_tps(self, key: str, precision: str) -> float | None:
        """Products and attention as measured alone; the rest as bytes that fused kernels move, at the rate of a copy."""
        parts = self.ceilings.get((key, precision))
        if not parts or parts["attention_seconds"] is None:
            return None
        model = self.model(key)
        seconds = parts["product_seconds"] + parts["attention_seconds"]
        seconds += (elementwise_bytes(model) + optimizer_bytes(model)) / parts["copy_bytes_per_second"]
        return model.sequence / seconds


def kinds_of(summary: str) -> dict[str, float]:
    """Milliseconds by kind of what `titan_train profile summarize` prints."""
    table = re.search(r"^Time by kind,.*\n((?:  .*\n)+)", summary, re.MULTILINE)
    rows = re.findall(r"^  (\S.*?) {2,}(?:\d+ +)?([\d.]+) +[\d.]+%$", table[1] if table else "", re.MULTILINE)
    return {name: float(milliseconds) for name, milliseconds in rows}


def elementwise_bytes(model: Model) -> float:
    """Per step, in bf16, by kernels that read and write each operand once. Forward: two norms with the residual (3 reads and
    writes of D each, then 2), rotation of q and k (2), SwiGLU (3 of H). Backward: norms 5 of D each, rotation 2, SwiGLU 5 of H.
    The head: logits and their gradient, 3 of V."""
    kv = model.dim // model.heads * model.kv_heads
    block = 2 * (4 * model.dim) + 2 * (5 * model.dim) + 2 * 2 * (model.dim + kv) + 8 * model.hidden
    return 2.0 * model.sequence * (model.layers * block + 3 * model.vocabulary)


def optimizer_bytes(model: Model) -> float:
    """Weight and two moments in bf16, read and written; the fp32 gradient read, and read once more for the norm."""
    return float(model.parameters * (3 * 2 * 2 + 2 * 4))


def number(value: float | None, form: str = ",.0f") -> str:
    return "" if value is None else format(value, form)


def row_cells(bench: Bench, row: str) -> list[str]:
    key, precision, _ = row.split("-")
    model, run = bench.model(key), bench.runs[row]
    if run.tps is None:
        return [row, run.verdict, "", "", "", "", "", ""]
    peak = next((peak for name, peak in PEAK_BF16.items() if name in bench.machine), None)
    mfu = 100 * run.tps * model.flops_per_token(causal=False) / peak if peak else None
    ceiling = bench.ceiling_tps(key, precision)
    return [
        row,
        f"**{run.tps:,.0f}**",
        f"{run.spread[0]:,.0f} – {run.spread[1]:,.0f}",
        number(mfu, ".1f"),
        number(run.tps * model.flops_per_token(causal=True) / 1e12, ".0f"),
        number(run.memory / 2**30, ".1f"),
        number(ceiling),
        number(100 * run.tps / ceiling if ceiling else None, ".1f"),
    ]


def kernel_lines(bench: Bench) -> list[str]:
    if not bench.kernels:
        return []
    copy = bench.kernels["copy_bytes_per_second"]
    lines = ["", f"Kernels that move memory, each alone in the first model's shapes, against a copy's {copy / 1e12:.2f} TB/s:", ""]
    lines += [f"| kernel | GB | ms | TB/s | % of the copy | at least {KERNEL_BAR} |", "|---|---:|---:|---:|---:|---|"]
    for kernel in bench.kernels["kernels"]:
        rate = kernel["bytes"] / kernel["seconds"]
        share = 100 * rate / copy
        cells = [kernel["name"], f"{kernel['bytes'] / 1e9:.3f}", f"{1e3 * kernel['seconds']:.3f}", f"{rate / 1e12:.2f}"]
        cells += [f"{share:.1f}", "met" if share >= KERNEL_BAR else "missed"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def page(arguments: argparse.Namespace, bench: Bench, rows: list[str]) -> str:
    """Of what has run until now."""
    rows = [row for row in rows if row in bench.runs]
    lines = [
        f"# Training on one GPU, {datetime.date.today()}",
        "",
        f"Commit {arguments.commit}; {arguments.machine}; {time.monotonic() - bench.begin:.0f} s, the build included. Made by",
        "",
        f"    scripts/gpu/bench.sh {' '.join(arguments.given)}".rstrip(),
        "",
        f"{STEPS} steps of one sequence, parameters and optimizer states in bf16 with stochastic rounding; the median of the last",
        f"{COUNTED} steps; after them one under the profiler. MFU by torchtitan's formula against the card's bf16 peak, whatever the precision; TFLOP/s with causal",
        "attention. The ceiling takes matrix products, attention and a copy as measured in the same run, each alone.",
        "",
        "| row | tokens/s | least – most | MFU % | causal TFLOP/s | peak GiB | ceiling tokens/s | share % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [f"| {' | '.join(row_cells(bench, row))} |" for row in rows]
    ratios = []
    for what, upper, lower in RATIOS:
        for key in MODELS:
            pair = [bench.runs.get(name.format(key)) for name in (upper, lower)]
            if all(run and run.tps for run in pair):
                ratios.append(f"| {key} | {what} | {pair[0].tps / pair[1].tps:.3f} |")
    if ratios:
        lines += ["", "| model | ratio | |", "|---|---|---:|", *ratios]
        lines += ["", "Adam and the exact gradient norm are fused kernels in the plain rows, too."]
    kinds = sorted({kind for row in rows for kind in bench.runs[row].kinds}, key=lambda kind: ("gaps" in kind, kind))
    if kinds:
        lines += ["", f"| one step under the profiler, ms by kind | {' | '.join(kinds)} |", "|---|" + "---:|" * len(kinds)]
        for row in rows:
            cells = [number(bench.runs[row].kinds.get(kind), ".1f") for kind in kinds]
            if any(cells):
                lines.append(f"| {row} | {' | '.join(cells)} |")
    lines += ["", "| check | seconds | |", "|---|---:|---|"]
    checks = {name: run for name, run in bench.runs.items() if name not in rows}
    lines += [f"| {name} | {run.seconds:.1f} | {run.verdict} |" for name, run in checks.items()]
    if bench.ceilings:
        lines += ["", "| ceiling | products ms | attention ms | copy TB/s |", "|---|---:|---:|---:|"]
        for (key, precision), parts in bench.ceilings.items():
            attention = parts["attention_seconds"]
            cells = [f"{key} {precision}", f"{1e3 * parts['product_seconds']:.1f}"]
            cells += [number(1e3 * attention if attention else None, ".1f"), f"{parts['copy_bytes_per_second'] / 1e12:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    lines += kernel_lines(bench)
    for row in rows:
        run = bench.runs[row]
        lines += ["", f"## {row}", "", f"    {run.command}", ""]
        shown = run.notes if run.verdict == "ok" else [*end_of(run.printed), run.verdict]
        lines += [f"    {line}".rstrip() for line in shown]
    for name, run in checks.items():
        if run.verdict != "ok":
            lines += ["", f"## {name}", "", f"    {run.command}", ""]
            lines += [f"    {line}".rstrip() for line in [*end_of(run.printed), run.verdict]]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=pathlib.Path, required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--spent", type=float, default=0)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("--log", type=pathlib.Path)
    parser.add_argument("--only")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--text", type=pathlib.Path)
    arguments = parser.parse_args()
    rows = SHORT if arguments.short else ROWS
    if arguments.only:
        rows = arguments.only.split(",")
    if unknown := [row for row in rows if row not in ROWS]:
        print(f"error: there is no row {', '.join(unknown)}; there are {', '.join(ROWS)}", file=sys.stderr)
        return 64
    if arguments.text and not arguments.text.is_file():
        print(f"error: --text {arguments.text} is not a file", file=sys.stderr)
        return 64
    arguments.given = ["--device", arguments.device] if arguments.device != "cuda" else []
    arguments.given += ["--short"] if arguments.short else []
    arguments.given += ["--only", arguments.only] if arguments.only else []
    arguments.given += ["--text", arguments.text.name] if arguments.text else []
    bench = Bench(arguments)
    target = arguments.page or ROOT / "docs" / "benchmarks" / f"gpu-bench-{datetime.date.today()}.md"
    parts = [bench.kernel_tests, lambda: bench.kernel_rates(rows[0].split("-")[0]), bench.every_group]
    parts += [part for row in rows for part in (functools.partial(bench.ceiling, row), functools.partial(bench.train, row))]
    for part in parts:
        part()
        target.write_text(page(arguments, bench, rows))  # each time, so that nothing is lost with the machine
    print(target.read_text())
    print(target, file=sys.stderr)
    return 0 if all(run.verdict == "ok" for run in bench.runs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Rows of speed: training, kernels and what the card can do at most; and how a page shows them."""

import collections
import contextlib
import functools
import gzip
import json
import pathlib
import re
import statistics
import sys

from card import Card
from programs import LEAST_SECONDS, Outcome, Session, execute, results_of, table, with_options

RUN_SECONDS = 120
STEPS, COUNTED = 16, 10  # the last of them; before, attention is chosen, two steps run eagerly, one is captured
WARM_UP, AFTER = 3, 3  # of the profiler, in mode traced: then one step is traced, and it is seen whether later ones are slower
TRACED = STEPS + WARM_UP + 1
SLACK = 0.03  # of a range: what a step's spread alone may leave
KINDS = {"matrix products": "products", "attention": "attention", "elementwise and reductions": "memory", "optimizer": "memory",
         "copies": "memory"}  # fmt: skip # of `titan_train profile summarize`, the rest are gaps
PURPOSES = {"products": "products", "float8 products": "products", "attention": "attention"}  # of the plan, the rest is memory
WHERE = {
    "products": "the products by shape: one far below the others is cuBLAS's choice, all of them are the clock (dmon.txt); --variant slow-products",
    "attention": "the line `Attention by` of the log, and attention alone in the ceilings; --variant slow-attention",
    "memory": "the kernel rates, what is below the bar; cross-entropy and AdamW are open (docs/kernels.md); --variant all-well",
    "gaps": "launches and host waits: the row without graphs, and sync-check-fused",
}
FASTER = "what of it the program leaves out, and at the rates of src/estimate/hardware.toml"
PLAN_SECONDS, SUMMARY_SECONDS = 20, 30  # at most, for `titan_train plan` and `profile summarize`
KERNEL_BAR = 85  # % of the copy's bandwidth, for each fused kernel that moves memory
NOTES = ["Attention by", "CUDA graphs", "[Ff]loat8"]  # of a row: the first two lines of each kind
CEILING = ("product_seconds", "attention_seconds", "copy_bytes_per_second")
BASELINE = pathlib.Path(__file__).with_name("baseline.py")
BASELINE_BYTES, BASELINE_LAYER_BYTES = 20.3e9, 2.94e9  # of 8B in PyTorch without a layer, and of each
SURELY = 1.1  # times that is enough for every shape of so many layers, if nothing can be planned
SWIGLU = 3 + 5  # numbers that it reads and writes, forward and backward
MOST_TRACES, TRACE_BYTES = 2, 16 << 20  # kept, and of one packed

Model = collections.namedtuple("Model", "family flavor dim hidden heads kv_heads layers vocabulary sequence config words", defaults=(
    128256, 8192, "configs/llama3_8b.toml", ("--activation_checkpoint.mode=none",)))  # fmt: skip
EIGHT = Model("llama3_1", "8B", 4096, 14336, 32, 8, 32)
RECOMPUTED = ("--activation_checkpoint.mode=selective", "--activation_checkpoint.selective_ac_option=norm,swiglu")
MODELS = {
    "8b": EIGHT,
    "8b_recomputed": EIGHT._replace(words=(*RECOMPUTED, "--optimizer.early_step_in_backward")),
    **{f"8b_{few}_layers": EIGHT._replace(layers=few, words=(*EIGHT.words, f"--model.override.n_layers={few}")) for few in (16, 8, 2)},
    "3b": Model("llama3_2", "3B", 3072, 8192, 24, 8, 28),
    "1b": Model("llama3_2", "1B", 2048, 8192, 32, 8, 16),
}
# What stands for 8B: the first that fits the card. A step of fewer layers has every kernel of the whole one in its place.
WHOLE = ["8b", "8b_16_layers", "8b_8_layers", "8b_2_layers"]  # which recompute nothing
SHAPES = {"8b": ["8b", "8b_recomputed", *WHOLE[1:]]}
TINY = Model("llama3", "debugmodel", 256, 768, 16, 16, 6, 2048, 128, "configs/debug_model.toml")
TRAINING = """{config} --model.name={family} --model.flavor={flavor} --model.tokenizer_path=configs/tokenizers/stories.model
    --training.device={device} --training.seq_len={sequence} --training.local_batch_size=1 --training.steps={steps}
    --training.dtype=bfloat16 --optimizer.state_dtype=bfloat16 --lr_scheduler.warmup_steps=5 --metrics.log_freq=1 --debug.seed=1
    --training.loss_chunks=0 --training.dataset=text --training.dataset_path=configs/corpora/stories.jsonl --model.override.vocab_size={vocabulary}"""
PRECISIONS, MODES = ("bf16", "float8"), ("plain", "fused", "traced")
OPTIONS = {
    "bf16": [], "float8": ["--model.converters=quantize.linear.float8"], "plain": [], "fused": ["--compile.enable"],
    # Without graphs, whose kernels a profiler shows without the operations that they belong to.
    "traced": ["--compile.enable", "--compile.cuda_graphs=false", "--profiling.enable_profiling", f"--profiling.profile_freq={TRACED}",
               f"--profiling.profiler_warmup={WARM_UP}"],
}  # fmt: skip
ALL_ROWS = [f"{key}-{precision}-{mode}" for key in MODELS for precision in PRECISIONS for mode in MODES]
ROWS = [f"{key}-{precision}-{mode}" for key in ("8b", "3b", "1b") for precision in PRECISIONS for mode in MODES[:2]]
ROWS += ["8b-bf16-traced", "8b-float8-traced"]
RATIOS = [("fused over plain, bf16", "bf16-fused", "bf16-plain"), ("fused over plain, float8", "float8-fused", "float8-plain"),
          ("float8 over bf16, fused", "float8-fused", "bf16-fused"), ("graphs over none, bf16", "bf16-fused", "bf16-traced"),
          ("float8 over bf16, both without graphs", "float8-traced", "bf16-traced")]  # fmt: skip


class Bench:
    def __init__(self, session: Session, card: Card | None, out: pathlib.Path | None = None):
        self.session, self.card, self.out = session, card, out
        self.traces: list[str] = []
        self.plan_hangs = ""  # why no more plans are asked for
        self.unplanned = ""  # what is said of plans that failed

    def model(self, key: str) -> Model:
        return MODELS[key] if self.session.device == "cuda" else TINY

    def words_of(self, row: str) -> list[str]:
        key, precision, mode = row.split("-")
        model, steps = self.model(key), TRACED + AFTER if mode == "traced" else STEPS
        words = TRAINING.format(**model._asdict(), device=self.session.device, steps=steps).split()
        words += ["--job.dump_folder={folder}", *model.words]
        words += ["--training.gradient_dtype=bfloat16"] if self.session.device == "cuda" else []  # the model for a CPU computes in fp32
        return [*words, *OPTIONS[precision], *OPTIONS[mode]]

    @functools.cache
    def plan(self, row: str, extra: tuple[str, ...] = ()) -> dict:
        """What `titan_train plan --json` says of the row, with "fits" by the memory of this card, or {"fits": False, "why": …}."""
        if not self.card or self.session.seconds_left() < LEAST_SECONDS:  # then no row is started
            return {"fits": True}
        words = with_options(self.words_of(row), extra)
        command = [str(self.session.programs / "titan_train"), "plan", *words, "--gpu", self.card.kind]
        command += ["--gpu-memory", f"{self.card.free_mib / 1024:.3f}", "--json"]
        code, printed = (None, self.plan_hangs) if self.plan_hangs else execute(command, min(PLAN_SECONDS, self.session.seconds_left()))
        with contextlib.suppress(ValueError, LookupError, TypeError):  # where it failed, or printed something else
            plan, free = results_of(printed)[-1] if code == 0 else {}, self.card.free_mib * 2**20
            why = f"needs {plan['needed_bytes'] / 2**30:.1f} GiB of {free / 2**30:.1f}"
            return plan | ({"fits": True} if plan["needed_bytes"] <= free else {"fits": False, "why": why})
        printed = self.session.without_paths(printed)
        self.session.write(self.session.log, printed + "\n")
        last = (printed.strip().splitlines() or ["nothing was printed"])[-1]
        why = f"titan_train plan {'was not over in time' if code is None else f'ended with {code}: {last}'}"
        self.plan_hangs = why if code is None else ""
        model = self.model(row.split("-")[0])
        if enough := SURELY * (BASELINE_BYTES + BASELINE_LAYER_BYTES * model.layers) <= self.card.free_mib * 2**20:
            self.unplanned = self.unplanned or f"{why}: rows that surely fit are run all the same."
            self.session.say(self.unplanned)
        return {"fits": enough, "why": why}

    def that_fits(self, row: str, shapes: list[str] | None = None, extra: tuple[str, ...] = ()) -> str | None:
        """The row in the first shape that stands for its model and fits the card."""
        key, rest = row.split("-", 1)
        rows = [f"{shape}-{rest}" for shape in shapes or SHAPES.get(key, [key])]
        return next((each for each in rows if self.plan(each, extra)["fits"]), None)

    def train(self, row: str, limit: float = RUN_SECONDS, name: str = "", extra: tuple[str, ...] = (),
              environment: dict[str, str] | None = None) -> Outcome:  # fmt: skip
        """`extra`: options instead of the row's or beside them, of a row that is called `name`."""
        fits = self.that_fits(row, WHOLE if name and row.startswith("8b-") else None, extra)
        if not fits:
            return self.session.leave_out(name or row, self.plan(row, extra)["why"])
        command = ["titan_train", *with_options(self.words_of(fits), extra)]
        if self.card and self.card.free_mib < self.card.mib and (parts := self.plan(fits, extra).get("loss_chunks")):
            command = with_options(command, [f"--training.loss_chunks={parts}"])  # the run would count what others have, too
        steps = next(int(word.split("=")[1]) for word in command if word.startswith("--training.steps="))
        known = "--debug.attention_kernel=efficient" not in extra  # for which there are no rates
        planned = {key: part for key, part in self.plan(fits, extra).items() if known and key not in ("memory", "traffic")}
        read = functools.partial(self.read, fits, STEPS if fits.endswith("-traced") else steps)
        return self.session.run(name or fits, command, limit, environment, read, planned=planned)

    def read(self, row: str, last: int, run: Outcome, folder: pathlib.Path) -> None:
        sequence = self.model(row.split("-")[0]).sequence
        lines = [line for line in results_of((folder / "metrics.jsonl").read_text()) if "step_seconds" in line]
        steps = [line for line in lines if STEPS - COUNTED < line["step"] <= last]
        run.numbers |= {"losses": [line.get("loss") for line in lines], "step_seconds": [round(line["step_seconds"], 5) for line in lines]}
        if len(steps) < COUNTED:
            run.verdict = f"{len(steps)} steps of {COUNTED} were counted"
            return
        if last > STEPS:
            run.numbers["at_first"] = statistics.median(sequence / line["step_seconds"] for line in steps[:COUNTED])
        steps = steps[-COUNTED:]
        rates = sorted(sequence / step["step_seconds"] for step in steps)
        run.numbers |= {"tokens_per_second": statistics.median(rates), "least": rates[0], "most": rates[-1]}
        run.numbers["peak_bytes"] = max(line["memory_peak_bytes"] for line in steps)
        run.numbers |= {"mfu_percent": line["mfu_percent"] for line in steps if "mfu_percent" in line}
        told = [line.split(" - INFO - ")[-1] for line in run.printed.splitlines()]
        run.numbers["notes"] = [line for pattern in NOTES for line in [line for line in told if re.search(pattern, line)][:2]]
        if row.endswith("-traced"):
            self.look_into_a_step(row, run, folder / "profile_traces" / f"iteration_{TRACED}" / "rank0_trace.json")

    def look_into_a_step(self, row: str, run: Outcome, trace: pathlib.Path) -> None:
        code, printed = execute([str(self.session.programs / "titan_train"), "profile", "summarize", str(trace)],
                                min(SUMMARY_SECONDS, self.session.seconds_left()))  # fmt: skip
        self.session.write(self.session.log, printed + "\n")
        run.numbers["milliseconds_by_kind"] = kinds_of(printed) if code == 0 else {}
        if not run.numbers["milliseconds_by_kind"]:
            run.verdict = "the traced step could not be read"
            run.printed += self.session.without_paths(printed)
        if self.out and len(self.traces) < MOST_TRACES and trace.exists():
            self.traces.append(f"trace-{row}.json.gz")
            packed = gzip.compress(trace.read_bytes(), 6)
            self.session.write(self.out / self.traces[-1], packed, "w")
            if len(packed) > TRACE_BYTES:
                self.session.say(f"{self.traces[-1]} has {len(packed) >> 20} MiB, more than may come back.")

    def kernel_rates(self, limit: float = 60) -> Outcome:
        m = self.model("8b")
        sizes = f"{m.dim} {m.hidden} {m.heads} {m.kv_heads} {m.vocabulary} {m.sequence}"
        read = functools.partial(keep, ("copy_bytes_per_second", "kernels"))
        return self.session.run("kernel rates", ["bench_kernel_rates", self.session.device, *sizes.split()], limit, read=read)

    def ceilings(self, row: str, limit: float = 60, shapes: list[str] | None = None) -> None:
        """What the card can do at most, in each precision, in the shape that stands for the row's model."""
        key = (self.that_fits(row, shapes) or row).split("-")[0].removesuffix("_recomputed")
        m = self.model(key)
        sizes = f"{m.dim} {m.hidden} {m.heads} {m.kv_heads} {m.layers} {m.vocabulary} {m.sequence} {m.sequence}"
        for precision in PRECISIONS:
            words = ["bench_device_ceiling", self.session.device, *sizes.split(), precision, "--gradients", "bf16"]
            read = functools.partial(keep, CEILING)
            self.session.run(f"{key}-{precision}-ceiling", words, limit, read=read, bytes_moved=self.bytes_moved(f"{key}-{precision}-fused"))

    def baseline(self, mode: str, limit: float) -> None:
        """The same shape in plain PyTorch, of what fits."""
        room = self.card.free_mib * 2**20 if self.card else 1e12
        shapes = [key for key in WHOLE if BASELINE_BYTES + BASELINE_LAYER_BYTES * MODELS[key].layers <= room]
        if not shapes:
            self.session.leave_out(f"baseline {mode}", "no shape of 8B fits")
            return
        m = self.model(shapes[0])
        words = [sys.executable, str(BASELINE), f"--device={self.session.device}", f"--mode={mode}"]
        words += f"--length={m.sequence} --dim={m.dim} --layers={m.layers} --heads={m.heads} --kv-heads={m.kv_heads}".split()
        words += f"--hidden={m.hidden} --vocabulary={m.vocabulary} --steps={STEPS} --warm-up={STEPS - COUNTED}".split()
        read = functools.partial(keep, ("tokens_per_second", "max_memory_reserved"))
        run = self.session.run(f"baseline {mode}", words, limit, read=read, key=shapes[0])
        with contextlib.suppress(ValueError):  # one that was not over may have printed nothing yet
            lines = [json.dumps({"mode": mode} | line) + "\n" for line in results_of(run.printed)]
            self.session.write(self.out / "baseline.jsonl" if self.out else None, "".join(lines))

    def bytes_moved(self, row: str) -> float | None:
        """Of a step beside products and attention: what the plan counts, in seconds of one rate, by SwiGLU, whose bytes are known."""
        m, seconds = self.model(row.split("-")[0]), self.plan(row).get("seconds", {})
        swiglu = 2 * SWIGLU * m.hidden * m.sequence * m.layers
        return parts_of(seconds, PURPOSES, "memory", swiglu / seconds["swiglu"])["memory"] if seconds.get("swiglu") else None

    def ceiling_tps(self, row: str) -> float | None:
        """Products and attention as measured alone; the rest as bytes that fused kernels move, at the rate of a copy."""
        key, precision, _ = row.split("-")
        parts, model = self.session.numbers_of(f"{key.removesuffix('_recomputed')}-{precision}-ceiling"), self.model(key)
        if not parts.get("attention_seconds") or not parts["bytes_moved"]:
            return None
        seconds = parts["product_seconds"] + parts["attention_seconds"] + parts["bytes_moved"] / parts["copy_bytes_per_second"]
        return model.sequence / seconds


def kinds_of(summary: str) -> dict[str, float]:
    """Milliseconds by kind of what `titan_train profile summarize` prints."""
    by_kind = re.search(r"^Time by kind,.*\n((?:  .*\n)+)", summary, re.MULTILINE)
    rows = re.findall(r"^  (\S.*?) {2,}(?:\d+ +)?([\d.]+) +[\d.]+%$", by_kind[1] if by_kind else "", re.MULTILINE)
    return {name: float(milliseconds) for name, milliseconds in rows}


def keep(keys: tuple[str, ...], run: Outcome, _: object) -> None:
    """Of the last JSON object that is printed, these; and the lines before it that tell a rate."""
    lines = results_of(run.printed)
    run.numbers["calls"] = [line for line in lines if "tflops" in line]
    run.numbers |= {key: lines[-1][key] for key in keys}


def parts_of(named: dict[str, float], parts: dict[str, str], rest: str, scale: float) -> dict[str, float]:
    found = dict.fromkeys(WHERE, 0.0)
    for name, amount in named.items():
        found["gaps" if name.startswith("waiting") else parts.get(name, rest)] += scale * amount
    return found


def expectation(run: Outcome) -> list[str]:
    """Which parts of its traced step, if there is one, leave the range that `titan_train plan` expects, and where to look."""
    plan, kinds = run.numbers.get("planned", {}), run.numbers.get("milliseconds_by_kind")
    if not kinds or "good" not in plan:
        return []
    likely, good = (parts_of(step["seconds"], PURPOSES, "memory", 1e3) for step in (plan, plan["good"]))
    lines, said = ["", f"| {run.name}, one traced step | ms | good | likely | |", "|---|---:|---:|---:|---|"], []
    whole = sum(kinds.values())
    for part, found in parts_of(kinds, KINDS, "gaps", 1).items():
        room = 0.01 * whole if part == "gaps" else SLACK * likely[part]
        slower, faster = found - likely[part], good[part] - found
        verdict = f"{slower:.1f} ms more" if slower > room else f"{faster:.1f} ms less" if faster > room else ""
        lines.append(f"| {part} | {found:.1f} | {good[part]:.1f} | {likely[part]:.1f} | {verdict or 'as expected'} |")
        if verdict:
            share = 100 * max(slower, faster) / whole
            where = WHERE[part] if slower > room else FASTER
            said.append(f"* {part}: {verdict} than expected, {share:.1f} % of the step; look at {where}.")
    return [*lines, *([""] + said if said else [])]


def told(bench: Bench, run: Outcome) -> str:
    """In a line, what a row of speed measured."""
    numbers, plan = run.numbers, run.numbers.get("planned", {})
    if "kernels" in numbers:
        low = [kernel["name"] for kernel in numbers["kernels"] if share_of_copy(kernel, numbers) < KERNEL_BAR]
        return f"{run.verdict}: a copy {numbers['copy_bytes_per_second'] / 1e12:.2f} TB/s; below {KERNEL_BAR} % of it: {', '.join(low) or 'none'}"
    if "product_seconds" in numbers:
        return f"{run.verdict}: {ceiling_of(numbers)}"
    if "tokens_per_second" not in numbers:
        return run.verdict + run.told
    spread = f" ({numbers['least']:,.0f} – {numbers['most']:,.0f})" if "least" in numbers else ""
    words = [f"{numbers['tokens_per_second']:,.0f} tokens/s{spread}"]
    words += [f"{(numbers.get('peak_bytes') or numbers.get('max_memory_reserved') or 0) / 2**30:.1f} GiB"]
    words += [f"{numbers['at_first']:,.0f} at first"] if "at_first" in numbers else []
    words += [f"MFU {numbers['mfu_percent']:.1f} %"] if "mfu_percent" in numbers else []
    key, expected = "tokens_per_second_per_gpu", {"likely": plan, "good": plan.get("good", {})}
    words += [f"{name} {rates[key]:,.0f}" for name, rates in expected.items() if key in rates]
    if run.name in ALL_ROWS and plan and (ceiling := bench.ceiling_tps(run.name)):
        words.append(f"{100 * numbers['tokens_per_second'] / ceiling:.1f} % of the ceiling's {ceiling:,.0f}")
    return ("" if run.verdict == "ok" else f"{run.verdict}; ") + ", ".join(words)


def speed_lines(bench: Bench) -> list[str]:
    """For a page: ratios of rows, what they said, and their traced steps."""
    rows = [run for run in bench.session.outcomes.values() if run.name in ALL_ROWS and "tokens_per_second" in run.numbers]
    lines = ["", f"Speeds: {STEPS} steps of one sequence, parameters, optimizer states and gradients of blocks in bf16; the median of the"]
    lines += [f"last {COUNTED} (least – most). \"traced\" is fused without CUDA graphs, and then one step under the profiler. MFU by torchtitan's"]
    lines += ["formula against the card's bf16 peak, whatever the precision; likely and good are what `titan_train plan` expects. The ceiling"]
    lines += ["takes products, attention and a copy as measured in this run, each alone, and the bytes that the plan counts. Adam and the"]
    lines += ["exact norm are fused in plain rows, too.", ""]
    tps = {row.name: row.numbers["tokens_per_second"] for row in rows}
    lines += [f"* {key}, {what}: {tps[f'{key}-{upper}'] / tps[f'{key}-{lower}']:.3f}" for key in MODELS
              for what, upper, lower in RATIOS if f"{key}-{upper}" in tps and f"{key}-{lower}" in tps]  # fmt: skip
    lines += ["", *(f"    {row.name}: {note}".rstrip() for row in rows for note in row.numbers["notes"])]
    for row in rows:
        if kinds := row.numbers.get("milliseconds_by_kind"):
            lines += ["", f"{row.name}, one step under the profiler, ms: {', '.join(f'{kind} {part:.1f}' for kind, part in kinds.items())}"]
            lines += expectation(row)
    return lines if rows else []


def share_of_copy(kernel: dict, rates: dict) -> float:
    return 100 * kernel["bytes"] / kernel["seconds"] / rates["copy_bytes_per_second"]


def ceiling_of(numbers: dict) -> str:
    products, attention, copy = (numbers[key] or 0 for key in CEILING)
    return f"a step's products {1e3 * products:.1f} ms, attention {1e3 * attention:.1f} ms, a copy {copy / 1e12:.2f} TB/s"


def kernel_lines(session: Session) -> list[str]:
    rates, lines = session.numbers_of("kernel rates"), []
    if "kernels" in rates:
        copy, rows = rates["copy_bytes_per_second"], []
        for kernel in rates["kernels"]:
            rate = kernel["bytes"] / kernel["seconds"]
            rows.append([kernel["name"], f"{kernel['bytes'] / 1e9:.3f}", f"{1e3 * kernel['seconds']:.3f}", f"{rate / 1e12:.2f}"])
            share = share_of_copy(kernel, rates)
            rows[-1] += [f"{share:.1f}", "met" if share >= KERNEL_BAR else "missed"]
        lines += ["", f"Kernels that move memory, each alone in 8B's shapes, against a copy's {copy / 1e12:.2f} TB/s:", ""]
        lines += table(f"kernel | GB | ms | TB/s | % of the copy | at least {KERNEL_BAR}", rows)
    for run in (run for run in session.outcomes.values() if run.name.endswith("-ceiling") and run.numbers.get("calls")):
        lines += ["", f"{run.name}: {ceiling_of(run.numbers) if 'product_seconds' in run.numbers else run.verdict}", ""]
        rows = [[call.get("product") or call["attention"], call["pass"], f"{call['m']} × {call['k']} × {call['n']}" if "m" in call else "",
                 call.get("result", ""), "yes" if call.get("in_training", True) else "no", f"{1e3 * call['seconds']:.3f}",
                 f"{call['tflops']:.0f}"] for call in run.numbers["calls"]]  # fmt: skip
        lines += table("call | pass | m × k × n | result | training's own | ms | TFLOP/s", rows)
    return lines

#!/usr/bin/env python3
"""Writes what `titan_train plan --gpu` predicts: docs/benchmarks/simulated.md (published rows), h200_expected.md beside it
(parts of a step on one H200) and docs/scaling.md.

scripts/bench/simulated.py [rows|expected|scaling] [--check]   all pages without a name; --check writes nothing and ends
                                                               with status 1 where a page is not what it would be
scripts/bench/simulated.py fit                                 the shares of the hardware's rates that the fitted rows
                                                               ask for
"""
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TITAN_BINARY", str(ROOT / "build/release/titan_train"))
FITTED = ("T1a", "T1b", "T1c", "A1")
GROUPS = ("products", "float8 products", "attention", "memory")  # purposes of time that have a share; others are memory
# Upstream holds the logits whole: in bf16, in fp32, and log-probabilities or their gradient in fp32 beside a copy.
LOGIT_BYTES, COUNTED_BYTES = 12, 8
NEAR = 0.15  # of a published number; rows that are farther off are misses
MEMORY_TARGETS = (0.08, 0.15)  # in the mean, at most
PULL = 0.8  # of the shares, in fit()
PART_BYTES = 2 / 10  # of a bf16 partial sum: upstream reads it, this program reads and writes its fp32 sum as well


def plan(config, world, gpu, *options):
    command = [PROGRAM, "plan", f"configs/{config}.toml", "--world", str(world), "--gpu", gpu, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def gpu_table(name):
    with (ROOT / "src/estimate/hardware.toml").open("rb") as file:
        return tomllib.load(file)[name]


def shares(gpu, rates="likely"):
    """Of the hardware's rates in a step, by group."""
    table = gpu_table(gpu)[rates]
    return {group: table[group.split(" ")[0]] for group in GROUPS}


class Row:
    """A row of the published tables: configs/bench/NAME.toml, whose first two lines say what was published."""

    def __init__(self, path):
        self.name = path.stem
        self.text = path.read_text()
        first, second = self.text.split("\n")[:2]
        self.gpus = int(re.search(r" on (\d+) ", first)[1])
        self.published = float(re.search(r"([\d.]+) tokens", second)[1])
        held = re.search(r"([\d.]+) GiB", second)
        self.held = held and held[1]

    def predict(self, *options):
        gpu = "a100-80" if self.name.startswith("A") else "h100-95"
        return json.loads(plan(f"bench/{self.name}", self.gpus, gpu, "--json", *options))

    def number(self, key, default):
        found = re.search(rf"^{key} = (\d+)", self.text, re.M)
        return int(found[1]) if found else default

    def uncounted_logits(self):
        """GiB that upstream's logits take beyond what the plan counts for one chunk."""
        samples = self.number("local_batch_size", 1)
        vocab_size = 32000 if 'name = "llama2"' in self.text else 128256
        cut = self.number("context_parallel_degree", 1) * self.number("tensor_parallel_degree", 1)
        return samples * self.number("seq_len", 2048) * vocab_size // cut * (LOGIT_BYTES - COUNTED_BYTES) / 2**30


def all_rows():
    return sorted(map(Row, (ROOT / "configs/bench").glob("*.toml")), key=lambda row: ("TABS".index(row.name[0]), row.name))


# ---- published rows

ROWS_HEAD = f"""# Published rows, simulated

Written by `scripts/bench/simulated.py`; a test runs it and compares. Nothing here was measured by this project. Each row is
`titan_train plan configs/bench/ROW.toml --world GPUS --gpu h100-95` (A rows: `a100-80`): the program of a step, interpreted
as time ([estimate.md](../estimate.md)), with upstream's settings.

Four shares of the hardware's rates (products, float8 products, attention, everything that moves memory) were fitted on the
rows marked * (`simulated.py fit`): what upstream's software of 2024 reached on these cards. So the other rows are
predictions, but not blind ones: that `h100-95` has the attention rate of FlashAttention 2, and how strongly the fit pulls
shares to {PULL}, were decided with all rows in sight.

Memory in GiB: "reserved" is what upstream published; "planned, whole logits" is this plan with logits of {LOGIT_BYTES} bytes each, as
upstream holds them; "planned" is the plan as it is, with the loss in chunks.

| row | published tokens/s | simulated | ratio | reserved | planned, whole logits | planned |
|---|---:|---:|---:|---:|---:|---:|
"""
# Of the misses: rows, and what they have in common. Numbers are from miss_numbers(); each miss is in one line.
MISSES = (
    (("T2d", "T6d"), """**Context parallelism over 8** ({rows}; over 2 and 4 it is {few_least:.2f} to {few_most:.2f}). From T2b to T2d the sequence
  grows {longer:g}-fold and published tokens/s fall {slower:.1f}-fold, although only attention grows with the sequence. No bandwidth of
  this table gives that; where it is lost is not known here."""),
    (("S2b",), """**Asynchronous tensor parallelism** ({rows}; S1f and S2f are rowwise, too). The simulation hides each transfer behind the
  product that it feeds. It counts what this program's kernels take to add the ranks' parts: each is read, its fp32 sum read
  and written. Upstream reads each part once, so in its rows something else takes that time."""),
    (("S1f", "S2e", "S2f"), """**Rowwise float8** ({rows}) was slower than bf16 for 8B upstream; here its products pay, and only its casts are
  counted against them."""),
    (("B1", "S2a"), """**Unexplained**: {rows}. B2 and B3, the layout of B1 in float8, are {b_most:.0f} % off at most; S2a, bf16 over 8 tensor
  parallel ranks, is {s2a:.1f} % off, and S2c, the same in float8, {s2c:.1f} %."""),
)  # fmt: skip
OTHER_LINES = """* **Order** within the tables is that of the published rows{order}.
* **Memory** with tensor parallelism (T4, T5, T6): {memory_least:.0f} to {memory_most:.0f} % less than published; the targets of all rows,
  {mean:.0f} % in the mean and {most:.0f} % at most, are {verdict}. What else upstream holds is not known here.
"""

BEST_HEAD = """
## With other settings

The fastest layout that `--search` finds for the same model, GPUs, global batch, context parallelism and precision, beside the
published layout. Both are simulated. A row is faster where memory that upstream left free, or took for whole logits, lets it
recompute less, where fewer ranks share a sequence, and where no pipeline waits.

| row | as published | fastest found | ratio | GiB needed | its layout |
|---|---:|---:|---:|---:|---|
"""


def best_table():
    lines = []
    for row in all_rows():
        gpu = "a100-80" if row.name.startswith("A") else "h100-95"
        speed = row.predict()["tokens_per_second_per_gpu"]
        found = plan(f"bench/{row.name}", row.gpus, gpu, "--search").split("fastest first:\n")[1]
        best, held, layout = re.match(r" *(\d+) tokens/s per GPU, *([\d.]+) GiB: (.*)", found).groups()
        lines.append(f"| {row.name} | {speed:.0f} | {best} | {float(best) / speed:.2f} | {held} | {layout} |\n")
    return BEST_HEAD + "".join(lines)


def swapped(ratios):
    """Rows that are faster than another one of their table only here."""
    table = lambda row: row.name[:1] if row.name[0] in "AB" else row.name[:2]
    pairs = [(a, b) for a in ratios for b in ratios if table(a) == table(b) and a.published < b.published]
    return [f"{a.name} is faster than {b.name}" for a, b in pairs if ratios[a] * a.published > ratios[b] * b.published]


def miss_numbers(ratios, errors):
    """What the sentences about misses say. `ratios`: of rows' throughput; `errors`: of their memory with whole logits."""
    named = {row.name: row for row in ratios}
    off = {row.name: 100 * abs(ratio - 1) for row, ratio in ratios.items()}
    few = [ratio for row, ratio in ratios.items() if row.number("context_parallel_degree", 1) in (2, 4)]
    short, long = named["T2b"], named["T2d"]
    less = [-100 * error for row, error in errors.items() if row.name[:2] in ("T4", "T5", "T6")]
    found = [sum(map(abs, errors.values())) / len(errors), max(map(abs, errors.values()))]
    swaps = swapped(ratios)
    return {"few_least": min(few), "few_most": max(few), "longer": long.number("seq_len", 0) / short.number("seq_len", 0),
            "slower": short.published / long.published, "b_most": max(off["B2"], off["B3"]), "s2a": off["S2a"], "s2c": off["S2c"],
            "order": f", except that {' and '.join(swaps)} here" if swaps else "", "memory_least": min(less), "memory_most": max(less),
            "mean": 100 * MEMORY_TARGETS[0], "most": 100 * MEMORY_TARGETS[1],
            "verdict": "met" if all(a <= b for a, b in zip(found, MEMORY_TARGETS)) else "missed"}  # fmt: skip


def misses_text(ratios, errors):
    """Ends the script where a miss is in no line, or a line names a row that is none."""
    misses = sorted(row.name for row, ratio in ratios.items() if row.name not in FITTED and abs(ratio - 1) > NEAR)
    explained = sorted(name for rows, _ in MISSES for name in rows)
    if misses != explained:
        sys.exit(f"rows more than {100 * NEAR:.0f} % off: {', '.join(misses)}; MISSES in {__file__} has {', '.join(explained)}: change its lines")
    numbers = miss_numbers(ratios, errors)
    text = "\nWhat the misses have in common:\n\n"
    for rows, line in MISSES:
        text += f"* {line.format(rows=', '.join(rows), **numbers)}\n"
    return text + OTHER_LINES.format(**numbers)


def rows_page():
    lines, near_lean, ratios, errors = [], 0, {}, {}
    for row in all_rows():
        found = row.predict()
        speed, ours = found["tokens_per_second_per_gpu"], found["reserved_bytes"] / 2**30
        ratio = ratios[row] = speed / row.published
        if row.name not in FITTED:
            lean = found["step_seconds"] - (1 - PART_BYTES) * found["seconds"].get("partial sums", 0)
            near_lean += abs(ratio * found["step_seconds"] / lean - 1) <= NEAR
        whole = ""
        if row.held:
            whole = row.predict("--training.loss_chunks=1", "--compile.components=model")["reserved_bytes"] / 2**30
            whole += row.uncounted_logits() if whole > ours else 0  # a pipeline's peak is on its first rank
            errors[row] = whole / float(row.held) - 1
            whole = f"{whole:.1f}"
        star = "*" if row.name in FITTED else ""
        lines.append(
            f"| {row.name}{star} | {row.published:.0f} | {speed:.0f} | {ratio:.2f} | {row.held or ''} | {whole} | {ours:.1f} |\n"
        )
    off = [abs(error) for error in errors.values()]
    predicted = [abs(ratio - 1) <= NEAR for row, ratio in ratios.items() if row.name not in FITTED]
    near = sum(predicted)
    summary = f"""
{near} of {len(predicted)} predicted rows are within {100 * NEAR:.0f} % of the published throughput; {near_lean} if partial sums moved no more
bytes than upstream's do (asynchronous tensor parallelism, below). Memory with whole logits is {100 * sum(off) / len(off):.0f} % off in the mean,
{100 * max(off):.0f} % at most.
"""
    return {"docs/benchmarks/simulated.md": ROWS_HEAD + "".join(lines) + summary + misses_text(ratios, errors) + best_table()}


def fit():
    """Least squares of log(simulated / published) over FITTED. Four rows hardly tell products from attention: a pull of
    each share to 0.8 decides."""
    weight = 0.1
    now = list(shares("h100-95").values())  # a100-80 has the same
    rows = []
    for row in all_rows():
        if row.name not in FITTED:
            continue
        found = row.predict()
        seconds = dict.fromkeys((*GROUPS, "waiting"), 0.0)
        for purpose, part in found["seconds"].items():
            seconds["waiting" if purpose.startswith("waiting") else purpose if purpose in GROUPS else "memory"] += part
        rows.append((seconds, found["step_seconds"] * found["tokens_per_second_per_gpu"] / row.published))

    def error(new):
        total = weight * sum(math.log(share / PULL) ** 2 for share in new)
        for seconds, published in rows:
            simulated = seconds["waiting"] + sum(seconds[g] * old / share for g, old, share in zip(GROUPS, now, new))
            total += math.log(simulated / published) ** 2
        return total

    best, step = now, 0.1
    while step > 1e-5:
        tries = [[s * (1 + sign * step) if i == j else s for j, s in enumerate(best)] for i in range(4) for sign in (1, -1)]
        nearest = min(tries, key=error)
        if error(nearest) < error(best):
            best = nearest
        else:
            step /= 2
    for group, share in zip(GROUPS, best):
        print(f"{group}: {share:.2f}")


# ---- one H200

JOB = ("--training.seq_len=8192", "--training.local_batch_size=1", "--training.dtype=bfloat16", "--compile.enable",
       "--optimizer.state_dtype=bfloat16", "--training.gradient_dtype=bfloat16", "--activation_checkpoint.mode=none",
       "--training.loss_chunks=0", "--model.override.vocab_size=128256")  # fmt: skip
FLOAT8 = "--model.converters=quantize.linear.float8"
ONE_GPU = {"Llama 3.1 8B": ("llama3_8b", "--model.name=llama3_1"), "Llama 3.2 3B": ("llama3_2_3b",),
           "Llama 3.2 1B": ("llama3_2_1b",)}  # fmt: skip
EXPECTED_HEAD = """# What a step should take on one H200

Written by `scripts/bench/simulated.py`; a test runs it and compares. Nothing here was measured by this project: it is
`titan_train plan --gpu h200` ([estimate.md](../estimate.md)), part by part, so that the first run on a card can be held
against it. A step is one sequence of 8,192 tokens and an optimizer step over bf16 weights and moments, with gradients of
blocks in bf16, logits in as few parts as fit, fused kernels and nothing recomputed; float8 is tensorwise. Launches follow
each other without gaps, and nothing overlaps.

A part takes its operations or bytes over a rate that others measured on the card (`src/estimate/hardware.toml`), times the share
of it that a step holds. That share is unknown before a run, so there are two: "likely" is what trainers of 2025 and 2026
reach on such cards, "good" is what a step would need whose products stay close to their best. A run outside of a range, in
one part or in all, has something to explain. "At the rates" is a step that reaches all of them.

| rate | alone | likely | | good | |
|---|---:|---:|---:|---:|---:|
"""

QWEN_7B = ("--model.name=llama3", "--model.flavor=custom", "--model.override.dim=3584", "--model.override.n_layers=28",
           "--model.override.n_heads=28", "--model.override.n_kv_heads=4", "--model.override.hidden_dim=18944",
           "--training.seq_len=1024", "--training.global_batch_size=512", "--training.dtype=bfloat16", "--compile.enable",
           "--optimizer.state_dtype=bfloat16", "--model.override.vocab_size=152064")  # fmt: skip
# Trainer, tokens/s per GPU that its authors published, config, GPUs, kind of GPU, options, what explains a ratio: its numbers
# are from reason_numbers().
OTHERS = (
    ("KempnerForge, Llama 3 8B, bf16 states, 4 × 2 × 4,096, all recomputed, 1 H200", 10471, "llama3_8b", 1, "h200",
     (*JOB, "--training.seq_len=4096", "--training.local_batch_size=2", "--training.global_batch_size=8",
      "--training.gradient_dtype=float32", "--activation_checkpoint.mode=full"), ""),
    ("llmq, Qwen2.5 7B, bf16, 128 × 4 × 1,024, nothing recomputed, 1 H100", 13863, "llama3_8b", 1, "h100-sxm",
     (*QWEN_7B, "--training.local_batch_size=4", "--training.loss_chunks=2", "--activation_checkpoint.mode=none"), ""),
    ("llmq, the same in float8, 32 × 16 × 1,024, norms and feed-forward recomputed", 19194, "llama3_8b", 1, "h100-sxm",
     (*QWEN_7B, "--training.local_batch_size=16", "--training.loss_chunks=4", "--activation_checkpoint.mode=selective",
      "--activation_checkpoint.selective_ac_option=norm,ffn", "--model.converters=quantize.linear.float8"),
     "llmq in float8: the kernels that make its activations write them in float8, too, where this program casts in kernels of\n"
     "  their own: {likely_casts:.1f} % of the likely step, {good_casts:.1f} % of the good one. Without them the ratios are\n"
     "  {likely_rest:.2f} and {good_rest:.2f}. It adds up gradients in bf16."),
    ("torchtitan, Llama 3 8B, float8, 32 H200, batch of 2 (assumed), selective recomputation (assumed)", 10938, "bench/T3c", 32,
     "h200", ("--parallelism.data_parallel_shard_degree=32",),
     "torchtitan: its software of early 2025 used FlashAttention 2. With that kernel's rate, and the shares of the rates that\n"
     "  its H100 rows reached ([simulated.md](simulated.md)), the ratio is {flash:.2f}; with these shares and cuDNN's rate, which the\n"
     "  table has, {attention:.2f}. What its authors do not say is assumed."),
    ("DeepSpeed ZeRO-2, Llama 3.1 8B, bf16, 8 H200, nothing recomputed, batch of 1 (assumed)", 8700, "llama3_8b", 8, "h200",
     ("--training.seq_len=8192", "--compile.enable", "--activation_checkpoint.mode=none",
      "--parallelism.fsdp_reshard_after_forward=never"),
     "DeepSpeed: norms, rotary embeddings and SwiGLU by PyTorch's separate kernels, gradients reduced in buckets;\n"
     "  FlashAttention 3. None of this is simulated. With the table's rate of attention (cuDNN's) and the shares of simulated.md\n"
     "  the ratio is {attention:.2f}. What its authors do not say is assumed."),
)  # fmt: skip
OTHERS_HEAD = """
## Beside what others published

Tokens/s per GPU, for steps of these shapes on this program's kernels.

| trainer | published | likely | ratio | good | ratio |
|---|---:|---:|---:|---:|---:|
"""


def with_published_shares(kernel, folder):
    """A hardware file: an H200 on which the rates have the shares that were fitted on published rows. `kernel`: whose rate
    attention has, "attention" (cuDNN's) or "flash" (FlashAttention 2's)."""
    gpu, fitted = gpu_table("h200"), gpu_table("h100-95")["likely"]
    gpu["attention_tflops"] = gpu[f"{kernel}_tflops"]
    rates = [f"{key} = {value}" for key, value in gpu.items() if not isinstance(value, dict)]
    path = pathlib.Path(folder) / f"{kernel}.toml"
    path.write_text("\n".join(["[h200]", *rates, f"likely = {{ {', '.join(f'{key} = {share}' for key, share in fitted.items())} }}\n"]))
    return path


def reason_numbers(published, found, plan_on):
    """What the sentences of OTHERS say. `plan_on`: the same step on the hardware of a file."""
    numbers = {}
    for rates, step in (("likely", found), ("good", found["good"])):
        casts = step["seconds"].get("float8 casts", 0) / step["step_seconds"]
        numbers[f"{rates}_casts"] = 100 * casts
        numbers[f"{rates}_rest"] = step["tokens_per_second_per_gpu"] / (1 - casts) / published
    with tempfile.TemporaryDirectory() as folder:
        for kernel in ("attention", "flash"):
            numbers[kernel] = plan_on(with_published_shares(kernel, folder))["tokens_per_second_per_gpu"] / published
    return numbers


def others_table():
    lines, reasons = [], []
    for what, published, config, gpus, gpu, options, reason in OTHERS:
        plan_on = lambda kind: json.loads(plan(config, gpus, str(kind), "--json", *options))
        found = plan_on(gpu)
        speeds = (found["tokens_per_second_per_gpu"], found["good"]["tokens_per_second_per_gpu"])
        cells = (f"{speed:.0f} | {speed / published:.2f}" for speed in speeds)
        lines.append(f"| {what} | {published} | {' | '.join(cells)} |\n")
        reasons += [f"* {reason.format(**reason_numbers(published, found, plan_on))}\n"] if reason else []
    return OTHERS_HEAD + "".join(lines) + "\n" + "".join(reasons)


def part_cells(steps, purpose):
    """Likely and good milliseconds of each precision, and the share of the likely step."""
    for step in steps:
        likely, good = step["seconds"].get(purpose, 0), step["good"]["seconds"].get(purpose, 0)
        share = 100 * likely / step["step_seconds"]
        yield f"{1e3 * likely:.2f} | {1e3 * good:.2f} | {share:.1f} %" if likely else " |  | "


def expected_page():
    gpu, likely, good = gpu_table("h200"), shares("h200"), shares("h200", "good")
    text = EXPECTED_HEAD
    rates = (("products", "product_tflops", "TFLOP/s"), ("float8 products", "float8_tflops", "TFLOP/s"),
             ("attention", "attention_tflops", "TFLOP/s"), ("memory", "memory_gb_s", "GB/s"))  # fmt: skip
    for name, key, unit in rates:
        cells = (f"{100 * of[name]:.1f} % | {gpu[key] * of[name]:.0f} {unit}" for of in (likely, good))
        text += f"| {name} | {gpu[key]:.0f} {unit} | {' | '.join(cells)} |\n"
    summary = "\n| model | | tokens/s | | ms a step | | at the rates, ms | float8 over bf16 | GiB |\n"
    summary += "|---|---|---:|---:|---:|---:|---:|---:|---:|\n| | | likely | good | likely | good | | | |\n"
    tables = ""
    for model, (config, *options) in ONE_GPU.items():
        steps = [json.loads(plan(config, 1, "h200", "--json", *options, *JOB, *more)) for more in ((), (FLOAT8,))]
        bf16, float8 = steps
        for name, step in (("bf16", bf16), ("float8", float8)):
            ideal = sum(part * likely.get(purpose, likely["memory"]) for purpose, part in step["seconds"].items())
            ratio = f"{bf16['step_seconds'] / step['step_seconds']:.2f}" if step is float8 else ""
            summary += f"| {model} | {name} | {step['tokens_per_second_per_gpu']:.0f} | "
            summary += f"{step['good']['tokens_per_second_per_gpu']:.0f} | {1e3 * step['step_seconds']:.1f} | "
            summary += f"{1e3 * step['good']['step_seconds']:.1f} | {1e3 * ideal:.1f} | {ratio} | {step['reserved_bytes'] / 2**30:.1f} |\n"
        tables += f"\n## {model}\n\n| part | bf16, ms | | | float8, ms | | |\n|---|---:|---:|---:|---:|---:|---:|\n"
        tables += "| | likely | good | | likely | good | |\n"
        for purpose in sorted(float8["seconds"], key=float8["seconds"].get, reverse=True):
            if float8["seconds"][purpose] >= 5e-6:
                tables += f"| {purpose} | {' | '.join(part_cells(steps, purpose))} |\n"
    return {"docs/benchmarks/h200_expected.md": text + summary + others_table() + tables}


# ---- from 8 to 16,384 GPUs

SEQUENCES = 2048  # in a global batch: 16.8 million tokens
MODELS = {"8B": ("llama3_8b", 8), "70B": ("llama3_70b", 64), "405B": ("llama3_405b", 128)}
SCALING_HEAD = f"""# Scaling

Written by `scripts/bench/simulated.py`: simulated ([estimate.md](estimate.md)), not measured. Each row is the fastest layout that
fits GPUs of the kind `h100-sxm`, 8 to a host, for a global batch of {SEQUENCES:,} sequences of 8,192 tokens in bf16 with fused
kernels:

    titan_train plan configs/llama3_70b.toml --world 512 --gpu h100-sxm --search --model.name=llama3_1 --compile.enable \\
      --training.global_batch_size={SEQUENCES} --training.local_batch_size=1

Beyond {SEQUENCES:,} GPUs the config itself needs `--parallelism.tensor_parallel_degree=8`; the search tries all degrees.

![tokens/s per GPU over GPUs, relative to each model's best](scaling.svg)
"""
SCALING_TAIL = """
## What the tables say

* **Shards alone** carry a model as far as every GPU has a sequence of its own and the model's activations fit.
* **Tensor parallelism** is faster than recomputing where activations do not fit, and divides a sequence where there are more
  GPUs than sequences. The last doubling costs most.
* **A pipeline** wins where a model is large for its GPUs, always with many microbatches for each stage. Shards without one
  keep whole gradients while they accumulate.
* **Not in these numbers**: slow hosts, other jobs on the network, failures, and what NCCL loses in rings over hundreds of
  hosts. Where a search shows shards over thousands of GPUs, replicas of a few hundred (HSDP) ask less of the network.
"""


LAYOUTS = {  # of the table of where they break: tensor and pipeline parallel degrees
    "shards alone": (1, 1),
    "tensor 8": (8, 1),
    "tensor 8, pipeline 8": (8, 8),
}


def scaling_words(tensor):
    return ("--model.name=llama3_1", "--compile.enable", f"--training.global_batch_size={SEQUENCES}",
            "--training.local_batch_size=1", f"--parallelism.tensor_parallel_degree={tensor}")  # fmt: skip


def speed_of(config, world, tensor, pipeline):
    """Most tokens/s per GPU over recomputation and local batch; None: nothing fits, or the ranks cannot share the batch."""
    data = world // (tensor * pipeline)
    if not data or SEQUENCES % data:
        return None
    best = None
    for local in {min(SEQUENCES // data, batch * pipeline) for batch in (1, 2, 8)}:
        for mode in ("none", "selective", "full"):
            words = [*scaling_words(tensor), f"--training.local_batch_size={local}", f"--activation_checkpoint.mode={mode}"]
            words += [f"--parallelism.pipeline_parallel_degree={pipeline}"] if pipeline > 1 else []
            found = json.loads(plan(config, world, "h100-sxm", "--json", *words))
            if found["fits"]:
                best = max(best or 0, found["tokens_per_second_per_gpu"])
                break
    return best


def breaks(config, best):
    """Rows of the table: from how many GPUs on a layout fits, and up to how many it is within 10 % of the best."""
    lines = []
    for name, (tensor, pipeline) in LAYOUTS.items():
        speeds = {world: speed_of(config, world, tensor, pipeline) for world in best}
        fits = [world for world, speed in speeds.items() if speed]
        near = [world for world in fits if speeds[world] >= 0.9 * best[world]]
        last = f"{speeds[fits[-1]] / best[fits[-1]]:.2f} on {fits[-1]:,}" if fits else ""
        cells = [f"{fits[0]:,} to {fits[-1]:,}" if fits else "never", ", ".join(f"{w:,}" for w in near) or "never", last]
        lines.append(f"| {name} | {' | '.join(cells)} |\n")
    return "".join(lines)


def curve(speeds):
    """An SVG of each model's tokens/s per GPU relative to its best, over GPUs on a logarithmic axis."""
    left, top, width, height = 56, 16, 560, 240
    x = lambda world: left + width * math.log2(world / 8) / 11
    y = lambda share: top + height * (1 - share)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 300" font-family="sans-serif" font-size="12">\n'
             '<rect width="720" height="300" fill="white"/>\n']  # fmt: skip
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(f'<path d="M{left} {y(share):.1f}h{width}" stroke="#ddd"/><text x="{left - 6}" y="{y(share) + 4:.1f}" '
                     f'text-anchor="end">{100 * share:.0f} %</text>\n')  # fmt: skip
    for i in range(12):
        parts.append(f'<text x="{x(8 * 2**i):.1f}" y="{top + height + 18}" text-anchor="middle">{8 * 2**i:,}</text>\n')
    for (model, found), colour in zip(speeds.items(), ("#1f77b4", "#d62728", "#2ca02c")):
        points = [(x(world), y(speed / max(found.values()))) for world, speed in found.items()]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
                     + f'"/><text x="{points[-1][0] + 8:.1f}" y="{points[-1][1] + 4:.1f}" fill="{colour}">{model}</text>\n')  # fmt: skip
    return "".join(parts) + f'<text x="{left}" y="{top + height + 36}">GPUs</text>\n</svg>\n'


def scaling_pages():
    text, speeds = SCALING_HEAD, {}
    for model, (config, fewest) in MODELS.items():
        found = []
        worlds = [8 * 2**i for i in range(12) if 8 * 2**i >= fewest]
        for world in worlds:
            tensor = 8 if world > SEQUENCES else 1  # so that the config itself is valid; the search tries all degrees
            output = plan(config, world, "h100-sxm", "--search", *scaling_words(tensor))
            best = re.search(r"fastest first:\n +(\d+) tokens/s per GPU, +([\d.]+) GiB: (.*)", output)
            found.append((world, best and best.groups()))
        most = max(int(best[0]) for _, best in found if best)
        text += f"\n## {model}\n\n| GPUs | tokens/s per GPU | of the best | GiB | layout |\n|---:|---:|---:|---:|---|\n"
        for world, best in found:
            speed, gib, layout = best or ("", "", "none of the layouts tried fits")
            share = f"{100 * int(speed) / most:.0f} %" if best else ""
            text += f"| {world:,} | {speed} | {share} | {gib} | {layout} |\n"
        speeds[model] = {world: int(best[0]) for world, best in found if best}
        text += "\n| layout | fits on | within 10 % of the fastest on | of the fastest at the end |\n|---|---|---|---|\n"
        text += breaks(config, speeds[model])
    return {"docs/scaling.md": text + SCALING_TAIL, "docs/scaling.svg": curve(speeds)}


PAGES = {
    "rows": rows_page,
    "expected": expected_page,
    "scaling": scaling_pages,
}


def main():
    words = sys.argv[1:]
    if words == ["fit"]:
        return fit()
    checks = "--check" in words
    names = [word for word in words if word != "--check"] or list(PAGES)
    for name in names:
        if name not in PAGES:
            sys.exit(__doc__)
        for place, text in PAGES[name]().items():
            if not checks:
                (ROOT / place).write_text(text)
            elif (ROOT / place).read_text() != text:
                sys.exit(f"{place} is not what {sys.argv[0]} writes")


if __name__ == "__main__":
    main()

"""Driver of scripts/bench/muon.sh: a step of Muon against torch.optim.Muon, and losses after equal tokens with AdamW and
Muon. Of a step it prints the median of the ratios of interleaved pairs, and the smallest and largest of them. titan's step
includes the statistics of updates that every run computes; torch's has none."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import driver
import ratios

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCKS = {
    "debug model": ("256x256,128x256,128x256,256x256,768x256,768x256,256x768," * 6).rstrip(","),
    "block of 1B": "2048x2048,512x2048,512x2048,2048x2048,8192x2048,8192x2048,2048x8192",
}
BARS = {"float32": 1.2, "bfloat16": 1.0}
ROWS = {f"{block}/{dtype}": (block, dtype) for block in BLOCKS for dtype in BARS}
RATES = {"AdamW": (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2), "Muon": (5e-3, 1e-2, 2e-2, 4e-2, 8e-2)}
ADAMW_BESIDE_MUON = 4e-3  # of embedding, head and norms while Muon's rate is searched
LAST = 10


def torch_step(shapes: str, dtype: str, threads: int, steps: int) -> None:
    """The other side, in a process of its own: prints the median seconds of a step of torch.optim.Muon."""
    import torch
    from torch.optim import _muon

    torch.set_num_threads(threads)
    if dtype == "float32":  # torch's own function, without its conversion
        source = inspect.getsource(_muon._zeropower_via_newtonschulz).replace("grad.bfloat16()", "grad.clone()")
        exec(source, vars(_muon))
    sizes = [tuple(map(int, word.split("x"))) for word in shapes.split(",")]
    parameters = [torch.nn.Parameter(torch.randn(size) * 0.02) for size in sizes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.Muon(parameters, lr=0.02)
    seconds = []
    for step in range(steps + 1):
        begin = time.perf_counter()
        optimizer.step()
        if step:
            seconds.append(time.perf_counter() - begin)
    print(statistics.median(seconds))


def seconds_of(command: list[object]) -> float:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"exit {done.returncode} from\n{command}\n{done.stderr[-2000:]}")
    return float(done.stdout)


def step_row(arguments: argparse.Namespace, block: str, dtype: str) -> ratios.Row:
    shapes = BLOCKS[block] if not arguments.quick else "64x32,32x64"
    steps = 20 if block == "debug model" and not arguments.quick else 1
    ours = [arguments.bench, shapes, dtype, arguments.threads, steps]
    theirs = [arguments.python, __file__, "--torch-step", shapes, dtype, arguments.threads, steps]
    results = ratios.interleaved(
        1 if arguments.quick else arguments.pairs, lambda: seconds_of(ours), lambda: seconds_of(theirs)
    )
    shown = [f"{1e3 * statistics.median(pair[which] for pair in results):.3g} ms" for which in (0, 1)]
    speed = [other / ours for ours, other in results]
    print(f"{block}, {dtype}: {', '.join(f'{ratio:.3g}×' for ratio in speed)}", flush=True)
    return ratios.Row(f"Muon's step, {block}, {dtype}", shown[0], shown[1], speed, BARS[dtype], True)


def last_loss(arguments: argparse.Namespace, name: str, rate: float, seed: int) -> float:
    """Mean loss of the last steps of the README's run."""
    words = [f"--optimizer.name={name}", f"--debug.seed={seed}", f"--training.steps={arguments.steps}"]
    words += [f"--optimizer.lr={rate}"] if name == "AdamW" else [f"--optimizer.lr={ADAMW_BESIDE_MUON}", f"--optimizer.muon.lr={rate}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [arguments.binary, ROOT / "configs/debug_model.toml", f"--job.dump_folder={folder}", *words]
        command += ["--metrics.log_freq=1", f"--training.threads={arguments.threads}"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode != 0:
            raise SystemExit(f"exit {done.returncode} from {name} at {rate}\n{done.stderr[-2000:]}")
        lines = [json.loads(line) for line in (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    return statistics.mean(losses[-LAST:])


def compare_losses(arguments: argparse.Namespace) -> None:
    print(f"Losses: mean of the last {LAST} of {arguments.steps} steps of configs/debug_model.toml\n", flush=True)
    print("| optimizer | rate | loss, seed 42 |\n|---|---:|---:|", flush=True)
    best = {}
    for name, rates in RATES.items():
        found = {}
        for rate in rates:
            found[rate] = last_loss(arguments, name, rate, 42)
            print(f"| {name} | {rate:g} | {found[rate]:.4f} |", flush=True)
        best[name] = min(found.items(), key=lambda item: item[1])
    others = (7, 123)
    print("\n| optimizer at its best rate | seed 42 | seed 7 | seed 123 |\n|---|---:|---:|---:|", flush=True)
    for name, (rate, loss) in best.items():
        losses = [loss, *(last_loss(arguments, name, rate, seed) for seed in others)]
        print(f"| {name}, {rate:g} | {' | '.join(f'{loss:.4f}' for loss in losses)} |", flush=True)


def main() -> int:
    if sys.argv[1:2] == ["--torch-step"]:
        shapes, dtype, threads, steps = sys.argv[2:]
        torch_step(shapes, dtype, int(threads), int(steps))
        return 0
    parser = argparse.ArgumentParser(prog="scripts/bench/muon.sh", description=__doc__)
    parser.add_argument("--pairs", type=int, default=7, help="interleaved pairs per row (default 7)")
    parser.add_argument("--rows", default=",".join(ROWS), help=f"comma-separated, of {', '.join(ROWS)}")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of each side (default: all cores)")
    parser.add_argument("--losses", action="store_true", help="compare losses after equal tokens instead of times")
    parser.add_argument("--steps", type=int, default=200, help="steps of each run of --losses (default 200)")
    parser.add_argument("--binary", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--bench", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--python", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="one pair, small matrices: does it run at all?")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    parser.set_defaults(record=False)  # its results are in docs/benchmarks/muon.md, not among the records
    arguments = parser.parse_args()
    rows = arguments.rows.split(",")
    if unknown := set(rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    if arguments.pairs < 1:
        parser.error("--pairs must be at least 1")
    print(f"{driver.machine()}\n", flush=True)
    if arguments.losses:
        compare_losses(arguments)
        return 0
    measured = [step_row(arguments, *ROWS[row]) for row in rows]
    print(f"\n{ratios.table(measured, 'torch.optim.Muon')}")
    return driver.verdict(measured, arguments)


if __name__ == "__main__":
    sys.exit(main())

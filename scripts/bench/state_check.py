"""Driver of scripts/bench/state_check.sh: what one check of weights and moments costs, and what share of the time it is
at the default period."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import tempfile

import driver

ROOT = pathlib.Path(__file__).resolve().parents[2]
PERIOD = 100  # the default of debug.replica_check_steps
BAR = 0.005
COST = re.compile(r"(\d+) checks? of weights and moments took (\S+) ms")
REPLICATED = ["--parallelism.data_parallel_shard_degree=1", "--parallelism.data_parallel_replicate_degree=-1"]
SMALL = ["--model.override.dim=64", "--model.override.n_layers=2", "--model.override.n_heads=4", "--training.seq_len=64"]
ROWS = {
    "debug model, one process": (1, []),
    "debug model, 2 replicas": (2, [word.replace("=-1", "=2") for word in REPLICATED]),
    "debug model, 2 shards": (2, []),
    "debug model in bf16, 2 shards": (2, ["--training.mixed_precision_param=bfloat16"]),
    "the tests' tiny model, 4 replicas": (4, [*SMALL, *(word.replace("=-1", "=4") for word in REPLICATED)]),
}


def train(binary: str, ranks: int, words: list[str], steps: int, period: int) -> tuple[str, list[dict]]:
    with tempfile.TemporaryDirectory() as folder:
        launcher = [] if ranks == 1 else ["launch", "-n", str(ranks)]
        options = [f"--training.steps={steps}", f"--debug.replica_check_steps={period}", f"--job.dump_folder={folder}"]
        fixed = ["--training.threads=1", "--metrics.log_freq=1", "--debug.seed=1", "--training.device=cpu"]
        command = [binary, *launcher, "configs/debug_model.toml", *fixed, *words, *options]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"exit {done.returncode} from\n{command}\n{done.stderr[-2000:]}")
        lines = (pathlib.Path(folder) / "metrics.jsonl").read_text().splitlines()
        return done.stdout, [line for line in map(json.loads, lines) if "loss" in line]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench/state_check.sh", description=__doc__)
    parser.add_argument("--binary", default=os.environ.get("TITAN_BINARY"), required="TITAN_BINARY" not in os.environ)
    parser.add_argument("--steps", type=int, default=20, help="steps of each run (default 20)")
    parser.add_argument("--check", action="store_true", help=f"exit 1 when a share is above {BAR:.1%}")
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.binary)
    print(driver.machine())
    print(f"\n| | one check | a step | check ÷ ({PERIOD} × step) |\n|---|---|---|---|")
    worst = 0.0
    for name, (ranks, words) in ROWS.items():
        _, plain = train(binary, ranks, words, arguments.steps, 0)
        step = statistics.median(line["step_seconds"] for line in plain[2:])
        output, _ = train(binary, ranks, words, arguments.steps, 1)
        check = float(COST.search(output)[2]) / 1e3
        share = check / (PERIOD * step)
        worst = max(worst, share)
        print(f"| {name} | {1e3 * check:.2f} ms | {1e3 * step:.1f} ms | {share:.4%} |", flush=True)
    print(f"\nworst share {worst:.4%}, at most {BAR:.1%}: {'met' if worst <= BAR else 'missed'}")
    return 1 if arguments.check and worst > BAR else 0


if __name__ == "__main__":
    raise SystemExit(main())

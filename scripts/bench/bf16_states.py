"""Driver of scripts/bench/bf16_states.sh: the same run with states in float32 and in bfloat16, and how far their losses
lie apart at the end. Numbers, not times: the runs may share the machine with anything."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import driver

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH, LENGTH, LAST, BAR = 4, 128, 100, 0.01
STATES = {
    "float32": [],
    "bfloat16 weights and moments": ["--optimizer.state_dtype=bfloat16", "--training.dtype=bfloat16"],
    "bfloat16 moments": ["--optimizer.state_dtype=bfloat16"],
}


def losses(binary: str, folder: pathlib.Path, steps: int, threads: int, words: list[str]) -> list[float]:
    command = [binary, ROOT / "configs/debug_model.toml", f"--job.dump_folder={folder}", f"--training.steps={steps}"]
    command += [f"--training.local_batch_size={BATCH}", f"--training.seq_len={LENGTH}", f"--training.threads={threads}"]
    command += ["--metrics.log_freq=1", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        raise SystemExit(f"exit {done.returncode} from {' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench/bf16_states.sh", description=__doc__)
    parser.add_argument("--steps", type=int, default=2000, help="steps of each run (default 2000)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 7], help="debug.seed of the runs (default 42 7)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each run (default 1)")
    parser.add_argument("--check", action="store_true", help="exit 1 when a mean is further away than the bar")
    parser.add_argument("--binary", help="the program to run; default: the built one")
    parser.add_argument("--default-binary", default=os.environ.get("TITAN_BINARY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    binary = os.path.abspath(arguments.binary or arguments.default_binary)
    last = min(LAST, arguments.steps)
    print(f"{driver.machine()}\n{arguments.steps:,} steps of {BATCH} x {LENGTH} tokens\n", flush=True)
    print(f"| seed | states | mean loss of the last {last} steps | to float32 |\n|---:|---|---:|---:|", flush=True)
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        for seed in dict.fromkeys(arguments.seeds):  # each once: a run has a folder of its own
            wide = None
            for number, (name, words) in enumerate(STATES.items()):
                place = pathlib.Path(folder) / f"{seed}-{number}"
                found = losses(binary, place, arguments.steps, arguments.threads, [f"--debug.seed={seed}", *words])
                mean = sum(found[-last:]) / last
                wide = wide or mean
                missed |= abs(mean / wide - 1) > BAR
                print(f"| {seed} | {name} | {mean:.5f} | {100 * (mean / wide - 1):+.2f} % |", flush=True)
    print(f"\nbar: within {100 * BAR:.0f} %: {'missed' if missed else 'met'}")
    return 1 if missed and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())

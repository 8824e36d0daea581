#!/usr/bin/env python3
"""Writes docs/scaling.md: what `titan_train plan --gpu h100-sxm --search` finds from 8 to 16,384 GPUs.

scripts/bench/scaling.py [--check]     with --check nothing is written; exit status 1: the page is not what it would be
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("TITAN_BINARY", str(ROOT / "build/release/titan_train"))
PAGE = ROOT / "docs/scaling.md"
MODELS = {"8B": ("llama3_8b", 8, "llama3_1"), "70B": ("llama3_70b", 64, "llama3_1"), "405B": ("llama3_405b", 128, "llama3_1")}
SEQUENCES = 2048  # in a global batch: 16.8 million tokens
HEAD = f"""# Scaling

Written by `scripts/bench/scaling.py`: simulated ([estimate.md](estimate.md)), not measured. Each row is the fastest layout that
fits GPUs of the kind `h100-sxm`, 8 to a host, found by `titan_train plan CONFIG --world N --gpu h100-sxm --search` for a global
batch of {SEQUENCES:,} sequences of 8,192 tokens, bf16, fused kernels, 1F1B where there is a pipeline.
"""
TAIL = """
## What the tables say

* **8B**: shards alone carry it to 2,048 GPUs. Gathers and reductions hide behind one sequence of 8,192 tokens. On 8 and 16
  GPUs the states leave no room for all activations, and tensor parallelism over 2 is faster than recomputing.
* **70B and 405B** want tensor parallelism, and with few GPUs a pipeline with many microbatches, before recomputation.
* **More GPUs than sequences in the batch** leave tensor parallelism to divide a sequence: 90, 77, 43 % for 8B at 2, 4, 8.
* **Not in these numbers**: slow hosts, other jobs on the network, failures, and what NCCL loses in rings over hundreds of
  hosts. Where a search shows shards over thousands of GPUs, replicas of a few hundred (HSDP) ask less of the network.
"""


def search(config, name, world):
    command = [PROGRAM, "plan", f"configs/{config}.toml", f"--model.name={name}", "--world", str(world), "--gpu", "h100-sxm",
               "--search", f"--training.global_batch_size={SEQUENCES}", "--training.local_batch_size=1",
               "--parallelism.data_parallel_shard_degree=-1", "--compile.enable"]
    if world > SEQUENCES:  # so that the config itself is valid; the search tries all degrees
        command.append(f"--parallelism.tensor_parallel_degree={min(8, max(8, world // SEQUENCES))}")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    found = re.search(r"fastest first:\n +(\d+) tokens/s per GPU, +([\d.]+) GiB: (.*)", done.stdout)
    return found.groups() if found else None


def page():
    text = HEAD
    for model, (config, fewest, name) in MODELS.items():
        text += f"\n## {model}\n\n| GPUs | tokens/s per GPU | of the best | GiB | layout |\n|---:|---:|---:|---:|---|\n"
        rows, world = [], fewest
        while world <= 16384:
            rows.append((world, search(config, name, world)))
            world *= 2
        best = max(int(row[0]) for _, row in rows if row)
        for world, row in rows:
            if row:
                text += f"| {world:,} | {row[0]} | {100 * int(row[0]) / best:.0f} % | {row[1]} | {row[2]} |\n"
            else:
                text += f"| {world:,} | | | | none of the layouts tried fits or divides the batch |\n"
    return text + TAIL


if __name__ == "__main__":
    made = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(made)
    elif PAGE.read_text() != made:
        sys.exit(f"{PAGE} is not what {sys.argv[0]} writes")

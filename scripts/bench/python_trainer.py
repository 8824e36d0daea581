"""The benchmark's opponent: an eager PyTorch trainer as one would write it well, on the debug model; under torchrun with
FSDP2 (`fully_shard`) over Gloo, each rank on its own tokens.

Fused AdamW, foreach clipping, fused RMSNorm, the library's attention kernel, cross-entropy on float32 logits, bfloat16
as autocast over float32 weights, tokens from memory. It writes the lines of metrics.jsonl that the driver reads.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time

import torch
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "reference"))

from llama import Llama, initialise, token_loss_sum  # noqa: E402
from shapes import FLAVORS  # noqa: E402
from training import lr_factor_2026  # noqa: E402

PEAK_LEARNING_RATE = 8e-4
WARMUP_STEPS = 2


def shard(model: Llama, ranks: int) -> None:
    """Every block a unit of its own, embedding and head in the root's, as torchtitan does it."""
    torch.distributed.init_process_group("gloo")
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (ranks,))
    for block in model.layers.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def train(arguments: argparse.Namespace) -> list[dict]:
    torch.set_num_threads(arguments.threads)
    model = Llama(FLAVORS["llama3"]["debugmodel"], fused_norm=True)
    initialise(model, 0)
    print(f"debug model, {sum(p.numel() for p in model.parameters()):,} total parameters")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        shard(model, ranks)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda index: lr_factor_2026(index, arguments.steps, WARMUP_STEPS)
    )
    generator = torch.Generator().manual_seed(1 + int(os.environ.get("RANK", "0")))
    shape = (arguments.steps, arguments.batch, arguments.length + 1)
    chunks = torch.randint(0, model.shape.vocab, shape, generator=generator)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bfloat16")
    lines = []
    for step, chunk in enumerate(chunks, start=1):
        begin = time.perf_counter()
        tokens, labels = chunk[:, :-1], chunk[:, 1:]
        with autocast:
            logits = model(tokens)
        loss = token_loss_sum(logits, labels) / labels.numel()
        del logits
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        if ranks > 1:
            norm = norm.full_tensor()
            torch.distributed.all_reduce(loss.detach())
            loss = loss.detach() / ranks
        rate = scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        shown = {"step": step, "loss": loss.item(), "grad_norm": norm.item(), "lr": rate}
        lines.append(shown | {"step_seconds": time.perf_counter() - begin, "data_wait_seconds": 0.0})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Eager PyTorch trainer of the debug model, for comparison.")
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="metrics.jsonl is written here")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    lines = train(arguments)
    if int(os.environ.get("RANK", "0")) != 0:
        return
    (arguments.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()

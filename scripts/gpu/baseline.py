#!/usr/bin/env python3
"""The opponent of the benchmarks: a Llama trained in plain PyTorch, as one would write it well. Needs torch 2.11 only.

    scripts/gpu/baseline.py --device cpu --steps 2        the debug model
    scripts/gpu/baseline.py --mode eager --dim 4096 --layers 16 --heads 32 --kv-heads 8 --hidden 14336 --length 8192
    torchrun --nproc-per-node 2 scripts/gpu/baseline.py --device cpu     FSDP2, each rank with --batch sequences of its own

Standard output has one JSON object a line. Each step: step, loss, grad_norm, step_seconds. The last line, by which a
complete run is known: mode, precision, device, parameters, steps, counted (those after --warm-up), tokens_per_second
(median of the counted steps), max_memory_reserved (bytes; null on a CPU). A run that fails ends with
{"error": …} and exit code 64 (options, dump or machine), 71 (out of memory) or 72 (loss or norm is not finite).

Blocks and loss are compiled (--mode compiled) as torchtitan does, attention is cuDNN's or else FlashAttention, AdamW is
fused, clipping foreach. --precision: `bfloat16` weights, gradients and moments, rounded to nearest where titan rounds
stochastically; `mixed` computes in bf16 with fp32 weights (autocast); `float32`. Rotary frequencies are not scaled.
--dump FILE takes weights (tied or not), tokens and labels from a step of titan_train (debug.dump_steps).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import re
import statistics
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
BAD_INPUT, OUT_OF_MEMORY, NOT_FINITE, ROTARY_BASE = 64, 71, 72, 5e5  # exit codes, as titan_train's; Llama 3's
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn,
         "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8}  # fmt: skip # as in src/checkpoint/safetensors.cpp


class Block(nn.Module):
    def __init__(self, dim: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.head_dim = dim // heads
        kv = kv_heads * self.head_dim
        self.wq, self.wk, self.wv = (nn.Linear(dim, width, bias=False) for width in (dim, kv, kv))
        self.wo = nn.Linear(dim, dim, bias=False)
        self.w1, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, eps=1e-5), nn.RMSNorm(dim, eps=1e-5)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        q, k, v = (linear(normed).unflatten(-1, (-1, self.head_dim)) for linear in (self.wq, self.wk, self.wv))
        q, k, v = (heads.transpose(1, 2) for heads in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        x = x + self.wo(mixed.transpose(1, 2).flatten(-2))
        normed = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


class Llama(nn.Module):
    """Names are titan's without `attention.` and `feed_forward.`."""

    def __init__(self, a: argparse.Namespace):
        super().__init__()
        self.tok_embeddings = nn.Embedding(a.vocabulary, a.dim)
        self.layers = nn.ModuleList(Block(a.dim, a.heads, a.kv_heads, a.hidden) for _ in range(a.layers))
        self.norm, self.output = nn.RMSNorm(a.dim, eps=1e-5), nn.Linear(a.dim, a.vocabulary, bias=False)
        for linear in (module for module in self.modules() if isinstance(module, nn.Linear)):
            nn.init.normal_(linear.weight, std=0.02)

    def forward(self, tokens: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = self.tok_embeddings(tokens)
        for block in self.layers:
            x = block(x, cos, sin)
        return self.output(self.norm(x))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns adjacent pairs of each head: in complex numbers, one kernel; compiled in real ones, which Inductor fuses."""
    pairs = x.float().unflatten(-1, (-1, 2))
    if not torch.compiler.is_compiling():
        return torch.view_as_real(torch.view_as_complex(pairs) * torch.complex(cos, sin)).flatten(-2).to(x.dtype)
    even, odd = pairs.unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def read_dump(path: pathlib.Path, device: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, without its package."""
    blob = bytearray(path.read_bytes())
    size = 8 + int.from_bytes(blob[:8], "little")
    tensors = {}
    for key, told in json.loads(blob[8:size]).items():
        if key != "__metadata__":
            begin, end = told["data_offsets"]
            flat = torch.frombuffer(blob[size + begin : size + end], dtype=TYPES[told["dtype"]])
            tensors[key] = flat.reshape(told["shape"]).to(device)
    return tensors


def prepare(a: argparse.Namespace, rank: int, ranks: int) -> tuple[Llama, Tensor, list[tuple[Tensor, Tensor]]]:
    """The model, the rotary angles, and the batches of this rank."""
    torch.set_num_threads(a.threads)
    if a.device == "cuda" and torch.cuda.device_count() > 1:  # else the launcher may show each rank its own card alone
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16 if a.precision == "bfloat16" else torch.float32)
    dump = read_dump(a.dump, a.device) if a.dump else {}
    length, head_dim = dump["tokens"].shape[1] if a.dump else a.length, a.dim // a.heads
    with torch.device(a.device):
        model = Llama(a)
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        angles = torch.outer(torch.arange(length, dtype=torch.float32), ROTARY_BASE**-exponents).unsqueeze(1)
        chunks = torch.randint(a.vocabulary, (a.steps, ranks, a.batch, a.length + 1))[:, rank]
    batches = [(chunk[:, :-1].contiguous(), chunk[:, 1:].contiguous()) for chunk in chunks]
    if a.dump:
        batches = [(dump["tokens"], dump["labels"])] * a.steps
        weights = {re.sub("^param[.]|attention[.]|feed_forward[.]", "", key): dump[key] for key in dump if key.startswith("param.")}
        model.load_state_dict({"output.weight": weights["tok_embeddings.weight"]} | weights)
        if "output.weight" not in weights:
            model.output.weight = model.tok_embeddings.weight
    return model, angles, batches


def train(a: argparse.Namespace, rank: int, ranks: int, model: Llama, angles: Tensor, batches: list[tuple[Tensor, Tensor]]) -> int:
    parameters, cos, sin = sum(parameter.numel() for parameter in model.parameters()), angles.cos(), angles.sin()
    if ranks > 1:
        from torch.distributed.fsdp import fully_shard
        torch.distributed.init_process_group("gloo" if a.device == "cpu" else "nccl")
        mesh = torch.distributed.device_mesh.init_device_mesh(a.device, (ranks,))
        for module in [*model.layers, model]:
            fully_shard(module, mesh=mesh)
    compute_loss = torch.compile(loss_of) if a.mode == "compiled" else loss_of
    for block in model.layers if a.mode == "compiled" else []:
        block.compile(fullgraph=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    synchronize = torch.cuda.synchronize if a.device == "cuda" else lambda: None
    seconds = []
    for step, (tokens, labels) in enumerate(batches, start=1):
        synchronize()
        begin = time.perf_counter()
        with sdpa_kernel(KERNELS, set_priority=True), torch.autocast(a.device, torch.bfloat16, a.precision == "mixed"):
            loss = compute_loss(model(tokens, cos, sin), labels)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if ranks > 1:
            norm = norm.full_tensor()
            torch.distributed.all_reduce(loss := loss.detach() / ranks)
        line = {"step": step, "loss": loss.item(), "grad_norm": norm.item()}
        del loss  # with its graph
        synchronize()
        seconds.append(time.perf_counter() - begin)
        if not math.isfinite(line["loss"] + line["grad_norm"]):
            return fail(NOT_FINITE, "step {step} has loss {loss} and gradient norm {grad_norm}".format(**line))
        if rank == 0:
            print(json.dumps(line | {"step_seconds": seconds[-1]}), flush=True)
    last = {"mode": a.mode, "precision": a.precision, "device": a.device, "parameters": parameters, "steps": a.steps}
    last |= {"counted": a.steps - a.warm_up, "tokens_per_second": ranks * tokens.numel() / statistics.median(seconds[a.warm_up :])}
    last["max_memory_reserved"] = torch.cuda.max_memory_reserved() if a.device == "cuda" else None
    if rank == 0:
        print(json.dumps(last), flush=True)
    return 0


def fail(code: int, said: str) -> int:
    print(json.dumps({"error": " ".join(said.split())[:300]}), flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description="A Llama in plain PyTorch; one JSON object a line.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--mode", choices=["compiled", "eager"], default="compiled")
    parser.add_argument("--precision", choices=["bfloat16", "mixed", "float32"], default="bfloat16")
    sizes = {"dim": 256, "layers": 6, "heads": 16, "kv-heads": 16, "hidden": 768, "vocabulary": 2048, "length": 512}
    for name, value in (sizes | {"batch": 1, "steps": 16, "warm-up": None, "threads": torch.get_num_threads()}).items():
        parser.add_argument(f"--{name}", type=int, default=value, metavar="N")
    parser.add_argument("--dump", type=pathlib.Path, metavar="FILE")
    parser.error = lambda said: sys.exit(fail(BAD_INPUT, said))
    a = parser.parse_args()
    a.warm_up = min(6, a.steps - 1) if a.warm_up is None else a.warm_up
    small = [f"--{name} {value} is too small" for name, value in vars(a).items() if isinstance(value, int) and value < (name != "warm_up")]
    if small or a.dim % (2 * a.heads) or a.heads % a.kv_heads or a.warm_up >= a.steps:
        parser.error((*small, "--warm-up must be below --steps, --dim a multiple of 2 * --heads, --heads of --kv-heads")[0].replace("_", "-"))
    try:
        ranks = [int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"))]
        made = prepare(a, *ranks)
    except Exception as error:  # of what was given
        code = OUT_OF_MEMORY if isinstance(error, torch.OutOfMemoryError) else BAD_INPUT
        return fail(code, f"{a.dump or a.device}: {type(error).__name__}: {error}")
    try:
        return train(a, *ranks, *made)
    except torch.OutOfMemoryError as error:
        return fail(OUT_OF_MEMORY, f"out of memory: {error}")


if __name__ == "__main__":
    sys.exit(main())

"""Step dumps: what `debug.dump_steps` writes, read and written as safetensors.

Keys: tokens and labels int64 [G, T] in sample order, logits [G, T, V] (optional), loss, grad_norm, and for every
parameter param.NAME (before the step), grad.NAME (before clipping; none of a frozen one), param_after.NAME.
"""

from __future__ import annotations

import dataclasses
import pathlib

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


class DumpError(Exception):
    """A dump that does not hold what it should."""


@dataclasses.dataclass
class StepDump:
    tokens: Tensor
    labels: Tensor
    loss: float
    grad_norm: float
    parameters: dict[str, Tensor]
    gradients: dict[str, Tensor]
    parameters_after: dict[str, Tensor]
    logits: Tensor | None = None


def dump_file(folder: pathlib.Path, step: int) -> pathlib.Path:
    return folder / "debug" / f"step-{step}" / "step.safetensors"


def read(folder: pathlib.Path, step: int) -> StepDump:
    """Reads one step's dump below a job's dump folder."""
    path = dump_file(folder, step)
    if not path.is_file():
        raise DumpError(f"no dump at {path}")
    tensors = load_file(path)

    def section(prefix: str) -> dict[str, Tensor]:
        return {key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)}

    def scalar(key: str) -> float:
        return tensors[key].double().item()

    missing = [key for key in ("tokens", "labels", "loss", "grad_norm") if key not in tensors]
    if missing:
        raise DumpError(f"{path} lacks {', '.join(missing)}")
    dump = StepDump(
        tensors["tokens"],
        tensors["labels"],
        scalar("loss"),
        scalar("grad_norm"),
        section("param."),
        section("grad."),
        section("param_after."),
        tensors.get("logits"),
    )
    if set(dump.parameters_after) != set(dump.parameters):
        differing = set(dump.parameters_after) ^ set(dump.parameters)
        raise DumpError(f"{path}: the names of param.* and param_after.* differ: {differing}")
    if not set(dump.gradients) <= set(dump.parameters):
        raise DumpError(f"{path}: grad.* has names that param.* lacks: {set(dump.gradients) - set(dump.parameters)}")
    if dump.tokens.dtype != torch.int64 or dump.labels.shape != dump.tokens.shape:
        raise DumpError(f"{path}: tokens are {dump.tokens.dtype} {dump.tokens.shape}, labels {dump.labels.shape}")
    return dump


def write(folder: pathlib.Path, step: int, dump: StepDump) -> None:
    """The inverse of `read`; the tests of the tests make their dumps with it."""
    tensors = {"tokens": dump.tokens, "labels": dump.labels}
    tensors["loss"] = torch.tensor(dump.loss)
    tensors["grad_norm"] = torch.tensor(dump.grad_norm)
    if dump.logits is not None:
        tensors["logits"] = dump.logits.contiguous()
    for prefix, named in (
        ("param.", dump.parameters),
        ("grad.", dump.gradients),
        ("param_after.", dump.parameters_after),
    ):
        tensors |= {prefix + name: value.detach().clone().contiguous() for name, value in named.items()}
    path = dump_file(folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)

"""What a checkpoint holds, read by torch."""

from __future__ import annotations

import pathlib
import tempfile

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def flat(value, name: str = "") -> dict:
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, item in value.items() for k, v in flat(item, f"{name}.{key}" if name else str(key)).items()}


def state_of(checkpoint: pathlib.Path) -> dict:
    """The whole state dict by full name."""
    with tempfile.NamedTemporaryFile() as file:
        dcp_to_torch_save(checkpoint, file.name)
        return flat(torch.load(file.name, weights_only=False))

"""Weights in float8 with a factor for every block, as transformers writes and reads them."""

from __future__ import annotations

import torch

BLOCK = (48, 32)
SETTINGS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(BLOCK)}


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float8 numbers and the factor of each block, which makes its largest number 448."""
    rows, columns = (-(-size // block) for size, block in zip(weight.shape, BLOCK, strict=True))
    factors = torch.empty(rows, columns)
    numbers = torch.empty_like(weight)
    for row in range(rows):
        for column in range(columns):
            place = (slice(row * BLOCK[0], (row + 1) * BLOCK[0]), slice(column * BLOCK[1], (column + 1) * BLOCK[1]))
            factors[row, column] = weight[place].abs().max() / 448
            numbers[place] = weight[place] / factors[row, column]
    return numbers.to(torch.float8_e4m3fn), factors


def values(numbers: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    wide = factors.repeat_interleave(BLOCK[0], 0).repeat_interleave(BLOCK[1], 1)
    return numbers.float() * wide[: numbers.shape[0], : numbers.shape[1]]


def quantised(weights: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What is stored when the projections of `weights` are quantised, and what it stands for."""
    stored, meant = {}, {}
    for name, weight in weights.items():
        if "_proj" not in name:
            stored[name] = meant[name] = weight
            continue
        stored[name], stored[f"{name}_scale_inv"] = quantise(weight)
        meant[name] = values(stored[name], stored[f"{name}_scale_inv"])
    return stored, meant

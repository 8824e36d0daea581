"""Optimizers, clipping, learning-rate schedules and one training step, each written from its formula.

torch.optim is not used here on purpose: an error shared with the library would stay unseen. reference_test.py compares
the two.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from llama import Llama, token_loss_sum, valid_tokens


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What decides the weights after a step, besides the data."""

    lr: float = 8e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    optimizer: str = "AdamW"
    max_norm: float = 1.0
    steps: int = 10
    warmup_steps: int = 2
    decay_ratio: float | None = None
    decay_type: str = "linear"
    min_lr_factor: float = 0.0
    muon_lr: float = 0.02
    momentum: float = 0.95
    nesterov: bool = True
    adjust_lr_fn: str = "original"
    muon_dtype: str = "float32"  # of titan's iteration; the reference's is that of its weights

    def lr_at(self, step: int) -> float:
        """Learning rate used in `step`, which counts from 1."""
        return self.lr * lr_factor_2026(
            step - 1, self.steps, self.warmup_steps, self.decay_ratio, self.decay_type, self.min_lr_factor
        )


def lr_factor_2024(index: int, total: int, warmup: int) -> float:
    """December 2024: linear up, linear down to just above zero. `index` counts from 0."""
    if index < warmup:
        return (index + 1) / (warmup + 1)
    return 1 - (index - warmup) / max(1, total - warmup)


def lr_factor_2026(
    index: int,
    total: int,
    warmup: int,
    decay_ratio: float | None = None,
    decay_type: str = "linear",
    minimum: float = 0.0,
) -> float:
    """Warm-up, plateau, decay. `index` counts from 0; round() goes to even, as the original does."""
    warmup = min(warmup, total)
    decay = total - warmup if decay_ratio is None else min(round(total * decay_ratio), total - warmup)
    stable = total + 1 - warmup - decay
    if index < warmup:
        return (index + 1) / warmup
    if index < warmup + stable:
        return 1.0
    progress = (index + 1 - (warmup + stable)) / decay
    curve = {
        "linear": 1 - progress,
        "sqrt": 1 - math.sqrt(progress),
        "cosine": 0.5 * (1 + math.cos(math.pi * progress)),
    }[decay_type]
    return minimum + (1 - minimum) * curve


def total_norm(gradients: dict[str, Tensor]) -> Tensor:
    """L2 norm over all gradients together, summed in float64."""
    return torch.stack([g.double().square().sum() for g in gradients.values()]).sum().sqrt()


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Factor that every gradient is multiplied by; 1 when the norm is within the limit."""
    return min(1.0, max_norm / (norm + 1e-6))


class Adam:
    """Adam and AdamW. Adam adds the decay to the gradient, AdamW shrinks the weight."""

    def __init__(self, recipe: Recipe, parameters: dict[str, Tensor]):
        if recipe.optimizer not in ("Adam", "AdamW"):
            raise ValueError(f"no formula for optimizer {recipe.optimizer}")
        self.recipe = recipe
        self.steps = 0
        self.first = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in parameters.items()}

    @torch.no_grad()
    def step(self, parameters: dict[str, Tensor], gradients: dict[str, Tensor], lr: float) -> None:
        """Changes `parameters` in place; `gradients` are those after clipping."""
        self.steps += 1
        recipe = self.recipe
        for name, parameter in parameters.items():
            gradient = gradients[name]
            if recipe.optimizer == "AdamW":
                parameter *= 1 - lr * recipe.weight_decay
            else:
                gradient = gradient + recipe.weight_decay * parameter
            first = self.first[name] = recipe.beta1 * self.first[name] + (1 - recipe.beta1) * gradient
            second = self.second[name] = recipe.beta2 * self.second[name] + (1 - recipe.beta2) * gradient * gradient
            mean = first / (1 - recipe.beta1**self.steps)
            deviation = (second / (1 - recipe.beta2**self.steps)).sqrt()
            parameter -= lr * mean / (deviation + recipe.eps)


def orthogonalised(matrix: Tensor, steps: int = 5, eps: float = 1e-7) -> Tensor:
    """The Newton-Schulz iteration with the published coefficients, in the matrix's dtype."""
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / max(float(x.square().sum().sqrt()), eps)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def is_block_matrix(name: str, parameter: Tensor) -> bool:
    return name.startswith("layers.") and parameter.ndim == 2


class Muon:
    """Muon for the matrices of blocks, AdamW for everything else."""

    def __init__(self, recipe: Recipe, parameters: dict[str, Tensor]):
        self.recipe = recipe
        self.momenta = {n: torch.zeros_like(p) for n, p in parameters.items() if is_block_matrix(n, p)}
        others = {name: p for name, p in parameters.items() if name not in self.momenta}
        self.adam = Adam(dataclasses.replace(recipe, optimizer="AdamW"), others)

    @property
    def steps(self) -> int:
        return self.adam.steps

    def share_kept(self, lr: float) -> float:
        """What weight decay leaves of a matrix in a step; `lr` is AdamW's."""
        return 1 - self.recipe.muon_lr * lr / self.recipe.lr * self.recipe.weight_decay

    @torch.no_grad()
    def step(self, parameters: dict[str, Tensor], gradients: dict[str, Tensor], lr: float) -> None:
        """Changes `parameters` in place; `lr` is AdamW's, of which Muon's has the schedule."""
        recipe = self.recipe
        self.adam.step({n: p for n, p in parameters.items() if n not in self.momenta}, gradients, lr)
        kept = self.share_kept(lr)
        lr = recipe.muon_lr * lr / recipe.lr
        for name, momentum in self.momenta.items():
            parameter, gradient = parameters[name], gradients[name]
            momentum *= recipe.momentum
            momentum += (1 - recipe.momentum) * gradient
            mean = (1 - recipe.momentum) * gradient + recipe.momentum * momentum if recipe.nesterov else momentum
            rows, columns = parameter.shape
            ratio = max(1, rows / columns) ** 0.5 if recipe.adjust_lr_fn == "original" else 0.2 * max(rows, columns) ** 0.5
            parameter *= kept
            parameter -= lr * ratio * orthogonalised(mean)


def make_optimizer(recipe: Recipe, parameters: dict[str, Tensor]) -> Adam | Muon:
    return (Muon if recipe.optimizer == "Muon" else Adam)(recipe, parameters)


@dataclasses.dataclass
class Step:
    loss: float
    grad_norm: float
    logits: Tensor
    gradients: dict[str, Tensor]  # before clipping


def forward_backward(model: Llama, tokens: Tensor, labels: Tensor, autocast: torch.dtype | None = None) -> Step:
    """Gradients of (sum of token losses / valid tokens) over a whole global batch [G, T]."""
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", autocast, enabled=autocast is not None):
        logits = model(tokens)
    loss = token_loss_sum(logits, labels) / valid_tokens(labels)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    return Step(loss.item(), total_norm(gradients).item(), logits.detach(), gradients)


def train_step(model: Llama, optimizer: Adam | Muon, tokens: Tensor, labels: Tensor) -> Step:
    """One whole step: gradients, clipping, update. Returns what was computed before the update."""
    result = forward_backward(model, tokens, labels)
    recipe = optimizer.recipe
    coefficient = clip_coefficient(result.grad_norm, recipe.max_norm)
    clipped = {name: g * coefficient for name, g in result.gradients.items()}
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    optimizer.step(parameters, clipped, recipe.lr_at(optimizer.steps + 1))
    return result

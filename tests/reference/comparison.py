"""Holds step dumps of a training run against the reference and reports every error with its limit.

Four questions, kept apart so that a failure points at its cause: the forward and backward pass of one step, the update
that follows from the dumped gradients, the bookkeeping between steps, and whole training from the first weights on.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from dump import DumpError, StepDump
from llama import Llama
from shapes import Shape
from training import Muon, Recipe, clip_coefficient, forward_backward, make_optimizer, total_norm, train_step


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """Largest relative errors. `update` is that of a weight after a step, of which float32 rounding explains 1e-7.

    A matrix that Muon steps is compared by what the step added to it, without the decay: `matrix_update`. Its iteration
    carries roundings into small singular values, with a slope of 485 at zero.
    """

    logits: float = 1e-5
    gradient: float = 1e-5
    loss: float = 1e-5
    grad_norm: float = 1e-5
    update: float = 5e-7
    matrix_update: float = 1e-5


@dataclasses.dataclass(frozen=True)
class Finding:
    what: str
    error: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.error <= self.limit  # false for NaN

    def __str__(self) -> str:
        return f"{'ok ' if self.passed else 'BAD'} {self.what}: {self.error:.2e} (limit {self.limit:.0e})"


def largest_error(actual: Tensor, expected: Tensor) -> float:
    """max|a - b| / max|b|"""
    expected = expected.double()
    return ((actual.double() - expected).abs().max() / expected.abs().max()).item()


def norm_error(actual: Tensor, expected: Tensor) -> float:
    """||a - b|| / ||b||, with 0 / 0 = 0"""
    expected = expected.double()
    distance = (actual.double() - expected).norm().item()
    return 0.0 if distance == 0 else distance / max(expected.norm().item(), 1e-300)


def relative(actual: float, expected: float) -> float:
    return abs(actual - expected) / abs(expected)


def load_model(shape: Shape, weights: dict[str, Tensor], end_of_text: int | None, dtype: torch.dtype) -> Llama:
    """A model with the dumped weights; names and shapes must be exactly the expected ones."""
    model = Llama(shape, end_of_text=end_of_text).to(dtype)
    own = dict(model.named_parameters())
    if set(own) != set(weights):
        missing, extra = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
        raise DumpError(f"parameter names differ: missing {missing}, not expected {extra}")
    with torch.no_grad():
        for name, parameter in own.items():
            if parameter.shape != weights[name].shape:
                raise DumpError(f"{name} is {tuple(weights[name].shape)}, expected {tuple(parameter.shape)}")
            parameter.copy_(weights[name])
    return model


class Yardstick:
    """The reference for one run: its model's shape, its recipe and the precision to compute in."""

    def __init__(self, shape: Shape, recipe: Recipe, end_of_text: int | None, dtype: torch.dtype = torch.float64):
        self.shape = shape
        self.recipe = recipe
        self.end_of_text = end_of_text
        self.dtype = dtype

    def model(self, weights: dict[str, Tensor]) -> Llama:
        return load_model(self.shape, weights, self.end_of_text, self.dtype)

    def check_pass(self, dump: StepDump, tolerance: Tolerance, label: str) -> list[Finding]:
        """Logits, loss, gradient norm and every gradient of one step, from that step's own weights."""
        expected = forward_backward(self.model(dump.parameters), dump.tokens, dump.labels)
        findings = []
        if dump.logits is not None:
            error = largest_error(dump.logits, expected.logits)
            findings.append(Finding(f"{label} logits", error, tolerance.logits))
        findings.append(Finding(f"{label} loss", relative(dump.loss, expected.loss), tolerance.loss))
        error = relative(dump.grad_norm, expected.grad_norm)
        findings.append(Finding(f"{label} grad_norm", error, tolerance.grad_norm))
        for name, gradient in expected.gradients.items():
            error = norm_error(dump.gradients[name], gradient)
            findings.append(Finding(f"{label} grad.{name}", error, tolerance.gradient))
        return findings

    def check_updates(self, dumps: list[StepDump], tolerance: Tolerance) -> list[Finding]:
        """Clipping and optimizer alone: every update recomputed from the dumped weights and gradients."""
        optimizer = make_optimizer(self.recipe, {name: p.to(self.dtype) for name, p in dumps[0].parameters.items()})
        findings = []
        for step, dump in enumerate(dumps, start=1):
            norm = total_norm(dump.gradients).item()
            findings.append(
                Finding(f"step {step} grad_norm of its gradients", relative(dump.grad_norm, norm), tolerance.grad_norm)
            )
            coefficient = clip_coefficient(norm, self.recipe.max_norm)
            clipped = {name: g.to(self.dtype) * coefficient for name, g in dump.gradients.items()}
            weights = {name: p.to(self.dtype, copy=True) for name, p in dump.parameters.items()}
            optimizer.step(weights, clipped, self.recipe.lr_at(step))
            for name, weight in weights.items():
                after = dump.parameters_after[name].to(self.dtype)
                if isinstance(optimizer, Muon) and name in optimizer.momenta:
                    kept = dump.parameters[name].to(self.dtype) * optimizer.share_kept(self.recipe.lr_at(step))
                    error = norm_error(after - kept, weight - kept)
                    findings.append(Finding(f"step {step} update of {name}", error, tolerance.matrix_update))
                else:
                    findings.append(Finding(f"step {step} param_after.{name}", norm_error(after, weight), tolerance.update))
        return findings

    def check_continuity(self, dumps: list[StepDump]) -> list[Finding]:
        """The weights after a step are, bit for bit, those before the next one."""
        findings = []
        for step, (dump, following) in enumerate(zip(dumps, dumps[1:]), start=1):
            changed = [n for n, p in dump.parameters_after.items() if not torch.equal(p, following.parameters[n])]
            what = f"step {step + 1} starts from the weights of step {step} {', '.join(changed)}".rstrip()
            findings.append(Finding(what, float(len(changed)), 0.0))
        return findings

    def check_training(self, dumps: list[StepDump], tolerance: Tolerance) -> list[Finding]:
        """Losses of a training run of the reference's own, from the first step's weights and the dumped tokens."""
        model = self.model(dumps[0].parameters)
        optimizer = make_optimizer(self.recipe, {name: p.detach() for name, p in model.named_parameters()})
        findings = []
        for step, dump in enumerate(dumps, start=1):
            expected = train_step(model, optimizer, dump.tokens, dump.labels)
            error = relative(dump.loss, expected.loss)
            findings.append(Finding(f"step {step} loss of training from step 1", error, tolerance.loss))
        return findings

    def check_all(self, dumps: list[StepDump], tolerance: Tolerance = Tolerance()) -> list[Finding]:
        findings = self.check_pass(dumps[0], tolerance, "step 1")
        findings += self.check_pass(dumps[-1], tolerance, f"step {len(dumps)}")
        findings += self.check_updates(dumps, tolerance)
        findings += self.check_continuity(dumps)
        findings += self.check_training(dumps, tolerance)
        return findings


def summary(findings: list[Finding]) -> str:
    """One line: how many were checked and which came closest to its limit."""
    closest = max(findings, key=lambda f: f.error / f.limit if f.limit else f.error)
    return f"{len(findings)} values compared; closest to its limit: {closest}"


def failures(findings: list[Finding]) -> str:
    """The failed findings, one a line, the first 20; empty when all passed."""
    bad = [str(finding) for finding in findings if not finding.passed]
    more = [f"... and {len(bad) - 20} more"] if len(bad) > 20 else []
    return "\n".join(bad[:20] + more)

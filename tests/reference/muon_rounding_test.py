"""titan_train's Muon with its iteration in bfloat16 against torch.optim.Muon, ten steps with the gradients of the run.

Both round differently, so neither is the other's yardstick: each is held against the iteration in float64, within an
error that follows from the roundings themselves (expected_error), and its weights within the sum of those of its steps.
"""

from __future__ import annotations

import math
import pathlib
import tempfile
import unittest

import dump
import titan
import torch
from comparison import Finding, failures, forward_backward, load_model
from parity_rows import Row
from shapes import Shape
from torch import Tensor
from training import Recipe, clip_coefficient, is_block_matrix, orthogonalised

A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5
# Rounding to bfloat16 (8 bits of significand) moves a number x by at most 2⁻⁸|x|, and anything below that is equally
# likely: its root mean square is at most 2⁻⁸ / √3 of |x|.
RMS = 2**-8 / math.sqrt(3)
# The error is that of many independent roundings, so it is near its expectation; what remains is that roundings of a
# symmetric product are pairwise equal, and that torch also rounds alpha · product before it adds beta · matrix.
FACTOR = 1.5
# A step of AdamW in float32 rounds a weight twice, after decay and after the update, by at most 2⁻²⁴ of it; titan and
# torch each do. The rounding of the update itself is smaller by the rate.
ADAMW_STEP = 2 * 2 * 2**-24


def slopes(s: Tensor, sign: int) -> Tensor:
    """How a step p multiplies a small change of X in the basis of its singular vectors: its symmetric part at (i, j) by
    (p(σi) - p(σj)) / (σi - σj) (sign 1), its antisymmetric part by (p(σi) + p(σj)) / (σi + σj) (sign -1). Both quotients
    are written as polynomials, because the first is 0 / 0 where the values are equal."""
    x, y = s[:, None], sign * s[None, :]
    cubes = x**2 + x * y + y**2
    fifths = x**4 + x**3 * y + x**2 * y**2 + x * y**3 + y**4
    return A + B * cubes + C * fifths


def expected_error(matrix: Tensor) -> float:
    """Root mean square over roundings of ‖O - Ô‖: O the iteration's result, Ô that whose every product is rounded to
    bfloat16. To first order: each rounding is white noise on the numbers it rounds, and the steps that follow multiply
    it by their slopes in the basis of the singular vectors, which no step changes."""
    rows, columns = sorted(matrix.shape)
    s = torch.linalg.svdvals(matrix.double())
    s = s / s.norm()
    values = [s]
    for _ in range(STEPS):
        s = A * s + B * s**3 + C * s**5
        values.append(s)

    symmetric = antisymmetric = torch.ones(rows, rows, dtype=torch.float64)
    beside = torch.ones(rows, dtype=torch.float64)  # the parts of X outside the square

    def carried() -> float:
        """Mean square factor of white noise by the steps that follow."""
        square = (symmetric**2 + antisymmetric**2).sum() / 2
        return float((square + (columns - rows) * (beside**2).sum()) / (rows * columns))

    energy = 0.0
    for k in reversed(range(STEPS)):
        s, result = values[k], values[k + 1]
        gram = s**2
        polynomial = B * gram + C * gram**2
        pairs = B + C * (gram[:, None] + gram[None, :])
        own = (result**2).sum() + (polynomial**2).sum() * (s**2).sum() / rows
        own += (gram**2).sum() / rows**2 * (pairs**2 * (s**2)[None, :]).sum()
        energy += float(own) * carried()
        symmetric = symmetric * slopes(s, 1)
        antisymmetric = antisymmetric * slopes(s, -1)
        beside = beside * (A + B * gram + C * gram**2)
    # The matrix and its quotient by the norm are rounded, each as noise; the rounded norm scales all of it.
    scale = (symmetric.diagonal() * values[0]).square().sum()
    return RMS * math.sqrt(energy + 2 * carried() + float(scale))


def rounded(matrix: Tensor) -> Tensor:
    return matrix.bfloat16().double()


def iterated_with_roundings(matrix: Tensor) -> Tensor:
    """The iteration in float64, each of its results rounded once to bfloat16."""
    x = rounded(matrix.T if matrix.shape[0] > matrix.shape[1] else matrix)
    x = rounded(x / rounded(x.norm()))
    for _ in range(STEPS):
        gram = rounded(x @ x.T)
        polynomial = rounded(B * gram + C * gram @ gram)
        x = rounded(A * x + polynomial @ x)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class MuonInBfloat16(unittest.TestCase):
    def test_expected_error_is_that_of_rounded_products(self):
        generator = torch.Generator().manual_seed(3)
        for shape in ((64, 64), (48, 160), (160, 48), (32, 40)):
            normal = torch.randn(shape, generator=generator)
            small_values = normal @ torch.randn(2 * shape[1:], generator=generator)
            for name, matrix in (("normal", normal), ("with small singular values", small_values)):
                with self.subTest(shape=shape, matrix=name):
                    errors = [
                        (iterated_with_roundings(matrix * scale) - orthogonalised(matrix.double())).norm().item()
                        for scale in torch.linspace(1, 2, 20)  # each has roundings of its own
                    ]
                    mean = math.sqrt(sum(error**2 for error in errors) / len(errors))
                    self.assertLess(mean, 1.25 * expected_error(matrix))
                    self.assertGreater(mean, 0.5 * expected_error(matrix), "the bound would hide a defect")

    def setUp(self):
        self.row = Row("Muon in bfloat16", "llama3", recipe=Recipe(optimizer="Muon", muon_dtype="bfloat16"))

    def test_ten_steps_are_as_near_as_roundings_allow_to_torch_optim_muon_and_adamw(self):
        titan.binary()
        recipe = self.row.recipe
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            titan.train(folder, self.row.command_line())
            dumps = [dump.read(folder, step) for step in range(1, recipe.steps + 1)]
        weights = {name: p.clone().requires_grad_() for name, p in dumps[0].parameters.items()}
        matrices = [name for name, p in weights.items() if is_block_matrix(name, p)]
        others = [name for name in weights if name not in matrices]
        muon = torch.optim.Muon(
            [weights[name] for name in matrices], lr=recipe.muon_lr, weight_decay=recipe.weight_decay,
            momentum=recipe.momentum, nesterov=recipe.nesterov, adjust_lr_fn=recipe.adjust_lr_fn,
        )  # fmt: skip
        adamw = torch.optim.AdamW(
            [weights[name] for name in others], lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps,
            weight_decay=recipe.weight_decay,
        )  # fmt: skip
        shape = self.row.shape(weights["tok_embeddings.weight"].shape[0])
        momenta = {name: torch.zeros_like(weights[name], dtype=torch.float64) for name in matrices}
        apart = dict.fromkeys(matrices, 0.0)  # how far weights may be from torch's after the steps so far
        findings = []
        for step, dumped in enumerate(dumps, start=1):
            share = recipe.lr_at(step) / recipe.lr
            muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"] = recipe.muon_lr * share, recipe.lr * share
            clip = clip_coefficient(dumped.grad_norm, recipe.max_norm)
            for name, weight in weights.items():
                weight.grad = dumped.gradients[name] * clip
            muon.step()
            adamw.step()
            for name in others:
                error = (dumped.parameters_after[name] - weights[name]).abs().max().item()
                largest = weights[name].abs().max().item()
                findings.append(Finding(f"step {step} {name}", error / largest, step * ADAMW_STEP))
            for name in matrices:
                gradient, momentum = dumped.gradients[name].double() * clip, momenta[name]
                momentum.lerp_(gradient, 1 - recipe.momentum)
                mean = gradient.lerp(momentum, recipe.momentum)
                rows, columns = mean.shape
                rate = recipe.muon_lr * share * max(1, rows / columns) ** 0.5
                error = FACTOR * expected_error(mean)
                before = dumped.parameters[name].double() * (1 - recipe.muon_lr * share * recipe.weight_decay)
                update = (before - dumped.parameters_after[name].double()) / rate
                distance = (update - orthogonalised(mean)).norm().item()
                findings.append(Finding(f"step {step} update of {name}", distance, error))
                apart[name] = apart[name] * (1 - recipe.muon_lr * share * recipe.weight_decay) + 2 * rate * error
                distance = (dumped.parameters_after[name] - weights[name]).double().norm().item()
                findings.append(Finding(f"step {step} {name} against torch.optim.Muon", distance, apart[name]))
            if step < len(dumps):
                findings.append(self.loss_finding(shape, dumps[step], weights, apart, step + 1))
        bad = failures(findings)
        self.assertEqual(bad, "", bad)
        worst = max(f.error / f.limit for f in findings if "update" in f.what)
        print(f"  updates in bfloat16: at most {worst:.2f} of the limit", flush=True)

    def loss_finding(
        self, shape: Shape, dumped: dump.StepDump, weights: dict[str, Tensor], apart: dict[str, float], step: int
    ) -> Finding:
        """The loss of torch's weights on the batch: to first order |Δloss| ≤ Σ ‖gradient‖ · ‖Δweights‖."""
        limit = sum(dumped.gradients[name].norm().item() * distance for name, distance in apart.items())
        model = load_model(shape, {name: weight.detach() for name, weight in weights.items()}, None, torch.float64)
        loss = forward_backward(model, dumped.tokens, dumped.labels).loss
        return Finding(f"step {step} loss", abs(loss - dumped.loss), limit)


if __name__ == "__main__":
    unittest.main()

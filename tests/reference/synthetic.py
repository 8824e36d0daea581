"""Dumps as titan_train would write them, made by the reference in float32: material for the tests of the tests."""

from __future__ import annotations

import torch

from dump import StepDump
from llama import Llama, initialise
from shapes import Shape
from training import Recipe, make_optimizer, train_step


def batches(shape: Shape, steps: int, samples: int, length: int, end_of_text: int, seed: int = 1):
    """Random tokens with a document end now and then; a few labels do not count."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        stream = torch.randint(0, shape.vocab, (samples, length + 1), generator=generator)
        ends = torch.rand(stream.shape, generator=generator) < 0.1
        stream = torch.where(ends, torch.full_like(stream, end_of_text), stream)
        tokens, labels = stream[:, :-1].contiguous(), stream[:, 1:].clone()
        labels[torch.rand(labels.shape, generator=generator) < 0.05] = -100
        yield tokens, labels


def run(model: Llama, recipe: Recipe, data) -> list[StepDump]:
    """Trains `model` with the reference and records every step."""
    optimizer = make_optimizer(recipe, {name: p.detach() for name, p in model.named_parameters()})
    dumps = []
    for tokens, labels in data:
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        step = train_step(model, optimizer, tokens, labels)
        after = {name: p.detach().clone() for name, p in model.named_parameters()}
        gradients = {name: g.clone() for name, g in step.gradients.items()}
        dumps.append(StepDump(tokens, labels, step.loss, step.grad_norm, before, gradients, after, step.logits))
    return dumps


def fresh_model(shape: Shape, end_of_text: int, seed: int = 0) -> Llama:
    model = Llama(shape, end_of_text=end_of_text)
    initialise(model, seed)
    return model

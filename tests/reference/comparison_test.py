"""Tests of the comparison: a faithful float32 run passes, and every mistake a trainer could make is found.

The faithful run is the reference's own in float32; a mistake is planted in it, or in what it wrote.
"""

from __future__ import annotations

import copy
import pathlib
import tempfile
import unittest
from unittest import mock

import pytest
import torch

import dump
import llama
import synthetic
import training
from comparison import Tolerance, Yardstick, failures
from shapes import FLAVORS, RopeScaling
from training import Recipe

pytestmark = pytest.mark.full
END_OF_TEXT = 7
SHAPE = FLAVORS["llama3"]["debugmodel"].replace(
    dim=64, layers=2, heads=4, kv_heads=2, multiple_of=32, vocab=512, scaling=RopeScaling(8.0)
)
RECIPE = Recipe(steps=4, lr=8e-4)


def run(shape=SHAPE, recipe=RECIPE, samples=2, length=48):
    """Dumps of a float32 run of the reference with this shape and recipe."""
    data = synthetic.batches(shape, recipe.steps, samples, length, END_OF_TEXT)
    return synthetic.run(synthetic.fresh_model(shape, END_OF_TEXT), recipe, data)


def check(dumps, shape=SHAPE, recipe=RECIPE, tolerance=Tolerance()):
    return Yardstick(shape, recipe, END_OF_TEXT).check_all(dumps, tolerance)


class FaithfulRuns(unittest.TestCase):
    def test_pass_for_every_kind_of_model_and_optimizer(self):
        for changes in ({}, {"kv_heads": 4}, {"tied": True}, {"block_causal": True}, {"scaling": None}):
            for optimizer in ("AdamW", "Adam"):
                with self.subTest(changes=changes, optimizer=optimizer):
                    shape, recipe = SHAPE.replace(**changes), Recipe(steps=4, optimizer=optimizer)
                    findings = check(run(shape, recipe), shape, recipe)
                    self.assertEqual(failures(findings), "")
                    self.assertGreater(len(findings), 60)

    def test_pass_with_muon_whose_matrices_are_compared_by_their_updates(self):
        recipe = Recipe(steps=4, optimizer="Muon")
        findings = check(run(recipe=recipe), recipe=recipe)
        self.assertEqual(failures(findings), "")
        self.assertEqual(sum("update of" in finding.what for finding in findings), 4 * 2 * 7)

    def test_pass_with_ten_times_smaller_limits(self):
        tolerance = Tolerance(1e-6, 1e-6, 1e-6, 1e-6, 2e-7)
        self.assertEqual(failures(check(run(), tolerance=tolerance)), "")

    def test_survive_being_written_and_read(self):
        dumps = run()
        with tempfile.TemporaryDirectory() as folder:
            for step, written in enumerate(dumps, start=1):
                dump.write(pathlib.Path(folder), step, written)
            read = [dump.read(pathlib.Path(folder), step) for step in range(1, 5)]
        self.assertEqual(failures(check(read)), "")


class Mistakes(unittest.TestCase):
    """Each must be found by the check whose business it is."""

    def assert_found(self, dumps, fragment):
        bad = failures(check(dumps))
        self.assertIn(fragment, bad)

    def test_one_gradient_off_by_a_ten_thousandth(self):
        for name in ("layers.0.attention.wq.weight", "layers.1.ffn_norm.weight", "tok_embeddings.weight"):
            with self.subTest(name=name):
                dumps = run()
                gradient = dumps[0].gradients[name]
                gradient += 1e-4 * gradient.norm() * torch.randn_like(gradient) / gradient.numel() ** 0.5
                self.assert_found(dumps, f"step 1 grad.{name}")

    def test_one_logit_off(self):
        dumps = run()
        dumps[0].logits[1, 5, 3] += 1e-3
        self.assert_found(dumps, "step 1 logits")

    def test_losses_and_norms_off(self):
        dumps = run()
        dumps[2].loss *= 1 + 5e-5
        dumps[3].grad_norm *= 1.001
        self.assert_found(dumps, "step 3 loss of training from step 1")
        self.assert_found(dumps, "step 4 grad_norm")

    def test_nan_is_never_within_a_limit(self):
        dumps = run()
        dumps[0].gradients["norm.weight"][0] = float("nan")
        self.assert_found(dumps, "step 1 grad.norm.weight")

    def test_weights_that_change_between_steps(self):
        dumps = run()
        dumps[2].parameters = copy.deepcopy(dumps[2].parameters)
        dumps[2].parameters["norm.weight"][0] += 2**-20
        self.assert_found(dumps, "step 3 starts from the weights of step 2 norm.weight")

    def test_missing_and_unexpected_parameters(self):
        dumps = run()
        dumps[0].parameters["lm_head.weight"] = dumps[0].parameters.pop("output.weight")
        with self.assertRaisesRegex(dump.DumpError, "missing .*output.weight.* not expected .*lm_head"):
            check(dumps)


class WrongModels(unittest.TestCase):
    """A model with one thing wrong trains well and looks healthy; its gradients give it away."""

    def assert_found(self, dumps, *names):
        bad = {finding.what for finding in check(dumps) if not finding.passed}
        for name in names:
            self.assertIn(f"step 1 grad.{name}", bad)

    def test_rotary_scaling_of_another_family(self):
        for scaling in (None, RopeScaling(32.0)):
            with self.subTest(scaling=scaling):
                self.assert_found(run(SHAPE.replace(scaling=scaling)), "layers.0.attention.wq.weight")

    def test_rotary_base_or_norm_epsilon_or_mask_of_another_model(self):
        for changes in ({"theta": 1e4}, {"eps": 1e-6}, {"block_causal": True}):
            with self.subTest(changes=changes):
                self.assert_found(run(SHAPE.replace(**changes)), "layers.0.attention.wk.weight")

    def test_rotation_of_halves_instead_of_adjacent_pairs(self):
        def rotate_halves(x, table):
            pairs = torch.complex(*x.chunk(2, -1)) * table.unsqueeze(-2)
            return torch.cat([pairs.real, pairs.imag], -1)

        with mock.patch.object(llama, "rotate", rotate_halves):
            dumps = run()
        self.assert_found(dumps, "layers.0.attention.wq.weight", "layers.1.attention.wk.weight")

    def test_kv_heads_dealt_out_in_turn(self):
        library = torch.nn.functional.scaled_dot_product_attention

        def in_turn(q, k, v, **more):
            return library(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), **(more | {"enable_gqa": False}))

        with mock.patch.object(llama.functional, "scaled_dot_product_attention", in_turn):
            dumps = run()
        self.assert_found(dumps, "layers.0.attention.wv.weight")

    def test_gate_and_up_projection_exchanged(self):
        def exchanged(layer, x):
            return layer.w2(torch.nn.functional.silu(layer.w3(x)) * layer.w1(x))

        with mock.patch.object(llama.FeedForward, "forward", exchanged):
            dumps = run()
        self.assert_found(dumps, "layers.0.feed_forward.w1.weight", "layers.0.feed_forward.w3.weight")

    def test_loss_divided_by_all_tokens(self):
        with mock.patch.object(training, "valid_tokens", lambda labels: labels.numel()):
            dumps = run()
        self.assert_found(dumps, "output.weight", "tok_embeddings.weight")


class WrongUpdates(unittest.TestCase):
    def assert_found(self, dumps, fragment):
        self.assertIn(fragment, failures(check(dumps)))

    def test_settings_of_another_optimizer(self):
        for recipe in (
            Recipe(steps=4, optimizer="Adam"),
            Recipe(steps=4, weight_decay=0.0),
            Recipe(steps=4, lr=7.9e-4),
            Recipe(steps=4, eps=1e-6),
            Recipe(steps=4, warmup_steps=1),
        ):
            with self.subTest(recipe=recipe):
                self.assert_found(run(recipe=recipe), "step 1 param_after.layers.0.attention.wq.weight")

    def test_betas_show_from_the_second_step_on(self):
        for recipe in (Recipe(steps=4, beta1=0.91), Recipe(steps=4, beta2=0.949)):
            with self.subTest(recipe=recipe):
                self.assert_found(run(recipe=recipe), "step 2 param_after.layers.0.attention.wq.weight")

    def test_no_clipping(self):
        recipe = Recipe(steps=4, max_norm=0.1)
        with mock.patch.object(training, "clip_coefficient", lambda *_: 1.0):
            dumps = run(recipe=recipe)
        bad = {finding.what for finding in check(dumps, recipe=recipe) if not finding.passed}
        for name in ("step 1 param_after.layers.0.attention.wq.weight", "step 2 param_after.output.weight"):
            self.assertTrue(name in bad, name)

    def test_bias_correction_left_out(self):
        class Uncorrected(training.Adam):
            def step(self, *arguments):
                self.steps = 10_000
                super().step(*arguments)
                self.steps -= 9_999

        with mock.patch.object(training, "Adam", Uncorrected):
            dumps = run()
        self.assert_found(dumps, "step 1 param_after.norm.weight")

    def test_an_update_of_muon_that_is_off_by_a_fifty_thousandth(self):
        recipe = Recipe(steps=4, optimizer="Muon")
        dumps = run(recipe=recipe)
        name = "layers.1.feed_forward.w2.weight"
        after = dumps[2].parameters_after[name]
        after -= 2e-5 * (dumps[2].parameters[name] - after)
        self.assertIn(f"step 3 update of {name}", failures(check(dumps, recipe=recipe)))


if __name__ == "__main__":
    unittest.main()

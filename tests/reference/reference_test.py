"""Tests of the reference itself, against the library's functions, published sizes and formulas written another way."""

from __future__ import annotations

import inspect
import math
import unittest
import unittest.mock

import torch
from torch.nn import functional

import llama
import training
from shapes import FLAVORS, RopeScaling, Shape
from training import Recipe

PARAMETERS = {
    ("llama2", "271M"): 271_090_688,
    ("llama2", "1B"): 1_055_991_808,
    ("llama2", "7B"): 6_738_415_616,
    ("llama2", "13B"): 13_015_864_320,
    ("llama2", "26B"): 25_704_043_520,
    ("llama2", "34B"): 33_743_970_304,
    ("llama2", "70B"): 68_976_648_192,
    ("llama3", "debugmodel"): 6_163_712,
    ("llama3", "debugmodel_d24"): 7_975_168,
    ("llama3", "8B"): 8_030_261_248,
    ("llama3", "70B"): 70_553_706_496,
    ("llama3_1", "405B"): 405_853_388_800,
    ("llama3_2", "1B"): 1_235_814_400,
    ("llama3_2", "3B"): 3_212_749_824,
}
SMALL = Shape(dim=48, layers=2, heads=6, kv_heads=2, vocab=97, theta=1e4, multiple_of=16)


def random_tokens(shape: Shape, samples: int, length: int) -> torch.Tensor:
    return torch.randint(0, shape.vocab, (samples, length), generator=torch.Generator().manual_seed(3))


def small_model(**changes) -> llama.Llama:
    """A float64 model whose attention is far from uniform, so that positions and masks matter."""
    model = llama.Llama(SMALL.replace(**changes), end_of_text=0).double()
    llama.initialise(model, 5)
    with torch.no_grad():
        for block in model.layers.values():
            for linear in block.attention.children():
                linear.weight.mul_(10)
    return model


class Sizes(unittest.TestCase):
    def test_every_flavor_has_its_published_number_of_parameters(self):
        for (family, flavor), expected in PARAMETERS.items():
            with self.subTest(family=family, flavor=flavor):
                self.assertEqual(FLAVORS[family][flavor].parameters(), expected)

    def test_the_module_tree_holds_as_many_parameters_as_the_closed_form(self):
        for family, flavor in (("llama3", "8B"), ("llama2", "70B"), ("llama3_2", "1B")):
            with self.subTest(family=family, flavor=flavor), torch.device("meta"):
                model = llama.Llama(FLAVORS[family][flavor])
                self.assertEqual(sum(p.numel() for p in model.parameters()), PARAMETERS[family, flavor])

    def test_first_loss_is_ln_of_the_vocabulary_plus_a_half(self):
        model = llama.Llama(FLAVORS["llama3"]["debugmodel"])
        llama.initialise(model, 0)
        with torch.no_grad():
            tokens = random_tokens(model.shape, 4, 129)
            loss = llama.token_loss_sum(model(tokens[:, :-1]), tokens[:, 1:]) / (4 * 128)
        self.assertAlmostEqual(loss.item(), math.log(2048) + 0.5, delta=0.15)


class Rotary(unittest.TestCase):
    def test_a_pair_turns_by_position_times_frequency(self):
        x = torch.randn(1, 9, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        turned = llama.rotate(x, llama.rotary_table(SMALL, 9))
        for position in (0, 3, 8):
            for pair in range(4):
                angle = position * 1e4 ** (-2 * pair / 8)
                even, odd = x[0, position, 1, 2 * pair].item(), x[0, position, 1, 2 * pair + 1].item()
                expected = (
                    even * math.cos(angle) - odd * math.sin(angle),
                    even * math.sin(angle) + odd * math.cos(angle),
                )
                got = turned[0, position, 1, 2 * pair : 2 * pair + 2].tolist()
                for value, wanted in zip(got, expected):
                    self.assertAlmostEqual(value, wanted, delta=3e-6)

    def test_scaling_divides_slow_frequencies_keeps_fast_ones_and_joins_them_without_a_jump(self):
        scaling = RopeScaling(8.0)
        at = lambda wavelength: scaling.apply(2 * math.pi / wavelength) * wavelength / (2 * math.pi)
        self.assertAlmostEqual(at(100.0), 1.0, places=12)
        self.assertAlmostEqual(at(10000.0), 1 / 8, places=12)
        self.assertAlmostEqual(at(2048 * (1 + 1e-9)), 1.0, places=6)
        self.assertAlmostEqual(at(8192 * (1 - 1e-9)), 1 / 8, places=6)
        self.assertAlmostEqual(at(8192 / 2.5), 0.5 * 1 / 8 + 0.5, places=12)

    def test_families_scale_by_their_published_factor(self):
        slowest = {}
        for family, flavor in (("llama3", "8B"), ("llama3_1", "8B"), ("llama3_2", "1B")):
            slowest[family] = llama.rotary_frequencies(FLAVORS[family][flavor].replace(dim=4096, heads=32))[-1].item()
        self.assertAlmostEqual(slowest["llama3"] / slowest["llama3_1"], 8, places=4)
        self.assertAlmostEqual(slowest["llama3"] / slowest["llama3_2"], 32, places=4)


class Layers(unittest.TestCase):
    def test_rms_norm_agrees_with_the_library_in_float32_and_float64(self):
        for dtype, limit in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
            spec, fused = (llama.RMSNorm(48, 1e-5, f).to(dtype) for f in (False, True))
            with torch.no_grad():
                spec.weight.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(1))
                fused.weight.copy_(spec.weight)
            x = torch.randn(7, 48, dtype=dtype, generator=torch.Generator().manual_seed(2)) * 3
            self.assertLess((spec(x) - fused(x)).abs().max().item(), limit * 10)

    def test_rms_norm_rounds_before_it_multiplies_the_weight(self):
        norm = llama.RMSNorm(48, 1e-5, False).bfloat16()
        with torch.no_grad():
            norm.weight.fill_(1.2890625)
        x = torch.randn(5, 48, generator=torch.Generator().manual_seed(2)).bfloat16()
        wide = x.double()
        normed = (wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt()).bfloat16()
        torch.testing.assert_close(norm(x), normed * norm.weight, rtol=0, atol=0)

    def test_attention_agrees_with_softmax_written_out_and_each_kv_head_serves_neighbours(self):
        model = small_model()
        attention, table = model.layers["0"].attention, llama.rotary_table(SMALL, 11)
        x = torch.randn(2, 11, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        q = llama.rotate(attention.wq(x).view(2, 11, 6, 8), table)
        k = llama.rotate(attention.wk(x).view(2, 11, 2, 8), table)
        v = attention.wv(x).view(2, 11, 2, 8)
        heads = []
        for head in range(6):
            scores = q[:, :, head] @ k[:, :, head // 3].transpose(1, 2) / math.sqrt(8)
            later = torch.ones(11, 11, dtype=torch.bool).triu(1)
            heads.append(scores.masked_fill(later, -math.inf).softmax(-1) @ v[:, :, head // 3])
        torch.testing.assert_close(attention(x, table, None), attention.wo(torch.cat(heads, -1)), rtol=1e-9, atol=1e-12)

    def test_feed_forward_gates_w1_and_not_w3(self):
        layer = small_model().layers["1"].feed_forward
        x = torch.randn(3, 48, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
        gate = layer.w1(x)
        torch.testing.assert_close(layer(x), layer.w2(gate / (1 + torch.exp(-gate)) * layer.w3(x)))


class Documents(unittest.TestCase):
    def test_a_document_ends_with_its_end_of_text_token(self):
        tokens = torch.tensor([[5, 6, 0, 7, 0, 0, 8], [0, 1, 2, 3, 4, 5, 6]])
        number, position = llama.documents(tokens, 0)
        self.assertEqual(number.tolist(), [[0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]])
        self.assertEqual(position.tolist(), [[0, 1, 2, 0, 1, 0, 0], [0, 0, 1, 2, 3, 4, 5]])

    def test_a_document_gives_the_logits_it_gives_alone(self):
        model = small_model(block_causal=True)
        tokens = random_tokens(SMALL, 1, 17).clamp(min=1)
        tokens[0, 6] = 0
        whole = model(tokens)
        torch.testing.assert_close(whole[:, 7:], model(tokens[:, 7:]), rtol=0, atol=1e-12)
        causal = small_model()
        self.assertGreater((causal(tokens)[:, 7:] - causal(tokens[:, 7:])).abs().max().item(), 1e-3)

    def test_ignored_labels_add_neither_loss_nor_gradient(self):
        logits = torch.randn(1, 4, 9, dtype=torch.float64, requires_grad=True)
        labels = torch.tensor([[3, -100, 8, -100]])
        loss = llama.token_loss_sum(logits, labels)
        loss.backward()
        expected = -logits[0].log_softmax(-1)[[0, 2], [3, 8]].sum()
        self.assertAlmostEqual(loss.item(), expected.item(), places=12)
        self.assertEqual(logits.grad[0, [1, 3]].abs().sum().item(), 0)
        self.assertEqual(llama.valid_tokens(labels), 2)


class Optimizers(unittest.TestCase):
    def test_steps_agree_with_the_library(self):
        for name, library in (("AdamW", torch.optim.AdamW), ("Adam", torch.optim.Adam)):
            with self.subTest(optimizer=name):
                generator = torch.Generator().manual_seed(8)
                recipe = Recipe(optimizer=name, lr=0.01)
                ours = {"w": torch.randn(5, 7, dtype=torch.float64, generator=generator)}
                theirs = ours["w"].clone().requires_grad_()
                optimizer = training.Adam(recipe, ours)
                expected = library([theirs], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
                for _ in range(10):
                    gradient = torch.randn(5, 7, dtype=torch.float64, generator=generator)
                    optimizer.step(ours, {"w": gradient}, 0.01)
                    theirs.grad = gradient
                    expected.step()
                torch.testing.assert_close(ours["w"], theirs.detach(), rtol=1e-12, atol=1e-14)

    def test_muon_agrees_with_the_library_whose_iteration_is_done_in_float64(self):
        # torch iterates in bfloat16; its own function is run here without that conversion.
        from torch.optim import _muon

        source = inspect.getsource(_muon._zeropower_via_newtonschulz)
        self.assertIn("grad.bfloat16()", source)
        names = dict(vars(_muon))
        exec(source.replace("grad.bfloat16()", "grad.clone()"), names)
        for adjust in ("original", "match_rms_adamw"):
            for shape, nesterov in ((5, 7), True), ((9, 4), False), ((6, 6), True):
                with self.subTest(adjust=adjust, shape=shape), unittest.mock.patch.object(
                    _muon, "_zeropower_via_newtonschulz", names["_zeropower_via_newtonschulz"]
                ):
                    generator = torch.Generator().manual_seed(8)
                    recipe = Recipe(optimizer="Muon", nesterov=nesterov, adjust_lr_fn=adjust, muon_lr=0.03)
                    name = "layers.0.attention.wq.weight"
                    ours = {name: torch.randn(shape, dtype=torch.float64, generator=generator)}
                    theirs = ours[name].clone().requires_grad_()
                    optimizer = training.make_optimizer(recipe, ours)
                    expected = torch.optim.Muon(
                        [theirs], lr=0.03, weight_decay=0.1, momentum=0.95, nesterov=nesterov, adjust_lr_fn=adjust
                    )
                    for _ in range(10):
                        gradient = torch.randn(shape, dtype=torch.float64, generator=generator)
                        optimizer.step(ours, {name: gradient}, recipe.lr)
                        theirs.grad = gradient
                        expected.step()
                    torch.testing.assert_close(ours[name], theirs.detach(), rtol=1e-10, atol=1e-12)

    def test_clipping_agrees_with_the_library_above_and_below_the_limit(self):
        for scale in (0.01, 10.0):
            generator = torch.Generator().manual_seed(9)
            gradients = {n: torch.randn(4, 3, dtype=torch.float64, generator=generator) * scale for n in "ab"}
            parameters = [torch.zeros_like(g).requires_grad_() for g in gradients.values()]
            for parameter, gradient in zip(parameters, gradients.values()):
                parameter.grad = gradient.clone()
            norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            ours = training.total_norm(gradients).item()
            self.assertAlmostEqual(ours, norm.item(), places=12)
            coefficient = training.clip_coefficient(ours, 1.0)
            torch.testing.assert_close(gradients["b"] * coefficient, parameters[1].grad)

    def test_gradients_of_a_batch_are_the_valid_token_mean_over_its_parts(self):
        model = small_model()
        tokens, labels = random_tokens(SMALL, 4, 10), random_tokens(SMALL, 4, 10)
        labels[0, :7] = -100
        whole = training.forward_backward(model, tokens, labels)
        gradients = {name: g.clone() for name, g in whole.gradients.items()}
        valid = llama.valid_tokens(labels)
        sums = dict.fromkeys(gradients, 0)
        for part in (slice(0, 1), slice(1, 4)):
            step = training.forward_backward(model, tokens[part], labels[part])
            share = llama.valid_tokens(labels[part]) / valid
            sums = {name: sums[name] + g * share for name, g in step.gradients.items()}
        for name, gradient in gradients.items():
            torch.testing.assert_close(sums[name], gradient, rtol=1e-9, atol=1e-12)


class Schedules(unittest.TestCase):
    def assert_factors(self, expected, **arguments):
        got = [training.lr_factor_2026(i, **arguments) for i in range(len(expected))]
        for value, wanted in zip(got, expected):
            self.assertAlmostEqual(value, wanted, places=12)

    def test_december_2024(self):
        got = [training.lr_factor_2024(i, 10, 2) for i in range(10)]
        expected = [1 / 3, 2 / 3, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
        for value, wanted in zip(got, expected):
            self.assertAlmostEqual(value, wanted, places=12)

    def test_published_vectors_of_2026(self):
        eighths = [i / 8 for i in range(8, 0, -1)]
        self.assert_factors([0.5, 1, *eighths], total=10, warmup=2)
        self.assert_factors([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2], total=10, warmup=2, decay_ratio=0.5)
        self.assert_factors([0.2, 0.4, 0.6, 0.8, 1], total=5, warmup=10)
        self.assert_factors([0.2, 0.4, 0.6, 0.8, 1, 1, 0.8, 0.6, 0.4, 0.2], total=10, warmup=5, decay_ratio=0.8)
        self.assert_factors([1 / 3, 2 / 3, 1, 1, 1, 1], total=6, warmup=3, decay_ratio=0.0)

    def test_curves_and_floor(self):
        at = lambda **more: training.lr_factor_2026(5, total=8, warmup=0, **more)  # progress 5/8
        self.assertAlmostEqual(at(decay_type="sqrt"), 1 - math.sqrt(5 / 8))
        self.assertAlmostEqual(at(decay_type="cosine"), 0.5 + 0.5 * math.cos(math.pi * 5 / 8))
        self.assertAlmostEqual(at(minimum=0.1), 0.1 + 0.9 * 3 / 8)


class CrossEntropy(unittest.TestCase):
    def test_bfloat16_logits_are_widened_first(self):
        logits = torch.randn(2, 3, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
        labels = torch.randint(0, 50, (2, 3), generator=torch.Generator().manual_seed(2))
        expected = functional.cross_entropy(logits.double().view(-1, 50), labels.view(-1), reduction="sum")
        self.assertAlmostEqual(llama.token_loss_sum(logits, labels).item(), expected.item(), places=4)


if __name__ == "__main__":
    unittest.main()

"""What training computes: learning, determinism, accumulation, optimizer options, recompute, precision, validation."""

from __future__ import annotations

import math
import unittest

import torch
from program import FULL, OK, VALIDATION, BehaviourTest, Run

WIDE = ["--debug.dump_steps=1", "--training.max_norm=0"]
# fp32 sums in another order: a few units in the last place of the largest element.
ROUNDING = 1e-5


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """||a - b|| / ||b||"""
    difference = (a.double() - b.double()).norm().item()
    return difference / max(b.double().norm().item(), 1e-30)


class TrainingTest(BehaviourTest):
    def values(self, run: Run) -> list[tuple[float, float]]:
        return list(zip(run.training("loss"), run.training("grad_norm"), strict=True))

    def assert_same_weights(self, a: Run, b: Run, step: int = 1) -> None:
        first, second = a.dump(step).parameters_after, b.dump(step).parameters_after
        self.assertEqual(set(first), set(second))
        for name, value in first.items():
            self.assertTrue(value.equal(second[name]), name)


class Learning(TrainingTest):
    def test_the_loss_falls(self):
        losses = self.train("--optimizer.lr=0.01", steps=30).training("loss")
        self.assertGreater(losses[0], 7.0)
        self.assertLess(sum(losses[-5:]) / 5, losses[0] - 1.5)

    @unittest.skipUnless(FULL, "takes a minute; set TITAN_TEST_FULL=1")
    def test_the_shipped_debug_model_learns_what_its_config_promises(self):
        run = self.titan("configs/debug_model.toml", f"--job.dump_folder={self.folder}")
        self.expect(run, OK)
        losses = run.training("loss")
        self.assertAlmostEqual(losses[0], math.log(2048) + 0.5, delta=0.3)
        self.assertLess(losses[-1], losses[0] / 2.2)

    def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(self):
        first, again, other = (self.values(self.train("--debug.seed", seed, steps=4)) for seed in (5, 5, 6))
        self.assertEqual(first, again)
        self.assertNotEqual(first[0], other[0])

    def test_a_seed_that_was_drawn_is_shown_and_gives_the_run_again(self):
        drawn = self.train("--debug.seed=none")
        (line,) = [line for line in drawn.messages() if "debug.seed is not given" in line]
        again = self.train("--debug.seed", line.rsplit(" ", 1)[1])
        self.assertEqual(self.values(drawn), self.values(again))

    def test_deterministic_operations_train_to_the_same_bits(self):
        self.assertEqual(self.values(self.train()), self.values(self.train("--debug.deterministic")))

    def test_every_flavor_of_attention_and_norm_trains(self):
        for words in (
            ["--model.flavor=debugmodel_flex_attn"],
            ["--model.flavor=debugmodel_varlen_attn"],
            ["--model.norm_type=layernorm"],
            ["--model.name=llama2"],
            ["--model.name=llama3_1", "--model.override.n_kv_heads=2"],
        ):
            with self.subTest(words):
                losses = self.train(*words, "--optimizer.lr=0.01", steps=8).training("loss")
                self.assertLess(losses[-1], losses[0] - 0.3)

    def test_documents_that_cannot_see_each_other_give_another_loss(self):
        causal, block_causal = (
            self.train(f"--model.flavor={flavor}", "--training.seq_len=512", steps=1).training("loss")
            for flavor in ("debugmodel", "debugmodel_flex_attn")
        )
        self.assertNotEqual(causal, block_causal)
        self.assertAlmostEqual(causal[0], block_causal[0], delta=0.2)


class Accumulation(TrainingTest):
    def test_accumulated_microbatches_equal_one_large_batch(self):
        whole = self.train(*WIDE, "--training.local_batch_size=6", steps=1).dump()
        for local in (1, 2, 3):
            with self.subTest(local=local):
                words = (*WIDE, f"--training.local_batch_size={local}", "--training.global_batch_size=6")
                parts = self.train(*words, steps=1).dump()
                self.assertTrue(parts.tokens.equal(whole.tokens))
                self.assertTrue(parts.labels.equal(whole.labels))
                self.assertAlmostEqual(parts.loss, whole.loss, delta=ROUNDING * whole.loss)
                self.assertAlmostEqual(parts.grad_norm, whole.grad_norm, delta=ROUNDING * whole.grad_norm)
                for name, gradient in whole.gradients.items():
                    self.assertLess(distance(parts.gradients[name], gradient), ROUNDING, name)


class OptimizerOptions(TrainingTest):
    def test_stepping_in_backward_gives_the_same_weights_without_clipping(self):
        for words in ([], ["--training.global_batch_size=4"]):
            with self.subTest(words):
                wanted = ["--training.max_norm=0", "--debug.dump_steps=3", *words]
                after = self.train(*wanted, steps=3)
                inside = self.train(*wanted, "--optimizer.early_step_in_backward", steps=3)
                self.assert_same_weights(after, inside, step=3)
                self.assertEqual(self.values(after), self.values(inside))  # losses and norms
                for name, gradient in after.dump(3).gradients.items():
                    self.assertTrue(gradient.equal(inside.dump(3).gradients[name]), name)

    def test_a_group_with_rate_zero_is_frozen_exactly_and_the_rest_is_not(self):
        config = self.config_with('[[optimizer.param_groups]]\nmatch = "^tok_embeddings"\nlr_multiplier = 0\n')
        dump = self.train("--debug.dump_steps=2", config=config).dump(2)
        for name, value in dump.parameters.items():
            self.assertEqual(value.equal(dump.parameters_after[name]), name.startswith("tok_embeddings"), name)

    def test_a_rate_multiplier_multiplies_the_update(self):
        words = ["--debug.dump_steps=1", "--optimizer.weight_decay=0", "--optimizer.lr=1e-3"]
        config = self.config_with('[[optimizer.param_groups]]\nmatch = "output"\nlr_multiplier = 3\n')
        plain, tripled = self.train(*words, steps=1).dump(), self.train(*words, steps=1, config=config).dump()
        for name, before in plain.parameters.items():
            update = plain.parameters_after[name] - before
            other = tripled.parameters_after[name] - before
            self.assertLess(distance(other, update * (3 if name == "output.weight" else 1)), 1e-4, name)

    def test_the_three_implementations_agree(self):
        runs = [
            self.train("--debug.dump_steps=2", f"--optimizer.implementation={name}").dump(2)
            for name in ("for-loop", "foreach", "fused")
        ]
        for other in runs[1:]:
            for name, value in runs[0].parameters_after.items():
                self.assertLess(distance(other.parameters_after[name], value), ROUNDING, name)

    def test_adam_couples_the_decay_and_adamw_does_not(self):
        words = ["--debug.dump_steps=1", "--optimizer.weight_decay=0.5"]
        coupled, apart = (self.train(*words, f"--optimizer.name={name}", steps=1).dump() for name in ("Adam", "AdamW"))
        name = "layers.0.attention.wq.weight"
        self.assertTrue(coupled.gradients[name].equal(apart.gradients[name]))
        self.assertGreater(distance(coupled.parameters_after[name], apart.parameters_after[name]), ROUNDING)

    def test_clipping_limits_the_update_and_reports_the_norm_before_it(self):
        words = ["--debug.dump_steps=1", "--optimizer.eps=1"]
        free, clipped = (self.train(*words, f"--training.max_norm={norm}", steps=1).dump() for norm in (0, 0.01))
        self.assertEqual(free.grad_norm, clipped.grad_norm)
        self.assertGreater(free.grad_norm, 0.01)
        moved = [
            sum((dump.parameters_after[name] - value).abs().sum() for name, value in dump.parameters.items())
            for dump in (free, clipped)
        ]
        self.assertLess(moved[1], moved[0])


class Recompute(TrainingTest):
    def test_every_recompute_policy_trains_to_the_same_bits(self):
        plain = self.values(self.train(steps=3))
        policies = [["--activation_checkpoint.mode=full"]]
        for option in ("1", "2", "op", "norm", "swiglu", "ffn", "qkv", "attention", "norm,swiglu"):
            policies.append(
                ["--activation_checkpoint.mode=selective", f"--activation_checkpoint.selective_ac_option={option}"]
            )
        for policy in policies:
            with self.subTest(policy):
                self.assertEqual(self.values(self.train(*policy, steps=3)), plain)

    def test_full_recompute_is_predicted_to_keep_less(self):
        def kept(run: Run) -> float:
            (line,) = [line for line in run.messages() if line.startswith("  activations kept")]
            amount, unit = line.split()[-2:]
            return float(amount) * {"KiB": 1, "MiB": 1024}[unit]

        full = self.train("--activation_checkpoint.mode=full", steps=1)
        self.assertLess(kept(full), kept(self.train(steps=1)) / 2)


class Precision(TrainingTest):
    def test_bfloat16_compute_follows_float32(self):
        wide = self.train(steps=8).training("loss")
        narrow = self.train("--training.mixed_precision_param=bfloat16", steps=8).training("loss")
        self.assertNotEqual(wide, narrow)
        for a, b in zip(wide, narrow, strict=True):
            self.assertAlmostEqual(a, b, delta=0.05)

    def test_weights_may_live_in_bfloat16(self):
        words = ("--training.dtype=bfloat16", "--training.mixed_precision_param=bfloat16", "--debug.dump_steps=1")
        run = self.train(*words, "--optimizer.lr=0.01", steps=8)
        self.assertIn("parameters bfloat16, compute bfloat16", "\n".join(run.messages()))
        self.assertEqual({value.dtype for value in run.dump().parameters_after.values()}, {torch.bfloat16})
        self.assertLess(run.training("loss")[-1], run.training("loss")[0] - 0.3)


class Validation(TrainingTest):
    WORDS = [*VALIDATION, "--validation.seq_len=64", "--validation.steps=3"]

    def test_validation_comes_at_step_one_and_every_freq_steps(self):
        run = self.train(*self.WORDS, "--validation.freq=3", steps=7)
        validated = [line for line in run.metrics() if "validation_loss" in line]
        self.assertEqual([line["step"] for line in validated], [1, 3, 6])
        shown = [line for line in run.messages() if line.startswith("validate step: ")]
        self.assertEqual(len(shown), 3)
        for line, metric in zip(shown, validated, strict=True):
            self.assertRegex(line, r"^validate step: +\d+  loss: +[\d.]+  memory: +[\d.]+GiB\([\d.]+%\)  tps: [\d,]+$")
            self.assertIn(f"loss: {metric['validation_loss']:7.4f}", line)

    def test_validation_does_not_change_training_by_a_bit(self):
        with_it = self.train(*self.WORDS, "--validation.freq=2", steps=6)
        self.assertEqual(self.values(with_it), self.values(self.train(steps=6)))

    def test_the_validation_loss_is_that_of_the_same_model_and_falls_with_it(self):
        run = self.train(*self.WORDS, "--validation.freq=20", "--optimizer.lr=0.01", steps=40)
        losses = [line["validation_loss"] for line in run.metrics() if "validation_loss" in line]
        self.assertAlmostEqual(losses[0], run.training("loss")[0], delta=0.5)
        self.assertAlmostEqual(losses[-1], run.training("loss")[-1], delta=1.0)
        self.assertLess(losses[-1], losses[0] - 1)

    def test_a_whole_set_of_files_is_read_once_to_its_end_however_it_is_cut(self):
        corpus = self.write("held_out.txt", "The hedgehog had a red hat and a long story to tell. " * 30)
        words = ["--validation.enable", "--validation.dataset=text", f"--validation.dataset_path={corpus}"]
        losses = set()
        for batch in (1, 3):
            run = self.train(*words, "--validation.seq_len=32", f"--validation.local_batch_size={batch}", steps=1)
            losses.add(round(run.metrics()[-1]["validation_loss"], 5))
        self.assertEqual(len(losses), 1, losses)


class Dump(TrainingTest):
    def test_a_dump_holds_batch_loss_and_every_parameter_before_and_after(self):
        run = self.train("--debug.dump_steps=1,3", "--debug.dump_logits", steps=3)
        self.assertFalse((run.folder / "debug" / "step-2").exists())
        for step in (1, 3):
            dump = run.dump(step)
            self.assertEqual(tuple(dump.tokens.shape), (2, 64))
            self.assertTrue(dump.tokens[:, 1:].equal(dump.labels[:, :-1]))
            self.assertEqual(tuple(dump.logits.shape), (2, 64, 2048))
            loss = torch.nn.functional.cross_entropy(dump.logits.float().flatten(0, 1), dump.labels.flatten())
            self.assertAlmostEqual(loss.item(), dump.loss, delta=1e-5 * dump.loss)
            self.assertEqual(dump.loss, run.training("loss")[step - 1])
            norm = torch.stack([gradient.double().norm() for gradient in dump.gradients.values()]).norm().item()
            self.assertAlmostEqual(norm, dump.grad_norm, delta=1e-6 * norm)
            self.assertEqual(sum(value.numel() for value in dump.parameters.values()), 393_536)

    def test_dumping_does_not_change_training_by_a_bit(self):
        dumped = self.train("--debug.dump_steps=1,2", "--debug.dump_logits", steps=3)
        self.assertEqual(self.values(dumped), self.values(self.train(steps=3)))


if __name__ == "__main__":
    unittest.main()

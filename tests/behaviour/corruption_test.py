"""Weights, moments and results that are silently wrong are found, named and never saved; the code is 77 (72 where a
number is not finite).

The faults are those of `dying_titan_train` (dying_main.cpp): a flipped bit, a NaN in one forward.
"""

from __future__ import annotations

import json
import pathlib
import random
import re
import unittest

from program import BAD_CONFIG, FULL, NON_FINITE, OK, STORAGE
from rank_processes import Process, RanksTest

CORRUPTION = 77
FLIPS = 50 if FULL else 5
REPLICATED = ["--parallelism.data_parallel_shard_degree=1", "--parallelism.data_parallel_replicate_degree=3"]
HYBRID = ["--parallelism.data_parallel_shard_degree=2", "--parallelism.data_parallel_replicate_degree=2"]
SHARDED = ["--parallelism.data_parallel_shard_degree=-1"]
TENSOR = ["--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_shard_degree=1"]
PIPELINE = ["--parallelism.pipeline_parallel_degree=2", "--training.local_batch_size=4"]
MOMENTS = ["exp_avg", "exp_avg_sq"]


class CorruptionTest(RanksTest):
    def setUp(self):
        super().setUp()
        self.use_dying_program()

    def run_with(self, ranks: int, *words, steps: int = 12, code: int = CORRUPTION, **faults) -> str:
        words = (f"--training.steps={steps}", f"--job.dump_folder={self.folder}/run-{len(self.processes)}", *words)
        self.run_folder = self.folder / f"run-{len(self.processes)}"
        run: Process = self.launch_training(ranks, *words, **faults)
        self.assertEqual(run.end(), code, run.text())
        self.expect_friendly(run.text())
        self.expect_nothing_left()
        return run.text()

    def disagreement(self) -> dict:
        return json.loads((self.run_folder / "disagreement.json").read_text())

    def saved_steps(self) -> list[int]:
        return sorted(int(path.name[5:]) for path in (self.run_folder / "checkpoint").glob("step-*"))


class FlippedBits(CorruptionTest):
    def test_any_flipped_bit_of_a_replica_is_found_at_the_next_check(self):
        pick = random.Random(11)
        for number in range(FLIPS):
            rank, period = pick.randrange(3), pick.choice([1, 2, 3])
            parameter = f"layers.{pick.randrange(2)}." + pick.choice(
                ["attention.wq.weight", "attention.wo.weight", "feed_forward.w2.weight", "ffn_norm.weight"]
            )
            state = pick.choice(["weight", "0", "1"])
            when = pick.choice(["after", "before"])
            # After the step of a check it is found there; before the optimizer of the step after a check, by the rank.
            step = 2 * period + (1 if when == "before" else 0)
            bit = f"{pick.randrange(10**6)} {pick.randrange(32)}"
            with self.subTest(number, rank=rank, period=period, parameter=parameter, state=state, when=when, bit=bit):
                text = self.run_with(
                    3,
                    *REPLICATED,
                    f"--debug.replica_check_steps={period}",
                    FLIP_BIT=f"{rank} {step} {when} {parameter} {state} {bit}",
                )
                words = parameter if state == "weight" else f"{MOMENTS[int(state)]} of {parameter}"
                self.assertIn(words, self.disagreement()["what"])
                self.assertIn(words, text.splitlines()[-1] + text)
                self.assertEqual(self.disagreement()["ranks"], [rank])
                self.assertEqual(self.disagreement()["step"], step)

    def test_a_bit_that_was_flipped_before_is_found_at_the_next_check_too(self):
        for state, bit in (("weight", 12), ("0", 20), ("1", 21)):
            with self.subTest(state):
                self.run_with(
                    3, *REPLICATED, "--debug.replica_check_steps=4", FLIP_BIT=f"1 6 after layers.1.attention.wv.weight {state} 5 {bit}"
                )
                self.assertEqual(self.disagreement()["ranks"], [1])
                self.assertEqual((self.disagreement()["step"], self.disagreement()["last_agreeing_step"]), (8, 4))

    def test_of_two_replicas_both_are_named(self):
        self.run_with(4, *HYBRID, "--debug.replica_check_steps=1", FLIP_BIT="2 3 after layers.0.attention.wq.weight weight 7 3")
        self.assertEqual(self.disagreement()["ranks"], [0, 2])

    def test_tensor_parallel_ranks_compare_what_they_hold_whole(self):
        self.run_with(2, *TENSOR, "--debug.replica_check_steps=2", FLIP_BIT="1 2 after layers.0.attention_norm.weight weight 7 3")
        self.assertEqual(self.disagreement()["ranks"], [0, 1])
        self.assertIn("layers.0.attention_norm.weight", self.disagreement()["what"])

    def test_a_rank_without_replicas_names_itself(self):
        for ranks, words in ((2, SHARDED), (2, PIPELINE), (2, TENSOR)):
            with self.subTest(words=words):
                text = self.run_with(
                    ranks, *words, "--debug.replica_check_steps=2", FLIP_BIT="1 3 before layers.1.feed_forward.w1.weight 1 77 9"
                )
                self.assertEqual(self.disagreement()["ranks"], [1])
                self.assertRegex(text, r"rank 1 \(\S+\) finds other bits in its memory than it wrote there: exp_avg_sq of layers\.1")

    def test_copies_that_are_computed_with_are_those_of_the_masters(self):
        for words in (SHARDED, ["--parallelism.data_parallel_shard_degree=1", "--parallelism.data_parallel_replicate_degree=2"]):
            bf16 = [*words, "--training.mixed_precision_param=bfloat16", "--debug.replica_check_steps=1"]
            if words != SHARDED:
                bf16.append("--training.enable_cpu_offload")
            with self.subTest(words=bf16):
                self.run_with(2, *bf16, FLIP_BIT="1 3 before layers.1.feed_forward.w1.weight copy 77 9")
                self.assertIn("compute copy of layers.1.feed_forward.w1.weight", self.disagreement()["what"])
                self.assertEqual(self.disagreement()["ranks"], [1])

    def test_nothing_is_saved_after_the_last_agreeing_step(self):
        text = self.run_with(
            3,
            *REPLICATED,
            "--checkpoint.enable",
            "--checkpoint.interval=3",
            "--debug.replica_check_steps=100",
            FLIP_BIT="0 5 after layers.1.attention.wk.weight weight 5 22",
        )
        self.assertEqual(self.saved_steps(), [3], "step 6 is checked before it is saved")
        self.assertEqual((self.disagreement()["step"], self.disagreement()["last_agreeing_step"]), (6, 3))
        self.assertIn("last agreed after step 3", text)
        # Without the fault the same command resumes from there.
        words = ["--checkpoint.enable", "--checkpoint.interval=3", *REPLICATED, "--training.steps=6"]
        run = self.launch_training(3, *words, f"--job.dump_folder={self.run_folder}")
        self.assertEqual(run.end(), OK, run.text())
        self.assertIn("LOAD: step 3 ", run.text())

    def test_a_restart_goes_back_behind_a_checkpoint_that_is_not_trusted(self):
        # Step 6 is saved, and its check ends in step 7: only step 3 is known to agree.
        for supervised in (True, False):
            with self.subTest(supervised=supervised):
                words = ["--checkpoint.enable", "--checkpoint.interval=3", "--training.steps=9"]
                words += ["--parallelism.data_parallel_shard_degree=2", f"--job.dump_folder={self.folder}/again-{supervised}"]
                self.run_folder = self.folder / f"again-{supervised}"
                fault = {"FLIP_BIT": "1 7 before layers.1.attention.wq.weight weight 5 3"}
                fault["FAULT_ONCE"] = str(self.folder / f"happened-{supervised}")
                if supervised:
                    run = self.start("launch", "-n", 2, "--restarts", 3, *self.training(*words), **fault)
                else:
                    first = self.launch_training(2, *words, **fault)
                    self.assertEqual(first.end(), CORRUPTION, first.text())
                    self.assertEqual(self.disagreement()["last_agreeing_step"], 3)
                    self.assertEqual(self.saved_steps(), [3, 6])
                    run = self.launch_training(2, *words, **fault)
                self.assertEqual(run.end(), OK, run.text())
                self.assertRegex(run.text(), r"LOAD: step 3 from .*; step 6 is passed over: saved after step 3, the last on which")
                self.assertNotIn("LOAD: step 6 ", run.text())
                if supervised:
                    self.assertIn("restart 1 of 3 from step 3: ", run.text())
                self.assertIn("later checkpoints (6) were renamed to replaced-6", run.text())
                self.assertEqual(self.saved_steps(), [3, 6, 9])
                self.assertFalse((self.run_folder / "disagreement.json").exists())
                self.assertTrue((self.run_folder / "disagreement-1.json").exists())

    def test_other_commands_take_no_checkpoint_that_is_not_trusted(self):
        words = ["--checkpoint.enable", "--checkpoint.interval=3", "--checkpoint.keep_latest_k=0", "--checkpoint.last_save_model_only=false"]
        self.run_with(1, *words, steps=9, code=OK)
        record = {"step": 6, "last_agreeing_step": 3, "ranks": [], "hosts": [], "what": "a test", "checkpoint_folder": "checkpoint", "time": 1.0}
        file = self.run_folder / "disagreement.json"
        file.write_text(json.dumps(record))
        newest = self.run_folder / "checkpoint" / "step-9"
        for given in (self.run_folder, self.run_folder / "checkpoint", self.run_folder / "checkpoint/."):
            run = self.titan("convert", "to-hf", given, self.fresh_folder() / "hf")
            self.expect(run, 0)
            self.assertIn(f"warning: {file} trusts no checkpoint after step 3: step-3 is taken, not the newest; name it ({newest})", run.errors)
        run = self.titan("generate", self.run_folder, "--prompt=a", "--max-new-tokens=1")
        self.expect(run, 0)
        self.assertIn("step-3 is taken", run.errors)
        run = self.titan("convert", "to-hf", newest, self.fresh_folder() / "hf")
        self.expect(run, 0)
        self.assertNotIn("warning", run.errors)
        file.write_text(json.dumps(record | {"last_agreeing_step": 2}))
        run = self.titan("convert", "to-hf", self.run_folder, self.fresh_folder() / "hf")
        self.expect(run, STORAGE)
        self.assertIn("and there is none up to it; name it", run.errors)

    def test_a_bit_that_makes_the_loss_infinite_is_a_flipped_bit(self):
        # 0.x with the highest bit of its exponent set is above 10^38.
        self.run_with(
            3, *REPLICATED, "--debug.replica_check_steps=50", FLIP_BIT="2 4 before layers.1.attention_norm.weight weight 5 30"
        )
        self.assertEqual(self.disagreement()["ranks"], [2])

    def test_the_start_says_what_is_compared(self):
        text = self.run_with(2, *SHARDED, steps=1, code=OK)
        self.assertIn("no parameter of this rank has a replica in this layout", text)
        text = self.run_with(2, *TENSOR, steps=1, code=OK)
        self.assertRegex(text, r"checked every 100 steps and before each save: 5 of \d+ parameters of this rank have replicas")
        text = self.run_with(2, "--debug.replica_check_steps=0", steps=1, code=OK)
        self.assertNotIn("are checked every", text)


class NothingWrong(CorruptionTest):
    """No check finds anything in layouts without a fault, and no check changes a loss."""

    LAYOUTS = (
        (3, REPLICATED),
        (4, HYBRID),
        (4, ["--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_shard_degree=1", "--parallelism.data_parallel_replicate_degree=2"]),
        (2, ["--parallelism.context_parallel_degree=2", "--training.mixed_precision_param=bfloat16"]),
        (2, [*PIPELINE, "--model.flavor=debugmodel", "--training.dtype=bfloat16"]),
        (2, [*SHARDED, "--training.enable_cpu_offload", "--training.mixed_precision_param=bfloat16"]),
        (2, [*SHARDED, "--optimizer.name=Muon"]),
        (2, [*SHARDED, "--optimizer.early_step_in_backward"]),
    )

    def losses(self, text: str) -> list[str]:
        return re.findall(r" step: +\d+ .*?loss: +(\S+)", text)

    def test_checks_and_replays_are_silent(self):
        for ranks, words in self.LAYOUTS:
            with self.subTest(words=words):
                plain = self.losses(self.run_with(ranks, *words, "--debug.replica_check_steps=0", steps=4, code=OK))
                checked = self.run_with(ranks, *words, "--debug.replica_check_steps=1", "--debug.replay_steps=2", steps=4, code=OK)
                self.assertEqual(self.losses(checked), plain)
                self.assertEqual(len(plain), 4)
                self.assertFalse((self.run_folder / "disagreement.json").exists())


class Replays(CorruptionTest):
    def test_a_microbatch_that_gives_other_bits_names_the_rank(self):
        text = self.run_with(2, *SHARDED, "--debug.replay_steps=3", FLIP_GRADIENT="1 3 layers.1.attention.wo.weight")
        self.assertRegex(text, r"step 3: one microbatch computed twice has other bits in the gradient of layers\.1\.attention\.wo\.weight( and \d+ more)? on rank 1 \(\S+\)")

    def test_a_restart_goes_back_to_the_last_replay_that_agreed(self):
        # Replays before steps 3 and 6: what step 2 saved was right, what step 4 saved is not known to be.
        words = ["--checkpoint.enable", "--checkpoint.interval=2", "--debug.replay_steps=3", *SHARDED]
        text = self.run_with(2, *words, FLIP_GRADIENT="1 6 layers.1.attention.wo.weight")
        self.assertIn("Replays last agreed after step 2: ", text)
        found = self.disagreement()
        self.assertEqual((found["step"], found["last_agreeing_step"], found["ranks"]), (6, 2, [1]))
        self.assertEqual(self.saved_steps(), [2, 4])
        run = self.launch_training(2, *words, "--training.steps=6", f"--job.dump_folder={self.run_folder}")
        self.assertEqual(run.end(), OK, run.text())
        self.assertRegex(run.text(), r"LOAD: step 2 from .*; step 4 is passed over")
        self.assertEqual(self.saved_steps(), [2, 4, 6])

    def test_neighbours_compute_the_same_microbatch(self):
        words = [*REPLICATED, "--debug.replay_steps=2", "--debug.replay_on_neighbours"]
        self.run_with(3, *words, steps=4, code=OK)
        text = self.run_with(3, *words, NAN_IN="1 2 layers.0.attention.wq.weight")
        self.assertRegex(text, r"step 2: one microbatch has other bits on other ranks: ranks ")
        found = self.disagreement()
        self.assertEqual((found["step"], found["last_agreeing_step"], found["ranks"]), (2, 0, [1]))


class NonFiniteNumbers(CorruptionTest):
    def test_the_unit_rank_and_batch_are_named(self):
        for ranks, words, rank in ((2, SHARDED, 1), (3, REPLICATED, 0), (2, PIPELINE, 1)):
            with self.subTest(words=words):
                text = self.run_with(
                    ranks, *words, "--checkpoint.enable", "--checkpoint.interval=2", code=NON_FINITE, NAN_IN=f"{rank} 5 layers.1.attention.wq.weight"
                )
                self.assertRegex(text, rf"it appears first in the forward of layers\.1 on rank {rank} \(\S+\), with sequences? \d+")
                self.assertRegex(text, r"the batch of the step has sequences \d+ to \d+, from token \d+ of document \d+ \(\S+:\d+\) to token")
                self.assertEqual(self.saved_steps(), [2, 4])

    def test_what_does_not_happen_again_is_called_a_failure_of_the_machine(self):
        text = self.run_with(2, *SHARDED, code=NON_FINITE, NAN_IN="1 5 layers.1.attention.wq.weight 1")
        self.assertRegex(text, r"computed once more is finite on every rank, .*: the loss was not finite on rank 1 ")

    def test_a_parameter_that_is_not_finite_is_not_saved(self):
        words = ["--checkpoint.enable", "--checkpoint.interval=4", *SHARDED]
        # A moment of an embedding that no token of the batch reads: no loss shows it.
        text = self.run_with(2, *words, code=NON_FINITE, NAN_MOMENT="1 4 tok_embeddings.weight 1")
        self.assertRegex(text, r"step 4 is not saved: not every number is finite in exp_avg_sq of tok_embeddings\.weight on rank 1 ")
        self.assertEqual(self.saved_steps(), [])


class Refusals(RanksTest):
    def refusal(self, *words, ranks: int = 1) -> str:
        run = self.launch_training(ranks, *words) if ranks > 1 else self.start(*self.training(*words))
        self.assertEqual(run.end(), BAD_CONFIG, run.text())
        self.expect_friendly(run.text())
        return run.text()

    def test_periods_are_no_negative_numbers(self):
        for option in ("replica_check_steps", "replay_steps"):
            self.assertIn(f"debug.{option} = -1", self.refusal(f"--debug.{option}=-1"))
        self.assertIn("above 1, or 0", self.refusal("--metrics.straggler_ratio=0.5"))

    def test_replays_between_neighbours_need_neighbours(self):
        text = self.refusal(*TENSOR, "--debug.replay_steps=5", "--debug.replay_on_neighbours", ranks=2)
        self.assertIn("no two ranks read different samples in this layout", text)

    def test_replays_between_neighbours_need_tokens_alone(self):
        text = self.refusal("--model.flavor=debugmodel_flex_attn", "--debug.replay_steps=5", "--debug.replay_on_neighbours", ranks=2)
        self.assertIn("also needs the ends of documents", text)


if __name__ == "__main__":
    unittest.main()

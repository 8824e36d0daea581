"""Memory: the table and its measured side, the estimate, and a limit that is hit and what is said then is true."""

from __future__ import annotations

import json
import re
import resource
import unittest

from program import OUT_OF_MEMORY, ROOT, BehaviourTest
from rank_processes import PEER_FAILURE, RanksTest, free_port

MIB = 1 << 20
BIG = ("--training.local_batch_size=64", "--training.seq_len=512", "--model.override.dim=128")
PLAIN = "--activation_checkpoint.mode=none"
SPARE = 530 * MIB  # less than BIG takes, and enough for what is named then


def limits_that_leave(test: BehaviourTest, spare: int) -> dict[int, int]:
    """Limits with which the program says that `spare` bytes are left to it: libraries take more in a build for GPUs."""
    most = 1024 * MIB
    run = test.train("--memory_estimation.enable", limits={resource.RLIMIT_DATA: most})
    left = float(re.search(r"([\d.]+) MiB of it for this rank", run.output)[1])
    return {resource.RLIMIT_DATA: most - round(left * MIB) + spare}


class Table(BehaviourTest):
    def test_the_first_step_shows_plan_and_measurement_side_by_side(self):
        folder = self.fresh_folder()
        run = self.train(folder=folder, steps=2)
        self.assertRegex(run.output, r"(?m)planned +actual$")
        for purpose in ("parameters", "gradients", "optimizer state"):
            planned, actual = re.search(rf"  {purpose} +(\S+ \S+) +(\S+ \S+)$", run.output, re.M).groups()
            self.assertEqual(planned, actual, purpose)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines if "memory_by_purpose" in line], [1])
        rows = lines[0]["memory_by_purpose"]
        self.assertEqual(rows["optimizer state"]["planned_bytes"], rows["optimizer state"]["actual_bytes"])
        self.assertEqual(sum(row["actual_bytes"] for row in rows.values()), lines[0]["memory_peak_bytes"])
        self.assertGreater(rows["activations and the rest"]["actual_bytes"], 0)

    def test_bf16_states_are_planned_and_taken(self):
        fp32 = self.rows()
        bf16 = self.rows("--training.dtype=bfloat16", "--optimizer.state_dtype=bfloat16")
        for purpose in ("parameters", "optimizer state"):
            for side in ("planned_bytes", "actual_bytes"):
                self.assertEqual(2 * bf16[purpose][side], fp32[purpose][side], purpose)

    def rows(self, *words: str) -> dict:
        folder = self.fresh_folder()
        self.train(*words, folder=folder, steps=1)
        return json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])["memory_by_purpose"]


class Limit(BehaviourTest):
    def test_every_setting_that_is_named_does_fit(self):
        limits = limits_that_leave(self, SPARE)
        run = self.refused(
            OUT_OF_MEMORY,
            ["out of memory", "in forward of layers.", "step 1", "the plan takes", "it would fit with: "],
            *BIG,
            PLAIN,
            limits=limits,
        )
        self.assertRegex(run.output, r"memory by purpose, when it ran out in forward of layers\.\d+, step 1:")
        self.assertRegex(run.output, r"(?m)^.*  optimizer state +\S+ \S+ +\S+ \S+$")
        self.assertEqual(len(run.errors.strip().splitlines()), 1, run.errors)
        settings = run.errors.strip().split("it would fit with: ")[1].split(" | ")
        self.assertEqual(len(settings), 3, run.errors)
        for setting in settings:
            words = re.sub(r" \([^()]*\)$", "", setting)
            self.assertNotIn("processes", words, "this one would need another machine")
            options = [f"--{word.replace(' = ', '=').replace(chr(34), '')}" for word in words.split(" with ")]
            with self.subTest(setting=setting):
                self.train(*BIG, PLAIN, *options, steps=1, limits=limits)

    def test_a_plan_beyond_the_limit_is_warned_about_before_anything_is_made(self):
        run = self.refused(OUT_OF_MEMORY, ["out of memory"], *BIG, PLAIN, limits=limits_that_leave(self, SPARE))
        warnings = [line for line in run.messages("WARNING") if "the plan takes" in line]
        self.assertEqual(len(warnings), 1, run.output)
        self.assertIn("it would fit with training.local_batch_size", warnings[0])


class LimitOfOneRank(RanksTest):
    def expect_end_of_all(self, limited: int, limits: dict[int, int]) -> str:
        """What the ranks say; rank 0 says what it hears of another's failure."""
        port = free_port()
        words = (*BIG, PLAIN, "--parallelism.data_parallel_shard_degree=2")
        ranks = [
            self.train_by_hand(rank, 2, port, *words, limits=limits if rank == limited else None) for rank in range(2)
        ]
        codes = [OUT_OF_MEMORY if rank == limited else PEER_FAILURE for rank in range(2)]
        self.assertEqual([rank.end() for rank in ranks], codes, ranks[limited].text())
        said = "".join(rank.text() for rank in ranks)
        self.expect_friendly(said)
        self.expect_nothing_left()
        return said

    def test_all_end_with_it_and_its_report_and_nothing_is_left(self):
        limits = limits_that_leave(self, SPARE)
        for limited in (0, 1):
            with self.subTest(limited=limited):
                said = self.expect_end_of_all(limited, limits)
                self.assertRegex(said, r"out of memory.* in (forward|backward) of \S+, step 1; the plan takes")
                self.assertIn("it would fit with: ", said)

    def test_that_leaves_not_enough_for_its_threads_ends_all(self):
        for spare in (54, 62, 70):
            for limited in (0, 1):
                with self.subTest(limited=limited, spare=spare):
                    said = self.expect_end_of_all(limited, limits_that_leave(self, spare * MIB))
                    self.assertIn("out of memory", said)


class Estimate(BehaviourTest):
    def test_it_is_the_table_of_the_plan_with_units_and_nothing_is_trained(self):
        folder = self.fresh_folder()
        run = self.train("--memory_estimation.enable", folder=folder)
        self.assertRegex(run.output, r"memory of rank 0 of 1, .* predicted by purpose:")
        self.assertRegex(run.output, r"layers\.0")
        self.assertRegex(run.output, r"Peak of tensors: \S+ \S+; this machine's .* has \S+ \S+, \S+ \S+ of it for this rank")
        self.assertNotIn("step: ", run.output)
        self.assertFalse((folder / "metrics.jsonl").exists())

    def test_the_guides_example_needs_no_launcher_tokenizer_or_corpus(self):
        run = self.titan(ROOT / "configs/examples/llama3_8b_estimate.toml", cwd=self.folder)
        self.expect(run, 0)
        self.assertRegex(run.output, r"memory of rank 0 of 8, llama3 8B, predicted by purpose:")
        self.assertRegex(run.output, r"8,030,261,248 parameters; 1\.\d+e\+16 model FLOPs per step")
        self.assertNotIn("does not exist", run.output)


if __name__ == "__main__":
    unittest.main()

"""Options of several ranks, each through the config: it changes what it is for, and the losses no more than rounding."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import time
import unittest

from program import OK
from rank_processes import END_LIMIT_SECONDS, HANG, RanksTest

SHARDED = "--parallelism.data_parallel_shard_degree=2"
TENSOR = "--parallelism.tensor_parallel_degree=2"
IN_BF16 = "--training.mixed_precision_param=bfloat16"
KINDS = "all-gather|reduce-scatter|all-reduce"
SENT = re.compile(rf"  (\w+) +({KINDS}) +2 ranks +(\d+) calls? per step, \S+ \w+ of tensors; in a ring each rank sends ([\d.]+ \w+)")


@dataclasses.dataclass
class Trained:
    losses: list[float]
    sent: dict[tuple[str, str], tuple[int, str]]  # by group and collective: calls and bytes of a step
    text: str

    def calls(self, group: str, kind: str) -> int:
        return self.sent.get((group, kind), (0, ""))[0]


class RankOptions(RanksTest):
    def trained(self, *words: str) -> Trained:
        folder = self.fresh_folder()
        more = ("--training.mixed_precision_param=float32", "--training.steps=3", f"--job.dump_folder={folder}")
        run = self.launch_training(2, *more, *words)
        self.assertEqual(run.end(), OK, run.text())
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        sent = {(group, kind): (int(calls), size) for group, kind, calls, size in SENT.findall(run.text())}
        return Trained([line["loss"] for line in lines], sent, run.text())

    def expect_same_losses(self, one: Trained, other: Trained):
        self.assertEqual(len(one.losses), 3)
        for mine, theirs in zip(one.losses, other.losses, strict=True):
            self.assertAlmostEqual(mine, theirs, delta=1e-5 * theirs)

    def test_resharding_after_forward_decides_how_often_weights_are_gathered(self):
        deep = (SHARDED, "--model.override.n_layers=4")  # more blocks than there are slots for them
        plain, always, never = (
            self.trained(*deep, f"--parallelism.fsdp_reshard_after_forward={when}")
            for when in ("default", "always", "never")
        )
        gathers = [run.calls("fsdp_gather", "all-gather") for run in (always, plain, never)]
        self.assertGreater(gathers[0], gathers[2])
        self.assertEqual(gathers, sorted(gathers, reverse=True))
        for run in (always, never):
            self.expect_same_losses(run, plain)

    def test_cpu_offload_is_applied_and_says_so(self):
        plain, offloaded = self.trained(SHARDED), self.trained(SHARDED, "--training.enable_cpu_offload")
        self.assertIn("Applied CPU Offloading to the model", offloaded.text)
        self.assertNotIn("Applied CPU Offloading", plain.text)
        self.expect_same_losses(offloaded, plain)

    def test_units_kept_in_fp32_travel_in_fp32_and_compute_in_it(self):
        wide, narrow = self.trained(SHARDED), self.trained(SHARDED, IN_BF16)
        kept = self.trained(SHARDED, IN_BF16, "--training.keep_fp32=head")
        sizes = [run.sent["fsdp_gather", "all-gather"][1] for run in (wide, narrow, kept)]
        self.assertEqual(len(set(sizes)), 3, sizes)
        self.assertNotEqual(kept.losses, narrow.losses)
        self.assertNotEqual(kept.losses, wide.losses)

    def test_the_loss_may_be_computed_on_gathered_logits(self):
        sharded, gathered = self.trained(TENSOR), self.trained(TENSOR, "--parallelism.disable_loss_parallel")
        self.assertLess(gathered.calls("tp", "all-reduce"), sharded.calls("tp", "all-reduce"))
        self.expect_same_losses(gathered, sharded)

    def test_asynchronous_tensor_parallel_sends_the_stream_through_shared_memory(self):
        plain, asynchronous = self.trained(TENSOR), self.trained(TENSOR, "--parallelism.enable_async_tensor_parallel")
        self.assertIn("Applied Tensor Parallelism to the model", plain.text)
        self.assertIn("Applied Async Tensor Parallelism to the model", asynchronous.text)
        self.assertGreater(plain.calls("tp", "all-gather"), 0)
        self.assertEqual(asynchronous.calls("tp", "all-gather") + asynchronous.calls("tp", "reduce-scatter"), 0)
        self.expect_same_losses(asynchronous, plain)

    def test_float8_that_converts_no_layer_is_warned_of_once_and_claimed_by_no_line(self):
        float8 = ("--model.converters=quantize.linear.float8", "--quantize.linear.float8.enable_fsdp_float8_all_gather",
                  "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp", "--quantize.linear.float8.emulate")  # fmt: skip
        for filters in ("attention,feed_forward", "auto_filter_small_kn"):
            with self.subTest(filters):
                words = (SHARDED, *float8, f"--quantize.linear.float8.filter_fqns={filters}")
                left = self.trained(*words)
                warnings = re.findall(r"WARNING - (float8 is on .*)", left.text)
                self.assertEqual(len(warnings), 1, left.text)
                self.assertIn("none of the 15 linear layers is converted", warnings[0])
                self.assertIn("leave layers over in quantize.linear.float8.filter_fqns", warnings[0])
                self.assertNotRegex(left.text, "Swapped to|training active")
                self.expect_same_losses(left, self.trained(SHARDED))
        kept = self.trained(SHARDED, *float8, "--quantize.linear.float8.filter_fqns=attention")
        self.assertRegex(kept.text, "Swapped to Float8Linear layers")
        self.assertNotIn("float8 is on", kept.text)

    def test_a_rank_that_hangs_ends_all_after_the_limit_of_a_collective(self):
        self.expect_end_of_a_hanging_run(r"\(rank 1 sent nothing for 3 s\)")

    def test_a_rank_that_hangs_ends_all_after_the_limit_of_an_asynchronous_exchange(self):
        options = [TENSOR, "--parallelism.enable_async_tensor_parallel"]
        # In the exchange or in the next collective, wherever the others are.
        self.expect_end_of_a_hanging_run(r"rank 1 (of communicator tp/0 )?sent nothing for 3 s", *options)

    def expect_end_of_a_hanging_run(self, reason, *options):
        limit = 3
        run = self.launch_training(2, f"--comm.train_timeout_seconds={limit}", *options)
        hung = self.process_of(run.wait_for("step:  3 "), 1)
        os.kill(hung, signal.SIGSTOP)
        begin = time.monotonic()
        self.assertEqual(run.end(), HANG, run.text())
        self.assertLess(time.monotonic() - begin, limit + END_LIMIT_SECONDS)
        self.assertGreater(time.monotonic() - begin, limit)
        says = rf"^titan_train launch: rank 0 ended with exit code 76: .*{reason}"
        self.assertRegex(run.text().splitlines()[-1], says)
        self.expect_friendly(run.text())
        self.expect_nothing_left()
        return run

    def test_what_the_groups_did_last_is_kept_when_a_rank_hangs(self):
        run = self.expect_end_of_a_hanging_run("rank 1")
        file = self.folder / "run" / "comm_traces" / "rank_0.json"
        self.assertIn(str(file), run.text())
        calls = json.loads(file.read_text())["calls"]
        waiting = [call for call in calls if "waited" not in call]
        self.assertTrue(waiting)
        # It waits in its last calls, and all before those came to their end.
        self.assertEqual(waiting, calls[-len(waiting) :])
        self.assertIn("all-reduce", {call["collective"] for call in calls})
        self.assertEqual({call["ranks"] for call in calls}, {2})

    def test_what_the_groups_did_is_not_kept_when_nobody_wants_it_and_when_nothing_went_wrong(self):
        self.expect_end_of_a_hanging_run("rank 1", "--comm.trace_buf_size=0")
        fine = self.launch_training(2, "--training.steps=2")
        self.assertEqual(fine.end(), OK, fine.text())
        self.assertFalse((self.folder / "run" / "comm_traces").exists())

    def test_until_the_first_step_is_done_ranks_wait_for_each_other_as_long_as_at_the_start(self):
        limit = 3
        # A step of a second or more, so that the rank is stopped before it is through with it.
        large = ("--training.seq_len=1024", "--training.local_batch_size=4", "--training.steps=1")
        run = self.launch_training(2, *large, f"--comm.train_timeout_seconds={limit}")
        slow = self.process_of(run.wait_for("Preparing"), 1)
        os.kill(slow, signal.SIGSTOP)
        time.sleep(2 * limit)
        self.assertIsNone(run.popen.poll(), run.text())
        self.assertNotIn(" step: ", run.text())
        os.kill(slow, signal.SIGCONT)
        self.assertEqual(run.end(), OK, run.text())

    def test_groups_of_one_rank_change_nothing(self):
        folders = [self.fresh_folder() for _ in range(2)]
        losses = []
        for folder, words in zip(folders, ([], ["--debug.groups_of_one"]), strict=True):
            run = self.start(*self.training("--training.steps=3", *words), f"--job.dump_folder={folder}")
            self.assertEqual(run.end(), OK, run.text())
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            losses.append([line["loss"] for line in lines])
            self.assertEqual("ranks" in lines[0], bool(words), "its groups were made")
        for mine, theirs in zip(*losses, strict=True):
            self.assertAlmostEqual(mine, theirs, delta=1e-6 * theirs)


if __name__ == "__main__":
    unittest.main()

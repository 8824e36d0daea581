"""Several ranks on mock GPUs: what their communicators take and how they end, GPUs of one number, and one that has less
memory than the others."""

from __future__ import annotations

import os
import re
import time
import unittest

from mock_gpu import FUSED, MockGpu
from program import OUT_OF_MEMORY, SMALL
from rank_processes import LAUNCHER, PEER_FAILURE, RanksTest, free_port

# Weights, gradients and moments are small, what a step keeps is not.
SHAPE = ["configs/debug_model.toml", FUSED, "--training.seq_len=8192", "--training.local_batch_size=32"]
ROOM = 40960  # MiB, more than a step takes
LITTLE = 8192  # of which a step begins and finds no room


class MemoryOfOneGpu(MockGpu, RanksTest):
    def ranks(self, words: list[str], mib: list[int], corpus: str, **settings) -> list:
        """Both ranks of a job, started by hand, with what each GPU has."""
        port = free_port()
        ledgers = self.fresh_folder()
        ledgers.mkdir()
        mock = self.variables(2, ledgers, MOCK_CUDA_MIB=",".join(map(str, mib)), **settings)
        options = [f"--job.dump_folder={self.folder}/run", "--training.device=cuda", "--training.steps=3"]
        return [
            self.start(*SHAPE, corpus, *words, *options, **self.rank_variables(rank, 2, port), **mock) for rank in range(2)
        ]

    def test_that_rank_warns_runs_out_and_ends_all(self):
        shards, tensor = "--parallelism.data_parallel_shard_degree=2", "--parallelism.tensor_parallel_degree=2"
        corpus = self.long_corpus(2)
        for words in ([shards], [tensor, "--parallelism.data_parallel_shard_degree=1"]):
            for limited in (0, 1):
                with self.subTest(words=words, limited=limited):
                    begin = time.monotonic()
                    ranks = self.ranks(words, [LITTLE if rank == limited else ROOM for rank in range(2)], corpus)
                    codes = [rank.end(limit=100) for rank in ranks]
                    said = [rank.text() for rank in ranks]
                    wanted = [OUT_OF_MEMORY if rank == limited else PEER_FAILURE for rank in range(2)]
                    self.assertEqual(codes, wanted, said)
                    self.assertLess(time.monotonic() - begin, 100)
                    warning = r"(?i)warning(?: -|:) the plan takes .* on this rank, and this machine's .*: 6\.00 GiB left for this rank"
                    warned = [re.findall(warning, text) for text in said]
                    self.assertEqual([len(found) for found in warned], [rank == limited for rank in range(2)], said)
                    # Rank 0 says what it hears of another's end.
                    who = r"titan_train: " if limited == 0 else r"rank 1 \(.*\) failed with exit code 71: .*"
                    where = r"out of memory .* in (forward|backward) of layers\.\d, step 1; the plan takes .*; it would fit with: "
                    self.assertRegex(said[0], who + where)
                    self.expect_friendly("".join(said))
                    self.expect_nothing_left()


class Libraries(MockGpu):
    def test_what_libraries_take_is_measured_against_what_is_set_aside(self):
        small = self.on_gpu(*SMALL, "--training.steps=3", ranks=2, MOCK_CUDA_COMMUNICATOR_MIB=500)
        self.assertIn("After the first step libraries and other processes use 1000.00 MiB of GPU memory", small.output)
        large = self.on_gpu(*SMALL, "--training.steps=3", ranks=2, MOCK_CUDA_COMMUNICATOR_MIB=1500)
        self.assertRegex(large.output, r"WARNING - after the first step .* use 2\.93 GiB .* reserves 2\.00 GiB: .* may run out of memory")


class Ends(MockGpu, RanksTest):
    def test_all_communicators_are_closed_in_one_order_once_the_slowest_rank_is_done(self):
        self.use_dying_program()
        pipe, folder, ledgers = self.folder / "pipe", self.folder / "run", self.fresh_folder()
        os.mkfifo(pipe)
        ledgers.mkdir()
        words = ("configs/debug_model.toml", *SMALL, "--training.steps=4", "--training.device=cuda", f"--job.dump_folder={folder}")
        held = {"DIE_IN": "1 3 data 0", "DIE_HOW": pipe}  # rank 1, and the mock's ranks do not wait for each other
        run = self.start("launch", "-n", "2", *words, **self.variables(2, ledgers), **held)
        run.wait_for("Training completed")
        with open(pipe, "w"):
            pass
        self.assertEqual(run.end(), 0, run.text())
        both = self.read_ledgers(ledgers)
        self.assertEqual(len(both), 2)
        orders = []
        for ledger in both:
            in_order = sorted(ledger["ends"], key=lambda end: int(end.split(":")[0]))
            orders.append([end.split(": ")[1] for end in in_order])
        self.assertEqual(orders[0], orders[1], "of both ranks")
        closed = [step.removeprefix("finalize of ") for step in orders[0][::2]]  # one after the other
        self.assertEqual(sorted(closed), ["communicator 1", "communicator 2"])
        self.assertEqual(orders[0][1::2], [f"destroy of {name}" for name in closed])
        last = max(ledger["peaks"]["microsecond of the last collective"] for ledger in both)
        self.assertLessEqual(last, min(end["amount"] for ledger in both for end in ledger["ends"].values()))

    def test_after_a_failure_none_is(self):
        """A process that ends closes them all at once; to abort one waits behind whatever kernel hangs in another."""
        run = self.on_gpu("--training.steps=4", ranks=2, code=OUT_OF_MEMORY, MOCK_CUDA_NO_MEMORY="ncclReduceScatter:5")
        self.assertEqual(["ends" in ledger for ledger in run.ledgers], [False, False])


class GpusOfOneNumber(MockGpu, RanksTest):
    """Each rank sees its own GPU alone, as container launchers arrange it, and calls it number 0."""

    def ranks(self, **settings) -> list:
        port, ledgers = free_port(), self.fresh_folder()
        ledgers.mkdir()
        words = ("configs/debug_model.toml", *SMALL, "--parallelism.tensor_parallel_degree=2", "--training.steps=3",
                 "--parallelism.enable_async_tensor_parallel", "--training.device=cuda", f"--job.dump_folder={self.folder}/run")  # fmt: skip
        mock = self.variables(1, ledgers, **settings)
        return [self.start(*words, **self.rank_variables(rank, 2, port), **mock, MOCK_CUDA_FIRST=rank, LOCAL_RANK=rank)
                for rank in range(2)]  # fmt: skip

    def test_they_share_memory(self):
        for rank in self.ranks():
            self.assertEqual(rank.end(), 0, rank.text())

    def test_where_that_is_forbidden_the_variable_is_named(self):
        ranks = self.ranks(TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=0)
        self.assertIn(LAUNCHER, [rank.end() for rank in ranks])
        self.assertIn("set TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1 where each sees its own GPU alone, or", ranks[0].text())


if __name__ == "__main__":
    unittest.main()

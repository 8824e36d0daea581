"""Several ranks on mock GPUs, one of which has less memory than the others."""

from __future__ import annotations

import re
import time
import unittest

from mock_gpu import FUSED, MockGpu
from program import OUT_OF_MEMORY
from rank_processes import PEER_FAILURE, RanksTest, free_port

# Weights, gradients and moments are small, what a step keeps is not.
SHAPE = ["configs/debug_model.toml", FUSED, "--training.seq_len=8192", "--training.local_batch_size=32"]
ROOM = 40960  # MiB, more than a step takes
LITTLE = 8192  # of which a step begins and finds no room


class MemoryOfOneGpu(MockGpu, RanksTest):
    def ranks(self, words: list[str], mib: list[int], **settings) -> list:
        """Both ranks of a job, started by hand, with what each GPU has."""
        port = free_port()
        ledgers = self.fresh_folder()
        ledgers.mkdir()
        mock = self.variables(2, ledgers, MOCK_CUDA_MIB=",".join(map(str, mib)), **settings)
        options = [f"--job.dump_folder={self.folder}/run", "--training.device=cuda", "--training.steps=3"]
        return [self.start(*SHAPE, *words, *options, **self.told(rank, 2, port), **mock) for rank in range(2)]

    def test_that_rank_warns_runs_out_and_ends_all(self):
        shards, tensor = "--parallelism.data_parallel_shard_degree=2", "--parallelism.tensor_parallel_degree=2"
        for words in ([shards], [tensor, "--parallelism.data_parallel_shard_degree=1"]):
            for limited in (0, 1):
                with self.subTest(words=words, limited=limited):
                    begin = time.monotonic()
                    ranks = self.ranks(words, [LITTLE if rank == limited else ROOM for rank in range(2)])
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


if __name__ == "__main__":
    unittest.main()

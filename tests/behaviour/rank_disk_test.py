"""A full disk on one rank: lost reports give a warning, a requested output ends all ranks."""

from __future__ import annotations

import re
import resource
import time
import unittest

from program import OK, ROOT, STORAGE
from rank_processes import END_LIMIT_SECONDS, LAUNCHER, PEER_FAILURE, Process, RanksTest, free_port

SHORT = "--training.steps=3"
# The system's limit of file sizes also holds for memory that ranks share.
SOCKETS = "--comm.shared_memory=false"
ROOMY_ENOUGH_FOR_LINES = {resource.RLIMIT_FSIZE: 100_000}


class FullDisk(RanksTest):
    def warnings(self, run: Process) -> list[str]:
        return [line for line in run.text().splitlines() if "warning: " in line or "WARNING" in line]

    def expect_trained(self, run: Process):
        self.assertEqual(run.end(), OK, run.text())
        self.assertEqual(re.findall(r" step: +(\d+) ", run.text()), ["1", "2", "3"])
        self.expect_friendly(run.text())

    def expect_failure_of(self, failed: int, code: int, ranks: list[Process], says: str):
        """All end in time; the failure is told once, by the rank that had it or by rank 0."""
        ranks[failed].end()
        since = time.monotonic()
        codes = [rank.end() for rank in ranks]
        self.assertLess(time.monotonic() - since, END_LIMIT_SECONDS)
        self.assertEqual(codes, [code if r == failed else PEER_FAILURE for r in range(len(ranks))])
        told = "".join(rank.text() for rank in ranks)
        self.assertEqual(len(re.findall(rf"titan_train: .*{says}", told)), 1, told)
        self.assertEqual(told.count("titan_train: "), 1, told)
        self.expect_friendly(told)
        self.expect_nothing_left()

    def test_of_rank_0_costs_the_metrics_and_one_warning(self):
        self.mount(self.folder / "run", "size=4k")
        (self.folder / "run" / "filler").write_bytes(bytes(4096))
        self.mount(self.folder / "run" / "logs", "size=1m")
        run = self.launch_training(2, SHORT)
        self.expect_trained(run)
        (warning,) = [line for line in self.warnings(run) if "metrics are" in line]
        self.assertIn("metrics are not being written", warning)
        self.assertIn("No space left on device", warning)

    def test_of_another_rank_costs_its_log_and_one_warning_that_names_the_rank(self):
        self.mount(self.folder / "run" / "logs", "size=4k")
        (self.folder / "run" / "logs" / "filler").write_bytes(bytes(4096))
        run = self.launch_training(2, SHORT)
        self.expect_trained(run)
        (warning,) = self.warnings(run)
        self.assertRegex(warning, r"^\[rank1\] warning: this rank's log is not being written to .*rank-0001\.log: No space")

    def test_of_all_costs_one_warning_each(self):
        self.mount(self.folder / "run", "size=4k")
        (self.folder / "run" / "filler").write_bytes(bytes(4096))
        run = self.launch_training(3, SHORT)
        self.expect_trained(run)
        self.assertEqual(sum("metrics are not being written" in line for line in self.warnings(run)), 1, run.text())
        self.assertEqual(sum("log is not being written" in line for line in self.warnings(run)), 2, run.text())

    def test_on_which_a_dump_finds_no_room_ends_all(self):
        port = free_port()
        words = (SHORT, "--debug.dump_steps=2", SOCKETS)
        ranks = [
            self.train_by_hand(rank, 3, port, *words, limits=ROOMY_ENOUGH_FOR_LINES if rank == 0 else None)
            for rank in range(3)
        ]
        self.expect_failure_of(0, STORAGE, ranks, r"step\.safetensors: File too large; .*debug\.dump_steps")
        self.assertEqual(list((self.folder / "run" / "debug" / "step-2").iterdir()), [])

    def test_under_the_launcher_its_message_and_code_are_those_of_the_rank(self):
        run = self.launch_training(3, SHORT, "--debug.dump_steps=1", SOCKETS, limits=ROOMY_ENOUGH_FOR_LINES)
        run.wait_for("titan_train: ")
        since = time.monotonic()
        self.expect_end(run, STORAGE, since, r"^titan_train launch: rank 0 ended with exit code 73: .*File too large")

    def test_where_one_rank_cannot_make_its_folder_ends_all(self):
        # The folder of the outputs starts where each rank was started: another file system on rank 1's host.
        elsewhere = self.mount(self.folder / "elsewhere", "nr_inodes=1")
        port = free_port()
        config = ROOT / "configs" / "debug_model.toml"
        words = [*self.training(SHORT)[1:], "--job.dump_folder=outputs"]
        ranks = [
            self.start(config, *words, cwd=elsewhere if rank == 1 else self.folder, **self.rank_variables(rank, 3, port))
            for rank in range(3)
        ]
        self.expect_failure_of(
            1, STORAGE, ranks, r"rank 1 \(.*\) failed with exit code 73: cannot make the folder outputs: No space left"
        )

    def test_of_the_shared_memory_that_ranks_exchange_tokens_through_ends_all(self):
        port = free_port()
        words = ("--parallelism.tensor_parallel_degree=2", "--parallelism.enable_async_tensor_parallel", SOCKETS)
        ranks = [
            self.train_by_hand(rank, 2, port, *words, limits={resource.RLIMIT_FSIZE: 20_000} if rank == 0 else None)
            for rank in range(2)
        ]
        self.expect_failure_of(0, LAUNCHER, ranks, r"bytes of shared memory cannot be had: .*; set parallelism\.enable_async")

    def test_of_the_shared_memory_that_collectives_go_through_ends_all_and_names_the_way_out(self):
        port = free_port()
        ranks = [
            self.train_by_hand(rank, 2, port, SHORT, limits={resource.RLIMIT_FSIZE: 40_000} if rank == 0 else None)
            for rank in range(2)
        ]
        self.expect_failure_of(0, LAUNCHER, ranks, r"bytes of shared memory cannot be had: .*; set comm\.shared_memory = f")


if __name__ == "__main__":
    unittest.main()

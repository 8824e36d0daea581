"""Training that several ranks cannot start: every rank ends with one sentence, whoever is at fault."""

from __future__ import annotations

import pathlib
import re
import shutil
import socket
import time
import unittest

from program import BAD_CONFIG, BAD_DATA, ROOT
from rank_processes import END_LIMIT_SECONDS, LAUNCHER, Process, RanksTest, free_port

PATIENCE = 2
WAITS = f"--comm.init_timeout_seconds={PATIENCE}"


class RefusedTraining(RanksTest):
    def expect_refused(self, ranks: list[Process], codes: set[int], says: str, within: float):
        begin = time.monotonic()
        ended = [rank.end() for rank in ranks]
        self.assertLess(time.monotonic() - begin, within + END_LIMIT_SECONDS)
        told = "".join(rank.text() for rank in ranks)
        self.assertLessEqual(set(ended), codes, told)
        self.assertEqual(len(re.findall(says, told)), 1, told)
        self.assertNotIn(" step: ", told)
        self.expect_friendly(told)
        self.expect_nothing_left()

    def test_degrees_that_do_not_fit_are_told_once_without_a_launcher(self):
        port = free_port()
        ranks = [self.train_by_hand(rank, 3, port, "--parallelism.data_parallel_shard_degree=2") for rank in range(3)]
        place = r"^command line: --parallelism\.data_parallel_shard_degree: "
        says = rf"(?m){place}.*Invalid parallel dims: .* != WORLD_SIZE\(3\); the degrees need 2 ranks; or set .*shard_degree to 3"
        self.expect_refused(ranks, {BAD_CONFIG}, says, within=60)

    def gathering(self, ranks: list[Process]) -> list[Process]:
        """Once each has begun to look for the others: loading the program is no part of the wait."""
        for rank in ranks:
            rank.wait_for("; rendezvous at")
        return ranks

    def test_a_rank_that_never_comes_is_named(self):
        port = free_port()
        ranks = [self.train_by_hand(rank, 3, port, WAITS, LOG_RANK="all") for rank in (0, 2)]
        says = rf"titan_train: rank 1 of 3 did not connect within {PATIENCE} s"
        self.expect_refused(self.gathering(ranks), {LAUNCHER}, says, within=PATIENCE)

    def test_a_port_in_use_ends_those_who_listen_and_those_who_call(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            ranks = [self.train_by_hand(rank, 2, port, WAITS, LOG_RANK="all") for rank in range(2)]
            says = rf"titan_train: rank 0 cannot listen on port {port}: Address already in use"
            self.expect_refused(self.gathering(ranks), {LAUNCHER}, says, within=PATIENCE)
        says = rf"rank 0 was not found on 127\.0\.0\.1, port {port}, .* belongs to something else"
        self.assertRegex(ranks[1].text(), says)

    def expect_told_by_rank_zero(self, ranks: list[Process], code: int, says: str):
        """Long before ranks that wait for each other would give up (300 s), and by rank 0 alone."""
        self.expect_refused(ranks, {code}, says, within=30)
        self.assertRegex(ranks[0].text(), says)

    def test_a_mistyped_option_of_one_rank_is_told_by_rank_0_and_ends_all(self):
        port = free_port()
        words = [(), ("--training.stps=3",), ()]
        ranks = [self.train_by_hand(rank, 3, port, *words[rank]) for rank in range(3)]
        says = r"titan_train: rank 1 \(.*\): 1 problem in the configuration:\n.*unknown option training\.stps"
        self.expect_told_by_rank_zero(ranks, BAD_CONFIG, says)

    def test_inputs_that_one_rank_does_not_find_are_told_by_rank_0_and_end_all(self):
        port = free_port()
        words = ("--training.dataset=text", "--training.dataset_path=here.txt")
        (self.folder / "empty").mkdir()
        self.write("here.txt", "abc\n" * 1000)
        config = str(ROOT / "configs/debug_model.toml")
        training = (config, *self.training(*words)[1:])
        folders = (self.folder, self.folder / "empty")
        ranks = [self.start(*training, cwd=folders[rank], **self.rank_variables(rank, 2, port)) for rank in range(2)]
        self.expect_told_by_rank_zero(ranks, BAD_DATA, r"titan_train: rank 1 \(.*\): 1 problem .*\n.*here\.txt")

    def test_what_is_wrong_with_all_ranks_is_told_once_and_fast(self):
        port = free_port()
        ranks = [self.train_by_hand(rank, 3, port, "--training.stps=3") for rank in range(3)]
        self.expect_told_by_rank_zero(ranks, BAD_CONFIG, r"unknown option training\.stps")

    def test_what_is_wrong_with_rank_0_ends_the_others(self):
        port = free_port()
        words = [("--training.stps=3",), ()]
        ranks = [self.train_by_hand(rank, 2, port, *words[rank]) for rank in range(2)]
        self.expect_told_by_rank_zero(ranks, BAD_CONFIG, r"unknown option training\.stps")

    def test_a_rank_that_nobody_hears_says_itself_what_is_wrong(self):
        rank = self.train_by_hand(1, 2, free_port(), "--training.stps=3")
        self.expect_refused([rank], {BAD_CONFIG}, r"unknown option training\.stps", within=30)

    def test_one_rank_with_another_config_file_is_named_with_the_difference(self):
        port = free_port()
        other = self.config_with("[comm]\ntrain_timeout_seconds = 77\n", "other.toml")
        words = self.training()[1:]
        ranks = [self.train_by_hand(0, 2, port), self.start(other, *words, **self.rank_variables(1, 2, port))]
        difference = r"comm\.train_timeout_seconds is 77 there and 100 on rank 0"
        says = rf"rank 1 \(.*\) was given another configuration than rank 0 \(.*\): {difference}"
        self.expect_refused(ranks, {LAUNCHER}, says, within=60)

    def test_one_rank_with_another_build_is_named(self):
        port = free_port()
        zero = self.train_by_hand(0, 2, port)
        usual, self.program = self.program, shutil.copy(self.program, self.folder)
        self.write("libtitan.so", pathlib.Path(usual).with_name("libtitan.so").read_bytes() + b" ")
        ranks = [zero, self.train_by_hand(1, 2, port)]
        self.program = usual
        says = r"titan_train: rank 1 \(.*\) runs another build of titan_train than rank 0 \(.*\); start the same file"
        self.expect_refused(ranks, {LAUNCHER}, says, within=60)


if __name__ == "__main__":
    unittest.main()

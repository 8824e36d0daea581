"""A rank killed in training: at an exact place of a step, and at any moment. All end, it is named, nothing is left.

The exact places are those of `dying_titan_train`: titan_train whose ranks kill themselves (dying_main.cpp).
"""

from __future__ import annotations

import os
import pathlib
import random
import re
import signal
import socket
import time
import unittest

import rank_protocol
from program import FULL
from rank_processes import END_LIMIT_SECONDS, HANG, PEER_FAILURE, Process, RanksTest, free_port

KILLED = 128 + signal.SIGKILL
RANDOM_KILLS = 200 if FULL else 4
SHARDED = "--parallelism.data_parallel_shard_degree=-1"
REPLICATED = ["--parallelism.data_parallel_shard_degree=1", "--parallelism.data_parallel_replicate_degree=3"]
TENSOR_PARALLEL = ["--parallelism.tensor_parallel_degree=2", "--parallelism.data_parallel_shard_degree=2"]
PIPELINE = ["--parallelism.pipeline_parallel_degree=4", "--model.override.n_layers=8", "--training.local_batch_size=8"]
SHARDED_PIPELINE = ["--parallelism.pipeline_parallel_degree=2", "--parallelism.data_parallel_shard_degree=2"]
ASYNCHRONOUS = [*TENSOR_PARALLEL, "--parallelism.enable_async_tensor_parallel"]


def is_alive(pid: int) -> bool:
    """Whether a process is there and not only waits for its parent to take note of its end."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


class KilledRanks(RanksTest):
    def expect_killed(self, run: Process, killed: int, victim: int):
        """The rank is gone now: the others end in time, once it is told who, and the launcher says it last."""
        since = time.monotonic()
        self.expect_end(run, KILLED, since, rf"^titan_train launch: rank {killed} was killed by signal 9 \(Killed\)")
        told = re.findall(rf"titan_train: rank {killed} \(\S+, process {victim}\) ended", run.text())
        self.assertLessEqual(len(told), 1, run.text())
        for line in run.text().splitlines():
            blamed = re.search(r"titan_train: rank (\d+)", line)
            self.assertTrue(not blamed or int(blamed[1]) == killed, line)


class ExactPlaces(KilledRanks):
    def setUp(self):
        super().setUp()
        self.use_dying_program()

    def expect_end_of_all(self, ranks: int, layout: list[str], killed: int, step: int, phase: str, operation: int = 0):
        place = f"{killed} {step} {phase} {operation}"
        with self.subTest(place, layout=layout):
            # It ends by itself, and with another exit code, where no rank dies.
            run = self.launch_training(ranks, *layout, "--training.steps=9", DIE_IN=place)
            victim = self.process_of(run.wait_for("Starting job"), killed)
            while is_alive(victim):
                time.sleep(0.01)
            self.expect_killed(run, killed, victim)
            self.assertRegex(run.text(), rf"titan_train: rank {killed} \(\S+, process {victim}\) ended without a message")
            steps = re.findall(r" step: +(\d+) ", run.text())
            self.assertEqual(steps, [str(done) for done in range(1, step)], "it died in that step")

    def test_in_forward(self):
        self.expect_end_of_all(3, [SHARDED], killed=2, step=3, phase="forward", operation=40)
        self.expect_end_of_all(3, [SHARDED], killed=0, step=3, phase="forward", operation=40)

    def test_in_the_first_forward(self):
        self.expect_end_of_all(2, [SHARDED], killed=1, step=1, phase="forward")

    def test_in_backward(self):
        self.expect_end_of_all(3, [SHARDED], killed=1, step=3, phase="backward", operation=60)
        self.expect_end_of_all(3, REPLICATED, killed=0, step=3, phase="backward", operation=60)

    def test_in_the_optimizer(self):
        self.expect_end_of_all(3, [SHARDED], killed=2, step=3, phase="optimizer", operation=10)
        self.expect_end_of_all(3, REPLICATED, killed=0, step=3, phase="optimizer", operation=10)

    def test_while_it_waits_for_data(self):
        self.expect_end_of_all(3, [SHARDED], killed=1, step=3, phase="data")
        self.expect_end_of_all(3, [SHARDED], killed=0, step=3, phase="data")

    def test_among_tensor_parallel_ranks(self):
        self.expect_end_of_all(4, TENSOR_PARALLEL, killed=3, step=2, phase="backward", operation=30)

    def test_in_the_middle_of_a_pipelines_schedule(self):
        # Of the 8 or 16 forwards, inputs' and weights' gradients that each rank does in a step.
        for schedule, killed, phase, operation in (
            ("1F1B", 0, "forward", 200),
            ("Interleaved1F1B", 3, "backward", 200),
            ("InterleavedZeroBubble", 2, "weights", 40),
            ("ZBVZeroBubble", 1, "forward", 400),
        ):
            layout = [*PIPELINE, f"--parallelism.pipeline_parallel_schedule={schedule}"]
            self.expect_end_of_all(4, layout, killed=killed, step=2, phase=phase, operation=operation)

    def test_in_the_middle_of_a_schedule_over_sharded_weights(self):
        self.expect_end_of_all(4, SHARDED_PIPELINE, killed=3, step=2, phase="backward", operation=30)

    def test_among_ranks_that_share_memory_and_none_of_it_is_left(self):
        self.expect_end_of_all(4, ASYNCHRONOUS, killed=1, step=2, phase="forward", operation=30)
        text = self.processes[-1].text()
        processes = {self.process_of(text, rank) for rank in range(4)}
        left = [path for path in pathlib.Path("/dev/shm").glob("titan-*") if int(path.name.split("-")[1]) in processes]
        self.assertEqual(left, [])


    def test_a_rank_that_hangs_by_itself_is_named_although_the_others_wait_for_each_other(self):
        limit = 3
        over_sockets = ["--comm.shared_memory=false", *TENSOR_PARALLEL]
        for layout, hung in ((PIPELINE, 3), (TENSOR_PARALLEL, 0), (over_sockets, 1), (ASYNCHRONOUS, 2)):
            with self.subTest(layout=layout, hung=hung):
                place = {"DIE_IN": f"{hung} 3 forward 30", "DIE_HOW": "hang"}
                timeout = f"--comm.train_timeout_seconds={limit}"
                run = self.launch_training(4, *layout, timeout, "--training.steps=9", **place)
                process = self.process_of(run.wait_for("step:  2 "), hung)
                begin = time.monotonic()
                self.assertEqual(run.end(), HANG, run.text())
                self.assertLess(time.monotonic() - begin, limit + END_LIMIT_SECONDS)
                told = rf"rank {hung} \(\S+, process {process}\) hangs: it waits for no other rank"
                self.assertRegex(run.text(), rf"(?m)^\[rank0\] titan_train: {told}")
                self.assertRegex(run.text().splitlines()[-1], rf"^titan_train launch: rank {hung} ended .* code 76")
                self.expect_friendly(run.text())
                self.expect_nothing_left()

    def test_a_rank_that_is_stopped_is_named_although_the_others_wait_for_each_other(self):
        limit = 3
        for layout, rank in (([SHARDED], 2), (PIPELINE, 1), (TENSOR_PARALLEL, 3), (TENSOR_PARALLEL, 0)):
            with self.subTest(layout=layout, stopped=rank):
                run = self.launch_training(4, *layout, f"--comm.train_timeout_seconds={limit}")
                process = self.process_of(run.wait_for("step:  3 "), rank)
                os.kill(process, signal.SIGSTOP)
                begin = time.monotonic()
                self.assertEqual(run.end(), HANG, run.text())
                seconds = time.monotonic() - begin
                self.assertGreater(seconds, limit)
                self.assertLess(seconds, limit + END_LIMIT_SECONDS, "after it could be noticed")
                told = rf"rank {rank} \(\S+, process {process}\) hangs: it does not respond"
                self.assertRegex(run.text(), rf"(?m)^\[rank{0 if rank else 1}\] titan_train: {told}")
                self.assertRegex(run.text().splitlines()[-1], rf"^titan_train launch: rank \d .* code 76: {told}")
                self.expect_friendly(run.text())
                self.expect_nothing_left()


class RankZero(RanksTest):
    def test_that_is_lost_right_behind_its_welcome_ends_the_others(self):
        """It played by this test: the welcome and the end of the connection arrive as one."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            rank = self.train_by_hand(1, 2, listener.getsockname()[1], LOG_RANK="all")
            caller, facts = rank_protocol.receive(listener)
            with caller:
                self.assertEqual(facts["rank"], 1)
                caller.send({"welcome": {"cores": 1, "by": "rank 0 (played)", "place": 1, "beside": [0, 1]}})
        self.expect_end(rank, PEER_FAILURE, time.monotonic(), r"rank 0 \(played\) ended without a message")

    def test_that_loses_another_while_it_builds_its_model_says_so_last(self):
        port, large = free_port(), "--model.override.n_layers=200"
        zero, one = (self.train_by_hand(rank, 2, port, SHARDED, large) for rank in (0, 1))
        zero.wait_for("Building llama3")
        one.popen.kill()
        says = rf"^titan_train: rank 1 \(\S+, process {one.popen.pid}\) ended without a message"
        self.expect_end(zero, PEER_FAILURE, time.monotonic(), says)


class AnyMoment(KilledRanks):
    RANKS = 4

    def start_training(self) -> tuple[Process, float]:
        begin = time.monotonic()
        return self.launch_training(self.RANKS), begin

    def seconds_to_step_5(self) -> float:
        run, begin = self.start_training()
        run.wait_for("step:  5 ")
        seconds = time.monotonic() - begin
        run.popen.send_signal(signal.SIGINT)
        run.end()
        self.expect_nothing_left()
        return seconds

    def test_a_rank_killed_between_the_start_and_step_5_ends_all_and_is_named(self):
        # The moments differ from run to run; a failure tells what is needed to understand it.
        longest = self.seconds_to_step_5()
        dice = random.Random()
        for attempt in range(RANDOM_KILLS):
            killed, moment = dice.randrange(self.RANKS), longest * dice.random()
            with self.subTest(attempt=attempt, killed=killed, moment=moment):
                run, begin = self.start_training()
                while (victim := self.rank_processes(run.popen.pid).get(killed)) is None:
                    self.assertIsNone(run.popen.poll(), run.text())
                    time.sleep(0.001)
                time.sleep(max(0.0, begin + moment - time.monotonic()))
                os.kill(victim, signal.SIGKILL)
                self.expect_killed(run, killed, victim)
                run.path.unlink()


if __name__ == "__main__":
    unittest.main()

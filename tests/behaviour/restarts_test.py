"""Ranks that torchrun's agents start again after a failure or a replaced node: those of one attempt meet."""

from __future__ import annotations

import signal
import unittest

from program import INTERRUPTED, OK
from rank_processes import LAUNCHER, Process, RanksTest, free_port


class Restarts(RanksTest):
    def setUp(self):
        super().setUp()
        self.port = free_port()

    def agent_starts(self, rank: int, restarts: int, size: int = 2, **more: object) -> Process:
        """A rank as an agent starts it that counts `restarts` of its own."""
        variables = self.rank_variables(rank, size, self.port) | {
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "TORCHELASTIC_RUN_ID": f"job-{self.port}",
            "TORCHELASTIC_RESTART_COUNT": restarts,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
        return self.start("ranks", *self.options(), "--comm.init_timeout_seconds=60", **(variables | more))

    def expect_all(self, code: int, *processes: Process) -> None:
        for process in processes:
            self.assertEqual(process.end(), code, process.text())
            self.expect_friendly(process.text())

    def test_ranks_meet_whatever_their_agents_counted(self):
        for store in ("False", "True"):
            with self.subTest(agent_store=store):
                counts = (2, 0, 1)
                ranks = [
                    self.agent_starts(rank, count, 3, TORCHELASTIC_USE_AGENT_STORE=store) for rank, count in enumerate(counts)
                ]
                self.expect_all(OK, *ranks)

    def test_a_rank_that_met_an_ending_rank_zero_meets_the_next_one(self):
        former = self.agent_starts(0, 0, 3)
        former.wait_for("rendezvous at")
        one = self.agent_starts(1, 1, 3, LOG_RANK="1")
        one.wait_for("rendezvous at")
        zero = self.agent_starts(0, 1, 3)  # waits for the port: the former one is alive and holds it
        zero.wait_for("rendezvous at")
        former.popen.send_signal(signal.SIGTERM)
        self.expect_all(INTERRUPTED, former)
        two = self.agent_starts(2, 0, 3)
        self.expect_all(OK, zero, one, two)

    def test_a_rank_zero_that_was_killed_is_replaced(self):
        former = self.agent_starts(0, 0)
        former.wait_for("rendezvous at")
        former.popen.kill()
        one = self.agent_starts(1, 0)
        zero = self.agent_starts(0, 1)
        self.expect_all(OK, zero, one)

    def test_an_address_that_is_not_rank_zeros_is_told_at_once(self):
        nobodys = "192.0.2.1"  # RFC 5737
        zero = self.agent_starts(0, 0, MASTER_ADDR=nobodys)
        text = zero.wait_for("is no address of that host")
        self.assertIn(f"and {nobodys} is no address", text)
        self.assertIsNone(zero.popen.poll(), "another rank may know better")
        zero.popen.send_signal(signal.SIGTERM)
        self.assertIn(zero.end(), (INTERRUPTED, LAUNCHER))


if __name__ == "__main__":
    unittest.main()

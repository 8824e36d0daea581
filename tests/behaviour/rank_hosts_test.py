"""Ranks on two hosts, started by hand: two network namespaces with host names of their own, joined by a cable."""

from __future__ import annotations

import os
import subprocess
import unittest

from rank_processes import RanksTest, free_port

ADDRESSES = ("10.77.4.1", "10.77.4.2")


class TwoHosts(RanksTest):
    def setUp(self):
        super().setUp()
        self.names = [f"titan-{os.getpid()}-{side}" for side in "ab"]
        self.cables = [f"tt{os.getpid() % 10**8}{side}" for side in "ab"]
        try:
            self.lay_cable()
        except (OSError, subprocess.CalledProcessError) as error:
            told = getattr(error, "stderr", b"") or b""
            self.skipTest(f"network namespaces cannot be made here (that needs root): {error} {told.decode()}")

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    def lay_cable(self):
        for name in self.names:
            self.ip("netns", "add", name)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name], check=False)
        self.ip("link", "add", self.cables[0], "type", "veth", "peer", "name", self.cables[1])
        for name, cable, address in zip(self.names, self.cables, ADDRESSES):
            self.ip("link", "set", cable, "netns", name)
            self.ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
            self.ip("-n", name, "link", "set", cable, "up")
            self.ip("-n", name, "link", "set", "lo", "up")
        subprocess.run(["unshare", "--uts", "hostname", "alpha"], check=True, capture_output=True)

    def start_on(self, host: int, *words, **variables):
        """titan_train on one of the two hosts, named alpha and beta."""
        name = ("alpha", "beta")[host]
        inside = ["unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$0" "$@"', self.program]
        program, self.program = self.program, "ip"
        try:
            words = ("netns", "exec", self.names[host], *inside, *words)
            return self.start(*words, GLOO_SOCKET_IFNAME=self.cables[host], **variables)
        finally:
            self.program = program

    def expect_trained(self, ranks: list):
        codes = [rank.end() for rank in ranks]
        told = "".join(rank.text() for rank in ranks)
        self.assertEqual(codes, [0, 0], told)
        self.assertRegex(told, r"INFO - +0  alpha")
        self.assertRegex(told, r"INFO - +1  beta")
        self.assertIn("Training completed", told)
        self.assertNotIn("share memory", told)
        self.assertNotIn("ERROR", told)
        self.expect_friendly(told)

    def test_ranks_that_are_told_who_they_are_by_options_train_together(self):
        where = f"{ADDRESSES[0]}:{free_port()}"
        words = [(f"--comm.rank={rank}", "--comm.world_size=2", f"--comm.master={where}") for rank in range(2)]
        ranks = [self.start_on(rank, *self.training("--training.steps=2", *words[rank])) for rank in range(2)]
        self.expect_trained(ranks)

    def test_ranks_that_are_told_who_they_are_by_variables_train_together(self):
        told = {"WORLD_SIZE": 2, "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": free_port()}
        words = self.training("--training.steps=2", "--parallelism.tensor_parallel_degree=2")
        self.expect_trained([self.start_on(rank, *words, RANK=rank, **told) for rank in range(2)])

    def test_a_local_size_that_is_not_true_is_refused_with_the_host(self):
        told = {"WORLD_SIZE": 2, "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": free_port(), "LOCAL_WORLD_SIZE": 2}
        ranks = [self.start_on(rank, *self.training(), RANK=rank, LOCAL_RANK=rank, **told) for rank in range(2)]
        self.assertEqual([rank.end() for rank in ranks], [69, 69])
        says = r"rank 0 \(alpha.*\) has LOCAL_WORLD_SIZE=2, but of its host alpha only rank 0 joined"
        self.assertRegex(ranks[0].text(), says)


if __name__ == "__main__":
    unittest.main()

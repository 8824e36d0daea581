"""Several ranks: they meet, agree and end together, whatever happens to one of them, and nothing is left running.

`titan_train ranks` is the rendezvous without the training; `--hold` keeps its main thread in a wait that looks neither
at signals nor at other ranks, as a rank hangs in a collective.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
import unittest

from program import BAD_CONFIG, INTERRUPTED, OK
from rank_processes import BUG, END_LIMIT_SECONDS, LAUNCHER, PEER_FAILURE, Process, RanksTest, free_port


class Ranks(RanksTest):
    # ---- rendezvous

    def test_ranks_of_launch_meet_and_agree_and_only_rank_0_speaks(self):
        for size in (2, 4):
            with self.subTest(size=size):
                run = self.launch(size)
                self.assertEqual(run.end(), OK, run.text())
                lines = run.text().splitlines()
                self.assertTrue(all(line.startswith("[rank0] [titan] ") for line in lines), run.text())
                self.assertIn(f"All {size} ranks agree", run.text())
                self.assertEqual(len(re.findall(r"INFO - +\d+  \S+ +\d+ +cpu", run.text())), size)
        self.expect_nothing_left()

    def test_log_rank_chooses_whose_lines_are_shown(self):
        for chosen, shown in (("1", {"1"}), ("0,2", {"0", "2"}), ("all", {"0", "1", "2"})):
            with self.subTest(chosen):
                run = self.launch(3, log_rank=chosen)
                self.assertEqual(run.end(), OK, run.text())
                self.assertEqual(set(re.findall(r"^\[rank(\d)\] ", run.text(), re.M)), shown)

    def test_log_rank_may_come_from_the_environment_and_the_option_goes_before_it(self):
        for option, shown in (((), {"1"}), (("--log-rank", "0"), {"0"})):
            run = self.start("launch", "-n", 2, *option, "ranks", *self.options(), LOG_RANK="1")
            self.assertEqual(run.end(), OK, run.text())
            self.assertEqual(set(re.findall(r"^\[rank(\d)\] ", run.text(), re.M)), shown)

    def test_ranks_other_than_0_log_to_files_of_their_own(self):
        run = self.launch(3)
        self.assertEqual(run.end(), OK, run.text())
        logs = sorted((self.folder / "run" / "logs").iterdir())
        self.assertEqual([log.name for log in logs], ["rank-0001.log", "rank-0002.log"])
        for log in logs:
            self.assertIn("All 3 ranks agree", log.read_text())

    def test_ranks_given_as_options_meet(self):
        port = free_port()
        ranks = [
            self.start("ranks", f"--comm.rank={r}", "--comm.world_size=2", f"--comm.master=localhost:{port}", *self.options())
            for r in (1, 0)
        ]
        self.assertEqual([rank.end() for rank in ranks], [OK, OK], ranks[1].text())
        self.assertIn("All 2 ranks agree", ranks[1].text())

    # ---- a rendezvous that fails: every one ends with 69 and one sentence

    def expect_refused(self, ranks: list[Process], says: str):
        self.assertEqual([rank.end() for rank in ranks], [LAUNCHER] * len(ranks), [rank.text() for rank in ranks])
        told = "".join(rank.text() for rank in ranks)
        self.assertRegex(told, says)
        self.assertEqual(len(re.findall(says, told)), 1, told)
        self.expect_friendly(told)

    def test_a_rank_that_never_comes_is_named_within_the_limit(self):
        port = free_port()
        begin = time.monotonic()
        ranks = [self.by_hand(rank, 4, port, "--comm.init_timeout_seconds=2") for rank in (0, 1, 3)]
        self.expect_refused(ranks, r"titan_train: rank 2 of 4 did not connect within 2 s \(comm.init_timeout_seconds\)")
        self.assertLess(time.monotonic() - begin, 2 + END_LIMIT_SECONDS)

    def test_a_rank_0_that_never_comes_is_named_by_the_one_that_waited(self):
        rank = self.by_hand(1, 2, free_port(), "--comm.init_timeout_seconds=1")
        self.expect_refused([rank], r"rank 0 was not found on 127\.0\.0\.1, port \d+, within 1 s")

    def test_a_port_in_use_is_named_with_what_to_do(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            rank = self.by_hand(0, 2, port)
            self.expect_refused([rank], rf"cannot listen on port {port}: Address already in use; .*choose another port")

    def test_another_world_size_is_refused_with_both(self):
        port = free_port()
        ranks = [self.by_hand(0, 2, port), self.by_hand(1, 3, port)]
        self.expect_refused(ranks, r"rank 1 \(.*\) was started as one of 3 ranks, rank 0 \(.*\) as one of 2")

    def test_two_processes_of_one_rank_are_refused(self):
        port = free_port()
        ranks = [self.by_hand(0, 3, port), self.by_hand(1, 3, port), self.by_hand(1, 3, port)]
        self.expect_refused(ranks, r"rank 1 is there twice: .*process \d+, and .*process \d+")

    def test_another_config_is_refused_with_the_option_that_differs(self):
        port = free_port()
        config = self.config_with("")
        ranks = [
            self.by_hand(0, 2, port, "configs/debug_model.toml"),
            self.by_hand(1, 2, port, config, "--optimizer.lr=0.5"),
        ]
        self.expect_refused(ranks, r"rank 1 \(.*\) was given another configuration .*optimizer\.lr is 0\.5 there and")

    def test_the_same_config_at_another_place_is_the_same(self):
        port = free_port()
        ranks = [self.by_hand(0, 2, port, "configs/debug_model.toml"), self.by_hand(1, 2, port, self.config_with(""))]
        self.assertEqual([rank.end() for rank in ranks], [OK, OK], ranks[0].text())

    def test_a_batch_shell_is_refused_with_the_word_srun(self):
        shell = self.start("ranks", *self.options(), SLURM_JOB_ID=7, SLURM_PROCID=0, SLURM_NTASKS=4)
        self.expect_refused([shell], r"shell of Slurm job 7, not one of its 4 tasks; start the run with srun")

    def test_a_signal_while_ranks_gather_ends_the_one_that_waits(self):
        requeue = 75  # a request to save and end, and nothing is lost
        for request, code in ((signal.SIGTERM, INTERRUPTED), (signal.SIGUSR1, requeue)):
            for number in (0, 1):
                with self.subTest(request=request, rank=number):
                    rank = self.by_hand(number, 2, free_port(), LOG_RANK=str(number))
                    rank.wait_for("; rendezvous at")
                    rank.popen.send_signal(request)
                    self.assertEqual(rank.end(), code, rank.text())

    # ---- the end of one is the end of all

    def test_a_failing_rank_ends_all_with_its_exit_code_and_its_message_last(self):
        for failing in (0, 2):
            with self.subTest(failing=failing):
                begin = time.monotonic()
                run = self.launch(3, "--hold=600", f"--fail={failing}")
                self.expect_end(run, BUG, begin, f"rank {failing} ended with exit code 70: .*--fail asks for it")

    def test_the_other_ranks_end_with_74_and_say_whose_fault_it_was(self):
        port = free_port()
        ranks = [self.by_hand(rank, 3, port, "--hold=600", "--fail=1") for rank in range(3)]
        self.assertEqual([rank.end() for rank in ranks], [PEER_FAILURE, BUG, PEER_FAILURE])
        self.assertRegex(ranks[0].text(), r"titan_train: rank 1 \(.*\) failed with exit code 70: .*--fail asks for it")
        self.assertEqual([ranks[1].text(), ranks[2].text()], ["", ""])
        self.assertIn("--fail asks for it", (self.folder / "run/logs/rank-0001.log").read_text())
        self.assertIn("failed with exit code 70", (self.folder / "run/logs/rank-0002.log").read_text())

    def test_a_rank_that_is_to_fail_and_is_not_there_is_refused(self):
        run = self.launch(2, "--fail=1,2")
        self.assertEqual(run.end(), BAD_CONFIG, run.text())
        self.assertRegex(run.text(), r"(?m)titan_train: .*ranks: --fail 2 is not a rank of 0 to 1$")
        alone = self.start("ranks", "--fail=0", *self.options())
        self.assertEqual(alone.end(), BUG, alone.text())

    def test_the_ranks_that_are_to_fail_may_stand_before_the_config(self):
        run = self.start("launch", "-n", 2, "ranks", "--fail", "1", "configs/debug_model.toml", *self.options())
        self.assertEqual(run.end(), BUG, run.text())
        self.assertIn("--fail asks for it", run.text())

    def test_a_failure_that_all_ranks_have_is_told_once(self):
        port = free_port()
        ranks = [self.by_hand(rank, 4, port, "--hold=600", "--fail=0,1,2,3") for rank in range(4)]
        codes = [rank.end() for rank in ranks]
        self.assertIn(BUG, codes)
        self.assertLessEqual(set(codes), {BUG, PEER_FAILURE})
        told = "".join(rank.text() for rank in ranks)
        self.assertEqual(told.count("titan_train: "), 1, told)

    def test_a_killed_rank_ends_all_and_is_named(self):
        for killed in (0, 2):
            with self.subTest(killed=killed):
                run = self.launch(3, "--hold=600")
                victim = self.process_of(run.wait_for("ranks agree"), killed)
                begin = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                self.expect_end(run, 128 + signal.SIGKILL, begin, rf"rank {killed} was killed by signal 9")
                self.assertRegex(run.text(), rf"rank {killed} \(.*process {victim}\) ended without a message")

    def test_a_killed_rank_ends_all_without_a_launcher_that_would(self):
        for killed in (0, 1):
            with self.subTest(killed=killed):
                port = free_port()
                ranks = [self.by_hand(rank, 3, port, "--hold=600") for rank in range(3)]
                ranks[0].wait_for("ranks agree")
                begin = time.monotonic()
                ranks[killed].popen.kill()
                codes = [rank.end() for rank in ranks]
                self.assertLess(time.monotonic() - begin, END_LIMIT_SECONDS)
                self.assertEqual(codes, [-signal.SIGKILL if r == killed else PEER_FAILURE for r in range(3)])
                told = "".join(rank.text() for rank in ranks)
                self.assertEqual(len(re.findall(rf"titan_train: rank {killed} \(.*\) ended without a message", told)), 1, told)

    def test_ranks_do_not_outlive_a_killed_launcher(self):
        run = self.launch(3, "--hold=600")
        run.wait_for("ranks agree")
        run.popen.kill()
        run.end()
        self.expect_nothing_left()

    def test_ctrl_c_reaches_every_rank_once(self):
        run = self.launch(2, "--hold=600")
        run.wait_for("ranks agree")
        begin = time.monotonic()
        run.popen.send_signal(signal.SIGINT)
        # A second one would end a rank at once, without its line.
        self.expect_end(run, INTERRUPTED, begin, "stopped by a signal; the work under way was dropped")

    # ---- in training; of killed ranks see killed_ranks_test

    def test_ctrl_c_in_training_ends_all_ranks_after_the_same_step(self):
        run = self.launch_training(2)
        run.wait_for("step:  3 ")
        begin = time.monotonic()
        run.popen.send_signal(signal.SIGINT)
        self.assertEqual(run.end(), INTERRUPTED, run.text())
        self.assertLess(time.monotonic() - begin, END_LIMIT_SECONDS)
        self.assertRegex(run.text(), r"stopped by a signal after step \d+ of 1000000")
        self.assertEqual(run.text().count("stopped by a signal"), 1, "what all ranks do is told once")
        self.expect_friendly(run.text())
        self.expect_nothing_left()

    def test_a_warning_that_all_ranks_have_is_told_by_rank_0_alone(self):
        run = self.launch_training(3, "--training.steps=1", "--optimizer.early_step_in_backward")
        self.assertEqual(run.end(), OK, run.text())
        self.assertEqual(run.text().count("clipping is off"), 1, run.text())
        self.assertIn("clipping is off", (self.folder / "run/logs/rank-0002.log").read_text())

    # ---- launch itself

    def test_launch_of_one_rank_is_a_single_process(self):
        run = self.launch(1)
        self.assertEqual(run.end(), OK, run.text())
        self.assertIn("A single process", run.text())


if __name__ == "__main__":
    unittest.main()

"""A run folder is locked by one run and free once that run has ended."""

from __future__ import annotations

import json
import re
import shutil
import signal
import unittest
from pathlib import Path

from program import OK, STORAGE
from rank_processes import LAUNCHER, Process, RanksTest


class RunFolder(RanksTest):
    def test_a_second_run_is_refused_until_the_first_is_gone_even_by_a_kill(self):
        first = self.start(*self.training())
        first.wait_for("step:  1 ")
        second = self.start(*self.training("--training.steps=1"))
        self.assertEqual(second.end(), LAUNCHER, second.text())
        says = rf"titan_train: another run writes to {self.folder}/run: .*process {first.popen.pid}; end that one, or name"
        self.assertRegex(second.text(), says)
        self.assertNotIn(" step: ", second.text())
        first.popen.kill()
        first.popen.wait()
        third = self.start(*self.training("--training.steps=1"))
        self.assertEqual(third.end(), OK, third.text())

    def test_a_second_run_of_several_ranks_ends_with_one_sentence(self):
        first = self.start(*self.training())
        first.wait_for("step:  1 ")
        second = self.launch_training(2, "--training.steps=1")
        self.assertEqual(second.end(), LAUNCHER, second.text())
        self.assertEqual(second.text().count("titan_train: another run writes to"), 1, second.text())

    def test_ranks_of_a_launcher_that_names_no_size_do_not_train_one_by_one(self):
        rank = self.start(*self.training("--training.steps=1"), PMIX_RANK=1)
        self.assertEqual(rank.end(), LAUNCHER, rank.text())
        self.assertIn("nothing says how many ranks there are", rank.text())

    def test_a_dry_run_leaves_what_the_real_one_wrote_alone(self):
        real = self.start(*self.training("--training.steps=2"))
        self.assertEqual(real.end(), OK, real.text())
        before = self.tree(self.folder / "run")
        self.assertIn("metrics.jsonl", before)
        dry = ("--comm.mode=fake_backend", "--comm.world_size=32", "--training.steps=1", "--checkpoint.enable")
        dry += ("--profiling.enable_profiling", "--profiling.profile_freq=1", "--profiling.profiler_warmup=0")
        dry += ("--debug.dump_steps=1",)
        run = self.start(*self.training(*dry))
        self.assertEqual(run.end(), OK, run.text())
        self.assertEqual(self.tree(self.folder / "run"), before)
        self.assertNotIn("loss:", run.text())
        self.assertRegex(run.text(), r"dry run, step  1: no loss, .*memory:")

    def remove_folder_of(self, run: Process):
        """Between two of its lines: what it writes meanwhile would be in the way of the removal."""
        run.popen.send_signal(signal.SIGSTOP)
        status = Path(f"/proc/{run.popen.pid}/status")
        self.wait_until(lambda: "\nState:\tT" in status.read_text(), "the stop")
        shutil.rmtree(self.folder / "run")

    def test_a_folder_removed_during_a_run_is_made_again_with_one_warning_and_is_held_as_before(self):
        words = ("--metrics.enable_tensorboard", "--metrics.prometheus_file=run.prom", "--checkpoint.enable")
        first = self.start(*self.training(*words, "--checkpoint.interval=50"))
        first.wait_for("step:  3 ")
        folder = self.folder / "run"
        for _ in range(2):
            self.remove_folder_of(first)
            first.popen.send_signal(signal.SIGCONT)
            files = ("run.lock", "run.json", "metrics.jsonl", "report.html", "run.prom")
            self.wait_until(lambda: all((folder / name).exists() for name in files), "the files of the run")
            self.wait_until(lambda: list(folder.glob("tb/*/events*")), "an event file")
            self.wait_until(lambda: list(folder.glob("checkpoint/step-*")), "a checkpoint")
        second = self.start(*self.training("--training.steps=1"))
        self.assertEqual(second.end(), LAUNCHER, second.text())
        first.popen.send_signal(signal.SIGUSR1)
        first.end()
        text = first.text()
        # A writer that was stopped before its file may create the folder again before its lock is missed.
        says = re.compile(rf"{re.escape(str(folder))}(/run\.lock)? was removed or moved away during the run")
        warned = [line for line in text.splitlines() if says.search(line)]
        self.assertEqual(len(warned), 1, text)
        self.assertIn(" - WARNING - ", warned[0])
        last = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()][-1]
        self.assertIn(f"stopped by a signal after step {last} of ", text)

    def test_a_run_whose_folder_another_run_has_taken_ends_with_a_sentence(self):
        for words in (("--metrics.log_freq=1",), ("--metrics.log_freq=1000000", "--checkpoint.enable", "--checkpoint.interval=9")):
            first = self.start(*self.training("--metrics.log_freq=1", *words))
            first.wait_for("step:  1 ")
            self.remove_folder_of(first)
            second = self.start(*self.training())
            second.wait_for("step:  1 ")
            first.popen.send_signal(signal.SIGCONT)
            self.assertEqual(first.end(), STORAGE, first.text())
            says = f"titan_train: {self.folder}/run was removed during the run, and another run has taken its place: "
            self.assertRegex(first.text(), says + rf".*process {second.popen.pid}; start this one again with another")
            self.expect_friendly(first.text())
            second.popen.kill()
            second.popen.wait()


if __name__ == "__main__":
    unittest.main()

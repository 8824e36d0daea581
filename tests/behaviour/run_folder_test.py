"""A run folder belongs to one run at a time, and to nobody once that run is gone, however it ended."""

from __future__ import annotations

import unittest

from program import OK
from rank_processes import LAUNCHER, RanksTest


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
        dry += ("--profiling.enable_profiling", "--profiling.enable_memory_snapshot", "--profiling.profile_freq=1")
        dry += ("--profiling.profiler_warmup=0", "--debug.dump_steps=1")
        run = self.start(*self.training(*dry))
        self.assertEqual(run.end(), OK, run.text())
        self.assertEqual(self.tree(self.folder / "run"), before)
        self.assertNotIn("loss:", run.text())
        self.assertRegex(run.text(), r"dry run, step  1: no loss, .*memory:")


if __name__ == "__main__":
    unittest.main()

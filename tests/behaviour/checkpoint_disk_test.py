"""A disk that fills up while checkpoints are written: training continues, and saves again once there is room."""

from __future__ import annotations

import signal
import subprocess
import unittest

from checkpoint_runs import REQUEUE, CheckpointTest, parallel
from program import INTERRUPTED, STORAGE


class FullDisk(CheckpointTest):
    def bytes_of_one(self, *words) -> int:
        self.complete(1, self.folder / "measured", 2, *words)
        return sum(path.stat().st_size for path in (self.folder / "measured/checkpoint/step-2").iterdir())

    def expect_failures_and_recovery(self, ranks: int, *words):
        folder = self.folder / "run"
        one = self.bytes_of_one()
        self.mount(folder / "checkpoint", f"size={int(3.5 * one) + 4 * 2**20}")
        filler = folder / "checkpoint" / "filler"
        filler.write_bytes(bytes(2 * one))
        run = self.begin(ranks, folder, *words)
        run.wait_for("was not saved: ")
        run.wait_for("training continues and tries again at the next interval")
        failed_after = max(self.committed(run.text()), default=0)
        filler.unlink()
        self.wait_until(lambda: max(self.committed(run.text()), default=0) > failed_after, "a checkpoint after the failure")
        run.popen.send_signal(signal.SIGKILL if ranks == 1 else signal.SIGUSR1)
        self.assertEqual(run.end(), -signal.SIGKILL if ranks == 1 else REQUEUE, run.text())
        self.assertIn("No space left on device", run.text())
        newest = max(self.committed(run.text()))
        steps = newest + 20
        for path in (folder / "checkpoint").glob("step-*"):
            if path.name != f"step-{newest}":
                subprocess.run(["rm", "-r", path], check=True)
        self.assertGreaterEqual(self.loaded(self.complete(ranks, folder, steps, *words, "--checkpoint.interval=1000")), newest)
        self.complete(ranks, self.folder / "whole", steps, *words, "--checkpoint.interval=1000")
        self.assertEqual(self.curve(folder), self.curve(self.folder / "whole"))
        self.expect_same_checkpoint(folder, self.folder / "whole", steps)

    def test_under_one_process(self):
        self.expect_failures_and_recovery(1, "--checkpoint.keep_latest_k=2")

    def test_under_several_ranks_that_save_beside_training(self):
        self.expect_failures_and_recovery(2, *parallel(dp_shard=2), "--checkpoint.keep_latest_k=2",
                                          "--checkpoint.async_mode=async")

    def test_a_last_checkpoint_that_is_lost_is_no_success(self):
        folder = self.folder / "run"
        once = "--checkpoint.interval=4"
        one = self.bytes_of_one()
        self.mount(folder / "checkpoint", f"size={int(2.5 * one) + 2 * 2**20}")
        filler = folder / "checkpoint" / "filler"
        filler.write_bytes(bytes(2 * one))
        for ranks, place in ((1, folder), (2, self.folder / "two")):
            text = self.complete(ranks, place, 4, once, f"--checkpoint.folder={folder}/checkpoint", code=STORAGE)
            self.expect_told_once(text, "starts from the beginning")
            self.assertEqual(len(self.curve(place)), 4)
        filler.write_bytes(bytes(one))
        self.complete(1, folder, 2, once)
        self.expect_told_once(self.complete(1, folder, 4, once, code=STORAGE), "resumes from step 2")
        filler.unlink()
        self.assertIn("LOAD: step 2 ", self.complete(1, folder, 4, once))
        self.assertEqual(self.checkpoints(folder)[-1], 4)

    def expect_told_once(self, text: str, next_start: str) -> None:
        self.assertRegex(text, "titan_train.*: the last checkpoint was not saved: .*No space left on device; "
                               f"see to that, and the same command {next_start}")
        told = [line for line in text.splitlines() if not line.startswith("titan_train launch: ")]  # repeats the last one
        self.assertEqual("\n".join(told).count("No space left on device"), 1, text)
        self.assertEqual(text.count("retrying once"), 1, text)

    def test_a_signal_ends_a_run_that_cannot_save_with_the_reason_and_without_a_promise(self):
        folder = self.folder / "run"
        self.mount(folder / "checkpoint", "size=1m")
        for ranks in (1, 2):
            run = self.begin(ranks, folder, "--checkpoint.interval=1000000")
            run.wait_for(" step:  3 ")
            run.popen.send_signal(signal.SIGUSR1)
            self.assertEqual(run.end(), INTERRUPTED, run.text())
            told = r"stopped by a signal after step \d+ of \d+; it is not saved: the same command starts from the beginning"
            self.assertRegex(run.text(), told)
            self.assertEqual(run.text().count("No space left on device"), 1, run.text())


if __name__ == "__main__":
    unittest.main()

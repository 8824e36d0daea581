"""Time to the first step, and memory that stays flat over a run."""

from __future__ import annotations

import subprocess
import time
import unittest

from program import FULL, ROOT, VALIDATION, BehaviourTest

START_LIMIT_SECONDS = 5.0


class Resources(BehaviourTest):
    def test_training_starts_within_five_seconds(self):
        """With the debug model as it is shipped; the better of two, since other work may share the machine."""
        self.assertLess(min(self.seconds_to_start() for _ in range(2)), START_LIMIT_SECONDS)

    def seconds_to_start(self) -> float:
        command = [self.program, "configs/debug_model.toml", f"--job.dump_folder={self.fresh_folder()}"]
        begin = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            for line in process.stdout:
                if "Training starts" in line:
                    return time.monotonic() - begin
        finally:
            process.kill()
            process.communicate()
        raise AssertionError("training did not start")

    def test_host_memory_is_flat_over_the_steps(self):
        last = 2000 if FULL else 240
        words = ("--metrics.log_freq=40", *VALIDATION, "--validation.freq=40")
        run = self.train(*words, "--validation.seq_len=64", "--validation.steps=2", steps=last)
        peaks = dict(zip(run.training("step"), run.training("memory_peak_rss_bytes"), strict=True))
        self.assertLess(peaks[last], 1.02 * peaks[40], peaks)


if __name__ == "__main__":
    unittest.main()

"""OpenMP's threads wait without taking the processor from others, unless the user has said how they shall wait."""

from __future__ import annotations

import os
import pathlib
import subprocess
import unittest

from program import ROOT, BehaviourTest

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


class Waiting(BehaviourTest):
    def environment_while_training(self, config: str | None = None, **settings: str) -> dict[str, str]:
        """The environment that the libraries of a run found when they were loaded. `config`: its text, from a pipe."""
        words = self.command("--training.steps=1000000", folder=self.fresh_folder())
        if config is not None:
            words[1] = "/dev/stdin"
        start = {name: value for name, value in os.environ.items() if name not in NAMES}
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env=start | settings,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        process.stdin.write(config or "")
        process.stdin.close()
        process.stdin = None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if "step: " in line:
                break
        else:
            self.fail("".join(printed))
        entries = pathlib.Path(f"/proc/{process.pid}/environ").read_text().split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)

    def test_threads_spin_briefly_before_they_sleep(self):
        self.assertEqual(self.environment_while_training()["GOMP_SPINCOUNT"], "3000")

    def test_what_the_user_says_about_waiting_stands(self):
        self.assertEqual(self.environment_while_training(GOMP_SPINCOUNT="7")["GOMP_SPINCOUNT"], "7")
        self.assertNotIn("GOMP_SPINCOUNT", self.environment_while_training(OMP_WAIT_POLICY="passive"))

    def test_a_config_from_a_pipe_is_read_once_and_trained(self):
        config = (ROOT / "configs" / "debug_model.toml").read_text()
        self.assertNotIn("GOMP_SPINCOUNT", self.environment_while_training(config=config))


if __name__ == "__main__":
    unittest.main()

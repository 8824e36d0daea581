"""OpenMP's threads wait without taking the processor from others, unless the user has said how they shall wait."""

from __future__ import annotations

import os
import re
import unittest
from unittest import mock

from program import OK, BehaviourTest

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


class Waiting(BehaviourTest):
    def spin_count(self, **settings: str) -> str:
        """The rounds that libgomp itself says it spins."""
        environment = {name: value for name, value in os.environ.items() if name not in NAMES}
        with mock.patch.dict(os.environ, environment | settings | {"OMP_DISPLAY_ENV": "VERBOSE"}, clear=True):
            run = self.train("--training.steps=1")
        self.assertEqual(run.code, OK, run.errors)
        return re.search(r"GOMP_SPINCOUNT = '(\w+)'", run.errors)[1]

    def test_threads_spin_briefly_before_they_sleep(self):
        self.assertEqual(self.spin_count(), "3000")

    def test_what_the_user_says_about_waiting_stands(self):
        self.assertEqual(self.spin_count(GOMP_SPINCOUNT="7"), "7")
        self.assertEqual(self.spin_count(OMP_WAIT_POLICY="passive"), "0")


if __name__ == "__main__":
    unittest.main()

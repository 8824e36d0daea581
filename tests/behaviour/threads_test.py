"""The threads of tensor operations are those that OpenMP really gives, and never more than the process may use."""

from __future__ import annotations

import os
import re
import subprocess
import unittest
from unittest import mock

from program import OUT_OF_MEMORY, ROOT, BehaviourTest, Run

TWO = "--training.threads=2"
# A model whose products oneDNN splits among threads.
LARGE = ["--model.override.dim=256", "--training.seq_len=256", "--debug.seed=1"]
NO_THREADS = {name: "" for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS")}


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


class Threads(BehaviourTest):
    def with_variables(self, *words, **variables: str) -> Run:
        kept = {name: value for name, value in os.environ.items() if name not in NO_THREADS}
        with mock.patch.dict(os.environ, kept | variables, clear=True):
            return self.train(*words)

    def threads_of(self, run: Run) -> int:
        lines = [match[1] for line in run.messages() if (match := re.search(r" memory, (\d+) threads?$", line))]
        self.assertEqual(len(lines), 1, run.output)
        return int(lines[0])

    def test_fewer_threads_than_asked_for_are_counted_and_said_and_losses_stay(self):
        losses = self.with_variables(*LARGE, TWO).training("loss")
        for name, value in {"OMP_THREAD_LIMIT": "1", "OMP_MAX_ACTIVE_LEVELS": "0"}.items():
            with self.subTest(name=name):
                run = self.with_variables(*LARGE, TWO, **{name: value})
                for got, wanted in zip(run.training("loss"), losses, strict=True):
                    self.assertAlmostEqual(got, wanted, delta=1e-4)
                said = [line for line in run.messages("WARNING") if line.startswith("OpenMP gives")]
                self.assertEqual(said, [f"OpenMP gives 1 of 2 threads ({name} = {value}): this run computes with 1"])
                self.assertEqual(self.threads_of(run), 1)

    def test_openmp_may_not_choose_fewer_threads_from_step_to_step(self):
        run = self.with_variables(*LARGE, TWO, OMP_DYNAMIC="true")
        for got, wanted in zip(
            run.training("loss"), self.with_variables(*LARGE, TWO).training("loss"), strict=True
        ):
            self.assertAlmostEqual(got, wanted, delta=1e-4)
        self.assertEqual(self.threads_of(run), 2)

    def test_without_a_number_they_are_those_of_the_affinity_and_of_openmps_variable(self):
        default = "--training.threads=0"
        with_all = self.with_variables(default)
        self.assertGreaterEqual(len(cores()), self.threads_of(with_all))
        self.assertEqual(self.threads_of(self.with_variables(default, OMP_NUM_THREADS="1")), 1)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores()[:1])
        try:
            self.assertEqual(self.threads_of(self.with_variables(default)), 1)
        finally:
            os.sched_setaffinity(0, before)

    def test_variables_that_make_products_less_exact_are_named(self):
        run = self.with_variables(ONEDNN_DEFAULT_FPMATH_MODE="BF16")
        (line,) = [line for line in run.messages("WARNING") if "ONEDNN_DEFAULT_FPMATH_MODE" in line]
        self.assertIn("unset it for exact ones", line)


class Stacks(BehaviourTest):
    def test_stacks_for_which_there_is_no_room_end_with_the_variables_name(self):
        with mock.patch.dict(os.environ, {"OMP_STACKSIZE": "100000000G"}):
            run = self.train(TWO, steps=1, exit_code=OUT_OF_MEMORY)
        self.assertIn("OMP_STACKSIZE = 100000000G", run.errors)


class ProcessLimit(BehaviourTest):
    """As another user who may read all files: root has no limit, and a limit counts all processes of a user."""

    def test_threads_beyond_it_end_with_its_name(self):
        capabilities = "+dac_override,+dac_read_search"
        user = ["setpriv", "--reuid=54321", f"--inh-caps={capabilities}", f"--ambient-caps={capabilities}"]
        if subprocess.run([*user, "true"], capture_output=True).returncode:
            self.skipTest("no right to become another user")
        for limit in range(1, 9):
            with self.subTest(limit=limit):
                command = self.command("--training.steps=1", "--training.threads=8", folder=self.folder / f"of-{limit}")
                done = subprocess.run(
                    [*user, "prlimit", f"--nproc={limit}", *command], capture_output=True, text=True, timeout=120, cwd=ROOT
                )
                self.assertEqual(done.returncode, OUT_OF_MEMORY, done.stdout + done.stderr)
                self.assertIn(f"ulimit -u is {limit}", done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()

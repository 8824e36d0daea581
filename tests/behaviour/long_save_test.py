"""A rank that is stopped, or slow, inside a save that holds training up: exactly there, by `dying_titan_train`."""

from __future__ import annotations

import errno
import os
import pathlib
import re
import signal
import time
import unittest

from checkpoint_runs import CheckpointTest, parallel
from program import binary
from rank_processes import END_LIMIT_SECONDS, HANG, Process

RANKS = 3
LAYOUT = parallel(dp_shard=RANKS)
HELD_STEP = 4  # saved before: step 2


class LongSave(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.use_dying_program()

    def hold(self, rank: int, limit: int, *words) -> tuple[Process, int]:
        """A run whose `rank` has come to write its part of step 4, and writes nothing until the descriptor is closed."""
        pipe = self.folder / f"pipe-{rank}"
        os.mkfifo(pipe)
        run = self.begin(RANKS, self.saved(rank), *LAYOUT, f"--comm.train_timeout_seconds={limit}", *words,
                         DIE_IN=f"{rank} {HELD_STEP} save 0", DIE_HOW=pipe)
        opened: list[int] = []
        self.wait_until(lambda: self.try_to_open(pipe, opened), f"rank {rank} in its save:\n{run.text()}")
        return run, opened[0]

    @staticmethod
    def try_to_open(pipe: pathlib.Path, opened: list[int]) -> bool:
        """It can be opened for writing once the rank has opened it for reading."""
        try:
            opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        return bool(opened)

    def saved(self, rank: int) -> pathlib.Path:
        return self.folder / f"held-{rank}"

    def unfinished(self, rank: int) -> list[str]:
        folder = self.saved(rank) / "checkpoint"
        return [path.name.rpartition("-")[0] for path in folder.glob("saving-[0-9]*")]

    def expect_end_of_a_stopped_save(self, held: int, stopped: int):
        limit = 8
        run, gate = self.hold(held, limit)
        process = self.process_of(run.text(), stopped)
        os.kill(process, signal.SIGSTOP)
        begin = time.monotonic()
        self.assertEqual(run.end(), HANG, run.text())
        self.assertLess(time.monotonic() - begin, limit + END_LIMIT_SECONDS)
        os.close(gate)
        told = rf"rank {stopped} \(\S+, process {process}\) hangs: it does not respond"
        self.assertRegex(run.text(), rf"(?m)^\[rank\d\] titan_train: {told}")
        self.assertRegex(run.text().splitlines()[-1], rf"^titan_train launch: rank \d .* code 76: {told}")
        self.expect_friendly(run.text())
        self.expect_nothing_left()
        self.assertEqual(self.checkpoints(self.saved(held)), [2])
        self.assertEqual(self.unfinished(held), [f"saving-{HELD_STEP}"])
        self.program = binary()
        text = self.complete(RANKS, self.saved(held), 6, *LAYOUT)
        self.assertEqual(self.loaded(text), 2)
        self.assertEqual(self.checkpoints(self.saved(held)), [2, 4, 6])
        self.assertEqual(self.unfinished(held), [])

    def test_a_rank_that_is_stopped_ends_the_run_in_time_and_the_last_checkpoint_is_loaded(self):
        self.expect_end_of_a_stopped_save(held=2, stopped=2)

    def test_a_rank_0_that_is_stopped_is_found_by_the_others(self):
        self.expect_end_of_a_stopped_save(held=0, stopped=0)

    def test_a_rank_that_is_stopped_is_found_while_another_one_still_writes(self):
        self.expect_end_of_a_stopped_save(held=0, stopped=2)

    def test_a_rank_that_writes_for_many_times_the_limit_and_lives_is_waited_for(self):
        for rank, waiter in ((0, "logs/rank-0001.log"), (2, None)):
            with self.subTest(slow=rank):
                run, gate = self.hold(rank, 1, "--training.steps=6")
                log = self.saved(rank) / waiter if waiter else run.path
                line = rf"A checkpoint barrier has waited (\d+) s for rank {rank}, which responds"

                def waited() -> list[int]:
                    return [int(seconds) for seconds in re.findall(line, log.read_text())]

                self.wait_until(lambda: run.popen.poll() is not None or max(waited(), default=0) >= 8, "a long wait")
                self.assertIsNone(run.popen.poll(), run.text())
                os.close(gate)
                self.assertEqual(run.end(), 0, run.text())
                self.expect_friendly(run.text())
                self.assertEqual(self.committed(run.text()), [2, 4, 6])
                self.assertEqual(len(waited()), len(set(waited())), "once in each second")


if __name__ == "__main__":
    unittest.main()

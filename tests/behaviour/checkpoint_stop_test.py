"""Signals to a run with checkpoints: it saves and asks to be queued again, or saves and continues."""

from __future__ import annotations

import gzip
import os
import pathlib
import re
import signal
import time
import unittest

from checkpoint_runs import KILLED, REQUEUE, CheckpointTest, parallel
from program import CORPORA, INTERRUPTED
from rank_processes import HANG

RARELY = "--checkpoint.interval=1000000"


class Signals(CheckpointTest):
    def stop(self, ranks: int, number: int, *words, to_rank: int | None = None, folder: str = "broken") -> int:
        """A run that is stopped by a signal after its third step: the step it says it has saved."""
        run = self.begin(ranks, self.folder / folder, RARELY, *words)
        text = run.wait_for(" step:  3 ")
        os.kill(run.popen.pid if to_rank is None else self.process_of(text, to_rank), number)
        self.assertEqual(run.end(), REQUEUE, run.text())
        self.expect_friendly(run.text())
        self.expect_nothing_left()
        step = int(re.search(r"stopped by a signal after step (\d+) of \d+; it is saved", run.text())[1])
        self.assertEqual(self.committed(run.text()), [step])
        if ranks > 1:
            self.assertTrue(run.text().endswith("titan_train launch: saved; run the same command to resume\n"), run.text())
        return step

    def expect_the_unbroken_run(self, ranks: int, stopped: int, *words):
        steps = stopped + 3
        text = self.complete(ranks, self.folder / "broken", steps, RARELY, *words)
        self.assertEqual(self.loaded(text), stopped)
        self.complete(ranks, self.folder / "whole", steps, RARELY, *words)
        self.assertEqual(self.curve(self.folder / "broken"), self.curve(self.folder / "whole"))
        self.expect_same_checkpoint(self.folder / "broken", self.folder / "whole", steps)

    def test_a_request_to_save_and_end_loses_no_step(self):
        self.expect_the_unbroken_run(1, self.stop(1, signal.SIGUSR1))

    def test_a_termination_request_and_ctrl_c_save_too(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            step = self.stop(1, number, folder=f"stopped-by-{number}")
            self.assertEqual(self.checkpoints(self.folder / f"stopped-by-{number}"), [step])

    def test_a_terminal_that_is_gone_saves_as_a_termination_request_does(self):
        for ranks in (1, 2):
            self.stop(ranks, signal.SIGHUP, folder=f"hangup-{ranks}")

    def begin_with_ignored(self, number: int, ranks: int, folder: str):
        """As nohup or a background shell starts it."""
        before = signal.signal(number, signal.SIG_IGN)
        try:
            return self.begin(ranks, self.folder / folder, RARELY, restore_signals=False)
        finally:
            signal.signal(number, before)

    def test_a_run_that_nohup_started_outlives_its_terminal(self):
        for ranks in (1, 2):
            run = self.begin_with_ignored(signal.SIGHUP, ranks, f"nohup-{ranks}")
            run.wait_for(" step:  3 ")
            run.popen.send_signal(signal.SIGHUP)
            run.wait_for(" step: 60 ")
            run.popen.send_signal(signal.SIGUSR1)
            self.assertEqual(run.end(), REQUEUE, run.text())

    def test_an_interrupt_that_a_background_shell_ignores_saves_all_the_same(self):
        for ranks in (1, 2):
            run = self.begin_with_ignored(signal.SIGINT, ranks, f"background-{ranks}")
            run.wait_for(" step:  3 ")
            run.popen.send_signal(signal.SIGINT)
            self.assertEqual(run.end(), REQUEUE, run.text())

    def test_before_the_first_step_nothing_is_saved(self):
        large = ("--model.override.dim=512", "--model.override.n_layers=8", "--model.override.n_heads=8")
        for ranks in (1, 2):
            for number in (signal.SIGTERM, signal.SIGUSR1):
                folder = self.folder / f"early-{ranks}-{number}"
                run = self.begin(ranks, folder, RARELY, *large)
                run.wait_for("Building ")
                run.popen.send_signal(number)
                self.assertEqual(run.end(), INTERRUPTED, run.text())
                self.assertIn("stopped by a signal after step 0 ", run.text())
                self.assertIn("it is not saved: the same command starts from the beginning", run.text())
                self.assertEqual(self.checkpoints(folder), [])

    def expect_saved_within(self, phase: str, *words, layouts, numbers) -> None:
        """Runs that are stopped after the first step, in a phase that would last for minutes."""
        for ranks, layout in layouts:
            for number in numbers:
                folder = self.folder / f"{phase}-{ranks}-{len(layout)}-{number}"
                run = self.begin(ranks, folder, RARELY, *layout, *words)
                run.wait_for(" step:  1 ")
                run.wait_for("memory by purpose, at the peak")
                run.popen.send_signal(number)
                self.assertEqual(run.end(), REQUEUE, run.text())
                self.assertEqual(self.checkpoints(folder), [1])
                self.expect_friendly(run.text())

    def test_ranks_leave_a_validation_together_and_save_its_step(self):
        corpus = self.folder / "validation.jsonl"
        corpus.write_bytes((CORPORA / "stories.jsonl").read_bytes() * 40)
        words = (
            "--validation.enable",
            "--validation.dataset=text",
            f"--validation.dataset_path={corpus}",
            "--validation.steps=-1",
            "--validation.local_batch_size=1",
            "--validation.seq_len=64",
        )
        layouts = [(1, []), (2, parallel(dp_shard=2)), (2, parallel(tp=2))]
        self.expect_saved_within("validation", *words, layouts=layouts, numbers=(signal.SIGTERM, signal.SIGINT))
        self.expect_saved_within("usr1", *words, layouts=[(2, parallel(pp=2))], numbers=(signal.SIGUSR1,))

    def test_ranks_leave_a_sample_together_and_save_its_step(self):
        words = ("--metrics.sample_freq=1", "--metrics.sample_tokens=100000", "--training.seq_len=8192",
                 "--training.local_batch_size=1", "--metrics.sample_prompt=Once")
        self.expect_saved_within("sample", *words, layouts=[(1, []), (2, parallel(dp_shard=2))], numbers=(signal.SIGTERM,))

    def endless_wait(self, name: str, records: int) -> pathlib.Path:
        """A corpus of so many records, and then 64 GB of blank lines, which take minutes to read."""
        corpus = self.folder / name
        texts = (CORPORA / "stories.jsonl").read_bytes().splitlines(keepends=True)[:records]
        blank = gzip.compress(b"\n" * (1 << 24))
        with corpus.open("wb") as file:
            file.write(gzip.compress(b"".join(texts)))
            for _ in range(4000):
                file.write(blank)
        return corpus

    def test_ranks_leave_a_wait_for_data_together_and_save_the_last_step(self):
        corpus = self.endless_wait("corpus.jsonl.gz", 300)
        for ranks, layout in ((1, []), (2, parallel(dp_shard=2))):
            for number in (signal.SIGTERM, signal.SIGUSR1):
                folder = self.folder / f"wait-{ranks}-{number}"
                run = self.begin(ranks, folder, RARELY, *layout, f"--training.dataset_path={corpus}")
                run.wait_for(" step:  1 ")
                pause = time.monotonic() + 2  # all steps that there is data for take less, or are left as they are
                self.wait_until(lambda: time.monotonic() > pause, "two seconds")
                run.popen.send_signal(number)
                self.assertEqual(run.end(), REQUEUE, run.text())
                self.assertEqual(len(self.checkpoints(folder)), 1)

    def test_a_wait_for_the_first_data_ends_with_nothing_saved(self):
        corpus = self.endless_wait("corpus.jsonl.gz", 0)
        for ranks, layout in ((1, []), (2, parallel(dp_shard=2))):
            folder = self.folder / f"first-{ranks}"
            run = self.begin(ranks, folder, RARELY, *layout, f"--training.dataset_path={corpus}")
            run.wait_for("Building ")
            run.popen.send_signal(signal.SIGTERM)
            self.assertEqual(run.end(), INTERRUPTED, run.text())
            self.assertEqual(self.checkpoints(folder), [])

    def test_one_rank_that_hears_it_is_enough(self):
        words = parallel(dp_shard=2)
        self.expect_the_unbroken_run(2, self.stop(2, signal.SIGUSR1, *words, to_rank=1), *words)

    def test_the_launcher_passes_it_on_and_ends_with_the_ranks_code(self):
        self.stop(2, signal.SIGTERM, *parallel(tp=2), "--checkpoint.async_mode=async")

    def test_a_request_is_heard_when_units_are_stepped_in_backward(self):
        self.stop(2, signal.SIGUSR1, *parallel(tp=2), "--optimizer.early_step_in_backward", "--training.max_norm=0",
                  to_rank=1)

    def test_a_request_to_save_is_followed_and_the_run_goes_on(self):
        for ranks in (1, 2):
            folder = self.folder / f"asked-{ranks}"
            run = self.begin(ranks, folder, RARELY)
            text = run.wait_for(" step:  3 ")
            os.kill(run.popen.pid if ranks == 1 else self.process_of(text, 1), signal.SIGUSR2)
            step = max(self.committed(run.wait_for(" committed: ")))
            run.wait_for(f" step: {step + 3:2} ")
            self.assertEqual(self.checkpoints(folder), [step])
            run.popen.send_signal(signal.SIGUSR1)
            self.assertEqual(run.end(), REQUEUE, run.text())

    def test_without_checkpoints_nothing_is_saved_and_the_run_says_so(self):
        run = self.start(*self.training())
        run.wait_for(" step:  3 ")
        run.popen.send_signal(signal.SIGUSR2)
        run.wait_for("SIGUSR2 asks for a checkpoint, and this run saves none")
        run.popen.send_signal(signal.SIGUSR1)
        self.assertEqual(run.end(), INTERRUPTED, run.text())
        self.assertIn("nothing was saved", run.text())

    def expect_end_of_a_stopped_save(self, end, *words):
        """A rank is stopped inside a save, `end` ends the run, and the next start loses one checkpoint at most."""
        folder, words = self.folder / "run", (*parallel(dp_shard=2), "--model.override.dim=256", *words)
        for _ in range(20):  # until a stop came before the rank's share was written
            run = self.begin(2, folder, *words, "--checkpoint.interval=1")
            rank = self.process_of(run.wait_for(" committed: "), 1)
            self.wait_until(lambda: self.saving(folder), "a checkpoint being written")
            os.kill(rank, signal.SIGSTOP)
            end(run, rank)
            self.expect_friendly(run.text())
            self.expect_nothing_left()
            step = max(self.committed(run.text()))
            inside = self.saving(folder) == [f"saving-{step + 1}"]
            text = self.complete(2, folder, step + 2, *words, "--checkpoint.interval=1")
            self.assertIn(self.loaded(text), (step, step + 1))
            self.assertEqual(self.saving(folder), [])
            if inside:
                break
        else:
            self.fail("no stop came inside a save")
        self.complete(2, self.folder / "whole", step + 2, *words, "--checkpoint.interval=1000")
        self.expect_same_checkpoint(folder, self.folder / "whole", step + 2)

    def test_a_rank_that_is_stopped_inside_a_save_beside_training_is_named_by_the_others(self):
        def end(run, rank):
            self.assertEqual(run.end(), HANG, run.text())
            self.assertRegex(run.text().splitlines()[-1], rf"rank 1 \(\S+, process {rank}\) hangs: it does not respond")

        self.expect_end_of_a_stopped_save(end, "--checkpoint.async_mode=async", "--comm.train_timeout_seconds=3")

    def test_a_rank_that_is_stopped_inside_a_save_and_killed_costs_one_checkpoint_at_most(self):
        def end(run, rank):
            os.kill(rank, signal.SIGKILL)
            self.assertEqual(run.end(), KILLED, run.text())

        self.expect_end_of_a_stopped_save(end, "--comm.train_timeout_seconds=3")

    @staticmethod
    def saving(folder) -> list[str]:
        """The unfinished checkpoints, without the name of the run."""
        return [path.name.rpartition("-")[0] for path in (folder / "checkpoint").glob("saving-[0-9]*")]

    def test_commands_after_saves_run_before_a_stopped_run_ends_or_are_named(self):
        for ranks in (1, 2):
            note = self.folder / f"note-{ranks}"
            run = self.begin(ranks, self.folder / f"quick-{ranks}", RARELY,
                             f"--checkpoint.on_commit=sleep 1; echo {{dir}} >> {note}")
            run.wait_for(" step:  3 ")
            run.popen.send_signal(signal.SIGUSR1)
            self.assertEqual(run.end(), REQUEUE, run.text())
            self.assertEqual(len(note.read_text().splitlines()), 1)
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        run = self.begin(1, self.folder / "slow", f"--checkpoint.on_commit=read line < {pipe}")
        run.wait_for("checkpoint 6 committed")
        run.popen.send_signal(signal.SIGTERM)
        self.assertEqual(run.end(), REQUEUE, run.text())
        self.assertIn("checkpoint.on_commit of step 2 has not ended", run.text())
        self.assertRegex(run.text(), r"checkpoint\.on_commit was not run for step 4, step 6")
        os.close(os.open(pipe, os.O_RDWR))
        run = self.begin(1, self.folder / "end", "--training.steps=2", f"--checkpoint.on_commit=read line < {pipe}")
        run.wait_for("waiting for checkpoint.on_commit of step 2")
        pipe.write_text("go on\n")
        self.assertEqual(run.end(), 0, run.text())

    def test_seconds_between_checkpoints_are_agreed_on_by_all_ranks(self):
        folder = self.folder / "timed"
        run = self.begin(2, folder, *parallel(dp_shard=2), "--checkpoint.interval_seconds=1")
        run.wait_for(" committed: ")
        self.wait_until(lambda: len(self.checkpoints(folder)) >= 2, "two checkpoints")
        run.popen.send_signal(signal.SIGUSR1)
        self.assertEqual(run.end(), REQUEUE, run.text())
        self.assertLess(len(self.committed(run.text())), 20, "not after every second step")


if __name__ == "__main__":
    unittest.main()

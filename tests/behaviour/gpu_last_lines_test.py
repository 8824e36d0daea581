"""On a GPU a step is reported one or two steps later. However a run ends, finished steps are reported first."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import signal
import time
import unittest

from mock_gpu import MockGpu
from program import BAD_DATA, INTERRUPTED, OUT_OF_MEMORY, SMALL
from rank_processes import Process, RanksTest

KILLED = 128 + signal.SIGKILL


class LastLines(MockGpu, RanksTest):
    def hanging_in_step_5(self, *launch: str, rank: int = 0) -> Process:
        """One rank does so, before the step: two lines are told, and two steps finished whose lines are not."""
        self.use_dying_program()
        words = ("configs/debug_model.toml", *SMALL, "--training.steps=1000000", "--training.device=cuda",
                 f"--job.dump_folder={self.folder}/run")  # fmt: skip
        mock = {"LD_PRELOAD": self.mock, "LD_LIBRARY_PATH": self.mock.parent, "MOCK_CUDA_DEVICES": 2,
                "MOCK_CUDA_HOLLOW": 1}  # fmt: skip
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        run = self.start(*launch, *words, **mock, RANK=0, DIE_IN=f"{rank} 5 data 0", DIE_HOW=pipe)
        run.wait_for("step:  2 ")
        for writer in self.opened_for_writing(pipe):
            self.addCleanup(os.close, writer)
        return run

    def opened_for_writing(self, pipe: pathlib.Path) -> list[int]:
        """As soon as somebody reads it, who then hangs until it is closed."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                return [os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)]
            time.sleep(0.01)
        self.fail("nobody hangs")

    def expect_steps(self, text: str, folder: pathlib.Path, last: int):
        wanted = [*range(1, last + 1)]
        told = [step for step in wanted if f"step: {step:2} " in text]
        self.assertEqual((told, text.count(" step: ")), (wanted, last), text)
        recorded = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in recorded], wanted)

    def test_of_steps_before_a_failure_are_told(self):
        story = "Once upon a time a fox lost its hat and went to look for it under the bridge. " * 9
        corpus = self.write("corpus.jsonl", "".join([json.dumps({"text": story}) + "\n"] * 40 + ["no record\n"]))
        words = ("--training.dataset=text", f"--training.dataset_path={corpus}", "--data.prefetch=1")
        alone = self.start(*self.training(*words, "--training.local_batch_size=4"))
        self.assertEqual(alone.end(), BAD_DATA, alone.text())
        last = alone.text().count(" step: ")
        self.assertGreater(last, 5)
        self.expect_steps(alone.text(), self.folder / "run", last)
        self.use_dying_program()

        def rank_1_hangs_in(step: int) -> dict[str, str]:
            # Rank 0 ends by its own failure: if rank 1 failed first, it would end somewhere in the last step.
            return {"DIE_IN": f"1 {step} data 0", "DIE_HOW": "hang"}

        both = self.launch_training(2, *words, f"--job.dump_folder={self.folder}/both", **rank_1_hangs_in(last + 1))
        self.assertEqual(both.end(), BAD_DATA, both.text())
        self.expect_steps(both.text(), self.folder / "both", last)
        for ranks, settings in ((1, {}), (2, rank_1_hangs_in(5))):  # the mock's ranks do not wait for each other
            with self.subTest(ranks=ranks):
                batch = f"--training.local_batch_size={4 // ranks}"
                run = self.on_gpu(*SMALL, *words, batch, "--training.steps=1000", ranks=ranks, code=BAD_DATA, **settings)
                self.expect_steps(run.output, run.folder, last)
                self.assertIn("corpus.jsonl", run.errors)

    def test_of_steps_before_memory_ran_out_are_told_and_its_table_is_of_that_moment(self):
        small = ("--training.local_batch_size=2", "--training.seq_len=64", "--training.steps=4", "--debug.dump_steps=3")
        run = self.on_gpu(*small, code=OUT_OF_MEMORY, MOCK_CUDA_MIB=215)
        self.expect_steps(run.output, run.folder, 2)
        held = re.findall(r"together +[\d.]+ MiB +([\d.]+) MiB", run.output)
        self.assertEqual(len(held), 2, run.output)  # of the first step, and of the end
        self.assertGreater(float(held[1]), 200)

    def test_of_a_rank_that_ends_because_another_was_killed_are_told(self):
        run = self.hanging_in_step_5("launch", "-n", "2")
        os.kill(self.process_of(run.text(), 1), signal.SIGKILL)
        self.assertEqual(run.end(), KILLED, run.text())
        self.assertRegex(run.text(), r"titan_train: rank 1 \(.*\) ended without a message")
        self.expect_steps(run.text(), self.folder / "run", 4)
        self.expect_nothing_left()

    def test_of_a_rank_that_ends_because_rank_0_was_killed_are_recorded(self):
        run = self.hanging_in_step_5("launch", "-n", "2", "--metrics.save_for_all_ranks", rank=1)
        records = self.folder / "run" / "rank-0001" / "metrics.jsonl"
        os.kill(self.process_of(run.text(), 0), signal.SIGKILL)
        self.assertEqual(run.end(), KILLED, run.text())
        self.assertEqual([json.loads(line)["step"] for line in records.read_text().splitlines()], [1, 2, 3, 4])
        self.expect_nothing_left()

    def test_are_told_before_a_second_ctrl_c_ends_the_process(self):
        run = self.hanging_in_step_5()
        while run.popen.poll() is None:
            run.popen.send_signal(signal.SIGINT)
            time.sleep(0.05)
        self.assertEqual(run.end(), INTERRUPTED, run.text())
        self.expect_steps(run.text(), self.folder / "run", 4)


if __name__ == "__main__":
    unittest.main()

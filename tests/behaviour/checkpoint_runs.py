"""Runs with checkpoints, of one process or several: started, killed, given the same command again, compared."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal

from program import STORAGE
from rank_processes import Process, RanksTest

KILLED = 128 + signal.SIGKILL
REQUEUE = 75
SAVING = [
    "--checkpoint.enable",
    "--checkpoint.interval=2",
    "--checkpoint.last_save_model_only=false",
    "--checkpoint.keep_latest_k=0",
    "--lr_scheduler.total_steps=1000",
    "--training.mixed_precision_param=float32",
]


def parallel(**degrees: int) -> list[str]:
    """Options of a layout: dp_replicate, dp_shard, tp, pp, cp."""
    names = {
        "dp_replicate": "data_parallel_replicate_degree",
        "dp_shard": "data_parallel_shard_degree",
        "tp": "tensor_parallel_degree",
        "pp": "pipeline_parallel_degree",
        "cp": "context_parallel_degree",
    }
    given = {"dp_shard": 1} | degrees
    return [f"--parallelism.{names[axis]}={degree}" for axis, degree in given.items()]


class CheckpointTest(RanksTest):
    def begin(self, ranks: int, folder: pathlib.Path, *words, **more) -> Process:
        """Starts a training of `ranks` ranks that saves into `folder`; it lasts until something ends it."""
        words = (*SAVING, *words, f"--job.dump_folder={folder}")
        if ranks == 1:
            return self.start(*self.training(*words), **more)
        return self.launch_training(ranks, *words, **more)

    def complete(self, ranks: int, folder: pathlib.Path, steps: int, *words, code: int = 0, **more) -> str:
        """The same to its end: what it printed."""
        run = self.begin(ranks, folder, *words, f"--training.steps={steps}", **more)
        self.assertEqual(run.end(), code, run.text())
        self.expect_friendly(run.text())
        return run.text()

    def kill_after(self, ranks: int, folder: pathlib.Path, step: int, *words) -> tuple[str, int]:
        """A training whose last rank is killed once `step` is committed: what it printed, and the newest step it
        said to be committed."""
        run = self.begin(ranks, folder, *words)
        run.wait_for(f"checkpoint {step} committed: ")
        victim = run.popen.pid if ranks == 1 else self.process_of(run.text(), ranks - 1)
        os.kill(victim, signal.SIGKILL)
        self.assertEqual(run.end(), -signal.SIGKILL if ranks == 1 else KILLED, run.text())
        self.expect_nothing_left()
        return run.text(), max(self.committed(run.text()))

    @staticmethod
    def committed(text: str) -> list[int]:
        return [int(step) for step in re.findall(r"checkpoint (\d+) committed: ", text)]

    def loaded(self, text: str) -> int:
        """The step that a run began with; it was whole, and none newer was found damaged."""
        line = re.search(r"LOAD: step (\d+) from (\S+) \(verified, [^)]*\)(?:; left out: .*)?$", text, re.MULTILINE)
        self.assertTrue(line, text)
        return int(line[1])

    @staticmethod
    def checkpoints(folder: pathlib.Path) -> list[int]:
        return sorted(int(path.name[5:]) for path in (folder / "checkpoint").glob("step-*"))

    def curve(self, folder: pathlib.Path) -> dict[int, tuple]:
        """Loss, norm and tokens by step; a step that was taken twice came out the same."""
        steps: dict[int, tuple] = {}
        for line in (folder / "metrics.jsonl").read_text().splitlines():
            values = json.loads(line)
            numbers = (values["loss"], values["grad_norm"], values["tokens_seen"])
            self.assertEqual(steps.setdefault(values["step"], numbers), numbers, f"step {values['step']} taken again")
        return steps

    def expect_same_checkpoint(self, a: pathlib.Path, b: pathlib.Path, step: int) -> None:
        """Weights, moments, settings, data position and progress, bit for bit."""
        names = sorted(path.name for path in (a / f"checkpoint/step-{step}").glob("*.distcp"))
        self.assertEqual(names, sorted(path.name for path in (b / f"checkpoint/step-{step}").glob("*.distcp")))
        self.assertTrue(names)
        for name in names:
            same = (a / f"checkpoint/step-{step}" / name).read_bytes() == (b / f"checkpoint/step-{step}" / name).read_bytes()
            self.assertTrue(same, f"{name} of step {step}")


class SavedRunTest(CheckpointTest):
    """Begins with a run's checkpoints, and spoils them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.saved: pathlib.Path | None = None

    def run_with_checkpoints(self) -> pathlib.Path:
        """A folder with steps 2 and 4, a copy of the one that the first test makes."""
        cls = type(self)
        if cls.saved is None:
            self.complete(1, self.folder / "made", 4)
            cls.saved = pathlib.Path(f"{self.folder}-saved")
            shutil.copytree(self.folder / "made" / "checkpoint", cls.saved)
            cls.addClassCleanup(shutil.rmtree, cls.saved)
        folder = self.folder / "run"
        shutil.copytree(cls.saved, folder / "checkpoint")
        return folder

    def refuse(self, folder: pathlib.Path, says: list[str], *words, ranks: int = 1, code: int = STORAGE) -> str:
        """The run ends with `code` and one line on standard error that holds all of `says`; the folder stays as it is."""
        before = self.tree(folder / "checkpoint")
        text = self.complete(ranks, folder, 8, *words, code=code)
        told = [line for line in text.splitlines() if "titan_train: " in line]
        self.assertEqual(len(told), 1, text)
        for part in says:
            self.assertIn(part, told[0])
        self.assertEqual(self.tree(folder / "checkpoint"), before)
        self.assertNotIn(" step:  ", text)
        return told[0]

"""titan_train schedule against PyTorch: the order of compute actions on every rank, and CSV files in both directions.

PyTorch's schedules are asked without processes: those of several stages per rank make their whole table when they are
made, and the two of one stage are run on a stage that only writes down what it is told to do.
"""

from __future__ import annotations

import csv
import io
import logging
import pathlib
import random
import subprocess
import tempfile
import types
import unittest
from unittest import mock

import torch
from torch.distributed.pipelining import schedules

import titan

SINGLE = ("GPipe", "1F1B")
LOOPED = ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
V_SHAPED = ("ZBVZeroBubble", "DualPipeV")
Table = list[list[str]]


class RecordingStage(mock.MagicMock):
    """Stands for one stage of a pipeline; `done` is what the schedule had it do."""

    def __init__(self, stage: int, ranks: int):
        super().__init__(
            stage_index=stage, num_stages=ranks, group_size=ranks, is_first=False, is_last=False, has_backward=True
        )
        self.done: list[str] = []
        self.forward_one_chunk = lambda m, *_, **__: self.done.append(f"{stage}F{m}")
        self.backward_one_chunk = lambda m, **_: self.done.append(f"{stage}B{m}")
        for name in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
            setattr(self, name, lambda _: [])

    def _get_child_mock(self, **arguments):
        return mock.MagicMock(**arguments)


def recorded(name: str, rank: int, ranks: int, microbatches: int) -> list[str]:
    stage = RecordingStage(rank, ranks)
    schedule = schedules.get_schedule_class(name)(stage, microbatches, loss_fn=lambda *_: torch.zeros(()))
    schedule._initialize_stage = lambda *_: None
    schedule._step_microbatches([()] * microbatches, [{}] * microbatches, None, None)
    return stage.done


def multi_stage(name: str, ranks: int, stages: int, microbatches: int):
    stand_ins = [
        types.SimpleNamespace(num_stages=ranks * stages, group_size=ranks, group_rank=0, submod=None)
        for _ in range(stages)
    ]
    return schedules.get_schedule_class(name)(stand_ins, microbatches)


def of_pytorch(name: str, ranks: int, stages: int, microbatches: int) -> Table:
    """Without the idle time that some of its schedules write down. Raises ValueError for an illegal shape."""
    if name in SINGLE:
        return [recorded(name, rank, ranks, microbatches) for rank in range(ranks)]
    order = multi_stage(name, ranks, stages, microbatches).pipeline_order
    return [[str(action) for action in order[rank] if action is not None] for rank in range(ranks)]


class Schedules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.binary = titan.binary()
        logging.getLogger("torch.distributed.pipelining").setLevel(logging.ERROR)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "table.csv"

    def titan(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.binary, "schedule", *words], text=True, capture_output=True, check=False)

    def table(self, name: str, ranks: int, stages: int, microbatches: int, *words: str) -> Table | None:
        shape = [f"--ranks={ranks}", f"--stages-per-rank={stages}", f"--microbatches={microbatches}"]
        run = self.titan(f"--name={name}", *shape, f"--csv={self.file}", *words)
        if run.returncode == 64:
            return None
        self.assertEqual(run.returncode, 0, run.stderr)
        return list(csv.reader(io.StringIO(self.file.read_text())))

    def shapes(self):
        """Corners, and shapes drawn at random, legal and not."""
        draw = random.Random(20240617)
        for name in SINGLE + LOOPED + V_SHAPED:
            usual = 1 if name in SINGLE else 2
            corners = [(1, usual, 2), (2, usual, 1), (4, usual, 8), (3, usual, 7)]
            drawn = [(draw.randint(2, 8), usual, draw.randint(1, 32)) for _ in range(2)]
            if name in LOOPED:
                drawn += [(draw.randint(2, 8), draw.randint(3, 4), draw.randint(1, 32)) for _ in range(2)]
            for shape in corners + drawn:
                yield name, *shape

    def test_every_rank_computes_in_the_order_of_pytorch_and_the_same_shapes_are_illegal(self):
        refused = 0
        for name, ranks, stages, microbatches in self.shapes():
            with self.subTest(name=name, ranks=ranks, stages=stages, microbatches=microbatches):
                try:
                    expected = of_pytorch(name, ranks, stages, microbatches)
                except ValueError:
                    expected = None  # refused here and there
                    refused += 1
                self.assertEqual(self.table(name, ranks, stages, microbatches), expected)
        self.assertGreater(refused, 2)

    def test_pytorch_can_run_the_lowered_tables(self):
        for name in LOOPED + V_SHAPED:
            with self.subTest(name=name):
                self.assertIsNotNone(self.table(name, 4, 2, 8, "--lowered"))
                schedule = multi_stage(name, 4, 2, 8)
                compute = schedule.pipeline_order
                schedule._load_csv(str(self.file), format="compute_comms")
                lowered = schedule.pipeline_order_with_comms
                # Its simulator knows computing, sends and receives only.
                schedule.pipeline_order_with_comms = {
                    rank: [action for action in actions if action.microbatch_index is not None]
                    for rank, actions in lowered.items()
                }
                self.assertTrue(schedule._simulate())
                kept = {
                    rank: [
                        part
                        for action in actions
                        if action is not None
                        for part in (action.sub_actions or (action,))
                        if part.is_compute_op
                    ]
                    for rank, actions in compute.items()
                }
                self.assertEqual({rank: [a for a in lowered[rank] if a.is_compute_op] for rank in lowered}, kept)

    def test_the_schedule_of_the_former_integration_tests_is_read_and_simulated(self):
        run = self.titan(f"--from={titan.shared('custom_schedule.csv')}")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("2 ranks, 4 stages, 8 microbatches", run.stdout)

    def test_tables_that_pytorch_writes_are_read_plain_and_lowered(self):
        for name in LOOPED + V_SHAPED:
            for form in ("compute_only", "compute_comms"):
                with self.subTest(name=name, form=form):
                    multi_stage(name, 4, 2, 8)._dump_csv(str(self.file), format=form)
                    run = self.titan(f"--from={self.file}")
                    self.assertEqual(run.returncode, 0, run.stderr)
                    self.assertIn("4 ranks, 8 stages, 8 microbatches", run.stdout)


if __name__ == "__main__":
    unittest.main()

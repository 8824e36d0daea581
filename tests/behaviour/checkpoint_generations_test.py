"""Whole runs under both generations of torchtitan's names: Python's checkpoint of December 2024 is resumed, and Python
loads strictly what torchtitan asks for, of either generation."""

from __future__ import annotations

import contextlib
import io
import pathlib
import pickle
import unittest

import torch
import torch.distributed.checkpoint as dcp
from checkpoint_runs import CheckpointTest, parallel
from llama import Llama, rotary_table
from program import OK
from shapes import Shape
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

LENGTH = 64  # of a sequence, program.SMALL's
SHAPE = Shape(dim=64, layers=2, heads=4, kv_heads=4, vocab=2048, theta=5e5)
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
LISTS = ("global_avg_losses", "global_max_losses", "log_steps")


def in_a_file(value) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    return file


class Trainer:
    """What torchtitan has of a run of the small model after one step, all of it different from what titan has."""

    def __init__(self):
        torch.manual_seed(77)
        self.model = Llama(SHAPE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.5, betas=(0.5, 0.6), fused=True)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        self.model(torch.zeros(1, 8, dtype=torch.int64)).square().mean().backward()
        self.optimizer.step()
        self.scheduler.step()

    def state_of_2024(self, positions: list[bytes]) -> dict:
        """Section 5.1's keys of December 2024."""
        return {
            "model": {**self.model.state_dict(), "freqs_cis": rotary_table(SHAPE, LENGTH)},
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=FLAT),
            "lr_scheduler": self.scheduler.state_dict(),
            "dataloader": {f"dp_rank_{rank}": position for rank, position in enumerate(positions)},
            "train_state": {"step": torch.tensor(1, dtype=torch.int32), **{name: in_a_file([1.0]) for name in LISTS}},
        }

    def last_state(self) -> dict:
        """Section 5.1's LAST keys."""
        return {
            **self.model.state_dict(),
            "optimizer": get_optimizer_state_dict(self.model, self.optimizer, options=FLAT),
            "lr_scheduler": self.scheduler.state_dict(),
            "dataloader": {"dp_rank_0": b"", "world_size": 0},
            "train_state": {"step": torch.tensor(1, dtype=torch.int32), "ntokens_seen": torch.tensor(1)},
        }


class Generations(CheckpointTest):
    def expect_loaded(self, trainer: Trainer, state: dict, folder: pathlib.Path, step: int) -> None:
        """All of `state` is what `folder` holds, and the library's own objects take it."""
        with contextlib.redirect_stdout(io.StringIO()):
            dcp_to_torch_save(folder, self.folder / "all.pt")
        stored = torch.load(self.folder / "all.pt", weights_only=False)
        weights = state.get("model", state)
        names = [name for name, _ in trainer.model.named_parameters()]
        self.assertEqual(len(names), 21)
        held = stored.get("model", stored)
        for name in names:
            self.assertTrue(torch.equal(weights[name], held[name]), name)
            for moment in ("exp_avg", "exp_avg_sq"):
                key = f"state.{name}.{moment}"
                self.assertTrue(torch.equal(state["optimizer"][key], stored["optimizer"][key]), key)
                self.assertGreater(state["optimizer"][key].abs().max().item(), 0)
        self.assertEqual(state["train_state"]["step"].item(), step)
        set_optimizer_state_dict(trainer.model, trainer.optimizer, state["optimizer"], options=FLAT)
        trainer.scheduler.load_state_dict(state["lr_scheduler"])
        self.assertEqual(trainer.scheduler.last_epoch, step)
        self.assertEqual(trainer.optimizer.param_groups[0]["betas"], (0.9, 0.95))
        self.assertEqual(trainer.optimizer.state[trainer.model.norm.weight]["step"].item(), step)

    def test_python_loads_strictly_what_a_run_has_saved(self):
        for name, ranks, words in (("single", 1, {}), ("fsdp", 2, {"dp_shard": 2}), ("pipeline", 2, {"pp": 2})):
            folder = self.folder / name
            self.complete(ranks, folder, 2, *parallel(**words))
            trainer = Trainer()
            state = trainer.last_state()
            saved = folder / "checkpoint/step-2"
            dcp.load(state, checkpoint_id=saved)
            self.expect_loaded(trainer, state, saved, 2)
            self.assertGreater(state["train_state"]["ntokens_seen"].item(), 0)
            self.assertIn("titan_stream", pickle.loads(state["dataloader"]["dp_rank_0"]))

    def to_2024(self, saved: pathlib.Path) -> pathlib.Path:
        target = self.folder / f"2024/{saved.parents[1].name}"
        run = self.titan("convert", "to-2024", saved, target, *self.training())
        self.expect(run, OK)
        self.assertIn("21/21 tensors", run.output)
        return target

    def test_python_loads_strictly_the_names_of_2024_too_from_what_convert_makes_of_it(self):
        self.complete(2, self.folder / "run", 2, *parallel(dp_shard=2))
        target = self.to_2024(self.folder / "run/checkpoint/step-2")
        trainer = Trainer()
        state = trainer.state_of_2024([b"", b""])
        state["model"]["freqs_cis"].zero_()
        dcp.load(state, checkpoint_id=target)
        self.expect_loaded(trainer, state, target, 2)
        table, expected = state["model"]["freqs_cis"], rotary_table(SHAPE, LENGTH)
        self.assertTrue(torch.allclose(table, expected, atol=1e-4))
        for name in LISTS:
            state["train_state"][name].seek(0)
            self.assertEqual(torch.load(state["train_state"][name]), [])
        keys = dcp.FileSystemReader(target).read_metadata().state_dict_metadata
        for key in keys:
            self.assertRegex(key, r"^(model|optimizer\.(state|param_groups)|lr_scheduler|dataloader\.dp_rank_|train_state)")
            self.assertNotRegex(key, "titan|ntokens|world_size")

    def saved_by_python(self, source: pathlib.Path, target: pathlib.Path, position: bytes | None, schedules: int) -> None:
        """The run in `source` as torchtitan of December 2024 would have saved it, with another learning rate."""
        trainer = Trainer()
        state = trainer.last_state()
        dcp.load(state, checkpoint_id=source)
        step = state["train_state"]["step"]
        set_optimizer_state_dict(trainer.model, trainer.optimizer, state["optimizer"], options=FLAT)
        trainer.model.load_state_dict({name: state[name] for name in trainer.model.state_dict()})
        former = trainer.state_of_2024([position or state["dataloader"]["dp_rank_0"]])
        former["train_state"]["step"] = step
        schedule = trainer.scheduler.state_dict() | {"last_epoch": 9, "base_lrs": [7.0], "_last_lr": [7.0]}
        del former["lr_scheduler"]
        former |= {"lr_scheduler" if schedules == 1 else f"lr_scheduler_{i}": schedule for i in range(schedules)}
        dcp.save(former, checkpoint_id=target)

    def test_a_run_of_december_2024_goes_on_with_its_model_moments_step_and_the_rate_of_the_step(self):
        words = ("--lr_scheduler.warmup_steps=3", "--checkpoint.interval=4")
        whole, first = self.folder / "whole", self.folder / "first"
        self.complete(1, whole, 8, *words)
        self.complete(1, first, 4, *words)
        for ranks, schedules in ((1, 1), (2, 2)):
            resumed = self.folder / f"resumed-{ranks}"
            self.saved_by_python(first / "checkpoint/step-4", resumed / "checkpoint/step-4", None, schedules)
            text = self.complete(ranks, resumed, 8, *words, *parallel(tp=ranks))
            self.assertRegex(text, r"LOAD: step 4 from \S+ \(unverified, ")
            self.assertIn("it does not say how many tokens were seen", text)
            self.assertIn("its lists of past losses are not taken over", text)
            found, expected = self.curve(resumed), self.curve(whole)
            self.assertEqual(list(found), [5, 6, 7, 8])
            for step, numbers in found.items():
                for mine, theirs in zip(numbers[:2], expected[step][:2], strict=True):
                    self.assertTrue(mine == theirs if ranks == 1 else abs(mine - theirs) < 1e-4 * theirs, (step, mine, theirs))

    def test_what_could_not_be_restored_of_it_is_said(self):
        first, resumed = self.folder / "first", self.folder / "resumed"
        self.complete(1, first, 4)
        theirs = pickle.dumps({"_sample_idx": 5, "_token_buffer": [1, 2]})
        self.saved_by_python(first / "checkpoint/step-4", resumed / "checkpoint/step-4", theirs, 1)
        text = self.complete(1, resumed, 5)
        self.assertRegex(text, r"the data position could not be restored \(.*\): the data begin anew")
        self.assertIn("Training starts at step 5", text)

    def test_what_convert_makes_of_a_run_is_a_run_again(self):
        whole, first = self.folder / "whole", self.folder / "first"
        self.complete(1, whole, 6)
        self.complete(1, first, 4)
        self.to_2024(first / "checkpoint/step-4").rename(self.folder / "2024/step-4")
        (self.folder / "2024").rename(self.folder / "again")
        text = self.complete(1, self.folder / "again", 6, f"--checkpoint.folder={self.folder}/again")
        self.assertEqual(self.loaded(text), 4)
        self.assertNotIn("lists of past losses", text, "which are empty")
        found, expected = self.curve(self.folder / "again"), self.curve(whole)
        self.assertEqual([found[step][:2] for step in (5, 6)], [expected[step][:2] for step in (5, 6)])


if __name__ == "__main__":
    unittest.main()

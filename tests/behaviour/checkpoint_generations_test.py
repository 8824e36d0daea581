"""Whole runs in the forms of both generations of torchtitan: each program resumes what the other has saved, and Python
loads strictly all that torchtitan's state dict holds."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import pickle
import shutil
import subprocess
import sys
import unittest

import torch
import torch.distributed.checkpoint as dcp
import torchtitan_release
from checkpoint_runs import CheckpointTest, parallel
from llama import rotary_table
from program import FULL, OK, STORAGE
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torchtitan_release import LAYOUTS, LISTS, SHAPE, Loader, Release, state_of_2024

LENGTH = 64  # of a sequence, program.SMALL's

# How torchtitan's ranks are laid out, and titan's: the same, and another layout that resumes what either has saved.
EXCHANGES = [
    ("fsdp2xtp2", {"dp_shard": 2, "tp": 2}, "bfloat16", "async_save", {}),
    ("single", {}, "float32", "save", {"dp_shard": 2}),
    ("fsdp2", {"dp_shard": 2}, "bfloat16", "pinned", {}),
    ("fsdp4", {"dp_shard": 4}, "float32", "async_save", {"tp": 2}),
    ("hsdp2x2", {"dp_replicate": 2, "dp_shard": 2}, "float32", "pinned", {"pp": 2}),
    ("fsdp2xtp2", {"dp_shard": 2, "tp": 2}, "float32", "pinned", {"dp_shard": 4}),
]


class Generations(CheckpointTest):
    def whole(self, folder: pathlib.Path) -> dict:
        """The model and the moments in a checkpoint, by name."""
        with contextlib.redirect_stdout(io.StringIO()):
            dcp_to_torch_save(folder, self.folder / "all.pt")
        stored = torch.load(self.folder / "all.pt", weights_only=False)
        tensors = {key: value for key, value in stored.get("model", stored).items() if isinstance(value, torch.Tensor)}
        tensors.pop("freqs_cis", None)
        return tensors | {key: value for key, value in stored["optimizer"].items() if isinstance(value, torch.Tensor)}

    def expect_same_tensors(self, found: dict, expected: dict) -> None:
        self.assertEqual(found.keys(), expected.keys())
        self.assertEqual(len(found), 4 * 21)
        for name, tensor in found.items():
            self.assertEqual(tensor.dtype, expected[name].dtype, name)
            self.assertTrue(torch.equal(tensor, expected[name]), name)
            self.assertGreater(tensor.abs().max().item(), 0, name)

    def expect_loaded(self, release: Release, folder: pathlib.Path, step: int) -> None:
        """All of it is what `folder` holds."""
        optimizer = {key: value for key, value in release.optimizer.state_dict().items() if isinstance(value, torch.Tensor)}
        self.expect_same_tensors(release.model.state_dict() | optimizer, self.whole(folder))
        held = release.held()
        self.assertEqual((held["step"], held["last_epoch"], held["settings"][1:]), (step, step, [0.9, 0.95, 0.1]))

    def test_python_loads_strictly_what_a_run_has_saved(self):
        for name, ranks, words in (("single", 1, {}), ("fsdp", 2, {"dp_shard": 2}), ("pipeline", 2, {"pp": 2})):
            folder = self.folder / name
            self.complete(ranks, folder, 2, *parallel(**words))
            release = Release()
            data_ranks = words.get("dp_shard", 1)
            release.loader = Loader(data_ranks - 1, data_ranks)
            saved = folder / "checkpoint/step-2"
            release.load(saved)
            self.expect_loaded(release, saved, 2)
            self.assertEqual(release.held()["ntokens_seen"], 2 * 2 * LENGTH, "of one rank")
            self.assertTrue(release.held()["plain"])

    def exchange(self, layout: str, words: dict, dtype: str, mode: str, other: dict) -> None:
        """titan saves; torchtitan's containers load that and save it; titan resumes both in another layout."""
        folder = self.folder / f"{layout}-{dtype}-{mode}"
        types = (f"--training.dtype={dtype}", f"--optimizer.state_dtype={dtype}",
                 "--checkpoint.async_mode=async_with_pinned_mem")  # fmt: skip
        ranks, other_ranks = (torch.Size(degrees.values()).numel() for degrees in (words, other))
        saved, theirs = (folder / f"{name}/checkpoint/step-2" for name in ("own", "theirs"))
        self.complete(ranks, folder / "made", 2, *types, *parallel(**words))
        shutil.copytree(folder / "made/checkpoint/step-2", saved)
        job = {"source": str(saved), "target": str(theirs), "layout": layout, "dtype": dtype, "mode": mode}
        done = subprocess.run([sys.executable, torchtitan_release.__file__, json.dumps(job)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        tokens = self.curve(folder / "made")[2][2]
        for held in json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[{"))):
            self.assertEqual((held["step"], held["ntokens_seen"]), (2, tokens // LAYOUTS[layout][2]))
            self.assertEqual((held["last_epoch"], held["settings"][1:]), (2, [0.9, 0.95, 0.1]))
            self.assertTrue(held["plain"])
        self.expect_same_tensors(self.whole(theirs), self.whole(saved))
        anew = "--checkpoint.exclude_from_loading=dataloader"
        for name, more in (("own", (anew,)), ("theirs", ())):
            text = self.complete(other_ranks, folder / name, 3, *types, *more, *parallel(**other))
            self.assertRegex(text, r"LOAD: step 2 from ")
        self.assertIn("its loader had read nothing", text)
        own, resumed = self.curve(folder / "own"), self.curve(folder / "theirs")
        self.assertEqual(list(resumed), [3])
        self.assertEqual(resumed, own)
        self.assertEqual(resumed[3][2], tokens + 2 * LENGTH * other.get("dp_shard", 1))
        self.expect_same_checkpoint(folder / "own", folder / "theirs", 3)

    def test_each_program_resumes_what_the_other_has_saved_bit_for_bit(self):
        for case in EXCHANGES if FULL else EXCHANGES[:1]:
            with self.subTest(case=case):
                self.exchange(*case)

    def to_2024(self, saved: pathlib.Path) -> pathlib.Path:
        target = self.folder / f"2024/{saved.parents[1].name}"
        run = self.titan("convert", "to-2024", saved, target, *self.training())
        self.expect(run, OK)
        self.assertIn("21/21 tensors", run.output)
        return target

    def test_python_loads_strictly_the_form_of_2024_too_from_what_convert_makes_of_it(self):
        self.complete(2, self.folder / "run", 2, *parallel(dp_shard=2))
        target = self.to_2024(self.folder / "run/checkpoint/step-2")
        release = Release()
        state = state_of_2024(release, torch.zeros_like(rotary_table(SHAPE, LENGTH)), [b"", b""])
        state["lr_scheduler"]["verbose"] = None  # PyTorch before 2.7 has it
        dcp.load(state, checkpoint_id=target)
        release.take_2024(state)
        self.expect_loaded(release, target, 2)
        table, expected = state["model"]["freqs_cis"], rotary_table(SHAPE, LENGTH)
        self.assertTrue(torch.allclose(table, expected, atol=1e-4))
        for name in LISTS:
            state["train_state"][name].seek(0)
            self.assertEqual(torch.load(state["train_state"][name]), [])
        self.assertIs(state["lr_scheduler"]["verbose"], False)
        keys = dcp.FileSystemReader(target).read_metadata().state_dict_metadata
        for key in keys:
            self.assertRegex(key, r"^(model|optimizer\.(state|param_groups)|lr_scheduler|dataloader\.dp_rank_|"
                                  r"train_state\.|dataloader\.titan_)")  # fmt: skip
            self.assertNotRegex(key, r"\.ntokens|world_size")

    def titan_position(self, folder: pathlib.Path) -> str:
        state = {"dataloader": {"titan_stream": ""}}
        dcp.load(state, checkpoint_id=folder)
        return state["dataloader"]["titan_stream"]

    def saved_by_python(self, source: pathlib.Path, target: pathlib.Path, position: bytes | None, schedules: int) -> None:
        """The run in `source` as torchtitan of December 2024 would have saved it, with another learning rate."""
        release = Release()
        release.load(source)
        ours = pickle.dumps({"titan_stream": self.titan_position(source)})
        former = state_of_2024(release, rotary_table(SHAPE, LENGTH), [position or ours])
        schedule = former.pop("lr_scheduler") | {"last_epoch": 9, "base_lrs": [7.0], "_last_lr": [7.0]}
        for missing in ("_is_initial", "_get_lr_called_within_step"):
            del schedule[missing]
        for key in [key for key in former["optimizer"] if key.endswith(".decoupled_weight_decay")]:
            del former["optimizer"][key]
        former |= {"lr_scheduler" if schedules == 1 else f"lr_scheduler_{i}": schedule for i in range(schedules)}
        dcp.save(former, checkpoint_id=target)

    def to_2026(self, saved: pathlib.Path, target: pathlib.Path, *words) -> None:
        run = self.titan("convert", "to-2026", saved, target, *words, *self.training())
        self.expect(run, OK)
        self.assertIn("21/21 tensors", run.output)

    def test_convert_makes_the_form_of_2026_of_every_other_for_any_number_of_ranks(self):
        whole, first = self.folder / "whole", self.folder / "first"
        self.complete(1, whole, 6)
        self.complete(1, first, 4)
        saved, tokens = first / "checkpoint/step-4", self.curve(first)[4][2]
        self.saved_by_python(saved, self.folder / "of-2024", None, 2)
        (self.folder / "again/checkpoint").mkdir(parents=True)
        for source, ranks, counted in ((saved, 3, tokens // 3), (self.to_2024(saved), 1, tokens), (self.folder / "of-2024", 2, 0)):
            target = self.folder / f"of-2026-{ranks}"
            self.to_2026(source, target, *(() if ranks == 1 else (f"--data-ranks={ranks}",)))
            release = Release()
            release.loader = Loader(ranks - 1, ranks)
            release.load(target)
            self.assertEqual((release.trainer.step, release.trainer.ntokens_seen), (4, counted))
            self.expect_same_tensors(self.whole(target), self.whole(saved))
            again = self.folder / f"again-{ranks}"
            shutil.copytree(target, again / "checkpoint/step-4")
            self.assertEqual(self.loaded(self.complete(1, again, 6)), 4)
            found, expected = self.curve(again), self.curve(whole)
            for step in (5, 6):
                self.assertEqual(found[step][:2], expected[step][:2])
                self.assertEqual(found[step][2], expected[step][2] - (0 if counted else tokens))

    def test_what_this_program_saved_until_november_2026_is_resumed(self):
        """Counts in tensors, that of tokens of all ranks; the data position in the loader state of every rank."""
        words = parallel(dp_shard=2)
        whole, first, resumed = (self.folder / name for name in ("whole", "first", "resumed"))
        self.complete(2, whole, 4, *words)
        self.complete(2, first, 2, *words)
        saved, tokens = first / "checkpoint/step-2", self.curve(first)[2][2]

        def change(state):
            position = pickle.dumps({"titan_stream": self.titan_position(saved)})
            state["dataloader"] = {"dp_rank_0": position, "dp_rank_1": position, "world_size": 2}
            counts = {"step": torch.tensor(2, dtype=torch.int32), "ntokens_seen": torch.tensor(tokens)}
            state["train_state"] = counts

        self.changed_by_python(saved, resumed / "checkpoint/step-2", change, data_ranks=2)
        text = self.complete(2, resumed, 4, *words)
        self.assertRegex(text, r"LOAD: step 2 from ")
        self.assertNotIn("start from the beginning", text)
        self.assertEqual(self.curve(resumed), {step: self.curve(whole)[step] for step in (3, 4)})

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
            self.assertIn('model.name = "llama3" means no rotary scaling; torchtitan', text)
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
        self.assertRegex(text, r"the data position could not be restored \(.*\): the data start from the beginning")
        self.assertIn("Training starts at step 5", text)

    def test_one_without_hashes_is_never_preferred_to_a_newer_verified_one_and_is_to_an_older_one(self):
        run = self.folder / "run"
        self.complete(1, run, 6)
        for path in ("step-4", "step-6"):
            (run / f"checkpoint/{path}").rename(self.folder / path)
        self.saved_by_python(self.folder / "step-4", run / "checkpoint/step-4", None, 1)
        text = self.complete(1, run, 4, "--checkpoint.load_only")
        self.assertRegex(text, r"(?m)LOAD: step 4 from \S+ \(unverified, [^;]*\)$", "newer than step 2")
        (self.folder / "step-6").rename(run / "checkpoint/step-6")
        self.assertEqual(self.loaded(self.complete(1, run, 6)), 6)
        (run / "checkpoint/step-6/__0_0.distcp").unlink()
        text = self.complete(1, run, 4, "--checkpoint.load_only")
        self.assertRegex(text, r"LOAD: step 4 from \S+ \(unverified, [^;]*\); step 6 is damaged: ")

    def test_one_of_pythons_under_another_steps_name_is_set_aside(self):
        run = self.folder / "run"
        self.complete(1, run, 4)
        self.saved_by_python(run / "checkpoint/step-2", run / "checkpoint/step-900", None, 1)
        text = self.complete(1, run, 6)
        self.assertRegex(text, r"LOAD: step 4 from \S+ \(verified, .*\); step 900 is damaged: it holds step 2")
        self.assertEqual(self.checkpoints(run), [2, 4, 6])

    def changed_by_python(self, source: pathlib.Path, target: pathlib.Path, change, data_ranks: int = 1) -> None:
        release = Release()
        release.loader = Loader(0, data_ranks)
        release.load(source)
        state = {key: one if isinstance(one, torch.Tensor) else one.state_dict() for key, one in release.states().items()}
        change(state)
        dcp.save(state, checkpoint_id=target)

    def test_moments_without_a_step_are_no_run_and_no_model_alone(self):
        made, run = self.folder / "made", self.folder / "run"
        self.complete(1, made, 4)
        target = run / "checkpoint/step-4"
        self.changed_by_python(made / "checkpoint/step-4", target, lambda state: state.pop("train_state"))
        says = "the optimizer's moments and no train_state.step, so its step is not known"
        for steps in (4, 6):
            text = self.complete(1, run, steps, code=STORAGE)
            self.assertIn(f"step 4 holds {says}", text)
            self.assertNotIn("the model alone", text)
        initial = f"--checkpoint.initial_load_path={target}"
        text = self.complete(1, self.folder / "new", 2, initial, "--checkpoint.initial_load_model_only=false", code=STORAGE)
        self.assertIn(f"it holds {says}; checkpoint.initial_load_model_only = true takes the model", text)
        self.complete(1, self.folder / "new", 2, initial)
        shutil.copytree(made / "checkpoint/step-2", run / "checkpoint/step-2")
        self.assertRegex(self.complete(1, run, 6), f"LOAD: step 2 from .*; step 4 holds {says}")

    def test_what_torchtitan_has_no_place_for_is_refused_by_name_and_nothing_is_written(self):
        muon, biased, target = self.folder / "muon", self.folder / "biased", self.folder / "converted"
        self.complete(1, muon, 2, "--optimizer.name=Muon")
        qwen = ["--model.name=qwen2", "--model.flavor=custom", "--model.override.vocab_size=2304"]
        self.complete(1, biased, 2, *qwen, "--model.override.hidden_dim=128")
        for direction, release in (("to-2024", "torchtitan of December 2024"), ("to-2026", "torchtitan's last TOML release")):
            refused = self.titan("convert", direction, muon / "checkpoint/step-2", target, *self.training())
            self.expect(refused, STORAGE)
            self.assertIn("Muon stepped 14 of its matrices, such as layers.0.attention.wk.weight", refused.errors)
            self.assertIn(f"and {release} has no Muon", refused.errors)
            refused = self.titan("convert", direction, biased / "checkpoint/step-2", target)
            self.expect(refused, STORAGE)
            self.assertRegex(refused.errors, rf"its model has layers\.0\.attention\.w[qkv]\.bias, and no such model of {release}")
            self.assertFalse(target.exists())
        whole = self.titan("convert", "to-hf", muon / "checkpoint/step-2", target, *self.training())
        self.expect(whole, OK)

    def test_a_step_that_is_no_integer_is_refused_with_the_checkpoint_named(self):
        made, run = self.folder / "made", self.folder / "run"
        self.complete(1, made, 2)
        target = run / "checkpoint/step-2"
        self.changed_by_python(made / "checkpoint/step-2", target, lambda state: state["train_state"].update(step=2.0))
        says = "its train_state.step is not a whole number"
        self.assertIn(f"{target} does not fit this run: {says}", self.complete(1, run, 4, code=STORAGE))
        converted = self.titan("convert", "to-2026", target, self.folder / "converted", *self.training())
        self.expect(converted, STORAGE)
        self.assertIn(f"titan_train: {target}: {says}", converted.errors)

    def test_stored_words_that_nest_too_deep_and_ranks_beyond_all_measure_crash_nothing(self):
        made, run = self.folder / "made", self.folder / "run"
        self.complete(1, made, 2)
        deep = "[" * 300_000 + "]" * 300_000

        def nest(state):
            state["dataloader"]["titan_stream"] = state["train_state"]["titan_guard"] = deep

        target = run / "checkpoint/step-2"
        self.changed_by_python(made / "checkpoint/step-2", target, nest)
        self.expect(self.titan("convert", "to-2026", target, self.folder / "converted", *self.training()), OK)
        self.assertIn("the data position could not be restored", self.complete(1, run, 4))
        target = self.folder / "many"
        many = 10**12
        self.changed_by_python(
            made / "checkpoint/step-2", target, lambda state: state["dataloader"].update(world_size=many)
        )
        refused = self.titan("convert", "to-2026", target, self.folder / "converted-many", *self.training())
        self.expect(refused, STORAGE)
        self.assertIn(f"its dataloader.world_size is {many}", refused.errors)

    def test_parameters_whose_optimizer_has_made_other_numbers_of_steps_go_on_counting_from_their_own(self):
        made, run = self.folder / "made", self.folder / "run"
        self.complete(1, made, 4)

        def change(state):
            state["optimizer"]["state.norm.weight.step"].fill_(3)

        self.changed_by_python(made / "checkpoint/step-4", run / "checkpoint/step-4", change)
        self.complete(2, run, 6, *parallel(pp=2))
        saved = self.whole(run / "checkpoint/step-6")
        steps = {name: int(value) for name, value in saved.items() if name.endswith(".step")}
        self.assertEqual(steps.pop("state.norm.weight.step"), 5)
        self.assertEqual(set(steps.values()), {6})

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

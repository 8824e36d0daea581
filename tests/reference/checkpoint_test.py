"""Checkpoints between titan and Python's torch.distributed.checkpoint, both ways.

`checkpoint_files` (tests/reference/checkpoint_main.cpp, built beside titan_train) writes and reads titan's side.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest
import warnings
import zipfile

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

FOLDER = pathlib.Path(__file__).resolve().parent
VERSION = 12
PARAMETERS = {
    "tok_embeddings.weight": (13, 8),
    "layers.0.attention.wq.weight": (8, 8),
    "layers.0.attention.wo.weight": (8, 8),
    "layers.0.attention_norm.weight": (7,),
    "layers.1.feed_forward.w1.weight": (20, 8),
    "layers.1.feed_forward.w2.weight": (8, 20),
    "norm.weight": (3,),
}
VALUES = {"lr": 3e-4, "betas": (0.9, 0.95), "foreach": None, "fused": True}


def formula(name: str, shape: tuple[int, ...], dtype: torch.dtype, version: int = VERSION) -> torch.Tensor:
    """The numbers that tests/checkpoint/states.cpp gives the tensor of that name."""
    seed = 7 * version + sum((i + 1) * byte for i, byte in enumerate(name.encode()))
    numel = torch.Size(shape).numel()
    return (((torch.arange(numel) * 31 + seed) % 251 - 125).double() / 8).to(dtype).view(shape)


def nested(make) -> dict:
    """The state that Python asks for, as nested dictionaries; make(flat name, shape, dtype) gives the tensors."""
    optimizer = {}
    for name, shape in PARAMETERS.items():
        for moment in ("exp_avg", "exp_avg_sq"):
            key = f"state.{name}.{moment}"
            optimizer[key] = make(f"optimizer.{key}", shape, torch.float32)
    optimizer |= {f"param_groups.norm.weight.{key}": value for key, value in VALUES.items()}
    return {
        **{name: make(name, shape, torch.bfloat16) for name, shape in PARAMETERS.items()},
        "optimizer": optimizer,
        "lr_scheduler": {"last_epoch": VERSION},
        "dataloader": {"world_size": 1, "dp_rank_0": pickle.dumps({"chunk": 77})},
        "train_state": {"step": torch.tensor(VERSION, dtype=torch.int32)},
    }


def flat(state: dict, prefix: str = "") -> dict:
    found = {}
    for key, value in state.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


class CheckpointTest(unittest.TestCase):
    def setUp(self):
        binary = pathlib.Path(os.environ.get("TITAN_BINARY", "titan_train"))
        self.tool = os.environ.get("TITAN_CHECKPOINT_FILES", str(binary.with_name("checkpoint_files")))
        if not os.access(self.tool, os.X_OK):
            self.skipTest(f"{self.tool} is not built")
        folder = tempfile.TemporaryDirectory(prefix="titan-checkpoint-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        warnings.simplefilter("ignore")  # torch warns that there is no process group

    def titan(self, *words, code: int = 0) -> str:
        done = subprocess.run([self.tool, *map(str, words)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout if code == 0 else done.stderr

    def assert_same(self, found: torch.Tensor, expected: torch.Tensor, name: str) -> None:
        self.assertEqual((found.dtype, found.shape), (expected.dtype, expected.shape), name)
        self.assertTrue(torch.equal(found, expected), name)


class PythonReadsOurs(CheckpointTest):
    def test_a_strict_load_succeeds_whatever_layout_wrote_it(self):
        expected = flat(nested(formula))
        layouts = self.titan("layouts").split()
        self.assertGreaterEqual(len(layouts), 12)
        for layout in layouts:
            with self.subTest(layout=layout):
                self.titan("write", self.folder / layout, layout, VERSION)
                state = nested(lambda name, shape, dtype: torch.full(shape, torch.nan, dtype=dtype))
                state["train_state"]["step"].zero_()
                for section in ("optimizer", "lr_scheduler", "dataloader"):
                    for key, value in state[section].items():
                        if not isinstance(value, torch.Tensor):
                            state[section][key] = "to be replaced"
                dcp.load(state, checkpoint_id=self.folder / layout / f"step-{VERSION}")
                found = flat(state)
                self.assertEqual(found.keys(), expected.keys())
                for name, value in expected.items():
                    if isinstance(value, torch.Tensor):
                        self.assert_same(found[name], torch.tensor(VERSION, dtype=torch.int32)
                                         if name == "train_state.step" else value, name)
                    elif name == "dataloader.dp_rank_0":
                        self.assertEqual(pickle.loads(found[name]), {"chunk": 77})
                    elif name != "dataloader.world_size":
                        self.assertEqual(found[name], value, name)

    def test_the_whole_folder_becomes_one_file_by_torchs_own_tool(self):
        self.titan("write", self.folder, "fsdp3", VERSION)
        with contextlib.redirect_stdout(io.StringIO()):
            dcp_to_torch_save(self.folder / f"step-{VERSION}", self.folder / "one.pt")
        state = torch.load(self.folder / "one.pt", weights_only=False)
        self.assert_same(state["norm.weight"], formula("norm.weight", (3,), torch.bfloat16), "norm.weight")
        name = "state.tok_embeddings.weight.exp_avg"
        self.assert_same(state["optimizer"][name], formula(f"optimizer.{name}", (13, 8), torch.float32), name)
        self.assertEqual(state["optimizer"]["param_groups.norm.weight.betas"], (0.9, 0.95))

    def test_every_blob_is_a_zip_with_right_checksums(self):
        self.titan("write", self.folder, "tp2", VERSION)
        folder = self.folder / f"step-{VERSION}"
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        for place in metadata.storage_data.values():
            blob = (folder / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
            with zipfile.ZipFile(io.BytesIO(blob)) as archive:
                self.assertIsNone(archive.testzip())
        self.assertGreater(len(metadata.storage_data), 20)


class WeReadPythons(CheckpointTest):
    def read(self, folder: pathlib.Path) -> tuple[dict[str, torch.Tensor], dict]:
        said = json.loads(self.titan("read", folder, self.folder / "read.safetensors"))
        self.assertFalse(said["verified"])
        return safetensors.torch.load_file(self.folder / "read.safetensors"), said["values"]

    def test_tensors_and_values_of_one_process(self):
        state = nested(formula)
        state["freqs_cis"] = torch.polar(torch.ones(4, 3), torch.randn(4, 3))
        state["model"] = {"w": torch.randn(5, 6).t(), "b": torch.randn(4).bfloat16()[1:3]}  # strides, an offset
        dcp.save(state, checkpoint_id=self.folder / "saved")
        tensors, values = self.read(self.folder / "saved")
        for name, value in flat(state).items():
            if not isinstance(value, torch.Tensor):
                continue
            expected = torch.view_as_real(value) if value.is_complex() else value
            self.assert_same(tensors[name], expected.contiguous(), name)
        self.assertEqual(values["optimizer.param_groups.norm.weight.betas"], [0.9, 0.95])
        self.assertIsNone(values["optimizer.param_groups.norm.weight.foreach"])
        self.assertEqual(values["dataloader.dp_rank_0"], {"pickled": {"chunk": 77}})

    def test_what_many_ranks_of_python_wrote_in_many_layouts(self):
        command = [sys.executable, FOLDER / "checkpoint_ranks.py", self.folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=540)
        self.assertEqual(done.returncode, 0, done.stderr)
        layouts = done.stdout.split()
        self.assertEqual(layouts, ["fsdp4", "tp4", "hsdp2x2", "fsdp2xtp2", "pp2xfsdp2"])
        for layout in layouts:
            with self.subTest(layout=layout):
                tensors, _ = self.read(self.folder / layout)
                self.assertEqual(tensors.keys(), {f"model.{name}" for name in PARAMETERS})
                for name, shape in PARAMETERS.items():
                    self.assert_same(tensors[f"model.{name}"], formula(name, shape, torch.float32), name)

    def test_a_pickle_that_asks_for_more_is_refused_and_nothing_runs(self):
        witness = self.folder / "executed"

        class Harmful:
            def __reduce__(self):
                return os.system, (f"touch {witness}",)

        dcp.save({"model": {"w": torch.ones(2)}}, checkpoint_id=self.folder / "saved")
        metadata = pickle.loads((self.folder / "saved" / ".metadata").read_bytes())
        metadata.planner_data["more"] = Harmful()
        (self.folder / "saved" / ".metadata").write_bytes(pickle.dumps(metadata))
        said = self.titan("read", self.folder / "saved", self.folder / "read.safetensors", code=73)
        self.assertRegex(said, r"it asks for (posix|os)\.system, which no checkpoint needs; nothing was executed")
        self.assertFalse(witness.exists())


RUN = {"layers.0.weight": (4, 3), "norm.weight": (4,)}


def small_run() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """The run of checkpoint_main.cpp after one step, as a Python trainer has it."""
    model = torch.nn.Module()
    model.layers = torch.nn.ModuleDict({"0": torch.nn.Linear(3, 4, bias=False)})
    model.norm = torch.nn.RMSNorm(4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model.norm(model.layers["0"](torch.ones(2, 3))).square().sum().backward()
    optimizer.step()
    scheduler.step()
    return model, optimizer, scheduler


def in_a_file(value) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    return file


def run_state(style: str, step: int = 7) -> dict:
    """What torchtitan asks for when it resumes: of December 2024 (prefixed) or of its last TOML release (bare)."""
    model, optimizer, scheduler = small_run()
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    weights = dict(model.state_dict())
    progress = {"step": step, "ntokens_seen": 50}
    if style == "prefixed":
        progress = {"step": torch.tensor(step, dtype=torch.int32)}
        progress |= {key: in_a_file([1.0]) for key in ("global_avg_losses", "global_max_losses", "log_steps")}
    return {
        **(weights if style == "bare" else {"model": weights}),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
        "lr_scheduler": scheduler.state_dict(),
        "dataloader": {"dp_rank_0": pickle.dumps({"_sample_idx": 5, "_token_buffer": [1, 2]}), "world_size": 3},
        "train_state": progress,
    }


class Runs(CheckpointTest):
    def test_python_resumes_our_run(self):
        self.titan("run", self.folder)
        state = run_state("bare")
        dcp.load(state, checkpoint_id=self.folder / "step-7")
        for name, shape in RUN.items():
            self.assert_same(state[name], formula(name, shape, torch.float32, 7), name)
            moment = f"state.{name}.exp_avg_sq"
            expected = formula(f"optimizer.{moment}", shape, torch.float32, 7)
            self.assert_same(state["optimizer"][moment], expected, moment)
        self.assertEqual(state["train_state"], {"step": 7, "ntokens_seen": 350})  # one rank's of 700
        self.assertEqual((pickle.loads(state["dataloader"]["dp_rank_0"]), state["dataloader"]["world_size"]), ({}, 2))
        # The library itself takes the state.
        model, optimizer, scheduler = small_run()
        options = StateDictOptions(flatten_optimizer_state_dict=True)
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=options)
        scheduler.load_state_dict(state["lr_scheduler"])
        group = optimizer.param_groups[0]
        self.assertEqual((group["lr"], group["betas"], group["fused"]), (1e-4, (0.9, 0.95), True))
        self.assertEqual(optimizer.state[model.norm.weight]["step"].item(), 7)
        self.assertEqual(scheduler.last_epoch, 7)

    def test_we_resume_pythons_run_in_both_generations_of_names_and_say_what_is_missing(self):
        for style in ("bare", "prefixed"):
            with self.subTest(style=style):
                state = run_state(style, step=11)
                dcp.save(state, checkpoint_id=self.folder / style)
                said = json.loads(self.titan("restore", self.folder / style))
                self.assertEqual((said["step"], said["tokens"]), (11, 150 if style == "bare" else 0))
                weights = state if style == "bare" else state["model"]
                for name in RUN:
                    self.assertEqual(said[name]["master"], weights[name].flatten().tolist())
                    for moment in ("exp_avg", "exp_avg_sq"):
                        expected = state["optimizer"][f"state.{name}.{moment}"].flatten().tolist()
                        self.assertEqual(said[name][moment], expected)
                self.assertTrue(any("another program's samples" in note for note in said["notes"]), said["notes"])


if __name__ == "__main__":
    unittest.main()

"""A run of the small model as torchtitan's last release with TOML configs (February 2026) holds, loads and saves it.

    python torchtitan_release.py JOB      one process for each rank of the job's layout; what they held, as JSON

JOB is JSON: `source`, a checkpoint that is loaded strictly; `target`, where the same is saved; `layout`, `dtype` and
`mode`: save, async_save, or pinned (staged, and saved by a process of its own).
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from llama import Llama
from shapes import Shape

SHAPE = Shape(dim=64, layers=2, heads=4, kv_heads=4, vocab=2048, theta=5e5)
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
LISTS = ("global_avg_losses", "global_max_losses", "log_steps")  # of December 2024
# The mesh, its axes, and the data-parallel ranks.
LAYOUTS = {
    "single": ((), (), 1),
    "fsdp2": ((2,), ("shard",), 2),
    "fsdp4": ((4,), ("shard",), 4),
    "hsdp2x2": ((2, 2), ("replicate", "shard"), 4),
    "fsdp2xtp2": ((2, 2), ("shard", "tp"), 2),
}


class Optimizer:
    """AdamW, its state flattened to one entry for each parameter and what is kept of it."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.adam = torch.optim.AdamW(model.parameters(), lr=0.5, betas=(0.5, 0.6), weight_decay=0.3, fused=True)

    def state_dict(self) -> dict:
        return get_optimizer_state_dict(self.model, self.adam, options=FLAT)

    def load_state_dict(self, state: dict) -> None:
        set_optimizer_state_dict(self.model, self.adam, state, options=FLAT)


class Schedule:
    def __init__(self, optimizer: Optimizer):
        self.rate = torch.optim.lr_scheduler.LambdaLR(optimizer.adam, lambda step: 1 / (1 + step))

    def state_dict(self) -> dict:
        return self.rate.state_dict()

    def load_state_dict(self, state: dict) -> None:
        self.rate.load_state_dict(copy.deepcopy(state))


class Loader:
    """torchdata's loader takes an empty state, or one of its own that counts what it has yielded."""

    def __init__(self, rank: int, ranks: int):
        self.key, self.ranks, self.state = f"dp_rank_{rank}", ranks, {}

    def state_dict(self) -> dict:
        return {self.key: pickle.dumps(self.state), "world_size": self.ranks}

    def load_state_dict(self, state: dict) -> None:
        assert state["world_size"] == self.ranks, f"saved by {state['world_size']} data-parallel ranks"
        self.state = pickle.loads(state[self.key])
        assert self.state == {} or "_num_yielded" in self.state, f"{self.state} is no loader's"


class Trainer:
    """Plain integers; a rank counts its own tokens."""

    def __init__(self):
        self.step = self.ntokens_seen = 0

    def state_dict(self) -> dict:
        return {"step": self.step, "ntokens_seen": self.ntokens_seen}

    def load_state_dict(self, state: dict) -> None:
        self.step, self.ntokens_seen = state["step"], state["ntokens_seen"]


class Release:
    """A run after one step of its own, so that everything differs from what is loaded."""

    def __init__(self, layout: str = "single", dtype: torch.dtype = torch.float32):
        torch.manual_seed(77)
        self.model = Llama(SHAPE).to(dtype)
        data_rank = self.parallelize(layout)
        self.optimizer = Optimizer(self.model)
        self.schedule = Schedule(self.optimizer)
        self.loader = Loader(data_rank, LAYOUTS[layout][2])
        self.trainer = Trainer()
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.adam.step()
        self.schedule.rate.step()

    def parallelize(self, layout: str) -> int:
        """The data-parallel rank of this process."""
        shape, axes, _ = LAYOUTS[layout]
        if not shape:
            return 0
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=axes)
        if "tp" in axes:
            column, row, sequence = ColwiseParallel, RowwiseParallel, SequenceParallel
            parallelize_module(self.model, mesh["tp"], {
                "tok_embeddings": row(input_layouts=Replicate()), "norm": sequence(), "output": column(),
                "layers.*.attention_norm": sequence(), "layers.*.ffn_norm": sequence(),
                **{f"layers.*.{name}": column() for name in ("attention.wq", "attention.wk", "attention.wv",
                                                             "feed_forward.w1", "feed_forward.w3")},
                **{f"layers.*.{name}": row(output_layouts=Shard(1)) for name in ("attention.wo", "feed_forward.w2")},
            })  # fmt: skip
        data = mesh["shard"] if "tp" in axes else mesh
        for block in self.model.layers.children():
            fully_shard(block, mesh=data)
        fully_shard(self.model, mesh=data)
        assert all(isinstance(one, DTensor) for one in self.model.parameters())
        return mesh.get_local_rank("shard") if "tp" in axes else dist.get_rank()

    def states(self) -> dict:
        """The model's tensors at the root, everything else under the name of its kind."""
        return {
            **get_model_state_dict(self.model),
            "optimizer": self.optimizer,
            "lr_scheduler": self.schedule,
            "dataloader": self.loader,
            "train_state": self.trainer,
        }

    def load(self, folder: str | os.PathLike) -> None:
        states = self.states()
        dcp.load(states, checkpoint_id=folder)
        set_model_state_dict(self.model, states, options=StateDictOptions(strict=False))

    def save(self, folder: str | os.PathLike, mode: str = "save") -> None:
        if mode == "save":
            dcp.save(self.states(), checkpoint_id=folder)
        elif mode == "async_save":
            dcp.async_save(self.states(), checkpoint_id=folder).result()
        else:
            stager = DefaultStager(StagingOptions(True, True, True, torch.accelerator.is_available()))
            process = AsyncCheckpointerType.PROCESS
            saving = dcp.async_save(self.states(), checkpoint_id=folder, async_checkpointer_type=process, async_stager=stager)
            saving.staging_completion.result()
            saving.upload_completion.result()
            stager.close()

    def take_2024(self, state: dict) -> None:
        """What was loaded into state_of_2024()."""
        self.model.load_state_dict({name: state["model"][name] for name in self.model.state_dict()})
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["lr_scheduler"])
        self.trainer.step = state["train_state"]["step"].item()

    def held(self) -> dict:
        """What is checked of it besides tensors."""
        group = self.optimizer.adam.param_groups[0]
        return {
            "step": self.trainer.step,
            "ntokens_seen": self.trainer.ntokens_seen,
            "last_epoch": self.schedule.rate.last_epoch,
            "settings": [group["lr"], *group["betas"], group["weight_decay"]],
            "plain": type(self.trainer.step) is int and type(self.trainer.ntokens_seen) is int,
        }


def in_a_file(value) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    return file


def state_of_2024(release: Release, table: torch.Tensor, positions: list[bytes]) -> dict:
    """The same run as the release of December 2024 has it."""
    return {
        "model": {**release.model.state_dict(), "freqs_cis": table},
        "optimizer": release.optimizer.state_dict(),
        "lr_scheduler": release.schedule.state_dict(),
        "dataloader": {f"dp_rank_{rank}": position for rank, position in enumerate(positions)},
        "train_state": {
            "step": torch.tensor(release.trainer.step, dtype=torch.int32),
            **{name: in_a_file([1.0]) for name in LISTS},
        },
    }


def work(rank: int, job: dict, ranks: int, store: str) -> None:
    warnings.simplefilter("ignore")
    os.environ["MASTER_ADDR"] = "127.0.0.1"  # for the processes that save what is staged
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    release = Release(job["layout"], getattr(torch, job["dtype"]))
    release.load(job["source"])
    held = [None] * ranks
    dist.all_gather_object(held, release.held())
    release.save(job["target"], job["mode"])
    if rank == 0:
        print(json.dumps(held), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    JOB = json.loads(sys.argv[1])
    RANKS = torch.Size(LAYOUTS[JOB["layout"]][0]).numel()
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.start_processes(work, (JOB, RANKS, f"{place}/store"), RANKS, start_method="fork")

"""Four Python processes save the model of checkpoint_test.py in several layouts: python checkpoint_ranks.py FOLDER.

Prints the layouts' names; each is a folder of torch.distributed.checkpoint.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from checkpoint_test import PARAMETERS, formula

RANKS = 4
# Mesh shape and one placement per axis; a one-dimensional weight is cut along its only dimension.
LAYOUTS = {
    "fsdp4": ((4,), (Shard(0),)),
    "tp4": ((4,), (Shard(1),)),
    "hsdp2x2": ((2, 2), (Replicate(), Shard(0))),
    "fsdp2xtp2": ((2, 2), (Shard(0), Shard(1))),
    "pp2xfsdp2": ((2, 2), None),
}


def cut(name: str, mesh, placements):
    whole = formula(name, PARAMETERS[name], torch.float32)
    fitting = [Replicate() if getattr(p, "dim", 0) >= whole.dim() else p for p in placements]
    return distribute_tensor(whole, mesh, fitting)


def save(rank: int, store: str, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    names = list(PARAMETERS)
    for layout, (shape, placements) in LAYOUTS.items():
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("outer", "inner")[-len(shape):])
        mine = names
        if placements is None:  # two stages, each cut over its own two ranks
            stage = rank // 2
            mine = names[:3] if stage == 0 else names[3:]
            mesh, placements = mesh["inner"], (Shard(0),)
        model = {name: cut(name, mesh, placements) for name in mine}
        dcp.save({"model": model}, checkpoint_id=os.path.join(folder, layout))
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(save, (str(pathlib.Path(place) / "store"), sys.argv[1]), nprocs=RANKS)
    print("\n".join(LAYOUTS))

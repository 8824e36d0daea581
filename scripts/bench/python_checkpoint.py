"""The opponent of scripts/bench/checkpoint.py in memory-backed storage: torch.distributed.checkpoint as torchtitan calls it.

    python_checkpoint.py PARAMETERS FOLDER

PARAMETERS has a line for each parameter, "NAME SIZE..."; the state is theirs, fp32, with two moments each. Prints the
seconds of a save and of a load into tensors that are there as one line of JSON, after an untimed one of each. FOLDER is
removed before each save, off the clock.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
import time
import warnings

import torch
import torch.distributed.checkpoint as dcp


def state_of(parameters: pathlib.Path) -> dict[str, torch.Tensor]:
    """The same tensors as tests/bench/checkpoint.cpp makes, under the same names."""
    state = {}
    for number, line in enumerate(parameters.read_text().splitlines(), start=1):
        name, *sizes = line.split()
        shape = torch.Size(map(int, sizes))
        step = 0.25 * number
        for key in (name, f"optimizer.state.{name}.exp_avg", f"optimizer.state.{name}.exp_avg_sq"):
            state[key] = torch.arange(shape.numel(), dtype=torch.float32).mul_(step).view(shape)
            step *= 3
    return state


def seconds_of(act) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def main(parameters: pathlib.Path, folder: pathlib.Path) -> None:
    warnings.simplefilter("ignore")  # torch warns that there is no process group
    state = state_of(parameters)
    ends = {name: tensor.flatten()[-1].item() for name, tensor in state.items()}
    for _ in range(2):  # the second round counts
        shutil.rmtree(folder, ignore_errors=True)
        saving = seconds_of(lambda: dcp.save(state, checkpoint_id=folder))
        for tensor in state.values():
            tensor.zero_()
        loading = seconds_of(lambda: dcp.load(state, checkpoint_id=folder))
    if any(tensor.flatten()[-1].item() != ends[name] for name, tensor in state.items()):
        raise SystemExit("what was loaded is not what was saved")
    size = sum(tensor.nbytes for tensor in state.values())
    print(json.dumps({"save": saving, "load": loading, "bytes": size}))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))

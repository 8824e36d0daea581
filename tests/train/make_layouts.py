#!/usr/bin/env python3
"""Writes layouts.tsv: every layout plain, then a set of rows in which every pair of settings of any two factors occurs
on some layout that they mean something for. Greedy and without chance: the same file every time."""
import itertools
import pathlib

LAYOUTS = {  # name: (dp_replicate, dp_shard, tp)
    "ddp2": (2, 1, 1), "ddp4": (4, 1, 1), "fsdp2": (1, 2, 1), "fsdp4": (1, 4, 1), "fsdp3": (1, 3, 1),
    "hsdp2x2": (2, 2, 1), "tp2": (1, 1, 2), "tp4": (1, 1, 4), "fsdp2xtp2": (1, 2, 2), "hsdp2x2xtp2": (2, 2, 2),
}
FACTORS = {
    "layout": list(LAYOUTS),
    "accumulation": ["1", "4"],
    "masks": ["even", "unequal"],
    "reshard": ["default", "always", "never"],
    "offload": ["no", "yes"],
    "recompute": ["none", "op", "full"],
    "tied": ["no", "yes"],
    "async_tp": ["no", "yes"],
}
PLAIN = {name: values[0] for name, values in FACTORS.items()}


def means_something(row):
    _, shard, tensor = LAYOUTS[row["layout"]]
    if shard == 1 and (row["reshard"] != "default" or row["offload"] == "yes"):
        return False
    return tensor > 1 or row["async_tp"] == "no"


def pairs_of(row):
    return {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(FACTORS, 2)}


def rows():
    result = [dict(PLAIN, layout=layout) for layout in LAYOUTS]
    every = [dict(zip(FACTORS, values)) for values in itertools.product(*FACTORS.values())]
    every = [row for row in every if means_something(row)]
    missing = set().union(*(pairs_of(row) for row in every))
    for row in result:
        missing -= pairs_of(row)
    while missing:
        best = max(every, key=lambda row: len(pairs_of(row) & missing))
        result.append(best)
        missing -= pairs_of(best)
    return result


def main():
    lines = ["\t".join(["dp_replicate", "dp_shard", "tp", *FACTORS])]
    for row in rows():
        lines.append("\t".join([*map(str, LAYOUTS[row["layout"]]), *(row[name] for name in FACTORS)]))
    pathlib.Path(__file__).with_name("layouts.tsv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Writes layouts.tsv. Its rows, each once:

1. every layout plain;
2. single modifiers, each alone on a layout of each kind it means something for, so that a failing row names its cause;
3. rows in which every pair of settings of any two factors occurs on some layout that they mean something for;
4. rows in which every combination of the factors in TRIPLES occurs, on layouts where each of them means something.

Greedy and without randomness: the same file every time. With --check nothing is written and the exit code says whether the
file is what would be.
"""
import itertools
import pathlib
import sys

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
    "transport": ["memory", "sockets"],
}
PLAIN = {name: values[0] for name, values in FACTORS.items()}
# One layout of each kind; the two-dimensional one only where its parts meet.
SINGLES = {
    "ddp2": ["accumulation", "masks", "tied", "transport"],
    "fsdp2": ["accumulation", "masks", "reshard", "offload", "recompute", "tied", "transport"],
    "hsdp2x2": ["accumulation", "offload"],
    "tp2": ["accumulation", "recompute", "tied", "async_tp", "transport"],
    "fsdp2xtp2": ["accumulation", "reshard", "recompute", "tied", "async_tp"],
}
TRIPLES = [
    ("accumulation", "reshard", "recompute"),
    ("accumulation", "reshard", "offload"),
    ("recompute", "tied", "async_tp"),
]


def can_vary(factor, layout):
    _, shard, tensor = LAYOUTS[layout]
    if factor in ("reshard", "offload"):
        return shard > 1
    return factor != "async_tp" or tensor > 1


def means_something(row):
    return all(can_vary(factor, row["layout"]) or row[factor] == PLAIN[factor] for factor in FACTORS)


def settings_of(row, combinations):
    """What the row shows of `combinations` of factors, as far as its layout can tell their settings apart."""
    meant = [names for names in combinations if all(can_vary(name, row["layout"]) for name in names)]
    return {tuple((name, row[name]) for name in names) for names in meant}


def singles():
    for layout, modifiers in SINGLES.items():
        for modifier in modifiers:
            for value in FACTORS[modifier][1:]:
                yield dict(PLAIN, layout=layout, **{modifier: value})


def cover(rows, combinations):
    """Adds rows until what any row could show of `combinations` is shown by one of `rows`."""
    every = [dict(zip(FACTORS, values)) for values in itertools.product(*FACTORS.values())]
    shown = [(row, settings_of(row, combinations)) for row in every if means_something(row)]
    missing = set().union(*(settings for _, settings in shown))
    missing = missing.difference(*(settings_of(row, combinations) for row in rows))
    while missing:
        best, settings = max(shown, key=lambda pair: len(pair[1] & missing))
        rows.append(best)
        missing -= settings


def matrix():
    rows = [dict(PLAIN, layout=layout) for layout in LAYOUTS]
    rows += singles()
    cover(rows, list(itertools.combinations(FACTORS, 2)))
    cover(rows, TRIPLES)
    return rows


def main():
    lines = ["\t".join(["dp_replicate", "dp_shard", "tp", *FACTORS])]
    for row in matrix():
        lines.append("\t".join([*map(str, LAYOUTS[row["layout"]]), *(row[name] for name in FACTORS)]))
    text = "\n".join(lines) + "\n"
    path = pathlib.Path(__file__).with_name("layouts.tsv")
    if "--check" in sys.argv[1:]:
        sys.exit(0 if path.read_text() == text else f"{path} is not what {__file__} writes; run it")
    path.write_text(text)


if __name__ == "__main__":
    main()

"""Ratios of interleaved pairs and the table that shows them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table. `samples` are ratios or absolute values, one per pair; the median counts. `key` and `against`:
    of the record that --record makes of it (records.py); empty: none."""

    what: str
    titan: str
    other: str
    samples: list[float]
    bar: float
    higher_is_better: bool
    unit: str = "×"
    key: str = ""
    against: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def met(self) -> bool:
        return self.median >= self.bar if self.higher_is_better else self.median <= self.bar

    @property
    def undecided(self) -> bool:
        """Some pairs are above the bar and some below: the machine was too busy to tell."""
        return min(self.samples) < self.bar < max(self.samples)

    def cells(self) -> list[str]:
        bar = f"{'≥' if self.higher_is_better else '≤'} {self.bar:g}{self.unit}"
        spread = f"{min(self.samples):.3g} to {max(self.samples):.3g}"
        return [self.what, self.titan, self.other, f"{self.median:.3g}{self.unit}", spread, bar, self.verdict()]

    def verdict(self) -> str:
        if self.undecided:
            return "undecided"
        if self.met:
            return "met"
        return f"missed by {abs(self.median / self.bar - 1):.1%}"


def table(rows: list[Row], other: str = "Python") -> str:
    """Markdown, aligned so that it also reads as plain text."""
    headings = ["what", "titan_train", other, "median", "spread", "bar", ""]
    lines = [headings] + [row.cells() for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]

    def join(cells: list[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([join(lines[0]), rule, *(join(line) for line in lines[1:])])


def interleaved(pairs: int, titan: Callable[[], object], other: Callable[[], object]) -> list[tuple]:
    """Runs one after the other, `pairs` times, and changes who goes first, so that a slow drift of the machine's speed
    cancels in the ratios."""
    results = []
    for pair in range(pairs):
        if pair % 2 == 0:
            first = titan()
            results.append((first, other()))
        else:
            second = other()
            results.append((titan(), second))
    return results

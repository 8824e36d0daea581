"""Counts the machine instructions of the fused kernels for each byte of memory: the table of docs/kernels.md.

    cuobjdump -arch sm_90a -sass LIBRARY | c++filt | kernel_instructions.py [--check PAGE --compiler VERSION]

Counted is the way of a thread through its kernel's control flow graph, from the first instruction to an EXIT: of all ways
the one that moves most bytes and, of several, has the fewest instructions; of the cross-entropy's the one with most
exponentials. The others are for tails, for numbers that are not ordinary and for float8's amaxes. An instruction whose predicate is false is issued, too, and counts. A load or
store moves what its width says. Known by hand, in ROWS, are alone how often a loop runs in the shapes of Llama 3.1 8B,
and which accesses come out of a cache or are one word for all threads. --check compares with the page, if that is about the
same compiler, and with the instructions a byte that a GPU has time for by that page. Exit codes: 0, 1 they differ or a
kernel is not as ROWS says.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pathlib
import re
import sys

from machine_code import CountError, Instruction, Kernel, read_kernels

BUDGET = re.compile(r"([\d.]+) of a thread for each\s+byte")
COMPILER = re.compile(r"by nvcc ([\d.]*\d)")


DIM, HIDDEN, HEADS, KV_HEADS, VOCABULARY, TOKENS = 4096, 14336, 32, 8, 128256, 8192


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the table; `kernel` is a demangled name up to its arguments."""

    name: str
    kernel: str
    # Accesses that move no memory of their own: all of that name (None) or some, and why.
    aside: tuple[tuple[str, float | None, str], ...] = ()
    # Innermost loops by an access in them, in their order, and how often a thread runs each; the way leads through those
    # that run.
    loops: tuple[tuple[str, tuple[float, ...]], ...] = ()
    without: str = ""  # a way past the block with the first access of that name
    wanted: str = ""  # of ways that move as much, that with most of these instructions


SCALARS = ("LDG.E", None, "clip factor and skip flag, for all threads")
TAIL = ("STG.E", None, "of elements that fill no pack")
COPY_TAIL = ("STG.E.U16", None, TAIL[2])
WEIGHT = ("LDG.E.128", 1, "the weight, for all rows")
SCALE = ("STG.E", None, "a row's scale")
ROW_PACKS = VOCABULARY / 8 / 512  # for 512 threads
ROWS = [
    Row("RMS norm forward", "rms_norm_forward_kernel<Bf16, 8, 1>", (WEIGHT, SCALE), without="STG.E.128"),
    Row("RMS norm forward with the residual", "rms_norm_forward_kernel<Bf16, 8, 1>", (WEIGHT, SCALE)),
    Row(
        "RMS norm backward",
        "rms_norm_backward_kernel<Bf16, 8, 1>",
        (WEIGHT, ("LDG.E", None, "a row's scale")),
        (("LDG.E.128", (TOKENS / 256,)),),  # blocks
    ),
    Row(
        "rotary embedding",
        "rotate_kernel<Bf16, 8>",
        (("LDG.E.64", None, "the table, for all heads of a token"),),
        (("LDG.E.128", ((HEADS + KV_HEADS) * (DIM / HEADS) / 8 / 256,)),),  # threads
    ),
    Row("SwiGLU forward", "swiglu_forward_kernel<Bf16, 8>"),
    Row("SwiGLU backward", "swiglu_backward_kernel<Bf16, 8>"),
    Row(
        "cross-entropy",
        "cross_entropy_kernel<Bf16, 8>",
        (
            ("LDG.E.128", ROW_PACKS, "the logits again, from the cache"),
            ("LDG.E", None, "the scale"),
            ("LDG.E.64", None, "the label"),
            ("LDG.E.U16", None, "the label's logit"),
            ("STG.E", None, "the loss"),
        ),
        (("LDG.E.128", (ROW_PACKS, ROW_PACKS)), ("LDS.128", (4,))),  # 16 warps
        wanted="MUFU.EX2",
    ),
    Row("float8 cast with transpose", "float8_cast_kernel<Bf16, (KernelFloat8)0>", (("LDG.E", None, "scales"),)),
    Row("amax", "largest_kernel<Bf16, 8>"),
    Row("AdamW, fp32", "adam_kernel<float>", (SCALARS, TAIL, COPY_TAIL), without="STG.E.64"),
    Row("AdamW, fp32, with bf16 copies", "adam_kernel<float>", (SCALARS, TAIL, COPY_TAIL)),
    Row(
        "AdamW with stochastic rounding",
        "bf16_adam_kernel<Bf16, Bf16, float, 4>",
        (SCALARS, *((f"{access}.E.U16", None, TAIL[2]) for access in ("LDG", "STG"))),
    ),
    Row(
        "gradient norm",
        "exact_squares_kernel<float, 4>",
        (("LDG.E", None, "of the last tile"),),
        (("LDG.E.128", (DIM * HIDDEN / 512 / (3 * 132 * 8),)),),  # tiles, warps
    ),
]


@dataclasses.dataclass
class Count:
    """`outside` and `inside`: instructions of a thread outside of its loops and of one turn, by a loop's first address."""

    row: Row
    outside: int
    inside: dict[int, int]
    times: dict[int, float]
    moved: float

    def instructions(self) -> float:
        return self.outside + sum(self.times[head] * inside for head, inside in self.inside.items())

    def a_byte(self) -> str:
        return f"{self.instructions() / self.moved:.1f}"

    def formula(self) -> str:
        loops = [f"{self.times[head]:.4g} × {inside} ({head:04x})" for head, inside in sorted(self.inside.items())]
        return " + ".join([str(self.outside), *loops])


def times_of_loops(row: Row, kernel: Kernel) -> dict[int, float]:
    times: dict[int, float] = {}
    for access, known in row.loops:
        heads = kernel.innermost(access)
        if len(heads) != len(known):
            raise CountError(f"there are {len(heads)} loops with {access}, of {len(known)} it is known how often they run")
        times |= zip(heads, known)
    return times


def count(row: Row, kernel: Kernel) -> Count:
    times = times_of_loops(row, kernel)
    none_of = {access for access, number, _ in row.aside if number is None}
    past = {kernel.first(row.without)} if row.without else set()
    way = kernel.best_way({head for head, turns in times.items() if turns > 0}, past, none_of, row.wanted)
    counted = Count(row, 0, {head: 0 for head, turns in times.items() if turns > 0}, times, 0)
    accesses: dict[str, float] = collections.defaultdict(float)
    for block in way.blocks:
        loop = next((head for head in counted.inside if block in kernel.loops[head]), None)
        code = kernel.blocks[block]
        if loop is None:
            if kernel.widest() in (i.bytes_moved() for i in code) and any(block in body for body in kernel.loops.values()):
                raise CountError(f"at {block:04x} memory moves in a loop of which it is not known how often it runs")
            counted.outside += len(code)
        else:
            counted.inside[loop] += len(code)
        for instruction in code:
            accesses[instruction.access()] += times.get(loop, 1) if instruction.bytes_moved() else 0
    for access, number, why in row.aside:
        if number is not None and accesses[access] < number:
            raise CountError(f"{why}: there are {accesses[access]:.4g} {access} of {number:.4g}")
        accesses[access] -= accesses[access] if number is None else number
    counted.moved = sum(number * Instruction(0, None, access, "").bytes_moved() for access, number in accesses.items())
    return counted


def counts_of(kernels: dict[str, list[Instruction]]) -> list[Count]:
    counts = []
    for row in ROWS:
        code = next((code for name, code in kernels.items() if name.startswith(row.kernel + "(")), None)
        try:
            if not code:
                raise CountError("there is no such kernel for sm_90a")
            counts.append(count(row, Kernel(code)))
        except CountError as error:
            raise CountError(f"{row.name} ({row.kernel}): {error}") from None
    return counts


def line(one: Count) -> str:
    return f"| {one.row.name} | {one.formula()} | {one.moved:,.0f} | {one.a_byte()} |"


def table(counts: list[Count]) -> list[str]:
    return ["| kernel | instructions of a thread | bytes | a byte |", "|---|---|---:|---:|", *map(line, counts)]


def differences(counts: list[Count], page: str, compiler: str) -> list[str]:
    _, _, section = page.partition("\n## Instructions\n")
    budget, made_by = BUDGET.search(section), COMPILER.search(section)
    if not budget or not made_by:
        return ["the page does not say for how many instructions a byte a GPU has time, or by which nvcc they are"]
    written = {text.split(" | ")[0].strip("| "): text for text in section.splitlines() if text.startswith("| ")}
    found = []
    if made_by[1] != compiler:
        print(f"not compared with the page: it is about nvcc {made_by[1]}, the kernels are by {compiler}", file=sys.stderr)
        written = {one.row.name: line(one) for one in counts}
    for one in counts:
        name = one.row.name
        if written.get(name) != line(one):
            found.append(f"{name}: counted {line(one)}, on the page {written.get(name, 'nothing')}")
        if float(one.a_byte()) > float(budget[1]):
            found.append(f"{name}: {one.a_byte()} instructions a byte, and a GPU has time for {budget[1]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", type=pathlib.Path, metavar="PAGE")
    parser.add_argument("--compiler", default="", metavar="VERSION", help="of nvcc, that the kernels are by")
    arguments = parser.parse_args()
    try:
        counts = counts_of(read_kernels(sys.stdin))
    except CountError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(counts)))
    found = differences(counts, arguments.check.read_text(), arguments.compiler) if arguments.check else []
    for difference in found:
        print(f"error: {difference}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

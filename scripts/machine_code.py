"""Kernels as cuobjdump -sass prints them: their instructions, control flow graph, natural loops, and the best way through.
Knows nothing of which kernels there are; kernel_instructions.py does."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterable

FUNCTION = re.compile(r"^\s*Function : (.*)")
INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?\w+)\s+)?([A-Z][A-Z0-9_]*)((?:\.\w+)*)\s*(.*?)\s*;")


class CountError(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Instruction:
    address: int
    predicate: str | None
    name: str  # with its modifiers
    operands: str

    @property
    def kind(self) -> str:
        return self.name.split(".")[0]

    def bytes_moved(self) -> int:
        """Of a thread, between registers and global memory; a look at a word that others change is no stream of data."""
        if self.kind not in ("LDG", "STG") or "STRONG" in self.name:
            return 0
        width = re.search(r"\.(U8|S8|U16|S16|64|128)(?:\.|$)", self.name)
        bits = int(width[1].lstrip("US")) if width else 32
        return bits // 8

    def access(self) -> str:
        """Its name without the kind of cache."""
        return self.name.removesuffix(".CONSTANT")

    def target(self) -> int:
        return int(re.search(r"0x([0-9a-f]+)\s*$", self.operands)[1], 16)

    def may_pass(self) -> bool:
        """Whether the next instruction can follow."""
        if self.kind not in ("BRA", "EXIT", "RET", "BRX", "CALL") or self.predicate is not None:
            return True
        return self.kind == "BRA" and bool(re.match(r"!?U?P\d", self.operands) or ".DIV" in self.name)


@dataclasses.dataclass(frozen=True)
class Way:
    loops: int  # of those that it is to lead through
    moved: int
    wanted: int
    instructions: int
    blocks: tuple[int, ...]

    def better(self) -> tuple[int, int, int, int]:
        return self.loops, self.moved, self.wanted, -self.instructions


class Kernel:
    """The control flow graph of one kernel. A block is named by the address of its first instruction. A call is no way:
    the functions of a kernel are those for numbers that are not ordinary."""

    def __init__(self, code: list[Instruction]):
        starts = {code[0].address}
        for instruction, following in zip(code, code[1:]):
            if instruction.kind == "BRA":
                starts.add(instruction.target())
            if instruction.kind in ("BRA", "EXIT", "RET", "BRX", "CALL"):
                starts.add(following.address)
        self.entry = code[0].address
        self.blocks: dict[int, list[Instruction]] = {}
        for instruction in code:
            if instruction.address in starts:
                block = self.blocks.setdefault(instruction.address, [])
            block.append(instruction)
        names = list(self.blocks)
        self.next = {}
        for name, following in zip(names, [*names[1:], None]):
            last = self.blocks[name][-1]
            ways = [last.target()] if last.kind == "BRA" else []
            if last.may_pass() and following is not None:
                ways.append(following)
            self.next[name] = ways
        self.keep_what_is_reached()
        self.loops = self.natural_loops()

    def keep_what_is_reached(self) -> None:
        reached, ahead = set(), [self.entry]
        while ahead:
            block = ahead.pop()
            if block not in reached:
                reached.add(block)
                ahead += self.next[block]
        self.blocks = {name: block for name, block in self.blocks.items() if name in reached}
        self.next = {name: self.next[name] for name in self.blocks}
        self.before = collections.defaultdict(set)
        for block, ways in self.next.items():
            for way in ways:
                self.before[way].add(block)

    def natural_loops(self) -> dict[int, set[int]]:
        """By their first block; loops that share it are one."""
        dominators = {block: set(self.blocks) for block in self.blocks} | {self.entry: {self.entry}}
        changed = True
        while changed:
            changed = False
            for block in self.blocks:
                if block != self.entry:
                    found = set.intersection(*(dominators[other] for other in self.before[block])) | {block}
                    changed |= found != dominators[block]
                    dominators[block] = found
        loops: dict[int, set[int]] = {}
        for block, ways in self.next.items():
            for head in (way for way in ways if way in dominators[block]):
                body, ahead = loops.setdefault(head, {head}), [block]
                while ahead:
                    inside = ahead.pop()
                    if inside not in body:
                        body.add(inside)
                        ahead += self.before[inside]
        return loops

    def widest(self) -> int:
        return max(i.bytes_moved() for code in self.blocks.values() for i in code)

    def innermost(self, access: str) -> list[int]:
        """The smallest loops with such an access, in their order, by their first blocks."""
        holding = {head: body for head, body in self.loops.items() if self.has(access, body)}
        return sorted(head for head, body in holding.items() if not any(other < body for other in holding.values()))

    def has(self, access: str, blocks: Iterable[int]) -> bool:
        return any(i.access() == access for block in blocks for i in self.blocks[block])

    def best_way(self, through: set[int], past: set[int], aside: set[str], wanted: str) -> Way:
        """To an EXIT, once around every loop that it meets: through all the loops `through` and past the blocks `past`, of
        such ways the one that moves most bytes, accesses named `aside` left out, then the one with most instructions named
        `wanted`, then the shortest."""
        found: dict[int, Way | None] = {}

        def from_here(block: int) -> Way | None:
            if block not in found:
                code = self.blocks[block]
                onward = [way for way in self.next[block] if way not in past and block not in self.loops.get(way, ())]
                ways = list(filter(None, map(from_here, onward)))
                if code[-1].kind == "EXIT":
                    ways.append(Way(0, 0, 0, 0, ()))
                best = max(ways, key=Way.better, default=None)
                moved = sum(i.bytes_moved() for i in code if i.access() not in aside)
                found[block] = best and Way(
                    best.loops + (block in through),
                    best.moved + moved,
                    best.wanted + sum(i.name == wanted for i in code),
                    best.instructions + len(code),
                    (block, *best.blocks),
                )
            return found[block]

        way = from_here(self.entry)
        if way is None or way.loops < len(through):
            raise CountError("no way through the code and its loops was found")
        return way

    def first(self, access: str) -> int:
        """The block with the first such access."""
        return next(name for name in self.blocks if self.has(access, [name]))


def read_kernels(listing) -> dict[str, list[Instruction]]:
    kernels: dict[str, list[Instruction]] = {}
    code: list[Instruction] = []
    for line in listing:
        if function := FUNCTION.match(line):
            name = function[1].replace("titan::on_gpu::", "").replace("titan::", "").replace("(anonymous namespace)::", "")
            code = kernels.setdefault(name.removeprefix("void "), [])
        elif found := INSTRUCTION.match(line):
            code.append(Instruction(int(found[1], 16), found[2], found[3] + found[4], found[5]))
    return kernels

"""Which part of a traced step leaves the range that `titan_train plan --gpu --json` expects, and where to look then."""

from __future__ import annotations

SLACK = 0.03  # of a range: what a step's spread alone may leave
KINDS = {"matrix products": "products", "attention": "attention", "elementwise and reductions": "memory", "optimizer": "memory",
         "copies": "memory"}  # fmt: skip # of `titan_train profile summarize`, the rest are gaps
PURPOSES = {"products": "products", "float8 products": "products", "attention": "attention"}  # of the plan, the rest is memory
WHERE = {
    "products": "the products by shape: one far below the others is cuBLAS's choice, all of them are the clock (dmon.txt); --variant slow-products",
    "attention": "the line `Attention by` of the log, and attention alone in the ceilings; --variant slow-attention",
    "memory": "the kernel rates, what is below the bar; cross-entropy and AdamW are open (docs/kernels.md); --variant all-well",
    "gaps": "launches and host waits: the row without graphs, and sync-check-fused",
}


def parts_of(named: dict[str, float], parts: dict[str, str], rest: str, scale: float) -> dict[str, float]:
    found = dict.fromkeys(WHERE, 0.0)
    for name, amount in named.items():
        found["gaps" if name.startswith("waiting") else parts.get(name, rest)] += scale * amount
    return found


def lines(row: str, numbers: dict) -> list[str]:
    """A table of the parts of a traced row with a plan; a sentence for each that leaves its range."""
    plan, kinds = numbers.get("planned", {}), numbers.get("milliseconds_by_kind")
    if not kinds or "good" not in plan:
        return []
    likely, good = (parts_of(step["seconds"], PURPOSES, "memory", 1e3) for step in (plan, plan["good"]))
    table, said = ["", f"| {row}, one traced step | ms | good | likely | |", "|---|---:|---:|---:|---|"], []
    whole = sum(kinds.values())
    for part, found in parts_of(kinds, KINDS, "gaps", 1).items():
        room = 0.01 * whole if part == "gaps" else SLACK * likely[part]
        slower, faster = found - likely[part], good[part] - found
        verdict = f"{slower:.1f} ms more" if slower > room else f"{faster:.1f} ms less" if faster > room else ""
        table.append(f"| {part} | {found:.1f} | {good[part]:.1f} | {likely[part]:.1f} | {verdict or 'as expected'} |")
        if verdict:
            share = 100 * max(slower, faster) / whole
            said.append(f"* {part}: {verdict} than expected, {share:.1f} % of the step; look at {WHERE[part]}.")
    return [*table, *([""] + said if said else [])]

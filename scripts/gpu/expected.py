"""Which measured part of a step departs from what `titan_train plan --gpu --json` expects of it, and where to look then."""

from __future__ import annotations

# Of the profiler's kinds and the plan's purposes, as named there; the plan's other purposes move memory.
PRODUCTS, ATTENTION = ("matrix products",), ("attention",)
MEMORY = ("elementwise and reductions", "optimizer", "copies")
PLANNED_PRODUCTS = ("products", "float8 products")
SLACK = 0.03  # of a range, which a step's spread alone may leave
WHERE = {
    "products": "the table of products by shape: one below 90 % of the others is cuBLAS's choice of a kernel, all of them "
    "low are the clock (dmon.txt); then --variant slow-products",
    "attention": "the log's line `Attention by`, and attention alone in the ceilings; then --variant slow-attention",
    "memory": "the kernel rates: what is below the bar; B3, B4 and B6 of docs/kernels.md are the suspects; then --variant all-well",
    "gaps": "launches: the row with graphs against the one without; host waits: sync-check-fused",
}


def ranges(plan: dict) -> dict[str, tuple[float, float]]:
    """Milliseconds of each part: at good rates, and at likely ones."""

    def parts(seconds: dict[str, float]) -> dict[str, float]:
        found = {"products": 0.0, "attention": 0.0, "memory": 0.0, "gaps": 0.0}
        for purpose, part in seconds.items():
            kind = "products" if purpose in PLANNED_PRODUCTS else purpose if purpose == "attention" else "memory"
            found["gaps" if purpose.startswith("waiting") else kind] += 1e3 * part
        return found

    good, likely = parts(plan["good"]["seconds"]), parts(plan["seconds"])
    return {part: (good[part], likely[part]) for part in likely}


def measured(kinds: dict[str, float]) -> dict[str, float]:
    """Milliseconds of the same parts of a traced step, from what `titan_train profile summarize` tells by kind."""
    total = lambda names: sum(kinds.get(name, 0.0) for name in names)
    found = {"products": total(PRODUCTS), "attention": total(ATTENTION), "memory": total(MEMORY)}
    return found | {"gaps": sum(kinds.values()) - sum(found.values())}


def lines(row: str, plan: dict, kinds: dict[str, float]) -> list[str]:
    """A table of the parts, and a sentence for each that leaves its range."""
    expected, found = ranges(plan), measured(kinds)
    table = ["", f"| {row}, one traced step | ms | good | likely | |", "|---|---:|---:|---:|---|"]
    said = []
    for part, milliseconds in found.items():
        good, likely = expected[part]
        whole = sum(found.values())
        slower, faster = milliseconds - (1 + SLACK) * likely, (1 - SLACK) * good - milliseconds
        verdict = "as expected" if max(slower, faster) <= (0.01 * whole if part == "gaps" else 0) else ""
        verdict = verdict or (f"{milliseconds - likely:.1f} ms more" if slower > 0 else f"{good - milliseconds:.1f} ms less")
        table.append(f"| {part} | {milliseconds:.1f} | {good:.1f} | {likely:.1f} | {verdict} |")
        if verdict != "as expected":
            share = 100 * (milliseconds - (likely if slower > 0 else good)) / whole
            said.append(f"* {part}: {verdict} than expected, {abs(share):.1f} % of the step; look at {WHERE[part]}.")
    return [*table, *([""] + said if said else [])]

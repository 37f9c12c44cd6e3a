"""What a row says about activations that are recomputed."""

from __future__ import annotations

from planner.measurements.facts import defaults_of
from planner.measurements.tables import Row

__all__ = ["recompute_choices"]


def recompute_choices(row: Row, blocks: int, chunks: int = 1) -> tuple[tuple[str, int], ...]:
    """Names of `costmodel.mesh.plan.RECOMPUTE` and blocks of a chunk: what the row says, or what it leaves open.

    Parameters
    ----------
    row : Row
    blocks : int
        Of the network.
    chunks : int
        Of its pipeline.

    Examples
    --------
    >>> [recompute_choices(Row(line=2, cells={"recompute": text, "framework": "torchtitan"}), 32, 2) for text in ("full", "selective")]
    [(('full', 32),), (('full', 8),)]
    """
    usual = defaults_of(row)
    if not row.text("recompute") and usual.recompute == "as_needed":
        row.default("recompute", "as needed")
        few = [count for count in (1, 2, 4, 8, 16, 32, 64) if count * chunks < blocks]
        return (("none", 0), ("selective", 0), *(("full", count) for count in (*few, blocks)))
    counted = row.count("recompute_blocks")
    if counted is not None:
        return (("full", min(counted, blocks)),)
    name = row.text("recompute") or row.default("recompute", "full" if usual.recompute == "full" else "none")
    if name == "selective" and usual.selective_blocks:
        return (("full", max(-(-blocks // chunks) // usual.selective_blocks, 1)),)
    return ((name, blocks if name == "full" else 0),)

"""What a row says about activations that are recomputed, in the words of frameworks."""

from __future__ import annotations

import re

from planner.measurements.facts import defaults_of, recomputes_nothing, yes_or_no
from planner.measurements.tables import Row, RowSkipped

__all__ = ["recompute_choices", "recompute_of"]

# What frameworks call it: Megatron-LM's --recompute-method (uniform and block go with "full") and its modules (core_attn: "selective"),
# MaxText's remat_policy (configs/base.yml; what keeps the results of products recomputes what selective does), the rest is everyday speech.
# torchtitan names operators ("selective op", "SAC"); blocks may be counted ("12 layers").
_RECOMPUTE = (
    (r"none\b|disabled?\b|without\b|never\b", "none"),
    (r"selective|partial|s\.?ac\b|op\b|core.?attn|mlp|moe|layer.?norm|mla_up|(?:self.)?att(?:entio)?n\b", "selective"),
    (r"minimal\b|minimal_|save_(?:dot|qkv|out)|dots?\b|qkv_proj", "selective"),
    (r"full|uniform|block|enabled?\b|(?:grad|act)\w*.?(?:checkpoint|ckpt)|activation", "full"),
    (r"(?:a|g)c\b|checkpoint|ckpt|remat|recompute|every|always|per.?layer|all\b", "full"),
)
# A number is one of blocks only where it says so; "1" is a yes.
_BLOCKS = re.compile(r"(?:full\W+|block\W+|uniform\W+)?([0-9]+) ?(?:layers?|blocks?)\b")


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
    if recomputes_nothing(row):
        return (("none", row.default("recompute", 0)),)
    if not row.text("recompute") and usual.recompute == "as_needed":
        row.default("recompute", "as needed")
        few = [count for count in (1, 2, 4, 8, 16, 32, 64) if count * chunks < blocks]
        return (("none", 0), ("selective", 0), *(("full", count) for count in (*few, blocks)))
    counted = _BLOCKS.match(row.text("recompute").lower())
    if counted is not None:
        number = min(int(counted[1]), blocks)
        return (("full", number),) if number else (("none", 0),)
    name = recompute_of(row)
    if name == "selective" and usual.selective_blocks:
        return (("full", max(-(-blocks // chunks) // usual.selective_blocks, 1)),)
    return ((name, blocks if name == "full" else 0),)


def recompute_of(row: Row) -> str:
    """A name of `costmodel.mesh.plan.RECOMPUTE`.

    >>> [recompute_of(Row(line=2, cells={"recompute": text})) for text in ("full (uniform)", "core_attn", "off", "minimal", "yes")]
    ['full', 'selective', 'none', 'selective', 'full']

    Raises
    ------
    RowSkipped
        The cell says something else.
    """
    text = row.text("recompute").lower()
    if not text:
        return row.default("recompute", "full" if defaults_of(row).recompute == "full" else "none")
    for pattern, name in _RECOMPUTE:
        if re.match(pattern, text):
            return name
    flag = yes_or_no(text)
    if flag is None:
        raise RowSkipped("column recompute is none of none, selective, full", usable=True)
    return "full" if flag else "none"

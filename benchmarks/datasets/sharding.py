"""What published rows say about weights, gradients and optimizer states that data-parallel ranks share."""

from __future__ import annotations

import re

from benchmarks.datasets.reading import Row, Unreadable
from benchmarks.datasets.words import yes_or_no

__all__ = ["offloads_optimizer", "sharding_of"]

# First word of the column fsdp -> ZeRO stage.
_SHARDED = {
    "full_shard": 3, "full": 3, "fsdp": 3, "fsdp1": 3, "fsdp2": 3, "fully_sharded": 3, "yes": 3, "true": 3, "hybrid_shard": 3, "hybrid": 3,
    "hsdp": 3, "shard_grad_op": 2, "hybrid_shard_zero2": 2, "no_shard": 0, "no": 0, "none": 0, "false": 0, "ddp": 0,
}  # fmt: skip
_HYBRID = ("hybrid", "hsdp")
# "DeepSpeed ZeRO-2", "DeepSpeed (zero stage 3)", "ZeRO-Infinity": stage 3 whose states may leave the device.
_NAMED_STAGE = re.compile(r"\bzero[\s_-]*(?:(?:stage|dp)[\s_-]*)?(?:([1-3])\b|infinity|\+\+)")
_STAGE = re.compile(r"(?:zero|stage|os|z)?[\s_-]*(?:stage|dp)?[\s_-]*([0-3])\b(?!\.)")
# "3/2 (...)": that of most weights, and of some.
_SEVERAL = re.compile(r"([0-3]) ?/ ?[0-3]\b")
# Names without a number, the longer ones first. ZeRO's states as its paper writes them (Rajbhandari et al., arXiv:1910.02054, section 5);
# ZeRO++ and ZeRO-Infinity are built on stage 3, ZeRO-Offload on stage 2 (arXiv:2306.10209, 2104.07857, 2101.06840, abstracts);
# MiCS shards everything inside groups (arXiv:2205.00119); Megatron-LM's distributed optimizer.
_STAGES_BY_NAME = (
    (r"zero ?\+\+|zero[ _-]?inf|mics|p?_?os ?\+ ?g ?\+ ?p", 3),
    (r"zero[ _-]?offload|p?_?os ?\+ ?g\b|p_os_g\b", 2),
    (r"dist(?:ributed)?[ _-]?opt|optimizer|p_os\b|pos\b", 1),
    (r"fsdp", 3),
    (r"ddp\b|dp\b|replicated|plain|off\b", 0),
)


def sharding_of(row: Row, node: int = 0) -> tuple[int | None, int | None]:
    """ZeRO stage, and ranks that share; None where nothing is stated (all ranks).

    Columns: ``zero_stage`` 0 to 3; ``fsdp`` FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, NO_SHARD or the ranks that share (0 or 1: none);
    either in the words of the other; ``zero1_group`` the ranks that share (-1: all).

    >>> sharding_of(Row(line=2, cells={"zero_stage": "1", "zero1_group": "8 (node)"}))
    (1, 8)
    >>> sharding_of(Row(line=2, cells={"zero_stage": "HSDP"}), node=8), sharding_of(Row(line=2, cells={"fsdp": "256"}))
    ((3, 8), (3, 256))

    Raises
    ------
    Unreadable
        Nobody says it so.
    """
    group = row.number("zero1_group")
    sharded = _first_word(row.text("fsdp"))
    stated = _stated_stage(row)
    if sharded.startswith(_HYBRID) or _first_word(row.text("zero_stage")).startswith(_HYBRID):
        group = group or row.number("gpus_per_node") or node or None
    ranks = None if group is None or group < 1 else int(group)
    if sharded in _SHARDED:
        return (stated if stated is not None else _SHARDED[sharded]), ranks
    shared = row.number("fsdp")
    if stated is None and shared is not None and shared > 1:
        return 3, int(shared)
    if stated is not None:
        return stated, ranks
    named = _NAMED_STAGE.search(row.text("framework").lower())
    if group is None:
        return (None if named is None else int(named[1] or 3)), None
    return 1, ranks


def _first_word(text: str) -> str:
    return re.split(r"[\s(,;]", text.lower(), maxsplit=1)[0].replace("-", "_")


def _stated_stage(row: Row) -> int | None:
    """The column ``zero_stage``: a number, or a name with one ("ZeRO-3", "stage 2"), or what the column ``fsdp`` may say.

    >>> [_stated_stage(Row(line=2, cells={"zero_stage": text})) for text in ("1", "ZeRO-3 (offload)", "FSDP", "ZeRO++", "dist-opt", "no")]
    [1, 3, 3, 3, 1, 0]
    """
    text = row.text("zero_stage").lower()
    if not text:
        return None
    several = _SEVERAL.match(text)
    if several is not None:
        return int(several[1])
    if text[0].isdigit() and row.number("zero_stage") in (0, 1, 2, 3):  # "3.0", "2 (ZeRO)"
        return int(row.number("zero_stage") or 0)
    named = _STAGE.match(text)
    by_name = (stage for pattern, stage in _STAGES_BY_NAME if re.match(pattern, text))
    stage = int(named[1]) if named is not None else next(by_name, _SHARDED.get(_first_word(text)))
    if stage is None or yes_or_no(text) is True:
        raise Unreadable("column zero_stage is none of 0, 1, 2, 3")
    return stage


def offloads_optimizer(row: Row) -> bool:
    """Whether the host keeps the optimizer: column ``cpu_offload``, or the words beside a ZeRO stage.

    >>> [offloads_optimizer(Row(line=2, cells={"zero_stage": text})) for text in ("3 (CPU offload)", "3")]
    [True, False]
    """
    stated = row.text("cpu_offload").lower()
    if stated:
        return yes_or_no(stated) is True or stated.startswith(("cpu", "host", "optim"))
    words = f"{row.text('zero_stage')} {row.text('fsdp')} {row.text('framework')}".lower()
    return bool(
        re.search(r"zero.*offload|(?<!no )(?:cpu|optimizer)[ _-]?offload|\(offload\)|^[0-3] ?\+? ?offload", words)
    )

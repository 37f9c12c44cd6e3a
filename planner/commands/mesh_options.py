"""The options of plans over a device mesh, each written once, and how they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from planner.commands.options import MESH, option, takes_table
from planner.commands.values import MAX_GPUS, Values
from planner.question.fixed import FIELD_OF_OPTION, flag_of

if TYPE_CHECKING:
    from strategies.mesh.settings import Bounds, MeshRestriction

__all__ = ["MESH_OPTIONS", "restriction_from", "takes_mesh_options"]


def _words(name: str, metavar: str, text: str) -> Any:
    return Annotated[str | None, option(f"--{name}", metavar=metavar, help=text, group=MESH)]


# Parameter -> option. Degrees are read as 8, 1..8 or 1,2,4; names as one name or several with commas.
MESH_OPTIONS: dict[str, Any] = {
    "tp": _words("tp", "N", "Tensor parallel degree. Every degree is 8 or, to search among some, 1..8 or 1,2,4."),
    "cp": _words("cp", "N", "Context parallel degree: parts of every sequence."),
    "ep": _words("ep", "N", "Expert parallel degree."),
    "etp": _words("etp", "N", "Tensor parallel degree inside an expert."),
    "pp": _words("pp", "N", "Pipeline stages."),
    "vpp": _words("vpp", "N", "Virtual stages (chunks) per pipeline rank."),
    "dp": _words("dp", "N", "Data parallel degree: --dp-replicate x --dp-shard."),
    "dp_replicate": _words("dp-replicate", "N", "Data parallel ranks that keep their own copy."),
    "dp_shard": _words("dp-shard", "N", "Data parallel ranks that share one copy under ZeRO."),
    "zero": _words("zero", "STAGE", "What is shared: 0 nothing, 1 optimizer, 2 and gradients, 3 and weights (FSDP)."),
    "micro_batch": _words("micro-batch", "N", "Samples per micro-batch and data parallel rank."),
    "schedule": _words("schedule", "NAME", "gpipe, 1f1b, interleaved or zero_bubble."),
    "recompute": _words("recompute", "NAME", "What the backward pass computes again: none, selective or full."),
    "recompute_blocks": _words("recompute-blocks", "N", "Blocks per stage that are recomputed under full."),
    "sequence_parallel": Annotated[
        bool | None,
        option(
            "--sequence-parallel/--no-sequence-parallel",
            metavar=None,
            help="Cut tensors between split matrices along the positions.",
            group=MESH,
        ),
    ],
    "cp_kind": _words("cp-kind", "NAME", "How attention sees other positions: ring, all_gather or all_to_all."),
    "order": _words("order", "NAME", "Rank order, innermost first, as in tp-cp-dp-pp."),
    "offload": _words(
        "offload", "WHAT", "What is kept on the host: optimizer, activations, both with a comma, or none."
    ),
}

_LEAST = {"zero": 0, "recompute_blocks": 0}
_MOST = {"zero": 3, "micro_batch": 10**9, "recompute_blocks": 10**6}
_DEGREES = (
    "tp",
    "cp",
    "ep",
    "etp",
    "pp",
    "vpp",
    "dp",
    "dp_replicate",
    "dp_shard",
    "zero",
    "micro_batch",
    "recompute_blocks",
)
_OFFLOADS = ("optimizer", "activations")


# Gives a command every option of `MESH_OPTIONS`; it gets their words as the mapping ``mesh``.
takes_mesh_options = takes_table("mesh", MESH_OPTIONS)


def restriction_from(given: Mapping[str, Any], micro_batches: str | None, values: Values) -> MeshRestriction | None:
    """Read the options that fix or bound a plan over a device mesh.

    Parameters
    ----------
    given : mapping
        Words of `MESH_OPTIONS`, None where an option was left out.
    micro_batches : str, optional
        Word of ``--num-micro-batches`` where it is a range or a list; a single number means something to every space.
    values : Values
        Takes the problems.

    Returns
    -------
    MeshRestriction or None
        None where nothing was given.
    """
    if micro_batches is None and all(word is None for word in given.values()):
        return None
    from costmodel.mesh.plan import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES
    from strategies.mesh.settings import MeshRestriction

    degrees = {
        FIELD_OF_OPTION.get(name, name): integers(
            values, flag_of(name), given[name], _LEAST.get(name, 1), _MOST.get(name, MAX_GPUS)
        )
        for name in _DEGREES
        if given.get(name) is not None
    }
    if micro_batches is not None:
        degrees["num_micro_batches"] = integers(values, "--num-micro-batches", micro_batches, 1, 10**9)
    known = {"schedule": SCHEDULES, "recompute": RECOMPUTE, "cp_kind": CP_KINDS, "order": ORDERS}
    names = {
        name: _names(values, flag_of(name), given[name], allowed)
        for name, allowed in known.items()
        if given.get(name) is not None
    }
    flags = {} if given.get("sequence_parallel") is None else {"sequence_parallel": bool(given["sequence_parallel"])}
    if given.get("offload") is not None:
        words = _names(values, "--offload", given["offload"], (*_OFFLOADS, "none"))
        if "none" in words and len(words) > 1:
            values.add(f"--offload {given['offload']}: none goes with nothing else")
        flags |= {f"offload_{what}": what in words for what in _OFFLOADS}
    _check_meaning(degrees, names, flags, values)
    if "recompute" not in names and min(_listed(degrees.get("recompute_blocks")), default=0) > 0:
        names["recompute"] = ("full",)  # the only kind that has a number of blocks
    return MeshRestriction(degrees=degrees, names=names, flags=flags)


def _listed(bounds: Bounds | None) -> tuple[int, ...]:
    """Allowed values, of a range its ends."""
    return () if bounds is None else bounds.values or (bounds.low or 0, bounds.high or 0)


def _check_meaning(
    degrees: Mapping[str, Bounds], names: Mapping[str, tuple[str, ...]], flags: Mapping[str, bool], values: Values
) -> None:
    """Refuse what another option leaves without a meaning: it would be ignored."""
    if flags.get("sequence_parallel") and set(_listed(degrees.get("tp"))) == {1}:
        values.add(
            "--sequence-parallel --tp 1 exclude each other: the positions are cut between the ranks of tensor parallelism, which needs "
            "tp > 1 (rule sequence-parallel)"
        )
    _check_division(degrees, values)
    if "cp_kind" in names and set(_listed(degrees.get("cp"))) == {1}:
        values.add(
            f"--cp-kind {','.join(names['cp_kind'])} --cp 1 exclude each other: a kind of context parallelism needs cp > 1 (rule cp-kind)"
        )
    blocks, kinds = _listed(degrees.get("recompute_blocks")), names.get("recompute", ("none", "full"))
    if blocks and ((min(blocks) > 0 and "full" not in kinds) or (max(blocks) == 0 and kinds == ("full",))):
        values.add(
            f"--recompute {','.join(kinds)} --recompute-blocks {blocks[0]} exclude each other: "
            "recompute_blocks counts from 1 under full recomputation, and is 0 otherwise (rule recompute)"
        )


def _check_division(degrees: Mapping[str, Bounds], values: Values) -> None:
    """Refuse replicas and shares that do not make up dp."""
    single = {name: bounds.values[0] for name, bounds in degrees.items() if len(bounds.values) == 1}
    parts = {name: single[name] for name in ("dp_replicate", "dp_shard") if name in single}
    product = math.prod(parts.values())
    if "dp" not in single or not parts:
        return
    dp = single["dp"]
    if dp != product if len(parts) == 2 else dp % product:
        given = " ".join(f"{flag_of(name)} {value}" for name, value in parts.items())
        words = " x ".join(f"{flag_of(name)[2:]} {value}" for name, value in parts.items())
        relation = f"= {product} is not" if len(parts) == 2 else "does not divide"
        values.add(f"--dp {dp} {given} exclude each other: dp is dp-replicate x dp-shard, and {words} {relation} {dp}")


def integers(values: Values, flag: str, text: str, least: int, most: int) -> Bounds:
    """Read allowed whole numbers: ``8``, ``1..8`` or ``1,2,4``.

    >>> integers(Values(), "--tp", "1..8", 1, 64), integers(Values(), "--tp", "4,2", 1, 64).values
    (Bounds(low=1, high=8, values=()), (2, 4))
    """
    from strategies.mesh.settings import Bounds

    if (problem := _not_numbers(text)) is not None:
        values.add(f"{flag}{f' {text}' if text.strip() else ''}: {problem}")
        return Bounds(values=(least,))
    first, dots, last = text.strip().partition("..")
    if dots:
        low = values.count(flag, first.strip(), least=least, most=most)
        high = values.count(flag, last.strip(), least=least, most=most)
        if low > high:
            values.add(f"{flag} {text}: must run from a smaller to a larger number")
        return Bounds(low=low, high=max(low, high))
    numbers = {values.count(flag, part.strip(), least=least, most=most) for part in text.split(",")}
    return Bounds(values=tuple(sorted(numbers)))


def _not_numbers(text: str) -> str | None:
    """What is wrong with the form of ``8``, ``1..8`` or ``1,2,4``; None where it has one of them.

    >>> [_not_numbers(text) for text in ("8", "1..8", "1, 2")]
    [None, None, None]
    >>> _not_numbers("2..4..8")
    'a range has two ends, as in 2..8; a list has commas, as in 2,4,8'
    """
    if not text.strip():
        return "is empty; give a number, a range such as 1..8 or a list such as 1,2,4"
    ends = [part.strip() for part in text.split("..")]
    if len(ends) > 2:
        known = [end for end in ends if end]
        return (
            f"a range has two ends, as in {known[0]}..{known[-1]}; a list has commas, as in {','.join(known)}"
            if known
            else "has no number"
        )
    if len(ends) == 2 and "," in text:
        return "give a range or a list, not both"
    if len(ends) == 2 and not all(ends):
        return "a range needs both ends, as in 1..8"
    entries = [part.strip() for part in text.split(",")]
    if not all(entries):
        return f"has an empty entry; write {','.join(entry for entry in entries if entry) or 'a number'}"
    return None


def _names(values: Values, flag: str, text: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Read one name or several with commas, in the order of those allowed; a hyphen may stand for an underscore."""
    hyphens = {name.replace("_", "-"): name for name in allowed}
    chosen = {values.choice(flag, hyphens.get(part.strip().lower(), part), allowed) for part in text.split(",")}
    return tuple(name for name in allowed if name in chosen)

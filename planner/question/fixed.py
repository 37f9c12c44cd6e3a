"""What a request fixes of a plan: which option fixes which field, and how it was written on the command line."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from planner.core.request import Request

if TYPE_CHECKING:
    from strategies.mesh.settings import Bounds, MeshRestriction

# Option (as a parameter's name) -> field of costmodel.mesh.plan.MeshPlan, where they differ.
FIELD_OF_OPTION = {"zero": "zero_stage"}


def flag_of(field: str) -> str:
    """Option that fixes a field of MeshPlan.

    >>> flag_of("zero_stage"), flag_of("dp_shard"), flag_of("num_micro_batches"), flag_of("offload_optimizer")
    ('--zero', '--dp-shard', '--num-micro-batches', '--offload')
    """
    if field.startswith("offload_"):
        return "--offload"
    name = next((name for name, other in FIELD_OF_OPTION.items() if other == field), field)
    return f"--{name.replace('_', '-')}"


def fixed_by(request: Request) -> MeshRestriction:
    """Every degree, name and flag that a request fixes, ``--num-micro-batches`` included.

    >>> fixed_by(Request(model="m", micro_batches=4)).degrees["num_micro_batches"].values
    (4,)
    """
    from strategies.mesh.settings import Bounds, MeshRestriction  # a question about another space does without

    restriction = request.mesh or MeshRestriction()
    if request.micro_batches is None:
        return restriction
    fixed = {"num_micro_batches": Bounds(values=(request.micro_batches,))}
    return dataclasses.replace(restriction, degrees={**restriction.degrees, **fixed})


def single(degrees: Mapping[str, Bounds]) -> dict[str, int]:
    """Degrees of which only one value is allowed.

    >>> from strategies.mesh.settings import Bounds
    >>> single({"tp": Bounds(values=(8,)), "pp": Bounds(low=2, high=2), "dp": Bounds(values=(2, 4))})
    {'tp': 8, 'pp': 2}
    """
    return {field: bounds.least for field, bounds in degrees.items() if bounds.least == bounds.most}


def left_open(degrees: Mapping[str, Bounds]) -> list[str]:
    """Refuse degrees of several values, where one plan is meant."""
    exact = single(degrees)
    return [
        f"{flag_of(name)}: leaves open which plan is meant; give one value" for name in degrees if name not in exact
    ]


def data_fields(degrees: Mapping[str, object]) -> tuple[str, ...]:
    """Fields that make up data parallelism, in the words that the user chose."""
    return ("dp",) if "dp" in degrees else ("dp_replicate", "dp_shard")


def multiplied(degrees: Mapping[str, int], fields: Sequence[str]) -> tuple[int, str]:
    """Product of some degrees, and how it is written.

    >>> multiplied({"tp": 8, "dp_shard": 2, "pp": 4}, ("tp", "dp_shard"))
    (16, 'tp 8 x dp-shard 2 = 16')
    """
    used = {field: degrees[field] for field in fields if degrees.get(field, 1) > 1}
    product = math.prod(used.values())
    words = " x ".join(f"{flag_of(field)[2:]} {degree}" for field, degree in used.items()) or "1"
    return product, f"{words} = {product}" if len(used) > 1 else words


def no_such_division(degrees: Mapping[str, int]) -> list[str]:
    """Say that data parallelism is not what its parts make; nothing where it is, or where the one or the other is open.

    >>> no_such_division({"dp": 8, "dp_replicate": 2, "dp_shard": 2})
    ['dp is dp-replicate x dp-shard, and dp-replicate 2 x dp-shard 2 = 4 is not 8']
    """
    dp, parts = degrees.get("dp"), {n: degrees[n] for n in ("dp_replicate", "dp_shard") if n in degrees}
    product, words = multiplied(parts, tuple(parts))
    if dp is None or not parts or (dp == product if len(parts) == 2 else dp % product == 0):
        return []
    return [f"dp is dp-replicate x dp-shard, and {words} {'is not' if len(parts) == 2 else 'does not divide'} {dp}"]


def flags_of(restriction: MeshRestriction) -> dict[str, str]:
    """Fixed field -> its option."""
    return {field: flag_of(field) for field in (*restriction.degrees, *restriction.names, *restriction.flags)}


def only(restriction: MeshRestriction, chosen: frozenset[str]) -> MeshRestriction:
    """What some options fix, the others left out."""
    return dataclasses.replace(
        restriction,
        degrees={field: bounds for field, bounds in restriction.degrees.items() if flag_of(field) in chosen},
        names={field: names for field, names in restriction.names.items() if flag_of(field) in chosen},
        flags={field: value for field, value in restriction.flags.items() if flag_of(field) in chosen},
    )


def without(restriction: MeshRestriction, flag: str) -> MeshRestriction:
    """What all options but one fix."""
    return only(restriction, frozenset(flags_of(restriction).values()) - {flag})


def given_text(restriction: MeshRestriction, flag: str) -> str:
    """An option as the user wrote it.

    >>> from strategies.mesh.settings import Bounds, MeshRestriction
    >>> fixed = MeshRestriction(degrees={"tp": Bounds(values=(2, 4)), "pp": Bounds(low=1, high=8)})
    >>> given_text(fixed, "--tp"), given_text(fixed, "--pp")
    ('--tp 2,4', '--pp 1..8')
    """
    text = f"{flag} {_value_text(restriction, flags_of(restriction), flag)}".strip()
    return text.replace("--sequence-parallel off", "--no-sequence-parallel")


def _value_text(restriction: MeshRestriction, flags: Mapping[str, str], flag: str) -> str:
    for field, name in flags.items():
        if name != flag:
            continue
        if field in restriction.degrees:
            bounds = restriction.degrees[field]
            return ",".join(map(str, bounds.values)) if bounds.values else f"{bounds.low}..{bounds.high}"
        if field in restriction.names:
            return ",".join(restriction.names[field])
        if field == "sequence_parallel":
            return "" if restriction.flags[field] else "off"
        on = [
            other.removeprefix("offload_")
            for other, value in restriction.flags.items()
            if value and flags[other] == flag
        ]
        return ",".join(on) or "none"
    return ""


def near_multiples(number: int, unit: int) -> str:
    """Name the multiples of a unit next to a number.

    >>> near_multiples(1000, 16), near_multiples(3, 16)
    ('992 or 1008', '16')
    """
    below = number // unit * unit
    return " or ".join(str(multiple) for multiple in (below, below + unit) if multiple > 0)

"""The declarations of figures of an answer, of settings of a plan and of assumptions of the cost model.

Every space of plans declares its figures once (`costmodel.mesh.plan` and so on). The keys of ``--json`` and of CSV files with their JSON
Schema, the tables of parts, the labels of comparisons and of figures follow from that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number (or word) that an answer gives for a plan.

    Attributes
    ----------
    name : str
        Key in ``--json`` and column of tables; ends with its unit (``_s``, ``_bytes``, ``_j``), rates with ``_per_s``.
    doc : str
        One sentence for the schema and the docs.
    label : str
        What people call it in a table of parts; empty where it stands in none.
    part_of : str
        The figure that it adds up to together with the others that name the same; empty where it is part of none.
    kind : str
        "number" (any finite number), "amount" (at least 0), "count" (a whole number, at least ``least``) or "text".
    least : int
        Of a count.
    optional : bool
        Whether it may be missing (null).

    Examples
    --------
    >>> Figure(name="bubble_s", doc="Filling and draining of a pipeline.", label="pipeline bubble", part_of="step_time_s").kind
    'amount'
    """

    name: str
    doc: str
    label: str = ""
    part_of: str = ""
    kind: Literal["number", "amount", "count", "text"] = "amount"
    least: int = 0
    optional: bool = False


def part(of: str, name: str, label: str, doc: str, kind: Literal["number", "amount"] = "amount") -> Figure:
    """A figure that is part of another.

    >>> part("step_time_s", "bubble_s", "pipeline bubble", "Filling and draining of a pipeline.").part_of
    'step_time_s'
    """
    return Figure(name=name, label=label, doc=doc, part_of=of, kind=kind)


def declared(*figures: Figure) -> Mapping[str, Figure]:
    """Figures by name, in the order in which answers give them.

    Raises
    ------
    ValueError
        A name that is declared twice, or a part of a figure that is not declared.

    Examples
    --------
    >>> list(declared(Figure(name="a_s", doc="A."), Figure(name="b_s", doc="B.", part_of="a_s")))
    ['a_s', 'b_s']
    """
    found: dict[str, Figure] = {}
    for figure in figures:
        if figure.name in found:
            raise ValueError(f"'{figure.name}' is declared twice")
        found[figure.name] = figure
    for figure in figures:
        if figure.part_of and figure.part_of not in found:
            raise ValueError(f"'{figure.name}' is part of '{figure.part_of}', which is not declared")
    return found


def parts_of(figures: Iterable[Figure], total: str) -> tuple[str, ...]:
    """Names of the figures that add up to another.

    >>> parts_of([Figure(name="a_s", doc="A.", part_of="t_s"), Figure(name="b_s", doc="B.")], "t_s")
    ('a_s',)
    """
    return tuple(figure.name for figure in figures if figure.part_of == total)


def labels_of(figures: Iterable[Figure], total: str) -> dict[str, str]:
    """What people call the parts of a figure.

    >>> labels_of([Figure(name="bubble_s", doc="B.", label="pipeline bubble", part_of="step_time_s")], "step_time_s")
    {'bubble_s': 'pipeline bubble'}
    """
    return {figure.name: figure.label for figure in figures if figure.part_of == total}


def assumption(
    default: float,
    doc: str,
    source: str,
    *,
    needs: str = "",
    as_run: float | None = None,
    most: float = math.inf,
    is_whole: bool = False,
) -> float:
    """Declare an assumption: a field of a dataclass with its value in a well-tuned implementation, its meaning and where that is from.

    Where ``needs`` names another one, it changes nothing while that is 0. ``as_run`` is its value in the runs of a framework that does
    not state it, where that is another. ``most`` is its largest value (1 of a share), and ``is_whole`` says that it counts something.
    """
    usual = default if as_run is None else as_run
    value: float = field(
        default=default,
        metadata={"doc": doc, "source": source, "needs": needs, "as_run": usual, "most": most, "is_whole": is_whole},
    )
    return value


def as_run(assumptions: type[_T]) -> _T:
    """The assumptions about runs of a framework that states none of them."""
    declaration: Any = assumptions
    found: _T = declaration(**{item.name: item.metadata["as_run"] for item in fields(declaration)})
    return found


def with_values(assumptions: _T, values: Mapping[str, float]) -> _T:
    """Assumptions with other values of some of them; values of what they do not have are left out."""
    changed: Any = assumptions
    found: _T = replace(
        changed, **{name: value for name, value in values.items() if name in changed.__dataclass_fields__}
    )
    return found


def without_effect(assumptions: Any, given: Mapping[str, float]) -> dict[str, str]:
    """Given values that change nothing, because the assumption that they need is 0: name -> that one's name.

    >>> @dataclass
    ... class Reading:
    ...     rate: float = assumption(0.0, "bytes per second", "endless")
    ...     sample_bytes: float = assumption(0.0, "bytes", "none", needs="rate")
    >>> without_effect(Reading(sample_bytes=1e5), {"sample_bytes": 1e5})
    {'sample_bytes': 'rate'}
    >>> without_effect(Reading(sample_bytes=1e5, rate=1e9), {"sample_bytes": 1e5, "rate": 1e9})
    {}
    """
    needs = {item.name: item.metadata["needs"] for item in fields(assumptions) if item.metadata["needs"]}
    return {name: needs[name] for name in needs if given.get(name) and not getattr(assumptions, needs[name])}


def setting(default: _T, doc: str, *, least: int = 1, most: int = 1_000_000, of: Sequence[str] = ()) -> _T:
    """Declare a setting of a plan: a field of a dataclass with its neutral value, its meaning and what it may be.

    Parameters
    ----------
    default : int, bool, str or tuple
        What it is where nothing is said; its type is that of the setting.
    doc : str
        One sentence for plan files and their schema.
    least, most : int
        Range of a whole number, or of those in a tuple.
    of : sequence of str
        The words that it may be.
    """
    value: _T = field(default=default, metadata={"doc": doc, "least": least, "most": most, "of": tuple(of)})
    return value

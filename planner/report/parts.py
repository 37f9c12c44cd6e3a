"""What answers about different plans show alike: the parts of a sum, two plans part by part, the assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costmodel.tolerances import ROUNDING
from planner.core.answer import Assumption, Setting, assumption_text
from planner.core.blocks import Column, Table
from planner.core.numbers import Unit, percent, significant
from planner.report.waterfall import waterfall

__all__ = ["assumption_rows", "comparison_table", "parts_table"]


def parts_table(
    parts: Mapping[str, float],
    words: Mapping[str, str],
    total: float,
    unit: Unit,
    *,
    title: str,
    name: str,
    term: str = "part",
) -> Table:
    """Parts, their shares and a waterfall, and the sum in the last row.

    Parameters
    ----------
    parts : mapping of str to float
        SI units; parts of nothing are left out.
    words : mapping of str to str
        What people call them.
    total : float
    unit : Unit
        In which they are shown.
    title, name, term : str
        Of the column of values, of the sum, and of the column of words.
    """
    rows = [(words[key], float(value)) for key, value in parts.items() if value > ROUNDING * total]
    values = [value for _, value in rows]
    return Table(
        columns=(
            Column(title=term, cells=(*(word for word, _ in rows), name), is_text=True),
            Column(
                title=title, unit=unit.name, cells=tuple(significant(value / unit.size) for value in (*values, total))
            ),
            Column(title="share", cells=(*(percent(value / total) for value in values), "100 %")),
            Column(title="", cells=waterfall(values, total), is_text=True, priority=1),
        ),
        total=True,
    )


def comparison_table(
    rows: Sequence[tuple[str, float, float]], unit: Unit, *, term: str = "part", total: bool = True
) -> Table:
    """Terms of a plan, of the best plan, and by how much they differ; ``total`` where the last row is the sum."""

    def column(name: str, values: Sequence[float], *, signed: bool = False) -> Column:
        cells = tuple(f"{'+' if signed and v > 0 else ''}{significant(v / unit.size)}" for v in values)
        return Column(title=name, unit=unit.name, cells=cells)

    return Table(
        columns=(
            Column(title=term, cells=tuple(row[0] for row in rows), is_text=True),
            column("this plan", [a for _, a, _ in rows]),
            column("best plan", [b for _, _, b in rows]),
            column("difference", [a - b for _, a, b in rows], signed=True),
        ),
        total=total,
    )


def assumption_rows(
    assumptions: Sequence[Assumption], of_model: Sequence[Assumption], setting: Setting
) -> list[tuple[str, str]]:
    """Assumptions of a question, and those of the cost model of a mesh; those that are nothing by default stand together, last."""
    nothing = [a.name for a in of_model if a.value == "0" and a.source != "given"]
    named = [
        f"{a.name} {a.value}" + (" (given)" if a.source == "given" else "") for a in of_model if a.name not in nothing
    ]
    if nothing:
        named.append(f"and 0 for {', '.join(nothing)}")
    options = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in setting.cost_model_options.items()
    ]
    everything = ", ".join([*(assumption_text(assumption) for assumption in assumptions), *options])
    return [("Assumed", everything), *([("Of the cost model", ", ".join(named))] if named else [])]

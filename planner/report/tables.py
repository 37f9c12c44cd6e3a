"""Tables that several answers share: parts of a sum, ranked plans, rows of dataclasses, what a step waits for the network.

Under a table of plans, `legend` says what the abbreviations in their names mean.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from costmodel.hardware.cluster import LinkRow
from costmodel.tolerances import ROUNDING
from planner.core.answer import STATED, Assumption, RankedPlan, Setting, assumption_text
from planner.core.blocks import Block, Column, Heading, Table
from planner.core.numbers import (
    Unit,
    byte_text,
    byte_unit,
    duration_text,
    percent,
    significant,
    time_unit,
    used_of_total,
)
from planner.core.objectives import change_column, cost_of, cost_text

_WIDTH = 30
# What the parts of a time that a headline does not name are called.
OTHER = "other"
# Parts of a time that a headline names: so many, and none below this share; the rest is said from a share on that shows.
_NAMED, _LEAST, _SHOWS = 4, 0.005, 0.001


def largest_parts(plan: RankedPlan) -> dict[str, float]:
    """Shares of the largest parts of a plan's time by what people call them, in their order; "other": of the rest."""
    parts = plan.labelled_parts(plan.main)
    whole = sum(parts.values())
    least = max(_LEAST * whole, sorted(parts.values())[-_NAMED:][0])
    found = {word: value / whole for word, value in parts.items() if value >= least and value > 0.0}
    left = 1.0 - sum(found.values())
    return found | ({OTHER: left} if found and left >= _SHOWS else {})


def waterfall(values: Sequence[float], total: float, width: int = _WIDTH) -> tuple[str, ...]:
    """Bars of parts that add up to a total, and that of the total; a part that is too short for a character is a thin line.

    >>> for bar in waterfall([5.0, 0.01, 3.0, 2.0], 10.01, 10):
    ...     print(bar)
    #####
         |
         ###
            ##
    ==========
    """
    bars, done = [], 0.0
    for value in values:
        start, end = (round(width * share / total) if total > 0 else 0 for share in (done, done + value))
        done += value
        if end > start:
            bars.append(" " * start + "#" * (end - start))
        else:
            bars.append(" " * min(start, width - 1) + "|" if value > 0 else "")
    return (*bars, "=" * width)


def parts_table(
    parts: Iterable[tuple[str, float]],
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
    parts : iterable of (str, float)
        What people call each, and its value in SI units; parts of nothing are left out.
    total : float
    unit : Unit
        In which they are shown.
    title, name, term : str
        Of the column of values, of the sum, and of the column of words.
    """
    rows = [(word, float(value)) for word, value in parts if value > ROUNDING * total]
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


def comparison_table(rows: Sequence[tuple[str, float, float]], unit: Unit, *, total: bool) -> Table:
    """Terms of a plan, of the best plan, and by how much they differ; ``total`` where the last row is the sum."""

    def column(name: str, values: Sequence[float], *, signed: bool = False) -> Column:
        cells = tuple(f"{'+' if signed and v > 0 else ''}{significant(v / unit.size)}" for v in values)
        return Column(title=name, unit=unit.name, cells=cells)

    return Table(
        columns=(
            Column(title="part", cells=tuple(row[0] for row in rows), is_text=True),
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
    nothing = [a.name for a in of_model if a.value == "0" and a.source not in STATED]
    named = [assumption_text(a, stated_only=True) for a in of_model if a.name not in nothing]
    if nothing:
        named.append(f"and 0 for {', '.join(nothing)}")
    options = [
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in setting.cost_model_options.items()
    ]
    everything = ", ".join([*(assumption_text(assumption) for assumption in assumptions), *options])
    return [("Assumed", everything), *([("Of the cost model", ", ".join(named))] if named else [])]


def link_blocks(rows: Sequence[LinkRow], step_time_s: float) -> list[Block]:
    """A table: traffic, its groups, the slowest level of links that they span, and what the step waits; nothing without any."""
    if not rows:
        return []
    waiting = [row.waiting_s for row in rows]
    unit = time_unit(max(*waiting, 1e-9) if any(waiting) else step_time_s)
    total = sum(waiting)
    seconds = [*waiting, total]
    bars = waterfall(waiting, total) if total > 0 else ("",) * (len(rows) + 1)
    table = Table(
        columns=(
            Column("traffic", (*(row.traffic for row in rows), "all of it"), is_text=True),
            Column("ranks", (*(f"{row.group:,}" for row in rows), ""), 3, unit="of a group"),
            Column("stride", (*(f"{row.stride:,}" for row in rows), ""), 5),
            Column("domains", (*(f"{row.domains:,}" for row in rows), ""), 5),
            Column("ranks in each", (*(_from_to(row.fewest_ranks, row.most_ranks) for row in rows), ""), 6),
            Column("slowest link", (*(row.level for row in rows), ""), is_text=True),
            Column("its rate", (*(significant(row.bytes_per_s / 1e9) for row in rows), ""), 2, unit="GB/s per rank"),
            Column("waits", tuple(significant(s / unit.size) for s in seconds), unit=unit.name),
            Column("share", tuple(percent(s / step_time_s) for s in seconds), 1, unit="of step"),
            Column("", bars, 4, is_text=True),
        ),
        total=True,
    )
    return [Heading("What the step waits for the network, by link"), table]


def _from_to(fewest: int, most: int) -> str:
    """Write a range of counts.

    >>> _from_to(8, 56), _from_to(8, 8)
    ('8 to 56', '8')
    """
    return f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"


def rows_table(rows: Sequence[Any]) -> Table:
    """Show rows, one column per field; columns without any content are left out.

    Times (``..._s``) share one unit, and so do sizes (``..._bytes``); a zero is an empty cell.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Row:
    ...     name: str
    ...     forward_s: float
    >>> [(c.title, c.unit, c.cells) for c in rows_table([Row("qkv", 0.002), Row("norm", 0.0)]).columns]
    [('name', '', ('qkv', 'norm')), ('forward', 'ms', ('2.00', ''))]
    """
    entries = [row_entry(row) for row in rows]

    def largest(ending: str) -> float:
        return max((float(entry[name]) for entry in entries for name in entry if name.endswith(ending)), default=0.0)

    tera = Unit(name="TFLOP", size=1e12)
    units = {"_bytes": byte_unit(largest("_bytes")), "_flop": tera, "_s": time_unit(largest("_s"))}
    columns = []
    for position, name in enumerate(entries[0]):
        ending = "" if name.endswith("_per_s") else next((e for e in units if name.endswith(e)), "")
        values = [entry[name] for entry in entries]
        cells = tuple(_cell(value, units.get(ending)) for value in values)
        if any(cells):
            title, unit = name.removesuffix(ending).replace("_", " "), units[ending].name if ending else ""
            is_text = all(isinstance(value, str) for value in values)
            columns.append(Column(title, cells, position, unit=unit, is_text=is_text, flexible=is_text))
    return Table(columns=tuple(columns))


def row_entry(row: Any) -> Mapping[str, Any]:
    """A row, a dataclass or a mapping, as values by name."""
    return row if isinstance(row, Mapping) else asdict(row)


def _cell(value: Any, unit: Unit | None) -> str:
    if unit is not None:
        return "" if value == 0 else significant(value / unit.size)
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return significant(value)
    return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


T = TypeVar("T")


def column_maker(plans: Sequence[T]) -> Callable[..., Column]:
    """Return a function that makes a column from what a cell says of one plan.

    Examples
    --------
    >>> column_maker([8, 16])("GPUs", str, 2).cells
    ('8', '16')
    """

    def column(title: str, cell: Callable[[T], str], priority: int, *, unit: str = "") -> Column:
        return Column(title, tuple(cell(plan) for plan in plans), priority, unit=unit)

    return column


def memory_columns(plans: Sequence[RankedPlan]) -> list[Column]:
    """The memory of the fullest GPU of each plan, and P(fits) where it is known."""
    column = column_maker(plans)
    memory = column("memory", lambda p: used_of_total(p.memory_bytes_per_gpu, p.memory_there_bytes), 2, unit="per GPU")
    return [memory, *fits_columns(plans, 2)]


def fits_columns(plans: Sequence[RankedPlan | None], priority: int) -> list[Column]:
    """P(fits) of each plan; nothing where it is not known, or the same for several."""
    chances = tuple("" if plan is None else plan.fits_text for plan in plans)
    return (
        [Column("P(fits)", chances, priority)] if any(chances) and (len(chances) == 1 or len(set(chances)) > 1) else []
    )


def ranked_table(
    columns: Sequence[Column], plans: Sequence[RankedPlan], objective: str, *, gap_priority: int = 1
) -> Table:
    """Columns of plans between their numbers and how they compare with the first."""
    numbers = Column(title="#", cells=tuple(str(n) for n in range(1, len(plans) + 1)))
    ratios = [plan.score / plans[0].score for plan in plans[1:]]
    return Table(columns=(numbers, *columns, change_column(ratios, objective, gap_priority)), highlight=0)


def paid_text(plan: RankedPlan, objective: str, best: RankedPlan) -> str:
    """What a plan takes: the time of a step, what else it is ranked by, and memory, with P(fits) where that is not the best plan's."""
    cost = cost_text(objective, cost_of(objective, plan.figures), plan)
    sure = f", P(fits) {plan.fits_text}" if plan.fits_text != best.fits_text else ""
    return f"{duration_text(plan.step_time_s)}{cost}, {byte_text(plan.memory_bytes_per_gpu)}{sure}"


# Degrees, and what so many GPUs split; then what else stands in a name, as a pattern and in words.
_DEGREES = (
    ("tp", "each matrix"),
    ("cp", "each sequence"),
    ("ep", "the experts"),
    ("etp", "each expert"),
    ("pp", "the layers"),
    ("dp", "the batch"),
)
_LAYERS = (("data", "the samples"), ("channels", "outputs"), ("in-channels", "inputs"), ("rows", "image rows"))
_OTHERS = (
    (r"\bprefill\b", "prefill, decode: GPUs that only read prompts, and those that make the tokens"),
    (r"\bep \d", "ep lies within tp x cp x dp, and adds no GPUs"),
    (r"\bvpp \d", "vpp: chunks of layers per GPU"),
    (r"\bzero-bubble\b", "zero-bubble: gradients of weights fill waits of the pipeline"),
    (r"\bzero [1-3]", "zero: dp's GPUs split the optimizer state (1), gradients too (2), weights too (3)"),
    (r"\bzero \d over (\d+)", "over {0}: within groups of {0} GPUs"),
    (r"\bmicro-batch (\d+) x (\d+)", "micro-batch {0} x {1}: {0} at a time, {1} times per step"),
    (
        r"\brecompute (?:selective|full)\b",
        "recompute: backward passes compute again what is cheap (selective) or whole blocks (full)",
    ),
    (r"\boffload (?:optimizer|activations)\b", "offload: kept on the host"),
    (
        r", (ring|[a-z-]*tree|butterfly|hierarchical|recursive-[a-z-]+|one-to-all|in-network)(?:;|$)",
        "{0}: how all-reduces run",
    ),
)


def legend(names: Sequence[str]) -> str:
    """Explain what stands in names of plans, and nothing else; numbers are those of the first that has some.

    >>> legend(["tp 8, pp 2 (interleaved, vpp 4)"]), legend(["one GPU"])
    ('tp, pp: how many GPUs split each matrix, the layers; vpp: chunks of layers per GPU.', '')
    >>> legend(["dp 16 (zero 1 over 8)"]).partition("; over ")[2]
    '8: within groups of 8 GPUs.'
    >>> legend(["conv1-conv5: data x8, fc6: channels x8, butterfly"])
    'data, channels: how many GPUs split the samples, outputs of a layer; butterfly: how all-reduces run.'
    """
    text = "; ".join(names)
    said = []
    for words, pattern, end in ((_DEGREES, r"\b{} \d", ""), (_LAYERS, r"(?<![\w-]){} x\d", " of a layer")):
        used = [(name, what) for name, what in words if re.search(pattern.format(name), text)]
        if used:
            titles, whats = (", ".join(parts) for parts in zip(*used, strict=True))
            said.append(f"{titles}: how many GPUs split {whats}{end}")
    for pattern, meaning in _OTHERS:
        found = re.search(pattern, text)
        said += [meaning.format(*found.groups())] if found else []
    return f"{'; '.join(said)}." if said else ""

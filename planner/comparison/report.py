"""The answer of ``planner compare`` in every form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from planner.comparison.differences import Comparison, Row
from planner.comparison.words import memory_sentence, question_sentences, why
from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import (
    NOT_AVAILABLE,
    Unit,
    byte_unit,
    duration_text,
    energy_text,
    percent,
    significant,
    time_unit,
    used_of_total,
)
from planner.report.documents import RESULT_VERSION

__all__ = ["comparison_report"]

# From here on a percentage is harder to read than a factor.
_MANY_TIMES = 10.0


def comparison_report(comparison: Comparison, warnings: Sequence[str] = ()) -> Report:
    """Plans side by side, in every form.

    Parameters
    ----------
    comparison : Comparison
    warnings : sequence of str
        What no longer holds of the plan files.
    """
    return Report(
        blocks=lambda: _blocks(comparison, warnings),
        data=lambda: _document(comparison, warnings),
        records=lambda: _records(comparison),
    )


# -- for people ---------------------------------------------------------------------------------------------------------


def _blocks(comparison: Comparison, warnings: Sequence[str]) -> list[Block]:
    items = comparison.items
    blocks: list[Block] = [_overview(comparison)]
    blocks += [Sentence(text, strong=True) for text in question_sentences(comparison)]
    blocks += [Sentence(text, strong=True) for text in _reasons(comparison)]
    for heading, rows in (
        ("What is asked otherwise", comparison.question),
        ("What differs in the plans", comparison.settings),
        ("Layers that are split otherwise", comparison.layers),
    ):
        if rows:
            blocks += [Heading(heading), _text_table(comparison, rows)]
    time = sum(abs(value or 0.0) for row in comparison.times for value in row.values) / len(items)
    first = sum(abs(value or 0.0) for row in comparison.first_token for value in row.values) / len(items)
    of = f"the time per {items[0].per(comparison.basis)}"
    if comparison.times:
        total = Row(key="", name="total", values=_totals(comparison))
        blocks += [Heading(f"Where {of} goes"), _number_table(comparison, (*comparison.times, total), time_unit(time))]
    if comparison.first_token:
        total = Row(key="", name="total", values=tuple(item.first_token_s for item in items))
        blocks += [
            Heading("Where the time to the first token goes"),
            _number_table(comparison, (*comparison.first_token, total), time_unit(first)),
        ]
    if comparison.memory:
        total = Row(key="", name="total", values=tuple(item.memory_bytes for item in items))
        unit = byte_unit(max(item.memory_bytes for item in items))
        blocks += [
            Heading("What fills the memory (per GPU, of the fullest)"),
            _number_table(comparison, (*comparison.memory, total), unit),
        ]
    figures = _figures(comparison)
    if figures:
        blocks += [Heading("Other figures"), _text_table(comparison, figures)]
    return [*blocks, _facts(comparison, warnings)]


def _figures(comparison: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    """Rates, money and energy, where any plan has them."""
    items = comparison.items
    amounts = [item.amount(comparison.basis)[0] for item in items]
    unit = items[0].amount(comparison.basis)[1]

    def per(values: Sequence[float | None]) -> list[float | None]:
        return [None if value is None else value / amount for value, amount in zip(values, amounts, strict=True)]

    samples: list[float | None] = [item.samples_per_s for item in items]
    rows: list[tuple[str, Callable[[float | None], str], list[float | None]]] = [
        (f"{items[0].tokens_word}/s", significant, [item.tokens_per_s for item in items]),
        (f"{items[0].samples_word}/s", significant, samples),
        ("MFU", percent, [item.mfu for item in items]),
        (f"USD per million {unit}s", _millions, per([item.money_per_step for item in items])),
        (f"energy per {unit}", energy_text, per([item.energy_per_step_j for item in items])),
    ]
    return [
        (name, tuple(text(value) for value in values))
        for name, text, values in rows
        if any(value is not None for value in values)
    ]


def _millions(value: float | None) -> str:
    return significant(None if value is None else value * 1e6)


def _totals(comparison: Comparison) -> tuple[float, ...]:
    return tuple(item.step_time_s / comparison.work(n) for n, item in enumerate(comparison.items))


def _reasons(comparison: Comparison) -> list[str]:
    others = range(1, len(comparison.items))
    return [why(comparison, n) for n in others] + [memory_sentence(comparison, n) for n in others] + _tight(comparison)


def _tight(comparison: Comparison) -> list[str]:
    return [
        f"{item.label} does not fit: it needs {used_of_total(item.memory_bytes, item.memory_capacity_bytes)} per GPU."
        for item in comparison.items
        if not item.fits
    ]


def _overview(comparison: Comparison) -> Table:
    items = comparison.items
    times = _totals(comparison)
    unit = time_unit(min(times))
    served = [item for item in items if item.first_token_s is not None]

    def column(title: str, cells: Sequence[str], priority: int, unit: str = "") -> Column:
        return Column(title=title, unit=unit, cells=tuple(cells), priority=priority)

    columns = [
        Column(title="", cells=tuple(item.label for item in items), is_text=True),
        Column(title="plan", cells=tuple(item.summary for item in items), is_text=True, flexible=True, priority=3),
        column("GPUs", [f"{item.workers:,}" for item in items], 4),
        column(
            f"time per {items[0].per(comparison.basis)}",
            [significant(time / unit.size) for time in times],
            0,
            unit.name,
        ),
        column("against", [_against(comparison, n) for n in range(len(items))], 0, "the first"),
        column("memory", [used_of_total(i.memory_bytes, i.memory_capacity_bytes) for i in items], 1, "per GPU"),
    ]
    if served:
        columns[4:5] = [
            column("first token", [duration_text(item.first_token_s) for item in items], 2),
            column("output", [significant(item.tokens_per_s) for item in items], 0, "tokens/s"),
        ]
    if any(item.step_time_low_s is not None for item in items):
        cells = [_bars(comparison, n, unit) for n in range(len(items))]
        columns.insert(4 if served else 5, column("80 % interval", cells, 5, unit.name))
    if comparison.basis != "step" or len({item.samples for item in items}) > 1:
        columns.insert(3, column("batch", [f"{item.samples:,}" for item in items], 6))
    return Table(columns=tuple(columns), highlight=comparison.fastest)


def _against(comparison: Comparison, n: int) -> str:
    if n == 0:
        return "-"
    ratio = comparison.scores[n] / comparison.scores[0]
    return f"{(ratio - 1) * 100:+.1f} %" if ratio < _MANY_TIMES else f"{significant(ratio)}x"


def _bars(comparison: Comparison, n: int, unit: Unit) -> str:
    item = comparison.items[n]
    if item.step_time_low_s is None or item.step_time_high_s is None:
        return NOT_AVAILABLE
    size = unit.size * comparison.work(n)
    return f"{significant(item.step_time_low_s / size)}-{significant(item.step_time_high_s / size)}"


def _text_table(comparison: Comparison, rows: Sequence[tuple[str, tuple[str, ...]]]) -> Table:
    names = Column(title="", cells=tuple(name for name, _ in rows), is_text=True)
    columns = [
        Column(title=item.label, cells=tuple(values[n] or "-" for _, values in rows), is_text=True, flexible=True)
        for n, item in enumerate(comparison.items)
    ]
    return Table(columns=(names, *columns))


def _number_table(comparison: Comparison, rows: Sequence[Row], unit: Unit) -> Table:
    def cells(values: Sequence[float | None], *, signed: bool = False) -> tuple[str, ...]:
        return tuple(
            NOT_AVAILABLE if v is None else ("+" if signed and v > 0 else "") + significant(v / unit.size)
            for v in values
        )

    columns = [Column(title="", cells=tuple(row.name for row in rows), is_text=True)]
    for n, item in enumerate(comparison.items):
        columns.append(Column(title=item.label, unit=unit.name, cells=cells([row.values[n] for row in rows])))
        if n:
            changes = cells([row.differences[n] for row in rows], signed=True)
            columns.append(Column(title="difference", unit=unit.name, cells=changes, priority=n))
    return Table(columns=tuple(columns), total=True)


def _facts(comparison: Comparison, warnings: Sequence[str]) -> Facts:
    first = comparison.items[0]
    asked = {name for name, _ in comparison.question}
    hidden = {"model file", "cluster file", *asked}
    question = ", ".join(f"{name} {text}" for name, text in first.question.items() if name not in hidden)
    facts = [("Asked of all", question)]
    if comparison.same:
        facts.append(("In all plans", ", ".join(f"{name} {text}" for name, text in comparison.same.items())))
    facts += [("Found", f"{item.label}: {item.found}") for item in comparison.items if item.found]
    facts += [("Warning", warning) for warning in warnings]
    return Facts(tuple(facts))


# -- for programs -------------------------------------------------------------------------------------------------------


def _document(comparison: Comparison, warnings: Sequence[str]) -> dict[str, Any]:
    items = comparison.items
    return {
        "schema_version": RESULT_VERSION,
        "space": items[0].kind,
        "basis": comparison.basis,
        "fastest": items[comparison.fastest].label,
        "is_same_question": comparison.is_same_question,
        "plans": [_plan_record(comparison, n) for n in range(len(items))],
        "question": _text_rows(comparison.question),
        "settings": _text_rows(comparison.settings),
        "layers": _text_rows(comparison.layers),
        "same_settings": dict(comparison.same),
        "times": [_number_row(row, "s") for row in comparison.times],
        "first_token": [_number_row(row, "s") for row in comparison.first_token],
        "memory": [_number_row(row, "bytes") for row in comparison.memory],
        "why": [*question_sentences(comparison), *_reasons(comparison)],
        "warnings": list(warnings),
    }


def _plan_record(comparison: Comparison, n: int) -> dict[str, Any]:
    item = comparison.items[n]
    return {
        "label": item.label,
        "space": item.space,
        "model": item.question["model"],
        "cluster": item.question["cluster"],
        "summary": item.summary,
        "family": item.family,
        "workers": item.workers,
        "global_batch": item.samples,
        "seq": item.seq,
        "step_time_s": item.step_time_s,
        "step_time_low_s": item.step_time_low_s,
        "step_time_high_s": item.step_time_high_s,
        "time_s": item.step_time_s / comparison.work(n),
        "relative_time": comparison.scores[n] / comparison.scores[0],
        "samples_per_s": item.samples_per_s,
        "tokens_per_s": item.tokens_per_s,
        "ttft_s": item.first_token_s,
        "memory_bytes_per_gpu": item.memory_bytes,
        "memory_capacity_bytes": item.memory_capacity_bytes,
        "fits": item.fits,
        "mfu": item.mfu,
        "money_per_step": item.money_per_step,
        "energy_per_step_j": item.energy_per_step_j,
        "found": item.found or None,
    }


def _text_rows(rows: Sequence[tuple[str, tuple[str, ...]]]) -> list[dict[str, Any]]:
    return [{"name": name, "values": list(values)} for name, values in rows]


def _number_row(row: Row, unit: str) -> dict[str, Any]:
    return {
        "key": row.key,
        "name": row.name,
        f"values_{unit}": list(row.values),
        f"differences_{unit}": list(row.differences),
    }


def _records(comparison: Comparison) -> list[dict[str, Any]]:
    """One line per plan: its figures, then its terms of time and memory."""
    terms = (*comparison.times, *comparison.first_token, *comparison.memory)
    return [
        {**_plan_record(comparison, n), **{row.key: row.values[n] for row in terms}}
        for n in range(len(comparison.items))
    ]

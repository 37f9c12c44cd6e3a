"""The answer of ``planner scale``: one row per number of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from planner.core.answer import Assumption, ErrorBars, ScalePoint, Setting
from planner.core.blocks import Block, Column, Facts, Report, Table
from planner.core.numbers import Unit, percent, significant, time_unit
from planner.report.documents import RESULT_VERSION, tail
from planner.report.parts import assumption_rows
from planner.report.uncertainty import bars_document, bars_facts, span_text

__all__ = ["Curve", "scale_report"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A scaling curve and the question that it answers."""

    setting: Setting
    assumptions: tuple[Assumption, ...]
    free_layers: tuple[str, ...]
    points: tuple[ScalePoint, ...]
    weak: bool
    family: str
    epochs: float | None
    samples: float | None
    notes: tuple[str, ...] = ()
    error_bars: ErrorBars | None = None


def scale_report(curve: Curve) -> Report:
    """Scaling curve in every form."""
    return Report(
        blocks=lambda: _blocks(curve),
        data=lambda: _document(curve),
        records=lambda: _document(curve)["points"],
    )


def _document(curve: Curve) -> dict[str, Any]:
    setting = curve.setting
    return {
        "schema_version": RESULT_VERSION,
        "model": setting.model,
        "cluster": setting.cluster,
        "cost_model": setting.cost_model,
        "scaling": "weak" if curve.weak else "strong",
        "family": curve.family,
        "batch": setting.global_batch,
        "epochs": curve.epochs,
        "samples": curve.samples,
        "points": [{field.name: getattr(point, field.name) for field in fields(point)} for point in curve.points],
        **bars_document(curve.error_bars, None),
        **tail(setting, curve.assumptions, curve.free_layers, curve.notes),
    }


def _per_worker(batch: int, workers: int) -> str:
    """Samples per worker; where several share one, or some have more than others, their mean.

    >>> _per_worker(2048, 16), _per_worker(2048, 1000), _per_worker(2048, 16384)
    ('128', '2.05', '0.125')
    """
    return f"{batch // workers:,}" if batch % workers == 0 else significant(batch / workers)


def _interval(points: Sequence[ScalePoint], unit: Unit) -> list[Column]:
    """Between which times a measurement lies; nothing where there is no error model."""
    if all(point.step_time_low_s is None for point in points):
        return []
    cells = tuple(span_text((point.step_time_low_s, point.step_time_high_s), unit) for point in points)
    return [Column(title="80 % interval", unit=unit.name, cells=cells, priority=3)]


def _blocks(curve: Curve) -> list[Block]:
    points = curve.points
    unit = time_unit(min(point.step_time_s for point in points))

    def column(title: str, cell: Callable[[ScalePoint], str], priority: int, *, unit: str = "") -> Column:
        return Column(title=title, unit=unit, cells=tuple(cell(point) for point in points), priority=priority)

    columns = [
        column("workers", lambda p: f"{p.workers:,}", 0),
        column("batch", lambda p: f"{p.global_batch:,}", 3, unit="global"),
        column("batch", lambda p: _per_worker(p.global_batch, p.workers), 6, unit="per worker"),
        column("step time", lambda p: significant(p.step_time_s / unit.size), 0, unit=unit.name),
        *_interval(points, unit),
        column("compute", lambda p: significant(p.compute_s / unit.size), 5, unit=unit.name),
        column("exposed comm.", lambda p: significant(p.exposed_communication_s / unit.size), 4, unit=unit.name),
        column("throughput", lambda p: significant(p.throughput_samples_per_s), 2, unit="samples/s"),
        column("speed-up", lambda p: f"{significant(p.speedup)}x", 1),
        column("efficiency", lambda p: percent(p.efficiency), 7),
    ]
    if any(point.hours is not None for point in points):
        # Hours are compared with published tables: two decimals, as those have.
        hours = column("training", lambda p: "" if p.hours is None else f"{p.hours:,.2f}", 1, unit="hours")
        columns.append(hours)
    if not all(point.fits for point in points):
        columns.append(column("memory", lambda p: "fits" if p.fits else "too much", 2))
    summary = tuple(point.summary for point in points)
    columns.append(Column(title="plan", cells=summary, is_text=True, flexible=True, priority=8))
    batch = f"{curve.setting.global_batch:,} samples"
    facts = [
        ("Scaling", f"weak, {batch} per worker" if curve.weak else f"strong, {batch} shared by the workers"),
        ("Family", "mesh: the best plan on each number of GPUs" if curve.family == "mesh" else curve.family),
    ]
    if curve.epochs is not None and curve.samples is not None:
        facts.append(("Training", f"{curve.epochs:g} epochs of {curve.samples:,.0f} samples"))
    # The batch is said above: it means something else on a weak curve.
    facts += bars_facts(curve.error_bars)
    facts += assumption_rows([a for a in curve.assumptions if a.name != "global batch"], (), curve.setting)
    notes = [("Note", note) for note in curve.notes]
    return [
        Table(columns=tuple(columns)),
        Facts((*facts, *([("Counted as free", ", ".join(curve.free_layers))] if curve.free_layers else []), *notes)),
    ]

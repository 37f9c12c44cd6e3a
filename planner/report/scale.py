"""The answer of ``planner scale``: one row per number of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.report.blocks import Block, Column, Facts, Report, Table
from planner.report.documents import scale_document
from planner.report.numbers import percent, significant, time_unit
from planner.results import ScalePoint, Setting

__all__ = ["scale_report"]


def scale_report(setting: Setting, points: Sequence[ScalePoint], *, weak: bool, family: str) -> Report:
    """Scaling curve in every form."""
    document = scale_document(setting, points, weak=weak, family=family)
    return Report(
        blocks=lambda: _blocks(setting, points, weak=weak, family=family),
        data=lambda: document,
        records=lambda: document["points"],
    )


def _blocks(setting: Setting, points: Sequence[ScalePoint], *, weak: bool, family: str) -> list[Block]:
    unit = time_unit(min(point.step_time_s for point in points))

    def column(title: str, cell: Callable[[ScalePoint], str], priority: int, *, unit: str = "") -> Column:
        return Column(title=title, unit=unit, cells=tuple(cell(point) for point in points), priority=priority)

    columns = [
        column("workers", lambda p: f"{p.workers:,}", 0),
        column("batch", lambda p: f"{p.global_batch:,}", 3, unit="global"),
        column("batch", lambda p: f"{p.batch_per_worker:,}", 6, unit="per worker"),
        column("step time", lambda p: significant(p.step_time_s / unit.size), 0, unit=unit.name),
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
    scaling = "weak: every worker has its own batch" if weak else "strong: the workers share one batch"
    facts = (
        ("Scaling", scaling),
        ("Family", family),
        ("Assumed", _assumed(setting)),
    )
    return [Table(columns=tuple(columns)), Facts(facts)]


def _assumed(setting: Setting) -> str:
    options = "".join(f", {name} {value}" for name, value in setting.cost_model_options.items())
    return (
        f"model {setting.model}, cluster {setting.cluster}, device {setting.device}, precision {setting.precision}, "
        f"cost model {setting.cost_model}{options}, mode {setting.mode}"
    )

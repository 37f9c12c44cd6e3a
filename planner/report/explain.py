"""The answers of ``planner estimate`` and ``planner explain``: one plan, its terms, its layers, and why it is not the best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from costmodel.tolerances import ROUNDING
from planner.core.objectives import cost_text
from planner.core.results import Breakdown, LayerCost, RankedPlan
from planner.report.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.report.documents import breakdown_document, layer_totals, ranked_record
from planner.report.links import link_blocks
from planner.report.numbers import Unit, byte_unit, duration_text, significant, time_unit
from planner.report.optimize import assumed, free_layers_fact
from planner.report.parts import comparison_table, parts_table
from planner.report.ranking import gap_text, ranking_table
from planner.report.uncertainty import bars_facts, sensitivity_blocks
from strategies.layerwise.score import is_per_device

__all__ = ["estimate_report", "explain_report"]

_TERMS = {
    "compute_s": "compute",
    "update_s": "optimizer",
    "reshard_s": "resharding",
    "exposed_exchange_s": "exposed gradient exchange",
    "bubble_s": "pipeline bubble",
}


def estimate_report(breakdown: Breakdown, plan: Callable[[], dict[str, Any]], warnings: Sequence[str] = ()) -> Report:
    """Predict one plan, in every form."""
    return Report(
        blocks=lambda: [*_plan_blocks(breakdown.ranked), *_closing(breakdown, warnings)],
        data=lambda: breakdown_document(breakdown, plan=plan(), warnings=warnings, layers=False),
        records=lambda: [ranked_record(breakdown.ranked)],
    )


def explain_report(breakdown: Breakdown, plan: Callable[[], dict[str, Any]], warnings: Sequence[str] = ()) -> Report:
    """Explain one plan layer by layer, in every form."""
    return Report(
        blocks=lambda: [
            *_plan_blocks(breakdown.ranked),
            Heading("Layer by layer (per step, on the slowest worker)"),
            _layer_table(breakdown.layers),
            *link_blocks(breakdown.links, breakdown.ranked.step_time_s),
            *_comparison_blocks(breakdown),
            *sensitivity_blocks(breakdown.sensitivity),
            *_closing(breakdown, warnings),
        ],
        data=lambda: breakdown_document(breakdown, plan=plan(), warnings=warnings),
        records=lambda: breakdown_document(breakdown, plan={}, warnings=warnings)["layers"],
    )


def _plan_blocks(ranked: RankedPlan) -> list[Block]:
    return [
        ranking_table([ranked], ranks=False),
        Heading("Where the step goes"),
        parts_table(
            {key: getattr(ranked, key) for key in _TERMS},
            _TERMS,
            ranked.step_time_s,
            time_unit(ranked.step_time_s),
            term="term",
            title="time",
            name="step",
        ),
    ]


def _layer_table(layers: Sequence[LayerCost]) -> Table:
    totals = layer_totals(layers)
    unit = time_unit(max(_layer_s(layer) for layer in layers))
    memory = byte_unit(max(layer.memory_bytes for layer in layers))

    def times(title: str, key: str, priority: int) -> Column:
        return _numbers(layers, totals, title=title, key=key, unit=unit, priority=priority)

    return Table(
        columns=(
            Column(title="layer", cells=(*(layer.name for layer in layers), "total"), is_text=True, flexible=True),
            Column(title="type", cells=(*(layer.kind for layer in layers), ""), is_text=True, priority=9),
            Column(
                title="output", cells=(*("x".join(map(str, layer.output_shape)) for layer in layers), ""), priority=10
            ),
            Column(
                title="split", cells=(*(layer.split for layer in layers), ""), is_text=True, flexible=True, priority=3
            ),
            times("forward", "forward_s", 0),
            times("backward\ninput", "backward_input_s", 1),
            times("backward\nweights", "backward_weight_s", 1),
            times("update", "update_s", 7),
            times("reshard", "reshard_s", 2),
            times("exchange", "exchange_s", 6),
            times("exposed\nexchange", "exposed_exchange_s", 2),
            Column(title="collective", cells=(*(_collective(layer) for layer in layers), ""), is_text=True, priority=8),
            _numbers(layers, totals, title="memory", key="memory_bytes", unit=memory, priority=5),
        ),
        total=True,
    )


def _numbers(
    layers: Sequence[LayerCost], totals: dict[str, Any], *, title: str, key: str, unit: Unit, priority: int
) -> Column:
    values = [*(float(getattr(layer, key)) for layer in layers), float(totals[key])]
    # A zero is an empty cell: what costs nothing should not draw the eye.
    cells = tuple("" if value == 0 else significant(value / unit.size) for value in values)
    return Column(title=title, unit=unit.name, cells=cells, priority=priority)


def _collective(layer: LayerCost) -> str:
    return f"{layer.collective} over {layer.group}" if layer.collective else ""


def _layer_s(layer: LayerCost) -> float:
    return max(
        layer.forward_s, layer.backward_input_s, layer.backward_weight_s, layer.reshard_s, layer.exchange_s, 1e-12
    )


def _comparison_blocks(breakdown: Breakdown) -> list[Block]:
    best, ranked = breakdown.best, breakdown.ranked
    if best is None:
        return []
    if ranked.gap <= ROUNDING and ranked.memory_bytes_per_gpu <= ranked.memory_capacity_bytes:
        return [Sentence("This is the best plan of the stated space.", strong=True)]
    unit = time_unit(best.step_time_s)
    rows = [(term, a, b) for term, a, b in breakdown.comparison if a > 0 or b > 0]
    rows.append(("step", ranked.step_time_s, best.step_time_s))
    cost = duration_text(best.step_time_s)
    if is_per_device(breakdown.objective):
        cost += f" on {best.workers} of {breakdown.setting.gpus} GPUs"
        cost += cost_text(breakdown.objective, money=best.money_per_step, joules=best.energy_per_step_j)
    return [
        Heading(f"Why it is not the best: {gap_text(ranked.gap)} against {cost} of {best.summary}"),
        comparison_table(rows, unit, term="term"),
    ]


def _closing(breakdown: Breakdown, warnings: Sequence[str]) -> list[Block]:
    facts = [
        *bars_facts(breakdown.error_bars),
        ("Assumed", assumed(breakdown.assumptions, breakdown.setting)),
        *free_layers_fact(breakdown.free_layers),
        *(("Note", note) for note in breakdown.notes),
        *(("Warning", warning) for warning in warnings),
    ]
    return [Facts(tuple(facts))]

"""What reports show of plans with a split per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from planner.core.answer import Answer, Estimate, LayerCost, RankedPlan
from planner.core.blocks import Block, Column, Heading, Table
from planner.core.numbers import (
    NOT_AVAILABLE,
    Unit,
    byte_unit,
    percent,
    significant,
    time_unit,
)
from planner.report.answer import SpaceReport, parts_blocks
from planner.report.documents import first_plan_document
from planner.report.tables import column_maker, memory_columns, parts_table

__all__ = ["REPORT", "layer_totals"]

_DOES_NOT_FIT = f"{NOT_AVAILABLE}: does not fit"
_LAYER_KEYS = tuple(field.name for field in fields(LayerCost))
_SUMMED = (
    "forward_s",
    "backward_input_s",
    "backward_weight_s",
    "update_s",
    "reshard_s",
    "exchange_s",
    "exposed_exchange_s",
    "flops",
    "weight_bytes",
    "memory_bytes",
)


class LayerwiseReport(SpaceReport):
    """Reports about plans with a split per layer."""

    bottleneck_priority = 7
    data_parallelism = "plain data parallelism"
    space = (
        "on any number of GPUs, all numbers of micro-batches, splits of every layer, collectives and pipelines that the rules and what is "
        "fixed allow (docs/cost-model.md, section 6)"
    )

    def size_columns(self, plans: Sequence[RankedPlan]) -> list[Column]:
        return [column for column in super().size_columns(plans) if column.priority == 0]

    def figure_columns(self, plans: Sequence[RankedPlan]) -> list[Column]:
        column = column_maker(plans)
        speedups = [None if plan["speedup"] is None else f"{significant(plan['speedup'])}x" for plan in plans]
        cells = tuple(text or _DOES_NOT_FIT for text in speedups)
        speedup = Column(title="speed-up", unit="over 1 worker", cells=cells, priority=5)
        return [
            column("throughput", lambda plan: significant(plan.throughput_samples_per_s), 4, unit="samples/s"),
            speedup,
            column("efficiency", lambda plan: percent(plan["efficiency"]), 8),
            *memory_columns(plans),
            column("exposed", lambda plan: percent(plan.exposed_communication_share), 5, unit="comm."),
        ]

    def search_facts(self, answer: Answer) -> list[tuple[str, str]]:
        best = answer.plans[0]
        alone = "does not fit at this global batch, so there is no speed-up over it"
        return [("One worker", alone)] if best["speedup"] is None else []

    def estimate_blocks(self, estimate: Estimate) -> list[Block]:
        ranked = estimate.ranked
        return [
            self.plans_table([ranked], "step_time", ranks=False),
            *parts_blocks(ranked, "Where the step goes", "step_time_s", title="time", name="step", term="term"),
        ]

    def explain_blocks(self, estimate: Estimate) -> list[Block]:
        size = estimate.ranked.memory_bytes_per_gpu
        parts = estimate.space.memory_parts(estimate.ranked.plan, size)
        return [
            Heading("Layer by layer (per step, on the slowest worker)"),
            _layer_table(estimate.tables["layers"]),
            Heading("What fills the memory (of the fullest GPU: its layers, and the context beside them)"),
            parts_table(parts, size, byte_unit(size), title="size", name="memory"),
        ]

    def baselines_document(self, answer: Answer) -> dict[str, Any]:
        return {name: None if plan is None else plan.record() for name, plan in answer.baselines.items()}

    def details_document(self, answer: Answer | Estimate) -> dict[str, Any]:
        if isinstance(answer, Estimate):
            return {"totals": layer_totals(answer.tables["layers"])}
        return first_plan_document(answer)

    def compared(self, answer: Answer) -> list[tuple[str, RankedPlan | None]]:
        every, fewer = answer.baselines["data_parallel_all"], answer.baselines["data_parallel"]
        rows = [("data parallelism", fewer)]
        if fewer is None or fewer.workers != answer.setting.gpus:
            rows.append(("data par., all GPUs", every))
        return rows


def layer_totals(layers: Sequence[LayerCost]) -> dict[str, Any]:
    """Sum the layers, under the keys of a layer; ``output_shape`` is the last layer's."""
    totals: dict[str, Any] = dict.fromkeys(_LAYER_KEYS, "")
    totals |= {key: math.fsum(getattr(layer, key) for layer in layers) for key in _SUMMED}
    last = layers[-1]
    return totals | {
        "name": "total",
        "group": max(layer.group for layer in layers),
        "output_shape": list(last.output_shape),
        "algorithms": ["", "", ""],
        "is_free": all(layer.is_free for layer in layers),
    }


def _layer_table(layers: Sequence[LayerCost]) -> Table:
    totals = layer_totals(layers)
    shown = ("forward_s", "backward_input_s", "backward_weight_s", "reshard_s", "exchange_s")
    time = time_unit(max(1e-12, *(getattr(layer, key) for layer in layers for key in shown)))
    memory = byte_unit(max(layer.memory_bytes for layer in layers))

    def numbers(title: str, key: str, priority: int, unit: Unit = time) -> Column:
        values = [*(float(getattr(layer, key)) for layer in layers), float(totals[key])]
        # A zero is an empty cell: what costs nothing should not draw the eye.
        cells = tuple("" if value == 0 else significant(value / unit.size) for value in values)
        return Column(title=title, unit=unit.name, cells=cells, priority=priority)

    collectives = [f"{layer.collective} over {layer.group}" if layer.collective else "" for layer in layers]
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
            numbers("forward", "forward_s", 0),
            numbers("backward\ninput", "backward_input_s", 1),
            numbers("backward\nweights", "backward_weight_s", 1),
            numbers("update", "update_s", 7),
            numbers("reshard", "reshard_s", 2),
            numbers("exchange", "exchange_s", 6),
            numbers("exposed\nexchange", "exposed_exchange_s", 2),
            Column(title="collective", cells=(*collectives, ""), is_text=True, priority=8),
            numbers("memory", "memory_bytes", 5, memory),
        ),
        total=True,
    )


REPORT = LayerwiseReport()

"""The figures of a plan with a split per layer, declared once."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.fields import Figure, declared
from costmodel.rates import COMMON_FIGURES, COST_FIGURES

__all__ = ["LAYERWISE_FIGURES"]


def _time(name: str, label: str, doc: str) -> Figure:
    return Figure(name=name, label=label, doc=doc, part_of="step_time_s")


LAYERWISE_FIGURES: Mapping[str, Figure] = declared(
    *COMMON_FIGURES,
    Figure(
        name="speedup",
        doc="Over one worker at the same global batch; null where one worker does not fit.",
        kind="number",
        optional=True,
    ),
    Figure(name="efficiency", doc="speedup / workers.", kind="number", optional=True),
    _time("compute_s", "compute", "Forward and backward pass."),
    _time("update_s", "optimizer", "Optimizer."),
    _time("reshard_s", "resharding", "Moving activations and their gradients between and inside layers."),
    _time("exposed_exchange_s", "exposed gradient exchange", "Gradient exchange that the backward pass does not hide."),
    _time("bubble_s", "pipeline bubble", "Filling and draining of a pipeline."),
    Figure(name="exchange_s", doc="All gradient exchange, hidden or not."),
    *COST_FIGURES,
)

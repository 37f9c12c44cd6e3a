"""Rows of training runs: transformers go to one converter, networks for images to the other."""

from __future__ import annotations

from collections.abc import Sequence

from planner.measurements import convnets, plans
from planner.measurements.outcomes import Outcome, Preset
from planner.measurements.tables import Row

__all__ = ["predict"]


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows, in the order given."""
    of_images = [n for n, row in enumerate(rows) if not row.has("hidden") and convnets.network_name(row) is not None]
    others = sorted(set(range(len(rows))) - set(of_images))
    outcomes: dict[int, Outcome] = {}
    for indices, predictor in ((of_images, convnets.predict), (others, plans.predict)):
        if indices:
            outcomes.update(zip(indices, predictor([rows[n] for n in indices], preset), strict=True))
    return [outcomes[n] for n in range(len(rows))]

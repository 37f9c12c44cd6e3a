"""Error bars of the time to the first token behind a queue: an error model from published deployments, and its scores on those left out.

The rows are those of `serving_silicon.csv` (AIConfigurator), predicted as `planner validate` does, with no constant fitted to times to
first tokens. Errors are mostly the queue's, which no named constant moves, so all plans have one interval, with the prediction at its
centre: the quantile of abs(log(measured / predicted)) in which every network under every engine counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from interval_fit import quantile
from numpy.typing import NDArray
from pages import table

from benchmarks.datasets import read
from costmodel.arrays import FloatArray
from costmodel.uncertainty.intervals import INTERVAL_SHARE, ErrorModel, interval_score
from planner.measurements import deployments
from planner.measurements.outcomes import DEFAULT

KIND = "serving-first-token"


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """Residuals log(measured / predicted) of first tokens, struct of arrays."""

    engine: NDArray[np.str_]
    network: NDArray[np.str_]
    residual: FloatArray

    @property
    def weights(self) -> FloatArray:
        """Every network under every engine counts once."""
        both = np.char.add(np.char.add(self.engine, " "), self.network)
        _, group, count = np.unique(both, return_inverse=True, return_counts=True)
        return np.asarray(1.0 / count[group])

    def take(self, index: NDArray[np.bool_]) -> FirstTokens:
        """Some of the rows."""
        return FirstTokens(engine=self.engine[index], network=self.network[index], residual=self.residual[index])


def first_tokens(folder: Path) -> FirstTokens:
    """All rows of the folder's table that are scored, whose prompts are read by the GPUs that decode."""
    rows = [
        row
        for row in read(table(folder, "serving_silicon")).rows
        if not row.flag("suspect") and not row.has("prefill_dp")
    ]
    found = [
        (row.text("framework"), row.text("model"), np.log(comparison.measured_s / comparison.predicted_s))
        for row, outcome in zip(rows, deployments.predict(rows, DEFAULT), strict=True)
        for comparison in outcome.comparisons
        if comparison.what == "ttft"
    ]
    engine, network, residual = zip(*found, strict=True)
    return FirstTokens(engine=np.array(engine), network=np.array(network), residual=np.array(residual))


def error_models(rows: FirstTokens) -> dict[str, ErrorModel]:
    """All plans have one interval around their prediction: its ends as standardised errors of one standard deviation."""
    sd = float(np.sqrt(np.average(rows.residual**2, weights=rows.weights)))
    end, engines = _end(rows) / sd, ", ".join(np.unique(rows.engine))
    found = ErrorModel(
        shared_log_sd=sd,
        plan_log_sd=0.0,
        typical_log_sd=sd,
        sharpness=0.0,
        low=-end,
        high=end,
        basis=f"{len(rows.residual)} published deployments of {len(np.unique(rows.network))} networks under {engines}",
    )
    return {KIND: found}


def _end(rows: FirstTokens) -> float:
    """Within which `INTERVAL_SHARE` of the errors lie."""
    return quantile(np.abs(rows.residual), rows.weights, INTERVAL_SHARE)


def score_lines(rows: FirstTokens) -> list[str]:
    """Lines of the table of `serving.py`: what intervals hold of networks, and of engines, that they were found without."""
    lines = []
    for words, label in (("a network", rows.network), ("an engine", rows.engine)):
        high = np.zeros(len(rows.residual))
        for name in np.unique(label):
            high[label == name] = _end(rows.take(label != name))
        inside, score = np.abs(rows.residual) <= high, interval_score(-high, high, rows.residual)
        lines.append(
            f"| first tokens | {words} | {len(inside)} | {inside.mean():.0%} | {np.median(2.0 * high):.2f} | {score.mean():.2f} |"
        )
    return lines

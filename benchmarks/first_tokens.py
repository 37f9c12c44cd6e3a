"""Error bars of the time to the first token behind a queue: an error model from published deployments, and its scores on those left out.

The rows are those of `serving_silicon.csv` (AIConfigurator), predicted as `planner validate` does, with no constant fitted to times to
first tokens. Errors are mostly the queue's, which no named constant moves, so all plans of a kind have one interval. Under an engine of
the rows it has quantiles of log(measured / predicted) in which every network under every engine counts once; under any other it is wider
by how far engines are apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from interval_fit import quantile
from interval_left_out import reach_of_new
from numpy.typing import NDArray
from pages import table

from benchmarks.datasets import read
from costmodel.arrays import FloatArray
from costmodel.uncertainty.intervals import INTERVAL_SHARE, ErrorModel, interval_score
from planner.measurements import deployments
from planner.measurements.outcomes import DEFAULT

KIND, OTHERS = "serving-first-token", "serving-first-token-other"
_TAIL = (1.0 - INTERVAL_SHARE) / 2.0


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
    """Of the engines of the rows, and of any other."""
    engines = tuple(sorted(np.unique(rows.engine).tolist()))
    found, names = f"{len(rows.residual)} published deployments", ", ".join(engines)
    networks = f"of {len(np.unique(rows.network))} networks under {names}"
    return {
        KIND: replace(_model(rows, _ends(rows), f"{found} {networks}"), frameworks=engines),
        OTHERS: _model(
            rows, _ends_of_others(rows), f"{found} under other engines ({names}) and how far these are apart"
        ),
    }


def _model(rows: FirstTokens, ends: tuple[float, float], basis: str) -> ErrorModel:
    """All plans have one interval: its ends as standardised errors of one standard deviation."""
    sd = float(np.sqrt(np.average(rows.residual**2, weights=rows.weights)))
    return ErrorModel(
        shared_log_sd=sd,
        plan_log_sd=0.0,
        typical_log_sd=sd,
        sharpness=0.0,
        low=ends[0] / sd,
        high=ends[1] / sd,
        basis=basis,
    )


def _ends(rows: FirstTokens) -> tuple[float, float]:
    """Between which `INTERVAL_SHARE` of the rows lie: of a network that is none of theirs, under one of their engines."""
    low, high = (quantile(rows.residual, rows.weights, q) for q in (_TAIL, 1.0 - _TAIL))
    return low, high


def _ends_of_others(rows: FirstTokens) -> tuple[float, float]:
    """The same under an engine that is none of theirs.

    With m_g the median of an engine, m and s the mean and the standard deviation of G of these, and w the ends of the residuals around
    the median of their engine, ``m -+ root((t root(1 + 1/G) s)^2 + w^2)``: another engine is as far from these as they are from one
    another (`interval_left_out.reach_of_new`), and errors of two causes add up by their squares.
    """
    engines = np.unique(rows.engine)
    weights = rows.weights
    medians = np.array(
        [quantile(rows.residual[rows.engine == e], weights[rows.engine == e], 0.5) for e in engines.tolist()]
    )
    inside = rows.residual - medians[np.searchsorted(engines, rows.engine)]
    between = reach_of_new(len(engines)) * float(medians.std(ddof=1))
    low, high = (np.hypot(between, quantile(inside, weights, q)) for q in (_TAIL, 1.0 - _TAIL))
    return float(medians.mean() - low), float(medians.mean() + high)


def score_lines(rows: FirstTokens) -> list[str]:
    """Lines of the table of `serving.py`: what intervals hold of networks, and of engines, that they were found without."""
    lines = []
    for words, label, ends in (("a network", rows.network, _ends), ("an engine", rows.engine, _ends_of_others)):
        low, high = (np.zeros(len(rows.residual)) for _ in range(2))
        for name in np.unique(label):
            low[label == name], high[label == name] = ends(rows.take(label != name))
        inside = (low <= rows.residual) & (rows.residual <= high)
        score = interval_score(low, high, rows.residual)
        lines.append(
            f"| first tokens | {words} | {len(inside)} | {inside.mean():.0%} | {np.median(high - low):.2f} | {score.mean():.2f} |"
        )
    return lines

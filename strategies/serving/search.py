"""Exhaustive search over serving plans: every plan that fits is scored, so the best is proven by enumeration."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from costmodel.arrays import FloatArray, IntArray, combined
from costmodel.mesh.rules import NetworkShape
from costmodel.serving.model import ServingModel
from costmodel.serving.plan import ServingBatch, ServingCosts, ServingPlan
from strategies.limits import Clock
from strategies.serving.space import (
    SERVING_OBJECTIVES,
    Outline,
    ServingCandidate,
    ServingMiss,
    ServingOutcome,
    ServingSettings,
    batches_of,
    outlines,
    plans_of,
)

__all__ = ["score_of", "search_serving"]

Progress = Callable[[str, float], None]

# Plans scored together: about 100 MB of intermediate results.
_CHUNK = 1 << 16


def score_of(objective: str, batch: ServingBatch, costs: ServingCosts) -> FloatArray:
    """What is minimised.

    Raises
    ------
    ValueError
        Unknown objective.
    """
    if objective == "throughput":
        return -costs.output_tokens_per_s
    if objective == "tokens_per_s_per_gpu":
        return -costs.output_tokens_per_s / batch.workers
    by_name = {"latency": costs.request_s, "ttft": costs.ttft_s, "tpot": costs.tpot_s}
    if objective not in by_name:
        raise ValueError(f"unknown objective '{objective}' (known: {', '.join(SERVING_OBJECTIVES)})")
    return by_name[objective]


def search_serving(model: ServingModel, settings: ServingSettings, progress: Progress | None = None) -> ServingOutcome:
    """Score every legal plan on up to ``max_workers`` devices that fits.

    Parameters
    ----------
    model : ServingModel
    settings : ServingSettings
    progress : function of (text, share done), optional

    Returns
    -------
    ServingOutcome
        Of plans with equal degrees the best stands for all.

    Notes
    -----
    Equal scores are ranked by the time of a request, then by throughput, then by the devices in use.
    """
    clock = Clock(limit_s=settings.wall_s)
    outcome = ServingOutcome()
    shape = NetworkShape.of(model.workload.graph, model.modules, 1)
    outline = outlines(shape, model.workload.prompt_tokens, settings)
    numbers = [
        batches_of(int(pp), int(least), settings)
        for pp, least in zip(outline.plans.pp, outline.plans.prefill_batch, strict=True)
    ]
    outcome.space_size = sum(map(len, numbers))
    outcome.searched = {"enumerated": 0, "do not fit": 0}
    if not outcome.space_size:
        return outcome
    most = max(int(n[-1]) for n in numbers if len(n))
    largest = model.largest_batch(outline.plans, most, settings.capacity_bytes)
    fitting = [n[n <= most_here] for n, most_here in zip(numbers, largest, strict=True)]
    outcome.searched["do not fit"] = outcome.space_size - sum(map(len, fitting))
    best = _Best(settings)
    try:
        for rows, done in _blocks(fitting):
            plans = plans_of(outline, rows, [fitting[n] for n in rows])
            best.add(plans, model.evaluate(plans))
            outcome.searched["enumerated"] += len(plans)
            if progress is not None:
                progress("serving plans", done)
            is_spent = outcome.searched["enumerated"] >= settings.effort
            if is_spent or clock.is_over:
                outcome.is_complete = done >= 1.0
                break
    except KeyboardInterrupt:
        outcome.is_complete, outcome.interrupted = False, True
    outcome.candidates = best.ranked()
    if not outcome.candidates:
        outcome.nearest_miss = best.nearest or _nearest_to_fit(model, outline, numbers)
    return outcome


def _blocks(fitting: list[IntArray]) -> Iterator[tuple[IntArray, float]]:
    """Rows of the outline, so many at a time that their plans fit into a chunk; and the share done after them."""
    total, done, rows, size = max(sum(map(len, fitting)), 1), 0, [], 0
    for n, numbers in enumerate(fitting):
        if not len(numbers):
            continue
        rows.append(n)
        size += len(numbers)
        if size >= _CHUNK:
            done += size
            yield np.array(rows, dtype=np.int64), done / total
            rows, size = [], 0
    if rows:
        yield np.array(rows, dtype=np.int64), 1.0


class _Best:
    def __init__(self, settings: ServingSettings) -> None:
        self.settings = settings
        self.plans: dict[tuple[int, ...], tuple[tuple[float, ...], ServingPlan]] = {}
        self.nearest: ServingMiss | None = None
        self._excess = np.inf

    def add(self, plans: ServingBatch, costs: ServingCosts) -> None:
        settings = self.settings
        excess = np.maximum(costs.ttft_s / settings.max_ttft_s, costs.tpot_s / settings.max_tpot_s)
        n = int(np.argmin(excess))
        if excess[n] < self._excess:
            self._excess, self.nearest = float(excess[n]), ServingMiss(plan=plans.plan(n), fits=True)
        kept = np.flatnonzero((excess <= 1.0) & (costs.memory_bytes <= settings.capacity_bytes))
        if not len(kept):
            return
        plans, costs = plans.take(kept), costs.take(kept)
        keys = (score_of(settings.objective, plans, costs), costs.request_s, -costs.output_tokens_per_s, plans.workers)
        degrees = np.stack([plans.tp, plans.pp, plans.ep, plans.etp, plans.dp], axis=1)
        _, group = combined(*degrees.T)
        order = np.lexsort((*reversed(keys), group))
        first = order[np.flatnonzero(np.diff(group[order], prepend=-1))]
        for n in first:
            key, rank = tuple(degrees[n].tolist()), tuple(float(k[n]) for k in keys)
            known = self.plans.get(key)
            if known is None or rank < known[0]:
                self.plans[key] = (rank, plans.plan(int(n)))

    def ranked(self) -> list[ServingCandidate]:
        found = sorted(self.plans.values())
        return [ServingCandidate(plan=plan, score=rank[0]) for rank, plan in found[: self.settings.top]]


def _nearest_to_fit(model: ServingModel, outline: Outline, numbers: list[IntArray]) -> ServingMiss | None:
    rows = np.array([n for n, values in enumerate(numbers) if len(values)], dtype=np.int64)
    plans = plans_of(outline, rows, [numbers[n][:1] for n in rows])
    n = int(np.argmin(model.memory_bytes(plans)))
    return ServingMiss(plan=plans.plan(n), fits=False)

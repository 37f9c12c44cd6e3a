"""Scaling curves of transformers: the best plan over a device mesh on every number of GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.core.answer import Curve, ErrorBars, RankedPlan, ScalePoint, Scaling
from planner.core.errors import NoFeasiblePlan, SearchInterrupted, UsageError
from planner.core.notes import Note
from planner.core.numbers import byte_text
from planner.core.request import Request
from planner.question.resolve import Resolved, resolve
from planner.report.figures.standard import halved_counts
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space

if TYPE_CHECKING:
    from strategies.limits import Progress

# Shares of the memory that plans of a front may use.
_MEMORY_SHARES = (0.7, 0.45, 0.3)
_MORE_PLANS = 8


def scale_mesh(
    request: Request,
    workers: Sequence[int],
    *,
    weak: bool,
    family: str = "mesh",
    epochs: float | None = None,
    samples: float | None = None,
) -> Scaling:
    """Predict the best plan on at most so many GPUs, for every number of them.

    Parameters
    ----------
    request : Request
        ``batch`` is the global batch of a strong curve and the batch per GPU of a weak one.
    workers : sequence of int
        Ascending.
    weak : bool
    family : str
        What the curve is called.
    epochs, samples : float, optional
        Length of a training run; both or none.

    Returns
    -------
    Scaling
        Numbers of GPUs on which nothing fits or is legal have no point and a note. Speed-up is over one GPU, or over the smallest number
        on which something fits, which then counts as that many.

    Raises
    ------
    NoFeasiblePlan
        Nothing fits on any of the numbers.
    SearchInterrupted
        Ctrl-C.
    PlannerError
        Unusable options; nothing is legal on any of the numbers.
    """
    base = resolve(dataclasses.replace(request, gpus=max(workers), family=None, space="mesh", top=1))
    found: dict[int, RankedPlan] = {}
    bars = ErrorBars()
    notes: list[str] = []
    last: Exception | None = None
    for count in sorted({1, *workers}):
        resolved = base.with_batch(base.workload.global_batch * count) if weak else base
        asked = dataclasses.replace(resolved.request, gpus=count, batch=resolved.workload.global_batch)
        setting = dataclasses.replace(resolved.setting, gpus=count)
        space = mesh_space(dataclasses.replace(resolved, request=asked, setting=setting))
        best = _best(space, is_largest=count == max(workers))
        if isinstance(best, RankedPlan):
            (found[count],), bars = space.error_bars([best])
        elif count in workers:
            last = best
            notes.append(Note("no_plan_on", gpus=count, reason=str(best)))
    if not found.keys() & set(workers):
        assert last is not None
        raise last
    first = min(found)
    if first > 1:
        notes.append(Note("speedup_over_first", gpus=first))
    elif 1 not in workers:
        alone = found[1]
        notes.append(Note("speedup_over_one", plan=alone.summary, step_time_s=alone.step_time_s))
    reference = found[first].throughput_samples_per_s / first
    points = tuple(
        ScalePoint.of(
            count,
            base.workload.global_batch * (count if weak else 1),
            step_time_s=best.step_time_s,
            exposed_communication_s=best.exposed_communication_s,
            epochs=epochs,
            samples=samples,
            reference=reference,
            summary=best.summary if best.workers == count else f"{best.summary} (on {best.workers})",
            fits=True,
            step_time_low_s=best.step_time_low_s,
            step_time_high_s=best.step_time_high_s,
        )
        for count, best in found.items()
        if count in workers
    )
    return Scaling(
        setting=base.setting,
        assumptions=base.assumptions,
        weak=weak,
        family=family,
        family_words=f"{family}: the best plan uniform over stages on each number of GPUs; planner optimize also tries stages that differ",
        epochs=epochs,
        samples=samples,
        points=points,
        notes=tuple(notes),
        error_bars=bars,
    )


def _best(space: MeshPlanSpace, *, is_largest: bool) -> RankedPlan | Exception:
    """The best plan, or why there is none: of the largest number with a suggestion, since it is what an error would say."""
    resolved = space.resolved
    try:
        space.refuse_contradiction()
    except UsageError as error:
        return error
    outcome = space.outcome(space.settings())
    if outcome.interrupted:
        raise SearchInterrupted(None)
    if outcome.candidates:
        return space.rank([outcome.candidates[0].plan])[0]
    if is_largest:
        return space.no_plan(outcome)
    miss = outcome.nearest_miss
    need = "" if miss is None else f"; the nearest miss needs {byte_text(miss.memory_bytes)} per GPU"
    return NoFeasiblePlan(f"nothing fits{need}, of {byte_text(resolved.setting.memory_capacity_bytes)}")


def mesh_study(space: MeshPlanSpace, progress: Progress) -> tuple[list[RankedPlan], list[Curve], str]:
    """Search at fewer GPUs, with less memory, and at batches that grow with the GPUs.

    Returns
    -------
    plans : list of RankedPlan
    curves : list of Curve
        Strong and weak scaling.
    note : str
    """
    resolved = space.resolved
    batch = resolved.workload.global_batch
    counts = halved_counts(resolved.request.gpus)
    found: list[RankedPlan] = []
    strong, weak = [], []
    steps = 3 * len(counts) + len(_MEMORY_SHARES)
    for n, gpus in enumerate(counts):
        progress(f"plans on {gpus} GPUs", n / steps)
        plans = _best_plans(space, gpus, 1.0, _MORE_PLANS)
        found += plans
        if plans:
            strong.append((gpus, batch, plans[0].step_time_s, plans[0].summary))
    for n, share in enumerate(_MEMORY_SHARES):
        progress(f"plans in {share:.0%} of the memory", (len(counts) + n) / steps)
        found += _best_plans(space, counts[-1], share, 2)
    for n, (gpus, samples) in enumerate(_weak_batches(counts, resolved)):
        progress(f"plans at batch {samples}", (2 * len(counts) + n) / steps)
        plans = _best_plans(mesh_space(resolved.with_batch(samples)), gpus, 1.0, 1)
        if plans:
            weak.append((gpus, samples, plans[0].step_time_s, plans[0].summary))
    name = "the best plan"
    curves = [Curve(name=name, weak=False, points=tuple(strong)), Curve(name=name, weak=True, points=tuple(weak))]
    return found, curves, ""


def _best_plans(space: MeshPlanSpace, gpus: int, share: float, top: int) -> list[RankedPlan]:
    settings = space.settings()
    settings = dataclasses.replace(settings, max_workers=gpus, capacity_bytes=share * settings.capacity_bytes, top=top)
    return space.rank([candidate.plan for candidate in space.outcome(settings).candidates])


def _weak_batches(counts: Sequence[int], resolved: Resolved) -> list[tuple[int, int]]:
    """Batches in proportion to the GPUs; where that is no whole number there is no point."""
    batch, most = resolved.workload.global_batch, counts[-1]
    return [(gpus, batch * gpus // most) for gpus in counts if batch * gpus % most == 0 and batch * gpus >= most]

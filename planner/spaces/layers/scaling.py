"""PALEO's scaling curves: 1, 2, 4 ... workers, weak or strong, any family of plans, and hours of training; such curves of an answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import Plan, Split, divisors
from costmodel.paleo.model import PaleoCompute
from costmodel.paleo.scaling import hybrid_step
from planner.core.answer import Answer, Curve, ErrorBars, RankedPlan, ScalePoint, Scaling
from planner.core.errors import PlannerError, UsageError
from planner.core.request import Request
from planner.question.resolve import Resolved, resolve
from planner.report.figures.standard import halved_counts
from planner.spaces.layers.plans import plan_in_words
from planner.spaces.layers.space import LayerwisePlanSpace, layerwise_space
from planner.uncertainty.bars import WITHOUT_MODEL

if TYPE_CHECKING:
    from strategies.limits import Progress


def scale(
    request: Request,
    workers: Sequence[int],
    *,
    weak: bool,
    family: str = "data",
    epochs: float | None = None,
    samples: float | None = None,
) -> Scaling:
    """Predict a scaling curve.

    Parameters
    ----------
    request : Request
        ``batch`` is the global batch of a strong curve and the batch per worker of a weak one.
    workers : sequence of int
    weak : bool
        Keep the batch per worker; otherwise keep the global batch.
    family : str
        ``data``, ``model``, ``hybrid``, ``pipeline`` ... or ``best`` (the optimum on exactly so many workers). Under the paleo cost
        model ``hybrid`` is the paper's own formula.
    epochs, samples : float, optional
        Length of a training run; both or none.

    Returns
    -------
    Scaling
        Speed-up is the throughput over that of one worker at the same batch rule.

    Raises
    ------
    PlannerError
        Unusable options; no plan of the family at some worker count.
    """
    paper_hybrid = family == "hybrid" and request.cost_model == "paleo"
    if request.fix and (family == "data" or paper_hybrid):
        raise UsageError(f"--fix: family {family} leaves nothing to fix; --family best searches around what is fixed")
    if request.micro_batches is not None and paper_hybrid:
        raise UsageError("--micro-batches: the paper's hybrid formula has none")
    base = resolve(dataclasses.replace(request, gpus=max(workers), family=None, space="layers"))
    points: dict[int, ScalePoint] = {}
    for count in dict.fromkeys((1, *workers)):
        reference = points[1].throughput_samples_per_s if points else None
        points[count], bars = _point(base, count, reference, weak=weak, family=family, epochs=epochs, samples=samples)
    return Scaling(
        setting=base.setting,
        assumptions=base.assumptions,
        free_layers=base.free_layers,
        weak=weak,
        family=family,
        epochs=epochs,
        samples=samples,
        points=tuple(points[count] for count in workers),
        error_bars=bars,
    )


def _point(
    base: Resolved,
    workers: int,
    reference: float | None,
    *,
    weak: bool,
    family: str,
    epochs: float | None,
    samples: float | None,
) -> tuple[ScalePoint, ErrorBars]:
    batch = base.workload.global_batch
    resolved = base.with_batch(batch * workers) if weak else base
    global_batch = resolved.workload.global_batch
    if isinstance(base.workload.compute, PaleoCompute) and family == "hybrid":
        step, exposed, words = _paper_hybrid(resolved, workers)
        fits, bars = True, WITHOUT_MODEL
    else:
        space = layerwise_space(resolved)
        plan = _plan(resolved, workers, family)
        (ranked,), bars = space.error_bars(space.rank([plan]))
        step, exposed = ranked.step_time_s, ranked.exposed_communication_s
        words, fits = plan_in_words(resolved.workload.graph, plan), ranked.fits
    point = ScalePoint.of(
        workers,
        global_batch,
        step_time_s=step,
        exposed_communication_s=exposed,
        epochs=epochs,
        samples=samples,
        reference=reference,
        summary=words,
        fits=fits,
        step_time_low_s=bars.low_s[0] if bars.low_s else None,
        step_time_high_s=bars.high_s[0] if bars.high_s else None,
    )
    return point, bars


def _paper_hybrid(resolved: Resolved, workers: int) -> tuple[float, float, str]:
    """PALEO's formula for one weird trick; returns step, exposed communication and words."""
    workload = resolved.workload
    assert isinstance(workload.compute, PaleoCompute)
    hybrid = hybrid_step(
        workload.graph, workers, -(-workload.global_batch // workers), workload.compute, resolved.cluster
    )
    return hybrid.step_s, hybrid.sync_s, "the paper's hybrid formula"


def _plan(resolved: Resolved, workers: int, family: str) -> Plan:
    if workers == 1 or family == "data":
        return _data_plan(resolved, workers)
    return layerwise_space(resolved).best_on(workers, None if family == "best" else family)


def _data_plan(resolved: Resolved, workers: int) -> Plan:
    """Plain data parallelism with the fewest micro-batches that fit, or one if none do; more workers than samples idle."""
    workload, capacity_bytes = resolved.workload, resolved.setting.memory_capacity_bytes
    wanted = resolved.request.micro_batches
    if wanted is not None and wanted > workload.global_batch:
        raise UsageError(f"--micro-batches {wanted} is more than the batch has samples: {workload.global_batch}")
    layers = len(workload.graph.layers)
    used = min(workers, workload.micro_batch(wanted or 1))
    fixed = workload.collectives[0] if len(workload.collectives) == 1 else None
    first: Plan | None = None
    for m in divisors(workload.global_batch) if wanted is None else (wanted,):
        if workload.micro_batch(m) < used:
            break
        plan = Plan(
            workers=used,
            num_micro_batches=m,
            splits=(Split(batch=used),) * layers,
            collectives=tuple(fixed if used > 1 and layer.has_weights else None for layer in workload.graph.layers),
        )
        first = first or plan
        if evaluate(workload, resolved.cluster, [plan]).memory_bytes[0] <= capacity_bytes:
            return plan
    assert first is not None
    return first


def layer_study(space: LayerwisePlanSpace, answer: Answer, say: Progress) -> tuple[list[RankedPlan], list[Curve], str]:
    """Search at fewer GPUs, by family, and at batches that grow with the GPUs.

    Returns
    -------
    plans : list of RankedPlan
    curves : list of Curve
        Strong and weak scaling.
    note : str
    """
    request = space.resolved.request
    counts = halved_counts(request.gpus)
    batch = answer.setting.global_batch
    curves, notes = [], []
    families = [("plain data parallelism", "data")] if not request.fix else []
    families.append(("the best plan", "best"))
    for n, (name, family) in enumerate(families):
        for weak in (False, True):
            say(f"scaling of {name}", (2 * n + weak) / (2 * len(families)))
            asked = dataclasses.replace(request, batch=max(batch // request.gpus, 1) if weak else batch)
            points = []
            for count in counts:
                try:
                    (point,) = scale(asked, (count,), weak=weak, family=family).points
                except PlannerError as error:  # nothing of the family fits there
                    notes.append(f"{name}, {'weak' if weak else 'strong'}, {count} GPUs: {error}")
                    continue
                if point.fits:
                    points.append((count, point.global_batch, point.step_time_s, point.summary))
            curves.append(Curve(name=name, weak=weak, points=tuple(points)))
    return _layer_candidates(request, counts, say), curves, "; ".join(notes)


def _layer_candidates(request: Request, counts: Sequence[int], say: Progress) -> list[RankedPlan]:
    from planner.spaces.ask import optimize

    found: list[RankedPlan] = []
    for n, count in enumerate(counts):
        say(f"plans on {count} GPUs", 0.5 + 0.5 * n / len(counts))
        try:
            found += optimize(dataclasses.replace(request, gpus=count, top=3, diverse=False)).plans
        except PlannerError:
            continue
    return found

"""The simplest of the plans with a split per layer that are nearly as good as the best.

Families go from the simplest to the hardest to run (`FAMILIES_BY_SIMPLICITY`); the first that has a plan within the limit wins. Of its
plans, those that split every layer along one dimension are simpler. What remains is the best such plan, found by an exact search.
"""

from __future__ import annotations

from dataclasses import replace

from costmodel.layerwise.plan import Plan
from costmodel.layerwise.tables import CostCache
from costmodel.network.graph import Graph
from strategies.layerwise.candidates import Candidate, LayerwiseOutcome, SearchSettings, fewest_data_parallel
from strategies.layerwise.search import search_part
from strategies.layerwise.space import BATCH_FAMILIES
from strategies.limits import Clock

# Few people have split the channels of convolutions, or rows; what needs several kinds of splits in one layer is written for one network.
FAMILIES_BY_SIMPLICITY = ("one-device", "data", "hybrid", "model", "pipeline", "spatial", "mixed")
# What a plan of a simpler family has that one of these lacks, by its name in the published JSON.
_LACKED = {
    "data": "one_device",
    "hybrid": "no_hybrid_parallelism",
    "model": "no_model_parallelism",
    "pipeline": "no_pipeline",
    "spatial": "no_row_splits",
    "mixed": "no_mixed_splits",
}
_ONE_DIMENSION = "one_dimension_per_layer"

# What a plan to run may have that the best plan lacks.
FORGONE: tuple[str, ...] = (*_LACKED.values(), _ONE_DIMENSION)


def simplest(cache: CostCache, settings: SearchSettings, outcome: LayerwiseOutcome, within_share: float) -> Candidate:
    """The simplest plan that is nearly as good as the best.

    Parameters
    ----------
    cache : CostCache
    settings : SearchSettings
        Of the search that found the best; ``wall_s`` is for all searches here together.
    outcome : LayerwiseOutcome
        Of that search.
    within_share : float
        How much more the plan may score than the best.
    """
    known, graph, clock = outcome.candidates, cache.workload.graph, Clock(limit_s=settings.wall_s)
    best = known[0]
    asked = replace(settings, top=1, near=0.0, cutoff=best.score * (1.0 + within_share))
    only = settings.restriction.family
    families = FAMILIES_BY_SIMPLICITY[: FAMILIES_BY_SIMPLICITY.index(best.family) + 1] if only is None else (only,)
    is_listed = outcome.rest_bound > asked.cutoff  # every plan that is near

    def first(family: str, *, one_dimension: bool) -> Candidate | None:
        # The list of the best plans has the best of each family that it has at all.
        near = [c for c in known if c.family == family and (not one_dimension or _has_one_dimension(graph, c.plan))]
        if near or is_listed:
            return next((c for c in near if c.score <= asked.cutoff), None)
        if family == "pipeline" and outcome.knows_pipelines(asked.cutoff):
            return outcome.pipeline_within(asked.cutoff)
        part = replace(settings.restriction, family=family, one_dimension=one_dimension)
        found = search_part(cache, replace(asked, restriction=part, wall_s=clock.left_s)).candidates
        return next((c for c in found if c.score <= asked.cutoff), None)

    for family in families:
        if settings.restriction.by_batch and family not in BATCH_FAMILIES:
            break
        chosen = first(family, one_dimension=False)
        if chosen is not None:
            if family == "pipeline" or _has_one_dimension(graph, chosen.plan):
                return chosen
            return first(family, one_dimension=True) or chosen
    return best


def forgone_by(graph: Graph, chosen: Candidate, best: Candidate) -> tuple[str, ...]:
    """What a plan has that the best one lacks."""
    names = [] if chosen.family == best.family else [_LACKED[best.family]]
    if _has_one_dimension(graph, chosen.plan) and not _has_one_dimension(graph, best.plan):
        names.append(_ONE_DIMENSION)
    return tuple(names)


def fewest_gpus(
    cache: CostCache, settings: SearchSettings, outcome: LayerwiseOutcome, most: int, cutoff: float
) -> Candidate | None:
    """A plan on the fewest GPUs that scores at most a limit: the best of those that these searches and the one before them found.

    Parameters
    ----------
    cache : CostCache
    settings : SearchSettings
        Of the search that found the best; ``wall_s`` is for all searches here together.
    outcome : LayerwiseOutcome
        Of that search.
    most : int
        GPUs that are enough.
    cutoff : float
    """
    clock = Clock(limit_s=settings.wall_s)
    # Without them one search that finds nothing settles all counts, and a half of the counts is searched alone.
    has_pipelines = not outcome.knows_pipelines(cutoff) or outcome.pipeline_within(cutoff) is not None
    asked = replace(settings, top=1, near=0.0, cutoff=cutoff, has_pipelines=has_pipelines)
    known = list(outcome.candidates)
    if settings.restriction.is_free and settings.micro_batches is None:
        known += filter(None, [fewest_data_parallel(cache, replace(asked, max_workers=most), cutoff)])
    chosen = min(
        (c for c in known if c.score <= cutoff and c.plan.workers < most),
        key=lambda c: (c.plan.workers, c.score),
        default=None,
    )
    low, high = 1, most if chosen is None else chosen.plan.workers
    last = high - 1  # mostly there is nothing
    while low < high:
        counts = None if has_pipelines else tuple(range(low, last + 1))
        part = replace(asked, max_workers=last, worker_counts=counts, wall_s=clock.left_s)
        found = [c for c in search_part(cache, part).candidates if c.score <= cutoff]
        if found:
            chosen, high = found[0], found[0].plan.workers
        else:
            low = last + 1
        last = (low + high) // 2
    return chosen


def _has_one_dimension(graph: Graph, plan: Plan) -> bool:
    """Whether every layer with weights is split along one dimension."""
    splits = [split for layer, split in zip(graph.layers, plan.splits, strict=True) if layer.weight_count > 0]
    return all(sum(degree > 1 for degree in split.degrees) <= 1 for split in splits)

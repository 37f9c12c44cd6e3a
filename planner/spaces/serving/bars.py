"""Error bars of the answers about serving: of the time to the first token, the time per token, and the tokens that a full server makes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from costmodel.arrays import BoolArray, FloatArray
from costmodel.network.graph import Graph
from costmodel.objectives import mean_of
from costmodel.serving.model import SERVING_CONSTANTS, ServingModel, times_with
from costmodel.serving.plan import ServingBatch, ServingPlan
from costmodel.serving.workload import ServingWorkload
from costmodel.uncertainty.intervals import Candidates, intervals, least_scale
from costmodel.uncertainty.limits import END, chance_of_all, correlations, deviates
from planner.core.answer import ErrorBars
from planner.uncertainty.bars import (
    FACTOR,
    Knowledge,
    bars_of,
    constants_of,
    derivatives,
    node_size,
    serving_knowledge,
    shares_of,
    where_needed,
)

if TYPE_CHECKING:
    from planner.core.answer import RankedPlan
    from planner.question.resolve import Resolved


# What is measured of a server: time to the first token, mean time per token after it, seconds per token of all replicas. The time of a
# request is as sure as the last: a place of a full server makes one request after the other.
QUANTITIES: tuple[str, ...] = ("ttft_s", "tpot_s", "token_s")
_OF_OBJECTIVE = {"ttft": "ttft_s", "tpot": "tpot_s"}
# By how many percent one percent of a constant changes a time at most. Near what a plan can serve derivatives grow without end; times per
# token do not, which are those of a full server there.
_MOST_EFFECT = 3.0
_DEGREES = ("tp", "pp", "ep", "etp", "dp", "max_batch", "prefill_batch")
_COMMUNICATION = ("tp_s", "ep_s", "pp_s")


def serving_kind(graph: Graph, *, sharing: bool = False) -> str:
    """Kind of workload that a plan to serve is: mixtures of experts are further from their predictions than dense networks.

    Furthest are those whose replicas share experts, as engines run them.
    """
    if not any(layer.kind == "moe" for layer in graph.layers):
        return "serving"
    return "serving-shared-experts" if sharing else "serving-experts"


# Of the time to the first token behind a queue, whatever the network.
_BEHIND_QUEUE = "serving-first-token"


def _kind_of(workload: ServingWorkload, quantity: str, *, sharing: bool, places: int = 2) -> str:
    """Kind of the error model of a time; one request alone waits for nobody."""
    has_queue = quantity == "ttft_s" and workload.load != "backlog" and places > 1
    return _BEHIND_QUEUE if has_queue else serving_kind(workload.graph, sharing=sharing)


def serving_bars(
    resolved: Resolved,
    model: ServingModel,
    objective: str,
    plans: Sequence[RankedPlan],
    limits: Mapping[str, float] = MappingProxyType({}),
) -> tuple[tuple[RankedPlan, ...], ErrorBars]:
    """Ranked plans with their intervals and the chance that they keep limits, and how sure their order is; at least one plan."""
    batch = ServingBatch.from_plans([plan.plan for plan in plans])
    # The errors of two times that are both limited are compared, too.
    kinds_of, known = _knowledge(resolved, model, batch, max(len(plans), len(limits)))
    kinds = kinds_of["token_s"]
    knowledge = known[kinds[0]]  # of the first plan
    found = serving_candidates(model, [plan.plan for plan in plans], knowledge)
    of_objective = found[_OF_OBJECTIVE.get(objective, "token_s")]
    weight = np.array([plan.score for plan in plans]) / of_objective.step_time_s
    ends = {name: _ends(candidates, kinds_of[name], known) for name, candidates in found.items()}
    barred = _with_intervals(plans, ends)
    if limits:
        times = {name: np.array([plan[name] for plan in plans]) for name in limits}
        chances = _chances(times, found, kinds_of, known, ends, limits)
        barred = tuple(
            replace(plan, figures={**plan.figures, "limits_probability": chance})
            for plan, chance in zip(barred, chances.tolist(), strict=True)
        )
    # How many GPUs a plan takes for what comes at a rate is known.
    compares = model.workload.arrivals is None or objective in _OF_OBJECTIVE
    bars = bars_of(of_objective, knowledge, seed=resolved.request.seed, weight=weight, compares=compares)
    first = known[kinds_of["ttft_s"][0]]
    if first.kind != knowledge.kind:
        bars = replace(bars, basis=f"{bars.basis}; of first tokens, {first.model.basis}")
    return barred, bars


def _knowledge(
    resolved: Resolved, model: ServingModel, batch: ServingBatch, compared: int
) -> tuple[dict[str, list[str]], dict[str, Knowledge]]:
    """The kinds of the error models of each quantity of plans, and what is known of every kind."""
    apart = int((batch.tp * batch.pp * batch.sharing).max())  # devices that speak to one another
    # The host, which step times of plans over a mesh depend on alone, makes every pass of a server wait.
    named = {*constants_of(resolved.workload, model.cluster, apart), "host_launch"}
    cases = 2 * (batch.sharing > 1) + (batch.max_batch > 1)
    kinds_of = {}
    for name in QUANTITIES:
        of_case = [_kind_of(model.workload, name, sharing=case > 1, places=1 + case % 2) for case in range(4)]
        kinds_of[name] = [of_case[case] for case in cases.tolist()]
    names = [name for name in SERVING_CONSTANTS if name in named]
    known = {
        kind: where_needed(serving_knowledge(resolved.request, kind, names=names), compared)
        for kind in dict.fromkeys(kind for some in kinds_of.values() for kind in some)
    }
    return kinds_of, known


def limits_on_predictions(
    resolved: Resolved, model: ServingModel, limits: Mapping[str, float], confidence: float
) -> dict[str, float]:
    """What a time may be predicted to be at most to keep its limit with a chance of one half or more, whatever the plan.

    Constants and parts of a plan only make its interval wider than that of the error of the formula.
    """
    ratio = NormalDist().inv_cdf(confidence) / END

    def margin(name: str) -> float:
        kinds = {
            _kind_of(model.workload, mean_of(name), sharing=sharing, places=places)
            for sharing in (False, True)
            for places in (1, 2)
        }
        models = [serving_knowledge(resolved.request, kind, names=()).model for kind in kinds]
        return min(ratio * known.high * least_scale(known) for known in models)

    return {name: limit * math.exp(-margin(name)) for name, limit in limits.items()}


def keep_limits(
    resolved: Resolved, model: ServingModel, batch: ServingBatch, limits: Mapping[str, float], confidence: float
) -> BoolArray:
    """Whether plans keep all limits together with a chance of one half or more, (n,); at least one plan.

    Most that do not are found without what the constants do to them: these only make intervals wider, and limits above the predictions are
    kept less often then. That holds where errors agree in nothing.
    """
    kinds_of, known = _knowledge(resolved, model, batch, 1)
    alike = np.array([_are_alike(kinds_of, n, limits) for n in range(len(batch))])
    kept, rows = alike.copy(), np.flatnonzero(~alike)
    if len(rows):
        narrow = {kind: replace(each, log_sd={}, covariance=np.zeros((0, 0))) for kind, each in known.items()}
        kinds = {name: [kinds[n] for n in rows.tolist()] for name, kinds in kinds_of.items()}
        kept[rows] = _chances_of(model, batch.take(rows), limits, kinds, narrow) >= confidence
    rows = np.flatnonzero(kept)
    if len(rows) and (alike.any() or any(each.log_sd for each in known.values())):
        some = batch.take(rows)
        kept[rows] = _chances_of(model, some, limits, *_knowledge(resolved, model, some, 2)) >= confidence
    return np.asarray(kept)


def _chances_of(
    model: ServingModel,
    batch: ServingBatch,
    limits: Mapping[str, float],
    kinds_of: Mapping[str, Sequence[str]],
    known: Mapping[str, Knowledge],
) -> FloatArray:
    """The chance of each plan that it keeps all limits, with what is known."""
    knowledge = next(iter(known.values()))
    times = times_with(model, batch, _constants(knowledge), tuple(limits))
    found = _candidates(model, batch, knowledge, np.zeros((len(batch), 1)), times)
    ends = {name: _ends(candidates, kinds_of[name], known) for name, candidates in found.items()}
    return _chances({name: times[0][name] for name in limits}, found, kinds_of, known, ends, limits)


def _are_alike(kinds_of: Mapping[str, Sequence[str]], row: int, limits: Mapping[str, float]) -> bool:
    """Whether the errors of all limited times of a plan are of one kind; there are two at least."""
    return len(limits) > 1 and len({kinds_of[mean_of(name)][row] for name in limits}) == 1


def _chances(
    times: Mapping[str, FloatArray],
    found: Mapping[str, Candidates],
    kinds_of: Mapping[str, Sequence[str]],
    known: Mapping[str, Knowledge],
    ends: Mapping[str, tuple[FloatArray, FloatArray]],
    limits: Mapping[str, float],
) -> FloatArray:
    """The chance of each plan that it keeps all limits, from its predicted times."""
    means = {name: mean_of(name) for name in limits}
    first, *_, last = [*means.values()] * 2
    above = []
    for name, mean in means.items():
        predicted = found[mean].step_time_s
        # A percentile is as far off as the mean.
        above.append(deviates(predicted, *ends[mean], limits[name] * predicted / times[name]))
    # Errors of first tokens behind a queue and of the others agree in nothing: -0.24 of 858 deployments (benchmarks/first_tokens.py).
    alike = np.array([_are_alike(kinds_of, n, limits) for n in range(len(above[0]))])
    agree = np.zeros(len(alike))
    for kind in {kinds_of[first][n] for n in np.flatnonzero(alike).tolist()}:
        mine = alike & (np.array(kinds_of[first]) == kind)
        agree = np.where(mine, correlations(found[first], found[last], known[kind].model), agree)
    return chance_of_all(above, agree)


def _ends(
    candidates: Candidates, kinds: Sequence[str], known: Mapping[str, Knowledge]
) -> tuple[FloatArray, FloatArray]:
    low, high = np.zeros(len(kinds)), np.zeros(len(kinds))
    for kind, knowledge in known.items():
        mine = np.array([k == kind for k in kinds])
        ends = intervals(candidates, knowledge.model)
        low, high = np.where(mine, ends[0], low), np.where(mine, ends[1], high)
    return low, high


def _with_intervals(
    plans: Sequence[RankedPlan], ends: Mapping[str, tuple[FloatArray, FloatArray]]
) -> tuple[RankedPlan, ...]:
    result = []
    for n, plan in enumerate(plans):
        first, token = ([float(end[n]) for end in ends[name]] for name in ("ttft_s", "token_s"))
        each = [float(end[n]) for end in ends["tpot_s"]] if "tpot_s" in ends else [0.0, 0.0]
        figures = {
            **plan.figures,
            "ttft_low_s": first[0],
            "ttft_high_s": first[1],
            # What comes at a rate is served, no more and no less.
            "output_tokens_per_s_low": 1.0 / token[1] if plan["rate_per_s"] is None else None,
            "output_tokens_per_s_high": 1.0 / token[0] if plan["rate_per_s"] is None else None,
        }
        result.append(replace(plan, step_time_low_s=each[0], step_time_high_s=each[1], figures=figures))
    return tuple(result)


def serving_candidates(
    model: ServingModel, plans: Sequence[ServingPlan], knowledge: Knowledge
) -> dict[str, Candidates]:
    """Plans as the error model sees them, by quantity; a server of answers of one token has no time per token."""
    batch = ServingBatch.from_plans(plans)
    return _candidates(
        model, batch, knowledge, serving_coordinates(plans), times_with(model, batch, _constants(knowledge))
    )


def _constants(knowledge: Knowledge) -> list[dict[str, float]]:
    """The constants as they are, and with each of those that are not sure in turn."""
    return [{}, *({name: FACTOR} for name in knowledge.log_sd)]


def _candidates(
    model: ServingModel,
    batch: ServingBatch,
    knowledge: Knowledge,
    coordinates: FloatArray,
    times: Sequence[Mapping[str, FloatArray]],
) -> dict[str, Candidates]:
    quantities = [name for name in QUANTITIES if name != "tpot_s" or model.workload.later_tokens > 0]
    now = times[0]

    def joined(times: Mapping[str, FloatArray]) -> FloatArray:
        return np.concatenate([1.0 / times["output_tokens_per_s"] if q == "token_s" else times[q] for q in quantities])

    times_s = joined(now)
    effects = derivatives([joined(changed) for changed in times[1:]], times_s)
    # Near what a plan can serve, a little slower means that more comes.
    effects = np.clip(effects, -_MOST_EFFECT, _MOST_EFFECT)
    nodes = batch.tp * batch.pp * batch.sharing / node_size(model.cluster)
    count = len(batch)
    return {
        quantity: Candidates(
            step_time_s=times_s[k * count : (k + 1) * count],
            shares=_shares(now, quantity, model.workload.later_tokens, nodes),
            effects=effects[k * count : (k + 1) * count],
            covariance=knowledge.covariance,
            coordinates=coordinates,
        )
        for k, quantity in enumerate(quantities)
    }


def _shares(times: Mapping[str, FloatArray], quantity: str, tokens: int, nodes: FloatArray) -> FloatArray:
    """Parts of a quantity; a place spends on a token what it spends on a request, prompt and all."""
    first, each = {"ttft_s": (1, 0), "tpot_s": (0, 1)}.get(quantity, (1, tokens))
    terms = {
        f"serving_{name}": first * times[f"prefill_{name}"] + each * times[f"decode_{name}"] for name in _COMMUNICATION
    }
    return shares_of(first * times["ttft_s"] + each * times["tpot_s"], terms, nodes)


def serving_coordinates(plans: Sequence[ServingPlan]) -> FloatArray:
    """Where serving plans lie, in doublings of degrees, of batches and of the tokens of a pass.

    >>> one, two = serving_coordinates([ServingPlan(tp=2, dp=4), ServingPlan(tp=8)])
    >>> float(np.abs(one - two).sum())
    4.0
    """
    columns = [[math.log2(getattr(plan, name)) for plan in plans] for name in _DEGREES]
    # Prompts in chunks or whole: two columns differ where this does, half a step each.
    columns += [[0.5 * float((plan.prefill_chunk > 0) == given) for plan in plans] for given in (True, False)]
    return np.array(columns, dtype=np.float64).T

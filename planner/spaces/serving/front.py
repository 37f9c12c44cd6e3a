"""Plans between speed and cost: for each of several limits on the time per token, the plan that makes the most tokens/s per GPU."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from strategies.serving.pools import search_both

if TYPE_CHECKING:
    from planner.core.answer import RankedPlan
    from planner.spaces.serving.space import ServingPlanSpace
    from strategies.limits import Progress

# Limits on the time per token between the least and that of the plan with the most tokens/s.
_LIMITS = 10


def speed_front(space: ServingPlanSpace, progress: Progress) -> list[RankedPlan]:
    """Plans with the most output tokens per second and GPU, from the shortest time per token to the longest that pays.

    They keep the other limits of the question. Answers of one token have no time per token, and where requests come at a rate that rate is
    served: then there are none.
    """
    if space.at_rate or not space.model.workload.later_tokens:
        return []
    settings = dataclasses.replace(space.settings(), top=1, objective="tokens_per_s_per_gpu")
    ends = []
    for objective in ("tpot", settings.objective):
        progress("the ends of the Pareto front", 0.0)
        ends += search_both(space.model, dataclasses.replace(settings, objective=objective)).candidates
    if len(ends) < 2:
        return []
    plans = [end.plan for end in ends]
    least, most = (space.rank([plan])[0]["tpot_s"] for plan in plans)
    for n, limit in enumerate(np.geomspace(least, most, _LIMITS + 2)[1:-1].tolist()):
        progress("the Pareto front", (n + 1) / (_LIMITS + 1))
        limits = {**settings.limits, "tpot_s": min(limit, settings.limits.get("tpot_s", limit))}
        found = search_both(space.model, dataclasses.replace(settings, limits=limits)).candidates
        plans += [candidate.plan for candidate in found]
    return space.rank(list(dict.fromkeys(plans)))

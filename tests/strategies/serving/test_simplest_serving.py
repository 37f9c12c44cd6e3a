"""The simplest serving plan of those that are nearly as good as the best, against all plans one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.serving.plan import ServingBatch, ServingPlan
from strategies.mesh.settings import Bounds
from strategies.serving.pools import search_both
from strategies.serving.search import search_serving
from strategies.serving.simplest import WISHES, lacks
from tests.cases import mostly
from tests.strategies.serving.test_pools_search import MOST, product
from tests.strategies.serving.test_serving_search import brute_force, case

NODE = 2


def granted(plan: ServingPlan) -> list[bool]:
    """The wishes in their order, written out again."""
    degrees = (plan.tp, plan.pp, plan.prefill_tp, plan.prefill_pp)
    experts = plan.ep * plan.etp
    sizes = (plan.tp * plan.pp * max(experts // plan.tp, 1), plan.prefill_tp * plan.prefill_pp)
    return [
        plan.prefill_dp == 0,
        plan.draft_tokens == 0,
        all(bin(degree).count("1") == 1 for degree in degrees),
        all(size in (1, NODE) or (size > NODE and size % NODE == 0) for size in sizes),
        plan.pp == plan.prefill_pp == 1,
        plan.etp == plan.prefill_etp == 1,
        plan.ep == plan.prefill_ep == 1,
        plan.tp == plan.prefill_tp == 1,
        plan.max_batch in (1, 2, 4, 8, 16, 32, 64, 96, 128),
    ]


@mostly("exact", "seed", range(60), quick=6)
@pytest.mark.parametrize("near", [0.01, 0.3])
def test_the_simplest_plan_is_that_of_all_plans(seed: int, near: float) -> None:
    model, settings = case(seed)
    apart = seed % 3 == 0
    if apart:
        settings = replace(settings, max_workers=min(settings.max_workers, 3), disaggregate="yes")
        settings = replace(settings, degrees={"max_batch": Bounds(low=1, high=MOST)})
    every = product(model, settings) if apart else ServingBatch.from_plans(brute_force(model, settings))
    if not len(every):
        return
    costs = model.evaluate(every)
    kept = costs.memory_bytes <= settings.capacity_bytes
    for name, limit in settings.limits.items():
        kept &= getattr(costs, name) <= limit
    if not kept.any():
        return
    scores = settings.score(costs.columns(), every)
    most = scores[kept].min() * (1.0 + near)
    plans = [(every.plan(n), float(scores[n])) for n in np.flatnonzero(kept & (scores <= most)).tolist()]
    # False before True: the first wish that is not granted decides.
    wanted = min(([not has for has in granted(plan)], score) for plan, score in plans)
    search = search_both if apart else search_serving
    found = search(model, replace(settings, near=near, node=NODE, top=1)).simplest(near)
    assert [not has for has in granted(found.plan)] == wanted[0]
    assert found.score == pytest.approx(wanted[1], rel=1e-9)


def test_wishes_are_granted_in_their_order() -> None:
    plain = ServingPlan(tp=2, dp=4, max_batch=64)
    harder = [
        replace(plain, max_batch=63),
        replace(plain, tp=4),
        replace(plain, pp=2),
        replace(plain, tp=4, pp=3),
        replace(plain, draft_tokens=2),
        replace(plain, prefill_dp=1),
    ]
    found = lacks(ServingBatch.from_plans([plain, *harder]), 8).tolist()
    assert found[0] == 1 << (len(WISHES) - 1 - [wish.name for wish in WISHES].index("no_tensor_parallelism"))
    assert found[0] < found[1]
    assert found[3] < found[4] < found[5] < found[6]

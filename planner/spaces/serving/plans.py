"""A serving plan in words, the name of the region it lies in, and the plan of a plan file."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from costmodel.serving.plan import ServingPlan

if TYPE_CHECKING:
    from planner.files.plan_file import PlanProblems
    from planner.schema.plan import PlanDocument
    from planner.spaces.serving.space import ServingPlanSpace

_FIELDS = tuple(field.name for field in dataclasses.fields(ServingPlan))


def serving_plan_in_words(plan: ServingPlan, new_tokens: float = math.inf) -> str:
    """Write a plan for people; what is neutral is left out. Chunks of ``new_tokens`` or more are whole prompts.

    >>> serving_plan_in_words(ServingPlan(tp=4, pp=2, dp=2, max_batch=64, prefill_chunk=512))
    'tp 4, pp 2, 2 replicas, up to 64 requests at once each, prompts in chunks of 512'
    >>> serving_plan_in_words(ServingPlan(max_batch=64, prefill_chunk=1024, prefill_batch=16), 1024)
    'one GPU, up to 64 requests at once, prompts whole beside decoding, 16 prompts per pass'
    >>> serving_plan_in_words(ServingPlan(tp=8, max_batch=4, draft_tokens=2))
    'tp 8, up to 4 requests at once, 2 tokens drafted'
    >>> serving_plan_in_words(ServingPlan())
    'one GPU, one request at a time'
    >>> serving_plan_in_words(ServingPlan(tp=1, ep=8, dp=8, max_batch=4, prefill_batch=2))
    'ep 8, 8 replicas, up to 4 requests at once each, 2 prompts per pass'
    >>> serving_plan_in_words(ServingPlan(tp=8, dp=3, max_batch=64, prefill_dp=2, prefill_tp=4))
    '2 x tp 4 prefill, 3 x tp 8 decode, up to 64 requests at once each'
    >>> serving_plan_in_words(ServingPlan(tp=2, ep=8, dp=4, max_batch=9, prefill_dp=4, prefill_ep=4))
    '4 x 1 GPU (ep 4) prefill, 4 x tp 2 (ep 8) decode, up to 9 requests at once each'
    """
    words, experts = _degrees(plan.tp, plan.pp), _experts(plan.ep, plan.etp)
    if plan.prefill_dp:
        readers = _degrees(plan.prefill_tp, plan.prefill_pp), _experts(plan.prefill_ep, plan.prefill_etp)
        pools = ((plan.prefill_dp, *readers, "prefill"), (plan.dp, words, experts, "decode"))
        words = [
            " ".join([f"{count} x {' '.join(degrees or ['1 GPU'])}", *(f"({shared})" for shared in over), does])
            for count, degrees, over, does in pools
        ]
    else:
        words += [*experts, *([f"{plan.dp} replicas"] if plan.dp > 1 else [])]
    most = f"up to {plan.max_batch} requests at once" if plan.max_batch > 1 else "one request at a time"
    words = [*(words or ["one GPU"]), most + " each" * (plan.dp > 1)]
    if plan.prefill_chunk >= new_tokens and not plan.prefill_dp:
        words.append("prompts whole beside decoding")
    elif plan.prefill_chunk:
        words.append(f"prompts in chunks of {plan.prefill_chunk}")
    if plan.prefill_batch > 1:
        words.append(f"{plan.prefill_batch} prompts per pass")
    if plan.draft_tokens:
        words.append(f"{plan.draft_tokens} token{'s' if plan.draft_tokens > 1 else ''} drafted")
    return ", ".join(words)


def _degrees(tp: int, pp: int) -> list[str]:
    """Degrees of a worker in words; none where they are neutral."""
    return [f"{name} {degree}" for name, degree in (("tp", tp), ("pp", pp)) if degree > 1]


def _experts(ep: int, etp: int) -> list[str]:
    return [f"ep {ep}" + (f", etp {etp}" if etp > 1 else "")] if ep > 1 else []


def family_of_serving_plan(plan: ServingPlan) -> str:
    """Name the parallel dimensions in use, joined by ``+``.

    >>> family_of_serving_plan(ServingPlan(tp=8, dp=2)), family_of_serving_plan(ServingPlan())
    ('tensor+replicas', 'one-device')
    >>> family_of_serving_plan(ServingPlan(tp=8, prefill_dp=2, prefill_tp=4))
    'disaggregated+tensor'
    """
    used = {
        "disaggregated": plan.prefill_dp > 0,
        "tensor": plan.tp > 1,
        "expert": plan.ep > 1,
        "pipeline": plan.pp > 1,
        "replicas": plan.dp > 1,
    }
    return "+".join(name for name, is_used in used.items() if is_used) or "one-device"


def read_plan(document: PlanDocument, space: ServingPlanSpace, problems: PlanProblems) -> ServingPlan:
    """Read the plan of a document, and note what contradicts itself, its network and the rules of serving."""
    plan = ServingPlan(**{name: getattr(document.serving, name) for name in _FIELDS})
    product = f"tp {plan.tp} x pp {plan.pp} x dp {plan.dp}"
    if plan.prefill_dp:
        product += f" + prefill {plan.prefill_tp} x {plan.prefill_pp} x {plan.prefill_dp}"
    problems.check_workers(plan.workers, f"the plan has {product} = {plan.workers}")
    if plan.concurrency != document.global_batch:
        words = f"dp {plan.dp} x max_batch {plan.max_batch} = {plan.concurrency} sequences"
        problems.note(("global_batch",), f"is {document.global_batch}, but the plan holds {words}")
    if not problems.found:
        problems.check_rules("serving", space.broken(plan), _FIELDS)
    return plan

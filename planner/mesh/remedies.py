"""What to say where nothing fits: the nearest miss, and the cheapest change after which something does. Every advice was tried."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from costmodel.mesh.plan import RECOMPUTE, MeshPlan
from costmodel.splits import divisors
from costmodel.units import format_bytes, format_seconds
from planner.errors import LimitReached, NoFeasiblePlan
from planner.mesh.flags import flag_of
from planner.mesh.judge import MeshJudge
from planner.mesh.near import near_multiples
from planner.mesh.wording import MEMORY_WORDS, mesh_plan_in_words
from planner.search_errors import SearchInterrupted
from strategies.mesh.settings import Bounds, MeshCandidate, MeshOutcome, MeshRestriction, MeshSettings, NearestMiss

__all__ = ["no_mesh_plan", "remedy"]

# Searches for a way out are short: each at most so long, and so many doublings of the GPUs.
_WALL_S = 5.0
_DOUBLINGS = 8
# Values of a bounded degree that are tried to say why none of them works, and sentences that say it.
_MOST_VALUES = 1024
_MOST_MESSAGES = 4


def no_mesh_plan(judge: MeshJudge, settings: MeshSettings, outcome: MeshOutcome) -> Exception:
    """Say why a search found no plan."""
    if outcome.interrupted:
        return SearchInterrupted(None)
    if outcome.nearest_miss is None and outcome.out_of_time:
        return LimitReached("the time limit ended the search before it found a plan; --time-limit gives it longer")
    if outcome.nearest_miss is None:
        return NoFeasiblePlan(_excluded(judge, settings))
    way_out = _relaxed(judge, settings) or _more_gpus(judge, settings)
    return NoFeasiblePlan(f"nothing fits: {_miss(judge, outcome.nearest_miss)}; {way_out or _ADVICE}")


_ADVICE = (
    "nor was anything found on more GPUs; use a device with more memory, a larger --memory-limit, a shorter --seq, --lora-rank, or "
    "--optimizer sgd"
)


def _miss(judge: MeshJudge, miss: NearestMiss) -> str:
    have = judge.resolved.setting.memory_capacity_bytes
    ranked = judge.rank([miss.plan])[0]
    largest = max(ranked.memory_parts, key=lambda name: ranked.memory_parts[name])
    return (
        f"the nearest miss ({mesh_plan_in_words(miss.plan)}) needs {format_bytes(miss.memory_bytes)} per GPU and there are "
        f"{format_bytes(have)}; the largest part is {MEMORY_WORDS[largest]} with {format_bytes(ranked.memory_parts[largest])}"
    )


def _excluded(judge: MeshJudge, settings: MeshSettings) -> str:
    said = "; ".join(_contradictions(judge, settings.restriction))
    if not said:
        said = "nothing obeys all rules of the space; fix less"
    flags = _flags(settings.restriction)
    fixed = f" with {', '.join(dict.fromkeys(flags.values()))} as given" if flags else ""
    setting = judge.resolved.setting
    return f"no legal plan of '{setting.model}' at global batch {setting.global_batch} on up to {setting.gpus} GPUs{fixed}: {said}"


def _contradictions(judge: MeshJudge, restriction: MeshRestriction) -> list[str]:
    """What the fixed values break by themselves, whatever the others are."""
    degrees = {field: bounds.values[0] for field, bounds in restriction.degrees.items() if len(bounds.values) == 1}
    values: dict[str, Any] = {**degrees, **restriction.flags}
    values |= {field: names[0] for field, names in restriction.names.items() if len(names) == 1}
    dp = values.pop("dp", None)
    known = {*values, *(["dp"] if dp is not None else []), "vpp"}  # more chunks per rank break no rule less
    plan = MeshPlan(**{**values, **({} if dp is None else {"dp_replicate": dp, "dp_shard": 1})})
    least = {field: min(_allowed(bounds), default=1) for field, bounds in restriction.degrees.items()}
    problems = [
        *_too_many_gpus(judge, least),
        *_no_share_of_batch(judge, degrees),
        *judge.broken(plan, _FIELDS - known),
    ]
    for field in restriction.degrees.keys() - degrees.keys() - {"dp"}:
        problems += _all_broken(judge, field, _allowed(restriction.degrees[field]))
    return problems


_FIELDS = frozenset({"dp", *(field.name for field in dataclasses.fields(MeshPlan))})


def _allowed(bounds: Bounds) -> Sequence[int]:
    """Values of one degree that the user allows."""
    return bounds.values or range(bounds.low or 0, min(bounds.high or _MOST_VALUES, _MOST_VALUES) + 1)


def _all_broken(judge: MeshJudge, field: str, values: Sequence[int]) -> list[str]:
    """What is wrong with all allowed values of one degree; nothing if one of them is right."""
    messages: list[str] = []
    for value in values:
        broken = judge.broken(MeshPlan(**{field: value}), _FIELDS - {field})  # type: ignore[arg-type]
        if not broken:
            return []
        messages += broken
    return messages[:_MOST_MESSAGES]


def _too_many_gpus(judge: MeshJudge, least: Mapping[str, int]) -> list[str]:
    gpus, words = _product(least, ("tp", "cp", "pp", *_data(least)))
    most = judge.resolved.setting.gpus
    return [f"{words} is more than --gpus {most}"] if gpus > most else []


def _no_share_of_batch(judge: MeshJudge, degrees: Mapping[str, int]) -> list[str]:
    batch = judge.resolved.setting.global_batch
    samples, words = _product(degrees, (*_data(degrees), "micro_batch", "num_micro_batches"))
    near = near_multiples(batch, samples)
    return [f"{words} does not divide --batch {batch} (nearby: {near})"] if batch % samples else []


def _data(degrees: Mapping[str, int]) -> tuple[str, ...]:
    return ("dp",) if "dp" in degrees else ("dp_replicate", "dp_shard")


def _product(degrees: Mapping[str, int], fields: tuple[str, ...]) -> tuple[int, str]:
    used = {field: degrees[field] for field in fields if degrees.get(field, 1) > 1}
    product = math.prod(used.values())
    words = " x ".join(f"{flag_of(field)[2:]} {degree}" for field, degree in used.items())
    return product, f"{words} = {product}" if len(used) > 1 else words


def _flags(restriction: MeshRestriction) -> dict[str, str]:
    """Fixed field -> its option."""
    return {field: flag_of(field) for field in (*restriction.degrees, *restriction.names, *restriction.flags)}


def _relaxed(judge: MeshJudge, settings: MeshSettings) -> str | None:
    """The option without which the best plan fits."""
    flags = _flags(settings.restriction)
    found: list[tuple[float, str, MeshCandidate]] = []
    for flag in dict.fromkeys(flags.values()):
        candidate = _best(judge, dataclasses.replace(settings, restriction=_without(settings.restriction, flags, flag)))
        if candidate is not None:
            found.append((candidate.score, flag, candidate))
    if not found:
        return None
    _, flag, candidate = min(found, key=lambda entry: entry[:2])
    return f"without {flag} it fits: {_described(candidate)}"


def _without(restriction: MeshRestriction, flags: dict[str, str], flag: str) -> MeshRestriction:
    return MeshRestriction(
        degrees={field: bounds for field, bounds in restriction.degrees.items() if flags[field] != flag},
        names={field: names for field, names in restriction.names.items() if flags[field] != flag},
        flags={field: value for field, value in restriction.flags.items() if flags[field] != flag},
    )


def _more_gpus(judge: MeshJudge, settings: MeshSettings) -> str | None:
    """The least doubling of the GPUs after which something fits."""
    most = judge.resolved.cluster.max_devices
    gpus = settings.max_workers
    deadline = time.monotonic() + _WALL_S
    for _ in range(_DOUBLINGS):
        gpus *= 2
        if (most is not None and gpus > most) or time.monotonic() > deadline:
            return None
        candidate = _best(judge, dataclasses.replace(settings, max_workers=gpus))
        if candidate is not None:
            return f"with --gpus {gpus} it fits: {_described(candidate)}"
    return None


def _best(judge: MeshJudge, settings: MeshSettings) -> MeshCandidate | None:
    short = dataclasses.replace(settings, top=1, wall_s=min(settings.wall_s, _WALL_S))
    outcome = judge.search(short)
    return outcome.candidates[0] if outcome.candidates else None


def _described(candidate: MeshCandidate) -> str:
    return f"{mesh_plan_in_words(candidate.plan)}, {format_seconds(candidate.step_time_s)} per step"


def remedy(judge: MeshJudge, plan: MeshPlan) -> str:
    """Name the change of a plan that does not fit after which it does, at the least cost in time."""
    variants = [variant for variant in _variants(judge, plan) if not judge.broken(variant)]
    if variants:
        costs = judge.costs(variants)
        fits = costs.memory_bytes <= judge.resolved.setting.memory_capacity_bytes
        if fits.any():
            n = int(np.argmin(np.where(fits, costs.step_time_s, np.inf)))
            change = " ".join(_changes(plan, variants[n]))
            return f"it fits with {change}: {format_seconds(float(costs.step_time_s[n]))} per step"
    return "no ZeRO stage, recomputation, offload or smaller micro-batch makes it fit; `planner optimize` searches the other degrees"


def _variants(judge: MeshJudge, plan: MeshPlan) -> Iterator[MeshPlan]:
    """The same degrees with less memory."""
    zeros = range(plan.zero_stage, 4) if plan.dp * plan.cp > 1 else (plan.zero_stage,)
    modes = RECOMPUTE[RECOMPUTE.index(plan.recompute) :]
    offloads = [(o, a) for o in (plan.offload_optimizer, True) for a in (plan.offload_activations, True)]
    sizes = divisors(plan.micro_batch)
    for zero, mode, (optimizer, activations), size in itertools.product(zeros, modes, dict.fromkeys(offloads), sizes):
        shard = plan.dp if zero > 0 and plan.dp_shard == 1 else plan.dp_shard
        changed = dataclasses.replace(
            plan,
            zero_stage=zero,
            dp_shard=shard,
            dp_replicate=plan.dp // shard,
            recompute=mode,
            recompute_blocks=judge.blocks_per_stage(plan) if mode == "full" else 0,
            offload_optimizer=optimizer,
            offload_activations=activations,
            micro_batch=size,
            num_micro_batches=plan.num_micro_batches * (plan.micro_batch // size),
        )
        if changed != plan:
            yield changed


def _changes(plan: MeshPlan, changed: MeshPlan) -> list[str]:
    """Options that turn one plan into the other."""
    words = [
        f"{flag_of(field)} {getattr(changed, field)}"
        for field in ("zero_stage", "recompute", "micro_batch")
        if getattr(changed, field) != getattr(plan, field)
    ]
    if changed.recompute == plan.recompute and changed.recompute_blocks != plan.recompute_blocks:
        words.append(f"--recompute-blocks {changed.recompute_blocks}")
    offloads = (changed.offload_optimizer, changed.offload_activations)
    if offloads != (plan.offload_optimizer, plan.offload_activations):
        names = [name for name, is_on in zip(("optimizer", "activations"), offloads, strict=True) if is_on]
        words.append(f"--offload {','.join(names)}")
    return words

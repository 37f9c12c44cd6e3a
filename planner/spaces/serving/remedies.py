"""What to say where no serving plan will do: the nearest miss, and the changes after which one does. Every advice was tried."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from costmodel.serving.plan import SERVING_FIGURES, ServingPlan
from planner.core.errors import NoFeasiblePlan, PlannerError, UsageError
from planner.core.quantities import format_bytes, format_seconds
from planner.question.fixed import flag_of
from planner.question.resolve import resolve
from planner.spaces.serving.contradictions import serving_contradiction
from planner.spaces.serving.labels import serving_plan_in_words
from planner.spaces.serving.space import ServingPlanSpace, missed_limits, serving_space
from strategies.serving.search import search_serving
from strategies.serving.space import ServingOutcome, ServingSettings

__all__ = ["nothing_fits"]

_LIMITS = {"ttft_s": "time to first token", "tpot_s": "time per token"}
# Searches for a way out are short: each at most so long, all of them together, and so many doublings of the GPUs.
_WALL_S, _ALL_S = 4.0, 8.0
_DOUBLINGS = 8
# Doublings that bring nothing nearer, by more than this, after which more are not tried.
_PATIENCE = 2
_NEARER = 0.999
# Ways out that are named.
_MOST_WAYS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A question that differs in one option from the one that was asked."""

    words: str  # "with --precision fp8", "without --tp"; empty: nothing is changed but the GPUs
    space: ServingPlanSpace
    settings: ServingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    """The nearest that one change of the question comes on so many GPUs; ``excess``: over the limits, or the memory needed."""

    words: str
    space: ServingPlanSpace
    plan: ServingPlan
    works: bool
    fits: bool
    excess: float


def nothing_fits(space: ServingPlanSpace, settings: ServingSettings, outcome: ServingOutcome) -> Exception:
    """Say why a search found no plan."""
    miss = outcome.nearest_miss
    if miss is None:
        return UsageError(serving_contradiction(space, settings))
    ranked = space.rank([miss.plan])[0]
    words = serving_plan_in_words(miss.plan)
    way_out = _way_out(space, settings, _tried("", space, miss.plan, works=False, fits=miss.fits))
    if miss.fits:
        return NoFeasiblePlan(
            f"no plan that fits keeps the limits; the nearest ({words}) misses: {'; '.join(missed_limits(space.limits, ranked))}; {way_out}"
        )
    largest = max(ranked.memory_parts, key=lambda part: ranked.memory_parts[part])
    return NoFeasiblePlan(
        f"nothing fits: the nearest miss ({words}) needs {format_bytes(ranked.memory_bytes_per_gpu)} per GPU and there are "
        f"{format_bytes(space.capacity_bytes)}; the largest part is {SERVING_FIGURES[largest].label} with "
        f"{format_bytes(ranked.memory_parts[largest])}; {way_out}"
    )


def _way_out(space: ServingPlanSpace, settings: ServingSettings, now: _Try) -> str:
    """The changes that work, those with the fewest GPUs first; else what was tried, and how near the best of it comes."""
    deadline = time.monotonic() + _ALL_S
    changes = _changes(space, settings)
    nearest: dict[str, list[_Try]] = {change.words: [] for change in changes}
    nearest[""].append(now)
    working: list[_Try] = []
    gpus, most, words = settings.max_workers, settings.max_workers, {}
    for _ in range(_DOUBLINGS + 1):
        for change in changes:
            is_asked = not change.words and gpus == settings.max_workers
            if is_asked or _is_settled(nearest[change.words]) or time.monotonic() > deadline:
                continue
            found = _on(change, gpus)
            words[change.words], most = True, max(most, gpus)
            if found is not None:
                nearest[change.words].append(found)
                working += [found] if found.works else []
        gpus *= 2
        larger = space.cluster.max_devices
        if len(working) >= _MOST_WAYS or (larger is not None and gpus > larger):
            break
    if working:
        return "; or ".join(f"{f.words} it works: {serving_plan_in_words(f.plan)}" for f in working[:_MOST_WAYS])
    listed = [f"up to --gpus {most}"] * (most > settings.max_workers) + [word for word in words if word]
    what = f" ({', '.join(listed)})" if listed else ""
    said = f"nothing that was tried{what} {'does' if now.fits else 'fits'}"
    if not now.fits:
        return f"{said}; use a device with more memory"
    # The first of equals: the fewest changes.
    best = min(
        (found for several in nearest.values() for found in several if found.fits), key=lambda found: found.excess
    )
    return f"{said}; {_reachable(space, best)}"


def _is_settled(found: list[_Try]) -> bool:
    """Whether more GPUs are not worth trying: it works, or the last doublings brought nothing nearer."""
    if found and found[-1].works:
        return True
    last = found[-1 - _PATIENCE :]
    return len(last) > _PATIENCE and last[-1].excess >= last[0].excess * _NEARER


def _reachable(space: ServingPlanSpace, best: _Try) -> str:
    """How near the limits the best plan comes, and with what."""
    ranked = best.space.rank([best.plan])[0]
    times = " and ".join(f"{_LIMITS[name]} {format_seconds(ranked[name])}" for name in space.limits)
    how = f"{best.words} ({serving_plan_in_words(best.plan)})" if best.words else "with the plan above"
    return f"the nearest that was reached is {times}, {how}; allow that much, or use a faster device"


def _changes(space: ServingPlanSpace, settings: ServingSettings) -> list[_Change]:
    """Changes of the question besides more GPUs: none, options left out, and narrower formats where the device knows them."""
    changes = [_Change(words="", space=space, settings=settings)]
    for field in settings.degrees:
        fewer = {name: bounds for name, bounds in settings.degrees.items() if name != field}
        freer = dataclasses.replace(settings, degrees=fewer)
        changes.append(_Change(words=f"without {flag_of(field)}", space=space, settings=freer))
    request, formats = space.resolved.request, {}
    if space.resolved.setting.precision != "fp8":
        formats["with --precision fp8"] = dataclasses.replace(request, precision="fp8")
    if space.kv_precision != "fp8":
        formats["with --kv-precision fp8"] = dataclasses.replace(request, kv="fp8")
    for words, changed in formats.items():
        try:
            narrower = serving_space(resolve(changed))
        except PlannerError:  # the device does not know the format
            continue
        less = dataclasses.replace(settings, capacity_bytes=narrower.capacity_bytes)
        changes.append(_Change(words=words, space=narrower, settings=less))
    return changes


def _on(change: _Change, gpus: int) -> _Try | None:
    """The best that a changed question comes to on so many GPUs."""
    outcome = search_serving(
        change.space.model, dataclasses.replace(change.settings, max_workers=gpus, top=1, wall_s=_WALL_S)
    )
    miss = outcome.nearest_miss
    more = f"--gpus {gpus}" if gpus > change.space.resolved.request.gpus else ""
    joined = " and " if change.words.startswith("with --") and more else ", " if change.words else ""
    words = f"{change.words}{joined if more else ''}{'' if joined == ' and ' or not more else 'with '}{more}"
    if outcome.candidates:
        return _tried(words, change.space, outcome.candidates[0].plan, works=True, fits=True)
    return None if miss is None else _tried(words, change.space, miss.plan, works=False, fits=miss.fits)


def _tried(words: str, space: ServingPlanSpace, plan: ServingPlan, *, works: bool, fits: bool) -> _Try:
    ranked = space.rank([plan])[0]
    over = [ranked[name] / limit for name, limit in space.limits.items()] if fits else []
    excess = max(over, default=ranked.memory_bytes_per_gpu)
    return _Try(words=words, space=space, plan=plan, works=works, fits=fits, excess=excess)

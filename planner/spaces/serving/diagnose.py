"""Why no plan that serves a network fits or keeps the limits, and what would make one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from costmodel.network.graph import once
from costmodel.serving.plan import POOL_SETTINGS, SERVING_RULES
from planner.core.answer import RankedPlan
from planner.core.errors import PlannerError
from planner.core.numbers import duration_text, percent, significant
from planner.question.fixed import flag_of
from planner.question.resolve import resolve
from planner.spaces.diagnose import (
    Attempt,
    Change,
    Diagnosis,
    miss_text,
    reason_of_rules,
    too_many_gpus,
)
from planner.spaces.serving.space import ServingPlanSpace, gpus_needed, limited, missed_limits, serving_space
from strategies.mesh.settings import MeshRestriction
from strategies.serving.pools import has_pairs, reads_apart, reads_shared, search_both
from strategies.serving.search import ServingMiss, ServingSettings, batches_of, outlines

__all__ = ["DIAGNOSIS"]

_SIZES = (1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096)
# Plans that all searches for a suggestion may score together: some seconds.
_MOST_PLANS = 4_000_000
_ALIKE = 1.05  # misses that differ by less than by this factor are about equal


class ServingDiagnosis(Diagnosis):
    """Why a search over plans that serve a network found nothing."""

    space: ServingPlanSpace
    settings: ServingSettings
    most_suggestions = 2

    def __init__(self, space: ServingPlanSpace) -> None:
        super().__init__(space)
        self.fixed = MeshRestriction(degrees=space.degrees)
        self.scored = 0
        self.known: dict[tuple[str, int], Attempt | None] = {}  # by change and GPUs

    @property
    def plans(self) -> str:
        return f"plan that serves '{self.space.resolved.setting.model}' on up to {self.settings.max_workers} GPUs"

    def is_empty(self, fixed: MeshRestriction) -> bool:
        settings = dataclasses.replace(self.settings, degrees=fixed.degrees)
        outline = outlines(self.space.shape, self.space.model.workload.new_tokens, settings)
        if reads_apart(settings) and has_pairs(self.space.model, settings):
            return False
        if not reads_shared(settings):
            return True
        pairs = zip(outline.pp.tolist(), outline.prefill_batch.tolist(), strict=True)
        return not any(len(batches_of(pp, least, settings)) for pp, least in pairs)

    def reason(self, fixed: MeshRestriction) -> str:
        most = self.settings.max_workers
        least = {field: bounds.least for field, bounds in fixed.degrees.items()}
        left: dict[str, Sequence[int]] = {
            "vpp": (1,),
            "dp": range(1, most + 1),
            "prefill_chunk": (0, *_SIZES),
            "prefill_dp": (0,),
            "draft_tokens": (0,),
        }
        left |= dict.fromkeys(("max_batch", "prefill_batch"), _SIZES)
        problems = too_many_gpus(least, most)
        of_pool = {
            name.removeprefix("prefill_"): bounds for name, bounds in fixed.degrees.items() if name in POOL_SETTINGS
        }
        if of_pool and not problems:
            words = reason_of_rules(
                SERVING_RULES, self.space.shape, MeshRestriction(degrees=of_pool), most, {**left, "prefill_dp": (1,)}
            )
            return f"workers that read prompts: {words}"
        return "; ".join(problems) or reason_of_rules(SERVING_RULES, self.space.shape, fixed, most, left)

    def missed(self, miss: ServingMiss) -> str:
        ranked = self.space.rank([miss.plan])[0]
        if not miss.fits:
            return f"nothing fits: {miss_text(ranked.summary, ranked)}"
        overload = self._overload(ranked)
        if overload:
            return overload
        misses = "; ".join(note.removeprefix("misses the limit: ") for note in missed_limits(self.space.limits, ranked))
        return f"no plan that fits keeps the limits; the nearest ({ranked.summary}) misses: {misses}"

    def _overload(self, ranked: RankedPlan) -> str:
        """Where even the plan that can serve most is busier than it should be."""
        if not self.space.at_rate:
            return ""
        rate, most = ranked["rate_per_s"], ranked["most_requests_per_s"]
        if rate <= self.settings.most_load * most:
            return ""
        needed = gpus_needed(ranked.plan, rate / self.settings.most_load / most)
        share = f", of which {percent(self.settings.most_load)} are planned for (--assume most_load=X)"
        return (
            f"{significant(rate)} requests/s are too many for up to {self.settings.max_workers} GPUs: "
            f"{ranked.summary} can serve {significant(most)}{share}; so many need {needed:,} GPUs with such replicas"
        )

    def nearest(self, miss: ServingMiss) -> Attempt:
        now = self.known["", self.settings.max_workers] = _missed(self.space, miss)
        return now

    def changes(self) -> Sequence[Change]:
        """None but more GPUs, options left out, and narrower formats where the device knows them."""
        changes = [self._change("", self.space, self.settings)]
        for field in self.settings.degrees:
            fewer = {name: bounds for name, bounds in self.settings.degrees.items() if name != field}
            freer = dataclasses.replace(self.settings, degrees=fewer)
            changes.append(self._change(f"without {flag_of(field)}", self.space, freer))
        request, formats = self.space.resolved.request, {}
        if self.space.resolved.setting.precision != "fp8":
            formats["with --precision fp8"] = dataclasses.replace(request, precision="fp8")
        if self.space.kv_precision != "fp8":
            formats["with --kv-precision fp8"] = dataclasses.replace(request, kv="fp8")
        for words, changed in formats.items():
            try:
                narrower = serving_space(resolve(changed))
            except PlannerError:  # the device does not know the format
                continue
            less = dataclasses.replace(self.settings, capacity_bytes=narrower.capacity_bytes)
            changes.append(self._change(words, narrower, less))
        return changes

    def _change(self, words: str, space: ServingPlanSpace, settings: ServingSettings) -> Change:
        def search(gpus: int) -> Attempt | None:
            effort = _MOST_PLANS - self.scored
            outcome = search_both(space.model, dataclasses.replace(settings, max_workers=gpus, top=1, effort=effort))
            self.scored += outcome.searched["enumerated"]
            if outcome.candidates:
                return Attempt(plan=outcome.candidates[0].plan, space=space)
            return None if outcome.nearest_miss is None else _missed(space, outcome.nearest_miss)

        def on(gpus: int) -> Attempt | None:
            return once(self.known, (words, gpus), lambda: search(gpus))

        def look(gpus: int) -> Attempt | None:
            most, fewer = self.counts[-1], self.known.get((words, gpus // 2))
            if not (space.at_rate and space.limits and fewer and fewer.fits and 1.0 < fewer.excess < math.inf):
                return on(gpus)
            # It bears the load. With more replicas nobody waits longer, so that what none keeps on the most GPUs, none keeps on fewer.
            found = on(most)
            return on(gpus) if found is None or found.works else dataclasses.replace(found, gpus=most)

        return Change(words=words, look=look)

    def has_effort(self) -> bool:
        return self.scored < _MOST_PLANS

    def works(self, found: Attempt) -> str:
        return f"it works: {found.space.rank([found.plan])[0].summary}"

    def advice(self, tried: Mapping[str, Sequence[Attempt]], gpus: int) -> str:
        now = tried[""][0]
        listed = [f"up to --gpus {gpus}"] * (gpus > self.settings.max_workers) + [words for words in tried if words]
        what = f" ({', '.join(listed)})" if listed else ""
        said = f"nothing that was tried{what} {'does' if now.fits else 'fits'}"
        if not now.fits:
            return f"{said}; use a device with more memory"
        # The first of equals: the fewest changes; then the fewest GPUs that come about as near.
        fitting = [several for every in tried.values() if (several := [found for found in every if found.fits])]
        nearest = min(fitting, key=lambda several: min(found.excess for found in several))
        least = min(found.excess for found in nearest)
        best = next(found for found in nearest if found.excess <= _ALIKE * least)
        ranked = best.space.rank([best.plan])[0]
        times = " and ".join(f"{limited(name)} {duration_text(ranked[name])}" for name in best.space.limits)
        if (best.space.at_rate and not math.isfinite(ranked["request_s"])) or not times:
            times = f"{significant(ranked['most_requests_per_s'])} requests/s"
        how = f"{best.words} ({ranked.summary})" if best.words else "with the plan above"
        return f"{said}; the nearest that was reached is {times}, {how}; allow that much, or use a faster device"


DIAGNOSIS = ServingDiagnosis


def _missed(space: ServingPlanSpace, miss: ServingMiss) -> Attempt:
    """How far over the limits the nearest plan is, or the memory that it needs."""
    ranked = space.rank([miss.plan])[0]
    over = [ranked[name] / limit for name, limit in space.limits.items()] if miss.fits else []
    excess = max(over, default=ranked.memory_bytes_per_gpu)
    return Attempt(plan=miss.plan, space=space, works=False, excess=excess, fits=miss.fits)

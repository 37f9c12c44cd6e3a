"""Splits of the layers of a plan beyond Megatron's pattern: the per-layer program suggests, the cost model decides.

The program of every kind of module is solved for the device's time, for its host's, and for means of both, with data-parallel exchange
hidden and not. What it suggests is evaluated whole and kind by kind. Its bound, the largest of those with exchange hidden, holds for every
split of a module that fits: no other split makes the passes and the update of the module shorter. What is saved is compared with what the
cost model says of the standard split, whose passes may wait for the device forward and for the host backward: longer than either in sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mesh.communication import Division
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import ModuleKind
from costmodel.mesh.plan import LayerSplit, MeshBatch, MeshPlan
from costmodel.mesh.tensor_parallel import standard_splits
from costmodel.tolerances import EQUAL
from strategies.mesh.block_program import ModulePrices, module_problem, split_module
from strategies.mesh.settings import MeshCandidate, MeshOutcome

# What the program minimises: weight of the device's time against the host's, share of the data-parallel exchange that is waited for.
_AIMS = ((1.0, 0.0), (1.0, 1.0), (0.5, 0.0), (0.0, 0.0))
# Fields that decide what a layer's options cost.
_ROW = ("tp", "sequence_parallel", "cp", "ep", "etp", "micro_batch")
# Plans of a search that are looked at; each takes about 0.1 s.
_MOST_PLANS = 2

Splits = tuple[LayerSplit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCheck:
    """What the per-layer program says about the splits of a plan.

    Attributes
    ----------
    plan : MeshPlan
        With the standard pattern.
    step_time_s : float
        Of that.
    best : MeshPlan or None
        With ``block_splits`` that the cost model finds faster; None: none of the suggestions is.
    best_step_time_s : float
        Of the better of the two.
    best_ratio, bound_ratio : float
        Passes and updates of the modules of a step take this share of what they take by the standard: with the better of the two; with any
        split that fits, at least.
    evaluated : int
        Suggestions that the cost model scored.
    """

    plan: MeshPlan
    step_time_s: float
    best: MeshPlan | None
    best_step_time_s: float
    best_ratio: float
    bound_ratio: float
    evaluated: int

    @property
    def is_confirmed(self) -> bool:
        """Whether the standard pattern stands."""
        return self.best is None


def split_plan(model: MeshModel, plan: MeshPlan, capacity_bytes: float) -> SplitCheck | None:
    """Look for better splits of the layers of a plan.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan
        Its own ``block_splits`` are not looked at.
    capacity_bytes : float
        Memory of a device.

    Returns
    -------
    SplitCheck or None
        None where there is nothing to split: one rank.
    """
    if plan.tp == 1:
        return None
    plan = replace(plan, block_splits=())
    given = model.evaluate_plans([plan])
    step_time_s = float(given.step_time_s[0])
    search = _Search(model, plan, capacity_bytes)
    search.run()
    fits = bool(given.memory_bytes[0] <= capacity_bytes)
    is_better = search.best_s < (step_time_s * (1.0 - EQUAL) if fits else float("inf"))
    return SplitCheck(
        plan=plan,
        step_time_s=step_time_s,
        best=replace(plan, block_splits=search.unusual(search.best)) if is_better else None,
        best_step_time_s=search.best_s if is_better else step_time_s,
        best_ratio=float(search.layers_s(search.best).sum() / search.standard_s.sum()) if is_better else 1.0,
        bound_ratio=search.bound_ratio,
        evaluated=len(search.known),
    )


def split_top(
    model: MeshModel,
    outcome: MeshOutcome,
    capacity_bytes: float,
    refined: Sequence[MeshCandidate] = (),
    most_plans: int = _MOST_PLANS,
) -> tuple[list[MeshCandidate], list[SplitCheck]]:
    """Split the layers of the best plans of a search.

    Parameters
    ----------
    model : MeshModel
    outcome : MeshOutcome
        Of the uniform space.
    capacity_bytes : float
    refined : sequence of MeshCandidate
        Plans with stages of their own: what helps the plan that one comes from is tried with it too.
    most_plans : int
        How many of the best plans with tp > 1 are looked at, of those whose layers are split alike the first.

    Returns
    -------
    candidates : list of MeshCandidate
        Best first; they have ``block_splits`` and are faster than the plans that they come from.
    checks : list of SplitCheck
        Of every plan that was looked at.
    """
    distinct: dict[tuple[object, ...], MeshCandidate] = {}
    for candidate in outcome.candidates:
        if candidate.plan.tp > 1:
            distinct.setdefault(tuple(getattr(candidate.plan, name) for name in _ROW), candidate)
    found, checks = [], []
    for candidate in list(distinct.values())[:most_plans]:
        check = split_plan(model, candidate.plan, capacity_bytes)
        assert check is not None
        checks.append(check)
        if check.best is None:
            continue
        score = (
            candidate.score / candidate.step_time_s
        )  # every objective is proportional to the step at a number of workers
        found.append((check.best, check.best_step_time_s, score))
        row = tuple(getattr(candidate.plan, name) for name in _ROW)
        for other in (*outcome.candidates, *refined):
            if other.plan != candidate.plan and tuple(getattr(other.plan, name) for name in _ROW) == row:
                plan = replace(other.plan, block_splits=check.best.block_splits)
                costs = model.evaluate_plans([plan])
                if costs.memory_bytes[0] <= capacity_bytes and costs.step_time_s[0] < other.step_time_s * (1 - EQUAL):
                    found.append((plan, float(costs.step_time_s[0]), other.score / other.step_time_s))
    candidates = [MeshCandidate(plan=p, score=scale * time, step_time_s=time) for p, time, scale in found]
    return sorted(candidates, key=lambda c: (c.score, c.plan)), checks


class _Search:
    """The suggestions for one plan."""

    def __init__(self, model: MeshModel, plan: MeshPlan, capacity_bytes: float) -> None:
        self.model, self.plan, self.capacity_bytes = model, plan, capacity_bytes
        self.counts = np.bincount(model.modules.kind_of, minlength=len(model.modules.kinds))
        self.known: dict[Splits, float] = {}
        self.best: Splits = ()
        self.best_s = float("inf")
        self.bound_ratio = 1.0
        graph, kinds = model.workload.graph, model.modules.kinds
        self.standard = [standard_splits(graph, kind, plan.tp) for kind in kinds]
        self.prices = ModulePrices.of(model, plan, kinds[0])
        self.programs = [module_problem(replace(self.prices, kind=kind)) for kind in kinds]
        self.rooms = self._rooms()
        self.standard_s = self.layers_s(())

    def _rooms(self) -> list[float]:
        """Kind of module -> memory that one may take: what the first rank has left, if its other modules take as little as they can.

        A split that takes more does not fit; the cost model says whether one that takes less does.
        """
        batch = MeshBatch.from_plans([self.plan])
        layouts, division = self.model.layouts(batch), Division.of(batch)
        first = int(np.argmin(np.abs(layouts.rank_first[0])))
        used = self.model.pipeline_memory(batch, layouts).divided(np.zeros(1, dtype=np.int64), division)
        left = max(self.capacity_bytes - float(used.total_bytes[0, first]), 0.0)
        counts = layouts.rank_modules[0, first].tolist()
        spared = [count * p.spared_bytes() for count, p in zip(counts, self.programs, strict=True)]
        return [
            p.standard_bytes() + (left + sum(spared) - own) / count if count else float("inf")
            for p, count, own in zip(self.programs, counts, spared, strict=True)
        ]

    def layers_s(self, splits: Splits) -> FloatArray:
        """Kind of module -> passes and updates of all its modules over a step, as the cost model has them."""
        passes = self.model.pipelines(MeshBatch.from_plans([replace(self.plan, block_splits=splits)])).passes
        again = 1.0 if self.plan.recompute == "selective" else self.prices.recomputed
        each = (passes.forward_s + passes.backward_s + again * passes.recompute_s)[0]
        updated = np.array([program.updated_s(splits) for program in self.programs])
        return np.asarray(self.counts * (self.prices.passes * each + updated))

    def _cp_and_ep_s(self) -> FloatArray:
        """Kind of module -> what the device of one waits for context and expert parallelism, which the programs leave out."""
        passes = self.model.pipelines(MeshBatch.from_plans([self.plan])).passes
        again = self.model.is_block * (self.prices.recomputed if self.plan.recompute == "full" else 0.0)
        forward, backward = passes.cp_forward_s + passes.ep_forward_s, passes.cp_backward_s + passes.ep_backward_s
        return np.asarray(self.prices.passes * ((1.0 + again) * forward + backward)[0])

    def unusual(self, splits: Splits) -> Splits:
        """Without those that go without saying."""
        usual = {split for some in self.standard for split in some}
        return tuple(split for split in splits if split not in usual)

    def run(self) -> None:
        """Ask the programs, evaluate what they suggest, and then what of it is better left out."""
        bounds: list[float] = []
        suggested: list[list[Splits]] = [[] for _ in _AIMS]
        for program, room, usual, waiting in zip(
            self.programs, self.rooms, self.standard, self._cp_and_ep_s().tolist(), strict=True
        ):
            leasts = []
            for aim, (device, exposed) in enumerate(_AIMS):
                found, least = split_module(program, device, exposed=exposed, capacity_bytes=room)
                own = found[0].splits if found else usual
                suggested[aim].append(() if own == usual else own)
                if not exposed:
                    leasts.append(least + device * waiting)
            bounds.append(max(leasts))  # the longer of device and host is waited for
        self.bound_ratio = min(float(self.counts @ bounds / self.standard_s.sum()), 1.0)
        self._evaluate([_joined(parts) for parts in suggested])
        self._evaluate([part for parts in suggested for part in parts])
        self._improve(suggested)

    def _improve(self, suggested: Sequence[Sequence[Splits]]) -> None:
        """Exchange the splits of one kind after another in the best, while that helps."""
        if not self.best:
            return
        for number, kind in enumerate(self.model.modules.kinds):
            names = _names(self.model, kind)
            rest = tuple(split for split in self.best if split.layer not in names)
            self._evaluate([_joined([rest, part]) for part in {parts[number] for parts in suggested} | {()}])

    def _evaluate(self, patterns: Sequence[Splits]) -> None:
        new = [p for p in dict.fromkeys(patterns) if p and p not in self.known]
        if not new:
            return
        costs = self.model.evaluate_plans([replace(self.plan, block_splits=pattern) for pattern in new])
        times = np.where(costs.memory_bytes <= self.capacity_bytes, costs.step_time_s, np.inf)
        self.known |= dict(zip(new, times.tolist(), strict=True))
        n = int(np.argmin(times))
        if times[n] < self.best_s:
            self.best, self.best_s = new[n], float(times[n])


def _names(model: MeshModel, kind: ModuleKind) -> set[str]:
    return {model.workload.graph.layers[i].name for i in kind.layers}


def _joined(parts: Sequence[Splits]) -> Splits:
    """Splits of several kinds of modules, in one order."""
    return tuple(sorted(split for part in parts for split in part))

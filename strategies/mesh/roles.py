"""Plans for other wishes than the best score: little memory, few GPUs, what somebody published. Each is found by a search of its own.

People look among powers of two, so these searches do; what the search for the best plan found counts, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from costmodel.mesh.framework_rules import Values
from costmodel.mesh.model import MeshModel
from strategies.limits import SPEED_KEPT, Clock
from strategies.mesh.framework_rules import within
from strategies.mesh.search import search_part
from strategies.mesh.settings import Bounds, MeshCandidate, MeshRestriction, MeshSettings

__all__ = [
    "DATA_PARALLEL",
    "HEADROOM_WITHIN",
    "MEMORY_STEPS",
    "as_published",
    "fewest_gpus",
    "first_of",
    "most_headroom",
]

# The plan of least memory may score so much more than the best.
HEADROOM_WITHIN = 0.05
# Memory is looked at in so many steps: what is less than one apart is the same to people.
MEMORY_STEPS = 16
_ONE = Bounds(values=(1,))
# Plain data parallelism, ZeRO included.
DATA_PARALLEL = MeshRestriction(degrees=dict.fromkeys(("tp", "cp", "ep", "etp", "pp", "vpp"), _ONE))
_ON_DEVICE: Mapping[str, Values] = {"offload_optimizer": False, "offload_activations": False}


def first_of(model: MeshModel, settings: MeshSettings, clock: Clock) -> MeshCandidate | None:
    """The best plan within some limits that is found before the clock is over; None where there is none."""
    asked = replace(settings, top=1, distinct=None, wall_s=clock.left_s)
    found = search_part(model, asked).candidates
    return found[0] if found else None


def most_headroom(
    model: MeshModel, settings: MeshSettings, known: Sequence[MeshCandidate], best_score: float, clock: Clock
) -> MeshCandidate | None:
    """The plan of least memory among those that are nearly as good as the best (`HEADROOM_WITHIN`), to a sixteenth of the capacity.

    Parameters
    ----------
    model : MeshModel
    settings : MeshSettings
        Limits that it keeps.
    known : sequence of MeshCandidate
        Plans that keep them.
    best_score : float
    clock : Clock
    """
    cutoff = best_score * (1.0 + HEADROOM_WITHIN)
    near = [candidate for candidate in known if candidate.score <= cutoff]
    if not near:
        return None
    memory = model.evaluate_plans([candidate.plan for candidate in near]).memory_bytes
    chosen, needed = near[int(np.argmin(memory))], float(np.min(memory))
    step = settings.capacity_bytes / MEMORY_STEPS
    asked = replace(settings, restriction=settings.restriction.powers_of_two(any_vpp=True), cutoff=cutoff)
    # One step less first, since mostly there is nothing.
    most = math.ceil(needed / step) - 1
    least, level = 0, most
    while least < level:
        found = first_of(model, replace(asked, capacity_bytes=level * step), clock)
        if found is None:
            least = level
        else:
            chosen, most = found, math.ceil(float(model.evaluate_plans([found.plan]).memory_bytes[0]) / step) - 1
        level = (least + most + 1) // 2
    return chosen


def fewest_gpus(
    model: MeshModel, settings: MeshSettings, known: Sequence[MeshCandidate], best_score: float, clock: Clock
) -> MeshCandidate | None:
    """The plan on the fewest GPUs, whole nodes of them, that is nearly as fast as the best (`SPEED_KEPT`).

    Parameters are those of `most_headroom`; the score is a time.
    """
    cutoff, node = best_score / SPEED_KEPT, model.cluster.devices_of_node
    near = [c for c in known if c.score <= cutoff and (c.plan.workers < node or c.plan.workers % node == 0)]
    chosen = min(near, key=lambda c: (c.plan.workers, c.score), default=None)
    counts = [n for n in range(1, settings.max_workers + 1) if n < node or n % node == 0]
    asked = replace(settings, restriction=settings.restriction.powers_of_two(any_vpp=True), cutoff=cutoff)
    # Every count up to the first is out; one up to the second has a plan.
    low, high = 0, len(counts) if chosen is None else counts.index(chosen.plan.workers)
    while low < high:
        middle = (low + high) // 2
        found = first_of(model, replace(asked, worker_counts=tuple(counts[low : middle + 1])), clock)
        if found is None:
            low = middle + 1
        else:
            chosen, high = found, counts.index(found.plan.workers)
    return chosen


def as_published(
    model: MeshModel, settings: MeshSettings, published: Mapping[str, Values], clock: Clock
) -> MeshCandidate | None:
    """The best plan with settings that somebody published, on any number of GPUs; None where none is legal and fits."""
    part = MeshRestriction()
    for name, wanted in {**_ON_DEVICE, **published}.items():
        narrower = within(part, name, wanted)
        if narrower is None:
            return None
        part = narrower
    return first_of(model, replace(settings, restriction=part), clock)

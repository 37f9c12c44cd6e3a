"""Plans for other wishes than the best score: little memory, few GPUs, what somebody published. Each is found by a search of its own.

People look among powers of two, so these searches do; what the search for the best plan found counts, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from costmodel.mesh.framework_rules import Values
from costmodel.mesh.model import MeshModel
from costmodel.tolerances import EQUAL
from strategies.limits import SPEED_KEPT, Clock
from strategies.mesh.framework_rules import within
from strategies.mesh.search import search_part
from strategies.mesh.settings import POWERS, Bounds, MeshCandidate, MeshOutcome, MeshRestriction, MeshSettings

# The plan of least memory may score so much more than the best.
HEADROOM_WITHIN = 0.05
# This share of the memory of a GPU is next to nothing: memory is looked at in such steps.
HARDLY_MORE = 1 / 16
_ONE = Bounds(values=(1,))
# Plain data parallelism, ZeRO included.
DATA_PARALLEL = MeshRestriction(degrees=dict.fromkeys(("tp", "cp", "ep", "etp", "pp", "vpp"), _ONE))
_ON_DEVICE: Mapping[str, Values] = {"offload_optimizer": False, "offload_activations": False}


def first_of(model: MeshModel, settings: MeshSettings, clock: Clock) -> MeshCandidate | None:
    """The best plan within some limits that is found before the clock is over; None where there is none."""
    found = _first(model, settings, clock).candidates
    return found[0] if found else None


def _first(model: MeshModel, settings: MeshSettings, clock: Clock) -> MeshOutcome:
    return search_part(model, replace(settings, top=1, distinct=None, wall_s=clock.left_s))


def _memory_bytes(model: MeshModel, candidate: MeshCandidate) -> float:
    return float(model.evaluate_plans([candidate.plan]).memory_bytes[0])


def most_headroom(
    model: MeshModel,
    settings: MeshSettings,
    known: Sequence[MeshCandidate],
    best_score: float,
    most_bytes: float,
    clock: Clock,
) -> MeshCandidate | None:
    """The best plan that needs hardly more memory than the least of those nearly as good as the best (`HEADROOM_WITHIN`).

    No speed is given for next to no memory: the least is found to a step (`HARDLY_MORE`), and the plan needs up to half a step more.

    Parameters
    ----------
    model : MeshModel
    settings : MeshSettings
        Limits that it keeps.
    known : sequence of MeshCandidate
        Plans that keep them.
    best_score : float
    most_bytes : float
        Plans that need more are of no interest.
    clock : Clock

    Returns
    -------
    MeshCandidate or None
        None where no plan that needs so little is nearly as good.
    """
    cutoff = best_score * (1.0 + HEADROOM_WITHIN)
    asked = replace(settings, restriction=settings.restriction.powers_of_two(any_vpp=True), cutoff=cutoff)
    near = [(candidate, _memory_bytes(model, candidate)) for candidate in known if candidate.score <= cutoff]
    best_within: list[tuple[float, MeshCandidate, float]] = []  # limit, the best plan that keeps it, its memory

    def look(limit_bytes: float) -> MeshCandidate | None:
        for limit, candidate, memory in best_within:
            if memory <= limit_bytes <= limit:
                return candidate
        fitting = tuple(candidate.plan for candidate, memory in near if memory <= limit_bytes)
        found = first_of(model, replace(asked, capacity_bytes=limit_bytes, known=fitting), clock)
        if found is not None:
            near.append((found, _memory_bytes(model, found)))
            best_within.append((limit_bytes, *near[-1]))
        return found

    if all(memory > most_bytes for _, memory in near) and look(most_bytes) is None:
        return None
    step = settings.capacity_bytes * HARDLY_MORE
    least, needed, found = 0.0, min(memory for _, memory in near), 0
    while needed - least > step * (1 + EQUAL):
        # Far less than is known is seldom enough, and takes long to rule out.
        reach = max(found, 1) * step
        level = needed - reach if least == 0.0 and reach < needed else (least + needed) / 2
        if look(level) is None:
            least = level
        else:
            needed, found = min(memory for _, memory in near), found + 1
    return look(min(needed + step / 2, most_bytes))


def fewest_gpus(
    model: MeshModel, settings: MeshSettings, known: Sequence[MeshCandidate], best_score: float, clock: Clock
) -> MeshCandidate | None:
    """The plan on the fewest GPUs, whole nodes of them, that is nearly as fast as the best (`SPEED_KEPT`).

    Parameters are those of `most_headroom`, but for its most memory; the score is a time.
    """
    cutoff, node = best_score / SPEED_KEPT, model.cluster.devices_of_node
    near = [c for c in known if c.score <= cutoff and (c.plan.workers < node or c.plan.workers % node == 0)]
    chosen = min(near, key=lambda c: (c.plan.workers, c.score), default=None)
    counts = [n for n in range(1, settings.max_workers + 1) if n < node or n % node == 0]
    asked = replace(settings, restriction=settings.restriction.powers_of_two(any_vpp=True), cutoff=cutoff)
    # Every count up to the first is out; one up to the second has a plan.
    low, high = 0, len(counts) if chosen is None else counts.index(chosen.plan.workers)
    last = high - 1  # mostly there is none
    while low < high:
        found = first_of(model, replace(asked, worker_counts=tuple(counts[low : last + 1])), clock)
        if found is None:
            low = last + 1
        else:
            chosen, high = found, counts.index(found.plan.workers)
        last = (low + high) // 2
    return chosen


def has_usual_stages(model: MeshModel, pp: int) -> bool:
    """Whether a number of stages is one that people run: it divides the blocks, or is a power of two."""
    return model.num_blocks % pp == 0 or pp in POWERS


def usual_stages(
    model: MeshModel, settings: MeshSettings, known: Sequence[MeshCandidate], clock: Clock
) -> MeshCandidate | None:
    """The best plan with a usual number of stages (`has_usual_stages`); None where none fits, or the user asks for another number.

    Parameters are those of `most_headroom`.
    """
    asked = settings.restriction.degrees.get("pp", Bounds())
    stages = tuple(pp for pp in range(1, model.num_blocks + 1) if asked.allows(pp) and has_usual_stages(model, pp))
    if not stages:
        return None
    corner = settings.restriction.powers_of_two(any_vpp=True)
    corner = replace(corner, degrees={**corner.degrees, "pp": Bounds(values=stages)})
    found = first_of(model, replace(settings, restriction=corner), clock)
    near = [candidate for candidate in known if has_usual_stages(model, candidate.plan.pp)]
    return min([*near, *([found] if found else [])], key=lambda candidate: candidate.score, default=None)


def as_published(
    model: MeshModel, settings: MeshSettings, published: Mapping[str, Values], clock: Clock
) -> MeshOutcome:
    """The best plan with settings that somebody published, on any number of GPUs.

    Where the outcome has none, none is legal and fits, unless the search was stopped (`out_of_time`, `interrupted`).
    """
    part = MeshRestriction()
    for name, wanted in {**_ON_DEVICE, **published}.items():
        narrower = within(part, name, wanted)
        if narrower is None:
            return MeshOutcome()
        part = narrower
    return _first(model, replace(settings, restriction=part), clock)

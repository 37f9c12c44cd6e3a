"""The plans that a framework runs, as restrictions of the search: boxes that do not overlap and hold every plan that breaks no rule.

A rule refuses plans with some values of some settings. What is left of a box are boxes again: those with another value of the first
setting; those with the first value refused and another value of the second; and so on. So each box is searched as any restricted space is:
its bounds hold, and its plans are counted exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.plan import divisors
from costmodel.mesh.framework_rules import (
    DERIVED,
    FACTS,
    FLAGS,
    NAMES,
    Facts,
    Refusal,
    Span,
    Values,
    broken,
    by_facts,
    outside,
)
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshPlan
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings


def allowed_parts(
    model: MeshModel, settings: MeshSettings, refusals: Sequence[Refusal] | None = None
) -> list[MeshSettings]:
    """Settings of the parts of a space that the framework of a question can run; the same where nothing is known of it.

    Parameters
    ----------
    model : MeshModel
        Its workload names the framework.
    settings : MeshSettings
    refusals : sequence of Refusal, optional
        Rules that count; all of the framework unless stated.
    """
    known = model.workload.framework.rules.of() if refusals is None else refusals
    if not known or not settings.obeys_framework:
        return [settings]
    facts = model.facts
    refusals = by_facts(known, facts)
    counts = node_counts(model.cluster, settings, refusals)
    named = replace(
        settings.restriction,
        names={"schedule": model.workload.framework.rules.schedules, **settings.restriction.names},
    )
    return [replace(settings, restriction=box, worker_counts=counts) for box in boxes(named, refusals, facts)]


def node_counts(cluster: Cluster, settings: MeshSettings, refusals: Sequence[Refusal]) -> tuple[int, ...] | None:
    """Numbers of workers, where a framework starts equally many on all nodes."""
    known, size = settings.worker_counts, cluster.devices_of_node
    if not any("part_nodes" in refusal.when for refusal in refusals) or settings.max_workers <= size:
        return known
    if known is not None:
        return tuple(n for n in known if n <= size or n % size == 0)
    return (*range(1, size), *range(size, settings.max_workers + 1, size))


def boxes(restriction: MeshRestriction, refusals: Sequence[Refusal], facts: Facts) -> list[MeshRestriction]:
    """What is left of a restriction where some combinations are refused.

    Parameters
    ----------
    restriction : MeshRestriction
    refusals : sequence of Refusal
        Whose conditions on facts are met.
    facts : Facts

    Examples
    --------
    >>> refusal = Refusal(when={"pp": Span(2), "zero_stage": Span(2, 3)}, why="", source="")
    >>> [{name: (b.low, b.high) for name, b in box.degrees.items()} for box in boxes(MeshRestriction(), [refusal], Facts(values={}))]
    [{'pp': (1, 1)}, {'pp': (2, None), 'zero_stage': (0, 1)}]
    """
    found = [_without_derived(restriction, refusals, facts)]
    plain = [
        {name: wanted for name, wanted in refusal.when.items() if name not in FACTS}
        for refusal in refusals
        if not DERIVED.keys() & refusal.when.keys()
        and (facts.values.get("experts", True) or not {"ep", "etp"} & refusal.when.keys())
    ]
    # Rules about one setting narrow the box; the others cut what is left of it.
    for conditions in sorted(plain, key=len):
        found = [part for box in found for part in _minus(box, conditions)]
    return found


def _without_derived(restriction: MeshRestriction, refusals: Sequence[Refusal], facts: Facts) -> MeshRestriction:
    """A restriction that obeys the rules whose conditions follow from several settings, but for those that stages and nodes obey."""
    conditions = {name for refusal in refusals for name in refusal.when.keys() & DERIVED.keys()}
    degrees = dict(restriction.degrees)
    if "odd_pieces" in conditions and facts.positions:
        known = restriction.degrees.get("cp", Bounds())
        allowed = [cp for cp in divisors(facts.positions) if facts.positions % (2 * cp) == 0 or cp == 1]
        degrees["cp"] = Bounds(values=tuple(cp for cp in allowed if known.allows(cp)) or (0,))
    if "repeated_kv_heads" in conditions and facts.kv_heads:
        known = restriction.degrees.get("tp", Bounds())
        allowed = [tp for tp in divisors(min(facts.kv_heads)) if not any(heads % tp for heads in facts.kv_heads)]
        degrees["tp"] = Bounds(values=tuple(tp for tp in allowed if known.allows(tp)) or (0,))
    names = restriction.names
    if "partial_recompute" in conditions and "recompute_blocks" in restriction.degrees:
        kept = tuple(name for name in names.get("recompute", RECOMPUTE) if name != "full")
        names = {**names, "recompute": kept}
    whole = restriction.recomputes_whole_stages or "partial_recompute" in conditions
    return replace(restriction, degrees=degrees, names=names, whole_stages=whole)


def _minus(box: MeshRestriction, conditions: Mapping[str, Values]) -> Iterator[MeshRestriction]:
    """A box without the plans that meet all conditions."""
    inside: MeshRestriction | None = box
    for name, wanted in conditions.items():
        assert inside is not None
        inside = within(inside, name, wanted)
        if inside is None:
            yield box
            return
    inside = box
    for name, wanted in conditions.items():
        for other in _outside(name, wanted):
            part = within(inside, name, other)
            if part is not None:
                yield part
        inside = within(inside, name, wanted)
        assert inside is not None


def _outside(name: str, wanted: Values) -> Iterator[Values]:
    """The other values, together where one condition can say so."""
    others = outside(name, wanted)
    if name in NAMES:
        if others:
            yield tuple(str(value) for value in others)
        return
    for value in others:
        assert not isinstance(value, str)
        yield value


def within(box: MeshRestriction, name: str, wanted: Values) -> MeshRestriction | None:
    """The part of a restriction with some values of a setting; None where there is none."""
    if isinstance(wanted, bool):
        assert name in FLAGS
        return replace(box, flags={**box.flags, name: wanted}) if box.flags.get(name, wanted) == wanted else None
    if isinstance(wanted, Span):
        known = box.degrees.get(name, Bounds())
        if known.values:
            values = tuple(value for value in known.values if value in wanted)
            return replace(box, degrees={**box.degrees, name: Bounds(values=values)}) if values else None
        low, high = max(known.least, wanted.low), min(known.most, wanted.high)
        if low > high:
            return None
        bounds = Bounds(low=low, high=None if high == float("inf") else int(high))
        return replace(box, degrees={**box.degrees, name: bounds})
    names = tuple(value for value in box.names.get(name, NAMES[name]) if value in wanted)
    return replace(box, names={**box.names, name: names}) if names else None


def is_legal(model: MeshModel, settings: MeshSettings, plan: MeshPlan, *, unequal: bool = False) -> bool:
    """Whether the framework runs a plan; ``unequal``: whether it must run it with any numbers of recomputed blocks per stage."""
    if not settings.obeys_framework:
        return True
    refusals = by_facts(model.workload.framework.rules.of(), model.facts)
    if unequal and any({"partial_recompute", "unequal_recompute"} & refusal.when.keys() for refusal in refusals):
        return False
    return not broken(refusals, model.plan_facts(plan))


def may(model: MeshModel, settings: MeshSettings, condition: str) -> bool:
    """Whether the framework leaves a condition open, such as "own_stages": stages cut in another way than it cuts them by itself."""
    refusals = by_facts(model.workload.framework.rules.of(), model.facts)
    return not settings.obeys_framework or not any(condition in refusal.when for refusal in refusals)

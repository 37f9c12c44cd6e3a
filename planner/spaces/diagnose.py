"""Why a search found nothing: options that exclude each other, the plan that comes closest, and what would make one fit.

A space says what is special about it in a subclass of `Diagnosis` (`planner/spaces/*/diagnose.py`). Every advice was tried. Searches for
it are limited by counts of work, so that the same question has the same answer on any machine.
"""

from __future__ import annotations

import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.arrays import IntArray
from costmodel.layerwise.plan import divisors
from costmodel.mesh.plan import CP_KINDS, RECOMPUTE, SCHEDULES
from costmodel.mesh.rules import NetworkShape, Rule
from planner.core.answer import RankedPlan
from planner.core.errors import NoFeasiblePlan, UsageError
from planner.core.numbers import byte_text
from planner.question.fixed import (
    data_fields,
    fixed_by,
    flag_of,
    flags_of,
    given_text,
    multiplied,
    near_multiples,
    only,
)
from planner.question.resolve import Resolved
from strategies.mesh.settings import Bounds, MeshRestriction

_DOUBLINGS = 8
# Doublings that bring nothing nearer, by more than this, after which more are not tried.
_PATIENCE = 2
_NEARER = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one change of the question comes to.

    Attributes
    ----------
    plan : object
        The best plan, or where none will do the nearest.
    space : PlanSpace
        Of the changed question.
    words : str
        The change: "without --tp, with --gpus 16".
    works : bool
    excess : float
        How far the nearest is off, to see whether more GPUs bring it nearer; of those that work at as many GPUs, the least comes first.
    fits : bool
        Whether it fits into memory.
    gpus : int
        The most that there are, if it was tried on so many; else 0.
    """

    plan: Any
    space: Any
    words: str = ""
    works: bool = True
    excess: float = 0.0
    fits: bool = True
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of the question in one thing besides the GPUs.

    Attributes
    ----------
    words : str
        "with --precision fp8", "without --tp"; empty: nothing is changed.
    look : function of a number of GPUs to Attempt
        Searches under the change; None where that finds nothing to speak of.
    grows : bool
        Whether it is tried on more GPUs, too.
    """

    words: str
    look: Callable[[int], Attempt | None]
    grows: bool = True

    def on(self, gpus: int, asked: int) -> Attempt | None:
        """Try it on so many GPUs, and say what was changed."""
        found = self.look(gpus)
        if found is None or gpus == asked:
            return found if found is None else replace(found, words=self.words)
        joint = " and " if self.words.startswith("with --") else ", with " if self.words else "with "
        return replace(found, words=f"{self.words}{joint}--gpus {found.gpus or gpus}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Options that exclude all plans together.

    Attributes
    ----------
    flags : tuple of str
        None of them can be left out; empty where the framework alone excludes all plans.
    text : str
        The options and what they break.
    conclusion : str
        That there is no such plan.
    """

    flags: tuple[str, ...]
    text: str
    conclusion: str


class Diagnosis(ABC):
    """Why a search of one space found nothing.

    Parameters
    ----------
    space : PlanSpace
    settings : object, optional
        Of the search, where they are not those that the question asks for.

    Attributes
    ----------
    fixed : MeshRestriction
        What options fix of a plan.
    most_suggestions : int
        Changes that are named, of those that work.
    """

    most_suggestions = 1

    def __init__(self, space: Any, settings: Any = None) -> None:
        self.space: Any = space
        self.settings: Any = settings or space.settings()
        self.fixed = fixed_by(space.resolved.request)

    # -- what a space says of itself

    @abstractmethod
    def is_empty(self, fixed: MeshRestriction) -> bool:
        """Whether no legal plan obeys what is fixed."""

    @abstractmethod
    def reason(self, fixed: MeshRestriction) -> str:
        """Why not."""

    @property
    @abstractmethod
    def plans(self) -> str:
        """The plans that are meant: "plan of 'vgg16' on up to 8 GPUs"."""

    @abstractmethod
    def missed(self, miss: Any) -> str:
        """Say that nothing fits, and what comes closest; ``miss``: the nearest of the search, or None."""

    @abstractmethod
    def changes(self) -> Sequence[Change]:
        """Changes of the question that may help, in the order in which they are preferred."""

    @abstractmethod
    def works(self, found: Attempt) -> str:
        """Name a plan that a change leads to: "it fits: tp 8"."""

    @abstractmethod
    def advice(self, tried: Mapping[str, Sequence[Attempt]], gpus: int) -> str:
        """What to do where no change helps; ``tried``: the nearest by change, ``gpus``: the most that were tried."""

    def nearest(self, miss: Any) -> Attempt | None:
        """How near the question comes as it is; None where a search does not tell that of a changed one."""
        return None

    # -- what is said

    def refuse_contradiction(self) -> None:
        """Raise `UsageError` with the fewest options that exclude all plans, and what they break."""
        found = self.contradiction(self.fixed)
        if found is not None:
            raise UsageError(f"{found.text}; {found.conclusion}")

    def contradictions(self) -> Iterator[str]:
        """What the options break whatever the rest of the plan is: the fewest that exclude all plans, then the same without them."""
        left = self.fixed
        while (found := self.contradiction(left)) is not None:
            yield found.text
            if not found.flags:  # the rules of the framework alone
                return
            left = only(left, frozenset(flags_of(left).values()) - set(found.flags))

    def contradiction(self, fixed: MeshRestriction) -> Contradiction | None:
        """The fewest options that exclude all plans; None where a plan obeys all of them."""
        if fixed.is_free or not self.is_empty(fixed):
            return None
        kept = self.fewest(fixed)
        given = " ".join(given_text(fixed, flag) for flag in kept)
        several = len(kept) > 1
        return Contradiction(
            flags=tuple(kept),
            text=f"{given}{' exclude each other' if several else ''}: {self.reason(only(fixed, frozenset(kept)))}",
            conclusion=f"no legal {self.plans} has {'them' if several else 'it'}",
        )

    def fewest(self, fixed: MeshRestriction) -> list[str]:
        """The fewest of the options that exclude all plans together."""
        flags = list(dict.fromkeys(flags_of(fixed).values()))
        return smallest_set(flags, lambda chosen: self.is_empty(only(fixed, chosen)))

    def nothing_fits(self, miss: Any) -> Exception:
        """Say why a search that looked at everything found no plan."""
        try:
            self.refuse_contradiction()
        except UsageError as error:
            return error
        return NoFeasiblePlan(f"{self.missed(miss)}; {self.suggestion(miss)}")

    def suggestion(self, miss: Any) -> str:
        """The changes that work, those with the fewest GPUs first; else what to do."""
        asked, *_ = counts = self.counts
        changes, now = self.changes(), self.nearest(miss)
        tried: dict[str, list[Attempt]] = {"": [] if now is None else [now]}
        working: list[Attempt] = []
        most = asked
        for gpus in counts:
            round_: list[Attempt] = []
            for change in changes:
                known, is_more = tried.get(change.words, []), gpus > asked
                was_asked = not change.words and not is_more
                if was_asked or (is_more and not change.grows) or _is_settled(known) or not self.has_effort():
                    continue
                found = change.on(gpus, asked)
                most = max(most, gpus, found.gpus if found else 0)
                tried[change.words] = known if found is None else [*known, found]
                round_ += [found] if found is not None and found.works else []
            working += sorted(round_, key=lambda attempt: attempt.excess)
            if len(working) >= self.most_suggestions:
                break
        if working:
            return "; or ".join(f"{found.words} {self.works(found)}" for found in working[: self.most_suggestions])
        return self.advice(tried, most)

    @property
    def counts(self) -> list[int]:
        """GPUs that are tried: as many as were asked for, then twice as many again and again, as far as the cluster has them."""
        asked, larger = self.space.resolved.request.gpus, self.space.resolved.cluster.max_devices
        doubled = [asked << doubling for doubling in range(1, _DOUBLINGS + 1)]
        return [asked, *(gpus for gpus in doubled if larger is None or gpus <= larger)]

    def has_effort(self) -> bool:
        """Whether more may be tried."""
        return True


def _is_settled(found: Sequence[Attempt]) -> bool:
    """Whether more GPUs are not worth trying: it works or does not on the most, or the last doublings brought nothing nearer."""
    if found and (found[-1].works or found[-1].gpus):
        return True
    last = found[-1 - _PATIENCE :]
    return len(last) > _PATIENCE and last[-1].excess >= last[0].excess * _NEARER


def miss_text(plan: str, ranked: RankedPlan, *, of: str = "", need: str = "") -> str:
    """The memory that a plan needs and there is not, and the largest part of it.

    Parameters
    ----------
    plan : str
        In words.
    ranked : RankedPlan
    of, need : str
        What stands behind "per GPU", and behind the figure.
    """
    label, size = ranked.largest_memory_part
    return (
        f"the nearest miss ({plan}) needs {byte_text(ranked.memory_bytes_per_gpu)} per GPU{of}{need} and there are "
        f"{room_text(ranked)}; the largest part is {label} with {byte_text(size)}"
    )


def room_text(ranked: RankedPlan) -> str:
    """The memory that a plan may need, and what its device has where that is more."""
    room, there = byte_text(ranked.memory_capacity_bytes), byte_text(ranked.memory_there_bytes)
    if room == there:
        return room
    return f"{room} of {there} to plan with"


def smallest_set(flags: Sequence[str], is_empty: Callable[[frozenset[str]], bool]) -> list[str]:
    """Options of which none can be left out if nothing is to be legal.

    Parameters
    ----------
    flags : sequence of str
        Together they exclude everything.
    is_empty : function of a set of options to bool
        Whether these alone exclude everything.

    Examples
    --------
    >>> smallest_set(["--tp", "--pp", "--vpp"], lambda chosen: {"--pp", "--vpp"} <= chosen)
    ['--pp', '--vpp']
    """
    kept = list(flags)
    for flag in flags:
        rest = [other for other in kept if other != flag]
        if is_empty(frozenset(rest)):
            kept = rest
    return kept


# -- by the rules of a space -----------------------------------------------------------------------------------------------

# Values of a bounded degree that are tried to say why none of them works, and sentences that say it.
_MOST_VALUES = 1024
_MOST_MESSAGES = 4
# Combinations of values that are tried to find the rule behind a contradiction.
_MOST_ROWS = 1 << 16
_FEW_ROWS = 1 << 12  # of several rules, of which there are many
_CATEGORIES = {"schedule": SCHEDULES, "cp_kind": CP_KINDS, "recompute": RECOMPUTE}
# Values that a field takes where nobody fixed it; enough to see whether a rule leaves any.
_USUAL = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 96, 128, 256, 512, 1024)


def reason_of_rules(
    rules: Sequence[Rule],
    shape: NetworkShape,
    fixed: MeshRestriction,
    most_workers: int,
    left: Mapping[str, Sequence[int]],
) -> str:
    """Which rules leave no value to fields that nobody fixed.

    Parameters
    ----------
    rules : sequence of Rule
    shape : NetworkShape
    fixed : MeshRestriction
    most_workers : int
    left : mapping
        Field that nobody fixed -> values that the fixed ones leave it.
    """
    allowed: dict[str, Sequence[int]] = {field: _allowed_values(bounds) for field, bounds in fixed.degrees.items()}
    allowed |= {
        field: [_CATEGORIES[field].index(n) for n in names]
        for field, names in fixed.names.items()
        if field in _CATEGORIES
    }
    allowed |= {field: [int(value)] for field, value in fixed.flags.items()}
    problems = _broken_together(rules, shape, allowed, most_workers, left)
    docs = [_with_name(rule.doc, rule) for rule in rules if set(rule.fields) & allowed.keys()]
    return "; ".join(problems) or "no value of the others obeys all of: " + "; ".join(docs)


def _broken_together(
    rules: Sequence[Rule],
    shape: NetworkShape,
    fixed: Mapping[str, Sequence[int]],
    most_workers: int,
    left: Mapping[str, Sequence[int]],
) -> list[str]:
    """What fixed values break whatever the other fields are: by one rule, else by two or three together."""
    rules = [rule for rule in rules if rule.name != "positive"]  # values below 1 are refused where they are read
    near = [rule for rule in rules if set(rule.fields) & fixed.keys()]
    allowed = {**left, **fixed}
    for rule in near:
        if _all_break([rule], shape, allowed, most_workers):
            return _said(rule, shape, fixed)
    others = [rule for rule in rules if rule.fields]
    for size in (2, 3):
        for several in itertools.combinations(others, size):
            if any(rule in near for rule in several) and _all_break(list(several), shape, allowed, most_workers):
                return [_with_name(rule.doc, rule) for rule in several]
    return []


def _all_break(rules: list[Rule], shape: NetworkShape, fixed: Mapping[str, Sequence[int]], most: int) -> bool:
    """Whether no combination of the allowed values obeys the rules on so many workers."""
    names = {name for rule in rules for name in rule.fields}
    if "dp_shard" in names:
        names.add("dp")  # the one is a part of the other
    order = sorted(names)
    lists = [list(fixed[name])[:_MOST_VALUES] if name in fixed else _domain(name, shape, most) for name in order]
    if math.prod(map(len, lists)) > (_MOST_ROWS if len(rules) == 1 else _FEW_ROWS):
        return False
    grid = np.array(list(itertools.product(*lists)), dtype=np.int64).reshape(-1, len(order))
    columns: dict[str, IntArray] = {name: grid[:, n] for n, name in enumerate(order)}
    workers = np.ones(len(grid), dtype=np.int64)
    for name in ("tp", "cp", "pp", "dp"):
        workers = workers * columns.get(name, 1)
    legal = workers <= most
    if "dp_shard" in columns:
        dp, shard = columns["dp"], columns["dp_shard"]
        legal &= (dp % shard == 0) & np.isin(dp // shard, fixed.get("dp_replicate", dp // shard))
    for rule in rules:
        legal &= np.asarray(rule.test(shape, columns))
    return not legal.any()


def _domain(name: str, shape: NetworkShape, most: int) -> Sequence[int]:
    blocks = shape.num_blocks
    ranges: dict[str, Sequence[int]] = {
        **{field: range(len(known)) for field, known in _CATEGORIES.items()},
        "sequence_parallel": (0, 1),
        "zero_stage": range(4),
        "recompute_blocks": range(blocks + 1),
        "pp": range(1, min(blocks, most) + 1),
        "vpp": range(1, blocks + 1),
    }
    if name in ranges:
        return ranges[name]
    if name in ("dp", "dp_shard", "micro_batch", "num_micro_batches"):
        return sorted({v for v in (*_USUAL, shape.global_batch) if shape.global_batch % v == 0})
    return [v for v in _USUAL if v <= most]


def _said(rule: Rule, shape: NetworkShape, fixed: Mapping[str, Sequence[int]]) -> list[str]:
    """The sentence of a rule about every fixed value; its condition in words where the sentence would guess at other fields."""
    known = [name for name in rule.fields if name in fixed]
    free = [name for name in rule.fields if name not in fixed]
    messages = []
    for values in itertools.islice(itertools.product(*(fixed[name] for name in known)), _MOST_MESSAGES):
        text = rule.message(shape, {**dict.fromkeys(free, 1), **dict(zip(known, values, strict=True))})
        if any(re.search(rf"\b{name.replace('_', '[-_ ]')}\b", text) for name in free):
            return [_with_name(rule.doc, rule)]
        messages.append(_with_name(text, rule))
    return list(dict.fromkeys(messages))


def _with_name(text: str, rule: Rule) -> str:
    return f"{text} (rule {rule.name})"


def _allowed_values(bounds: Bounds) -> Sequence[int]:
    """Values of one degree that the user allows."""
    return bounds.values or range(bounds.low or 0, min(bounds.high or _MOST_VALUES, _MOST_VALUES) + 1)


def too_many_gpus(least: Mapping[str, int], most: int) -> list[str]:
    """Say that degrees multiply to more GPUs than there are; ranks of experts are those of a stage, too.

    >>> too_many_gpus({"tp": 8, "pp": 4}, 16), too_many_gpus({"ep": 8, "tp": 2}, 4)
    (['tp 8 x pp 4 = 32 is more than --gpus 16'], ['ep 8 is more than --gpus 4'])
    """
    ways = (("tp", "cp", "pp", *data_fields(least)), ("ep", "etp", "pp"))
    gpus, words = max((multiplied(least, way) for way in ways), key=lambda found: found[0])
    return [f"{words} is more than --gpus {most}"] if gpus > most else []


def batch_text(resolved: Resolved) -> str:
    """The global batch as an option, or as the default that it is."""
    return f"{'the default batch of' if resolved.request.batch is None else '--batch'} {resolved.setting.global_batch}"


def no_share(
    resolved: Resolved, degrees: Mapping[str, int], fields: Sequence[str], *, is_whole: bool = False, per_rank: int = 0
) -> list[str]:
    """Say that degrees do not divide the global batch, and what does; nothing where they do.

    Parameters
    ----------
    resolved : Resolved
    degrees : mapping
    fields : sequence of str
        Those that divide it together.
    is_whole : bool
        Whether they have to make the whole batch.
    per_rank : int
        GPUs of a data-parallel rank, where the GPUs decide how many ranks there are.
    """
    unit, words = multiplied(degrees, fields)
    batch = resolved.setting.global_batch
    if is_whole and unit != batch:
        return [f"{words} is not {batch_text(resolved)}; use --batch {unit}, or other degrees"]
    if batch % unit == 0:
        return []
    above_one = [field for field in fields if degrees.get(field, 1) > 1]
    near = max(divisor for divisor in divisors(batch) if divisor < unit)
    gpus = f"--gpus {near * per_rank} " if per_rank and above_one == ["dp"] else ""
    way = f"{gpus}{flag_of(above_one[0])} {near}" if len(above_one) == 1 else "other degrees"
    return [f"{words} does not divide {batch_text(resolved)}; use --batch {near_multiples(batch, unit)}, or {way}"]

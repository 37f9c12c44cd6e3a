"""Options that no legal plan obeys together: which of them contradict, and the rule that says so."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from costmodel.arrays import IntArray
from costmodel.layerwise.splits import divisors
from costmodel.mesh.plan import CP_KINDS, RECOMPUTE, SCHEDULES
from costmodel.mesh.rules import RULES, NetworkShape, Rule
from planner.core.errors import UsageError
from planner.question.fixed import flag_of, flags_of, given_text, near_multiples, only
from planner.spaces.mesh.space import MeshPlanSpace
from strategies.mesh.nodes import PlanCount
from strategies.mesh.settings import Bounds, MeshRestriction, MeshSettings
from strategies.mesh.space import MeshSpace

__all__ = [
    "allowed_values",
    "broken_together",
    "contradiction",
    "refuse_contradiction",
    "smallest_set",
    "too_many_gpus",
]


# Values of a bounded degree that are tried to say why none of them works, and sentences that say it.
_MOST_VALUES = 1024
_MOST_MESSAGES = 4
# Combinations of values that are tried to find the rule behind a contradiction.
_MOST_ROWS = 1 << 16
_FEW_ROWS = 1 << 12  # of several rules, of which there are many
_CATEGORIES = {"schedule": SCHEDULES, "cp_kind": CP_KINDS, "recompute": RECOMPUTE}
# Values that a field takes where nobody fixed it; enough to see whether a rule leaves a way out.
_USUAL = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 96, 128, 256, 512, 1024)


def refuse_contradiction(space: MeshPlanSpace, settings: MeshSettings) -> None:
    """Refuse options that leave no legal plan.

    Raises
    ------
    UsageError
        Names the fewest options that exclude all plans, and the rule that does.
    """
    if not settings.restriction.is_free and _is_empty(space, settings):
        raise UsageError(contradiction(space, settings))


def contradiction(space: MeshPlanSpace, settings: MeshSettings) -> str:
    """Say why no plan is legal: the fewest options that exclude all, and what they break.

    Parameters
    ----------
    space : MeshPlanSpace
    settings : MeshSettings
        Of a search whose space is empty.
    """
    restriction, setting = settings.restriction, space.resolved.setting

    def is_empty(chosen: frozenset[str]) -> bool:
        return _is_empty(space, dataclasses.replace(settings, restriction=only(restriction, chosen)))

    chosen = smallest_set(list(dict.fromkeys(flags_of(restriction).values())), is_empty)
    reason = _reason(space, only(restriction, frozenset(chosen)))
    given = " ".join(given_text(restriction, flag) for flag in chosen)
    together = " exclude each other" if len(chosen) > 1 else ""
    return (
        f"{given}{together}: {reason}; no legal plan of '{setting.model}' at global batch {setting.global_batch} on up to "
        f"{settings.max_workers} GPUs has {'them' if len(chosen) > 1 else 'it'}"
    )


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


def broken_together(
    rules: Sequence[Rule],
    shape: NetworkShape,
    fixed: Mapping[str, Sequence[int]],
    most_workers: int,
    left: Mapping[str, Sequence[int]] | None = None,
) -> list[str]:
    """What fixed values break whatever the other fields are: by one rule, else by two or three together.

    Parameters
    ----------
    rules : sequence of Rule
    shape : NetworkShape
    fixed : mapping
        Field -> values that are allowed, as numbers.
    most_workers : int
    left : mapping, optional
        Field that nobody fixed -> values that the fixed ones leave it.

    Returns
    -------
    list of str
        Sentences; empty where no three rules explain it.
    """
    rules = [rule for rule in rules if rule.name != "positive"]  # values below 1 are refused where they are read
    near = [rule for rule in rules if set(rule.fields) & fixed.keys()]
    allowed = {**(left or {}), **fixed}
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
    """Values that a field takes where nobody fixed it."""
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


# -- of a mesh ----------------------------------------------------------------------------------------------------------


def _is_empty(space: MeshPlanSpace, settings: MeshSettings) -> bool:
    plans = MeshSpace.of(space.model, settings)
    count = PlanCount(space=plans)
    return not any(count.plans(stems) for stems in plans.branches())


def _reason(space: MeshPlanSpace, restriction: MeshRestriction) -> str:
    setting = space.resolved.setting
    degrees = restriction.degrees
    least = {field: min(allowed_values(bounds), default=1) for field, bounds in degrees.items()}
    single = {field: bounds.values[0] for field, bounds in degrees.items() if len(bounds.values) == 1}
    fixed: dict[str, Sequence[int]] = {field: allowed_values(bounds) for field, bounds in degrees.items()}
    fixed |= {
        field: [_CATEGORIES[field].index(n) for n in names]
        for field, names in restriction.names.items()
        if field in _CATEGORIES
    }
    fixed |= {field: [int(value)] for field, value in restriction.flags.items()}
    problems = [
        *too_many_gpus(least, setting.gpus),
        *_no_such_division(single),
        *_no_share_of_batch(single, setting.global_batch, setting.gpus),
        *_too_many_blocks(space, least, restriction.names.get("schedule", SCHEDULES)),
    ] or broken_together(space.rules, space.shape, fixed, setting.gpus, _left(least, setting.global_batch))
    if problems:
        return "; ".join(problems)
    docs = [f"{rule.doc} (rule {rule.name})" for rule in RULES if set(rule.fields) & fixed.keys()]
    return "no value of the others obeys all of: " + "; ".join(docs)


def _left(least: Mapping[str, int], batch: int) -> dict[str, Sequence[int]]:
    """Numbers of micro-batches that are left once samples and replicas are known."""
    samples = _product(least, (*_data(least), "micro_batch"))[0]
    return {} if batch % samples else {"num_micro_batches": list(divisors(batch // samples))}


def allowed_values(bounds: Bounds) -> Sequence[int]:
    """Values of one degree that the user allows."""
    return bounds.values or range(bounds.low or 0, min(bounds.high or _MOST_VALUES, _MOST_VALUES) + 1)


def too_many_gpus(least: Mapping[str, int], most: int) -> list[str]:
    """Say that degrees multiply to more GPUs than there are.

    >>> too_many_gpus({"tp": 8, "pp": 4}, 16)
    ['tp 8 x pp 4 = 32 is more than --gpus 16']
    """
    gpus, words = _product(least, ("tp", "cp", "pp", *_data(least)))
    return [f"{words} is more than --gpus {most}"] if gpus > most else []


def _no_such_division(degrees: Mapping[str, int]) -> list[str]:
    """Replicas and shares that do not make up dp."""
    dp, parts = degrees.get("dp"), {n: degrees[n] for n in ("dp_replicate", "dp_shard") if n in degrees}
    product, words = _product(parts, tuple(parts))
    if dp is None or not parts or (dp == product if len(parts) == 2 else dp % product == 0):
        return []
    return [f"dp is dp-replicate x dp-shard, and {words} {'is not' if len(parts) == 2 else 'does not divide'} {dp}"]


def _no_share_of_batch(degrees: Mapping[str, int], batch: int, most: int) -> list[str]:
    data = _data(degrees)
    samples, words = _product(degrees, (*data, "micro_batch", "num_micro_batches"))
    if batch % samples:
        return [f"{words} does not divide --batch {batch} (nearby: {near_multiples(batch, samples)})"]
    if samples == batch or not {"micro_batch", "num_micro_batches"} <= degrees.keys():
        return []
    if "dp" in degrees or set(data) <= degrees.keys():
        return [f"{words} is not --batch {batch}; use --batch {samples}"]
    ranks = batch // samples
    return [f"{words} leaves a dp of {ranks} at --batch {batch}, more than --gpus {most}"] if ranks > most else []


def _too_many_blocks(space: MeshPlanSpace, least: Mapping[str, int], schedules: Sequence[str]) -> list[str]:
    """More recomputed blocks than the longest chunk has."""
    wanted = least.get("recompute_blocks", 0)
    vpp = max(least.get("vpp", 1), 2 if set(schedules) == {"interleaved"} else 1)
    pp = max(least.get("pp", 1), 2 if vpp > 1 or "1f1b" not in schedules else 1)
    chunks = pp * vpp
    if chunks == 1 or chunks > space.model.num_blocks or wanted <= max(space.model.blocks_of(chunks)):
        return []
    where, most = "chunk" if vpp > 1 else "stage", max(space.model.blocks_of(chunks))
    return [f"the longest {where} has at most {most} blocks, fewer than {wanted} to recompute (rule recompute)"]


def _data(degrees: Mapping[str, int]) -> tuple[str, ...]:
    return ("dp",) if "dp" in degrees else ("dp_replicate", "dp_shard")


def _product(degrees: Mapping[str, int], fields: tuple[str, ...]) -> tuple[int, str]:
    used = {field: degrees[field] for field in fields if degrees.get(field, 1) > 1}
    product = math.prod(used.values())
    words = " x ".join(f"{flag_of(field)[2:]} {degree}" for field, degree in used.items()) or "1"
    return product, f"{words} = {product}" if len(used) > 1 else words

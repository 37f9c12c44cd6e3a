"""The answer of `planner size` in words and in every form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from costmodel.failures.goodput import longest_interval_s
from costmodel.failures.outlook import Outlook
from costmodel.failures.rates import SECONDS_PER_DAY
from costmodel.hardware.host import DEFAULT_IDLE_SHARE
from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import (
    NOT_AVAILABLE,
    Unit,
    bytes_text,
    chance_text,
    counted,
    duration_text,
    energy_text,
    percent,
    significant,
)
from planner.report.answer import NEXT, limits_text, memory_fact
from planner.report.documents import RESULT_VERSION
from planner.report.uncertainty import span_text
from planner.sizing.run import estimate_of
from planner.sizing.search import WISHES, ClusterAnswer, Sized, Trial

_DAYS = Unit(name="days", size=SECONDS_PER_DAY)
# How the table calls the answer to a wish.
_ANSWERS = {
    "least_gpus": "fewest GPUs",
    "least_gpus_90": "90 % sure",
    "cheapest": "cheapest",
    "least_energy": "least energy",
}
# Of the row of a search, in JSON.
_OF_ROW = (
    "batch",
    "seq",
    "status",
    "reason",
    "workers",
    "family",
    "plan",
    "step_time_s",
    "tokens_per_s",
    "mfu",
    "memory_bytes_per_gpu",
    "proven_optimal",
    "gap",
)


def _wrong(trial: Trial, *, surely: bool = False) -> str:
    """What keeps a trial from meeting the goal, as predicted or ``surely`` with a chance of 90 %."""
    what = counted(trial.gpus or trial.allowed, "GPU")
    if not trial.has_plan:
        return f"memory: nothing fits on {what}"
    if not trial.in_time():
        return f"the deadline: {what} would take {_days(trial.time_s)}"
    if not trial.in_time(surely=surely):
        return f"the deadline: {what} may take {_days(trial.time_high_s)}"
    is_sure = trial.excess() > 1.0
    money = (trial.money or 0.0) * trial.slower(surely=not is_sure)
    return f"the budget: {what} {'would' if is_sure else 'may'} cost {_usd(money)}"


def _verdict(trial: Trial) -> str:
    """Whether a trial meets the goal, and what it lacks."""
    if not trial.has_plan:
        return "nothing fits" if trial.row["status"] == "no_plan" else str(trial.row["reason"]).partition("\n")[0]
    parts = [_late(trial)] if trial.lateness() > 1 else []
    parts += [_dear(trial)] if trial.excess() > 1 else []
    if not parts and trial.time_high_s is not None and not trial.meets(surely=True):
        parts.append("meets the goal as predicted, not with 90 % probability")
    return ", ".join(parts) or "meets the goal"


def _late(trial: Trial) -> str:
    """By how many days a training misses its deadline."""
    return f"{_days((trial.time_s or 0.0) - (trial.goal.deadline_s or 0.0))} late"


def _dear(trial: Trial) -> str:
    """By how much a training misses its budget."""
    return f"{_usd((trial.money or 0.0) - (trial.goal.budget or 0.0))} over the budget"


def count_text(number: float) -> str:
    """A length of training in the words that the command line takes.

    >>> count_text(1e12), count_text(1.152e8), count_text(1.5e13), count_text(900.0)
    ('1 T', '115.2 M', '15 T', '900')
    """
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if number >= size:
            return f"{number / size:,.6g}{suffix}"
    return f"{number:,.6g}"


def _days(time_s: float | None) -> str:
    return NOT_AVAILABLE if time_s is None else f"{significant(time_s / SECONDS_PER_DAY)} days"


def _usd(money: float | None) -> str:
    return "no price stated" if money is None else f"{_money(money)} USD"


def _money(money: float | None) -> str:
    """To a few digits, without its currency."""
    if money is None:
        return NOT_AVAILABLE
    return f"{money:,.0f}" if money >= 1000 else significant(money)


def size_report(sized: Sized, following: str = "") -> Report:
    """Answer in every form; ``following`` is what to type next."""
    return Report(
        blocks=lambda: _blocks(sized, following),
        details=lambda: [Facts(tuple(_details(sized)))],
        data=lambda: _document(sized),
        records=lambda: [_record(trial) for trial in sized.trials],
    )


def _document(sized: Sized) -> dict[str, Any]:
    """Answer as plain data, as `planner.schema.results` describes it."""
    goal, best = sized.goal, {wish: sized.best(wish) for wish in WISHES}
    nearest = None if best["least_gpus"] is not None else sized.nearest
    return {
        "schema_version": RESULT_VERSION,
        "model": next((str(trial.row["model"]) for trial in sized.trials), sized.request.model),
        "goal": {
            "tokens": goal.tokens,
            "samples": goal.samples,
            "deadline_s": goal.deadline_s,
            "budget": goal.budget,
            "goodput": goal.goodput if goal.resilience is None else None,
            "failures": None if goal.resilience is None else goal.resilience.failures.name,
        },
        "command_line": sized.request.command_line,
        "interrupted": sized.interrupted,
        **{wish: None if found is None else _answer(*found, wish) for wish, found in best.items()},
        "nearest": None if nearest is None else _record(nearest[1]),
        "clusters": [
            {
                "cluster": answer.facts.name,
                "node": answer.facts.node,
                "most_gpus": answer.facts.most,
                "price_per_hour": answer.facts.price_per_hour,
                "least_money": answer.least_money,
                **{wish: _answer(answer, answer.best(wish), wish) for wish in WISHES},
                "tried": [_record(trial) for trial in answer.trials],
            }
            for answer in sized.clusters
        ],
    }


def _answer(answer: ClusterAnswer, trial: Trial | None, wish: str) -> dict[str, Any] | None:
    if trial is None:
        return None
    is_proven = trial == answer.best("least_gpus") and answer.is_proven(trial)
    return {**_record(trial), "binds": _binding(answer, trial, wish), "proven_least_gpus": is_proven}


def _record(trial: Trial) -> dict[str, Any]:
    return {
        "cluster": trial.facts.name,
        "allowed_gpus": trial.allowed,
        "gpus": trial.gpus,
        "time_s": trial.time_s,
        "time_low_s": trial.time_low_s,
        "time_high_s": trial.time_high_s,
        "money": trial.money,
        "energy_j": trial.energy_j,
        "meets": trial.meets(),
        "spare_gpus": trial.spare_gpus if trial.has_plan else None,
        **_of_failures(trial),
        "chance": trial.chance,
        "meets_90": None if trial.time_high_s is None else trial.meets(surely=True),
        "steps": trial.goal.steps(trial.row) if trial.has_plan else None,
        "objective": trial.row["objective"],
        **{name: trial.row[name] for name in _OF_ROW},
    }


def _of_failures(trial: Trial) -> dict[str, Any]:
    """What failures do to a trial, as `planner.schema.results` describes it; nulls where the goal states a goodput."""
    outlook = trial.outlook
    names = ("useful_share", "interruptions", "checkpoint_interval_s", "checkpoint_bytes", "lost_to", "costs_by_cause")
    if outlook is None:
        return dict.fromkeys(names)
    parts = {name.replace(" ", "_"): share for name, share in outlook.parts.items() if name != "useful"}
    interval = outlook.interval_s if math.isfinite(outlook.interval_s) else None
    values = (outlook.share, trial.interruptions, interval, outlook.checkpoint.bytes, parts, outlook.costs)
    return dict(zip(names, values, strict=True))


def _binding(answer: ClusterAnswer, trial: Trial, wish: str) -> str:
    """Say what keeps an answer from being better.

    Of the fewest GPUs, what is wrong with the next smaller count that was tried; of least money or energy, what is wrong with the trial
    that takes least of it.
    """
    if wish in ("least_gpus", "least_gpus_90"):
        below = [t for t in answer.ladder_trials() if t.allowed < (trial.gpus or 0)]
        return _wrong(below[-1], surely=wish == "least_gpus_90") if below else "nothing: there is no smaller number"
    measured = [(t.cost if wish == "cheapest" else t.energy_j, n, t) for n, t in enumerate(answer.trials) if t.has_plan]
    least, _, best = min((amount, n, t) for amount, n, t in measured if amount is not None)
    mine = trial.cost if wish == "cheapest" else trial.energy_j
    return "nothing: none that was tried takes less" if least >= (mine or 0.0) else _wrong(best)


def miss_in_words(sized: Sized) -> str:
    """What comes closest to the goal, where nothing meets it."""
    if sized.nearest is None:
        reasons = [str(trial.row["reason"]) for trial in sized.trials if trial.row["reason"]]
        first = reasons[-1].partition("\n")[0] if reasons else "nothing was tried"
        return f"no number of GPUs that was tried holds a plan: {first}"
    trial = sized.nearest[1]
    parts = [f"{_days(trial.time_s)}{f', {_late(trial)}' if trial.lateness() > 1 else ''}"]
    if trial.money is not None:
        parts.append(f"{_usd(trial.money)}{f', {_dear(trial)}' if trial.excess() > 1 else ''}")
    return f"nothing meets the goal; the nearest miss is {_gpus(trial)}: {'; '.join(parts)}"


# -- for people ------------------------------------------------------------------------------------------------------------


def _blocks(sized: Sized, following: str) -> list[Block]:
    # One row of the table for each trial, whatever it is best for.
    named: dict[int, tuple[ClusterAnswer, Trial, list[str]]] = {}
    for answer in sized.clusters:
        for wish in _ANSWERS:
            trial = answer.best(wish)
            if trial is not None and not (wish == "least_gpus_90" and trial == answer.best("least_gpus")):
                named.setdefault(id(trial), (answer, trial, []))[2].append(wish)
    rows = [
        (trial, ", ".join(_ANSWERS[wish] for wish in wishes), _binding(answer, trial, wishes[0]))
        for answer, trial, wishes in named.values()
    ]
    found = sized.best("least_gpus")
    if found is not None:
        answer, trial = found
        fewest = "fewest" if answer.is_proven(trial) else "fewest of those tried"
        surer = sized.best("least_gpus_90")
        chance = (
            ""
            if trial.time_high_s is None
            else f", with {'at least' if surer and surer[1] == trial else 'less than'} 90 %"
        )
        verdict = f"Best: {_gpus(trial)}, the {fewest} that meet the goal{chance}: {trial.row['plan']}."
    else:
        misses = [answer.nearest for answer in sized.clusters]
        rows = [(trial, "nearest miss", _verdict(trial)) for trial in misses if trial is not None]
        miss = miss_in_words(sized)
        verdict = f"{miss[0].upper()}{miss[1:]}."
    table = [_table(rows)] if rows else []
    return [Sentence(verdict, strong=True), Facts(tuple(_facts(sized, following))), *table, *_tried(sized)]


def _table(rows: list[tuple[Trial, str, str]]) -> Table:
    trials = [trial for trial, _, _ in rows]
    days = tuple(significant((t.time_s or 0.0) / SECONDS_PER_DAY) for t in trials)
    spans = Column("80 %", tuple(_span(t) for t in trials), 4, unit="interval")
    energy = tuple(energy_text(t.energy_j) for t in trials)
    plans = tuple(str(t.row["plan"]) for t in trials)
    return Table(
        columns=(
            Column("cluster", tuple(t.facts.name for t in trials), 1, is_text=True, flexible=True),
            Column("answer", tuple(name for _, name, _ in rows), is_text=True, flexible=True),
            Column("GPUs", tuple(f"{t.gpus:,}" for t in trials)),
            Column("days", days),
            *([spans] if any(t.time_low_s is not None for t in trials) else []),
            Column("USD", tuple(_money(t.money) for t in trials), 2),
            Column("energy", energy, 4),
            Column("plan", plans, 3, is_text=True, flexible=True, plans=True),
            Column("what binds", tuple(text for _, _, text in rows), 5, is_text=True, flexible=True),
        )
    )


def _best_facts(sized: Sized, answer: ClusterAnswer, trial: Trial) -> list[tuple[str, str]]:
    """What the fewest GPUs take, how sure that is, what other numbers would gain, and why no smaller number is named."""
    sure, known = sized.best("least_gpus_90"), answer.is_proven(trial)
    chance = f"{chance_text(trial.chance)} to meet the goal"
    if sure is None:
        chance += "; below 90 % with every number of GPUs that was tried"
    elif sure[1] != trial:
        chance += f"; {_gpus(sure[1])} have 90 %: {_time(sure[1])}, {_usd(sure[1].money)}"
    proof = f"{'no smaller number meets the goal' if known else 'not proven: a smaller number may do'} on {answer.facts.name}"
    reason = _binding(answer, trial, "least_gpus").partition(": ")[2]
    is_mesh = known and trial.row["tp"] is not None
    among = " among plans uniform over stages; planner optimize also tries stages that differ" if is_mesh else ""
    takes: dict[str, tuple[str, Callable[[Trial], str | None]]] = {
        "cheapest": ("Cheapest", lambda t: None if t.money is None else _usd(t.money)),
        "least_energy": ("Least energy", lambda t: energy_text(t.energy_j)),
    }
    others = [
        (name, f"{_gpus(other[1])}: {amount}, {_days(other[1].time_s)}")
        for wish, (name, text) in takes.items()
        if (other := sized.best(wish)) and other[1] != trial and (amount := text(other[1])) is not None
    ]
    found = estimate_of(sized, trial)
    plan = (
        []
        if found is None
        else [("Memory", memory_fact(found, found.ranked)), ("Limited by", limits_text(found.ranked))]
    )
    return [
        ("Time", _time(trial)),
        (
            "Cost",
            _usd(trial.money) + (f", {counted(trial.spare_gpus, 'spare GPU')} included" if trial.spare_gpus else ""),
        ),
        *failure_facts(trial),
        *plan,
        *([] if trial.time_high_s is None else [("Chance", chance)]),
        *others,
        ("Proof", f"{proof} ({reason}){among}" if (trial.gpus or 0) > 1 else reason),
    ]


def failure_facts(trial: Trial) -> list[tuple[str, str]]:
    """How often a training is interrupted, what that costs, what costs most, and what would help."""
    outlook, asked = trial.outlook, trial.goal.resilience
    if outlook is None or asked is None or trial.time_s is None:
        return []
    if not outlook.rate_per_s:
        return [("Failures", f"none: all rates of '{asked.failures.name}' are 0")]
    count = trial.interruptions or 0.0
    lost = {name: share for name, share in outlook.parts.items() if name != "useful"}
    ordered = sorted(lost.items(), key=lambda pair: -pair[1])
    parts = ", ".join(f"{name} {percent(share)}" for name, share in ordered if share >= _LEAST_SHARE)
    between = f"one in {significant(1.0 / outlook.rate_per_s / 3600.0)} hours" if outlook.rate_per_s else "none"
    cause, cost = next(iter(outlook.costs.items()))
    point = outlook.checkpoint
    longest = longest_interval_s(outlook.rate_per_s, point.stall_s, point.write_s)
    rarer = f" (every {duration_text(longest)} takes 1 % longer)" if asked.interval_s is None else ""
    written = outlook.checkpoint.bytes * (trial.time_s * outlook.share / outlook.interval_s)
    gain, change = max((other.share - outlook.share, words) for words, other in _changes(outlook).items())
    return [
        (
            "Failures",
            f"{significant(count)} interruptions expected ({between}), {percent(outlook.share)} of the time is useful"
            + (f" ({parts})" if parts else ""),
        ),
        (
            "Checkpoints",
            (
                f"every {duration_text(outlook.interval_s)} of work{rarer}, {bytes_text(outlook.checkpoint.bytes)} each ({asked.mode}), "
                f"{bytes_text(written)} written in all"
            ),
        ),
        (
            "Costs most",
            f"'{cause}', {percent(cost)} of the time{f'; {change} would save {percent(gain)}' if gain >= _LEAST_SHARE else ''}",
        ),
        *(("Warning", words) for words in _warnings(trial, outlook)),
    ]


def _warnings(trial: Trial, outlook: Outlook) -> list[str]:
    """What is odd about what was asked for."""
    hosts, write, interval = (
        outlook.units.count("host", outlook.devices),
        outlook.checkpoint.write_s,
        outlook.interval_s,
    )
    useful = (trial.time_s or 0.0) * outlook.share
    writing, between = duration_text(write), duration_text(interval)
    found = {
        f"{counted(outlook.spares, 'spare host')} for {counted(int(hosts), 'host')} of the training": outlook.spares
        > hosts,
        f"a checkpoint takes {writing} to write, longer than the {between} of work between two: training waits": write
        > interval,
        f"the training has {duration_text(useful)} of work, less than the {between} between checkpoints: none is made": interval
        > useful,
    }
    return [words for words, applies in found.items() if applies]


# A smaller share of the time is not worth a word.
_LEAST_SHARE = 1e-3


def _changes(outlook: Outlook) -> dict[str, Outlook]:
    """What would help: the same job with something better, each with its best interval."""
    model, point = outlook.model, outlook.checkpoint
    quicker = replace(point, stall_s=point.stall_s / 2.0, write_s=point.write_s / 2.0, load_s=point.load_s / 2.0)
    jobs = {
        "restarts in half the time": (replace(model, restart_s=model.restart_s / 2.0), point, outlook.spares),
        "checkpoints twice as fast": (model, quicker, outlook.spares),
        "four more spare hosts": (model, point, outlook.spares + 4),
    }
    return {
        words: Outlook.of(
            its,
            outlook.devices,
            times,
            units=outlook.units,
            spares=spares,
            recovery=outlook.recovery,
            replicas=outlook.replicas,
        )
        for words, (its, times, spares) in jobs.items()
    }


def _gpus(trial: Trial) -> str:
    return f"{counted(trial.gpus or 0, 'GPU')} of {trial.facts.name}"


def _time(trial: Trial) -> str:
    interval = "" if trial.time_high_s is None else f" (80 % interval {_span(trial)} days)"
    return f"{_days(trial.time_s)}{interval}"


def _span(trial: Trial) -> str:
    return span_text((trial.time_low_s, trial.time_high_s), _DAYS)


def _facts(sized: Sized, following: str) -> list[tuple[str, str]]:
    goal, trials = sized.goal, sized.trials
    found = sized.best("least_gpus")
    limits = [
        f"{count_text(goal.samples or 0.0)} samples" if goal.tokens is None else f"{count_text(goal.tokens)} tokens",
        *([] if goal.deadline_s is None else [f"in {_days(goal.deadline_s)}"]),
        *([] if goal.budget is None else [f"for {_usd(goal.budget)}"]),
    ]
    row = next((trial.row for trial in trials if trial.has_plan), None)
    known = [answer.facts for answer in sized.clusters]
    has_idle_nodes = any((trial.gpus or 0) > trial.facts.node > 1 for trial in trials)
    asked = goal.resilience
    assumed = [
        *(f"{_money(f.price_per_hour)} USD per GPU and hour ({f.name})" for f in known if f.price_per_hour is not None),
        f"goodput {percent(goal.goodput)}" if asked is None else f"failures as in '{asked.failures.name}'",
        *(["GPUs are paid for singly inside one node, in whole nodes beyond it"] if has_idle_nodes else []),
    ]
    free = ", ".join(sized.request.assume_free)
    otherwise = "a longer --days, a larger --budget, another --cluster or more --max-gpus may do"
    return [
        *([] if found is None else _best_facts(sized, *found)),
        *(
            ("Proof", f"every number of GPUs of {one.facts.name} up to {one.facts.most:,} costs at least {_usd(least)}")
            for one in sized.clusters
            if goal.budget is not None and (least := one.least_money or 0.0) > goal.budget
        ),
        ("Goal", ", ".join(limits)),
        *([] if row is None else [("Steps", _steps(sized, row))]),
        ("Assumed", "; ".join(assumed)),
        *([("Assumed free", f"{free} (--assume-free)")] if free else []),
        *([("Note", "interrupted: what was tried until then is shown")] if sized.interrupted else []),
        ("Next", following or (otherwise if found is None else NEXT)),
    ]


def _details(sized: Sized) -> list[tuple[str, str]]:
    """What ``--verbose`` adds: how times and energy are meant, and which plans were searched."""
    is_stated = sized.goal.resilience is None
    failing = "goodput is taken as stated" if is_stated else "what failures do may be off by as much as fleets differ"
    error_bars = f"80 % of measurements of a step, as of planner optimize; {failing}"
    energy = f"a waiting GPU draws {percent(DEFAULT_IDLE_SHARE)} of a busy one unless its file says more"
    plans = "uniform over stages; --export and planner optimize refine the one that is chosen"
    facts = [
        ("Error bars", error_bars, any(trial.time_high_s is not None for trial in sized.trials)),
        ("Energy", energy, any(trial.energy_j is not None for trial in sized.trials)),
        ("Plans", plans, any(trial.row["tp"] is not None for trial in sized.trials)),  # of a mesh
    ]
    return [(name, text) for name, text, is_known in facts if is_known]


def _steps(sized: Sized, row: Any) -> str:
    """How the training is cut into steps, which decides how many GPUs have work."""
    is_usual = sized.request.batch is None
    length = f" of {row['seq']:,} positions" if row["seq"] else ""
    samples = f"{counted(row['batch'], 'sample')}{length}"
    origin = " (usual for the network; --batch sets another)" if is_usual else ""
    text = f"{sized.goal.steps(row):,} with a global batch of {samples}{origin}"
    is_late = sized.best("least_gpus") is None and any(trial.lateness() > 1 for trial in sized.trials)
    return f"{text}; with more samples per step more GPUs have work" if is_late and is_usual else text


def _tried(sized: Sized) -> list[Block]:
    blocks: list[Block] = []
    for answer in sized.clusters:
        trials = answer.ladder_trials()
        if not trials:
            continue
        days = tuple("" if t.time_s is None else significant(t.time_s / SECONDS_PER_DAY) for t in trials)
        columns = (
            Column("GPUs", tuple(f"{t.allowed:,}" for t in trials), unit="at most"),
            Column("GPUs", tuple("" if t.gpus is None else f"{t.gpus:,}" for t in trials), 3, unit="paid for"),
            Column("days", days),
            Column("80 %", tuple(_span(t) if t.has_plan else "" for t in trials), 4, unit="interval"),
            Column("USD", tuple("" if not t.has_plan else _money(t.money) for t in trials), 1),
            Column("verdict", tuple(_verdict(t) for t in trials), 2, is_text=True, flexible=True),
        )
        blocks += [Heading(f"Tried on {answer.facts.name}"), Table(columns=columns)]
    return blocks

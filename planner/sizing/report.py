"""The answer of `planner size` in words and in every form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from costmodel.hardware.host import DEFAULT_IDLE_SHARE
from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import NOT_AVAILABLE, Unit, energy_text, percent, significant
from planner.report.documents import RESULT_VERSION
from planner.report.uncertainty import span_text
from planner.sizing.search import SECONDS_PER_DAY, ClusterAnswer, Goal, Sized, Trial

__all__ = [
    "binding",
    "count_text",
    "days",
    "dear",
    "late",
    "miss_in_words",
    "money_text",
    "size_document",
    "size_report",
    "usd",
    "verdict",
    "wrong",
]

_PERCENT_TO = 3.0  # nobody reads 98,500 %


def wrong(trial: Trial, goal: Goal, *, surely: bool = False) -> str:
    """What keeps a trial from meeting the goal, as predicted or ``surely`` with a chance of 90 %."""
    count = trial.gpus or trial.allowed
    what = f"{count:,} GPU" if count == 1 else f"{count:,} GPUs"
    if not trial.has_plan:
        return f"memory: nothing fits on {trial.allowed:,} GPU{'s' if trial.allowed != 1 else ''}"
    if not trial.in_time(goal):
        return f"the deadline: {what} would take {days(trial.time_s)}"
    if not trial.in_time(goal, surely=surely):
        return f"the deadline: {what} may take {days(trial.time_high_s)}"
    would = "may" if trial.excess(goal) <= 1.0 else "would"
    return f"the budget: {what} {would} cost {usd((trial.money or 0.0) * trial.slower(surely=would == 'may'))}"


def verdict(trial: Trial, goal: Goal) -> str:
    """Whether a trial meets the goal, and what it lacks."""
    if not trial.has_plan:
        return "nothing fits" if trial.row["status"] == "no_plan" else str(trial.row["reason"]).partition("\n")[0]
    parts = []
    if trial.lateness(goal) > 1:
        parts.append(late(trial.lateness(goal)))
    if trial.excess(goal) > 1:
        parts.append(dear(trial.excess(goal)))
    if not parts and trial.time_high_s is not None and not trial.meets(goal, surely=True):
        parts.append("meets the goal as predicted, not with 90 % probability")
    return ", ".join(parts) or "meets the goal"


def late(share: float) -> str:
    """How much more time something takes than there is.

    >>> late(1.2), late(986.0)
    ('20.0 % late', 'late: 986 times the deadline')
    """
    return f"{percent(share - 1)} late" if share < _PERCENT_TO else f"late: {significant(share)} times the deadline"


def dear(share: float) -> str:
    """How much more something costs than there is.

    >>> dear(1.05), dear(12.0)
    ('5.0 % over the budget', 'over the budget: 12.0 times it')
    """
    return (
        f"{percent(share - 1)} over the budget"
        if share < _PERCENT_TO
        else f"over the budget: {significant(share)} times it"
    )


def count_text(number: float) -> str:
    """A length of training in the words that the command line takes.

    >>> count_text(1e12), count_text(1.152e8), count_text(1.5e13), count_text(900.0)
    ('1 T', '115.2 M', '15 T', '900')
    """
    for size, suffix in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if number >= size:
            return f"{number / size:,.6g}{suffix}"
    return f"{number:,.6g}"


def days(time_s: float | None) -> str:
    """A time in days."""
    return NOT_AVAILABLE if time_s is None else f"{significant(time_s / SECONDS_PER_DAY)} days"


def usd(money: float | None) -> str:
    """Money with its currency."""
    return "no price stated" if money is None else f"{money_text(money)} USD"


def money_text(money: float | None) -> str:
    """Money to a few digits, without its currency."""
    if money is None:
        return NOT_AVAILABLE
    return f"{money:,.0f}" if money >= 1000 else significant(money)


_DAYS = Unit(name="days", size=SECONDS_PER_DAY)
# Wish -> how the table calls its answer.
WISHES = {
    "least_gpus": "fewest GPUs",
    "least_gpus_90": "the same, 90 % sure",
    "cheapest": "cheapest",
    "thriftiest": "least energy",
}


def size_report(sized: Sized) -> Report:
    """Answer in every form."""
    return Report(
        blocks=lambda: _blocks(sized),
        data=lambda: size_document(sized),
        records=lambda: [_record(answer, trial) for answer in sized.clusters for trial in answer.trials],
    )


def size_document(sized: Sized) -> dict[str, Any]:
    """Answer as plain data, as `planner.schema.results` describes it."""
    goal = sized.goal
    return {
        "schema_version": RESULT_VERSION,
        "model": _model(sized),
        "goal": {
            "tokens": goal.tokens,
            "samples": goal.samples,
            "deadline_s": goal.deadline_s,
            "budget": goal.budget,
            "goodput": goal.goodput,
        },
        "command_line": sized.request.command_line,
        "interrupted": sized.interrupted,
        **{wish: _overall(sized, wish) for wish in WISHES},
        "nearest": _nearest_document(sized),
        "clusters": [
            {
                "cluster": answer.facts.name,
                "node": answer.facts.node,
                "most_gpus": answer.facts.most,
                "price_per_hour": answer.facts.price_per_hour,
                "least_money": answer.least_money,
                **{wish: _answer_document(answer, getattr(answer, wish), wish) for wish in WISHES},
                "tried": [_record(answer, trial) for trial in answer.trials],
            }
            for answer in sized.clusters
        ],
    }


def _model(sized: Sized) -> str:
    known = (t.row["model"] for a in sized.clusters for t in a.trials)
    return str(next(known, sized.request.model))


def _overall(sized: Sized, wish: str) -> dict[str, Any] | None:
    found = sized.best(wish)
    return None if found is None else _answer_document(*found, wish)


def _nearest_document(sized: Sized) -> dict[str, Any] | None:
    """Only where nothing meets the goal."""
    if sized.best("least_gpus") is not None:
        return None
    found = _nearest(sized)
    return None if found is None else _record(*found)


def _answer_document(answer: ClusterAnswer, trial: Trial | None, wish: str) -> dict[str, Any] | None:
    if trial is None:
        return None
    is_least = trial == answer.least_gpus
    return {
        **_record(answer, trial),
        "binds": binding(answer, trial, wish),
        "proven_least_gpus": is_least and answer.is_proven(trial),
    }


def _record(answer: ClusterAnswer, trial: Trial) -> dict[str, Any]:
    row = trial.row
    return {
        "cluster": trial.cluster,
        "allowed_gpus": trial.allowed,
        "gpus": trial.gpus,
        "time_s": trial.time_s,
        "time_low_s": trial.time_low_s,
        "time_high_s": trial.time_high_s,
        "money": trial.money,
        "energy_j": trial.energy_j,
        "meets": trial.meets(answer.goal),
        "meets_90": None if trial.time_high_s is None else trial.meets(answer.goal, surely=True),
        "steps": answer.goal.steps(row) if trial.has_plan else None,
        "objective": trial.objective,
        **{name: row[name] for name in _OF_ROW},
    }


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


def binding(answer: ClusterAnswer, trial: Trial, wish: str) -> str:
    """Say what keeps an answer from being better.

    Of the fewest GPUs, what is wrong with the next smaller count that was tried; of least money or energy, what is wrong with the trial
    that takes least of it.
    """
    if wish in ("least_gpus", "least_gpus_90"):
        below = [t for t in answer.ladder_trials() if t.allowed < (trial.gpus or 0)]
        surely = wish == "least_gpus_90"
        return wrong(below[-1], answer.goal, surely=surely) if below else "nothing: there is no smaller number"
    measure: Callable[[Trial], float] = answer.cost if wish == "cheapest" else lambda t: t.energy_j or 0.0
    known = [t for t in answer.trials if t.has_plan and (wish == "cheapest" or t.energy_j is not None)]
    best = min(known, key=measure)
    if measure(best) >= measure(trial):
        return "nothing: none that was tried takes less"
    return wrong(best, answer.goal)


def miss_in_words(sized: Sized) -> str:
    """What comes closest to the goal, where nothing meets it."""
    found = _nearest(sized)
    if found is None:
        reasons = [t.row["reason"] for a in sized.clusters for t in a.trials if t.row["reason"]]
        first = str(reasons[-1]).partition("\n")[0] if reasons else "nothing was tried"
        return f"no number of GPUs that was tried holds a plan: {first}"
    answer, trial = found
    goal = answer.goal
    over_time, over_budget = trial.lateness(goal), trial.excess(goal)
    parts = [f"{days(trial.time_s)}{f', {late(over_time)}' if over_time > 1 else ''}"]
    if trial.money is not None:
        parts.append(f"{usd(trial.money)}{f', {dear(over_budget)}' if over_budget > 1 else ''}")
    return f"nothing meets the goal; the nearest miss is {trial.gpus:,} GPUs of {trial.cluster}: {'; '.join(parts)}"


def _nearest(sized: Sized) -> tuple[ClusterAnswer, Trial] | None:
    known = [(answer, answer.nearest) for answer in sized.clusters]
    found = [(answer, trial) for answer, trial in known if trial is not None]
    return min(found, key=lambda pair: pair[1].missed_by(sized.goal), default=None)


# -- for people ------------------------------------------------------------------------------------------------------------


def _blocks(sized: Sized) -> list[Block]:
    rows = [
        (answer, wish, trial)
        for answer in sized.clusters
        for wish in WISHES
        if (trial := getattr(answer, wish)) is not None and not (wish == "least_gpus_90" and trial == answer.least_gpus)
    ]
    blocks: list[Block] = []
    if rows:
        blocks += [_table(rows), *_answers(sized)]
    else:
        misses = [(answer, "nearest miss", answer.nearest) for answer in sized.clusters if answer.nearest is not None]
        blocks += [_table(misses)] if misses else []
        blocks.append(
            Sentence(
                f"{miss_in_words(sized)}.".capitalize() if not misses else f"N{miss_in_words(sized)[1:]}.", strong=True
            )
        )
    return [*blocks, Facts(tuple(_facts(sized))), *_tried(sized)]


def _table(rows: list[tuple[ClusterAnswer, str, Trial]]) -> Table:
    def column(
        title: str, cell: Callable[[Trial], str], priority: int, *, unit: str = "", text: bool = False
    ) -> Column:
        cells = tuple(cell(trial) for _, _, trial in rows)
        return Column(title=title, unit=unit, cells=cells, priority=priority, is_text=text, flexible=text)

    return Table(
        columns=(
            column("cluster", lambda t: t.cluster, 1, text=True),
            Column(title="answer", cells=tuple(WISHES.get(w, w) for _, w, _ in rows), is_text=True),
            column("GPUs", lambda t: f"{t.gpus:,}", 0),
            column("days", lambda t: significant((t.time_s or 0.0) / SECONDS_PER_DAY), 0),
            *([column("80 %", _span, 4, unit="interval")] if any(t.time_low_s is not None for _, _, t in rows) else []),
            column("USD", lambda t: money_text(t.money), 2),
            column("energy", lambda t: NOT_AVAILABLE if t.energy_j is None else energy_text(t.energy_j), 4),
            column("plan", lambda t: str(t.row["plan"]), 3, text=True),
            Column(
                title="what binds",
                cells=tuple(
                    binding(answer, trial, wish) if wish in WISHES else verdict(trial, answer.goal)
                    for answer, wish, trial in rows
                ),
                is_text=True,
                flexible=True,
                priority=5,
            ),
        )
    )


def _answers(sized: Sized) -> list[Block]:
    found = sized.best("least_gpus")
    assert found is not None
    answer, trial = found
    proof = "no smaller number will do" if answer.is_proven(trial) else "the least of those tried"
    texts = [
        f"Fewest GPUs: {trial.gpus:,} of {trial.cluster} ({proof}): {trial.row['plan']}: {days(trial.time_s)}, {usd(trial.money)}."
    ]
    texts[0] += _chance_of(sized, answer, trial)
    cheap = sized.best("cheapest")
    if cheap is not None and cheap[1].money is not None:
        other = cheap[1]
        texts.append(f"Cheapest: {other.gpus:,} of {other.cluster}: {usd(other.money)}, {days(other.time_s)}.")
    return [Sentence(text, strong=True) for text in texts]


def _chance_of(sized: Sized, answer: ClusterAnswer, trial: Trial) -> str:
    """How sure the fewest GPUs are, and how many are."""
    if trial.time_high_s is None:
        return ""
    if trial.meets(answer.goal, surely=True):
        return f" With 90 % probability it takes no more than {days(trial.time_high_s)}."
    sure = sized.best("least_gpus_90")
    if sure is None:
        return f" It may take {days(trial.time_high_s)}, and no number that was tried meets the goal with 90 % probability."
    where = "" if sure[0] is answer else f" of {sure[1].cluster}"
    return f" It may take {days(trial.time_high_s)}: for 90 % probability plan with {sure[1].gpus:,} GPUs{where}."


def _span(trial: Trial) -> str:
    return span_text((trial.time_low_s, trial.time_high_s), _DAYS)


def _facts(sized: Sized) -> list[tuple[str, str]]:
    goal = sized.goal
    length = (
        f"{count_text(goal.tokens)} tokens" if goal.tokens is not None else f"{count_text(goal.samples or 0.0)} samples"
    )
    limits = [
        f"in {days(goal.deadline_s)}" if goal.deadline_s is not None else "",
        f"for {usd(goal.budget)}" if goal.budget is not None else "",
    ]
    facts = [("Goal", ", ".join([length, *(text for text in limits if text)]))]
    facts.extend(("Steps", text) for text in _steps(sized))
    facts.extend(
        (
            "Proof",
            f"no number of GPUs of {answer.facts.name} up to {answer.facts.most:,} costs less than {usd(answer.least_money)}",
        )
        for answer in sized.clusters
        if goal.budget is not None and (answer.least_money or 0.0) > goal.budget
    )
    prices = [
        f"{answer.facts.price_per_hour:g} USD per GPU and hour ({answer.facts.name})"
        for answer in sized.clusters
        if answer.facts.price_per_hour is not None
    ]
    facts.append(
        ("Assumed", "; ".join([*prices, f"goodput {percent(goal.goodput)}", *_charged(sized), *_powered(sized)]))
    )
    if any(trial.time_high_s is not None for answer in sized.clusters for trial in answer.trials):
        facts.append(
            ("Error bars", "80 % of measurements of a step, as of planner optimize; goodput is taken as stated")
        )
    if any(trial.row["tp"] is not None for answer in sized.clusters for trial in answer.trials):  # a mesh
        facts.append(("Plans", "uniform over stages; --export and planner optimize refine the one that is chosen"))
    if sized.request.assume_free:
        facts.append(("Assumed free", f"{', '.join(sized.request.assume_free)} (--assume-free)"))
    if sized.interrupted:
        facts.append(("Note", "interrupted: what was tried until then is shown"))
    return facts


def _steps(sized: Sized) -> list[str]:
    """How the training is cut into steps, which decides how many GPUs have work; nothing where no plan was found."""
    row = next((t.row for a in sized.clusters for t in a.trials if t.has_plan), None)
    if row is None:
        return []
    origin = "" if sized.request.batch is not None else " (usual for the network; --batch sets another)"
    length = f" of {row['seq']:,} positions" if row["seq"] else ""
    samples = f"{row['batch']:,} sample{'s' if row['batch'] != 1 else ''}{length}"
    text = f"{sized.goal.steps(row):,} with a global batch of {samples}{origin}"
    is_late = sized.best("least_gpus") is None and any(
        t.lateness(sized.goal) > 1 for a in sized.clusters for t in a.trials if t.has_plan
    )
    if is_late and sized.request.batch is None:
        text += "; with more samples per step more GPUs have work"
    return [text]


def _charged(sized: Sized) -> list[str]:
    return ["whole nodes are paid for"] if any(answer.facts.node > 1 for answer in sized.clusters) else []


def _powered(sized: Sized) -> list[str]:
    known = any(trial.energy_j is not None for answer in sized.clusters for trial in answer.trials)
    return (
        [f"a waiting GPU draws {percent(DEFAULT_IDLE_SHARE)} of a busy one unless its file says more"] if known else []
    )


def _tried(sized: Sized) -> list[Block]:
    blocks: list[Block] = []
    for answer in sized.clusters:
        trials = answer.ladder_trials()
        if not trials:
            continue
        blocks.append(Heading(f"Tried on {answer.facts.name}"))
        blocks.append(
            Table(
                columns=(
                    Column(title="GPUs", unit="at most", cells=tuple(f"{t.allowed:,}" for t in trials)),
                    Column(
                        title="GPUs",
                        unit="paid for",
                        cells=tuple("" if t.gpus is None else f"{t.gpus:,}" for t in trials),
                        priority=3,
                    ),
                    Column(
                        title="days",
                        cells=tuple(
                            "" if t.time_s is None else significant(t.time_s / SECONDS_PER_DAY) for t in trials
                        ),
                    ),
                    Column(
                        title="80 %",
                        unit="interval",
                        cells=tuple(_span(t) if t.has_plan else "" for t in trials),
                        priority=4,
                    ),
                    Column(
                        title="USD",
                        cells=tuple("" if not t.has_plan else money_text(t.money) for t in trials),
                        priority=1,
                    ),
                    Column(
                        title="verdict",
                        cells=tuple(verdict(t, sized.goal) for t in trials),
                        is_text=True,
                        flexible=True,
                        priority=2,
                    ),
                )
            )
        )
    return blocks

"""The answer of `planner size --rate` in words and in every form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from costmodel.objectives import mean_of
from planner.core.answer import assumption_text
from planner.core.blocks import Block, Column, Facts, Report, Sentence, Table
from planner.core.numbers import NOT_AVAILABLE, counted, duration_text, percent, significant
from planner.report.answer import NEXT, limits_text, memory_fact
from planner.report.documents import RESULT_VERSION, with_plan
from planner.sizing.fleet import HOURS_PER_MONTH, Fleet, Fleets
from planner.spaces.serving.plans import serving_plan_in_words
from planner.spaces.serving.report import limit_chance, percentiles_text
from planner.spaces.serving.space import limited


def fleet_report(fleets: Fleets, following: str = "") -> Report:
    """Answer in every form; ``following`` is what to type next."""
    return Report(
        blocks=lambda: _blocks(fleets, following or NEXT),
        details=lambda: [Facts(tuple(_details(fleets)))],
        data=lambda: _document(fleets),
        records=lambda: [_row(fleet) for fleet in fleets.fleets],
    )


# -- for programs ---------------------------------------------------------------------------------------------------------------


def _document(fleets: Fleets) -> dict[str, Any]:
    ranked = fleets.ranked
    request = ranked[0].space.load.document() if ranked else {}
    return {
        "schema_version": RESULT_VERSION,
        "model": fleets.request.model,
        "command_line": fleets.request.command_line,
        "spares": fleets.fleets[0].spares,
        "hours": list(fleets.fleets[0].hours) or None,
        "requests": request or None,
        "best": _record(ranked[0]) if ranked else None,
        "clusters": [_record(fleet) for fleet in fleets.fleets],
    }


def _record(fleet: Fleet) -> dict[str, Any]:
    if fleet.answer is None:
        return {"cluster": fleet.facts.name, "reason": fleet.reason}
    return {
        "cluster": fleet.facts.name,
        "reason": None,
        **_servers(fleet),
        "surer": None if fleet.surer is None else _servers(fleet.surer),
    }


def _row(fleet: Fleet) -> dict[str, Any]:
    """The same flat, with the figures of the plan."""
    record = _record(fleet)
    cost = record.pop("cost", {})
    surer = record.pop("surer", None)
    plan = cost.pop("plan", {})
    return {**record, "gpus_90": surer and surer["gpus"], **cost, **plan}


def _servers(fleet: Fleet) -> dict[str, Any]:
    by_hour = list(fleet.replicas_by_hour)
    return {
        "gpus": fleet.gpus,
        "replicas": fleet.replicas,
        "replicas_needed": fleet.best.plan.dp,
        "prefill_workers": fleet.all_workers.prefill_dp,
        "money_per_month": fleet.money_per_month,
        "fleet_money_per_million_output_tokens": fleet.money_per_million_output_tokens,
        "most_rate_per_s": fleet.most_rate_per_s,
        "binds": list(fleet.binds),
        "replicas_by_hour": by_hour or None,
        "gpu_hours_share": fleet.gpu_hours_share if by_hour else None,
        "cost": with_plan(fleet.found, fleet.best),
    }


# -- for people -----------------------------------------------------------------------------------------------------------------


def _blocks(fleets: Fleets, following: str) -> list[Block]:
    ranked = fleets.ranked
    missing = [fleet for fleet in fleets.fleets if fleet.answer is None]
    reasons = [("No plan", f"{fleet.facts.name}: {fleet.reason.splitlines()[0]}") for fleet in missing]
    if not ranked:
        return [Sentence("No cluster serves that.", strong=True), Facts(tuple(reasons))]
    best = ranked[0]
    promise = best.space.report.promise(best.found, best.best)
    verdict = f"Best: {counted(best.gpus, 'GPU')} of {best.facts.name}: {_plan(best)}{promise}."
    return [
        Sentence(verdict, strong=True),
        Facts((*_facts(fleets, best, following), *reasons)),
        _table(ranked),
    ]


def _plan(fleet: Fleet) -> str:
    """Replicas of one plan; or both pools of it."""
    if fleet.best.plan.prefill_dp:
        spare = f" ({fleet.spares} of each pool spare)" if fleet.spares else ""
        return serving_plan_in_words(fleet.all_workers, fleet.space.model.workload.prompt_tokens) + spare
    plan = dataclasses.replace(fleet.best.plan, dp=fleet.unit)
    one = serving_plan_in_words(plan, fleet.space.model.workload.new_tokens)
    spares = (fleet.replicas - fleet.best.plan.dp) // fleet.unit
    spare = f" ({spares} spare)" if spares else ""
    return f"{_counted(fleet, fleet.replicas)}{spare}, each {one}"


def _facts(fleets: Fleets, best: Fleet, following: str) -> list[tuple[str, str]]:
    ranked, load = best.best, best.space.load
    rate = f"{significant(load.rate_per_s)} requests/s" + (" in the busiest hour" if best.hours else "")
    lengths = f"prompts of {load.prompt_tokens:,} and answers of {load.output_tokens:,} tokens"
    cost = (
        NOT_AVAILABLE
        if best.money_per_month is None
        else (
            f"{best.money_per_month:,.0f} USD a month ({HOURS_PER_MONTH:g} hours), {significant(best.money_per_million_output_tokens)} USD "
            "per million output tokens"
        )
    )
    limits = [
        f"{limited(name)} at most {duration_text(limit)}: {duration_text(ranked[name])} predicted"
        for name, limit in best.space.limits.items()
    ]
    kept = []
    surer = best.surer
    if surer is not None:
        money = "" if surer.money_per_month is None else f", {surer.money_per_month:,.0f} USD a month"
        kept.append(f"{counted(surer.gpus, 'GPU')} keep them with 90 %{money}: {_plan(surer)}")
    elif best.lacks_surer:
        kept.append("no fleet of this cluster keeps them with 90 %")
    unpriced = (
        [] if fleets.has_prices else [("Order", "by GPUs: not every device file states a price (price_per_hour)")]
    )
    return [
        ("Demand", f"{rate}, {lengths}"),
        ("Times", f"{percentiles_text(ranked)}{_down(best)}"),
        *([("Limits", "; ".join([*limits, *kept]))] if limits else []),
        ("Memory", memory_fact(best.found, ranked)),
        ("Limited by", limits_text(ranked)),
        *_two_pools(best),
        ("Cost", cost),
        *unpriced,
        ("Next limit", _next_limit(best)),
        *([("Over the hours", _over_hours(best))] if best.hours else []),
        ("Assumed", "; ".join(_assumed(best))),
        ("Next", following),
    ]


def _down(fleet: Fleet) -> str:
    """For how many replicas times are."""
    if fleet.best.plan.prefill_dp:
        return ", with the spare ones down" if fleet.spares else ""
    spares = (fleet.replicas - fleet.best.plan.dp) // fleet.unit
    return f", with {spares} of {_counted(fleet, fleet.replicas)} down" if spares else ""


def _counted(fleet: Fleet, replicas: int) -> str:
    """Replicas, or groups of them that share experts."""
    return counted(replicas // fleet.unit, "replica" if fleet.unit == 1 else "group")


def _next_limit(fleet: Fleet) -> str:
    """How far the fleet goes, and what would break with less."""
    is_apart, share = fleet.best.plan.prefill_dp > 0, percent(fleet.space.assumed.most_load)
    who = "both pools" if is_apart else f"all {_counted(fleet, fleet.replicas)}"
    most = (
        f"{who} take up to {significant(fleet.most_rate_per_s)} requests/s, within the limits and {share} "
        "of what they serve (--assume most_load=X)"
    )
    if not fleet.binds:
        return f"{most}; one {'of each ' if is_apart else ''}is the least there is"
    words = [
        f"the load is above {share}" if name == "load" else f"{limited(name)} is above its limit"
        for name in fleet.binds
    ]
    running = (fleet.best.plan.dp - fleet.unit) // fleet.unit
    fewer = "one fewer of either than the demand needs" if is_apart else f"{running} running"
    return f"{most}; with {fewer}, {' and '.join(words)}"


def _two_pools(fleet: Fleet) -> list[tuple[str, str]]:
    """What GPUs that only read prompts gain, against the best fleet that has none, or the other way round."""
    other = fleet.other_kind
    if other is None:
        return []
    kind = "reads prompts on all GPUs" if fleet.best.plan.prefill_dp else "has two pools"
    gain = (
        f"{other.gpus - fleet.gpus} GPUs fewer than the best fleet that {kind}"
        if other.gpus > fleet.gpus
        else f"nothing is gained over the best fleet that {kind}"
    )
    return [("Two pools", f"{gain}: {counted(other.gpus, 'GPU')}, {_plan(other)}")]


def _over_hours(fleet: Fleet) -> str:
    by_hour, reading = fleet.replicas_by_hour, [plan.prefill_dp for plan in fleet.plans_by_hour]
    readers = f" and {min(reading)} to {max(reading)} prefill workers" if max(reading) else ""
    return (
        f"{min(by_hour)} to {max(by_hour)} replicas{readers} do, hour by hour: {percent(fleet.gpu_hours_share)} of the GPU-hours "
        "where replicas can be started and stopped"
    )


# What the answer says elsewhere, and what every fleet has.
_SAID = frozenset({"model", "cluster", "cost model", "mode"})


def _assumed(fleet: Fleet) -> list[str]:
    known = fleet.space.assumptions(fleet.best.plan)
    stated = [assumption_text(a, stated_only=True) for a in known if a.name not in _SAID]
    price = fleet.facts.price_per_hour
    prices = [] if price is None else [f"{significant(price)} USD per GPU and hour"]
    spare = f"at least {fleet.spares} spare (--spares)"
    return [*prices, spare, *stated, "GPUs are paid for singly inside one node, in whole nodes beyond it"]


def _table(ranked: Sequence[Fleet]) -> Table:
    def texts(of: Any) -> tuple[str, ...]:
        return tuple(of(fleet) for fleet in ranked)

    chances = [fleet.best["limits_probability"] for fleet in ranked]
    sure = [Column("P(keeps\nlimits)", texts(lambda f: limit_chance(f.best)), 1)] if None not in chances else []
    return Table(
        columns=(
            Column("cluster", texts(lambda f: f.facts.name), is_text=True, flexible=True),
            Column("GPUs", texts(lambda f: f"{f.gpus:,}")),
            Column("plan", texts(_plan), 2, is_text=True, flexible=True, plans=True),
            Column(
                "USD",
                texts(lambda f: NOT_AVAILABLE if f.money_per_month is None else f"{f.money_per_month:,.0f}"),
                unit="a month",
            ),
            Column(
                "USD per million",
                texts(lambda f: significant(f.money_per_million_output_tokens)),
                3,
                unit="output tokens",
            ),
            *(_time_column(ranked, time, name) for time, name in (("ttft", "first token"), ("tpot", "per token"))),
            *sure,
            Column("most in limits", texts(lambda f: significant(f.most_rate_per_s)), 5, unit="requests/s"),
        )
    )


def _time_column(ranked: Sequence[Fleet], time: str, name: str) -> Column:
    """A time as its limit is about it; its mean where there is none."""
    limits = ranked[0].space.limits
    figure = next((figure for figure in limits if mean_of(figure) == f"{time}_s"), f"{time}_s")
    share = figure.split("_")[1:-1]
    return Column(name, tuple(duration_text(f.best[figure]) for f in ranked), 4, unit=share[0] if share else "mean")


def _details(fleets: Fleets) -> list[tuple[str, str]]:
    return [
        (
            f"Search on {fleet.facts.name}",
            f"all {fleet.answer.proof.space_size:,} plans on up to {fleet.facts.most:,} GPUs"
            + (", proven" if fleet.answer.proof.proven_optimal else ", not proven"),
        )
        for fleet in fleets.ranked
        if fleet.answer is not None
    ]

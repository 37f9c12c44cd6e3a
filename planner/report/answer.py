"""The answers about plans of every space, for people: the verdict first, the other plans after it, the rest on request.

A space says what is special about its plans in a subclass of `SpaceReport`; everything else is here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

from costmodel.objectives import OBJECTIVES
from planner.core.answer import (
    ASSUMED,
    STATED,
    Answer,
    Estimate,
    Proof,
    RankedPlan,
    ReportParts,
    Scaling,
    assumption_text,
)
from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.capacity import left_out_words, limit_words
from planner.core.notes import UNDER_PLANS
from planner.core.numbers import (
    big_count,
    byte_text,
    byte_unit,
    duration_text,
    duration_unit,
    percent,
    percents,
    rough_percent,
    significant,
    time_unit,
)
from planner.core.objectives import best_word, better_word, compared_words, cost_of, cost_text, objective_columns
from planner.core.request import WELL_TUNED_WORDS
from planner.report.documents import RESULT_VERSION, estimate_document, search_document, tail, with_plan
from planner.report.frameworks import frameworks_blocks
from planner.report.roles import roles_blocks, roles_of
from planner.report.tables import (
    OTHER,
    assumption_rows,
    column_maker,
    comparison_table,
    largest_parts,
    legend,
    link_blocks,
    parts_table,
    ranked_table,
    rows_table,
)
from planner.report.uncertainty import (
    bars_columns,
    bars_document,
    bars_facts,
    benchmark_sentence,
    interval_text,
    inversions,
    runs_words,
    sensitivity_blocks,
    sensitivity_facts,
    span_text,
)

# Parts of a step below this share of it are rounding errors.
_NOISE = 1e-12
# Assumptions that decide about an answer; all of them with -v.
_MATTER = (
    "cluster",
    "workers",
    "device",
    "devices",
    "framework",
    "global batch",
    "sequence length",
    "documents",
    "prompt",
    "output",
    "precision",
    "weights",
    "keys and values",
    "prefix cached",
    "optimizer",
    "adapters",
    "loads of experts",
    "memory per GPU",
    "calibration",
    "collective",
    "assumed free",
    "price",
    "power",
    "plan",
    "plans",
    "stages",
)


# What to type next where a program asks.
NEXT = (
    "--export plan.yaml keeps the plan (--pick N: plan N), 'planner export plan.yaml --to NAME -o run' writes its launch files "
    "('planner list exporters'), 'planner explain --plan plan.yaml' says where its time goes"
)


def search_report(answer: Answer, following: str = "") -> Report:
    """Ranked plans in every form.

    Parameters
    ----------
    answer : Answer
    following : str or Commands
        What to type next; "": in words.
    """
    return Report(
        blocks=lambda: _search_blocks(answer, following or NEXT),
        details=lambda: _details(answer),
        data=lambda: search_document(answer),
        records=lambda: [plan.row() for plan in answer.listed],
    )


def estimate_report(
    estimate: Estimate, warnings: Sequence[str] = (), command: Literal["estimate", "explain"] = "estimate"
) -> Report:
    """One plan in every form."""
    is_explained = command == "explain"
    rows = "layers" if "layers" in estimate.tables else "stages"
    return Report(
        blocks=lambda: _estimate_blocks(estimate, warnings, is_explained=is_explained),
        details=lambda: _details(estimate),
        data=lambda: estimate_document(estimate, warnings, is_explained=is_explained),
        records=lambda: (
            estimate_document(estimate, warnings, is_explained=True)[rows]
            if is_explained
            else [estimate.ranked.record()]
        ),
    )


# -- a search


def _search_blocks(answer: Answer, following: str) -> list[Block]:
    best, better = answer.best, better_word(answer.objective)
    facts = [
        *_verdict(answer, best),
        ("Limited by", f"{limits_text(best)}{answer.space.report.binding(answer, best)}"),
        ("Proof", _proof(answer, better)),
        *_workers(answer, better),
        *answer.space.report.search_facts(answer),
        ("Assumed", _assumed(answer, best)),
        ("Next", following),
    ]
    under = [note for note in answer.notes if getattr(note, "code", "") in UNDER_PLANS]
    notes = [note for note in answer.notes if note not in under]
    shown = answer.space.report.shown(answer)
    return [
        *verdict_blocks(
            f"Best, under {answer.setting.framework or WELL_TUNED_WORDS}" if answer.frameworks else "Best",
            best.summary + answer.space.report.promise(answer, best),
            facts,
        ),
        *frameworks_blocks(answer),
        *roles_blocks(answer),
        dataclasses.replace(
            answer.space.report.plans_table(shown, answer.objective),
            caption=(
                " ".join(filter(None, (legend([plan.summary for plan in shown]), *under, _left_out(answer, shown)))),
            ),
        ),
        *_benchmark(answer, shown),
        *([Facts(tuple(("Note", note) for note in notes))] if notes else []),
    ]


def verdict_blocks(word: str, summary: str, facts: Sequence[tuple[str, str]]) -> list[Block]:
    """How every answer begins: what was found, in a sentence, and the facts that decide about it."""
    return [Sentence(f"{word}: {summary}.", strong=True), Facts(tuple(facts))]


def memory_text(used_bytes: float, capacity_bytes: float, where: str = "per GPU", chance: str = "") -> str:
    """How much memory is used, and with what chance that fits, or how much is left where none is known.

    >>> memory_text(9 * 2**30, 80 * 2**30), memory_text(81 * 2**30, 80 * 2**30, "on acc1")
    ('9.00 GiB of 80.0 GiB per GPU (71.0 GiB to spare)', '81.0 GiB of 80.0 GiB on acc1 (1.00 GiB too much)')
    >>> memory_text(64.4 * 2**30, 79.6 * 2**30, chance="98 %")
    '64.4 GiB of 79.6 GiB per GPU, P(fits) 98 %'
    """
    room = capacity_bytes - used_bytes
    if chance:
        return f"{byte_text(used_bytes)} of {byte_text(capacity_bytes)} {where}, P(fits) {chance}"
    spare = f"{byte_text(room)} to spare" if room >= 0 else f"{byte_text(-room)} too much"
    return f"{byte_text(used_bytes)} of {byte_text(capacity_bytes)} {where} ({spare})"


def _verdict(answer: Answer | Estimate, plan: RankedPlan) -> list[tuple[str, str]]:
    """How long, how fast, how much memory."""
    runs = runs_words(answer.error_bars, answer.setting.framework)
    return [
        *answer.space.report.speed_facts(plan, answer.objective, runs),
        ("Memory", memory_fact(answer, plan)),
    ]


def memory_fact(answer: Answer | Estimate, plan: RankedPlan) -> str:
    """How full the memory is and where, how sure it fits, by what that is known, and how much a plan may need."""
    where, elsewhere = answer.space.report.where_fullest(answer, plan)
    memory = memory_text(plan.memory_bytes_per_gpu, plan.memory_there_bytes, where, plan.fits_text) + elsewhere
    framework, errors = answer.setting.framework, answer.setting.memory_errors
    if errors is None or not plan.fits_text:
        return memory
    why = limit_words(answer.space.request, errors, framework, plan.memory_capacity_bytes, plan.memory_there_bytes)
    tested = left_out_words(errors, framework) if plan.fits_surest_here < 1.0 else ""
    begin, middle = ("the limit", "is") if plan.fits else ("above the limit", "of")
    limit = f"{begin} {why} {middle} {byte_text(plan.memory_capacity_bytes)}"
    return f"{memory}{f' ({tested})' if tested else ''}; {limit}"


# What kernels wait for, as a bottleneck is called: it is a share of the compute. Then the parts that bottlenecks are called after.
_WAITING = {
    "memory bandwidth": "compute, whose kernels wait for memory",
    "host launches": "compute, whose kernels wait for hosts to start them",
}
_OF = {"tpot_s": " of the time per token", "ttft_s": " of the time to first token"}
_PART_OF = {**dict.fromkeys(_WAITING, "compute"), "gradient exchange": "exposed gradient exchange"}


def bottleneck_text(plan: RankedPlan) -> str:
    """What takes longest, by a word that the parts of the time have, too."""
    return _WAITING.get(plan.bottleneck, plan.bottleneck)


def limits_text(plan: RankedPlan) -> str:
    """What limits a plan, and what its time goes to; of compute, the share of the peak that its kernels reach."""
    shares = largest_parts(plan)
    texts = percents(shares)
    largest, mfu = _PART_OF.get(plan.bottleneck, plan.bottleneck), plan.get("mfu")
    if largest not in shares:  # it is called after what a part does
        largest = max(shares, key=lambda word: (word != OTHER, shares[word]), default="")
    if mfu and shares.get("compute"):
        texts["compute"] += f"{' of time' * (largest == 'compute')} at {100 * mfu / shares['compute']:.0f} % of peak"
    elif largest:
        texts[largest] += _OF.get(plan.main, " of time")
    order = sorted(shares, key=lambda word: (word != largest, word == OTHER, -shares[word]))
    words = (texts[word] if word == largest else f"{word} {texts[word]}" for word in order)
    return f"{bottleneck_text(plan)} ({', '.join(words)})"


def _proof(answer: Answer, better: str) -> str:
    proof, refined, fastest = answer.proof, answer.refined, answer.fastest
    noun, first, beyond = "plan", "the first", ""
    if fastest is not None:
        if "uniform" in answer.forgone:
            noun = "uniform plan"
            beyond = f"; the {best_word(answer.objective).lower()} below is not uniform, and not proven"
        first = "the best of them"
        if better == "faster" and answer.space.bounds_a_time:
            ahead = 1.0 - proof.bound_s / answer.best.step_time_s
            first = duration_text(proof.bound_s) + (
                f" ({rough_percent(ahead)} less than the first)" if ahead > 0.0 else ""
            )
    elif refined is not None:
        noun, first = "uniform plan", f"plan {answer.plans[0].rank} ({duration_text(answer.plans[0].step_time_s)})"
        words = "splits of its own inside the blocks" if refined.plan.block_splits else "stages of its own"
        beyond = f"; plan {refined.rank} has {words} and is {rough_percent(-refined.gap)} {better}, but not proven"
    if proof.proven_optimal:
        more = f", and these are its {len(answer.plans)} best" if len(answer.plans) > 1 and proof.proven_top else ""
        kept = " and keeps the limits" if answer.setting.limits else ""
        size = proof.space_size
        none = f"none of all {big_count(size)} {noun}s" if size is not None and size > 1 else f"no {noun}"
        return f"by the model, {none} that fits{kept} is {better} than {first}{more}{beyond}"
    if proof.bound_s <= 0:
        return "not proven: the search stopped before it had a bound"
    return unproven_text(proof.gap, duration_text(proof.bound_s), better=better, noun=noun) + beyond


def unproven_text(gap: float, least: str, *, better: str = "faster", noun: str = "plan") -> str:
    """How far an answer without a proof may be from the best; ``least`` is the time that nothing beats."""
    bound = f" (no {noun} takes less than {least})" if better == "faster" else ""
    return f"not proven: a {noun} could be up to {rough_percent(gap)} {better}{bound}"


def used_text(used: int, there: int, *, proven: bool, better: str = "faster", noun: str = "GPU") -> str:
    """Say how many of the devices are used.

    >>> used_text(4, 4, proven=True), used_text(3, 1024, proven=True, noun="device")
    ('all 4 GPUs are used', '3 of 1,024 devices are used; using more is not faster')
    """
    if used == there:
        return f"all {there:,} {noun}s are used" if there > 1 else f"one {noun}"
    text = f"{used:,} of {there:,} {noun}s {'is' if used == 1 else 'are'} used"
    return f"{text}; using more is not {better}" if proven else f"{text}; no {better} plan was found on more"


def _workers(answer: Answer, better: str) -> list[tuple[str, str]]:
    """How many of the devices are used where some are not; of a plan that is simpler than the best, whether that uses more."""
    used, there = answer.best.workers, answer.setting.gpus
    if used == there:
        return []
    if answer.fastest is None or answer.fastest.workers <= used:
        return [("Workers", used_text(used, there, proven=answer.proof.proven_optimal, better=better))]
    return [
        ("Workers", f"{used:,} of {there:,} GPUs are used; the {better} plan below uses {answer.fastest.workers:,}")
    ]


def _left_out(answer: Answer, shown: Sequence[RankedPlan]) -> str:
    """How many plans have no row, and how to see them."""
    last = max(plan.rank for plan in answer.tabled)
    left = last - len(shown)
    which = "1 more plan is" if left == 1 else f"{left} more plans are"
    return f"{which} left out: --top {last} shows {'it' if left == 1 else 'them'}." if left else ""


def _numbers(shown: Sequence[RankedPlan]) -> dict[int, int]:
    """Ranks of plans to the numbers of their rows."""
    return {plan.rank: number for number, plan in enumerate(shown, start=1)}


def _benchmark(answer: Answer, shown: Sequence[RankedPlan]) -> list[Sentence]:
    """What to benchmark; the refined plan is not compared with the others under the model's error."""
    found = benchmark_sentence(answer.error_bars, _numbers(shown), answer.plans[0].rank)
    if answer.refined is None:
        return found
    return [Sentence(f"Of the uniform plans, {text[0].lower()}{text[1:]}") for text in (block.text for block in found)]


# -- one plan


def _estimate_blocks(estimate: Estimate, warnings: Sequence[str], *, is_explained: bool) -> list[Block]:
    facts = [
        *_verdict(estimate, estimate.ranked),
        *estimate.space.report.plan_facts(estimate),
        ("Assumed", _assumed(estimate, estimate.ranked)),
        *(("Note", note) for note in estimate.notes),
        *(("Warning", warning) for warning in warnings),
    ]
    blocks = [
        *verdict_blocks(
            "Plan", estimate.ranked.summary + estimate.space.report.promise(estimate, estimate.ranked), facts
        ),
        *estimate.space.report.estimate_blocks(estimate),
    ]
    if not is_explained:
        return blocks
    return [
        *blocks,
        *estimate.space.report.explain_blocks(estimate),
        *link_blocks(estimate.tables.get("links", ()), estimate.ranked.step_time_s),
        *_comparison_blocks(estimate),
        *sensitivity_blocks(estimate.sensitivity),
    ]


def _comparison_blocks(estimate: Estimate) -> list[Block]:
    """What the best plan does better than the one that is explained."""
    best, ranked = estimate.best, estimate.ranked
    if best is None:
        return []
    if ranked.gap <= _NOISE and ranked.fits:
        kept = " that keeps the limits" if estimate.setting.limits else ""
        better = better_word(estimate.objective)
        return [Sentence(f"No plan that 'planner optimize' searches{kept} is {better}.", strong=True)]
    noise = _NOISE * ranked.step_time_s
    # What one plan does not have at all is a zero, not the rest of a rounded sum.
    cleaned = [(term, a if a > noise else 0.0, b if b > noise else 0.0) for term, a, b in estimate.comparison]
    rows = [(term, a, b) for term, a, b in cleaned if a > 0 or b > 0]
    has_sum = set(ranked.time_totals) == {"step_time_s"}
    if has_sum:
        rows.append(("step", ranked.step_time_s, best.step_time_s))
    unit = time_unit(max(max(a, b) for _, a, b in rows))
    cost = cost_text(estimate.objective, cost_of(estimate.objective, best.figures), best)
    against = f"{duration_text(best.step_time_s)}{cost} on {best.workers} of {estimate.setting.gpus} GPUs"
    gap = compared_words(1.0 + ranked.gap, estimate.objective, against)
    heading = f"Against the best plan: {gap}: {best.summary}"
    return [Heading(heading), comparison_table(rows, unit, total=has_sum)]


# -- what rests on what


def _assumed(answer: Answer | Estimate, plan: RankedPlan) -> str:
    """What decides about the answer; what somebody stated says who, where the rest comes from is said with -v."""
    said = () if plan.fits_probability is None else ("memory per GPU",)  # beside the memory
    shown = [
        *(
            a
            for a in answer.assumptions
            if a.name in (*_MATTER, *OBJECTIVES) and (a.name not in said or a.source in STATED)
        ),
        *(a for a in answer.model_assumptions if a.source in STATED),
    ]
    guessed = [a for a in shown if a.name in _DECIDING and a.source == "model file"]
    texts = [assumption_text(a, stated_only=True) for a in shown if a not in guessed]
    if guessed:
        names = ", ".join(f"{a.name} {a.value}" for a in guessed)
        options = ", ".join(_DECIDING[a.name] for a in guessed)
        texts.insert(
            0, f"{names} ({ASSUMED}the model file's; {options} change{'s it' if len(guessed) == 1 else ' them'})"
        )
    return ", ".join(texts)


# What decides most, and the options that say otherwise.
_DECIDING = {"global batch": "--batch", "sequence length": "--seq"}


def _details(answer: Answer | Estimate) -> list[Block]:
    """How the space was searched, everything that was assumed, and the constants of the cost model."""
    facts = []
    if isinstance(answer, Answer):
        facts.append(("Space", f"{answer.space.report.space}; {_space(answer.proof)}"))
        facts += answer.space.report.detail_facts(answer)
        odd = inversions(answer.error_bars, _numbers(answer.space.report.shown(answer)), answer.plans[0].rank)
        facts += [("Plans to benchmark", odd)] if odd else []
    if answer.free_layers:
        facts.append(("Layers that cost nothing", ", ".join(answer.free_layers)))
    facts += bars_facts(answer.error_bars)
    facts += sensitivity_facts(answer.sensitivity) if isinstance(answer, Estimate) else []
    return [Facts((*facts, *assumption_rows(answer.assumptions, answer.model_assumptions, answer.setting)))]


def _space(proof: Proof) -> str:
    """Say how many plans there are and how they were handled."""
    space_size = proof.space_size
    handled = [
        f"{big_count(count)} {how.replace('cells', 'groups of plans').replace('bounded away', 'excluded by their bounds')}"
        for how, count in proof.searched.items()
        if count
    ]
    handled += [f"proven by {proof.solver}"] if proof.solver else []
    if space_size is not None:
        size = f"{big_count(space_size)} distinct plan{'s' if space_size != 1 else ''}"
        handled.insert(0, size + (f" (10^{math.log10(space_size):.1f})" if space_size >= 1000 else ""))
    return f"{'; '.join(handled)}; searched in {duration_text(proof.wall_s)}"


def scale_report(curve: Scaling) -> Report:
    """Scaling curve in every form."""
    return Report(
        blocks=lambda: _blocks(curve),
        data=lambda: _document(curve),
        records=lambda: _document(curve)["points"],
    )


def _document(curve: Scaling) -> dict[str, Any]:
    setting = curve.setting
    return {
        "schema_version": RESULT_VERSION,
        "model": setting.model,
        "cluster": setting.cluster,
        "cost_model": setting.cost_model,
        "scaling": "weak" if curve.weak else "strong",
        "family": curve.family,
        "batch": setting.global_batch,
        "epochs": curve.epochs,
        "samples": curve.samples,
        "points": [{field.name: getattr(point, field.name) for field in fields(point)} for point in curve.points],
        **bars_document(curve.error_bars, None),
        **tail(setting, curve.assumptions, curve.free_layers, curve.notes),
    }


def _per_worker(batch: int, workers: int) -> str:
    """Samples per worker; where several share one, or some have more than others, their mean.

    >>> _per_worker(2048, 16), _per_worker(2048, 1000), _per_worker(2048, 16384)
    ('128', '2.05', '0.125')
    """
    return f"{batch // workers:,}" if batch % workers == 0 else significant(batch / workers)


def _blocks(curve: Scaling) -> list[Block]:
    points, column = curve.points, column_maker(curve.points)
    unit = time_unit(min(point.step_time_s for point in points))
    columns = [
        column("workers", lambda p: f"{p.workers:,}", 0),
        column("batch", lambda p: f"{p.global_batch:,}", 3, unit="global"),
        column("batch", lambda p: _per_worker(p.global_batch, p.workers), 6, unit="per worker"),
        column("step time", lambda p: significant(p.step_time_s / unit.size), 0, unit=unit.name),
        column("compute", lambda p: significant(p.compute_s / unit.size), 5, unit=unit.name),
        column("exposed comm.", lambda p: significant(p.exposed_communication_s / unit.size), 4, unit=unit.name),
        column("throughput", lambda p: significant(p.throughput_samples_per_s), 2, unit="samples/s"),
        column("speed-up", lambda p: f"{significant(p.speedup)}x", 1),
        column("efficiency", lambda p: percent(p.efficiency), 7),
    ]
    if any(point.step_time_low_s is not None for point in points):  # between which times a measurement lies
        ends = column(
            "80 % interval", lambda p: span_text((p.step_time_low_s, p.step_time_high_s), unit), 3, unit=unit.name
        )
        columns.insert(4, ends)
    if any(point.hours is not None for point in points):
        # Hours are compared with published tables: two decimals, as those have.
        columns.append(column("training", lambda p: "" if p.hours is None else f"{p.hours:,.2f}", 1, unit="hours"))
    if not all(point.fits for point in points):
        columns.append(column("memory", lambda p: "fits" if p.fits else "too much", 2))
    columns.append(Column("plan", tuple(point.summary for point in points), 8, is_text=True, flexible=True, plans=True))
    batch = f"{curve.setting.global_batch:,} samples"
    facts = [
        ("Scaling", f"weak, {batch} per worker" if curve.weak else f"strong, {batch} shared by the workers"),
        ("Family", curve.family_words or curve.family),
    ]
    if curve.epochs is not None and curve.samples is not None:
        facts.append(("Training", f"{curve.epochs:g} epochs of {curve.samples:,.0f} samples"))
    # The batch is said above: it means something else on a weak curve.
    facts += bars_facts(curve.error_bars)
    facts += assumption_rows([a for a in curve.assumptions if a.name != "global batch"], (), curve.setting)
    notes = [("Note", note) for note in curve.notes]
    return [
        Table(columns=tuple(columns)),
        Facts(
            (
                *facts,
                *([("Layers that cost nothing", ", ".join(curve.free_layers))] if curve.free_layers else []),
                *notes,
            )
        ),
    ]


# -- what a space shows of its plans


class SpaceReport(ReportParts):
    """Reports about plans that train on one or several kinds of devices.

    Attributes
    ----------
    layers_heading : str
        Of the rows by layer of an explained plan.
    baseline : str
        What figures call the plan that the best is compared with.
    gap_priority, bottleneck_priority : int
        The larger, the sooner a narrow terminal drops the column.
    """

    layers_heading = "Layer by layer (of one rank, one micro-batch)"
    baseline = "data parallelism"
    gap_priority = 1
    bottleneck_priority = 9

    def plans_table(self, plans: Sequence[RankedPlan], objective: str, *, ranks: bool = True) -> Table:
        columns = [
            Column(title="plan", cells=tuple(plan.summary for plan in plans), is_text=True, flexible=True, plans=True),
            *self.columns(plans, objective),
        ]
        if not ranks:
            return Table(columns=tuple(columns))
        return ranked_table(columns, plans, objective, gap_priority=self.gap_priority)

    def columns(self, plans: Sequence[RankedPlan], objective: str) -> list[Column]:
        """Columns of what plans cost."""
        unit = time_unit(min(plan.step_time_s for plan in plans))
        time = column_maker(plans)("step time", lambda p: significant(p.step_time_s / unit.size), 0, unit=unit.name)
        return [
            *self.size_columns(plans),
            time,
            *bars_columns(plans, unit),
            *self.figure_columns(plans),
            *bottleneck_columns(plans, self.bottleneck_priority),
            *objective_columns(plans, objective, 1),
        ]

    def size_columns(self, plans: Sequence[RankedPlan]) -> list[Column]:
        """How many devices plans take; always shown where they take different numbers."""
        priority = 0 if len({plan.workers for plan in plans}) > 1 else 6
        return [column_maker(plans)("GPUs", lambda plan: f"{plan.workers:,}", priority)]

    def figure_columns(self, plans: Sequence[RankedPlan]) -> list[Column]:
        """Columns between the step time and the bottleneck."""
        raise NotImplementedError

    def speed_facts(self, plan: RankedPlan, objective: str, runs: str = "") -> Sequence[tuple[str, str]]:
        """How long a step takes, what it costs, and how many samples or tokens that makes; of every space that trains."""
        cost = cost_text(objective, cost_of(objective, plan.figures), plan)
        cost += " per step" if cost and " per " not in cost else ""
        ends = interval_text((plan.step_time_low_s, plan.step_time_high_s), duration_unit(plan.step_time_s))
        interval = f" (80 % interval {ends}{f', by {runs}' * bool(runs)})" if ends else ""
        each = plan.throughput_samples_per_s / plan.workers
        made, share = ("samples", plan.throughput_samples_per_s), ""
        if plan.get("tokens_per_s") is not None:
            made, each = ("tokens", plan["tokens_per_s"]), plan["tokens_per_s_per_gpu"]
            share = f", MFU {percent(plan['mfu'])}"
        where = f" on {plan.workers:,} GPUs, {significant(each)} on each" if plan.workers > 1 else ""
        rate = f"{significant(made[1])} {made[0]}/s{where}{share}"
        return [("Step", f"{duration_text(plan.step_time_s)}{cost}{interval}; {rate}")]

    def shown(self, answer: Answer) -> Sequence[RankedPlan]:
        """The first two, those to benchmark and those with a role, unless somebody said how many to show."""
        if answer.space.request.top_given:
            return answer.tabled
        named = {plan.rank for plan in answer.listed[:2]}
        named.update(answer.error_bars.named if answer.error_bars else ())
        roles = [plan.plan for _, plan in roles_of(answer) if plan is not None]
        return [plan for plan in answer.tabled if plan.rank in named or plan.plan in roles]

    def baselines_document(self, answer: Answer) -> dict[str, Any]:
        return {name: None if plan is None else with_plan(answer, plan) for name, plan in answer.baselines.items()}

    def compared(self, answer: Answer) -> list[tuple[str, RankedPlan | None]]:
        return [(self.baseline, answer.baselines["data_parallel"])]

    def estimate_blocks(self, estimate: Estimate) -> list[Block]:
        ranked = estimate.ranked
        return [
            self.plans_table([ranked], estimate.objective, ranks=False),
            *parts_blocks(ranked, "Where the step goes", "step_time_s", title="time", name="step"),
        ]

    def explain_blocks(self, estimate: Estimate) -> list[Block]:
        return [Heading(self.layers_heading), rows_table(estimate.tables["layers"])]


def bottleneck_columns(plans: Sequence[RankedPlan], priority: int) -> list[Column]:
    """What plans take longest for; nothing where all agree, since that of the first stands above them."""
    cells = tuple(plan.bottleneck for plan in plans)
    return [] if len(cells) > 1 == len(set(cells)) else [Column("bottleneck", cells, priority, is_text=True)]


def parts_blocks(
    ranked: RankedPlan, heading: str, total: str, *, title: str, name: str, term: str = "part"
) -> list[Block]:
    """The parts of a figure, as `planner.report.tables.parts_table` shows them; nothing where it is 0."""
    value = float(ranked[total])
    if not value > 0:
        return []
    unit = time_unit(value) if total.endswith("_s") else byte_unit(value)
    table = parts_table(ranked.labelled_parts(total).items(), value, unit, title=title, name=name, term=term)
    return [Heading(heading), table]

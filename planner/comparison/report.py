"""The answer of ``planner compare`` in every form; why one plan is faster than another, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from costmodel.tolerances import EQUAL
from planner.comparison.differences import Comparison, Row
from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import (
    NOT_AVAILABLE,
    Unit,
    byte_text,
    byte_unit,
    duration_text,
    percent,
    significant,
    time_unit,
    used_of_total,
)
from planner.core.objectives import StepCost, change_text, compared_words, shown_costs
from planner.report.documents import RESULT_VERSION
from planner.report.uncertainty import span_text
from planner.spaces.items import Basis, Item

# Term -> settings that it depends on, most important first.
_CAUSES = {
    "compute_s": ("workers", "tp", "cp", "micro_batch"),
    "recompute_s": ("recompute", "recompute_blocks", "stage_recompute"),
    "tp_exposed_s": ("tp", "sequence_parallel", "block_splits", "domain_gpus"),
    "cp_exposed_s": ("cp", "cp_kind", "domain_gpus"),
    "ep_exposed_s": ("ep", "etp", "domain_gpus"),
    "pp_exposed_s": ("pp", "vpp", "micro_batch"),
    "dp_exposed_s": ("dp_replicate", "dp_shard", "zero_stage", "tp", "pp", "order", "domain_gpus"),
    "bubble_s": ("pp", "num_micro_batches", "schedule", "vpp", "stage_blocks", "stages"),
    "optimizer_s": ("zero_stage", "dp_shard", "offload_optimizer", "tp", "pp"),
    "offload_s": ("offload_optimizer", "offload_activations"),
    "decode_compute_s": ("tp", "pp", "max_batch"),
    "decode_tp_s": ("tp",),
    "decode_ep_s": ("ep", "etp"),
    "decode_pp_s": ("pp",),
    "decode_host_s": (),
    "transfer_s": ("prefill_dp", "prefill_tp", "prefill_pp", "tp", "pp"),
    "waiting_s": ("prefill_dp", "max_batch", "prefill_chunk", "prefill_batch", "dp"),
}
# What is asked that bears on every term, on what devices compute, on what networks carry, and on the update; the most important first.
_ASKED = ("model", "sequence length", "documents", "adapters")
_ASKED_OF_DEVICES = ("device", "precision")
_ASKED_OF_NETWORKS = ("cluster", "precision")
_DEVICE_TERMS = frozenset({"compute_s", "recompute_s", "optimizer_s", "decode_compute_s"})
# Smaller changes, relative to the slower plan, only make a sentence longer.
_LEAST = 0.01
# Of the slower plan's time: what is smaller is what sums are rounded by, not a part.
_NOISE = 1e-4
_MOST_TERMS = 3
# What plans have beyond the space that a search goes through.
_OF_ITS_OWN = ("stage_blocks", "stage_recompute", "block_splits")
_MOST_CAUSES = 3


def question_sentences(comparison: Comparison) -> list[str]:
    """Say plainly that plans answer different questions, and what is compared then."""
    if not comparison.question:
        return []
    listed = "; ".join(f"{name} {' | '.join(values)}" for name, values in comparison.question)
    sentence = f"The plans answer different questions ({listed})"
    if comparison.basis != "step":
        sentence += f"; times are compared per {comparison.basis}"
    return [sentence + "."]


def why(comparison: Comparison, n: int) -> str:
    """Say how much faster or slower a plan is than the first, and why."""
    items, scores = comparison.items, comparison.scores
    first, other = items[0], items[n]
    if first.question["model"] != other.question["model"]:
        return (
            f"{first.label} and {other.label} are of different networks, {first.question['model']} and {other.question['model']}: "
            f"{first.rates(other, comparison.basis)}."
        )
    if comparison.is_found_again(n):
        return f"{first.label} is the best plan: the search finds no other."
    low, high = sorted((scores[0], scores[n]))
    if high - low <= EQUAL * high:
        return f"{other.label} is as fast as {first.label}." + _trade(comparison, n, 0, is_equal=True)
    fast, slow = (n, 0) if scores[n] < scores[0] else (0, n)
    better = (
        f"{other.label} is {compared_words(scores[n] / scores[0], first.ranked_by(comparison.objective), first.label)}"
    )
    if first.question.get("framework") != other.question.get("framework") and _overlap(items[fast], items[slow]):
        better += ", though within the model's error (the 80 % intervals overlap)"
    # What a larger batch gains per sample is nothing that the plan saves.
    is_same_batch = first.question.get("global batch") == other.question.get("global batch")
    trade = _trade(comparison, fast, slow) if is_same_batch else items[fast].batches(items[slow])
    if other.found and slow == n and first.fits and any(first.settings.get(name) for name in _OF_ITS_OWN):
        trade += (
            f" {first.label} has stages or splits of its own: the search tries these for its best uniform plans only."
        )
    return f"{better}: {other.rates(first, comparison.basis)}.{trade}"


def _overlap(fast: Item, slow: Item) -> bool:
    """Whether two 80 % intervals overlap. Each framework has its own, from its own runs, so their errors do not cancel."""
    high, low = fast.step_time_high_s, slow.step_time_low_s
    return high is not None and low is not None and low < high


def _trade(comparison: Comparison, fast: int, slow: int, *, is_equal: bool = False) -> str:
    """What the faster plan saves and what it pays, with the settings behind the largest saving."""
    label = comparison.items[fast].label
    subject = "It" if fast else f"{label[0].upper()}{label[1:]}" if label.startswith("the ") else label
    scale = comparison.items[slow].step_time_s / comparison.work(slow)
    changes = [(row, row.values[fast] - row.values[slow]) for row in comparison.times]
    saved = sorted((c for c in changes if c[1] < -_LEAST * scale), key=lambda c: c[1])[:_MOST_TERMS]
    paid = sorted((c for c in changes if c[1] > _LEAST * scale), key=lambda c: -c[1])[:_MOST_TERMS]
    batches = comparison.items[fast].batches(comparison.items[slow])
    causes = _causes(comparison, saved[0][0], fast, slow) if saved else ""
    # What is not named, so that what is adds up to the difference.
    whole = sum(change for _, change in changes)
    rest = whole - sum(change for _, change in (*saved, *paid))
    if (saved or paid) and abs(rest) > max(_LEAST * abs(whole), _NOISE * scale):
        (saved if rest < 0 else paid).append((Row(key="", name="other parts", values=()), rest))
    if not saved and not paid:
        return batches if is_equal or batches else " No term differs by more than 1 %."
    sentence = ""
    if saved:
        sentence = f" {subject} saves {_listed(saved, causes)}"
    if paid:
        sentence += (", and pays " if saved else f" {subject} pays ") + _listed(paid)
    return f"{sentence}.{batches}"


def _listed(changes: Sequence[tuple[Row, float]], causes: str = "") -> str:
    """Terms with their sizes; what the first, the largest, comes from stands behind it."""
    words = [f"{duration_text(abs(change))} of {row.name}" for row, change in changes]
    words[0] += causes
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _causes(comparison: Comparison, row: Row, fast: int, slow: int) -> str:
    """What is asked and what is set that bears on a term and differs."""
    mine, others = comparison.items[fast].settings, comparison.items[slow].settings
    asked = [*_ASKED, *(_ASKED_OF_DEVICES if row.key in _DEVICE_TERMS else _ASKED_OF_NETWORKS)]
    asked += ["optimizer"] if row.key == "optimizer_s" else []
    questions = dict(comparison.question)
    differing = [
        f"{name} {questions[name][fast]} against {questions[name][slow]}"
        for name in asked
        if name in questions and questions[name][fast] != questions[name][slow]
    ]
    differing += [
        f"{name} {mine[name] or 'none'} against {others[name] or 'none'}"
        for name in _CAUSES.get(row.key, ())
        if name in mine and name in others and mine[name] != others[name]
    ]
    return f" ({', '.join(differing[:_MOST_CAUSES])})" if differing else ""


def memory_sentence(comparison: Comparison, n: int) -> str:
    """Say how much more or less memory a plan needs than the first, and for what."""
    first, other = comparison.items[0], comparison.items[n]
    change = other.memory_bytes - first.memory_bytes
    least = _LEAST * max(first.memory_bytes, other.memory_bytes)
    if abs(change) <= least:
        return f"{other.label} needs as much memory as {first.label}: {byte_text(other.memory_bytes)} per GPU."
    changes = [(row, row.values[n] - row.values[0]) for row in comparison.memory]
    rows = sorted((pair for pair in changes if abs(pair[1]) > least), key=lambda pair: -abs(pair[1]))[:_MOST_TERMS]
    parts = ", ".join(f"{row.name} {'+' if d > 0 else '-'}{byte_text(abs(d))}" for row, d in rows)
    more, for_what = "more" if change > 0 else "less", f": {parts}" if parts else ""
    return f"{other.label} needs {byte_text(abs(change))} {more} per GPU than {first.label}{for_what}."


def comparison_report(comparison: Comparison, warnings: Sequence[str] = ()) -> Report:
    """Plans side by side, in every form.

    Parameters
    ----------
    comparison : Comparison
    warnings : sequence of str
        What no longer holds of the plan files.
    """
    return Report(
        blocks=lambda: _blocks(comparison, warnings),
        data=lambda: _document(comparison, warnings),
        records=lambda: _records(comparison),
    )


# -- for people ---------------------------------------------------------------------------------------------------------


def _blocks(comparison: Comparison, warnings: Sequence[str]) -> list[Block]:
    items = comparison.items
    sentences = (*question_sentences(comparison), *_reasons(comparison))
    blocks: list[Block] = [_overview(comparison), *(Sentence(text, strong=True) for text in sentences)]
    for heading, rows in (
        ("What is asked otherwise", comparison.question),
        ("What differs in the plans", comparison.settings),
        ("Layers that are split otherwise", comparison.layers),
    ):
        if rows:
            blocks += [Heading(heading), _text_table(comparison, rows)]
    if len(items) == 2 and comparison.is_found_again(1):
        return [*blocks, _facts(comparison, warnings)]
    times = _totals(comparison)
    first = [item.first_token_s or 0.0 for item in items]
    memory = [item.memory_bytes for item in items]
    for heading, terms, totals, unit in (
        (f"Where the time per {items[0].per(comparison.basis)} goes", comparison.times, times, time_unit(fmean(times))),
        ("Where the time to the first token goes", comparison.first_token, first, time_unit(fmean(first))),
        ("What fills the memory (per GPU, of the fullest)", comparison.memory, memory, byte_unit(max(memory))),
    ):
        if terms:
            total = Row(key="", name="total", values=tuple(totals))
            blocks += [Heading(heading), _number_table(comparison, (*terms, total), unit)]
    figures = _figures(comparison)
    if figures:
        blocks += [Heading("Other figures"), _text_table(comparison, figures)]
    return [*blocks, _facts(comparison, warnings)]


def _figures(comparison: Comparison) -> list[tuple[str, tuple[str, ...]]]:
    """Rates, and what a step costs, where any plan has them."""
    items = comparison.items
    reads_tokens = all(item.tokens_per_s is not None for item in items)

    def paid(cost: StepCost) -> tuple[str, Callable[[float | None], str], list[float | None]]:
        basis: Basis = comparison.basis if not cost.is_small else "token" if reads_tokens else "sample"
        many, amounts = cost.per(reads_tokens)[0], [item.amount(basis) for item in items]
        costs = [item.costs[cost.figure] for item in items]
        values = [
            None if each is None else many * each / amount for each, (amount, _) in zip(costs, amounts, strict=True)
        ]
        one = amounts[0][1]
        return f"{cost.title} per {f'M {one}s' if cost.is_small else one}", cost.text, values

    rows: list[tuple[str, Callable[[float | None], str], Sequence[float | None]]] = [
        (f"{items[0].tokens_word}/s", significant, [item.tokens_per_s for item in items]),
        (f"{items[0].samples_word}/s", significant, [item.samples_per_s for item in items]),
        ("MFU", percent, [item.mfu for item in items]),
        *(paid(cost) for cost in shown_costs()),
    ]
    return [
        (name, tuple(text(value) for value in values))
        for name, text, values in rows
        if any(value is not None for value in values)
    ]


def _totals(comparison: Comparison) -> list[float]:
    return [item.step_time_s / comparison.work(n) for n, item in enumerate(comparison.items)]


def _reasons(comparison: Comparison) -> list[str]:
    others = range(1, len(comparison.items))
    memory = [memory_sentence(comparison, n) for n in others if not comparison.is_found_again(n)]
    tight = [
        f"{item.label} does not fit: it needs {used_of_total(item.memory_bytes, item.memory_capacity_bytes)} per GPU."
        for item in comparison.items
        if not item.fits
    ]
    return [why(comparison, n) for n in others] + memory + tight


def _overview(comparison: Comparison) -> Table:
    items = comparison.items
    times = _totals(comparison)
    unit = time_unit(min(times))
    served = [item for item in items if item.first_token_s is not None]

    columns = [
        Column("", tuple(item.label for item in items), is_text=True),
        Column("plan", tuple(item.summary for item in items), 3, is_text=True, flexible=True, plans=True),
        Column("GPUs", tuple(f"{item.workers:,}" for item in items), 4),
        Column(
            f"time per {items[0].per(comparison.basis)}",
            tuple(significant(time / unit.size) for time in times),
            unit=unit.name,
        ),
        Column("against", tuple(_against(comparison, n) for n in range(len(items))), unit="the first"),
        Column("memory", tuple(used_of_total(i.memory_bytes, i.memory_there_bytes) for i in items), 1, unit="per GPU"),
        *(
            [Column("P(fits)", tuple(i.fits_text for i in items), 2)]
            if any(i.fits_probability is not None for i in items)
            else []
        ),
    ]
    if served:
        columns[4:5] = [
            Column("first token", tuple(duration_text(item.first_token_s) for item in items), 2),
            Column("output", tuple(significant(item.tokens_per_s) for item in items), unit="tokens/s"),
        ]
    if any(item.step_time_low_s is not None for item in items):
        ends = [
            tuple(None if end is None else end / comparison.work(n) for end in (i.step_time_low_s, i.step_time_high_s))
            for n, i in enumerate(items)
        ]
        cells = tuple(span_text((low, high), unit) for low, high in ends)
        columns.insert(4 if served else 5, Column("80 % interval", cells, 4, unit=unit.name))
    if comparison.basis != "step" or len({item.samples for item in items}) > 1:
        columns.insert(3, Column("batch", tuple(f"{item.samples:,}" for item in items), 4))
    return Table(columns=tuple(columns), highlight=comparison.fastest)


def _against(comparison: Comparison, n: int) -> str:
    if n == 0 or comparison.items[n].question["model"] != comparison.items[0].question["model"]:
        return NOT_AVAILABLE if n else "-"
    objective = comparison.items[0].ranked_by(comparison.objective)
    return change_text(comparison.scores[n] / comparison.scores[0], objective)


def _text_table(comparison: Comparison, rows: Sequence[tuple[str, tuple[str, ...]]]) -> Table:
    names = Column(title="", cells=tuple(name for name, _ in rows), is_text=True)
    columns = [
        Column(title=item.label, cells=tuple(values[n] or "-" for _, values in rows), is_text=True, flexible=True)
        for n, item in enumerate(comparison.items)
    ]
    return Table(columns=(names, *columns))


def _number_table(comparison: Comparison, rows: Sequence[Row], unit: Unit) -> Table:
    def cells(values: Sequence[float], *, signed: bool = False) -> tuple[str, ...]:
        return tuple(("+" if signed and v > 0 else "") + significant(v / unit.size) for v in values)

    columns = [Column("", tuple(row.name for row in rows), is_text=True)]
    for n, item in enumerate(comparison.items):
        changes = cells([row.differences[n] for row in rows], signed=True)
        columns += [
            Column(item.label, cells([row.values[n] for row in rows]), unit=unit.name),
            *([Column("difference", changes, n, unit=unit.name)] if n else []),
        ]
    return Table(columns=tuple(columns), total=True)


def _facts(comparison: Comparison, warnings: Sequence[str]) -> Facts:
    first = comparison.items[0]
    asked = {name for name, _ in comparison.question}
    hidden = {"model file", "cluster file", *asked}
    question = ", ".join(f"{name} {text}" for name, text in first.question.items() if name not in hidden)
    same = ", ".join(f"{name} {text}" for name, text in comparison.same.items())
    return Facts(
        (
            ("Asked of all", question),
            *([("In all plans", same)] if same else []),
            *(("Found", f"{item.label}: {item.found}") for item in comparison.items if item.found),
            *(("Warning", warning) for warning in warnings),
        )
    )


# -- for programs -------------------------------------------------------------------------------------------------------


def _document(comparison: Comparison, warnings: Sequence[str]) -> dict[str, Any]:
    items = comparison.items
    return {
        "schema_version": RESULT_VERSION,
        "space": items[0].kind,
        "basis": comparison.basis,
        "fastest": items[comparison.fastest].label,
        "is_same_question": not comparison.question,
        "plans": [_plan_record(comparison, n) for n in range(len(items))],
        "question": _text_rows(comparison.question),
        "settings": _text_rows(comparison.settings),
        "layers": _text_rows(comparison.layers),
        "same_settings": dict(comparison.same),
        "times": [_number_row(row, "s") for row in comparison.times],
        "first_token": [_number_row(row, "s") for row in comparison.first_token],
        "memory": [_number_row(row, "bytes") for row in comparison.memory],
        "why": [*question_sentences(comparison), *_reasons(comparison)],
        "warnings": list(warnings),
    }


def _plan_record(comparison: Comparison, n: int) -> dict[str, Any]:
    item = comparison.items[n]
    return {
        "label": item.label,
        "space": item.space,
        "model": item.question["model"],
        "cluster": item.question["cluster"],
        "summary": item.summary,
        "family": item.family,
        "workers": item.workers,
        "global_batch": item.samples,
        "seq": item.seq,
        "step_time_s": item.step_time_s,
        "step_time_low_s": item.step_time_low_s,
        "step_time_high_s": item.step_time_high_s,
        "time_s": item.step_time_s / comparison.work(n),
        "relative_time": comparison.scores[n] / comparison.scores[0],
        "samples_per_s": item.samples_per_s,
        "tokens_per_s": item.tokens_per_s,
        "ttft_s": item.first_token_s,
        "memory_bytes_per_gpu": item.memory_bytes,
        "memory_capacity_bytes": item.memory_capacity_bytes,
        "fits": item.fits,
        "fits_probability": item.fits_probability,
        "mfu": item.mfu,
        **item.costs,
        "found": item.found or None,
    }


def _text_rows(rows: Sequence[tuple[str, tuple[str, ...]]]) -> list[dict[str, Any]]:
    return [{"name": name, "values": list(values)} for name, values in rows]


def _number_row(row: Row, unit: str) -> dict[str, Any]:
    return {
        "key": row.key,
        "name": row.name,
        f"values_{unit}": list(row.values),
        f"differences_{unit}": list(row.differences),
    }


def _records(comparison: Comparison) -> list[dict[str, Any]]:
    """One line per plan: its figures, then its terms of time and memory."""
    terms = (*comparison.times, *comparison.first_token, *comparison.memory)
    return [
        {**_plan_record(comparison, n), **{row.key: row.values[n] for row in terms}}
        for n in range(len(comparison.items))
    ]

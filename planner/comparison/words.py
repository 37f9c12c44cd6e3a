"""Why one plan is faster than another, in sentences: the largest differences, and the settings that make them."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.tolerances import EQUAL
from planner.comparison.differences import Comparison, Row
from planner.core.numbers import byte_text, duration_text
from planner.report.tables import ratio_text

__all__ = ["memory_sentence", "question_sentences", "why"]

# Term -> settings that it depends on, most important first.
_CAUSES = {
    "compute_s": ("workers", "tp", "cp", "micro_batch"),
    "recompute_s": ("recompute", "recompute_blocks", "stage_recompute"),
    "tp_exposed_s": ("tp", "sequence_parallel", "block_splits"),
    "cp_exposed_s": ("cp", "cp_kind"),
    "ep_exposed_s": ("ep", "etp"),
    "pp_exposed_s": ("pp", "vpp", "micro_batch"),
    "dp_exposed_s": ("dp_replicate", "dp_shard", "zero_stage", "tp", "pp", "order"),
    "bubble_s": ("pp", "num_micro_batches", "schedule", "vpp", "stage_blocks", "stages"),
    "optimizer_s": ("zero_stage", "dp_shard", "offload_optimizer", "tp", "pp"),
    "offload_s": ("offload_optimizer", "offload_activations"),
    "decode_compute_s": ("tp", "pp", "max_batch"),
    "decode_tp_s": ("tp",),
    "decode_ep_s": ("ep", "etp"),
    "decode_pp_s": ("pp",),
    "decode_host_s": (),
    "waiting_s": ("max_batch", "prefill_chunk", "prefill_batch", "dp"),
}
# What is asked that bears on every term, on what devices compute, on what networks carry, and on the update; the most important first.
_ASKED = ("model", "sequence length", "adapters")
_ASKED_OF_DEVICES = ("device", "precision")
_ASKED_OF_NETWORKS = ("cluster", "precision")
_DEVICE_TERMS = frozenset({"compute_s", "recompute_s", "optimizer_s", "decode_compute_s"})
# Smaller changes, relative to the slower plan, only make a sentence longer.
_LEAST = 0.01
_MOST_TERMS = 3
_MOST_CAUSES = 3


def question_sentences(comparison: Comparison) -> list[str]:
    """Say plainly that plans answer different questions, and what is compared then."""
    if comparison.is_same_question:
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
    low, high = sorted((scores[0], scores[n]))
    if high - low <= EQUAL * high:
        return f"{other.label} is as fast as {first.label}." + _trade(comparison, n, 0, is_equal=True)
    fast, slow = (n, 0) if scores[n] < scores[0] else (0, n)
    better = items[fast].better(ratio_text(high / low), items[slow], comparison.objective)
    rates = items[fast].rates(items[slow], comparison.basis)
    return f"{better}: {rates}." + _trade(comparison, fast, slow)


def _trade(comparison: Comparison, fast: int, slow: int, *, is_equal: bool = False) -> str:
    """What the faster plan saves and what it pays, with the settings behind the largest saving."""
    scale = comparison.items[slow].step_time_s / comparison.work(slow)
    changes = [(row, (row.values[fast] or 0.0) - (row.values[slow] or 0.0)) for row in comparison.times]
    saved = sorted((c for c in changes if c[1] < -_LEAST * scale), key=lambda c: c[1])[:_MOST_TERMS]
    paid = sorted((c for c in changes if c[1] > _LEAST * scale), key=lambda c: -c[1])[:_MOST_TERMS]
    batches = comparison.items[fast].batches(comparison.items[slow])
    if not saved and not paid:
        return batches if is_equal or batches else " No term differs by more than 1 %."
    sentence = ""
    if saved:
        sentence = f" It saves {_listed(saved, _causes(comparison, saved[0][0], fast, slow))}"
    if paid:
        sentence += (", and pays " if saved else " It pays ") + _listed(paid)
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
    rows = sorted(
        (
            (row, (row.values[n] or 0.0) - (row.values[0] or 0.0))
            for row in comparison.memory
            if abs((row.values[n] or 0.0) - (row.values[0] or 0.0)) > least
        ),
        key=lambda entry: -abs(entry[1]),
    )[:_MOST_TERMS]
    parts = ", ".join(f"{row.name} {'+' if d > 0 else '-'}{byte_text(abs(d))}" for row, d in rows)
    more = "more" if change > 0 else "less"
    return (
        f"{other.label} needs {byte_text(abs(change))} {more} per GPU than {first.label}"
        + (f": {parts}" if parts else "")
        + "."
    )

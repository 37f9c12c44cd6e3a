"""The answer of ``planner validate`` in every form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import NOT_AVAILABLE, duration_text, percent, signed, significant
from planner.measurements.run import FileScore
from planner.measurements.scores import Score
from planner.report.documents import RESULT_VERSION

__all__ = ["bar_facts", "score_document", "validation_report"]


def validation_report(scores: Sequence[FileScore], by: str | None = None) -> Report:
    """Make the report.

    Parameters
    ----------
    scores : sequence of FileScore
    by : str, optional
        The column that parts the files.
    """
    return Report(
        blocks=lambda: _blocks(scores, by),
        data=lambda: {"schema_version": RESULT_VERSION, "by": by, "files": [_document(score, by) for score in scores]},
        records=lambda: _records(scores, by),
    )


_MOST_REASONS = 12  # named in words
# What is shown of the paleo preset.
_BESIDE = (
    "scored",
    "mape",
    "median_ape",
    "p90_ape",
    "bias",
    "skill",
    "kendall_tau",
    "pair_accuracy",
    "regret_top1_mean",
    "regret_top1_max",
    "regret_top3_mean",
)

# -- for programs ---------------------------------------------------------------------------------------------------------------


def score_document(score: Score) -> dict[str, Any]:
    """Figures of some rows; shares of 1, not percent."""
    times, ranking, memory, bars = score.times, score.ranking, score.memory, score.bars
    return {
        "rows": score.rows,
        "scored": score.scored,
        "skipped": dict(score.skipped),
        "usable": score.usable,
        "coverage": score.coverage,
        "comparisons": score.comparisons,
        "mape": times.mape,
        "median_ape": times.median_ape,
        "p90_ape": times.p90_ape,
        "bias": times.bias,
        "skill": times.skill,
        "groups": ranking.groups,
        "kendall_tau": ranking.kendall_tau,
        "pair_accuracy": ranking.pair_accuracy,
        "regret_top1_mean": ranking.regret_top1_mean,
        "regret_top1_max": ranking.regret_top1_max,
        "regret_top3_mean": ranking.regret_top3_mean,
        "interval_rows": bars.rows,
        "interval_coverage": bars.coverage,
        "interval_width": bars.width,
        "interval_score": bars.score,
        "interval_score_one_width": bars.score_one_width,
        "interval_score_hindsight": bars.score_hindsight,
        "list_questions": bars.questions,
        "list_holds_best": bars.holds_best,
        "list_length": bars.length,
        "list_plans": bars.plans,
        "memory_mape": memory.mape,
        "memory_median_ape": memory.median_ape,
        "memory_bias": memory.bias,
        "oom_recall": memory.recall,
        "oom_false_alarm": memory.false_alarm,
        "failures": memory.failures,
        "failures_apart": dict(memory.apart),
        "parameters_fitted": len(score.fitted),
        "without_default": score.without_default,
        "defaults": dict(score.defaults),
    }


def _document(score: FileScore, by: str | None) -> dict[str, Any]:
    document: dict[str, Any] = {"file": score.file, "kind": score.kind, **score_document(score.score)}
    document["paleo"] = _paleo(score.paleo)
    document["error_bars_in_sample"] = score.in_sample
    document["remarks"] = list(score.remarks)
    document["refused"] = [{"line": one.line, "column": one.column, "message": one.message} for one in score.refused]
    document["fitted"] = sorted(score.score.fitted)
    document["worst"] = [
        {
            "line": row.line,
            "what": row.what,
            "predicted_s": row.predicted_s,
            "measured_s": row.measured_s,
            "ratio": row.predicted_s / row.measured_s,
            "label": row.label,
        }
        for row in score.score.worst
    ]
    if by is not None:
        document["by"] = [
            {"column": by, "value": text, **score_document(part), "paleo": _paleo(score.paleo_parts[text])}
            for text, part in score.parts.items()
        ]
    return document


def _paleo(score: Score) -> dict[str, Any]:
    """The same rows by the ``paleo`` preset, for comparison."""
    whole = score_document(score)
    return {key: whole[key] for key in _BESIDE}


def _records(scores: Sequence[FileScore], by: str | None) -> list[dict[str, Any]]:
    """One line per file, or per part of a file."""
    records = []
    for file in scores:
        parts: Mapping[str, Score] = file.parts if by is not None else {"": file.score}
        for text, part in parts.items():
            flat = {key: value for key, value in score_document(part).items() if not isinstance(value, dict)}
            records.append({"file": file.file, "kind": file.kind, **({by: text} if by is not None else {}), **flat})
    return records


# -- for people -----------------------------------------------------------------------------------------------------------------


def _blocks(scores: Sequence[FileScore], by: str | None) -> list[Block]:
    blocks: list[Block] = [
        _table(
            "file", [(file.file.rsplit("/", maxsplit=1)[-1], file.score) for file in scores], [f.paleo for f in scores]
        )
    ]
    blocks.append(
        Sentence(
            "Errors are shares of the measured time; bias is the mean of log(predicted / measured), below 0 where predictions are too "
            "short; skill is 1 - error / error of FLOPs over peak at one fitted efficiency; tau and regret are means over groups of "
            "alternatives (rows that differ in the plan only)."
        )
    )
    if any(file.score.bars.rows for file in scores):
        blocks.append(
            Sentence(
                "Inside: share of the measured times within the 80 % interval that planner optimize prints; on list: share of the groups "
                "whose list to benchmark holds the plan measured best."
            )
        )
    for file in scores:
        blocks += [Heading(f"{file.file} ({file.kind})"), _facts(file)]
        if by is not None and file.parts:
            rows = [(text or "(not stated)", part) for text, part in file.parts.items()]
            blocks.append(_table(by, rows, list(file.paleo_parts.values())))
        if file.score.worst:
            blocks.append(_worst(file.score))
    return blocks


def _table(title: str, rows: Sequence[tuple[str, Score]], paleo: Sequence[Score] = ()) -> Table:
    parts = [part for _, part in rows]

    def column(name: str, values: Sequence[str], priority: int) -> Column:
        return Column(title=name, cells=tuple(values), priority=priority)

    columns = [
        Column(title=title, cells=tuple(text for text, _ in rows), is_text=True, flexible=True),
        column("rows", [f"{p.rows:,}" for p in parts], 3),
        column("scored", [f"{p.scored:,}" for p in parts], 0),
        column("coverage", [percent(p.coverage) for p in parts], 4),
        column("MAPE", [percent(p.times.mape) for p in parts], 0),
        *([column("MAPE\nof paleo", [percent(p.times.mape) for p in paleo], 1)] if paleo else []),
        column("median", [percent(p.times.median_ape) for p in parts], 0),
        column("90th\npercentile", [percent(p.times.p90_ape) for p in parts], 4),
        column("bias", [signed(p.times.bias) for p in parts], 2),
        column("skill", [signed(p.times.skill) for p in parts], 5),
    ]
    if any(p.ranking.groups for p in parts):
        columns += [
            column("groups", [str(p.ranking.groups) for p in parts], 6),
            column("tau", [signed(p.ranking.kendall_tau) for p in parts], 1),
            column("pairs\nright", [percent(p.ranking.pair_accuracy) for p in parts], 6),
            column("regret\ntop 1", [_ratio(p.ranking.regret_top1_mean) for p in parts], 1),
            column("regret\nworst", [_ratio(p.ranking.regret_top1_max) for p in parts], 5),
            column("regret\ntop 3", [_ratio(p.ranking.regret_top3_mean) for p in parts], 4),
        ]
    if any(p.bars.rows for p in parts):
        columns.append(column("inside", [percent(p.bars.coverage) for p in parts], 3))
    if any(p.bars.questions for p in parts):
        columns.append(column("on\nlist", [percent(p.bars.holds_best) for p in parts], 3))
    if any(p.memory.median_ape is not None or p.memory.failures for p in parts):
        columns += [
            column("memory\nmedian", [percent(p.memory.median_ape) for p in parts], 2),
            column("OOM\nrecall", [percent(p.memory.recall) for p in parts], 2),
            column("OOM false\nalarms", [percent(p.memory.false_alarm) for p in parts], 2),
        ]
    return Table(columns=tuple(columns))


def _facts(file: FileScore) -> Facts:
    score = file.score
    pairs = [
        *(("remark", remark) for remark in file.remarks),
        (
            "scored",
            f"{score.scored:,} of {score.usable:,} usable rows ({percent(score.coverage)}), {score.rows:,} in all",
        ),
    ]
    if score.skipped:
        pairs.append(("skipped", _reasons(score.skipped)))
    if score.memory.failures:
        apart = "; ".join(f"{count:,} {reason}" for reason, count in score.memory.apart.items()) or "none"
        pairs.append(("failed runs", f"{score.memory.failures:,}; counted apart, as crashes or hangs: {apart}"))
    if score.memory.mape is not None:
        pairs.append(("memory error", f"mean {percent(score.memory.mape)}, bias {signed(score.memory.bias)}"))
    pairs += bar_facts(file)
    lacking = ", ".join(f"{name} ({count:,})" for name, count in list(score.defaults.items())[:12])
    pairs.append(
        ("without any default", percent(score.without_default) + (f"; taken by default: {lacking}" if lacking else ""))
    )
    pairs.append(
        ("fitted constants", str(len(score.fitted)) + (f": {', '.join(sorted(score.fitted))}" if score.fitted else ""))
    )
    return Facts(pairs=tuple(pairs))


def bar_facts(file: FileScore) -> list[tuple[str, str]]:
    """How the error bars of a file's rows did, in words."""
    score, bars = file.score, file.score.bars
    if not bars.rows:
        return []
    rows = f"{bars.rows:,} times" if bars.rows == score.comparisons else f"{bars.rows:,} of {score.comparisons:,} times"
    text = (
        f"{percent(bars.coverage)} of {rows} inside the 80 % interval; interval score {significant(bars.score)}, of one width for all "
        f"{significant(bars.score_one_width)} (of the one that suits these rows best {significant(bars.score_hindsight)})"
    )
    found = [("error bars", text + ("; they were fitted to this very file" if file.in_sample else ""))]
    if bars.questions:
        median = f"median length {bars.length:g} of {bars.plans:g} plans"
        held = f"{percent(bars.holds_best)} of {bars.questions:,} hold the plan measured best"
        found.append(("lists to benchmark", f"{held}; {median}"))
    return found


def _reasons(skipped: Mapping[str, int]) -> str:
    """The most frequent reasons, and how many rows the others leave out; --json has all."""
    ordered = sorted(skipped.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"{count:,} {reason}" for reason, count in ordered[:_MOST_REASONS]]
    others = [count for _, count in ordered[_MOST_REASONS:]]
    return "; ".join([*parts, f"{sum(others):,} for {len(others):,} other reasons"] if others else parts)


def _worst(score: Score) -> Table:
    worst = score.worst
    return Table(
        columns=(
            Column(title="worst rows\nline", cells=tuple(str(row.line) for row in worst)),
            Column(title="what", cells=tuple(row.what for row in worst), is_text=True, priority=2),
            Column(title="predicted", cells=tuple(duration_text(row.predicted_s) for row in worst)),
            Column(title="measured", cells=tuple(duration_text(row.measured_s) for row in worst)),
            Column(title="ratio", cells=tuple(_ratio(row.predicted_s / row.measured_s) for row in worst)),
            Column(title="row", cells=tuple(row.label for row in worst), is_text=True, flexible=True),
        )
    )


def _ratio(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else significant(value)

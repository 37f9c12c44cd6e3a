"""The answer of ``planner validate`` in every form, and the figures that its tables for people show."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import NOT_AVAILABLE, duration_text, percent, signed, significant
from planner.measurements.scores import FileScore, Score
from planner.report.documents import RESULT_VERSION


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
        details=lambda: [Facts(tuple((f"fitted constants, {file.file}", fitted_text(file)) for file in scores))],
        data=lambda: {"schema_version": RESULT_VERSION, "by": by, "files": [_document(score, by) for score in scores]},
        records=lambda: _records(scores, by),
    )


_MOST_REASONS = 12  # named in words
# What is shown of the paleo preset.
_BESIDE = (
    *("scored", "mape", "median_ape", "p90_ape", "bias", "skill", "kendall_tau", "pair_accuracy"),
    *("regret_top1_mean", "regret_top1_max", "regret_top3_mean"),
)

# -- for programs ---------------------------------------------------------------------------------------------------------------


def _document(file: FileScore, by: str | None) -> dict[str, Any]:
    document = {
        "file": file.file,
        "kind": file.kind,
        **_figures(file.score, file.paleo),
        "error_bars_in_sample": file.in_sample,
        "remarks": list(file.remarks),
        "refused": [{"line": one.line, "column": one.column, "message": one.message} for one in file.refused],
        "fitted": sorted(file.score.fitted),
        "worst": [
            {
                "line": row.line,
                "what": row.what,
                "predicted_s": row.predicted_s,
                "measured_s": row.measured_s,
                "ratio": row.ratio,
                "label": row.label,
            }
            for row in file.score.worst
        ],
    }
    if by is not None:
        document["by"] = [{"column": by, "value": text, **_figures(*part)} for text, part in file.parts.items()]
    return document


def _figures(score: Score, paleo: Score) -> dict[str, Any]:
    """Shares of 1, not percent; the same rows by the ``paleo`` preset for comparison."""
    return {**score.figures, "paleo": {name: paleo[name] for name in _BESIDE}}


def _records(scores: Sequence[FileScore], by: str | None) -> list[dict[str, Any]]:
    """One line per file, or per part of a file."""
    records = []
    for file in scores:
        for text, (part, _) in file.parts.items() if by is not None else [("", (file.score, file.paleo))]:
            flat = {key: value for key, value in part.figures.items() if not isinstance(value, dict)}
            records.append({"file": file.file, "kind": file.kind, **({by: text} if by is not None else {}), **flat})
    return records


# -- for people -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of the tables for people.

    Attributes
    ----------
    name : str
        Of the figure; see `planner.schema.results.Figures`.
    written : function
    title, meaning : str
        On the page.
    head : str
        In a terminal; empty: it is on the page only.
    priority : int
        Of the column of a terminal.
    is_paleo : bool
        The figure of the ``paleo`` preset.
    """

    name: str
    written: Callable[[float | None], str]
    title: str
    meaning: str
    head: str = ""
    priority: int = 0
    is_paleo: bool = False

    def values(self, parts: Sequence[tuple[str, Score, Score]]) -> list[float | None]:
        """The figure of each part."""
        return [(paleo if self.is_paleo else score)[self.name] for _, score, paleo in parts]


def _count(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:,.0f}"


_REGRET = "measured time of the pick, which is predicted to fit / best measured"
_REGRET_3 = "best measured of the first three picks / best measured"
_BY_PALEO = "the same by the preset paleo"
# Figures that make a table show a section -> the figures of the section, in the order of a terminal's table.
SECTIONS: Mapping[tuple[str, ...], tuple[Figure, ...]] = {
    ("rows",): (
        Figure("rows", _count, "rows", "in the file", "rows", 3),
        Figure("scored", _count, "scored", "predicted and compared, or scored for feasibility", "scored"),
        Figure("coverage", percent, "coverage", "scored / rows with a usable measurement or a failure", "coverage", 4),
        Figure("mape", percent, "MAPE", "mean absolute error", "MAPE"),
        Figure("mape", percent, "paleo MAPE", _BY_PALEO, "MAPE\nof paleo", 1, is_paleo=True),
        Figure("median_ape", percent, "paleo median", _BY_PALEO, is_paleo=True),
        Figure("bias", signed, "paleo bias", _BY_PALEO, is_paleo=True),
        Figure("median_ape", percent, "median", "median absolute error", "median"),
        Figure("p90_ape", percent, "90 %", "90th percentile of the absolute error", "90th\npercentile", 4),
        Figure("bias", signed, "bias", "mean of log(predicted / measured): below 0 where too short", "bias", 2),
        Figure("skill", signed, "skill", "1 - error / error of FLOPs over peak at one fitted efficiency", "skill", 5),
    ),
    ("groups",): (
        Figure("groups", _count, "groups", "sets of at least three rows that differ in the plan only", "groups", 6),
        Figure("kendall_tau", signed, "tau", "Kendall's tau-b, mean over groups", "tau", 1),
        Figure("pair_accuracy", percent, "pairs right", "share of pairs in the right order", "pairs\nright", 6),
        Figure("regret_top1_mean", significant, "regret", _REGRET, "regret\ntop 1", 1),
        Figure("regret_top1_max", significant, "worst regret", "of the worst group", "regret\nworst", 5),
        Figure("regret_top3_mean", significant, "regret of 3", _REGRET_3, "regret\ntop 3", 4),
        Figure("kendall_tau", signed, "paleo tau", _BY_PALEO, is_paleo=True),
    ),
    ("interval_rows",): (
        Figure("interval_rows", _count, "intervals", "times whose interval is known"),
        Figure("interval_coverage", percent, "inside", "share of them within the 80 % interval that planner optimize prints", "inside", 3),
        Figure("interval_width", significant, "width", "median of log(upper end / lower end)"),
        Figure("interval_score", significant, "interval score", "width + 10 times how far outside, of log(time): smaller is better"),
        Figure("interval_score_one_width", significant, "one width", "interval score of one width for all, that of the calibration"),
        Figure("interval_score_hindsight", significant, "hindsight", "interval score of the one width that suits these rows best"),
    ),
    ("list_questions",): (
        Figure("list_questions", _count, "lists", "groups with at least three different plans"),
        Figure("list_holds_best", percent, "hold the best", "share of the lists with the plan measured best", "best\non list", 3),
        Figure("list_length", significant, "length", "median number of plans on a list"),
        Figure("list_plans", significant, "of plans", "median number of plans of a group"),
    ),
    ("memory_mape", "failures"): (
        Figure("memory_mape", percent, "memory", "mean absolute error of the memory"),
        Figure("memory_median_ape", percent, "memory median", "median absolute error of the memory", "memory\nmedian", 2),
        Figure("oom_recall", percent, "OOM recall", "of the failures that memory explains: predicted not to fit", "OOM\nrecall", 2),
        Figure("oom_false_alarm", percent, "false alarms", "of the runs that succeeded: predicted not to fit", "OOM false\nalarms", 2),
    ),
}  # fmt: skip


def figures_of(parts: Sequence[tuple[str, Score, Score]], *sections: tuple[str, ...]) -> list[Figure]:
    """Figures of sections that some part has."""
    has = [any(score[name] for _, score, _ in parts for name in section) for section in sections]
    return [figure for section, is_there in zip(sections, has, strict=True) if is_there for figure in SECTIONS[section]]


def parts_of(file: FileScore) -> list[tuple[str, Score, Score]]:
    """Parts of a file by what people call them."""
    return [(text or "(not stated)", *both) for text, both in file.parts.items()]


def _blocks(scores: Sequence[FileScore], by: str | None) -> list[Block]:
    groups = any(file.score["groups"] for file in scores)
    blocks: list[Block] = [
        _table("file", [(file.file.rsplit("/", maxsplit=1)[-1], file.score, file.paleo) for file in scores]),
        Sentence(
            "Errors are shares of the measured time; bias is the mean of log(predicted / measured), below 0 where predictions are too "
            "short; skill is 1 - error / error of FLOPs over peak at one fitted efficiency"
            + groups * "; tau and regret are means over groups of alternatives (rows that differ in the plan only)"
            + "."
        ),
    ]
    explained = {
        "interval_rows": "Inside: share of the measured times within the 80 % interval that planner optimize prints.",
        "list_questions": "Best on list: share of the groups whose list to benchmark holds the plan measured best.",
    }
    blocks += [Sentence(text) for name, text in explained.items() if any(file.score[name] for file in scores)]
    for file in scores:
        blocks += [Heading(f"{file.file} ({file.kind})"), Facts(pairs=tuple(facts_of(file)))]
        if by is not None and file.parts:
            blocks.append(_table(by, parts_of(file)))
        if file.score.worst:
            blocks.append(_worst(file.score))
    return blocks


def _table(title: str, parts: Sequence[tuple[str, Score, Score]]) -> Table:
    names = Column(title=title, cells=tuple(text for text, _, _ in parts), is_text=True, flexible=True)
    columns = [
        Column(
            title=figure.head,
            cells=tuple(figure.written(value) for value in figure.values(parts)),
            priority=figure.priority,
        )
        for figure in figures_of(parts, *SECTIONS)
        if figure.head
    ]
    return Table(columns=(names, *columns))


def facts_of(file: FileScore) -> list[tuple[str, str]]:
    """What a file's figures are about, in words."""
    score = file.score
    scored = f"{score['scored']:,} of {score['usable']:,} usable rows ({percent(score['coverage'])}), {score['rows']:,} in all"
    pairs = [*(("remark", remark) for remark in file.remarks), ("scored", scored)]
    if score["skipped"]:
        pairs.append(("skipped", _reasons(score["skipped"], score.lines)))
    if score["failures"]:
        apart = "; ".join(f"{count:,} {reason}" for reason, count in score["failures_apart"].items()) or "none"
        pairs.append(("failed runs", f"{score['failures']:,}; counted apart, as crashes or hangs: {apart}"))
    if score["memory_mape"] is not None:
        pairs.append(("memory error", f"mean {percent(score['memory_mape'])}, bias {signed(score['memory_bias'])}"))
    if score["interval_rows"]:
        pairs.append(("error bars", _bars(file)))
    if score["list_questions"]:
        median = f"median length {score['list_length']:g} of {score['list_plans']:g} plans"
        held = f"{percent(score['list_holds_best'])} of {score['list_questions']:,} hold the plan measured best"
        pairs.append(("lists to benchmark", f"{held}; {median}"))
    lacking = ", ".join(f"{name} ({count:,})" for name, count in list(score["defaults"].items())[:12])
    taken = f"; taken by default: {lacking}" if lacking else ""
    return [*pairs, ("without any default", percent(score["without_default"]) + taken)]


def fitted_text(file: FileScore) -> str:
    """The constants that were fitted to measurements, by name."""
    return f"{len(file.score.fitted)}: {', '.join(sorted(file.score.fitted))}" if file.score.fitted else "none"


def _bars(file: FileScore) -> str:
    """How the error bars of a file's rows did."""
    score, known, compared = file.score, file.score["interval_rows"], file.score["comparisons"]
    rows = f"{known:,} times" if known == compared else f"{known:,} of {compared:,} times"
    text = (
        f"{percent(score['interval_coverage'])} of {rows} inside the 80 % interval; "
        f"interval score (its width and what lies outside: smaller is better) {significant(score['interval_score'])}, "
        f"of one width for all {significant(score['interval_score_one_width'])}, "
        f"of the one that suits these rows best {significant(score['interval_score_hindsight'])}"
    )
    return f"{text}; they were fitted to this very file" if file.in_sample else text


def _reasons(skipped: Mapping[str, int], lines: Mapping[str, Sequence[int]]) -> str:
    """The most frequent reasons with the first lines, and how many rows the others leave out; --json has all."""
    ordered = sorted(skipped.items(), key=lambda pair: (-pair[1], pair[0]))
    parts = [f"{count:,} {reason} ({_at(lines[reason])})" for reason, count in ordered[:_MOST_REASONS]]
    others = [count for _, count in ordered[_MOST_REASONS:]]
    return "; ".join([*parts, f"{sum(others):,} for {len(others):,} other reasons"] if others else parts)


def _at(lines: Sequence[int]) -> str:
    """The first lines of a file.

    >>> _at([7]), _at([2, 3, 5, 8])
    ('line 7', 'lines 2, 3, 5, ...')
    """
    first = ", ".join(map(str, lines[:3]))
    return f"line{'s' if len(lines) > 1 else ''} {first}{', ...' if len(lines) > 3 else ''}"


def _worst(score: Score) -> Table:
    worst = score.worst
    return Table(
        columns=(
            Column(title="worst rows\nline", cells=tuple(str(row.line) for row in worst)),
            Column(title="what", cells=tuple(row.what for row in worst), is_text=True, priority=2),
            Column(title="predicted", cells=tuple(duration_text(row.predicted_s) for row in worst)),
            Column(title="measured", cells=tuple(duration_text(row.measured_s) for row in worst)),
            Column(title="ratio", cells=tuple(significant(row.ratio) for row in worst)),
            Column(title="row", cells=tuple(row.label for row in worst), is_text=True, flexible=True),
        )
    )

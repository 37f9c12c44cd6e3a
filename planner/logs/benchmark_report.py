"""The answer of ``planner check`` about a benchmark of a server: the verdict first, then each figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.core.answer import assumption_text
from planner.core.blocks import Block, Column, Facts, Report, Sentence, Table
from planner.core.numbers import counted, joined_words
from planner.logs.benchmarks import CheckedFigure, ServerCheck, figure_text
from planner.logs.report import difference_text, next_facts
from planner.report.documents import RESULT_VERSION

_SHOWN_ASSUMPTIONS = ("cluster", "device", "framework", "prompt", "output", "weights", "keys and values")


def server_check_report(check: ServerCheck) -> Report:
    """Make the report."""
    return Report(
        blocks=lambda: _blocks(check),
        data=lambda: _document(check),
        records=lambda: [_record(figure) for figure in check.figures],
    )


def _blocks(check: ServerCheck) -> Sequence[Block]:
    benchmark, figures = check.benchmark, check.figures
    taken = [a for a in check.estimate.assumptions if a.name in _SHOWN_ASSUMPTIONS]
    in_flight = f", {benchmark.concurrency:,} in flight" if benchmark.concurrency else ""
    pairs = (
        ("Plan", check.estimate.ranked.summary),
        ("Benchmark", f"{benchmark.program}, {counted(benchmark.requests, 'request')}{in_flight}"),
        ("Assumed", ", ".join(assumption_text(a, stated_only=True) for a in taken)),
        *next_facts(check.path, check.estimate.setting.command_line, ()),
    )
    table = Table(
        columns=(
            Column("figure", tuple(figure.label for figure in figures), is_text=True),
            Column("measured", tuple(figure_text(figure, figure.measured) for figure in figures)),
            Column("predicted", tuple(figure_text(figure, figure.predicted) for figure in figures)),
            Column("80 % interval", tuple(_interval(figure) for figure in figures)),
            Column("", tuple({None: "", True: "inside", False: "OUTSIDE"}[figure.inside] for figure in figures)),
            Column("the prediction is", tuple(_off(figure) for figure in figures), 1, is_text=True),
        )
    )
    return [
        Sentence(_verdict(check), strong=True),
        Facts(pairs),
        table,
        *(Sentence(f"- {note}") for note in check.notes),
    ]


def _verdict(check: ServerCheck) -> str:
    known = [figure for figure in check.figures if figure.inside is not None]
    outside = [figure.label for figure in known if not figure.inside]
    if not known:
        return "Measured beside predicted; the prediction has no error bars."
    if not outside:
        return f"Measured inside the 80 % intervals of the prediction: {joined_words([f.label for f in known])}."
    return f"Measured OUTSIDE the 80 % interval of the prediction: {joined_words(outside)}."


def _interval(figure: CheckedFigure) -> str:
    if figure.low is None or figure.high is None:
        return ""
    return f"{figure_text(figure, figure.low)} to {figure_text(figure, figure.high)}"


def _off(figure: CheckedFigure) -> str:
    words = ("high", "low") if figure.name == "output_tokens_per_s" else ("long", "short")
    return difference_text(figure.predicted, figure.measured, words)


def _record(figure: CheckedFigure) -> dict[str, Any]:
    return {
        "figure": figure.name,
        "measured": figure.measured,
        "predicted": figure.predicted,
        "low": figure.low,
        "high": figure.high,
        "inside": figure.inside,
    }


def _document(check: ServerCheck) -> dict[str, Any]:
    setting, benchmark = check.estimate.setting, check.benchmark
    return {
        "schema_version": RESULT_VERSION,
        "benchmark": str(check.path),
        "program": benchmark.program,
        "inside": check.inside,
        "requests": benchmark.requests,
        "failed": benchmark.failed,
        "concurrency": benchmark.concurrency,
        "model": setting.model,
        "cluster": setting.cluster,
        "framework": setting.framework,
        "gpus": check.estimate.ranked.workers,
        "summary": check.estimate.ranked.summary,
        "figures": [_record(figure) for figure in check.figures],
        "assumptions": [{"name": a.name, "value": a.value, "source": a.source} for a in check.estimate.assumptions],
        "notes": list(check.notes),
    }

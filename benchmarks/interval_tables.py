"""What `intervals.py` writes: tables of intervals and lists for docs/accuracy.md, and the bundled calibration."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from interval_fit import POPULATIONS, Fitted, model_of, quantile, weights
from interval_left_out import Folds, Unseen, of_anybody, questions
from interval_other_sources import OTHER_SOURCES, scored
from interval_rows import FILES, Rows

from benchmarks.datasets import read
from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import (
    ErrorModel,
    interval_score,
    intervals,
    sampled_log_errors,
)
from costmodel.uncertainty.rankings import probability_best, shortest_list
from planner.measurements.kinds import recognise
from planner.uncertainty.bars import SAME_WITHIN, near_list

NAMED_ROWS = 30  # held-back runs from which on a framework must do better than an unknown one


def bounds(found: Folds) -> tuple[FloatArray, FloatArray]:
    """Logarithms of the ends of every row's interval, by the fit without it."""
    rows, fold = found.rows, found.fold
    low, high = np.zeros(len(rows)), np.zeros(len(rows))
    for k, fitted in found.fits.items():
        for kind in np.unique(rows.kind[fold == k]):
            mine = (fold == k) & (rows.kind == kind)
            ends = intervals(rows.take(mine).candidates(fitted.log_sd), model_of(fitted, str(kind)))
            low[mine], high[mine] = np.log(ends[0]), np.log(ends[1])
    return low, high


def one_width(rows: Rows, fold: IntArray) -> tuple[FloatArray, FloatArray]:
    """The same with the quantiles of all residuals outside the fold, whatever the row."""
    low, high, weight = np.zeros(len(rows)), np.zeros(len(rows)), weights(rows)
    for k in np.unique(fold):
        rest = fold != k
        ends = [quantile(rows.residual[rest], weight[rest], share) for share in (0.1, 0.9)]
        low[fold == k], high[fold == k] = np.log(rows.predicted_s[fold == k])[None] + np.array(ends)[:, None]
    return low, high


def interval_table(found: Folds) -> list[str]:
    """Coverage, width and interval score of every file, beside one width for all."""
    rows = found.rows
    measured = np.log(rows.measured_s)
    low, high = bounds(found)
    low_one, high_one = one_width(rows, found.fold)
    inside, inside_one = (low <= measured) & (measured <= high), (low_one <= measured) & (measured <= high_one)
    score, score_one = interval_score(low, high, measured), interval_score(low_one, high_one, measured)
    lines = [
        "| left out | rows | coverage | median width | interval score | coverage, one width | median width | interval score |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    each, alike = np.ones(len(rows)), weights(rows, 1.0)
    subsets = [("**all rows**", each), ("**files alike**", alike), *((f, 1.0 * (rows.file == f)) for f in FILES)]
    for name, weight in subsets:
        mean = [np.average(values, weights=weight) for values in (inside, score, inside_one, score_one)]
        width, width_one = (quantile(w, weight, 0.5) for w in (high - low, high_one - low_one))
        lines.append(
            f"| {name} | {np.count_nonzero(weight)} | {mean[0]:.1%} | {width:.2f} | {mean[1]:.3f} "
            f"| {mean[2]:.1%} | {width_one:.2f} | {mean[3]:.3f} |"
        )
    return lines


def named_table(without_models: Folds, without_files: Folds) -> list[str]:
    """Intervals of named frameworks, models left out, beside those of the same rows as rows of an unknown framework.

    A coverage is told in standard deviations of that of as many runs, each of which is inside with a chance of 0.8.
    """
    rows = without_models.rows
    measured = np.log(rows.measured_s)
    own, unknown = ((*bounds(folds), measured) for folds in (without_models, without_files))
    inside = (own[0] <= measured) & (measured <= own[1])
    score, score_unknown = interval_score(*own), interval_score(*unknown)
    lines = [
        "| framework | runs | coverage | deviations from 80 % | interval score | of an unknown framework | share of an unknown one's |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| **named frameworks** | | | | | | |",
    ]
    for kind in np.unique(rows.kind[~np.isin(rows.kind, POPULATIONS)]).tolist():
        mine = rows.kind == kind
        if (count := int(mine.sum())) < NAMED_ROWS:
            continue
        covered, both = inside[mine].mean(), (score[mine].mean(), score_unknown[mine].mean())
        off = abs(covered - 0.8) / (0.8 * 0.2 / count) ** 0.5
        lines.append(
            f"| {kind} | {count} | {covered:.1%} | {off:.2f} | {both[0]:.3f} | {both[1]:.3f} | {both[0] / both[1]:.2f} |"
        )
    return lines


def list_table(folds: Folds) -> list[str]:
    """Lists to benchmark and chances of the first plan, of questions with at least three measured plans."""
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for part, model, log_times in _drawn(folds):
        chances, first, best = probability_best(log_times), int(np.argmin(part.predicted_s)), part.measured_s.min()
        figures: list[float] = [chances[first], part.measured_s[first] <= best]
        for tolerance in (0.0, SAME_WITHIN):
            listed = shortest_list(log_times, model.listed_share, tolerance)
            figures += [len(listed), part.measured_s[listed].min() <= best * (1 + tolerance)]
        few, within = near_list(log_times, model.listed_share, first)
        figures += [within, part.measured_s[few].min() <= best * (1 + within)]
        found[str(part.file[0])].append(tuple(figures))
    lines = [
        (
            "| left out | questions | list for the best | holds it | list within 3 % | holds one | within, of four | holds one "
            "| P(best) of the first | it is |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    everything = [figures for one in found.values() for figures in one]
    for name, figures_of in [("**all**", everything), *found.items()]:
        f = np.array(figures_of, dtype=np.float64)
        lines.append(
            f"| {name} | {len(f)} | {np.median(f[:, 2]):g} ({f[:, 2].max():g}) | {f[:, 3].mean():.0%} | {np.median(f[:, 4]):g} "
            f"({f[:, 4].max():g}) | {f[:, 5].mean():.0%} | {np.median(f[:, 6]):.0%} ({f[:, 6].max():.0%}) | {f[:, 7].mean():.0%} "
            f"| {f[:, 0].mean():.0%} | {f[:, 1].mean():.0%} |"
        )
    return lines


def _drawn(folds: Folds) -> Iterator[tuple[Rows, ErrorModel, FloatArray]]:
    """Plans of every question with the error model without them, and draws of the logarithms of their times."""
    for index in questions(folds.rows):
        part = folds.rows.take(index)
        fitted = folds.fits[int(folds.fold[index[0]])]
        model = model_of(fitted, str(part.kind[0]))
        errors = sampled_log_errors(part.candidates(fitted.log_sd), model)
        yield part, model, np.log(part.predicted_s) + errors


def other_sources_table(fitted: Fitted, of_files: Unseen) -> list[str]:
    """Coverage and interval score of sources in no file, by ends without them, beside the ends that files alone give."""
    lines = [
        "| left out | runs | coverage | interval score | coverage, of files alone | interval score |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    found: list[tuple[float, ...]] = []
    for one in OTHER_SOURCES:
        rest = tuple(other for other in OTHER_SOURCES if other is not one)
        figures: list[float] = []
        for sources in (rest, ()):
            model = of_anybody(fitted.models[one.population], one.population, of_files, sources)
            figures += scored(one, model.low * model.typical_log_sd, model.high * model.typical_log_sd)
        found.append(tuple(figures))
        lines.append(f"| {one.name} | {one.runs} | {_of_source(figures)} |")
    for population in POPULATIONS:
        mine = [figures for one, figures in zip(OTHER_SOURCES, found, strict=True) if one.population == population]
        lines.append(f"| **{population}, sources alike** | | {_of_source(np.mean(mine, axis=0))} |")
    return lines


def _of_source(figures: Sequence[float] | FloatArray) -> str:
    inside, score, inside_files, score_files = figures
    return f"{inside:.0%} | {score:.2f} | {inside_files:.0%} | {score_files:.2f}"


CHANCES = (0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 1.0)


def chance_table(found: Sequence[tuple[str, Folds]]) -> list[str]:
    """How often plans were the best that had a chance of so much."""
    titles = [f"{low:.0%} to {high:.0%}" for low, high in pairwise(CHANCES)]
    lines = [f"| P(best) of a plan | {' | '.join(titles)} |", f"| --- |{' ---: |' * len(titles)}"]
    for name, folds in found:
        both = [(probability_best(times), part.measured_s == part.measured_s.min()) for part, _, times in _drawn(folds)]
        said, was = np.concatenate([one for one, _ in both]), np.concatenate([best for _, best in both])
        cells = [np.searchsorted(CHANCES, said, side="left") == place for place in range(1, len(CHANCES))]
        cells[0] |= said == 0.0
        text = [
            f"{said[mine].mean():.0%}, {was[mine].mean():.0%} ({mine.sum()})" if mine.any() else "-" for mine in cells
        ]
        lines.append(f"| {name}: said, were (plans) | {' | '.join(text)} |")
    return lines


def text_of(without_models: Folds, without_files: Folds, other_sources: Sequence[str]) -> str:
    """The section of docs/accuracy.md; ``other_sources``: the table of sources in no file."""
    return "\n".join(
        [
            "### Intervals: models (vTrain: hidden sizes) left out",
            "",
            *interval_table(without_models),
            "",
            "### Intervals: whole files left out",
            "",
            "Framework, machine and models are all new to the fit; rows are scored as those of an unknown framework.",
            "",
            *interval_table(without_files),
            "",
            "### Intervals: named frameworks",
            "",
            *named_table(without_models, without_files),
            "",
            "### Intervals: sources in no file, each left out",
            "",
            *other_sources,
            "",
            "### What to benchmark: models (vTrain: hidden sizes) left out",
            "",
            *list_table(without_models),
            "",
            "### What to benchmark: whole files left out",
            "",
            *list_table(without_files),
            "",
            "### Chances to be the best",
            "",
            *chance_table([("models left out", without_models), ("whole files left out", without_files)]),
        ]
    )


def calibration_text(rows: Rows, fitted: Fitted, folder: Path, serving: Fitted, figures: Rows) -> str:
    """configs/calibrations/default.yaml; ``folder``: of the tables that the rows are from; ``figures``: rows of ``serving``."""
    residual = quantile(np.abs(rows.residual), weights(rows), 0.8) / 1.2816
    lines = [
        "# Written by benchmarks/intervals.py --write. Factors of 1: the bundled constants; log_sd: how far they are usually off.",
        "schema_version: 1",
        "name: default",
        "description: the bundled constants, and how far predictions are usually off",
        "source:",
        "  note: >-",
        "    residuals of published training steps (vTrain, Ultra-Scale Playbook, llm-foundry, Megatron-LM, NeMo, InternEvo,",
        "    tf_cnn_benchmarks, NVIDIA DeepLearningExamples; docs/accuracy.md); prior_log_sd as in costmodel/uncertainty/constants.py",
        f"  rows: {len(rows)}",
        f"  used: {len(rows)}",
        "  command: python benchmarks/intervals.py --write",
        "  tables:",
        *(_table(folder / f"{file}.csv", int((rows.file == file).sum())) for file in FILES),
        "constants:",
    ]
    for (name, constant), log_sd in zip(CONSTANTS.items(), fitted.log_sd, strict=True):
        lines.append(
            f"  {name}: {{value: 1.0, log_sd: {log_sd:.3g}, prior: 1.0, prior_log_sd: {constant.prior_log_sd:g}, determined: false}}"
        )
    lines += ["residual:", f"  log_sd: {residual:.3g}", "  kinds:"]
    for kind, model in fitted.models.items():
        lines += kind_lines(kind, replace(model, devices=_devices(rows, kind)), _count(rows, kind))
    for kind in np.unique(figures.kind).tolist():
        lines += kind_lines(kind, serving.models[kind], _count(figures, kind))
    return "\n".join(lines) + "\n"


def kind_lines(kind: str, model: ErrorModel, rows: int) -> list[str]:
    """One error model of the file."""
    parts = ", ".join(f"{name}: {value:.3g}" for name, value in model.by_part.items())
    return [
        f"    {kind}:",
        f"      rows: {rows}",
        *([f"      basis: {model.basis}"] if model.basis else []),
        *([f"      devices: [{', '.join(model.devices)}]"] if model.devices else []),
        f"      shared_log_sd: {model.shared_log_sd:.3g}",
        f"      plan_log_sd: {model.plan_log_sd:.3g}",
        f"      by_part: {{{parts}}}",
        f"      similarity_steps: {model.similarity_steps:g}",
        f"      typical_log_sd: {model.typical_log_sd:.3g}",
        f"      sharpness: {model.sharpness:g}",
        f"      low: {model.low:.3f}",
        f"      high: {model.high:.3f}",
        f"      ranking_scale: {model.ranking_scale:.3g}",
        f"      listed_share: {model.listed_share:g}",
    ]


def _table(path: Path, used: int) -> str:
    """What tells a table that was fitted to from others."""
    table = read(path)
    return f"    - {{file: {path.name}, sha256: {table.sha256}, kind: {recognise(table).name}, rows: {len(table.rows)}, used: {used}}}"


def _count(rows: Rows, kind: str) -> int:
    """Rows that an error model was fitted to."""
    return int(_mine(rows, kind).sum())


def _devices(rows: Rows, kind: str) -> tuple[str, ...]:
    """On which the rows of a framework ran; those of a population may run on any."""
    return () if kind in POPULATIONS else tuple(np.unique(rows.device[_mine(rows, kind)]).tolist())


def _mine(rows: Rows, kind: str) -> BoolArray:
    if kind in POPULATIONS:
        return np.asarray((rows.kind == "images") == (kind == "images"))
    return np.asarray(rows.kind == kind)

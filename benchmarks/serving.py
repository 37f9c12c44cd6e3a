"""Error bars of serving: fits their error model to published figures of serving engines and scores it on figures left out.

Usage: PLANNER_REFERENCE_DATA=FOLDER python benchmarks/serving.py [--write]     (three minutes)

``--write`` puts the scores into docs/inference.md; the error model is written by ``intervals.py``. Predictions, constants and their
uncertainty are the bundled ones: nothing of the cost model is fitted to these figures.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from first_tokens import first_tokens, score_lines
from interval_fit import Fitted, fit, model_of, once_each, quantile
from interval_left_out import Folds, calibrated_apart, questions, unseen
from interval_rows import Rows
from interval_tables import bounds, kind_lines
from numpy.typing import NDArray
from pages import measurements, put
from serving_rows import figure_rows

from costmodel.arrays import FloatArray, IntArray
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import interval_score, sampled_log_errors
from costmodel.uncertainty.rankings import shortest_list
from planner.files.loading import load_calibration

PAGE = Path(__file__).resolve().parents[1] / "docs" / "inference.md"
BEGIN, END = "<!-- error bars: python benchmarks/serving.py --write -->", "<!-- end of the error bars -->"
WORDS = {
    "serving": "dense networks",
    "serving-experts": "mixtures of experts",
    "serving-shared-experts": "mixtures of experts that replicas share",
}
# Figures of other sources without which one that is left out says nothing.
LEAST_OTHERS = 10
# Of 0, 0.25, 0.5, 0.75 and 1, looking at the scores of sources left out (dense) and of networks left out (mixtures, of which two sources
# are too few): in proportion 0.59 in place of 0.68, and not at all 0.73 in place of 1.13. The table is optimistic by that much.
SHARPNESS = {"serving": 1.0, "serving-experts": 0.0, "serving-shared-experts": 0.0}


def serving_models(rows: Rows, log_sd: FloatArray) -> Fitted:
    """Error models of all figures; ``log_sd``: of the constants, which other measurements say."""
    fold = folds_by(rows.group)
    fits = {int(k): _fit(rows.take(fold != k), log_sd) for k in np.unique(fold)}
    found = unseen(rows, fold, fits)
    models = dict(calibrated_apart(_fit(rows, log_sd), found, SHARPNESS).models)
    models |= {kind: replace(models[kind], basis=_basis(rows, kind)) for kind in np.unique(rows.kind).tolist()}
    return Fitted(log_sd=log_sd, models=models)


def _fit(rows: Rows, log_sd: FloatArray) -> Fitted:
    return replace(fit(rows), log_sd=log_sd)


def _basis(rows: Rows, kind: str) -> str:
    mine = rows.take(rows.kind == kind)
    networks, engines = np.unique(mine.group), {name.split()[0] for name in mine.file.tolist()}
    slower = np.expm1(quantile(mine.residual, once_each(mine), 0.5))
    found = (
        "as fast as predicted"
        if abs(slower) < 0.005
        else f"{'slower' if slower > 0 else 'faster'} than predicted by {abs(slower):.0%}"
    )
    return (
        f"{len(mine)} published figures of {len(networks)} {WORDS[kind]} by {' and '.join(sorted(engines))}, fewer than of training, "
        f"which were {found} in the median".replace("%", " %")
    )


def folds_by(label: NDArray[np.str_]) -> IntArray:
    """Fold of each row: one for each name."""
    return np.asarray(np.unique(label, return_inverse=True)[1])


def left_out(rows: Rows, label: NDArray[np.str_], log_sd: FloatArray) -> Folds:
    """Error models without each name in turn, and everything that was found from them."""
    fold = folds_by(label)
    return Folds(
        rows=rows, fold=fold, fits={int(k): serving_models(rows.take(fold != k), log_sd) for k in np.unique(fold)}
    )


def coverage_table(rows: Rows, log_sd: FloatArray) -> list[str]:
    """Coverage, width and interval score of each kind, with networks and with whole sources left out."""
    lines = [
        "| figures of | left out | figures | inside 80 % interval | median width | interval score |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    by_source = _with_other_sources(rows)
    for words, some, label in (("a network", rows, rows.group), ("a source", by_source, by_source.file)):
        found = left_out(some, label, log_sd)
        low, high = bounds(found)
        measured = np.log(some.measured_s)
        inside, score = (low <= measured) & (measured <= high), interval_score(low, high, measured)
        for kind, name in WORDS.items():
            parts = [("", some.kind == kind)]
            if some is by_source:
                parts += [(f": {s}", (some.kind == kind) & (some.file == s)) for s in np.unique(some.file)]
            lines += [
                f"| {name} | {words}{which} | {mine.sum()} | {inside[mine].mean():.0%} | {np.median((high - low)[mine]):.2f} "
                f"| {score[mine].mean():.2f} |"
                for which, mine in parts
                if mine.any()
            ]
    return lines


def _with_other_sources(rows: Rows) -> Rows:
    """Figures of the kinds of which every source leaves some when it is left out."""
    kinds = [
        kind
        for kind in np.unique(rows.kind)
        if all(((rows.kind == kind) & (rows.file != s)).sum() >= LEAST_OTHERS for s in np.unique(rows.file))
    ]
    return rows.take(np.isin(rows.kind, kinds))


def source_table(rows: Rows) -> list[str]:
    """How far the figures of each source are from their predictions."""
    lines = ["| source | figures of | figures | networks | measured / predicted time: 10 % | median | 90 % |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for source in np.unique(rows.file):
        for kind, name in WORDS.items():
            mine = (rows.file == source) & (rows.kind == kind)
            if mine.any():
                ends = np.exp(np.quantile(rows.residual[mine], [0.1, 0.5, 0.9]))
                networks = len(np.unique(rows.group[mine]))
                lines.append(
                    f"| {source} | {name} | {mine.sum()} | {networks} | {' | '.join(f'{e:.2f}' for e in ends)} |"
                )
    return lines


def ranking_text(rows: Rows, log_sd: FloatArray) -> str:
    """How often the degrees predicted to serve most per GPU were those measured best, and what the lists to benchmark held."""
    found = left_out(rows, rows.group, log_sd)
    picked, regret, held, length = [], [], [], []
    for index in questions(rows):
        part, fitted = rows.take(index), found.fits[int(found.fold[index[0]])]
        model = model_of(fitted, str(part.kind[0]))
        pick, best = int(np.argmin(part.predicted_s)), int(np.argmin(part.measured_s))
        errors = sampled_log_errors(part.candidates(log_sd), model)
        listed = shortest_list(np.log(part.predicted_s) + errors, model.listed_share, 0.0)
        picked.append(pick == best)
        regret.append(part.measured_s[pick] / part.measured_s[best])
        held.append(best in listed)
        length.append(len(listed))
    return (
        f"Of {len(picked)} questions with three or four degrees of tensor parallelism measured (tokens/s per GPU; network left out), the "
        f"pick was the best in {np.mean(picked):.0%} and {np.mean(regret) - 1:.1%} slower on average; the list to benchmark had "
        f"{np.median(length):g} degrees in the median and held the best in {np.mean(held):.0%}."
    )


def main(arguments: Sequence[str]) -> None:
    """Print the scores and the error models, or write the scores."""
    rows = figure_rows()
    bundled = load_calibration().calibration.constants
    log_sd = np.array([bundled[name].log_sd for name in CONSTANTS])
    text = "\n".join(
        [
            *source_table(rows),
            "",
            *coverage_table(rows, log_sd),
            *score_lines(first_tokens(measurements())),
            "",
            ranking_text(rows, log_sd),
        ],
    )
    if "--write" in arguments:
        put(PAGE, BEGIN, text, END)
        return
    models = serving_models(rows, log_sd).models
    print(
        text,
        *(line for kind in WORDS for line in kind_lines(kind, models[kind], int((rows.kind == kind).sum()))),
        sep="\n",
    )


if __name__ == "__main__":
    main(sys.argv[1:])

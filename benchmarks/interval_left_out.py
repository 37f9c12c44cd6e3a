"""What rows left out of a fit say about it: quantiles of intervals, and how far rankings are to be trusted."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from interval_fit import (
    POPULATIONS,
    PRIOR_LOG_SD,
    Fitted,
    deviations,
    fit,
    model_of,
    of_population,
    once_each,
    quantile,
    weights,
)
from interval_other_sources import OTHER_SOURCES, Source
from interval_other_sources import of_population as of_other_sources
from interval_rows import FILES, Rows
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.uncertainty.intervals import (
    INTERVAL_SHARE,
    ErrorModel,
    interval_score,
    sampled_log_errors,
)
from costmodel.uncertainty.rankings import probability_best, shortest_list
from planner.uncertainty.bars import LISTED_SHARE, SAME_WITHIN

FOLDS = 10
SHARPNESS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Kinds whose quantiles are their own alone: a fifth of nanotron's runs stalled, whatever their plan.
APART = ("nanotron",)
# Groups that the quantiles of all other kinds count as, and groups by which those of a kind are short of showing all that a new one may do.
# Of eight pairs (10 or 20, 0 to 3), looking at the scores of models left out: the least score, and coverage within 75 to 85 %. Those
# scores are optimistic by that much. Files left out had no part in the choice.
POOLED_GROUPS = 10.0
NEW_GROUPS = 1.0
# Factors on the errors that plans do not share, among which the likeliest is taken.
RANKING_SCALES = np.geomspace(0.25, 4.0, 9)
# A plan measured best that no draw has as the best counts as one draw in twice as many.
_LEAST_CHANCE = 1.0 / 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Rows as fits without them have them: standard deviations of their errors, and the chance of the best plan of each question.

    Attributes
    ----------
    rows : Rows
    sd : array (rows,)
    best : tuple of int
        Rows that were measured best, of questions of at least three.
    log_chance : array (questions, RANKING_SCALES)
        Logarithm of the chance that it had.
    needed : array (questions, RANKING_SCALES)
        Share of the draws from which on the list for the best holds it, and the list of plans within `SAME_WITHIN` one of these.
    """

    rows: Rows
    sd: FloatArray
    best: IntArray
    log_chance: FloatArray
    needed: FloatArray

    def without(self, out: BoolArray) -> Unseen:
        """Less some rows, whole questions at a time."""
        place = np.cumsum(~out) - 1
        kept = ~out[self.best]
        return Unseen(
            rows=self.rows.take(~out),
            sd=self.sd[~out],
            best=place[self.best[kept]],
            log_chance=self.log_chance[kept],
            needed=self.needed[kept],
        )


def unseen(rows: Rows, fold: IntArray, fits: dict[int, Fitted]) -> Unseen:
    """Judge every row by the fit without its fold."""
    sd = np.zeros(len(rows))
    for k in np.unique(fold):
        mine = fold == k
        sd[mine] = deviations(rows.take(mine), fits[int(k)])
    best, log_chance, needed = [], [], []
    for index in questions(rows):
        part, fitted = rows.take(index), fits[int(fold[index[0]])]
        errors = sampled_log_errors(part.candidates(fitted.log_sd), model_of(fitted, str(part.kind[0])))
        found = int(np.argmin(part.measured_s))
        best.append(index[found])
        log_times = [np.log(part.predicted_s) + scale * errors for scale in RANKING_SCALES]
        log_chance.append([np.log(max(probability_best(times)[found], _LEAST_CHANCE)) for times in log_times])
        needed.append([_needed(times, part.measured_s) for times in log_times])
    shape = (len(best), len(RANKING_SCALES))
    return Unseen(
        rows=rows,
        sd=sd,
        best=np.array(best, dtype=np.int64),
        log_chance=np.reshape(log_chance, shape),
        needed=np.reshape(needed, shape),
    )


def _needed(log_times: FloatArray, measured_s: FloatArray) -> float:
    """Share of the draws that a list must cover to hold what it is for."""
    result = 0.0
    for tolerance in (0.0, SAME_WITHIN):
        does = measured_s <= measured_s.min() * (1 + tolerance)
        order = shortest_list(log_times, 1.0, tolerance)
        before = order[: int(np.argmax(does[order]))] if does[order].any() else order
        ends = log_times.min(axis=1) + np.log1p(tolerance)
        result = max(result, float((log_times[:, before] <= ends[:, None]).any(axis=1).mean()))
    return result


def questions(rows: Rows) -> list[IntArray]:
    """Rows of each question that compares at least three plans."""
    found = [np.flatnonzero(rows.question == question) for question in np.unique(rows.question)]
    return [index for index in found if len(index) >= 3]


# -- quantiles and the scale of rankings --------------------------------------------------------------------------------------


def calibrated(fitted: Fitted, of_models: Unseen | None, of_files: Unseen, sources: Sequence[Source] = ()) -> Fitted:
    """Put into the models what rows left out say: frameworks by models left out, populations by files left out and by other sources.

    Rows of one network are wrong together, so a framework counts by its groups: with G of them its own quantiles have a weight of
    G / (G + `POOLED_GROUPS`) against those of all kinds (in scales of errors), and 0.1 G / (G + `NEW_GROUPS`) of the rows lie
    beyond either end instead of a tenth. Rows of one file are wrong together as well: a population has the quantiles of its files and of
    the sources that no constant was fitted to, each counted once, and `tail_of_new` of a new one beyond either end. A framework without
    questions of its own ranks as any.
    """
    usual = _for_rankings(of_files, np.ones(len(of_files.best), dtype=np.bool_), of_files.rows.file, 1.0)
    models = {}
    for kind, model in fitted.models.items():
        if kind in POPULATIONS:
            models[kind] = replace(of_anybody(model, kind, of_files, sources), **usual)
        elif of_models is not None:
            mine = of_models.rows.kind == kind
            groups = len(np.unique(of_models.rows.group[mine]))
            pool = None if kind in APART else _standard(of_models)
            weight = 1.0 if kind in APART else groups / (groups + POOLED_GROUPS)
            tail = 0.1 * groups / (groups + NEW_GROUPS)
            found = _with_quantiles(model, of_models, mine, 0.5, tail, weight, pool)
            asked = of_models.rows.kind[of_models.best] == kind
            own = _for_rankings(of_models, asked, of_models.rows.group, 0.5) if np.any(asked) else usual
            models[kind] = replace(found, **own)
    return Fitted(log_sd=fitted.log_sd, models=models)


def calibrated_apart(fitted: Fitted, found: Unseen, sharpness: Mapping[str, float]) -> Fitted:
    """Put into the models of kinds with few files what groups left out say: every group of every file counts once.

    Both ends are as far from the prediction, which is the centre. ``sharpness`` says how far intervals of each kind follow a row's own
    standard deviation.
    """
    models = dict(fitted.models)
    for kind in np.unique(found.rows.kind).tolist():
        mine, asked = found.rows.kind == kind, found.rows.kind[found.best] == kind
        sd, weight = found.sd[mine], once_each(found.rows)[mine]
        typical = quantile(sd, weight, 0.5)
        errors = np.abs(found.rows.residual[mine]) / (typical ** (1.0 - sharpness[kind]) * sd ** sharpness[kind])
        end = quantile(errors, weight, INTERVAL_SHARE)
        model = replace(fitted.models[kind], typical_log_sd=typical, sharpness=sharpness[kind], low=-end, high=end)
        models[kind] = replace(model, **_for_rankings(found, asked, found.rows.group, 1.0))
    return Fitted(log_sd=fitted.log_sd, models=models)


def of_anybody(model: ErrorModel, population: str, of_files: Unseen, sources: Sequence[Source]) -> ErrorModel:
    """Ends of a population: quantiles of its files, each left out, and of other sources; all files where it has none of either.

    No shape: which files have wide errors says more about their machines than about the shares of their steps.
    """
    theirs, share, count = of_other_sources(sources, population)
    mine = of_files.rows.kind == population
    mine = mine if count and np.any(mine) else np.ones(len(mine), dtype=np.bool_)
    rows = of_files.rows.take(mine)
    values = np.concatenate([rows.residual, theirs])
    weight = np.concatenate([weights(rows, 1.0), share])
    tail = tail_of_new(count + len(np.unique(rows.file)))
    typical = quantile(of_files.sd, weights(of_files.rows, 1.0), 0.5)
    low, high = (quantile(values, weight, at) / typical for at in (tail, 1.0 - tail))
    return replace(model, typical_log_sd=typical, sharpness=0.0, low=low, high=high)


def tail_of_new(groups: int) -> float:
    """Share of the rows of some groups to leave beyond an end for a tenth of those of another one to be beyond it: see `reach_of_new`."""
    return 0.5 * math.erfc(reach_of_new(groups) / math.sqrt(2))


def reach_of_new(groups: int) -> float:
    """Standard deviations between groups that an end is away from their mean for a tenth of other groups to be beyond it.

    A prediction interval reaches t root(1 + 1 / G) standard deviations, t of Student's distribution with G - 1 degrees of freedom, where
    one of a distribution that is known reaches 1.28. The quantile of t is that of Cornish and Fisher's expansion.
    """
    z, freedom = 1.2816, max(groups - 1, 1)
    t = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return t * math.sqrt(1 + 1 / groups)


def _standard(found: Unseen) -> tuple[FloatArray, FloatArray]:
    """Residuals of all kinds but those apart in typical scales of their kind, and their weights."""
    typical = {kind: float(np.median(found.sd[found.rows.kind == kind])) for kind in np.unique(found.rows.kind)}
    some = ~np.isin(found.rows.kind, APART)
    scale = np.array([typical[kind] for kind in found.rows.kind])
    return (found.rows.residual / scale)[some], weights(found.rows)[some]


def _with_quantiles(
    model: ErrorModel,
    found: Unseen,
    mine: BoolArray,
    power: float,
    tail: float,
    own: float,
    pool: tuple[FloatArray, FloatArray] | None,
) -> ErrorModel:
    """The sharpness of the best interval score and its quantiles, with a weight of ``own`` against those of the pool."""
    values, sd, weight = found.rows.residual[mine], found.sd[mine], weights(found.rows, power)[mine]
    typical = quantile(sd, weight, 0.5)
    trials = []
    for sharpness in SHARPNESS:
        scale = typical ** (1 - sharpness) * sd**sharpness
        low, high = (
            own * quantile(values / scale, weight, share)
            + (0.0 if pool is None else (1.0 - own) * quantile(*pool, share))
            for share in (tail, 1.0 - tail)
        )
        score = float(np.average(interval_score(low * scale, high * scale, values), weights=weight))
        trials.append((score, sharpness, low, high))
    _, sharpness, low, high = min(trials)
    return replace(model, typical_log_sd=typical, sharpness=sharpness, low=low, high=high)


def _for_rankings(found: Unseen, asked: BoolArray, group: NDArray[np.str_], power: float) -> dict[str, float]:
    """Scale of the errors that plans do not share, and share of the draws that a list must cover.

    Questions count by the power of the number in their file (see `weights`). The scale is the likeliest by what was measured best, a
    priori near 1: the logarithm of a chance is a proper score (Good, Rational Decisions, JRSS B 14(1), 1952), neither too sure nor too
    unsure gains. The share is that at which lists of questions left out held what they are for in 1 - 0.1 G / (G + `NEW_GROUPS`) of
    them, of G groups, and `LISTED_SHARE` at least.
    """
    if not np.any(asked):
        return {"ranking_scale": 1.0, "listed_share": LISTED_SHARE}
    files = found.rows.file[found.best[asked]]
    weight = np.array([(files == file).sum() ** -power for file in files])
    prior = -0.5 * (np.log(RANKING_SCALES) / PRIOR_LOG_SD) ** 2
    best = int(np.argmax(weight @ found.log_chance[asked] + prior))
    groups = len(np.unique(group[found.best[asked]]))
    needed = quantile(found.needed[asked, best], weight, 1.0 - 0.1 * groups / (groups + NEW_GROUPS))
    share = np.clip(np.ceil(200.0 * needed + 1e-9) / 200.0, LISTED_SHARE, 0.995)
    return {"ranking_scale": float(RANKING_SCALES[best]), "listed_share": float(share)}


# -- folds --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """Rows in folds, and what was fitted and calibrated without each."""

    rows: Rows
    fold: IntArray
    fits: dict[int, Fitted]


def by_models(rows: Rows) -> IntArray:
    """Fold of each row: groups dealt out in a fixed random order."""
    groups = np.unique(rows.group)
    dealt = {name: n % FOLDS for n, name in enumerate(np.random.default_rng(0).permutation(groups).tolist())}
    return np.array([dealt[name] for name in rows.group])


def by_files(rows: Rows) -> IntArray:
    """File of each row."""
    return np.array([FILES.index(name) for name in rows.file])


def everything(rows: Rows) -> tuple[Fitted, Folds, Folds, Unseen]:
    """The error models of all rows, those of the tables (without models, without whole files), and files as fits without them have them."""
    models, files = by_models(rows), by_files(rows)
    two = list(combinations(np.unique(files).tolist(), 2))
    masks = [
        np.ones(len(rows), dtype=np.bool_),
        *(models != k for k in range(FOLDS)),
        *(files != k for k in np.unique(files)),
        *(~np.isin(files, pair) for pair in two),
    ]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        fits = list(pool.map(fit, [rows.take(mask) for mask in masks]))
    whole, no_model = fits[0], dict(enumerate(fits[1 : FOLDS + 1]))
    no_file = dict(zip(np.unique(files).tolist(), fits[FOLDS + 1 :], strict=False))
    no_two = dict(zip(two, fits[FOLDS + 1 + len(no_file) :], strict=True))
    anybody = of_population(rows)
    of_models, of_files = unseen(rows, models, no_model), unseen(anybody, files, no_file)
    without_models = {
        k: calibrated(found, of_models.without(models == k), of_files.without(models == k), OTHER_SOURCES)
        for k, found in no_model.items()
    }
    without_files = {}
    for k, found in no_file.items():
        others = {j: no_two[min(j, k), max(j, k)] for j in no_file if j != k}
        rest = files != k
        without_files[k] = calibrated(found, None, unseen(anybody.take(rest), files[rest], others), OTHER_SOURCES)
    return (
        calibrated(whole, of_models, of_files, OTHER_SOURCES),
        Folds(rows=rows, fold=models, fits=without_models),
        Folds(rows=anybody, fold=files, fits=without_files),
        of_files,
    )

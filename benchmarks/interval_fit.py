"""The fit of `intervals.py`: scales of the errors by maximum likelihood, and their quantiles from rows left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from interval_rows import Rows
from numpy.typing import NDArray

from costmodel.constants import CONSTANTS
from costmodel.uncertainty import PARTS, ErrorModel, interval_score, standard_deviations

GROUPS = tuple(dict.fromkeys(constant.where for constant in CONSTANTS.values()))
FOLDS = 10
# Of a part that the rows do not determine: medians of the prior and its standard deviation in the logarithm.
PRIOR = {
    "shared": 0.05,
    "plan": 0.05,
    "compute": 0.05,
    "layer_communication": 0.2,
    "stage_transfer": 0.3,
    "gradient_exchange": 0.3,
    "bubble": 0.3,
    "stages_over_nodes": 0.1,
    **{f"constants: {group}": 0.5 for group in GROUPS},
}
PRIOR_LOG_SD = 0.5
# Rows that all of them together count as, against the prior: errors of rows of one file are not independent.
EVIDENCE = 500.0
SHARPNESS = (0.0, 0.25, 0.5, 0.75, 1.0)
# Kinds whose quantiles are their own alone: a fifth of nanotron's runs stalled, whatever their plan.
APART = ("nanotron",)
# Groups that the quantiles of all other kinds count as, and groups by which those of a kind are short of showing all that a new one may do.
# Of twelve pairs (0 to 40, 0 to 6), looking at the scores of groups left out: coverage within 75 to 85 % and the second least score; the
# least (10, 1) covers the images' files worse. Those scores are optimistic by that much.
POOLED_GROUPS = 10.0
NEW_GROUPS = 3.0
# Of Student's t: residuals have heavy tails.
FREEDOM = 3.0
# Neighbouring plans (one doubling of one degree) have errors that differ by 0.8 of what strangers' do: root(1 - 1/e), as in vTrain.
SIMILARITY_STEPS = 1.0
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Standard deviations of the constants, and an error model for each kind of workload."""

    log_sd: FloatArray
    models: Mapping[str, ErrorModel]


def weights(rows: Rows) -> FloatArray:
    """Files count by the root of their rows: neither the largest alone nor every small one as much."""
    counts = {file: int((rows.file == file).sum()) for file in np.unique(rows.file)}
    return np.array([counts[file] ** -0.5 for file in rows.file])


def fit(rows: Rows, similarity_steps: float = SIMILARITY_STEPS, steps: int = 250) -> Fitted:
    """Scales of greatest composite likelihood, with a weak prior: of rows, and of differences of rows of one question."""
    kinds = sorted(set(rows.kind.tolist()))
    own = ("shared", "plan", *PARTS)
    names = [f"constants: {group}" for group in GROUPS] + [f"{kind}: {name}" for kind in kinds for name in own]
    medians = np.log([PRIOR.get(name, PRIOR.get(name.partition(": ")[2], 0.1)) for name in names])
    first, second = pairs(rows)
    residual, weight = centred(rows), weights(rows)
    pair_weight = np.bincount(rows.question, minlength=rows.question.max() + 1)[rows.question[first]]
    variances = np.concatenate(
        [_variances(rows, kinds, None, similarity_steps), _variances(rows, kinds, (first, second), similarity_steps)]
    )
    values = np.concatenate([residual, residual[first] - residual[second]])
    # A question of n rows has n (n - 1) / 2 differences; they count as n - 1.
    importance = np.concatenate([weight, weight[first] * 2.0 / pair_weight])
    importance *= EVIDENCE / importance.sum()
    theta, mean, square = medians.copy(), np.zeros(len(names)), np.zeros(len(names))
    for step in range(1, steps + 1):  # Adam (Kingma and Ba, 2015)
        scale2 = np.exp(2.0 * theta)
        total = variances @ scale2 + 1e-6
        # Of log Student t: log(scale) + (freedom + 1) / 2 log(1 + value^2 / (freedom scale^2)).
        slope = 0.5 / total - 0.5 * (FREEDOM + 1) * values**2 / (total * (FREEDOM * total + values**2))
        gradient = (theta - medians) / PRIOR_LOG_SD**2 + 2.0 * scale2 * (variances.T @ (importance * slope))
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        theta -= 0.05 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-9)
    found = dict(zip(names, np.exp(theta).tolist(), strict=True))
    return Fitted(
        log_sd=np.array([c.prior_log_sd * found[f"constants: {c.where}"] for c in CONSTANTS.values()]),
        models={
            kind: ErrorModel(
                shared_log_sd=found[f"{kind}: shared"],
                plan_log_sd=found[f"{kind}: plan"],
                by_part={part: found[f"{kind}: {part}"] for part in PARTS},
                similarity_steps=similarity_steps,
            )
            for kind in kinds
        },
    )


def quantile(values: FloatArray, weight: FloatArray, share: float) -> float:
    """Weighted quantile."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, share * total[-1])])


def centred(rows: Rows) -> FloatArray:
    """Residuals less the median of their kind."""
    result = rows.residual.copy()
    for kind in np.unique(rows.kind):
        mine = rows.kind == kind
        result[mine] -= quantile(result[mine], weights(rows)[mine], 0.5)
    return result


def pairs(rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of one question, two by two."""
    found = [np.zeros((2, 0), dtype=np.int64)]
    for question in np.unique(rows.question):
        index = np.flatnonzero(rows.question == question)
        found.append(index[np.stack(np.triu_indices(len(index), 1))])
    first, second = np.concatenate(found, axis=1)
    return first, second


def _variances(
    rows: Rows,
    kinds: Sequence[str],
    differences: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    similarity_steps: float,
) -> FloatArray:
    """What each scale, were it 1, adds to the variance of a row, or of the difference of two rows."""
    prior = np.array([c.prior_log_sd for c in CONSTANTS.values()])
    where = np.array([c.where for c in CONSTANTS.values()])
    if differences is None:
        effects, shares, kind = rows.effects, rows.shares, rows.kind
        alike = np.ones((len(rows), 2))
    else:
        first, second = differences
        effects, shares = rows.effects[first] - rows.effects[second], rows.shares[first] - rows.shares[second]
        kind = rows.kind[first]
        distance = np.abs(rows.coordinates[first] - rows.coordinates[second]).sum(axis=1)
        own = 2.0 * (1.0 - np.exp(-distance / similarity_steps))
        alike = np.stack([np.zeros(len(first)), own], axis=1)
    common = np.stack([(effects**2 * prior**2)[:, where == group].sum(axis=1) for group in GROUPS], axis=1)
    of_kind = np.concatenate([alike, shares**2], axis=1)
    return np.concatenate([common, *(of_kind * (kind == name)[:, None] for name in kinds)], axis=1)


# -- left out -----------------------------------------------------------------------------------------------------------------


def deviations(rows: Rows, fitted: Fitted) -> FloatArray:
    """Standard deviation of every row."""
    result = np.zeros(len(rows))
    for kind in np.unique(rows.kind):
        mine = rows.kind == kind
        result[mine] = standard_deviations(rows.take(mine).candidates(fitted.log_sd), model_of(fitted, str(kind)))
    return result


def with_quantiles(fitted: Fitted, rows: Rows, sd: FloatArray) -> Fitted:
    """Put sharpness and quantiles into the models: those of the best interval score, the quantiles drawn towards those of all kinds.

    Rows of one network are wrong together, so a kind counts by its groups: with G of them its own quantiles have a weight of
    G / (G + `POOLED_GROUPS`) against those of all kinds (in standard deviations), and 0.1 G / (G + `NEW_GROUPS`) of the rows lie
    beyond either end instead of a tenth.
    """
    models, weight = {}, weights(rows)
    usual = [kind for kind in fitted.models if kind not in APART]
    typical = {kind: float(np.median(sd[rows.kind == kind])) for kind in fitted.models}
    pooled = np.isin(rows.kind, usual)
    standard = rows.residual / np.array([typical[kind] for kind in rows.kind])
    for kind, model in fitted.models.items():
        mine = rows.kind == kind
        values, w = rows.residual[mine], weight[mine]
        groups = len(np.unique(rows.group[mine]))
        own = groups / (groups + POOLED_GROUPS) if kind in usual else 1.0
        tail = 0.1 * groups / (groups + NEW_GROUPS)
        trials = []
        for sharpness in SHARPNESS:
            scale = typical[kind] ** (1 - sharpness) * sd[mine] ** sharpness
            low, high = (
                own * quantile(values / scale, w, share)
                + (1.0 - own) * quantile(standard[pooled], weight[pooled], share)
                for share in (tail, 1.0 - tail)
            )
            score = float(np.average(interval_score(low * scale, high * scale, values), weights=w))
            trials.append((score, sharpness, low, high))
        _, sharpness, low, high = min(trials)
        models[kind] = replace(model, typical_log_sd=typical[kind], sharpness=sharpness, low=low, high=high)
    return Fitted(log_sd=fitted.log_sd, models=models)


def folds_of(rows: Rows) -> NDArray[np.int64]:
    """Fold of each row: groups dealt out in a fixed random order."""
    groups = np.unique(rows.group)
    dealt = {name: n % FOLDS for n, name in enumerate(np.random.default_rng(0).permutation(groups).tolist())}
    return np.array([dealt[name] for name in rows.group])


def left_out(rows: Rows, fold: NDArray[np.int64]) -> tuple[list[Fitted], FloatArray]:
    """Fits without each fold with their quantiles, and the standard deviation of every row by the fit without it."""
    fits = [fit(rows.take(fold != k)) for k in range(int(fold.max()) + 1)]
    sd = np.zeros(len(rows))
    for k, fitted in enumerate(fits):
        sd[fold == k] = deviations(rows.take(fold == k), fitted)
    rest = [fold != k for k in range(len(fits))]
    return [with_quantiles(fitted, rows.take(r), sd[r]) for fitted, r in zip(fits, rest, strict=True)], sd


def model_of(fitted: Fitted, kind: str) -> ErrorModel:
    """Error model of a kind; of one that the fit has not seen, that of transformers."""
    return fitted.models.get(kind, fitted.models["transformers"])

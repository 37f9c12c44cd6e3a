"""The fit of `intervals.py`: scales of the errors of each kind of workload, and of frameworks that no row shows, by maximum likelihood."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from interval_rows import Rows

from costmodel.arrays import FloatArray, IntArray
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import FREEDOM, PARTS, ErrorModel, standard_deviations

GROUPS = tuple(dict.fromkeys(constant.where for constant in CONSTANTS.values()))
# Kinds of workload whatever the framework: what a new one may be like, from all rows, every file counted once.
POPULATIONS = ("transformers", "images")
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
# Neighbouring plans (one doubling of one degree) have errors that differ by 0.8 of what those of distant plans do: root(1 - 1/e), as in
# vTrain.
SIMILARITY_STEPS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Standard deviations of the constants, and an error model for each kind of workload."""

    log_sd: FloatArray
    models: Mapping[str, ErrorModel]


def model_of(fitted: Fitted, kind: str) -> ErrorModel:
    """Error model of a kind; of a framework that the fit has not seen, that of transformers."""
    return fitted.models[kind if kind in fitted.models else "transformers"]


def of_population(rows: Rows) -> Rows:
    """The rows as if nothing were known of their frameworks."""
    return replace(rows, kind=np.where(rows.kind == "images", "images", "transformers"))


def weights(rows: Rows, power: float = 0.5) -> FloatArray:
    """Files count by the root of their rows: neither the largest alone nor every small one as much. With a power of 1 all count alike."""
    counts = {file: int((rows.file == file).sum()) for file in np.unique(rows.file)}
    return np.array([counts[file] ** -power for file in rows.file])


def once_each(rows: Rows) -> FloatArray:
    """Every group of every file counts once."""
    both = np.char.add(np.char.add(rows.file.astype(str), " "), rows.group.astype(str))
    _, group, count = np.unique(both, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / count[group])


def quantile(values: FloatArray, weight: FloatArray, share: float) -> float:
    """Weighted quantile."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(total, share * total[-1])])


# -- likelihood ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    """Residuals and differences of residuals: what each scale, were it 1, adds to their variances, and how much each counts."""

    values: FloatArray
    variances: FloatArray
    importance: FloatArray


def fit(rows: Rows, similarity_steps: float = SIMILARITY_STEPS, steps: int = 250) -> Fitted:
    """Scales of greatest composite likelihood, with a weak prior: of rows, and of differences of rows of one question.

    Frameworks with own runs have scales of their own, found from their rows less their median. Those of the populations are found from
    all rows as they are, so that what a framework or a machine shifts is among what all plans of a question share.
    """
    own = rows.take(~np.isin(rows.kind, POPULATIONS))
    kinds = [*sorted(set(own.kind.tolist())), *POPULATIONS]
    names = [f"constants: {group}" for group in GROUPS]
    names += [f"{kind}: {name}" for kind in kinds for name in ("shared", "plan", *PARTS)]
    medians = np.log([PRIOR.get(name, PRIOR.get(name.partition(": ")[2], 0.1)) for name in names])
    found = [_terms(of_population(rows), rows.residual, weights(rows, 1.0), kinds, similarity_steps)]
    if len(own):
        found.append(_terms(own, _centred(own), weights(own), kinds, similarity_steps))
    values, variances, importance = (
        np.concatenate([getattr(term, name) for term in found]) for name in ("values", "variances", "importance")
    )
    theta, mean, square = medians.copy(), np.zeros(len(names)), np.zeros(len(names))
    for step in range(1, steps + 1):  # Adam (Kingma and Ba, 2015)
        scale2 = np.exp(2.0 * theta)
        total = variances @ scale2 + 1e-6
        # Of log Student t: log(scale) + (freedom + 1) / 2 log(1 + value^2 / (freedom scale^2)).
        slope = 0.5 / total - 0.5 * (FREEDOM + 1) * values**2 / (total * (FREEDOM * total + values**2))
        gradient = (theta - medians) / PRIOR_LOG_SD**2 + 2.0 * scale2 * (variances.T @ (importance * slope))
        mean, square = 0.9 * mean + 0.1 * gradient, 0.99 * square + 0.01 * gradient**2
        theta -= 0.05 * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.99**step)) + 1e-9)
    scales = dict(zip(names, np.exp(theta).tolist(), strict=True))
    return Fitted(
        log_sd=np.array([c.prior_log_sd * scales[f"constants: {c.where}"] for c in CONSTANTS.values()]),
        models={
            kind: ErrorModel(
                shared_log_sd=scales[f"{kind}: shared"],
                plan_log_sd=scales[f"{kind}: plan"],
                by_part={part: scales[f"{kind}: {part}"] for part in PARTS},
                similarity_steps=similarity_steps,
            )
            for kind in kinds
        },
    )


def _terms(
    rows: Rows, residual: FloatArray, weight: FloatArray, kinds: Sequence[str], similarity_steps: float
) -> _Terms:
    """Of rows and their pairs; all of them together count as `EVIDENCE`."""
    first, second = _pairs(rows)
    # A question of n rows has n (n - 1) / 2 differences; they count as n - 1.
    of_question = np.bincount(rows.question, minlength=rows.question.max() + 1)[rows.question[first]]
    importance = np.concatenate([weight, weight[first] * 2.0 / of_question])
    variances = [_variances(rows, kinds, pair, similarity_steps) for pair in (None, (first, second))]
    return _Terms(
        values=np.concatenate([residual, residual[first] - residual[second]]),
        variances=np.concatenate(variances),
        importance=importance * EVIDENCE / importance.sum(),
    )


def _centred(rows: Rows) -> FloatArray:
    """Residuals less the median of their kind."""
    result = rows.residual.copy()
    for kind in np.unique(rows.kind):
        mine = rows.kind == kind
        result[mine] -= quantile(result[mine], weights(rows)[mine], 0.5)
    return result


def _pairs(rows: Rows) -> tuple[IntArray, IntArray]:
    """Rows of one question, two by two."""
    found = [np.zeros((2, 0), dtype=np.int64)]
    for question in np.unique(rows.question):
        index = np.flatnonzero(rows.question == question)
        found.append(index[np.stack(np.triu_indices(len(index), 1))])
    first, second = np.concatenate(found, axis=1)
    return first, second


def _variances(
    rows: Rows, kinds: Sequence[str], differences: tuple[IntArray, IntArray] | None, similarity_steps: float
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


def deviations(rows: Rows, fitted: Fitted) -> FloatArray:
    """Standard deviation of every row."""
    result = np.zeros(len(rows))
    for kind in np.unique(rows.kind):
        mine = rows.kind == kind
        result[mine] = standard_deviations(rows.take(mine).candidates(fitted.log_sd), model_of(fitted, str(kind)))
    return result

"""Calibrates: reads tables, fits the constants that they can say something about, and checks the fit on rows left out.

Constants that multiply values that nobody has measured have wider priors: device and cluster files say so in their sources
("assumption - ...").
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.arrays import BoolArray, FloatArray
from costmodel.uncertainty.constants import CONSTANTS, CalibratedConstant, Calibration
from planner.calibration.fit import Data, Fit, Prior, cross_validate, fit, jacobian
from planner.calibration.measurements import Machinery, Measurements, TableUse, read_measurements
from planner.core.errors import PlannerError
from planner.files.documents import parse_document
from planner.measurements.metrics import Figures, error_summary, far_off
from strategies.limits import Progress

# A value that a file assumes is usually off by a factor of two.
_ASSUMED_LOG_SD = 0.7
_OF_DEVICE = {"memory_bandwidth": "memory_rate", "peak": "matmul_rate"}


def prior_log_sds(files: Iterable[str]) -> dict[str, float]:
    """How far each constant is usually off (standard deviation of the logarithm), on devices and clusters of these files.

    Parameters
    ----------
    files : iterable of str
        Paths of device and cluster files; other names are bundled, and known as well as `CONSTANTS` says.
    """
    found: set[str] = set()
    for file in files:
        if Path(file).is_file():
            try:
                found |= assumed_constants(parse_document(Path(file)).value)
            except PlannerError:  # whoever loads it says what is wrong
                continue
    return {
        name: max(constant.prior_log_sd, _ASSUMED_LOG_SD) if name in found else constant.prior_log_sd
        for name, constant in CONSTANTS.items()
    }


def assumed_constants(content: Any) -> set[str]:
    """Constants on values that a device or cluster file assumes.

    Examples
    --------
    >>> host = {"host": "bandwidth: assumption - a guess; latency: planner measure"}
    >>> assumed_constants({"levels": [{"name": "host"}], "source": host})
    {'intra_node_bandwidth'}
    >>> assumed_constants({"source": {"memory_bandwidth": "assumption - 10 GB/s per core", "peak": "datasheet"}})
    {'memory_rate'}
    """
    source = content.get("source") if isinstance(content, Mapping) else None
    if not isinstance(source, Mapping):
        return set()
    texts = {str(key): str(text) for key, text in source.items()}
    found = {name for key, name in _OF_DEVICE.items() if texts.get(key, "").startswith("assumption")}
    levels = content.get("levels")
    for depth, level in enumerate(levels if isinstance(levels, list) else ()):
        keys = _assumed_keys(texts.get(str(level.get("name")), "") if isinstance(level, Mapping) else "")
        if "bandwidth" in keys:
            found.add("inter_node_bandwidth" if depth else "intra_node_bandwidth")
        if "latency" in keys:
            found.add("link_latency")
    return found


def _assumed_keys(text: str) -> set[str]:
    """Keys of the clauses "a and b: assumption - why".

    >>> sorted(_assumed_keys("bandwidth and latency: assumption - as bundled x; size: counted"))
    ['bandwidth', 'latency']
    """
    clauses = (clause.partition(":") for clause in text.split(";"))
    return {
        key for keys, _, why in clauses if why.strip().startswith("assumption") for key in re.findall(r"\w+", keys)
    } - {"and"}


# A constant is determined where the measurements say at least as much about it as the prior: half of the variance is gone.
_DETERMINED = 0.5
# Without influence: the constant would have to change by e to move any time by a thousandth.
_NO_INFLUENCE = 1e-3
# Two constants that cannot be told apart.
_ENTANGLED = 0.7
# A normal distribution of standard deviation 1 has 80 % within this of its mean.
_INTERVAL, _WITHIN = 0.8, 1.2816
# How far the times of a network that no constant has seen are usually off together, as a standard deviation of the logarithm: the
# residual of configs/calibrations/default.yaml (0.106), of networks, plans and devices left out.
_LEVEL_SD = 0.1
_DIGITS = 6  # of the factors in the file: what is reported is predicted with these
_TRAINING = ("plan", "network")
_UNRELATED = "no row depends on it"
_AT_LIMIT = "the fit stopped at its limit"
_NEAR = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One constant after the fit.

    Attributes
    ----------
    name : str
    constant : CalibratedConstant
    reason : str
        Why it is not determined; empty where it is.
    """

    name: str
    constant: CalibratedConstant
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Errors of some times: with the bundled constants, with the fitted ones, and on rows left out (None where nothing was left out).

    Attributes
    ----------
    name : str
        File or kind of table.
    times : int
    """

    name: str
    times: int
    before: Figures
    after: Figures
    left_out: Figures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """The answer of ``planner calibrate``.

    Attributes
    ----------
    calibration : Calibration
    findings : tuple of Finding
        In the order of `CONSTANTS`.
    tables : tuple of TableUse
    machinery : Machinery
    configurations : int
        Distinct ones; repeats count once.
    fell_back : str
        Why the bundled constants were kept; empty where a fit was made.
    folds : int
        Of the cross-validation; 0 where there was none.
    grouped_by : str
    errors : Errors
        Of all times.
    by_file, by_kind : tuple of Errors
    residual_by_kind : mapping of str to float
    doubt : str
        What the rows have not in common that the constants are factors on; empty where nothing.
    """

    calibration: Calibration
    findings: tuple[Finding, ...]
    tables: tuple[TableUse, ...]
    machinery: Machinery
    configurations: int
    fell_back: str
    folds: int
    grouped_by: str
    errors: Errors
    by_file: tuple[Errors, ...]
    by_kind: tuple[Errors, ...]
    residual_by_kind: Mapping[str, float]
    doubt: str = ""


def calibrate(
    files: Sequence[str],
    machinery: Machinery,
    *,
    name: str,
    folds: int = 5,
    seed: int = 0,
    progress: Progress = lambda _stage, _share: None,
) -> Calibrated:
    """Fit the constants of the cost model to measurements.

    Parameters
    ----------
    files : sequence of str
        CSV tables of any kinds that `planner validate` takes.
    machinery : Machinery
        What the rows ran on.
    name : str
        Of the calibration.
    folds, seed : int
        Of the cross-validation.
    progress : function of (message, share done), optional

    Raises
    ------
    InputFileError
        Files that cannot be read, or hold no row with a time.
    """
    progress("reading", 0.0)
    measured = read_measurements(files, machinery)
    log_sds = prior_log_sds(measured.hardware_files)
    prior = _prior(tuple(CONSTANTS), log_sds)
    progress("which constants the rows depend on", 0.1)
    start = np.zeros(len(CONSTANTS))
    slopes = jacobian(_predictor(measured, tuple(CONSTANTS)), start, measured.log_bundled, prior)
    # Times that are predicted alike, and change alike, are repeats of one another.
    alike = np.column_stack([measured.part, measured.log_bundled, slopes]).round(9)
    same = [tuple(row) for row in alike.tolist()]
    data = measured.data(same)
    # All times of a row are one configuration, that of its first.
    _, first, of_time = np.unique(measured.row, return_index=True, return_inverse=True)
    configuration = [same[n] for n in first[of_time]]
    acting = [n for n in range(len(CONSTANTS)) if np.max(np.abs(slopes[:, n])) > _NO_INFLUENCE]
    names = tuple(list(CONSTANTS)[n] for n in acting)
    count = len(set(configuration))
    found, left_out, fell_back, word = None, None, "", ""
    if count < len(acting):
        word = "too few rows for a fit"
        fell_back = (
            f"{count} distinct configuration{'s' if count != 1 else ''} cannot determine the {len(acting)} constants that "
            "they depend on: the bundled constants are kept"
        )
    else:
        prior, predict = _prior(names, log_sds), _predictor(measured, names)
        progress("fitting", 0.3)
        found = fit(predict, data, prior, (measured.log_bundled, slopes[:, acting]))
        progress("leaving out", 0.8)
        left_out = cross_validate(predict, data, prior, found, measured.group or configuration, folds=folds, seed=seed)
        if left_out is not None and not _helps(measured, data, left_out[1]):
            word = "a fit does not help rows left out"
            fell_back = (
                "fitted constants predict rows left out no better than the bundled ones: the bundled constants are kept"
            )
    findings = [
        _finding(each, names.index(each), found, names, log_sds[each])
        if found is not None and not fell_back and each in names
        else Finding(
            name=each,
            constant=CalibratedConstant(log_sd=log_sds[each], prior_log_sd=log_sds[each]),
            reason=word if each in names else _UNRELATED,
        )
        for each in CONSTANTS
    ]
    correlation = np.eye(len(findings))
    log_after = measured.log_bundled
    if found is not None and not fell_back:
        correlation[np.ix_(acting, acting)] = found.correlation
        log_after = measured.predict({finding.name: finding.constant.value for finding in findings})
    unseen = None if left_out is None else left_out[1]
    # What no constant explains is that of rows left out, unless the bundled constants are kept.
    residual = measured.log_measured - (log_after if unseen is None or fell_back else unseen)
    training = np.isin(measured.part, [n for n, kind in enumerate(measured.parts) if kind in _TRAINING])
    networks = {name for name, chosen in zip(measured.network, training.tolist(), strict=True) if chosen}
    # Kept constants are not compared file by file with what was left out of a fit.
    errors = partial(_errors, measured, log_after, None if fell_back else unseen)
    overall = _errors(measured, log_after, unseen, "all", np.ones(len(measured), dtype=bool))
    doubts = (
        "" if machinery.framework else measured.doubt,
        _of_one(measured, fell_back),
        *far_off(np.exp(measured.log_bundled - measured.log_measured).tolist()),
    )
    return Calibrated(
        calibration=Calibration(
            name=name,
            constants={finding.name: finding.constant for finding in findings},
            correlation=np.round(correlation, 4),
            residual_log_sd=_spread(residual[training] if np.any(training) else residual),
            # A fit that was not tried on rows left out says nothing about other runs.
            residual_groups=0 if unseen is None and not fell_back else len(networks),
            framework=machinery.framework or measured.framework,
        ),
        findings=tuple(findings),
        tables=measured.tables,
        machinery=machinery,
        configurations=count,
        fell_back=fell_back,
        folds=0 if left_out is None else left_out[0],
        grouped_by=measured.grouped_by,
        errors=overall,
        by_file=tuple(errors(table.file, measured.table == n) for n, table in enumerate(measured.tables)),
        by_kind=tuple(errors(kind, measured.part == n) for n, kind in enumerate(measured.parts)),
        residual_by_kind={kind: _spread(residual[measured.part == n]) for n, kind in enumerate(measured.parts)},
        doubt="; ".join(filter(None, doubts)),
    )


def _errors(
    measured: Measurements, log_after: FloatArray, unseen: FloatArray | None, name: str, rows: BoolArray
) -> Errors:
    return Errors(
        name=name,
        times=int(np.count_nonzero(rows)),
        before=_summary(measured, measured.log_bundled, rows),
        after=_summary(measured, log_after, rows),
        left_out=None if unseen is None else _summary(measured, unseen, rows),
    )


def _helps(measured: Measurements, data: Data, left_out: FloatArray) -> bool:
    """Whether rows left out are predicted better than with the bundled constants, by more than chance.

    That is the mean gain in the error of the logarithm, repeats once, against its standard error over what was left out together.
    """
    before = np.abs(measured.log_measured - measured.log_bundled)
    after = np.abs(measured.log_measured - left_out)
    keys = list(measured.group or measured.row.tolist())
    names = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    index = np.array([names[key] for key in keys])
    weight = np.bincount(index, data.weight)
    gain = np.bincount(index, data.weight * (before - after)) / weight
    mean = float(np.average(gain, weights=weight))
    error = math.sqrt(float(weight**2 @ (gain - mean) ** 2)) / float(weight.sum())
    return mean > error


def _prior(names: Sequence[str], log_sds: Mapping[str, float]) -> Prior:
    chosen = [CONSTANTS[name] for name in names]
    return Prior(
        log_sd=np.array([log_sds[name] for name in names]),
        lowest=np.log([constant.lowest for constant in chosen]),
        highest=np.log([constant.highest for constant in chosen]),
        level_sd=_LEVEL_SD,
    )


def _predictor(measured: Measurements, names: Sequence[str]) -> Callable[[FloatArray], FloatArray]:
    def predict(theta: FloatArray) -> FloatArray:
        return measured.predict(dict(zip(names, np.exp(theta).tolist(), strict=True)))

    return predict


# -- what is said -----------------------------------------------------------------------------------------------------------------


def _finding(name: str, j: int, found: Fit, names: Sequence[str], prior_log_sd: float) -> Finding:
    log_sd = min(float(found.log_sd[j]), prior_log_sd)
    value = float(np.exp(found.theta[j]))
    reason = _reason(name, j, found, names, value, log_sd / prior_log_sd)
    return Finding(
        name=name,
        constant=CalibratedConstant(
            value=_rounded(value),
            log_sd=prior_log_sd if reason.startswith(_AT_LIMIT) else _rounded(log_sd),
            prior_log_sd=prior_log_sd,
            determined=not reason,
        ),
        reason=reason,
    )


def _reason(name: str, j: int, found: Fit, names: Sequence[str], value: float, left: float) -> str:
    """Why a constant that rows depend on is not determined; empty where it is. ``left``: of the prior's standard deviation."""
    constant = CONSTANTS[name]
    if not constant.lowest * (1 + _NEAR) < value < constant.highest * (1 - _NEAR):
        return f"{_AT_LIMIT} {value:.3g}: rows ask for what this constant is not about"
    if left**2 <= _DETERMINED:
        return ""
    others = np.abs(found.correlation[j])
    others[j] = 0.0
    partner = int(np.argmax(others))
    if others[partner] > _ENTANGLED:
        return f"the rows cannot tell it from {names[partner]}"
    return "the rows depend on it too little"


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _summary(measured: Measurements, log_predicted: FloatArray, rows: BoolArray) -> Figures:
    predicted, times = np.exp(log_predicted[rows]), np.exp(measured.log_measured[rows])
    found = error_summary(predicted, times, np.zeros(len(times)))
    return {name: value for name, value in found.items() if name != "skill"}  # there is no baseline


def _of_one(measured: Measurements, fell_back: str) -> str:
    """What a fit to runs of one network does not know."""
    if fell_back or len(measured.networks) != 1:
        return ""
    return (
        "all runs are of one network, whose own error nothing tells from that of the machine: the constants take a part of it, as "
        f"networks usually differ by {100 * _LEVEL_SD:.0f} %. The error on rows left out is that of more of the same, and other networks "
        "may be predicted worse than with the bundled constants: add runs of another one"
    )


def _spread(residual: FloatArray) -> float:
    """Standard deviation of the normal distribution that has 80 % of its mass where the residuals have it."""
    return _rounded(float(np.quantile(np.abs(residual), _INTERVAL)) / _WITHIN) if len(residual) else 0.0

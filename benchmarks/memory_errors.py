"""How far predicted memory is off, by framework: the numbers behind P(fits), and how they do on networks and frameworks left out.

Usage: PLANNER_REFERENCE_DATA=FOLDER python benchmarks/memory_errors.py [--write]     (half a minute)

``--write`` puts the numbers into configs/calibrations/default.yaml and the scores into docs/accuracy.md.

The error of a run is log(memory that it needs / predicted), normally distributed with a mean and a standard deviation for each framework.
What says something about it depends on the table:

- *failures*: where failed runs are listed, too, it is whether each run ran. A peak in a log is that of one rank's allocator, not what made
  another run fail. A share of the runs fails and a share runs whatever memory they need; both are fitted beside the errors.
- *peaks*: log(measured / predicted), cut at three robust standard deviations.
- *full*: published runs that all succeeded and leave nothing of their plan open. Their authors chose plans that run: among those of half of
  the memory and more, predictions are taken to be spread evenly on a logarithmic scale up to where runs begin to fail.

A network counts by the root of its rows. For a network that has not run, the variance of the mean is added, found by leaving out one
network after the other; and where the other frameworks' variance is larger, they count as `NEW_NETWORKS` networks beside a framework's own.
A framework without runs has the mean of all others, each counted once, and their variances with the variance between them;
*ran* is how many of the plans ran that such errors made 95 % sure, over all frameworks left out in turn.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pages import measurements, put
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr

from benchmarks.datasets import read
from costmodel.arrays import BoolArray, FloatArray
from costmodel.uncertainty.limits import CONFIDENCE, OTHERS, MemoryErrors
from planner.measurements import plans
from planner.measurements.hardware import framework_of_row
from planner.measurements.outcomes import DEFAULT

ROOT = Path(__file__).resolve().parents[1]
PAGE, CALIBRATION = ROOT / "docs" / "accuracy.md", ROOT / "configs" / "calibrations" / "default.yaml"
BEGIN, END = "<!-- memory: python benchmarks/memory_errors.py --write -->", "<!-- end of the memory -->"
FILES = (
    *("vtrain", "hf_ultrascale_nanotron", "llm_foundry", "megatron_lm", "nemo_megatron_bridge", "misc_transformers"),
    "training_moe_and_memory",
)
FEWEST_ROWS = 20
# Networks that the other frameworks count as, against a framework's own; not fitted.
NEW_NETWORKS = 1.0
# A priori, of every framework: mean, its standard deviation, median of the standard deviation, that of its logarithm. Wide: it decides only
# what full devices leave open.
_PRIOR = (0.0, 0.1, 0.05, 0.8)
# Of full devices: share of the runs whose plan was another one than the row says.
_ODD = 0.02
_HALF = math.log(2.0)  # of log(capacity / predicted): a plan of half of the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Runs of one framework, of the table that says most about their memory.

    Attributes
    ----------
    evidence : str
        failures, peaks or full.
    room : array (n,)
        log(capacity / predicted).
    error : array (n,)
        log(measured / predicted) of what the log counts; nan where it has no peak.
    failed : array (n,)
    network : array (n,)
    """

    evidence: str
    room: FloatArray
    error: FloatArray
    failed: BoolArray
    network: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.room)

    def take(self, mask: BoolArray) -> Runs:
        """Some of them."""
        arrays = {name: getattr(self, name)[mask] for name in ("room", "error", "failed", "network")}
        return Runs(evidence=self.evidence, **arrays)

    @property
    def networks(self) -> list[str]:
        """Names, each once."""
        return sorted(set(self.network.tolist()))

    @property
    def weight(self) -> FloatArray:
        """A network counts by the root of its rows, all together by their number."""
        counts = {name: float((self.network == name).sum()) for name in self.networks}
        share = np.array([counts[name] ** -0.5 for name in self.network])
        return np.asarray(share * len(self) / share.sum())


def read_runs(folder: Path) -> dict[str, Runs]:
    """Framework -> its runs, of those that have enough."""
    found: dict[str, list[tuple[str, float, float, bool, str]]] = {}
    for name in FILES:
        rows = read(folder / f"{name}.csv").rows
        for row, outcome in zip(rows, plans.predict_training(rows, DEFAULT), strict=True):
            memory = outcome.memory
            if memory is None:
                continue
            framework = framework_of_row(row)
            room = math.log(memory.device_bytes / memory.predicted_bytes)
            reported = memory.reported_bytes or memory.predicted_bytes
            error = math.nan if memory.measured_bytes is None else math.log(memory.measured_bytes / reported)
            meant = plans.asked(row)
            is_stated = isinstance(meant, plans.Question) and len(meant.plans) == 1 and room <= _HALF
            kind = "failures" if outcome.failed else "peaks" if not math.isnan(error) else "full" if is_stated else ""
            network = row.text("model_as_published") or row.text("model") or f"hidden size {row.text('hidden')}"
            key = framework.errors_of or framework.name
            found.setdefault(key, []).append((kind, room, error, outcome.failed, network))
    runs = {}
    for framework_name, rows_of in sorted(found.items()):
        kinds = {row[0] for row in rows_of}
        evidence = next((kind for kind in ("failures", "peaks", "full") if kind in kinds), "")
        kept = [row for row in rows_of if evidence == "failures" or (row[0] == evidence and evidence)]
        if len(kept) >= FEWEST_ROWS:
            _, room_of, error_of, failed, network_of = zip(*kept, strict=True)
            runs[framework_name] = Runs(
                evidence=evidence,
                room=np.array(room_of),
                error=np.array(error_of),
                failed=np.array(failed),
                network=np.array(network_of),
            )
    return runs


# -- likelihoods --------------------------------------------------------------------------------------------------------------


def _of_failures(runs: Runs) -> Callable[[FloatArray], FloatArray]:
    """Log likelihood of each run; beside mean and log of the standard deviation the logits of two shares."""

    def likelihood(theta: FloatArray) -> FloatArray:
        fails, succeeds = 1.0 / (1.0 + np.exp(-theta[2:4]))
        chance = fails + (1.0 - fails - succeeds) * ndtr(-(runs.room - theta[0]) / np.exp(theta[1]))
        return np.asarray(np.log(np.clip(np.where(runs.failed, chance, 1.0 - chance), 1e-300, 1.0)))

    return likelihood


def _of_peaks(runs: Runs) -> Callable[[FloatArray], FloatArray]:
    middle = np.median(runs.error)
    reach = 3.0 * 1.4826 * np.median(np.abs(runs.error - middle))
    error = np.clip(runs.error, middle - reach, middle + reach)
    return lambda theta: np.asarray(-0.5 * ((error - theta[0]) / np.exp(theta[1])) ** 2 - theta[1])


def _of_full(runs: Runs) -> Callable[[FloatArray], FloatArray]:
    """Log density of the room of runs that succeeded, between devices filled twice and half of one."""

    def likelihood(theta: FloatArray) -> FloatArray:
        mean, sd = theta[0], float(np.exp(theta[1]))

        def integral(end: float) -> float:  # of the chance to run, from no room to `end`
            z = (end - mean) / sd
            return (end - mean) * float(ndtr(z)) + sd * math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)

        whole = _ODD * 2.0 * _HALF + (1.0 - _ODD) * (integral(_HALF) - integral(-_HALF))
        runs_with = np.logaddexp(math.log(_ODD), math.log1p(-_ODD) + log_ndtr((runs.room - mean) / sd))
        return np.asarray(runs_with - math.log(whole))

    return likelihood


_LIKELIHOODS = {"failures": _of_failures, "peaks": _of_peaks, "full": _of_full}


def fit(runs: Runs) -> MemoryErrors:
    """Mean and standard deviation of the greatest posterior density, of runs of the networks that ran."""
    likelihood, weight = _LIKELIHOODS[runs.evidence](runs), runs.weight
    mean, mean_sd, median, spread = _PRIOR

    def surprise(theta: FloatArray) -> float:
        prior = ((theta[0] - mean) / mean_sd) ** 2 + ((theta[1] - math.log(median)) / spread) ** 2
        return float(0.5 * prior - weight @ likelihood(theta))

    start = [0.05, math.log(0.05), -3.0, -4.0][: 4 if runs.evidence == "failures" else 2]
    options = {"maxiter": 20000, "maxfev": 20000, "xatol": 1e-7, "fatol": 1e-9}
    found = minimize(surprise, start, method="Nelder-Mead", options=options)
    return MemoryErrors(mean=float(found.x[0]), log_sd=float(np.exp(found.x[1])), rows=len(runs))


# -- of networks and frameworks that have not run -------------------------------------------------------------------------------


def of_new_networks(runs: Mapping[str, Runs]) -> dict[str, MemoryErrors]:
    """Errors of each framework for a network that has not run, and under `OTHERS` those of a framework without runs."""
    own = {name: _with_networks(of) for name, of in runs.items()}
    errors = {}
    for name, of in runs.items():
        count = len(of.networks)
        others = [error.log_sd**2 for other, error in own.items() if other != name]
        mine = own[name].log_sd ** 2
        shared = (count * mine + NEW_NETWORKS * float(np.mean(others or [mine]))) / (count + NEW_NETWORKS)
        errors[name] = MemoryErrors(mean=own[name].mean, log_sd=math.sqrt(max(mine, shared)), rows=len(of))
    means = np.array([error.mean for error in own.values()])
    between = float(means.var(ddof=1)) * (1.0 + 1.0 / len(means)) if len(means) > 1 else 0.0
    within = float(np.mean([error.log_sd**2 for error in own.values()]))
    return {
        **errors,
        OTHERS: MemoryErrors(
            mean=float(means.mean()), log_sd=math.sqrt(within + between), rows=sum(len(of) for of in runs.values())
        ),
    }


def _with_networks(runs: Runs) -> MemoryErrors:
    """Errors of all runs, with the variance of their mean (jackknife: networks left out) beside their own."""
    whole, count = fit(runs), len(runs.networks)
    if count < 2:
        return whole
    means = [fit(runs.take(runs.network != name)).mean for name in runs.networks]
    variance = (count - 1) / count * float(np.sum((np.array(means) - np.mean(means)) ** 2))
    return MemoryErrors(mean=whole.mean, log_sd=math.hypot(whole.log_sd, math.sqrt(variance)), rows=whole.rows)


# -- left out -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """How errors found without some runs do on these.

    Attributes
    ----------
    name : str
    rows : int
    sure : int
        Runs with P(fits) of at least `CONFIDENCE`.
    ran : int
        Of these.
    with_memory : int
        Of these, runs and failures that memory may explain: those predicted under half of it are counted apart.
    within : float
        Share of the measured peaks that a device would hold that the limit was made for; nan where there are none.
    unused : float
        Share of a device that a plan at the limit leaves unused, by the median error of these runs.
    """

    name: str
    rows: int
    sure: int
    ran: int
    with_memory: int
    within: float
    unused: float


def held(name: str, runs: Runs, errors: MemoryErrors) -> Held:
    """Score errors that were found without the runs."""
    limit = -math.log(errors.limit_bytes(1.0, CONFIDENCE))
    sure = runs.room >= limit
    peaks = runs.evidence == "peaks"
    return Held(
        name=name,
        rows=len(runs),
        sure=int(sure.sum()),
        ran=int((sure & ~runs.failed).sum()),
        with_memory=int((sure & (~runs.failed | (runs.room <= _HALF))).sum()),
        within=float((runs.error <= limit).mean()) if peaks else math.nan,
        unused=1.0 - math.exp((float(np.median(runs.error)) if peaks else fit(runs).mean) - limit),
    )


def left_out(runs: Mapping[str, Runs]) -> tuple[list[Held], list[Held]]:
    """Every framework, network after network left out; and every framework left out."""
    by_network, by_framework = [], []
    for name, of in runs.items():
        if len(of.networks) > 1:
            parts = []
            for network in of.networks:
                rest = {**runs, name: of.take(of.network != network)}
                parts.append(held(network, of.take(of.network == network), of_new_networks(rest)[name]))
            by_network.append(_together(name, parts))
        rest = {other: theirs for other, theirs in runs.items() if other != name}
        by_framework.append(held(name, of, of_new_networks(rest)[OTHERS]))
    return by_network, by_framework


def _together(name: str, parts: Sequence[Held]) -> Held:
    """Counts added up; of peaks the share of all, of what is unused the median."""
    measured = [part for part in parts if not math.isnan(part.within)]
    return Held(
        name=name,
        rows=sum(part.rows for part in parts),
        sure=sum(part.sure for part in parts),
        ran=sum(part.ran for part in parts),
        with_memory=sum(part.with_memory for part in parts),
        within=sum(part.within * part.rows for part in measured) / sum(part.rows for part in measured)
        if measured
        else math.nan,
        unused=float(np.median([part.unused for part in parts])),
    )


# -- text -----------------------------------------------------------------------------------------------------------------------


def section(runs: Mapping[str, Runs], errors: Mapping[str, MemoryErrors]) -> str:
    """The end of configs/calibrations/default.yaml."""
    lines = [
        "# Written by benchmarks/memory_errors.py --write: log(memory that a run needs / predicted), by framework (docs/accuracy.md).",
        "memory:",
    ]
    for name, error in errors.items():
        of = runs.get(name)
        what = f"networks: {len(of.networks)}, evidence: {of.evidence}, " if of else f"ran: {error.ran:.3f}, "
        lines.append(f"  {name}: {{mean: {error.mean:.3f}, log_sd: {error.log_sd:.3f}, {what}rows: {error.rows}}}")
    return "\n".join(lines) + "\n"


def kept_section(text: str) -> str:
    """What a calibration's text says about memory, so that `intervals.py` leaves it as it is."""
    _, mark, rest = text.partition("# Written by benchmarks/memory_errors.py")
    return mark + rest


def _cell(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


def table(runs: Mapping[str, Runs], errors: Mapping[str, MemoryErrors]) -> str:
    """The section of docs/accuracy.md."""
    lines = [
        "### Memory: errors by framework",
        "",
        "| framework | evidence | runs | networks | mean | standard deviation | may be predicted to fill, for 95 % |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, error in errors.items():
        of = runs.get(name)
        what = (
            (of.evidence, f"{len(of):,}", f"{len(of.networks)}")
            if of
            else ("the frameworks above", f"{error.rows:,}", "-")
        )
        limit = error.limit_bytes(1.0, CONFIDENCE)
        lines.append(f"| {name} | {' | '.join(what)} | {error.mean:+.3f} | {error.log_sd:.3f} | {limit:.1%} |")
    for title, scores in zip(("networks", "frameworks"), left_out(runs), strict=True):
        lines += [
            "",
            f"### Memory: {title} left out",
            "",
            "| framework | runs | sure to fit | ran | of these, failures under half apart | peaks within | unused |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for one in [_together("all frameworks", scores), *scores]:
            ran = (one.ran / one.sure, one.ran / one.with_memory) if one.sure else (math.nan, math.nan)
            cells = (_cell(ran[0]), _cell(ran[1]), _cell(one.within), _cell(one.unused))
            lines.append(f"| **{one.name}** | {one.rows:,} | {one.sure:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Print the numbers and the scores, or write them."""
    runs = read_runs(measurements())
    errors = of_new_networks(runs)
    every = _together("all frameworks", left_out(runs)[1])
    errors[OTHERS] = replace(errors[OTHERS], ran=every.ran / every.sure)
    if "--write" not in arguments:
        print(section(runs, errors), table(runs, errors), sep="\n")
        return
    text = CALIBRATION.read_text(encoding="utf-8")
    CALIBRATION.write_text(text.removesuffix(kept_section(text)) + section(runs, errors), encoding="utf-8")
    put(PAGE, BEGIN, table(runs, errors), END)


if __name__ == "__main__":
    main(sys.argv[1:])

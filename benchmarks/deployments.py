"""How well published deployments of served networks are predicted, beside what others publish of theirs.

Usage: PLANNER_REFERENCE_DATA=FOLDER python benchmarks/deployments.py [--write]     (two minutes)

``--write`` puts the table into docs/accuracy.md. One constant is fitted to these rows, what an engine makes the device wait per pass
(`pass_overhead_s`): to others than those that are scored, left out by network, by engine or by device. With nothing fitted the device waits
as long as traces of engines show that prepare a pass while it works, and what replicas that gather tokens lack (`node_gathers_time`, of
other published rates) is left out.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pages import measurements, put, table

from benchmarks.datasets import read
from costmodel.arrays import FloatArray
from planner.measurements import deployments
from planner.measurements.outcomes import DEFAULT
from planner.measurements.tables import Row

PAGE = Path(__file__).resolve().parents[1] / "docs" / "accuracy.md"
BEGIN, END = "<!-- served networks: python benchmarks/deployments.py --write -->", "<!-- end of the served networks -->"
# Of one pass, tried for all engines alike.
OVERHEADS_S = (0.0, 0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1.25e-3, 1.5e-3, 2e-3)
FITTED_S = 0.75e-3  # in configs/frameworks
# What devices wait between two passes of asynchronous engines: 150 to 170 us in vLLM with graphs (vllm-project/vllm, pull request 11133);
# 0.6 % of 234.5 s of 8,192 passes in transformers (Hugging Face, asynchronous continuous batching, May 2026), 172 us.
UNFITTED = {"pass_overhead_s": 0.17e-3, "node_gathers_time": 1.0}
APART = 1.1  # pairs that differ by less say nothing about an order
# Mean absolute errors in % of the time per token and to the first one, measured by others.
PEERS = (
    (
        "AIConfigurator 0.9.0",
        "inference-sim/sim-to-real-accuracy-validation, vLLM 0.15.1 on H100, A100 and L40S, 7 runs",
        21.1,
        792.9,
    ),
    ("BLIS evolved", "the same, 13 runs (by its authors)", 21.8, 22.8),
    ("Vidur", "the same, 2 runs", 11.1, 16.3),
    ("LLMServingSim", "the same, 32 records", 32.4, 1629.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Deployments, struct of arrays; times in seconds, of every row that has both."""

    labels: Mapping[str, NDArray[np.str_]]  # network, engine, device
    alike: NDArray[np.str_]  # rows of one network, number and kind of GPUs, and lengths
    output: FloatArray
    measured: FloatArray  # (n, 2): to the first token, per token
    predicted: Mapping[float, FloatArray]  # pass overhead -> the same
    unfitted: FloatArray

    def rate(self, times: FloatArray) -> FloatArray:
        """Requests per second of one in flight."""
        return np.asarray(1.0 / (times[:, 0] + (self.output - 1.0) * times[:, 1]))


def rows_of(folder: Path, *, apart: bool) -> list[Row]:
    """Deployments whose prompts are read by GPUs of their own, or by those that decode."""
    rows = read(table(folder, "serving_silicon")).rows
    return [row for row in rows if not row.flag("suspect") and row.has("prefill_dp") == apart]


def served(rows: Sequence[Row]) -> Served:
    """Predict rows with every overhead."""
    found = {s: _times(rows, {"pass_overhead_s": s}) for s in OVERHEADS_S}
    unfitted = _times(rows, UNFITTED)
    kept = [n for n in range(len(rows)) if all(n in times for times in (unfitted, *found.values()))]
    chosen = [rows[n] for n in kept]
    names = ("model", "gpus", "device", "prompt", "output")
    return Served(
        labels={
            words: np.array([row.text(column) for row in chosen])
            for words, column in (("network", "model"), ("engine", "framework"), ("device", "device"))
        },
        alike=np.array([" ".join(row.text(name) for name in names) for row in chosen]),
        output=np.array([float(row.count("output") or 1) for row in chosen]),
        measured=np.array([found[OVERHEADS_S[0]][n][1] for n in kept]),
        predicted={s: np.array([times[n][0] for n in kept]) for s, times in found.items()},
        unfitted=np.array([unfitted[n][0] for n in kept]),
    )


def _times(rows: Sequence[Row], assumed: Mapping[str, float]) -> dict[int, tuple[list[float], list[float]]]:
    """Row -> predicted and measured times, of rows that have both."""
    preset = replace(DEFAULT, assumed=tuple(assumed.items()))
    found = {}
    for n, outcome in enumerate(deployments.predict(rows, preset)):
        of = {comparison.what: comparison for comparison in outcome.comparisons}
        if {"ttft", "tpot"} <= set(of):
            both = (of["ttft"], of["tpot"])
            found[n] = ([c.predicted_s for c in both], [c.measured_s for c in both])
    return found


def left_out(rows: Served, by: str) -> FloatArray:
    """Predictions with the overhead that suits all other rows best, by the median error of their times per token."""
    label = rows.labels[by]
    error = {s: np.abs(times[:, 1] / rows.measured[:, 1] - 1.0) for s, times in rows.predicted.items()}
    found = np.zeros_like(rows.measured)
    for name in np.unique(label):
        mine = label == name
        best = min(OVERHEADS_S, key=lambda s: float(np.median(error[s][~mine])))
        found[mine] = rows.predicted[best][mine]
    return found


def in_order(rows: Served, predicted: FloatArray) -> tuple[float, int]:
    """Share of the pairs of alike rows, at least `APART` apart in rate, that are predicted in the measured order; and their number."""
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for name, *rates in zip(rows.alike, rows.rate(rows.measured), rows.rate(predicted), strict=True):
        groups[str(name)].append((float(rates[0]), float(rates[1])))
    pairs = [
        (one[0] > other[0]) == (one[1] > other[1])
        for group in groups.values()
        for one, other in itertools.combinations(group, 2)
        if max(one[0], other[0]) >= APART * min(one[0], other[0])
    ]
    return float(np.mean(pairs)), len(pairs)


def lines(rows: Served, apart: Served) -> list[str]:
    """The table."""
    found = {
        "this planner, nothing fitted": (rows, rows.unfitted),
        **{f"one constant fitted, {by}s left out": (rows, left_out(rows, by)) for by in rows.labels},
        "one constant fitted, in sample": (rows, rows.predicted[FITTED_S]),
        "prefill and decode apart, nothing fitted": (apart, apart.unfitted),
        "prefill and decode apart, with that constant": (apart, apart.predicted[FITTED_S]),
    }
    text = [
        "| predictions | rows | time per token: median, mean error | time to the first token | throughput per GPU | pairs in order |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for words, (scored, predicted) in found.items():
        error = np.abs(predicted / scored.measured - 1.0)
        rate = np.abs(scored.rate(predicted) / scored.rate(scored.measured) - 1.0)
        share, count = in_order(scored, predicted)
        first, each = (f"{np.median(error[:, n]):.1%}, {np.mean(error[:, n]):.0%}" for n in (0, 1))
        text.append(
            f"| {words} | {len(rate)} deployments, AIConfigurator's silicon sample | {each} | {first} | {np.median(rate):.1%} | "
            f"{share:.0%} of {count:,} |"
        )
    text += [f"| {name} | {source} | mean {each:g}% | mean {first:g}% | | |" for name, source, each, first in PEERS]
    return text


def main(arguments: Sequence[str]) -> None:
    """Print the table, or write it."""
    shared, apart = (served(rows_of(measurements(), apart=apart)) for apart in (False, True))
    text = "\n".join(lines(shared, apart))
    if "--write" in arguments:
        put(PAGE, BEGIN, text, END)
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])

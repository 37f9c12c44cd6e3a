"""Published runs as `intervals.py` fits to them: predicted with the bundled constants and with each of them a little larger."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.datasets import read
from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import Candidates
from planner.measurements import plans
from planner.measurements.error_bars import software_of
from planner.measurements.hardware import framework_of_row
from planner.measurements.outcomes import DEFAULT, Outcome
from planner.measurements.tables import Row
from planner.spaces.mesh.bars import mesh_coordinates

FILES = (
    "vtrain",
    "hf_ultrascale_nanotron",
    "llm_foundry",
    "megatron_lm",
    "nemo_megatron_bridge",
    "misc_transformers",
    "tf_cnn_benchmarks",
    "nvidia_dle_resnet_bert",
)
# Frameworks with runs enough for an error model of their own.
KINDS = frozenset({"llm-foundry", "megatron-bridge", "megatron-deepspeed", "nanotron"})
STEP = 0.1  # of the logarithm of a constant, for derivatives
PROBED = 12  # rows of a file that show whether a constant does anything at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Predicted and measured runs, struct of arrays."""

    file: NDArray[np.str_]
    kind: NDArray[np.str_]
    group: NDArray[np.str_]  # rows that are left out together
    device: NDArray[np.str_]
    question: IntArray
    predicted_s: FloatArray
    measured_s: FloatArray
    shares: FloatArray
    effects: FloatArray
    coordinates: FloatArray

    def __len__(self) -> int:
        return len(self.file)

    @property
    def residual(self) -> FloatArray:
        """log(measured / predicted)."""
        return np.asarray(np.log(self.measured_s / self.predicted_s))

    def take(self, index: IntArray | BoolArray) -> Rows:
        """Some of the rows."""
        return Rows(**{name: getattr(self, name)[index] for name in self.__dataclass_fields__})

    def candidates(self, log_sd: FloatArray) -> Candidates:
        """The rows as the error model sees them."""
        return Candidates(
            step_time_s=self.predicted_s,
            shares=self.shares,
            effects=self.effects,
            covariance=np.diag(log_sd**2),
            coordinates=self.coordinates,
        )


def read_rows(folder: Path) -> Rows:
    """Predict all rows with the bundled constants and with each of them a little larger, files and constants side by side."""
    columns: dict[str, list[object]] = defaultdict(list)
    effects: list[FloatArray] = []
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        files = dict(zip(FILES, pool.map(_base, [folder / f"{file}.csv" for file in FILES]), strict=True))
        tasks = {
            file: [pool.submit(_effect, folder / f"{file}.csv", name, _times(base)) for name in CONSTANTS]
            for file, (_, base) in files.items()
        }
        for file, (rows, base) in files.items():
            effects.append(np.stack([task.result() for task in tasks[file]], axis=1))
            _add_columns(columns, file, [(rows[n], n, base[n]) for n in _times(base)])
            print(f"{file}: {len(effects[-1])} rows", file=sys.stderr)
    width = max(len(c) for c in columns["coordinates"] if c is not None)  # type: ignore[arg-type]
    numbers = {key: n for n, key in enumerate(dict.fromkeys(columns["question"]))}
    return Rows(
        file=np.array(columns["file"]),
        kind=np.array(columns["kind"]),
        group=np.array(columns["group"]),
        device=np.array(columns["device"]),
        question=np.array([numbers[key] for key in columns["question"]]),
        predicted_s=np.array(columns["predicted_s"], dtype=np.float64),
        measured_s=np.array(columns["measured_s"], dtype=np.float64),
        shares=np.array(columns["shares"], dtype=np.float64),
        effects=np.concatenate(effects),
        coordinates=np.array([np.zeros(width) if c is None else c for c in columns["coordinates"]], dtype=np.float64),
    )


def _base(path: Path) -> tuple[Sequence[Row], list[Outcome]]:
    """Rows of a file, and what the bundled constants predict."""
    rows = read(path).rows
    return rows, plans.predict_training(rows, DEFAULT)


def _times(outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Row -> predicted time, of rows that are scored."""
    found = {n: outcome.comparisons[0] for n, outcome in enumerate(outcomes) if outcome.comparisons}
    return {n: comparison.predicted_s for n, comparison in found.items() if comparison.shares}


def _add_columns(columns: dict[str, list[object]], file: str, found: Sequence[tuple[Row, int, Outcome]]) -> None:
    """What is known about every row of a file."""
    for row, n, outcome in found:
        comparison = outcome.comparisons[0]
        plan, framework = comparison.plan, framework_of_row(row)
        columns["file"].append(file)
        own = framework.errors_of or framework.name
        columns["kind"].append("images" if plan is None else own if own in KINDS else "transformers")
        name = row.text("model_as_published") or row.text("model")
        columns["group"].append(f"{file}, {name}, {row.text('hidden') if file == 'vtrain' else ''}")
        columns["device"].append(software_of(outcome)[2])
        columns["question"].append((file, outcome.ranking if outcome.ranking is not None else n))
        columns["predicted_s"].append(comparison.predicted_s)
        columns["measured_s"].append(comparison.measured_s)
        columns["shares"].append(comparison.shares)
        columns["coordinates"].append(mesh_coordinates([plan])[0] if plan is not None else None)


def _effect(path: Path, name: str, base_s: Mapping[int, float]) -> FloatArray:
    """Derivatives of the log step times of a file's rows by the logarithm of a constant; 0 where it does nothing to a few of them."""
    rows, kept = read(path).rows, list(base_s)
    changed = replace(DEFAULT, constants=((name, float(np.exp(STEP))),))

    def moved(some: Sequence[int]) -> FloatArray:
        found = plans.predict_training([rows[n] for n in some], changed)
        times = [(outcome.comparisons[0].predicted_s, base_s[n]) for n, outcome in zip(some, found, strict=True)]
        return np.asarray(-np.diff(np.log(times), axis=1)[:, 0] / STEP)

    probed = kept[:: max(len(kept) // PROBED, 1)]
    return moved(kept) if np.any(moved(probed)) else np.zeros(len(kept))

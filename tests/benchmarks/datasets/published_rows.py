"""One published row: converted, and predicted as a canonical one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.datasets import collectives, images, kernels, machines, runs, words
from benchmarks.datasets.cells import Cells
from benchmarks.datasets.convert import _training_run
from benchmarks.datasets.published import dataset_of
from benchmarks.datasets.reading import Row, Unreadable
from costmodel.mesh.plan import MeshPlan
from costmodel.precision import PRECISIONS
from planner.measurements import (
    collective_rows,
    convnets,
    hardware,
    networks,
    operators,
    plans,
    tables,
)
from planner.measurements import kernels as planned
from planner.measurements.columns import COLUMNS
from planner.measurements.outcomes import DEFAULT, Outcome, Preset

Convert = Callable[[Row], Cells]


def canonical(row: Row, convert: Convert) -> tables.Row:
    """The canonical row; every cell is one that the reader takes."""
    cells = convert(row)
    known = dataset_of(row)
    if known is not None:
        known.adapt(row, cells)
    problems = {name: COLUMNS[name].problem(text) for name, text in cells.items() if name in COLUMNS}
    assert not any(problems.values()), problems
    return tables.Row(line=row.line, cells=cells)


@dataclass(frozen=True)
class Kind:
    """A converter and the predictor of its rows."""

    convert: Convert
    predictor: Callable[[Sequence[tables.Row], Preset], list[Outcome]]

    def predict(self, rows: Sequence[Row], preset: Preset = DEFAULT) -> list[Outcome]:
        return [self._one(row, preset) for row in rows]

    def _one(self, row: Row, preset: Preset) -> Outcome:
        try:
            (found,) = self.predictor([canonical(row, self.convert)], preset)
        except Unreadable as trouble:
            return Outcome(row=tables.Row(line=row.line, cells={}), skipped=str(trouble), usable=False)
        return found


PLANS = Kind(runs.transformer_run, plans.predict)
TRAINING = Kind(_training_run, plans.predict_training)
NETWORKS = Kind(images.image_run, convnets.predict)
COLLECTIVES = Kind(collectives.collective, collective_rows.predict)
DISPATCHES = Kind(collectives.dispatch, collective_rows.predict_dispatches)
PRODUCTS = Kind(kernels.product, planned.predict_products)
CONVOLUTIONS = Kind(kernels.convolution, planned.predict_convolutions)
RECURRENT = Kind(kernels.recurrent, planned.predict_recurrent)
LAYERS = Kind(kernels.layer_log, planned.predict_layers)
PEAKS = Kind(kernels.matmul_peak, planned.predict_peaks)
OPERATORS = Kind(kernels.operator, operators.predict)
MEASURED = Kind(kernels.measured, planned.predict_measured)

FORWARD, BACKWARD = {"pass_": "forward"}, {"pass_": "backward"}
RUN = {
    "net": "GPT", "hidden": "4096", "layers": "32", "heads": "32", "device": "a100-80gb", "gpus": "64", "gpus_per_node": "8",
    "global_batch": "512", "micro_batch": "2", "tp": "4", "pp": "2", "dp": "8", "precision": "bf16", "seq": "2048", "zero_stage": "1",
    "recompute": "full", "step_time_ms": "12000",
}  # fmt: skip


def row_of(**cells: object) -> Row:
    return Row(line=2, cells={name: str(value) for name, value in cells.items()})


def only(kind: Kind, preset: Preset = DEFAULT, **cells: object) -> Outcome:
    (found,) = kind.predict([row_of(**cells)], preset)
    return found


def run(**cells: str) -> Outcome:
    return only(PLANS, **{**RUN, **cells})


def seconds(outcome: Outcome) -> float:
    assert not outcome.skipped, outcome.skipped
    return outcome.comparisons[0].predicted_s


def plan_of(**cells: str) -> MeshPlan:
    (comparison,) = run(**cells).comparisons
    assert comparison.plan is not None
    return comparison.plan


# -- parts of a conversion, and what the planner makes of them -----------------------------------------------------------------------


def machine_cells(row: Row) -> tables.Row:
    cells = Cells()
    machines.machine(row, cells)
    machines.put_attention(row, cells)
    cells.counts(row, "gpus")
    known = dataset_of(row)
    if known is not None:
        known.adapt(row, cells)
    return tables.Row(line=row.line, cells=cells)


def machine_of(row: Row) -> hardware.Machine:
    return hardware.machine_of(machine_cells(row))


def links_of(row: Row) -> hardware.Links:
    return hardware.links_of(machine_cells(row))


def format_of(row: Row, default: str) -> str:
    return words.precision_of(row) or default


def network_cells(row: Row) -> tables.Row:
    cells = Cells()
    runs._network(row, cells)
    return tables.Row(line=row.line, cells=cells)


def shape_of(row: Row, *, fused: bool) -> networks.TransformerShape:
    return networks.shape_of(network_cells(row), fused=fused)


def gradient_bytes(row: Row, number_format: str) -> float:
    cells = Cells()
    cells.put("gradient_bits", words.gradient_bits(row))
    cells.put("framework", words.framework_of(row))
    framework = hardware.framework_of_row(tables.Row(line=row.line, cells=cells))
    return framework.mesh_assumptions(precision=PRECISIONS[number_format]).main_gradient_bytes

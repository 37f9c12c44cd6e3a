"""Network-level rows: a bundled network for images on one device or data parallel."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from costmodel.framework import AS_RUN, WELL_TUNED, Framework, LayerAssumptions
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.layerwise.evaluate import CHEAPEST, CostBatch, PlanBatch, evaluate_on
from costmodel.layerwise.plan import split_table
from costmodel.layerwise.tables import CostTables
from costmodel.mesh.detail import model_flops_per_step
from costmodel.network.graph import Graph
from costmodel.precision import OPTIMIZERS, Precision
from costmodel.workload import Workload
from planner.files.naming.models import nearest_models, transformer_called
from planner.files.resources import bundled
from planner.importers.networks import load_model
from planner.measurements.columns import FUSED
from planner.measurements.fitted import fitted_links, fitted_of
from planner.measurements.hardware import (
    Machine,
    format_of,
    framework_of_row,
    machine_of,
    measured_bytes,
    plausible_bytes,
    precision_of,
    trainer_of_row,
    usual_node,
)
from planner.measurements.outcomes import Comparison, MemoryComparison, Outcome, Preset, outcomes_of
from planner.measurements.parallelism import devices_of, has_failed, is_measured, not_measured, step_time_s
from planner.measurements.tables import LONGEST, Row, RowSkipped
from planner.uncertainty.bars import node_size, shares_of


def network_name(row: Row) -> str | None:
    """Bundled network for images that a row names; None where it names none."""
    name = row.text("model")
    return name if name in bundled("models") and transformer_called(name) is None else None


@cache
def graph_of(name: str) -> Graph:
    """Graph of a bundled network."""
    return load_model(name).graph


@cache
def counts_of(name: str) -> Mapping[str, int]:
    """What people count of a sample of a bundled network, and how many it has; its positions where the file says no more.

    >>> dict(counts_of("gnmt")), dict(counts_of("transformer-xl-base")), dict(counts_of("resnet50"))
    ({'tokens': 100}, {'tokens': 192}, {})
    """
    known = load_model(name)
    return known.counts or ({} if known.seq is None else {"tokens": known.seq})


def _is_one_row(graph: Graph) -> bool:
    """Whether the images of a network have one row: convolutions along time."""
    images = [layer.output_shape for layer in graph.layers if len(layer.output_shape) == 3]
    return bool(images) and all(shape[1] == 1 for shape in images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row as the cost model takes it."""

    network: str
    machine: Machine
    precision: Precision
    workers: int
    batch: int
    accumulated: int
    measured_s: float | None  # None: it failed
    passes_only: bool  # a table with the two passes has no optimizer step in its total
    ranking: Hashable
    framework: Framework
    assumptions: LayerAssumptions

    @property
    def key(self) -> Hashable:
        """Rows with equal keys have the same costs."""
        machine = self.machine
        return (
            self.network,
            machine.device.name,
            machine.device.efficiency,
            id(machine.cluster),
            self.precision,
            self.workers,
            self.batch,
            self.accumulated,
            self.framework,
            self.assumptions,
        )


def asked(row: Row) -> Run:
    """What a row states.

    Raises
    ------
    RowSkipped
        It states too little.
    """
    failed = has_failed(row)
    forward_ms, backward_ms = row.number("forward_ms"), row.number("backward_ms")
    if not (failed or is_measured(row) or (forward_ms and backward_ms)):
        raise not_measured()
    name = network_name(row)
    if name is None:
        raise RowSkipped(f"no bundled network has this name{nearest_models(row.text('model'))}", usable=True)
    machine = machine_of(row)
    workers = devices_of(row, usual_node(machine.cluster)) or row.count("dp") or row.default("gpus", 1)
    total, each = row.count("global_batch"), row.count("batch_per_gpu")
    if total is None and each is None:
        raise RowSkipped("no batch is stated", needs=(("global_batch", "batch_per_gpu"),))
    batch = total if total is not None else (each or 1) * workers
    measured_s = None if failed else step_time_s(row, global_batch=batch, gpus=workers, counts=counts_of(name))
    if measured_s is None and forward_ms and backward_ms:
        measured_s = (forward_ms + backward_ms) * 1e-3
    if measured_s is None and not failed:
        raise not_measured()
    precision = precision_of(format_of(row, "fp32"), machine.device.formats)
    return Run(
        network=name,
        machine=machine,
        precision=precision,
        workers=workers,
        batch=batch,
        accumulated=row.count("grad_accum") or 1,
        measured_s=None if failed else measured_s,
        passes_only=forward_ms is not None and backward_ms is not None,
        ranking=tuple(row.text(column) for column in _SAME),
        framework=trainer_of_row(row),
        assumptions=image_assumptions(row, precision, is_one_row=_is_one_row(graph_of(name))),
    )


# Alternatives agree in these.
_SAME = (
    "dataset_group",
    "model",
    "device",
    "precision",
    "gpus",
    "global_batch",
    "batch_per_gpu",
    "framework",
    "fuses",
    "layout",
)


def _outcome(row: Row, preset: Preset) -> Outcome:
    run = row.meaning = row.meaning or asked(row)
    machine = run.machine
    costs, ideal_s = _costs(run, preset)
    predicted_s = float((costs.compute_s if run.passes_only else costs.step_time_s)[0])
    predicted_bytes = float(costs.memory_bytes[0])
    memory = MemoryComparison(
        predicted_bytes=predicted_bytes,
        capacity_bytes=machine.capacity_bytes,
        device_bytes=machine.capacity_bytes,
        measured_bytes=plausible_bytes(
            row, measured_bytes(row, max(machine.capacity_bytes, machine.device.memory_bytes)), predicted_bytes
        ),
    )
    fitted = fitted_of(machine.device, kinds=graph_of(run.network).kinds) | fitted_links(machine.cluster, run.workers)
    if run.measured_s is None:
        return Outcome(row=row, failed=True, memory=memory, ranking=run.ranking, fitted=fitted)
    # Fast convolution algorithms need up to 4 times fewer operations.
    if not ideal_s / 4 <= run.measured_s <= LONGEST * ideal_s:
        raise RowSkipped("step time far from what the peak of the devices allows: wrong unit?")
    comparison = Comparison(
        what="step",
        predicted_s=predicted_s,
        measured_s=run.measured_s,
        ideal_s=ideal_s,
        shares=_shares(run, costs, predicted_s),
    )
    return Outcome(row=row, comparisons=(comparison,), memory=memory, ranking=run.ranking, fitted=fitted)


# Predicts rows of this kind, in the order given: (rows, preset) -> outcomes.
predict = partial(outcomes_of, one=_outcome)


def _shares(run: Run, costs: CostBatch, predicted_s: float) -> tuple[float, ...]:
    """Shares of the parts of the step; of the passes alone everything is compute."""
    terms = (
        {}
        if run.passes_only
        else {"reshard_s": costs.reshard_s, "exposed_exchange_s": costs.exposed_exchange_s, "bubble_s": costs.bubble_s}
    )
    return tuple(shares_of([predicted_s], terms, run.workers / node_size(run.machine.cluster))[0].tolist())


# Steps that rows asked for: their costs, and the time of their FLOPs at the peak; with the cluster, so that no other has its id.
_KNOWN: dict[Hashable, tuple[Cluster, CostBatch, float]] = {}
_MOST_KNOWN = 4096


def _costs(run: Run, preset: Preset) -> tuple[CostBatch, float]:
    """Plain data parallelism, the cheapest collective per layer; and the time of the FLOPs at the peak. Rows repeat their runs."""
    key = (preset, run.key)
    if key in _KNOWN:
        return _KNOWN[key][1:]
    machine, graph = run.machine, graph_of(run.network)
    precision = run.precision
    assumptions = run.assumptions if preset.name == "roofline" else WELL_TUNED
    # Networks on sequences have Adam or its like.
    optimizer = "adam" if len(graph.layers[0].output_shape) == 2 else "momentum"
    workload = Workload(
        graph=graph,
        global_batch=run.batch,
        precision=precision,
        optimizer=OPTIMIZERS[optimizer],
        compute=preset.compute(machine.device, precision, optimizer, assumptions=assumptions),
        collectives=ALL_REDUCE_NAMES,
        framework=run.framework,
        assumptions=assumptions,
    )
    if run.batch < run.workers:
        raise RowSkipped("fewer samples than GPUs")
    splits = split_table([run.workers], batch_only=True)
    tables = CostTables(workload, preset.cluster(machine.cluster), splits, run.accumulated)
    rows = np.zeros((1, len(graph.layers)), dtype=np.int64)
    plans = PlanBatch(row=rows, collective=np.full_like(rows, CHEAPEST))
    costs = evaluate_on(tables, plans)
    flop = model_flops_per_step(replace(workload, global_batch=1)) * run.batch
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[key] = (machine.cluster, costs, flop / (run.workers * machine.device.peak(precision.compute)))
    return _KNOWN[key][1:]


# -- software ------------------------------------------------------------------------------------------------------------------


def image_assumptions(row: Row, precision: Precision, *, is_one_row: bool) -> LayerAssumptions:
    """What the framework of a row does, and what the row says otherwise.

    Parameters
    ----------
    row : Row
    precision : Precision
    is_one_row : bool
        Images of one row: PyTorch's channels last is a layout of tensors with height and width.
    """
    framework, layout = framework_of_row(row), row.text("layout")
    changes = {"parameter_servers": float(row.flag("parameter_servers") is True)}
    if layout or (is_one_row and framework.name.startswith("pytorch")):
        changes["channels_first"] = float(layout != "channels_last")
    if row.has("fuses"):
        said = row.text("fuses").split("+")
        changes |= {name: float(word in said) for word, name in FUSED.items()}
    if row.text("data") == "real":
        rate, stored = row.number("storage_MBps"), row.number("sample_kB")
        changes |= {"real_input": 1.0}
        changes |= {"storage_bytes_per_s": (rate or 0.0) * 1e6, "stored_sample_bytes": (stored or 0.0) * 1e3}
    return replace(framework.layer_assumptions(precision, assumptions=AS_RUN), **changes)

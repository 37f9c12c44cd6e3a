"""``planner scale``: scaling curves over the number of workers."""

from __future__ import annotations

import dataclasses
from typing import Any

import typer

from planner.commands import options as o
from planner.commands.output import emit
from planner.commands.question import output_of, request_from, size_of
from planner.commands.values import Values

__all__ = ["scale"]

_USUAL = (1, 2, 4, 8)


def scale(
    context: typer.Context,
    model: o.Model,
    workers: o.Workers = None,
    weak: o.Weak = False,
    strong: o.Strong = False,
    family: o.ScaleFamily = "data",
    epochs: o.Epochs = None,
    samples: o.Samples = None,
    cluster: o.Cluster = None,
    device: o.Device = None,
    batch: o.ScaleBatch = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    mode: o.Mode = None,
    memory_limit: o.MemoryLimit = None,
    fix: o.Fix = None,
    collective: o.Collective = None,
    micro_batches: o.MicroBatches = None,
    cost_model: o.CostModel = None,
    calibration: o.Calibration = None,
    ppp_comp: o.PppComp = None,
    ppp_comm: o.PppComm = None,
    paleo_pipeline: o.Pipeline = False,
    paleo_algorithms: o.Algorithms = None,
    paleo_extensions: o.Extensions = False,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Show how a network scales over 1, 2, 4, ... workers, and how many hours a training takes.

    Strong scaling (the default) divides one global batch over the workers; weak scaling gives each worker a batch of its own.
    """
    options: dict[str, Any] = locals()
    values = Values()
    counts = _usual_counts(cluster) if workers is None else values.worker_counts("--workers", workers)
    if weak and strong:
        values.add("--weak and --strong: choose one")
    if (epochs is None) != (samples is None):
        values.add("--epochs and --samples: give both, for the hours of a training")
    num_epochs, num_samples = values.positive("--epochs", epochs), values.positive("--samples", samples)
    chosen = values.choice("--family", family, o.SCALE_FAMILIES)
    request = request_from({**options, "family": None, "gpus": str(max(counts, default=1))}, values)
    where = output_of(options, values)
    values.check()

    from planner.report.scale import Curve, scale_report
    from planner.resolve import resolve
    from planner.scaling import scale as predict

    points = predict(request, counts, weak=weak, family=chosen, epochs=num_epochs, samples=num_samples)
    resolved = resolve(dataclasses.replace(request, space="layers"))
    curve = Curve(
        setting=resolved.setting,
        assumptions=resolved.assumptions,
        free_layers=resolved.free_layers,
        points=points,
        weak=weak,
        family=chosen,
        epochs=num_epochs,
        samples=num_samples,
    )
    emit(scale_report(curve), where)


def _usual_counts(cluster: str | None) -> tuple[int, ...]:
    """1, 2, 4, 8 where nothing was asked for; of a smaller cluster those that it has, and all of it."""
    most = None if cluster is None else size_of(cluster)
    return _USUAL if most is None else tuple(sorted({min(count, most) for count in _USUAL}))

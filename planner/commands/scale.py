"""``planner scale``: scaling curves over the number of workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from planner.commands import options as o
from planner.commands.mesh_options import takes_mesh_options
from planner.commands.output import emit
from planner.commands.question import output_of, request_from, size_of
from planner.commands.values import Values

if TYPE_CHECKING:
    from planner.core.answer import Scaling
    from planner.core.request import Request
    from planner.report.answer import Curve

__all__ = ["curve_of", "scale"]

_USUAL = (1, 2, 4, 8)


@takes_mesh_options
def scale(
    context: typer.Context,
    model: o.Model,
    workers: o.Workers = None,
    weak: o.Weak = False,
    strong: o.Strong = False,
    family: o.ScaleFamily = None,
    epochs: o.Epochs = None,
    samples: o.Samples = None,
    cluster: o.Cluster = None,
    device: o.Device = None,
    batch: o.ScaleBatch = None,
    seq: o.Seq = None,
    precision: o.Precision = None,
    optimizer: o.Optimizer = None,
    mode: o.Mode = None,
    memory_limit: o.MemoryLimit = None,
    memory_reserve: o.MemoryReserve = None,
    assume_free: o.AssumeFree = None,
    lora_rank: o.LoraRank = None,
    fix: o.Fix = None,
    collective: o.Collective = None,
    micro_batches: o.MicroBatches = None,
    cost_model: o.CostModel = None,
    calibration: o.Calibration = None,
    framework: o.Framework = None,
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
    *,
    mesh: Mapping[str, Any],
) -> None:
    """Show how a network scales over 1, 2, 4, ... workers, and how many hours a training takes.

    Strong scaling (the default) divides one global batch over the workers; weak scaling gives each worker a batch of its own.
    Of a transformer every row is the best plan on that many GPUs, searched as 'planner optimize' does; of other networks the plan of
    one family, data parallelism unless --family says otherwise.
    """
    options: dict[str, Any] = locals()
    values = Values()
    where = output_of(options, values)
    curve = curve_of(options, values)
    from planner.report.answer import scale_report

    emit(scale_report(curve), where)


def curve_of(options: Mapping[str, Any], values: Values) -> Curve:
    """Check the options of a curve, and predict it.

    Parameters
    ----------
    options : mapping
        Parameters of the command by name; those that were not given may be absent.
    values : Values
        Takes the problems, and raises them all.
    """
    get = options.get
    workers, epochs, samples, weak = get("workers"), get("epochs"), get("samples"), bool(get("weak"))
    counts = _usual_counts(get("cluster")) if workers is None else values.worker_counts("--workers", workers)
    if weak and get("strong"):
        values.add("--weak and --strong: choose one")
    if (epochs is None) != (samples is None):
        values.add("--epochs and --samples: give both, for the hours of a training")
    num_epochs, num_samples = values.positive("--epochs", epochs), values.amount("--samples", samples)
    family = get("family")
    chosen = None if family is None else values.choice("--family", family, o.SCALE_FAMILIES)
    request = request_from({**options, "family": None, "gpus": str(max(counts, default=1))}, values)
    values.check()

    from planner.question.resolve import resolve
    from planner.report.answer import Curve

    if chosen is None:
        chosen = "mesh" if resolve(request).space == "mesh" else "data"
    found = _predicted(request, counts, chosen, weak=weak, epochs=num_epochs, samples=num_samples)
    resolved = resolve(dataclasses.replace(request, space="mesh" if chosen == "mesh" else "layers"))
    return Curve(
        setting=resolved.setting,
        assumptions=resolved.assumptions,
        free_layers=() if chosen == "mesh" else resolved.free_layers,
        points=found.points,
        weak=weak,
        family=chosen,
        epochs=num_epochs,
        samples=num_samples,
        notes=found.notes,
        error_bars=found.error_bars,
    )


def _predicted(
    request: Request, counts: tuple[int, ...], family: str, *, weak: bool, epochs: float | None, samples: float | None
) -> Scaling:
    """The curve of a family."""
    if family == "mesh":
        from planner.spaces.mesh.scaling import scale_mesh

        return scale_mesh(request, counts, weak=weak, epochs=epochs, samples=samples)
    from planner.spaces.layers.scaling import scale as predict

    return predict(request, counts, weak=weak, family=family, epochs=epochs, samples=samples)


def _usual_counts(cluster: str | None) -> tuple[int, ...]:
    """1, 2, 4, 8 where nothing was asked for; of a smaller cluster those that it has, and all of it."""
    most = None if cluster is None else size_of(cluster)
    return _USUAL if most is None else tuple(sorted({min(count, most) for count in _USUAL}))

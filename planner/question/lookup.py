"""Everything that a request names, looked up: networks, clusters, devices, calibrations, collectives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from costmodel.framework import NO_FRAMEWORK, Framework
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.collectives import ALL_REDUCE_NAMES, names_of
from costmodel.network.layers.attention import Documents
from costmodel.precision import OPTIMIZERS, PRECISIONS, Optimizer
from planner.core.errors import PlannerError, UnknownName, UsageError
from planner.core.notes import Note
from planner.core.quantities import whole_number
from planner.core.request import Request
from planner.files.loading import (
    LoadedCalibration,
    LoadedCluster,
    LoadedDevice,
    LoadedModel,
    load_calibration,
    load_cluster,
    load_device,
    load_framework,
)
from planner.files.naming.frameworks import framework_of
from planner.files.naming.optimizers import nearest_optimizer, optimizer_called
from planner.files.naming.precisions import BARE, nearest_precision, precision_called
from planner.importers.networks import load_model

if TYPE_CHECKING:
    from strategies.layerwise.space import Restriction

DEFAULT_CLUSTER = "dgx-h100"

# Coefficient of variation of documents' lengths: beyond it, single documents fill whole sequences.
_MOST_CV = 10.0
_MOST_DOCUMENTS = 100_000  # in a sample


def look_up(
    request: Request,
) -> tuple[
    LoadedModel,
    tuple[Cluster, dict[str, str]],
    tuple[str, ...],
    Restriction | None,
    LoadedCalibration | None,
    Framework,
]:
    """Look up everything that is named, and report all that is wrong in one go.

    Returns
    -------
    (network, (cluster, hashes of its files), collectives, restriction, calibration, framework)
    """
    faults: list[PlannerError] = []

    def tried(function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return function(*arguments)
        except PlannerError as error:
            faults.append(error)
            return None

    model = tried(_model, request)
    cluster = tried(_cluster, request)
    calibrated = tried(_calibration, request)
    framework = tried(_framework, request, calibrated)
    collectives = tried(_collectives, request)
    restriction = tried(_restriction, request, model)
    tried(optimizer_of, request.optimizer, "adam")
    tried(called, request.precision)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        error = UsageError("\n".join(str(fault) for fault in faults))
        error.faults = tuple(faults)
        raise error
    return model, cluster, collectives, restriction, calibrated, framework


def _model(request: Request) -> LoadedModel:
    model = load_model(request.model, seq=request.seq, assume_free=request.assume_free)
    if request.doc_lengths is not None:
        model = _packed(model, request.doc_lengths, request.doc_cv)
    elif request.doc_cv is not None:
        raise UsageError("--doc-cv: needs --doc-lengths, the mean of the lengths")
    return model if request.lora_rank is None else _with_adapters(model, request.lora_rank)


def _packed(model: LoadedModel, lengths: tuple[int, ...], cv: float | None) -> LoadedModel:
    """Documents in every sample, which attention reads each for itself."""
    if cv is not None and len(lengths) > 1:
        raise UsageError("--doc-cv: goes with one --doc-lengths, the mean of the lengths")
    if cv is not None and cv > _MOST_CV:
        raise UsageError(f"--doc-cv {cv:g}: must be at most {_MOST_CV:g}")
    if (model.seq or 1) * len(lengths) > _MOST_DOCUMENTS * sum(lengths):
        raise UsageError(
            f"--doc-lengths: a sample of {model.seq:,} positions would hold more than {_MOST_DOCUMENTS:,} documents"
        )
    graph = model.graph.packed(Documents.of(lengths, model.seq or 1, cv or 0.0))
    if not graph.is_packed:
        raise UsageError(f"--doc-lengths: network '{model.name}' has no attention over a sequence that holds documents")
    return dataclasses.replace(model, graph=graph)


def _with_adapters(model: LoadedModel, rank: int) -> LoadedModel:
    """Freeze every weight; the layers of the blocks that can, train an adapter."""
    layers = tuple(
        dataclasses.replace(layer, lora_rank=rank)
        if layer.block and layer.family.takes_adapter
        else dataclasses.replace(layer, frozen=layer.weight_count + layer.norm_count > 0)
        for layer in model.graph.layers
    )
    adapted = [layer for layer in layers if layer.lora_rank]
    if not adapted:
        raise UsageError(f"--lora-rank: network '{model.name}' has no repeated blocks with linear layers to adapt")
    # No matrix has a higher rank than its shorter side: an adapter beyond that of every matrix is larger than what it adapts.
    widest = max(min(layer.input_shapes[0][0], layer.output_shape[0]) for layer in adapted)
    if rank > widest:
        raise UsageError(
            f"--lora-rank {rank} is more than any matrix of '{model.name}' that it adapts can have: the shorter side of the largest is "
            f"{widest}; use 1 to {widest} (8 to 64 are usual)"
        )
    return dataclasses.replace(model, graph=dataclasses.replace(model.graph, layers=layers))


def _calibration(request: Request) -> LoadedCalibration | None:
    if request.calibration is None:
        return None
    if request.cost_model == "paleo":
        raise UsageError("--calibration: only has a meaning with --cost-model roofline; paleo has constants of its own")
    return load_calibration(request.calibration)


def _framework(request: Request, calibrated: LoadedCalibration | None) -> Framework:
    """The framework that is named, else that of the calibration, else a well-tuned implementation.

    Raises
    ------
    UnknownName
    UsageError
        The calibration is of another framework, or the framework does not do what is asked.
    """
    of_calibration = NO_FRAMEWORK if calibrated is None else framework_of(calibrated.calibration.framework)
    if request.framework is None:
        return of_calibration
    if request.cost_model == "paleo":
        raise UsageError("--framework: only has a meaning with --cost-model roofline; paleo is a program of its own")
    found = load_framework(request.framework).framework if request.framework else NO_FRAMEWORK
    if found.serves and request.mode == "training":
        raise UsageError(
            f"--framework {found.name}: serves networks and trains none; use --mode inference, or a trainer"
        )
    if of_calibration.name not in ("", found.name):
        assert calibrated is not None
        raise UsageError(
            f"--framework {found.name or 'none'}: calibration '{calibrated.calibration.name}' was fitted to runs of "
            f"{of_calibration.name}; leave one of them out"
        )
    return replace(found, attention=of_calibration.attention) if of_calibration.name else found


def called(precision: str | None) -> str | None:
    """The number format or recipe that a word means; None where none is given.

    Raises
    ------
    UnknownName
    """
    name = None if precision is None else precision_called(precision)
    if precision is not None and name is None:
        known, meant = {**PRECISIONS, **BARE}, nearest_precision(precision)
        hint = "list them: planner list precisions"
        raise UnknownName(kind="precision", name=precision, known=known, hint=hint, meant=meant)
    return name


def optimizer_of(given: str | None, default: str) -> Optimizer:
    """The optimizer that a word means; ``default`` where none is given.

    Raises
    ------
    UnknownName
    """
    name = default if given is None else given if given in OPTIMIZERS else optimizer_called(given)
    if name is None:
        raise UnknownName(kind="optimizer", name=str(given), known=OPTIMIZERS, meant=nearest_optimizer(str(given)))
    return OPTIMIZERS[name]


def default_cluster(device: str | None) -> str:
    """The bundled cluster of a question that names none: where its device usually stands, since links belong to a board.

    Examples
    --------
    >>> default_cluster(None), default_cluster("rtx-4090"), default_cluster("Tesla V100-SXM2-16GB")
    ('dgx-h100', 'pcie4-node', 'dgx1-v100')
    """
    if device is None:
        return DEFAULT_CLUSTER
    from planner.files.naming.devices import usual_cluster

    return usual_cluster(load_device(device).device.name)


def _cluster(request: Request) -> tuple[Cluster, dict[str, str]]:
    loaded = load_cluster(request.cluster or default_cluster(request.device))
    inputs = {"cluster": loaded.sha256, "device": loaded.device_sha256}
    cluster = loaded.cluster
    if request.device is not None:
        device = load_device(request.device)
        if len(cluster.groups) != 1:
            raise UsageError(f"--device replaces the device of a cluster with one kind; '{cluster.name}' has several")
        cluster = cluster.with_device(device.device)
        inputs["device"] = device.sha256
    cluster = _with_rates(cluster, request)
    if len(cluster.groups) == 1 and cluster.groups[0].levels:
        from costmodel.mixed.plan import group_cluster

        cluster = dataclasses.replace(group_cluster(cluster, 0), name=cluster.name)  # its links as it has them
    return cluster, inputs


def source_notes(request: Request) -> list[Note]:
    """Say which files of hardware do not say where their numbers come from."""
    loaded: list[tuple[str | None, Callable[[str], LoadedCluster | LoadedDevice]]] = [
        (request.cluster, load_cluster),
        (request.device, load_device),
    ]
    return [
        Note("numbers_without_source", file=str(name))
        for name, load in loaded
        if name is not None and not load(name).has_sources
    ]


def _with_rates(cluster: Cluster, request: Request) -> Cluster:
    if request.price_per_hour is None and request.power_w is None:
        return cluster
    if len(cluster.groups) != 1:
        raise UsageError(
            f"--price, --power: are about one kind of device; cluster '{cluster.name}' has several, whose device files state theirs"
        )
    device = cluster.device
    if request.price_per_hour is not None:
        device = dataclasses.replace(device, price_per_hour=request.price_per_hour)
    if request.power_w is not None:
        busy, idle = request.power_w
        device = dataclasses.replace(device, busy_power_w=busy, idle_power_w=idle)
    return cluster.with_device(device)


def _collectives(request: Request) -> tuple[str, ...]:
    if request.collective is None:
        return tuple(ALL_REDUCE_NAMES)
    known = names_of("all_reduce")
    if request.collective not in known:
        raise UnknownName(
            kind="collective",
            name=request.collective,
            known=known,
            hint="list them: planner list collectives",
        )
    return (request.collective,)


def _restriction(request: Request, model: LoadedModel | None) -> Restriction | None:
    """What a request fixes of the plans: splits of layers (--fix) and a family; None where it fixes nothing or the network is not known.

    Raises
    ------
    UsageError
        A pattern that fits no layer, splits that layers do not have or that need more workers than there are.
    """
    if model is None or (not request.fix and request.family is None):
        return None
    from strategies.layerwise.space import Restriction, fixed_by_patterns  # questions about other spaces do without

    patterns = [parse_fix(text) for text in request.fix]
    try:
        fixed = fixed_by_patterns(model.graph, patterns)
    except ValueError as error:
        raise UsageError(f"--fix: {error}") from None
    for text, (_, degrees) in zip(request.fix, patterns, strict=True):
        needed = math.prod(max(degree, 1) for degree in degrees.values())
        if needed > request.gpus:
            raise UsageError(f"--fix '{text}' needs {needed} workers, and --gpus is {request.gpus}")
    return Restriction(fixed=fixed, family=request.family)


def parse_fix(text: str) -> tuple[str, dict[str, int]]:
    """Read ``conv*:batch`` (all workers along one dimension) or ``fc6:batch=4,out_channels=2``; `planner.api.readers.fixes` has checked it.

    Examples
    --------
    >>> parse_fix("fc*:out_channels"), parse_fix("fc6:batch = 4,out_channels=0.002k")
    (('fc*', {'out_channels': 0}), ('fc6', {'batch': 4, 'out_channels': 2}))
    """
    pattern, _, split = text.rpartition(":")
    parts = [part.partition("=") for part in split.split(",")]
    return pattern, {name.strip(): whole_number(degree.strip()) or 0 for name, _, degree in parts}

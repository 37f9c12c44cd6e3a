"""From options to domain objects: names looked up, units parsed, defaults chosen and written down."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from costmodel.collective_registry import names_of
from costmodel.collectives import ALL_REDUCE_NAMES
from costmodel.compute import ComputeModel
from costmodel.constants import cluster_with
from costmodel.device import Device
from costmodel.host import host_rates
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.network import Cluster
from costmodel.precision import OPTIMIZERS, PRECISIONS, Optimizer, Precision, default_precision
from costmodel.roofline import RooflineCompute
from costmodel.splits import divisors
from costmodel.units import QuantityError, format_bytes, parse_quantity
from costmodel.workload import CONTEXT_BYTES, Workload
from planner.assumptions import space_assumptions, stated_assumptions
from planner.calibration.files import LoadedCalibration, load_calibration
from planner.errors import PlannerError, UnknownName, UsageError
from planner.fixing import restriction_of
from planner.loading import LoadedModel, load_algorithms, load_cluster, load_device, load_model
from planner.mesh.space import Space, choose_space, is_transformer
from planner.mixed.options import lead_device
from planner.objectives import check_layer_objective
from planner.request import Request
from planner.results import Assumption, Setting
from strategies.space import Restriction

__all__ = ["DEFAULT_CLUSTER", "Resolved", "check_trainable", "resolve"]

DEFAULT_CLUSTER = "dgx-h100"
_MAX_GPUS = 1_000_000

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request in the words of the cost model and the search."""

    request: Request
    model: LoadedModel
    workload: Workload
    cluster: Cluster
    restriction: Restriction
    space: Space
    setting: Setting
    assumptions: tuple[Assumption, ...]
    free_layers: tuple[str, ...]
    mesh_assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS  # before --assume

    def source_of(self, name: str) -> str:
        """Where an assumption of the mesh model comes from."""
        if name in dict(self.request.assume):
            return "given"
        if host_rates(self.cluster.host).get(name) == getattr(self.mesh_assumptions, name):
            return "cluster file"
        is_bundled = getattr(self.mesh_assumptions, name) == getattr(DEFAULT_ASSUMPTIONS, name)
        return "default" if is_bundled else "calibration"

    def with_batch(self, global_batch: int) -> Resolved:
        """Ask the same at another global batch."""
        return dataclasses.replace(
            self,
            workload=dataclasses.replace(self.workload, global_batch=global_batch),
            setting=dataclasses.replace(self.setting, global_batch=global_batch),
        )


def resolve(request: Request) -> Resolved:
    """Load what the request names and fill in what it leaves open.

    Raises
    ------
    PlannerError
        Unknown names, unusable values, files with problems.
    """
    model, (cluster, inputs), collectives, restriction = _look_up(request)
    calibrated = _calibration(request)
    if calibrated is not None:
        cluster = cluster_with(cluster, calibrated.calibration.values)
        inputs = {**inputs, "calibration": calibrated.sha256}
    space = choose_space(request, model.graph, cluster)
    if space == "layers":
        check_layer_objective(request.objective, cluster.device, reads_tokens=model.seq is not None)
    device = cluster.groups[lead_device(cluster, request.precision)].device
    precision = _precision(request, model, cluster, device, space)
    optimizer = _pick("optimizer", request.optimizer, OPTIMIZERS, _usual_optimizer(request, model))
    global_batch = request.batch if request.batch is not None else model.global_batch
    _check_numbers(request, cluster, global_batch, space)
    if request.mode == "training":
        check_trainable(model)
    compute, cluster = _compute(request, model, cluster, device, precision, optimizer)
    workload = Workload(
        graph=model.graph,
        global_batch=global_batch,
        precision=precision,
        optimizer=optimizer,
        compute=compute,
        training=request.mode == "training",
        collectives=collectives,
        context_bytes=CONTEXT_BYTES,
    )
    setting = _setting(request, model, cluster, workload, _capacity(request, device), inputs)
    return Resolved(
        request=request,
        model=model,
        workload=workload,
        cluster=cluster,
        restriction=restriction,
        space=space,
        setting=setting,
        assumptions=(
            *stated_assumptions(request, model, workload, setting, calibrated),
            *space_assumptions(request, model, space),
        ),
        free_layers=_free_layers(model, compute),
        mesh_assumptions=_mesh_assumptions(cluster, calibrated),
    )


def _setting(
    request: Request,
    model: LoadedModel,
    cluster: Cluster,
    workload: Workload,
    capacity_bytes: float,
    inputs: Mapping[str, str],
) -> Setting:
    """The question as answers state it."""
    paleo = request.cost_model == "paleo"
    return Setting(
        model=model.name,
        cluster=cluster.name,
        device=", ".join(dict.fromkeys(group.device.name for group in cluster.groups)),
        gpus=request.gpus,
        global_batch=workload.global_batch,
        precision=workload.precision.name,
        optimizer=workload.optimizer.name,
        mode=request.mode,
        cost_model=request.cost_model,
        memory_capacity_bytes=capacity_bytes,
        inputs={"model": model.sha256, **inputs},
        command_line=request.command_line,
        cost_model_options={"ppp_comp": request.ppp_comp, "ppp_comm": request.ppp_comm} if paleo else {},
        seq=model.seq,
    )


def check_trainable(model: LoadedModel) -> None:
    """Refuse to train a network that has nothing to train: every figure would be that of something else."""
    graph = model.graph
    if graph.weighted:
        return
    count = graph.weight_count + graph.norm_count
    if not count:
        raise UsageError(f"network '{model.name}' has no weights, so there is nothing to train; use --mode inference")
    raise UsageError(
        f"network '{model.name}' has nothing to train: all of its {count:,} weights are frozen; leave a layer that is not, "
        "train adapters (lora_rank of a linear layer, or --lora-rank), or use --mode inference"
    )


def _free_layers(model: LoadedModel, compute: ComputeModel) -> tuple[str, ...]:
    """Names of the layers that take no time; a network of these alone has no step to speak of."""
    free = tuple(layer.name for layer in model.graph.layers if compute.is_free(layer))
    if len(free) == len(model.graph.layers):
        raise UsageError(f"network '{model.name}' has nothing to compute: all of its layers are counted as free")
    return free


def _look_up(
    request: Request,
) -> tuple[LoadedModel, tuple[Cluster, dict[str, str]], tuple[str, ...], Restriction]:
    """Look up everything that is named, and report all that is wrong in one go."""
    faults: list[PlannerError] = []

    def tried(function: Callable[..., _T], *arguments: object) -> _T | None:
        try:
            return function(*arguments)
        except PlannerError as error:
            faults.append(error)
            return None

    model = tried(_model, request)
    cluster = tried(_cluster, request)
    tried(_calibration, request)
    collectives = tried(_collectives, request)
    restriction = tried(restriction_of, request, model)
    for kind, name, known in (
        ("precision", request.precision, PRECISIONS),
        ("optimizer", request.optimizer, OPTIMIZERS),
    ):
        if name is not None:
            tried(_pick, kind, name, known, name)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise UsageError("\n".join(str(fault) for fault in faults))
    assert model is not None
    assert cluster is not None
    assert collectives is not None
    assert restriction is not None
    return model, cluster, collectives, restriction


def _model(request: Request) -> LoadedModel:
    model = load_model(request.model, seq=request.seq, assume_free=request.assume_free)
    return model if request.lora_rank is None else _with_adapters(model, request.lora_rank)


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


def _precision(request: Request, model: LoadedModel, cluster: Cluster, device: Device, space: Space) -> Precision:
    """The one asked for, or that which the cost model or the device makes usual; a device without it is refused."""
    paleo = request.cost_model == "paleo"
    usual = default_precision(device.peak_flop_per_s, is_transformer=is_transformer(model.graph))
    precision = _pick("precision", request.precision, PRECISIONS, "fp32" if paleo else usual)
    if precision.compute not in device.peak_flop_per_s:
        known = ", ".join(sorted(device.peak_flop_per_s))
        which = f"device '{device.name}'" if space != "mixed" else f"no device of cluster '{cluster.name}'"
        which += " has no" if space != "mixed" else " has a"
        asked = f"--precision {precision.name}: " if request.precision is not None else ""
        raise UsageError(f"{asked}{which} rate for precision '{precision.name}'; it has {known}")
    if paleo and precision.name != "fp32":
        raise UsageError(f"the paleo cost model knows fp32 only, not '{precision.name}'; use --cost-model roofline")
    return precision


def _usual_optimizer(request: Request, model: LoadedModel) -> str:
    if request.cost_model == "paleo":
        return "sgd"
    return "adam" if is_transformer(model.graph) else "momentum"


def _cluster(request: Request) -> tuple[Cluster, dict[str, str]]:
    loaded = load_cluster(request.cluster or DEFAULT_CLUSTER)
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
        from costmodel.mixed.links import group_cluster

        cluster = dataclasses.replace(group_cluster(cluster, 0), name=cluster.name)  # its links as it has them
    return cluster, inputs


def _with_rates(cluster: Cluster, request: Request) -> Cluster:
    """The cluster with the price and the power that were asked for."""
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


def _mesh_assumptions(cluster: Cluster, calibrated: LoadedCalibration | None) -> MeshAssumptions:
    """The bundled ones, the rates of the cluster's host, and what was calibrated; the later win."""
    known = DEFAULT_ASSUMPTIONS if calibrated is None else calibrated.calibration.assumptions()
    rates = host_rates(cluster.host)
    untouched = {
        name: rate for name, rate in rates.items() if getattr(known, name) == getattr(DEFAULT_ASSUMPTIONS, name)
    }
    return dataclasses.replace(known, **untouched)


def _calibration(request: Request) -> LoadedCalibration | None:
    if request.calibration is None:
        return None
    if request.cost_model == "paleo":
        raise UsageError("--calibration: only has a meaning with --cost-model roofline; paleo has constants of its own")
    return load_calibration(request.calibration)


def _pick(kind: str, name: str | None, known: Mapping[str, _T], default: str) -> _T:
    chosen = name if name is not None else default
    if chosen not in known:
        raise UnknownName(kind=kind, name=chosen, known=known)
    return known[chosen]


def _check_numbers(request: Request, cluster: Cluster, global_batch: int, space: Space) -> None:
    if request.gpus < 1:
        raise UsageError(f"--gpus must be at least 1, not {request.gpus}")
    if request.gpus > _MAX_GPUS:
        raise UsageError(f"--gpus {request.gpus} is beyond any cluster; the most is {_MAX_GPUS}")
    most = cluster.max_devices
    if most is not None and request.gpus > most:
        raise UsageError(f"--gpus {request.gpus} is more than cluster '{cluster.name}' has: {most}")
    if global_batch < 1:
        raise UsageError(f"--batch must be at least 1, not {global_batch}")
    if global_batch > 1 << 40:
        raise UsageError(f"--batch {global_batch} is beyond any training run")
    if space == "layers":
        _check_micro_batches(request, global_batch)
    if request.top < 1:
        raise UsageError(f"--top must be at least 1, not {request.top}")
    for name, value in (("--ppp-comp", request.ppp_comp), ("--ppp-comm", request.ppp_comm)):
        if not 0.0 < value <= 1.0:
            raise UsageError(f"{name} is a fraction of peak: above 0, at most 1, not {value}")


def _check_micro_batches(request: Request, global_batch: int) -> None:
    if request.micro_batches is not None and not 1 <= request.micro_batches <= global_batch:
        raise UsageError(f"--micro-batches must be between 1 and the global batch ({global_batch})")
    if request.micro_batches is not None and global_batch % request.micro_batches:
        near = sorted(divisors(global_batch), key=lambda m: (abs(m - (request.micro_batches or 1)), m))[:3]
        raise UsageError(
            f"--micro-batches {request.micro_batches} does not divide the global batch {global_batch}; "
            f"near it are {', '.join(map(str, sorted(near)))}"
        )


def _compute(
    request: Request, model: LoadedModel, cluster: Cluster, device: Device, precision: Precision, optimizer: Optimizer
) -> tuple[ComputeModel, Cluster]:
    """Build the preset; PALEO's network is bytes over bandwidth x ppp_comm, without latency."""
    roofline = RooflineCompute(device=device, precision=precision, optimizer=optimizer)
    if request.cost_model == "roofline":
        if request.ppp_comp != 1.0 or request.ppp_comm != 1.0:
            raise UsageError(
                "--ppp-comp and --ppp-comm belong to --cost-model paleo; roofline's efficiency depends on size"
            )
        return roofline, cluster
    from costmodel.paleo.model import PaleoCompute

    algorithms = None
    if request.paleo_algorithms is not None:
        algorithms = load_algorithms(request.paleo_algorithms, [layer.name for layer in model.graph.layers])
    paleo = PaleoCompute(
        device=device,
        ppp_comp=request.ppp_comp,
        use_pipeline=request.paleo_pipeline,
        algorithms=algorithms,
        extensions=roofline if request.paleo_extensions else None,
    )
    refused = [f"{layer.name}: {paleo.refusal(layer)}" for layer in model.graph.layers if paleo.refusal(layer)]
    if refused and not request.paleo_extensions:
        listed = "\n  ".join(refused[:20])
        raise UsageError(
            f"the paleo cost model cannot evaluate {len(refused)} of {len(model.graph.layers)} layers of '{model.name}':\n"
            f"  {listed}\n--paleo-extensions costs them by the roofline instead"
        )
    return paleo, cluster.with_ideal_links(request.ppp_comm)


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


def _capacity(request: Request, device: Device) -> float:
    if request.memory_limit is None:
        return device.memory_bytes
    try:
        limit = parse_quantity(request.memory_limit, "bytes")
    except QuantityError as error:
        raise UsageError(f"--memory-limit: {error}") from None
    if limit <= CONTEXT_BYTES:
        raise UsageError(
            f"--memory-limit {request.memory_limit}: {format_bytes(CONTEXT_BYTES)} are taken before any tensor is placed "
            "(driver and libraries); give more than that"
        )
    return min(limit, device.memory_bytes)

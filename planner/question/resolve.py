"""From options to domain objects: names looked up, units parsed, defaults chosen and written down."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.fields import with_values, without_effect
from costmodel.framework import NO_FRAMEWORK, Framework, LayerAssumptions, cluster_run_by
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.hardware.host import host_rates
from costmodel.kernels.roofline import ComputeModel, RooflineCompute
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.precision import PRECISIONS, Optimizer, Precision, default_precision
from costmodel.uncertainty.constants import assumptions_with, cluster_with
from costmodel.uncertainty.limits import OTHERS, MemoryErrors
from costmodel.workload import CONTEXT_BYTES, Workload
from planner.core.answer import Assumption, Setting
from planner.core.capacity import confidence_of, errors_words, memory_source, memory_words, usable_bytes
from planner.core.errors import UsageError
from planner.core.numbers import byte_text
from planner.core.request import WELL_TUNED, WELL_TUNED_WORDS, Request
from planner.files.loading import (
    LoadedCalibration,
    LoadedModel,
    calibration_in_words,
    load_algorithms,
    load_calibration,
    load_framework,
)
from planner.files.naming.precisions import meanings
from planner.files.resources import stands_for
from planner.question.choose import Asked, Kind, choose_space, is_transformer, lead_device
from planner.question.lookup import called, look_up, optimizer_of

if TYPE_CHECKING:
    from strategies.layerwise.space import Restriction

# Recipes of 8 bits with a scale for each block: devices have rates for one or the other.
_IN_BLOCKS = ("mxfp8", "fp8-blockwise")
# What importers put behind a name that is taken.
_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A request in the words of the cost model and the search."""

    request: Request
    model: LoadedModel
    workload: Workload
    cluster: Cluster
    restriction: Restriction | None  # of splits of layers, where something is fixed
    kind: Kind
    setting: Setting
    assumptions: tuple[Assumption, ...]
    free_layers: tuple[str, ...]
    mesh_assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS  # before --assume

    @property
    def space(self) -> str:
        """Name of the space of plans that it is about."""
        return self.kind.space

    def source_of(self, name: str) -> str:
        """Where an assumption of the mesh model comes from."""
        if name in dict(self.request.assume):
            return self.request.source_of("assume", "default")
        if host_rates(self.cluster.host).get(name) == getattr(self.mesh_assumptions, name):
            return "cluster file"
        value = getattr(self.mesh_assumptions, name)
        if value == getattr(DEFAULT_ASSUMPTIONS, name):
            return "default"
        framework = self.workload.framework
        usual = framework.mesh_assumptions(precision=self.workload.precision)
        return "framework" if getattr(usual, name) == value else "calibration"

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
    model, (cluster, inputs), collectives, restriction, calibrated, framework = look_up(request)
    cluster = cluster_run_by(cluster, framework.attention)
    if calibrated is not None:
        cluster = cluster_with(cluster, calibrated.calibration.values)
        inputs = {**inputs, "calibration": calibrated.sha256}
    if request.framework:
        inputs = {**inputs, "framework": load_framework(request.framework).sha256}
    asked = Asked(request=request, graph=model.graph, cluster=cluster)
    kind = choose_space(asked)
    kind.check_objective(request, cluster, reads_tokens=model.seq is not None)
    named = called(request.precision)
    serves = request.mode == "inference"
    experts = any(layer.kind == "moe" for layer in model.graph.layers)
    adapters = not serves and any(layer.lora_rank for layer in model.graph.layers)
    fp8 = framework.defaults.fp8
    wanted = () if named is None else meanings(named, fp8, serves=serves, experts=experts, adapters=adapters)
    published = model.checkpoint if serves else None
    if published is not None and (named is None or [known.name for known in wanted] == [published.name]):
        wanted = (published,)
    device = cluster.groups[lead_device(cluster, wanted)].device
    precision = _precision(request, model, cluster, device, kind, wanted, _usual_precision(model, device, framework))
    paleo = request.cost_model == "paleo"
    usual_optimizer = "sgd" if paleo else "adam" if is_transformer(model.graph) else "momentum"
    optimizer = optimizer_of(request.optimizer, usual_optimizer)
    global_batch = request.batch if request.batch is not None else model.global_batch
    most = cluster.max_devices
    if most is not None and request.gpus > most:
        raise UsageError(f"--gpus {request.gpus} is more than cluster '{cluster.name}' has: {most}")
    kind.check_batch(request, global_batch)
    if request.mode == "training":
        check_trainable(model)
        precision, optimizer = framework.kept(precision, optimizer)
    known = assumptions_of(framework, calibrated, precision, cluster)
    kind.check_assumed(request.assume)
    given = dict(request.assume)
    layer_assumptions = with_values(known[1], given)
    unused = without_effect(with_values(known[0], given), given) | without_effect(layer_assumptions, given)
    if unused:
        raise UsageError(
            "\n".join(
                f"--assume {name}: changes nothing while {need} is 0; give that, too" for name, need in unused.items()
            )
        )
    compute, cluster = _compute(request, model, cluster, device, precision, optimizer, layer_assumptions)
    workload = Workload(
        graph=model.graph,
        global_batch=global_batch,
        precision=precision,
        optimizer=optimizer,
        compute=compute,
        training=request.mode == "training",
        collectives=collectives,
        context_bytes=CONTEXT_BYTES,
        framework=framework,
        assumptions=layer_assumptions,
    )
    memory_errors = _memory_errors(request, framework, calibrated)
    setting = Setting(
        model=model.name,
        cluster=cluster.name,
        device=", ".join(dict.fromkeys(group.device.name for group in cluster.groups)),
        gpus=request.gpus,
        global_batch=global_batch,
        precision=precision.name,
        optimizer=optimizer.name,
        mode=request.mode,
        cost_model=request.cost_model,
        memory_capacity_bytes=usable_bytes(request, device, memory_errors),
        memory_errors=memory_errors,
        inputs={"model": model.sha256, **inputs},
        command_line=request.command_line,
        cost_model_options={"ppp_comp": request.ppp_comp, "ppp_comm": request.ppp_comm} if paleo else {},
        seq=model.seq,
        framework=framework.name,
        formats=precision.formats(trains=not serves),
    )
    why = kind.why(asked)  # where a network with blocks got another space than it would have by itself
    return Resolved(
        request=request,
        model=model,
        workload=workload,
        cluster=cluster,
        restriction=restriction,
        kind=kind,
        setting=setting,
        assumptions=(
            *_stated_assumptions(request, model, workload, setting, calibrated, device),
            *([] if why is None else [Assumption(name="plans", value=why)]),
        ),
        free_layers=_free_layers(model, compute),
        mesh_assumptions=known[0],
    )


def _memory_errors(request: Request, framework: Framework, calibrated: LoadedCalibration | None) -> MemoryErrors | None:
    """How far predicted memory is off: known of training steps by the default cost model."""
    if request.mode != "training" or request.cost_model == "paleo":
        return None
    known = dict(load_calibration().calibration.memory_errors)
    if calibrated is not None:
        known |= calibrated.calibration.memory_errors
    return known.get(framework.errors_of or framework.name) or known[OTHERS]


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


def _usual_precision(model: LoadedModel, device: Device, framework: Framework) -> str:
    """What a network is trained in on a device where nobody says, of the formats that the framework has."""
    runs = framework.rules.runs("precision", tuple(device.peak_flop_per_s))
    rates = {name: rate for name, rate in device.peak_flop_per_s.items() if name in runs}
    return default_precision(rates, is_transformer=is_transformer(model.graph))


def _precision(
    request: Request,
    model: LoadedModel,
    cluster: Cluster,
    device: Device,
    kind: Kind,
    wanted: Sequence[Precision],
    usual: str,
) -> Precision:
    """The one asked for, or that which the cost model or the device makes usual; a device without it is refused."""
    paleo, serves = request.cost_model == "paleo", request.mode == "inference"
    wanted = wanted or (PRECISIONS["fp32" if paleo else usual],)
    precision = next((known for known in wanted if known.runs_on(device.formats)), wanted[-1])
    keeps_narrow = serves and precision.casts  # weights alone, where the device has no rate
    if not precision.runs_on(device.formats) and not keeps_narrow:
        known = ", ".join(sorted(device.peak_flop_per_s))
        asked = f"--precision {request.precision}: " if request.precision is not None else ""
        raise UsageError(
            f"{asked}{kind.without_rate(device, cluster)} rate for precision '{request.precision or usual}'; it has {known}"
            f"{_instead(precision, device)}"
        )
    if paleo and precision.name != "fp32":
        raise UsageError(f"the paleo cost model knows fp32 only, not '{precision.name}'; use --cost-model roofline")
    covered = [layer for layer in model.graph.layers if precision.stored is not None and precision.holds(layer)]
    if precision.stored is not None and not covered:
        what = "experts" if "linear" not in precision.covers else "matrices in repeated blocks"
        raise UsageError(
            f"--precision {request.precision} keeps {what} in {precision.stored.name}; network '{model.name}' has none"
        )
    if not serves and any(layer.weight_count and not layer.is_frozen for layer in covered):
        raise UsageError(
            f"--precision {request.precision} is for weights that are not trained; train adapters (--lora-rank), or use --mode inference"
        )
    return precision.on(device.formats, reads_both_ways=device.reads_both_ways, serves=serves)


def _instead(precision: Precision, device: Device) -> str:
    """A recipe with blocks and scales that the device has in place of one that it does not."""
    near = next((name for name in _IN_BLOCKS if PRECISIONS[name].runs_on(device.formats)), None)
    return f"; {near} has scales for blocks there" if precision.name in _IN_BLOCKS and near else ""


def assumptions_of(
    framework: Framework, calibrated: LoadedCalibration | None, precision: Precision, cluster: Cluster
) -> tuple[MeshAssumptions, LayerAssumptions]:
    """What is taken for granted of plans over a mesh and of plans with a split per layer: the framework's, and what was calibrated."""
    has_fp4 = all(group.device.has_fp4 for group in cluster.groups)
    mesh = framework.mesh_assumptions(precision=precision, has_fp4=has_fp4, host=cluster.host)
    layers = framework.layer_assumptions(precision)
    if calibrated is None:
        return mesh, layers
    assumed, values = calibrated.calibration.assumed, calibrated.calibration.values
    return assumptions_with(with_values(mesh, assumed), values), with_values(layers, assumed)


def _compute(
    request: Request,
    model: LoadedModel,
    cluster: Cluster,
    device: Device,
    precision: Precision,
    optimizer: Optimizer,
    assumptions: LayerAssumptions,
) -> tuple[ComputeModel, Cluster]:
    """Build the preset; PALEO's network is bytes over bandwidth x ppp_comm, without latency."""
    roofline = RooflineCompute(
        device=assumptions.device_as_used(device),
        precision=precision,
        optimizer=optimizer,
        software=assumptions.image_software(),
        overlaps_exchange=bool(assumptions.layer_overlap),
    )
    if request.cost_model == "roofline":
        if request.ppp_comp != 1.0 or request.ppp_comm != 1.0:
            raise UsageError(
                "--ppp-comp and --ppp-comm belong to --cost-model paleo; roofline's efficiency depends on size"
            )
        return roofline, cluster
    from costmodel.paleo.model import PaleoCompute

    path, names = request.paleo_algorithms, [layer.name for layer in model.graph.layers]
    paleo = PaleoCompute(
        device=device,
        ppp_comp=request.ppp_comp,
        use_pipeline=request.paleo_pipeline,
        algorithms=None if path is None else load_algorithms(path, names),
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


# -- what an answer rests on, as every report prints it under the answer


def _stated_assumptions(
    request: Request,
    model: LoadedModel,
    workload: Workload,
    setting: Setting,
    calibrated: LoadedCalibration | None,
    device: Device,
) -> tuple[Assumption, ...]:
    of_device = "default of transformers on the device" if is_transformer(model.graph) else "default of the device"
    if _usual_precision(model, device, workload.framework) != _usual_precision(model, device, NO_FRAMEWORK):
        of_device += f", of the formats of {workload.framework.title}"
    of_cluster = "default" if request.device is None else "default of the device"
    rows = [
        Assumption(name="model", value=f"{model.name} ({workload.graph.weight_count:,} weights)"),
        Assumption(name="cluster", value=setting.cluster, source=_source_of_cluster(request, setting, of_cluster)),
        *_free_assumptions(model),
        *(
            [Assumption(name="workers", value=f"up to {setting.gpus:,}", source="size of the cluster")]
            if request.whole_cluster
            else []
        ),
        Assumption(name="device", value=setting.device, source=request.source_of("device", "cluster file")),
        Assumption(
            name="global batch", value=str(setting.global_batch), source=request.source_of("batch", "model file")
        ),
        Assumption(
            name="precision",
            value=setting.precision,
            source=_source_of_precision(request, model, workload, of_device),
        ),
        *_sequence_assumptions(request, setting),
        Assumption(name="cost model", value=setting.cost_model),
        Assumption(name="mode", value=setting.mode),
    ]
    if setting.framework and setting.cost_model != "paleo":  # PALEO's program knows none
        source = request.source_of("framework", "calibration")
        rows.append(Assumption(name="framework", value=setting.framework, source=source))
    elif setting.cost_model != "paleo":
        source = request.source_of("framework", "default")
        hint = " (--framework names one)" if source == "default" else ""
        rows.append(Assumption(name="framework", value=f"{WELL_TUNED}: {WELL_TUNED_WORDS}{hint}", source=source))
    if calibrated is not None:
        rows.append(
            Assumption(
                name="calibration",
                value=calibration_in_words(calibrated.calibration),
                source=request.source_of("calibration", ""),
            )
        )
    if workload.training:
        usual = f"default{' of transformers' if is_transformer(model.graph) else ''}"
        rows.append(Assumption(name="optimizer", value=setting.optimizer, source=request.source_of("optimizer", usual)))
    errors = setting.memory_errors
    whose = ""
    if errors is not None and confidence_of(request, errors) is not None:
        whose = f"errors of the memory of {errors_words(errors, setting.framework)}"
    rows.append(
        Assumption(
            name="memory per GPU",
            value=f"{memory_words(request, device, errors)}, of which {byte_text(workload.context_bytes)} for the driver's context",
            source=memory_source(request, device) or whose,
        )
    )
    if request.collective is not None:
        rows.append(Assumption(name="collective", value=request.collective, source=request.source_of("collective", "")))
    return tuple(rows)


def _source_of_cluster(request: Request, setting: Setting, usual: str) -> str:
    """Who says which cluster it is: a device's name stands for the usual one, with that device."""
    source, given = request.source_of("cluster", usual), request.cluster
    stood = None if given is None else stands_for(given)
    if stood is None:
        return source
    return f"{source} as {given}" if setting.cluster == stood[0] else f"{source}, linked as {stood[0]}"


def _source_of_precision(request: Request, model: LoadedModel, workload: Workload, of_device: str) -> str:
    """Who says which number format it is: a bare fp8 is what the framework means by it."""
    framework = workload.framework
    if request.precision is not None and called(request.precision) != workload.precision.name:
        who = framework.title if framework.defaults.fp8 else "Transformer Engine" if workload.training else "serving"
        return f"{request.precision} of {who}"
    published = not workload.training and model.checkpoint is not None
    usual = "published weights" if published else "the paleo cost model" if request.cost_model == "paleo" else of_device
    return request.source_of("precision", usual)


def _free_assumptions(model: LoadedModel) -> list[Assumption]:
    """Operators that the user has assumed to cost nothing, whether now or when the network was imported."""
    layers = [layer for layer in model.graph.layers if layer.kind == "assumed_free"]
    if not layers:
        return []
    counts = Counter(_NUMBER.sub("", layer.name.rpartition("assumed_free/")[2]) for layer in layers)
    listed = ", ".join(f"{operator} ({count})" for operator, count in counts.items())
    return [Assumption(name="assumed free", value=listed, source="--assume-free")]


def _sequence_assumptions(request: Request, setting: Setting) -> list[Assumption]:
    rows = []
    if setting.seq is not None:
        source = request.source_of("seq", "model file")
        rows.append(Assumption(name="sequence length", value=str(setting.seq), source=source))
    if request.documents_text is not None:
        source = request.source_of("doc_lengths", "")
        rows.append(Assumption(name="documents", value=request.documents_text, source=source))
    if request.lora_rank is not None:
        value = f"rank {request.lora_rank} on the linear layers of the blocks, all other weights frozen"
        rows.append(Assumption(name="adapters", value=value, source=request.source_of("lora_rank", "")))
    return rows

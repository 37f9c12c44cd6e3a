"""What an answer rests on, as every report prints it under the answer."""

from __future__ import annotations

import re
from collections import Counter

from costmodel.workload import Workload
from planner.core.answer import Assumption, Setting
from planner.core.quantities import format_bytes
from planner.core.request import Request
from planner.files.loading import LoadedCalibration, LoadedModel, calibration_in_words
from planner.question.choose import Asked, Kind, is_transformer

__all__ = ["space_assumptions", "stated_assumptions"]


# What importers put behind a name that is taken.
_NUMBER = re.compile(r"_\d+$")


def stated_assumptions(
    request: Request,
    model: LoadedModel,
    workload: Workload,
    setting: Setting,
    calibrated: LoadedCalibration | None,
    memory_source: str,
) -> tuple[Assumption, ...]:
    """What an answer rests on, each with where it comes from: given, a file, or a default."""

    def source(given: object, default: str) -> str:
        return default if given is None else "given"

    of_device = "default of transformers on the device" if is_transformer(model.graph) else "default of the device"
    of_cluster = "default" if request.device is None else "default of the device"
    rows = [
        Assumption(name="model", value=f"{model.name} ({workload.graph.weight_count:,} weights)", source=""),
        Assumption(name="cluster", value=setting.cluster, source=source(request.cluster, of_cluster)),
        *_free_assumptions(model),
        *_size_assumptions(request, setting),
        Assumption(name="device", value=setting.device, source=source(request.device, "cluster file")),
        Assumption(name="global batch", value=str(setting.global_batch), source=source(request.batch, "model file")),
        Assumption(
            name="precision",
            value=setting.precision,
            source=source(
                request.precision,
                "the paleo cost model" if setting.cost_model == "paleo" else of_device,
            ),
        ),
        *_sequence_assumptions(request, setting),
        Assumption(name="cost model", value=setting.cost_model, source=""),
        Assumption(name="mode", value=setting.mode, source=""),
        *_framework_assumptions(request, setting),
    ]
    if calibrated is not None:
        rows.append(Assumption(name="calibration", value=calibration_in_words(calibrated.calibration), source="given"))
    if workload.training:
        usual = f"default{' of transformers' if is_transformer(model.graph) else ''}"
        rows.append(Assumption(name="optimizer", value=setting.optimizer, source=source(request.optimizer, usual)))
    rows.append(
        Assumption(
            name="memory per GPU",
            value=f"{format_bytes(setting.memory_capacity_bytes)}, of which {format_bytes(workload.context_bytes)} context",
            source=memory_source,
        )
    )
    if request.collective is not None:
        rows.append(Assumption(name="collective", value=request.collective, source="given"))
    return tuple(rows)


def _framework_assumptions(request: Request, setting: Setting) -> list[Assumption]:
    """What runs the plans; PALEO's program knows none."""
    if setting.cost_model == "paleo":
        return []
    if setting.framework:
        source = "calibration" if request.framework is None else "given"
        return [Assumption(name="framework", value=setting.framework, source=source)]
    return [
        Assumption(
            name="framework", value="none: a well-tuned implementation (--framework names one)", source="default"
        )
    ]


def space_assumptions(asked: Asked, kind: Kind) -> tuple[Assumption, ...]:
    """Says so where a network with blocks got another space than it would have by itself."""
    why = kind.why(asked)
    return () if why is None else (Assumption(name="plans", value=why, source=""),)


def _free_assumptions(model: LoadedModel) -> list[Assumption]:
    """Operators that the user has assumed to cost nothing, whether now or when the network was imported."""
    layers = [layer for layer in model.graph.layers if layer.kind == "assumed_free"]
    if not layers:
        return []
    counts = Counter(_NUMBER.sub("", layer.name.rpartition("assumed_free/")[2]) for layer in layers)
    listed = ", ".join(f"{operator} ({count})" for operator, count in counts.items())
    return [Assumption(name="assumed free", value=listed, source="--assume-free")]


def _size_assumptions(request: Request, setting: Setting) -> list[Assumption]:
    if not request.whole_cluster:
        return []
    return [Assumption(name="workers", value=f"up to {setting.gpus:,}", source="size of the cluster")]


def _sequence_assumptions(request: Request, setting: Setting) -> list[Assumption]:
    rows = []
    if setting.seq is not None:
        source = "given" if request.seq is not None else "model file"
        rows.append(Assumption(name="sequence length", value=str(setting.seq), source=source))
    if request.lora_rank is not None:
        value = f"rank {request.lora_rank} on the linear layers of the blocks, all other weights frozen"
        rows.append(Assumption(name="adapters", value=value, source="given"))
    return rows

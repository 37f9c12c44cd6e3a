"""From a plan file to what is exported: checked against its network and cluster, and predicted again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from costmodel.mesh.plan import MeshPlan
from costmodel.network import Cluster
from costmodel.units import format_bytes, format_seconds
from planner.errors import UsageError
from planner.exporters import targets_that_take
from planner.exporters.job import Job, Nodes, Origin, ServingJob
from planner.exporters.network import sizes_of
from planner.files.plan_file import changed_inputs, read_plan, request_from_document

if TYPE_CHECKING:
    from costmodel.plan import Plan
    from planner.loading import Loaded
    from planner.request import Request
    from planner.resolve import Resolved
    from planner.schema.plan import PlanDocument

__all__ = ["PlannedJob", "job_of_file"]

# A job, the kind of plan it came from (a name in Exporter.TAKES), and warnings.
PlannedJob = tuple["Job | ServingJob", str, tuple[str, ...]]


def job_of_file(path: Path) -> PlannedJob:
    """Read a plan file and prepare it for an exporter.

    Raises
    ------
    InputFileError
        Everything in the file that contradicts itself or its network.
    UsageError
        A kind of plan that no exporter writes.
    """
    loaded = read_plan(path)
    document = loaded.content
    request = request_from_document(document, path.resolve().parent)
    if document.serving is not None:
        return _serving_job(loaded, request, path)
    if document.mixed is not None:
        raise UsageError(
            f"{path}: no target writes plans over several groups of devices (known: {_takers('mesh')}, for plans over one kind)"
        )
    if document.mesh is None:
        return _data_job(loaded, request, path)
    return _mesh_job(loaded, request, path)


def _takers(kind: str) -> str:
    return ", ".join(targets_that_take(kind))


def _mesh_job(loaded: Loaded[PlanDocument], request: Request, path: Path) -> PlannedJob:
    from planner.files.mesh_plan_file import mesh_plan_from_document
    from planner.mesh.judge import make_judge
    from planner.resolve import resolve

    resolved = resolve(request)
    judge = make_judge(resolved)
    plan = mesh_plan_from_document(loaded.content, judge, loaded.document)
    ranked = judge.rank([plan])[0]
    rate = f"{ranked.tokens_per_s:,.0f} tokens/s, {ranked.mfu:.1%} MFU"
    prediction = [
        f"{format_seconds(ranked.step_time_s)} per step of {plan.global_batch} samples, {rate}",
        _memory(ranked.memory_bytes_per_gpu, ranked.memory_capacity_bytes),
    ]
    if not ranked.fits:
        prediction.append("THE PLAN DOES NOT FIT INTO MEMORY")
    job = Job(
        plan=plan,
        origin=_origin(resolved, ranked.summary, prediction, path),
        nodes=Nodes(workers=plan.workers, capacity=_devices_of_node(resolved.cluster)),
        blocks=plan.stage_blocks or judge.model.blocks_of(plan.pp * plan.vpp),
        network=sizes_of(resolved.model.graph),
        seq=judge.seq,
        precision=resolved.setting.precision,
        optimizer=resolved.setting.optimizer,
        lora_rank=request.lora_rank,
    )
    return job, "mesh", _warnings(loaded.content, resolved)


def _data_job(loaded: Loaded[PlanDocument], request: Request, path: Path) -> PlannedJob:
    """A plan with a split per layer that splits every layer by the batch is plain data parallelism, which any trainer runs."""
    import dataclasses

    from planner.files.plan_check import plan_from_document
    from planner.resolve import resolve
    from planner.search import estimate

    document = loaded.content
    resolved = resolve(dataclasses.replace(request, space="layers"))
    graph = resolved.model.graph
    plan = plan_from_document(document, graph, loaded.document)
    other = next(
        (layer.name for layer, split in zip(graph.layers, plan.splits, strict=True) if split.batch != plan.workers),
        None,
    )
    if other is not None or plan.stages or document.mode != "training":
        what = f"layer '{other}' is not split by the batch alone" if other is not None else "it has stages"
        what = what if document.mode == "training" else "it is for inference"
        raise UsageError(
            f"{path}: no target writes plans with a split per layer ({what}); the program of such a plan is torch with DTensor, which is "
            f"not written yet. Data parallelism alone goes to {_takers('data')}; plans over a device mesh to {_takers('mesh')}"
        )
    unit = plan.workers * plan.num_micro_batches
    if document.global_batch % unit:
        raise UsageError(
            f"{path}: global_batch {document.global_batch} does not divide over {unit} = workers x micro-batches"
        )
    ranked = estimate(dataclasses.replace(request, space="layers"), plan).ranked
    rate = f"{ranked.throughput_samples_per_s:,.0f} samples/s"
    prediction = [
        f"{format_seconds(ranked.step_time_s)} per step of {document.global_batch} samples, {rate}",
        _memory(ranked.memory_bytes_per_gpu, ranked.memory_capacity_bytes),
    ]
    mesh = MeshPlan(
        dp_replicate=plan.workers, micro_batch=document.global_batch // unit, num_micro_batches=plan.num_micro_batches
    )
    job = Job(
        plan=mesh,
        origin=_origin(resolved, ranked.summary, prediction, path),
        nodes=Nodes(workers=plan.workers, capacity=_devices_of_node(resolved.cluster)),
        blocks=(),
        network=None,
        seq=resolved.setting.seq,
        precision=resolved.setting.precision,
        optimizer=resolved.setting.optimizer,
        lora_rank=request.lora_rank,
        collectives=_collectives(plan) if plan.workers > 1 else (),
    )
    return job, "data", _warnings(document, resolved)


def _collectives(plan: Plan) -> tuple[str, ...]:
    return tuple(sorted({name for name in plan.collectives if name is not None}))


def _serving_job(loaded: Loaded[PlanDocument], request: Request, path: Path) -> PlannedJob:
    from planner.files.serving_plan_file import serving_plan_from_document, serving_request_from_document
    from planner.serving.judge import make_serving_judge

    judge = make_serving_judge(serving_request_from_document(loaded.content, request))
    plan = serving_plan_from_document(loaded.content, judge, loaded.document)
    ranked = judge.rank([plan])[0]
    workload = judge.model.workload
    lengths = f"{workload.prompt_tokens} tokens in, {workload.output_tokens} out"
    prediction = [
        f"first token after {format_seconds(ranked.ttft_s)}, then {format_seconds(ranked.tpot_s)} per token ({lengths})",
        f"{ranked.output_tokens_per_s:,.0f} output tokens/s with all places taken",
        _memory(ranked.memory_bytes_per_gpu, ranked.memory_capacity_bytes),
    ]
    job = ServingJob(
        plan=plan,
        origin=_origin(judge.resolved, ranked.summary, prediction, path),
        nodes=Nodes(workers=plan.workers, capacity=_devices_of_node(judge.cluster)),
        stages=judge.model.layout(plan.pp).blocks,
        has_experts=any(layer.kind == "moe" for layer in judge.resolved.model.graph.layers),
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        precision=judge.setting.precision,
        kv_precision=judge.kv_precision,
        memory_utilisation=_utilisation(judge.capacity_bytes, judge.cluster),
    )
    return job, "serving", _warnings(loaded.content, judge.resolved)


def _memory(used_bytes: float, capacity_bytes: float) -> str:
    return f"{format_bytes(used_bytes)} of {format_bytes(capacity_bytes)} on the fullest GPU"


def _utilisation(capacity_bytes: float, cluster: Cluster) -> float:
    """Share of a device that may be filled, to three digits and not above what was asked for."""
    return int(capacity_bytes / cluster.device.memory_bytes * 1000 + 1e-6) / 1000


def _origin(resolved: Resolved, summary: str, prediction: list[str], path: Path) -> Origin:
    from planner import __version__

    setting = resolved.setting
    return Origin(
        model=setting.model,
        cluster=setting.cluster,
        device=setting.device,
        summary=summary,
        prediction=tuple(prediction),
        planner_version=__version__,
        plan_name=path.name,
    )


def _devices_of_node(cluster: Cluster) -> int:
    """Devices that one operating system sees: those of the host, else those that the innermost links join."""
    if cluster.host is not None:
        return cluster.host.devices
    return cluster.levels[0].size or cluster.max_devices or 1


def _warnings(document: PlanDocument, resolved: Resolved) -> tuple[str, ...]:
    return tuple(
        f"the {role} file is not the one that the plan was made with (its sha256 differs)"
        for role in changed_inputs(document, resolved.setting)
    )

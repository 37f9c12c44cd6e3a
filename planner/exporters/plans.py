"""From a plan file to what is exported: checked against its network and cluster, and predicted again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.framework import UNKNOWN
from costmodel.mesh.framework_rules import facts_of
from costmodel.mesh.plan import MeshPlan
from costmodel.network.sizes import sizes_of
from planner.core.errors import PlannerError, UsageError
from planner.core.numbers import byte_text, duration_text, percent
from planner.core.request import SPACES, imported
from planner.exporters import exporter_of, targets_that_take
from planner.exporters.job import Job, LayerJob, Nodes, Origin, ServingJob
from planner.exporters.other_networks import other_network_of
from planner.files.loading import load_calibration
from planner.files.plan_file import changed_inputs
from planner.question.resolve import resolve
from planner.spaces.base import space_of
from planner.spaces.plan_question import request_from_document

if TYPE_CHECKING:
    from planner.core.answer import RankedPlan
    from planner.files.loading import Loaded
    from planner.schema.plan import PlanDocument

# Kind of plan, as in Exporter.TAKES -> how a sentence goes on after "a plan" or "plans".
_KINDS = {
    "serving": "for serving",
    "mesh": "over a device mesh",
    "layers": "with a split for each layer",
    "data": "of data parallelism alone",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan of any space that was read, checked and predicted, for an exporter.

    Attributes
    ----------
    space : PlanSpace
        Of the type of its plan.
    ranked : RankedPlan
    path : Path
        Of the plan file.
    takes : frozenset of str
        Kinds of plans that the exporter takes.
    """

    space: Any
    ranked: RankedPlan
    path: Path
    takes: frozenset[str]

    @property
    def plan(self) -> Any:
        """The plan itself."""
        return self.ranked.plan

    @property
    def nodes(self) -> Nodes:
        """Where it runs."""
        cluster, workers = self.space.resolved.cluster, self.plan.workers
        used = getattr(self.plan, "domain_gpus", None)  # other kinds of plans leave it open
        if used is None:
            return Nodes(workers=workers, capacity=cluster.devices_of_node)
        used = used or int(cluster.share(workers)) or cluster.devices_of_node
        return Nodes(
            workers=workers,
            capacity=min(cluster.devices_of_node, used),
            domain_gpus=used if cluster.has_shares else 0,
            domain=cluster.domain_name,
        )

    def origin(self, *times: str) -> Origin:
        """Where it comes from, and what it promises, in sentences: its times, its memory, and what they leave out."""
        from planner import __version__

        resolved = self.space.resolved
        setting = resolved.setting
        prediction = [*times, _memory(self.ranked)]
        if not self.ranked.fits:
            prediction.append("THE PLAN DOES NOT FIT INTO MEMORY")
        free = [layer.name for layer in resolved.model.graph.layers if layer.kind == "assumed_free"]
        if free:
            names = ", ".join(free[:5]) + (f" and {len(free) - 5} more" if free[5:] else "")
            prediction.append(f"ASSUMED FREE, so the prediction leaves them out: {names}")
        return Origin(
            model=setting.model,
            cluster=setting.cluster,
            device=setting.device,
            summary=self.ranked.summary,
            prediction=tuple(prediction),
            planner_version=__version__,
            plan_name=self.path.name,
        )


def job_of_plan(
    loaded: Loaded[PlanDocument], path: Path, target: str
) -> tuple[Job | LayerJob | ServingJob, tuple[str, ...]]:
    """Prepare a plan for an exporter.

    Parameters
    ----------
    loaded : Loaded
        A plan file, or what one would hold.
    path : Path
        Of the file.
    target : str
        Name of the exporter. One that takes "layers" gets any split per layer as it is, without data parallelism alone.

    Raises
    ------
    InputFileError
        Everything in the file that contradicts itself or its network.
    UsageError
        A kind of plan that the exporter does not take.
    """
    document, takes = loaded.content, exporter_of(target).TAKES
    info = SPACES[document.section]
    if not info.job:
        raise UsageError(
            f"{path}: no target writes {info.plans} (known: {_takers('mesh')}, for plans over a device mesh)"
        )
    space: Any = space_of(resolve(request_from_document(document, path.resolve().parent)))
    plan = space.plan_of(document, loaded.document)
    space.check(plan)
    ranked = space.for_plan(plan).rank([plan])[0]
    job, kind = imported(info.job)(Planned(space=space, ranked=ranked, path=path, takes=takes))
    if kind not in takes:
        alone = "; plans of data parallelism alone (--family data) also go to " + _takers("data")
        why = ", which are for transformers" if kind in ("layers", "data") else ""
        raise UsageError(
            f"--to {target}: {path} is a plan {_KINDS[kind]} (network {job.origin.model}), and {exporter_of(target).TITLE} takes only "
            f"plans {' and plans '.join(_KINDS[name] for name in sorted(takes))}{why}; use {_takers(kind)}"
            + (alone if kind == "layers" else "")
        )
    elsewhere = _other_framework(space, ranked, exporter_of(target).FRAMEWORK)
    origin = dataclasses.replace(job.origin, prediction=(*job.origin.prediction, *elsewhere))
    job = dataclasses.replace(job, origin=origin)
    beyond = () if ranked.fits else (f"the plan does not fit into memory: {_memory(ranked)}",)
    return job, (*changed_inputs(document, space.resolved.setting), *beyond, *elsewhere)


def _takers(kind: str) -> str:
    return ", ".join(targets_that_take(kind))


def mesh_job(planned: Planned) -> tuple[Job, str]:
    """What exporters of plans over a device mesh write."""
    space, plan, ranked = planned.space, planned.plan, planned.ranked
    rate = f"{ranked['tokens_per_s']:,.0f} tokens/s, MFU {percent(ranked['mfu'])}"
    resolved = space.resolved
    network = sizes_of(resolved.model.graph)
    job = Job(
        plan=plan,
        origin=planned.origin(f"{duration_text(ranked.step_time_s)} per step of {plan.global_batch} samples, {rate}"),
        nodes=planned.nodes,
        blocks=plan.stage_blocks or space.model.blocks_of(plan.pp * plan.vpp),
        network=network,
        other=other_network_of(resolved.model.graph) if network is None else None,
        seq=space.seq,
        precision=resolved.setting.precision,
        optimizer=resolved.setting.optimizer,
        lora_rank=space.request.lora_rank,
        doc_lengths=space.request.documents_text,
        facts=space.model.facts,
    )
    return job, "mesh"


def layer_or_data_job(planned: Planned) -> tuple[Job | LayerJob, str]:
    """A split per layer as it is for an exporter that takes one; for others data parallelism alone is a job of its own kind."""
    plan, ranked, path = planned.plan, planned.ranked, planned.path
    resolved = planned.space.resolved
    setting = resolved.setting
    rate = f"{ranked.throughput_samples_per_s:,.0f} samples/s"
    job = LayerJob(
        plan=plan,
        origin=planned.origin(
            f"{duration_text(ranked.step_time_s)} per step of {setting.global_batch} samples, {rate}"
        ),
        nodes=planned.nodes,
        graph=resolved.model.graph,
        global_batch=setting.global_batch,
        training=resolved.workload.training,
        precision=setting.precision,
        optimizer=setting.optimizer,
        seq=setting.seq,
        lora_rank=planned.space.request.lora_rank,
        doc_lengths=planned.space.request.documents_text,
    )
    if "layers" not in planned.takes:
        if plan.stages or not job.training:
            raise UsageError(
                f"{path}: no target takes a plan with a split for each layer that {'has stages' if job.training else 'is for inference'}; "
                f"plans over a device mesh (--space mesh, for transformers) go to {_takers('mesh')}"
            )
        if job.is_data_parallel:
            return _data_job(job, path), "data"
    return job, "layers"


def _data_job(layered: LayerJob, path: Path) -> Job:
    """A plan with a split per layer that splits every layer by the batch is plain data parallelism, which any trainer runs."""
    plan, batch = layered.plan, layered.global_batch
    unit = plan.workers * plan.num_micro_batches
    if batch % unit:
        raise UsageError(f"{path}: global_batch {batch} does not divide over {unit} = workers x micro-batches")
    return Job(
        plan=MeshPlan(dp_replicate=plan.workers, micro_batch=batch // unit, num_micro_batches=plan.num_micro_batches),
        origin=layered.origin,
        nodes=layered.nodes,
        blocks=(),
        network=None,
        seq=layered.seq,
        precision=layered.precision,
        optimizer=layered.optimizer,
        lora_rank=layered.lora_rank,
        doc_lengths=layered.doc_lengths,
        collectives=layered.collectives if plan.workers > 1 else (),
        facts=facts_of(layered.graph, layered.precision, layered.optimizer),
    )


def serving_job(planned: Planned) -> tuple[ServingJob, str]:
    """What serving engines are told."""
    from planner.exporters.pools import on_whole_nodes  # networks that nobody serves do without

    space, plan, ranked = planned.space, planned.plan, planned.ranked
    workload = space.model.workload
    lengths = f"{workload.prompt_tokens} tokens in, {workload.output_tokens} out"
    job = ServingJob(
        plan=plan,
        origin=planned.origin(
            f"first token after {duration_text(ranked['ttft_s'])}, then {duration_text(ranked['tpot_s'])} per token ({lengths})",
            f"{ranked['output_tokens_per_s']:,.0f} output tokens/s"
            + (
                " with all places taken"
                if space.load.rate_per_s is None
                else f" at {space.load.rate_per_s:g} requests/s"
            ),
        ),
        nodes=planned.nodes,
        stages=space.model.layout(plan.pp).blocks,
        prefill_stages=space.model.layout(plan.prefill_pp).blocks if plan.prefill_dp else (),
        prefill_device=space.request.prefill_device or "",
        has_experts=any(layer.kind == "moe" for layer in space.resolved.model.graph.layers),
        prompt_tokens=workload.prompt_tokens,
        output_tokens=workload.output_tokens,
        precision=space.resolved.setting.precision,
        kv_precision=space.kv_precision,
        drafter=space.load.draft or "",
        load=workload.load,
        arrivals=workload.arrivals,
        prefix_cached=space.request.prefix_cached,
        in_flight=space.request.concurrency,
        cached_tokens=workload.cached_tokens,
        output_variation=workload.output_variation,
        # To three digits and not above what was asked for.
        memory_utilisation=int(space.capacity_bytes / space.cluster.device.capacity_bytes * 1000 + 1e-6) / 1000,
    )
    return on_whole_nodes(job), "serving"


def _memory(ranked: RankedPlan) -> str:
    used, capacity = byte_text(ranked.memory_bytes_per_gpu), byte_text(ranked.memory_capacity_bytes)
    return f"{used} of {capacity} on the fullest GPU"


def _other_framework(space: Any, ranked: RankedPlan, target: str) -> tuple[str, ...]:
    """What becomes of a plan that was made for another framework than the one that is to run it.

    A calibration that was fitted to runs of a framework says nothing of another: both are predicted without it then.
    """
    resolved, request, plan = space.resolved, space.request, ranked.plan
    framework = resolved.workload.framework.name
    if framework in ("", UNKNOWN.name, target):
        return ()
    made = f"the plan was made for {framework}"
    mode = "" if resolved.workload.training else " --mode inference"
    best = f"'planner optimize{mode}' with --framework {target} searches for one of its own"
    fitted = "" if request.calibration is None else load_calibration(request.calibration).calibration.framework
    plain = ""
    if fitted:
        plain = f" (both without calibration '{request.calibration}', which was fitted to runs of {fitted})"
        request = dataclasses.replace(request, calibration=None, framework=framework)
        ranked = space_of(resolve(request)).for_plan(plan).rank([plan])[0]
    try:
        other = space_of(resolve(dataclasses.replace(request, framework=target))).for_plan(plan)
        problems = other.broken(plan)
        there = other.rank([plan])[0]
    except PlannerError as error:
        return (f"{made}; {target} does not run its network: {error}",)
    if problems:
        return (f"{made}; {target} does not run it as it is: {'; '.join(problems)}; {best}",)
    times = _TRAINED if resolved.workload.training else _SERVED
    figures = [f"{words} {_change(there[name], ranked[name], duration_text)}" for words, name in times.items()]
    memory = _change(there.memory_bytes_per_gpu, ranked.memory_bytes_per_gpu, byte_text)
    chance = "" if there.fits_probability is None else f", P(fits) {there.fits_text}"
    fits = "" if there.fits else "; THE PLAN DOES NOT FIT THERE"
    told = f"{', '.join(figures)}, and the fullest GPU needs {memory}{chance}{plain}"
    return (f"{made}; with {target} {told}{fits}; {best}",)


_TRAINED = {"a step takes": "step_time_s"}
_SERVED = {"the first token takes": "ttft_s", "each one after it": "tpot_s"}


def _change(there: float, here: float, text: Callable[[float], str]) -> str:
    """A figure, and what it was.

    >>> _change(4.6, 4.0, duration_text), _change(4.0, 4.0, duration_text)
    ('4.60 s in place of 4.00 s (+15.0 %)', 'the same 4.00 s')
    """
    ratio = there / here - 1.0
    if text(there) == text(here):
        return f"the same {text(there)}"
    return f"{text(there)} in place of {text(here)} ({'+' if ratio > 0 else '-'}{percent(abs(ratio))})"

"""Rows of served networks: time to the first token and time per token after it, of so many requests in flight.

Lengths are means: of those that are drawn (`shortest`), halfway. What a row leaves open is what its engine does unless told otherwise
(`costmodel.framework.Defaults.prefill`): how many tokens of prompts a pass reads, which is what engines take on an H100 and larger devices,
and whether it decodes beside them; where it does not, longer prompts are read in one pass here. The cache is in 16 bits unless the row says
otherwise. Every replica has its share of the requests.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from costmodel.fields import with_values
from costmodel.framework import Framework
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import DeviceError
from costmodel.mesh.detail import model_flops_per_step
from costmodel.mesh.modules import MeshError
from costmodel.network.graph import Graph
from costmodel.precision import OPTIMIZERS, Precision
from costmodel.serving.model import SERVING_CONSTANTS, ServingModel, serving_model_with
from costmodel.serving.plan import ServingBatch, ServingPlan, broken_serving_rules
from costmodel.serving.workload import ServingAssumptions, ServingError, ServingWorkload
from costmodel.workload import Workload
from planner.measurements.fitted import fitted_links, fitted_of
from planner.measurements.hardware import (
    Machine,
    format_of,
    framework_of_row,
    machine_of,
    precision_of,
    usual_node,
)
from planner.measurements.networks import network_of
from planner.measurements.outcomes import Comparison, Outcome, Preset, outcomes_of
from planner.measurements.parallelism import degrees_of
from planner.measurements.tables import LONGEST, Row, RowSkipped

# Columns of what was measured -> figure of the cost model.
_MEASURED = {"ttft_ms": "ttft_s", "tpot_ms": "tpot_s"}
# A measured time is that many times what the device needs at its peak at least, and at most.
_SHORTEST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Deployment:
    """A row as the cost model takes it."""

    machine: Machine
    graph: Graph
    engine: Framework
    precision: Precision
    kv_bytes: float
    prompt: int
    output: int
    plan: ServingPlan
    measured_s: dict[str, float]


def _asked(row: Row) -> _Deployment:
    measured = {name: row.number(column) for column, name in _MEASURED.items()}
    measured_s = {name: value * 1e-3 for name, value in measured.items() if value is not None}
    if not measured_s:
        raise RowSkipped("no measured time", needs=(tuple(_MEASURED),))
    for name in ("prompt", "output", "concurrency"):
        if row.count(name) is None:
            raise RowSkipped(f"no {name} is stated", needs=((name,),))
    prompt, output, concurrency = row.counts("prompt", "output", "concurrency")
    shortest = row.number("shortest")
    mean = 1.0 if shortest is None else (1.0 + shortest) / 2.0
    prompt, output = (max(round(mean * tokens), 1) for tokens in (prompt, output))
    framework, machine = framework_of_row(row), machine_of(row)
    if framework.name and not framework.serves:
        raise RowSkipped(f"framework {framework.name} trains networks and serves none")
    number_format = format_of(row, "bf16")
    graph, node = network_of(row, number_format), usual_node(machine.cluster)
    return _Deployment(
        machine=machine,
        graph=graph,
        engine=framework,
        precision=precision_of(number_format, machine.device.formats),
        kv_bytes=1.0 if (row.text("kv_precision") or row.default("kv_precision", "bf16")) == "fp8" else 2.0,
        prompt=prompt,
        output=output,
        plan=_plan(row, framework, node, (prompt, output), concurrency, has_experts="moe" in graph.kinds),
        measured_s=measured_s,
    )


def _plan(
    row: Row, framework: Framework, node: int, lengths: tuple[int, int], concurrency: int, *, has_experts: bool
) -> ServingPlan:
    """The degrees of a row, its share of the requests on every replica, and prompts read as its engine reads them.

    >>> row = Row(line=2, cells={"gpus": "8", "tp": "2"})
    >>> _plan(row, Framework(name=""), 8, (1000, 100), 64, has_experts=True)
    ServingPlan(tp=2, pp=1, ep=1, etp=2, dp=4, max_batch=16, prefill_chunk=0, prefill_batch=1, ...)
    """
    readers = _readers(row, has_experts=has_experts)
    read_on = readers.get("prefill_dp", 0) * readers.get("prefill_tp", 1) * readers.get("prefill_pp", 1)
    tp, pp, cp, dp = degrees_of(row, node, read_on)
    if cp > 1:
        raise RowSkipped("context parallelism of served networks is not modelled")
    ep, places = row.count("ep") or 1, -(-concurrency // dp)
    chunk, together = (
        framework.defaults.prefill_apart(lengths[0])
        if readers
        else framework.defaults.prefill(lengths[0], places, lengths[1])
    )
    return ServingPlan(
        tp=tp,
        pp=pp,
        ep=ep,
        etp=row.count("etp") or (max(tp // ep, 1) if has_experts else 1),
        dp=dp,
        max_batch=places,
        prefill_chunk=chunk,
        prefill_batch=together,
        **readers,
    )


def _readers(row: Row, *, has_experts: bool) -> dict[str, int]:
    """The workers that only read prompts, where there are any."""
    count, tp = row.count("prefill_dp"), row.count("prefill_tp") or 1
    if count is None:
        return {}
    ep = row.count("prefill_ep") or 1
    etp = row.count("prefill_etp") or (max(tp // ep, 1) if has_experts else 1)
    found = {"dp": count, "tp": tp, "pp": row.count("prefill_pp") or 1, "ep": ep, "etp": etp}
    return {f"prefill_{name}": degree for name, degree in found.items()}


def _outcome(row: Row, preset: Preset) -> Outcome:
    asked = row.meaning = row.meaning or _asked(row)
    machine, plan = asked.machine, asked.plan
    model, active = _model(asked, preset)
    # Rules of the network alone: its engine did run what was measured.
    broken = broken_serving_rules(model.shape, plan)
    if broken:
        raise RowSkipped(f"the cost model takes the plan for impossible: {broken[0]}")
    times = model.times(ServingBatch.from_plans([plan]))
    ideal = _ideal_s(asked, active)
    for name, measured_s in asked.measured_s.items():
        if not _SHORTEST * ideal[name] <= measured_s <= LONGEST * ideal[name]:
            raise RowSkipped(f"{name.removesuffix('_s')} far from what the peak of the devices allows: wrong unit?")
    return Outcome(
        row=row,
        comparisons=tuple(
            Comparison(
                what=name.removesuffix("_s"),
                predicted_s=float(times[name][0]),
                measured_s=measured_s,
                ideal_s=ideal[name],
            )
            for name, measured_s in asked.measured_s.items()
        ),
        fitted=fitted_of(machine.device, kinds=asked.graph.kinds) | fitted_links(machine.cluster, plan.workers),
    )


# Predicts rows of this kind, in the order given: (rows, preset) -> outcomes.
predict = partial(outcomes_of, one=_outcome)


# Cost models that rows asked for, which repeat them; with the cluster and the network, so that no others have their ids.
_KNOWN: dict[Hashable, tuple[Cluster, Graph, tuple[ServingModel, float]]] = {}
_MOST_KNOWN = 1024


def _model(asked: _Deployment, preset: Preset) -> tuple[ServingModel, float]:
    """The cost model of the requests of a row, and the weights that a token needs."""
    cluster, graph = asked.machine.cluster, asked.graph
    key = (preset, id(cluster), id(graph), asked.engine, asked.precision, asked.kv_bytes, asked.prompt, asked.output)
    if key not in _KNOWN:
        constants = {name: value for name, value in preset.constants if name in SERVING_CONSTANTS}
        try:
            workload = ServingWorkload(
                graph=graph,
                prompt_tokens=asked.prompt,
                output_tokens=asked.output,
                precision=asked.precision,
                kv_bytes=asked.kv_bytes,
                load="benchmark",
            )
            assumed = with_values(ServingAssumptions.of(asked.engine), dict(preset.assumed))
            model = ServingModel.build(workload, preset.cluster(cluster), assumed)
        except (ServingError, MeshError, DeviceError) as trouble:
            raise RowSkipped(f"the cost model refuses the deployment: {trouble}") from trouble
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        model = serving_model_with(model, constants) if constants else model
        _KNOWN[key] = (cluster, graph, (model, _active_weights(asked, preset)))
    return _KNOWN[key][-1]


def _ideal_s(asked: _Deployment, active: float) -> dict[str, float]:
    """Times at the peak: the products of one prompt, and reading the weights that one token needs."""
    device, devices = asked.machine.device, asked.plan.tp * asked.plan.pp
    products = 2.0 * active * asked.prompt / (devices * device.peak(asked.precision.compute))
    read = active * asked.precision.weight_bytes / (devices * device.memory_bandwidth_bytes_per_s)
    return {"ttft_s": products, "tpot_s": read}


def _active_weights(asked: _Deployment, preset: Preset) -> float:
    """Weights that a token is multiplied by, products of the attention among them."""
    compute = preset.compute(asked.machine.device, asked.precision, "sgd")
    once = Workload(
        graph=asked.graph, global_batch=1, precision=asked.precision, optimizer=OPTIMIZERS["sgd"], compute=compute,
        training=False,
    )  # fmt: skip
    return model_flops_per_step(once) / (2.0 * asked.graph.layers[0].output_shape[-1])

"""Jobs with a split per layer, and what the cost model says that they send; graphs of the networks of torch_ranks.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import Efficiency
from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import Plan, Split
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from costmodel.network.graph import Graph
from planner.exporters.job import LayerJob, Nodes
from tests.networks import Layers, network, roofline_workload
from tests.planner.exporters.jobs import origin

# Links of 1 byte/s without latency: a time is the number of bytes that the busiest rank sends.
_DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 1e30},
    memory_bytes=1e12,
    memory_bandwidth_bytes_per_s=1e30,
    launch_overhead_s=0.0,
    efficiency=Efficiency(
        matmul_fraction=1, winograd_fraction=1e-6, fft_fraction=1e-6, vector_fraction=1, memory_fraction=1,
        tile_half=0, depth_half=0, fill_outputs=0,
    ),
)  # fmt: skip
_UNIT_LINKS = Cluster(
    name="unit",
    groups=(DeviceGroup(device=_DEVICE),),
    levels=(Level(name="flat", size=None, bandwidth_bytes_per_s=1.0, latency_s=0.0),),
)


def _linear(features: int, **more: Any) -> dict[str, Any]:
    return {"out_features": features, **more}


_CONV = {"out_channels": 8, "kernel": 3, "padding": 1, "activation": "relu"}
GRAPHS: dict[str, Graph] = {
    "convnet": network(
        (3, 16, 16),
        ("conv1", "convolution", ("data",), _CONV),
        ("pool1", "pool", ("conv1",), {"kernel": 2, "stride": 2}),
        ("conv2", "convolution", ("pool1",), _CONV),
        ("pool2", "pool", ("conv2",), {"kernel": 2, "stride": 2}),
        ("fc6", "linear", ("pool2",), _linear(32, activation="relu")),
        ("fc7", "linear", ("fc6",), _linear(32, activation="relu")),
        ("fc8", "linear", ("fc7",), _linear(12)),
        ("softmax", "softmax", ("fc8",), {}),
    ),
    "normalised": network(
        (3, 8, 8),
        ("conv1", "convolution", ("data",), {"out_channels": 8, "kernel": 3, "padding": 1}),
        ("lrn", "local_response_norm", ("conv1",), {"size": 3}),
        ("conv2", "convolution", ("lrn",), {"out_channels": 8, "kernel": 3, "groups": 4, "activation": "relu"}),
        ("pool", "global_pool", ("conv2",), {}),
        ("fc", "linear", ("pool",), _linear(12)),
        ("softmax", "softmax", ("fc",), {}),
    ),
    "perceptron": network(
        (8, 5),
        ("into", "linear", ("data",), _linear(16)),
        ("up", "linear", ("into",), _linear(32, activation="relu")),
        ("down", "linear", ("up",), _linear(16)),
        ("sum", "add", ("into", "down"), {}),
        ("head", "linear", ("sum",), _linear(12)),
        ("softmax", "softmax", ("head",), {}),
    ),
}


def plan_of(
    network: str, default: Split, changes: Mapping[str, Split] | None = None, *, num_micro_batches: int = 1
) -> Plan:
    """One split for all layers, but for some."""
    splits = tuple((changes or {}).get(layer.name, default) for layer in GRAPHS[network].layers)
    return Plan(
        workers=default.workers, num_micro_batches=num_micro_batches, splits=splits, collectives=(None,) * len(splits)
    )


def layer_job(network: str, plan: Plan, *, global_batch: int = 8, **changes: Any) -> LayerJob:
    values: dict[str, Any] = {
        "origin": origin(network),
        "nodes": Nodes(workers=plan.workers, capacity=8),
        "graph": GRAPHS.get(network),
        "training": True,
        "precision": "fp32",
        "optimizer": "momentum",
    }
    return LayerJob(plan=plan, global_batch=global_batch, **{**values, **changes})


def predicted_elements(network: str, plan: Plan, global_batch: int = 8) -> tuple[float, float]:
    """Elements that a rank sends in a step: between and inside layers, and of gradients."""
    costs = evaluate(roofline_workload(GRAPHS[network], _DEVICE, global_batch), _UNIT_LINKS, [plan])
    return float(costs.reshard_s[0]) / 4, float(costs.exchange_s[0]) / 4


def _fully_connected(split: Split, softmax: Split) -> dict[str, Split]:
    return {"fc6": split, "fc7": split, "fc8": split, "softmax": softmax}


_B4, _B2 = Split(batch=4), Split(batch=2)
_OUT4, _OUT2 = Split(out_channels=4), Split(out_channels=2)
_MIXED = Split(batch=2, out_channels=2)
# Name -> (network, plan, global batch).
CASES: dict[str, tuple[str, Plan, int]] = {
    "data": ("convnet", plan_of("convnet", _B4), 8),
    "data-accumulated": ("convnet", plan_of("convnet", _B2, num_micro_batches=2), 8),
    "data-of-sequences": ("perceptron", plan_of("perceptron", _B4), 8),
    "hybrid": ("convnet", plan_of("convnet", _B4, _fully_connected(_OUT4, _OUT4)), 8),
    "hybrid-batch-loss": ("convnet", plan_of("convnet", _B4, _fully_connected(_OUT4, _B4)), 8),
    "hybrid-two": ("convnet", plan_of("convnet", _B2, _fully_connected(_OUT2, _OUT2), num_micro_batches=2), 8),
    "products": ("convnet", plan_of("convnet", _B4, _fully_connected(_MIXED, _MIXED)), 8),
    "inputs": (
        "convnet",
        plan_of("convnet", _B4, {"fc6": Split(in_channels=4), "fc7": Split(in_channels=4), "fc8": _OUT4, "softmax": _OUT4}),
        8,
    ),
    "column-row": (
        "convnet",
        plan_of("convnet", _B4, {"fc6": _OUT4, "fc7": Split(in_channels=4), "fc8": _OUT4, "softmax": _OUT4}),
        8,
    ),
    "grid": (
        "convnet",
        plan_of(
            "convnet", _B4,
            {"fc6": _OUT4, "fc7": Split(in_channels=2, out_channels=2), "fc8": Split(batch=2, in_channels=2), "softmax": _MIXED},
        ),
        8,
    ),
    "channels": ("convnet", plan_of("convnet", _OUT4), 8),
    "channels-of-convolutions": (
        "convnet",
        plan_of("convnet", _OUT4, {"conv2": Split(in_channels=2, out_channels=2), "pool2": _MIXED, "fc6": _MIXED, "softmax": _B4}),
        8,
    ),
    "uneven": ("convnet", plan_of("convnet", Split(batch=3), _fully_connected(Split(out_channels=3), Split(out_channels=3))), 8),
    "uneven-inputs": (
        "convnet",
        plan_of("convnet", Split(batch=3), {"fc6": Split(out_channels=3), "fc7": Split(in_channels=3), "fc8": Split(out_channels=3)}),
        7,
    ),
    "groups": ("normalised", plan_of("normalised", _OUT4, {"lrn": _B4, "conv1": _B4}), 8),
    "pair": (
        "perceptron",
        plan_of("perceptron", _OUT4, {"down": Split(in_channels=4)}),
        8,
    ),
    "pair-and-batch": (
        "perceptron",
        plan_of("perceptron", _MIXED, {"down": Split(batch=2, in_channels=2)}, num_micro_batches=2),
        8,
    ),
}  # fmt: skip


def job_of_case(name: str) -> LayerJob:
    network, plan, batch = CASES[name]
    return layer_job(network, plan, global_batch=batch)


def decodernetwork() -> Graph:
    """The decoder of torch_decoder.py."""
    layers = Layers()
    add = layers.add
    x = add("embedding", "embedding", add("tokens", "input", shape=(1, 8)), num_embeddings=24, dim=16)
    for block in ("blocks.0", "blocks.1"):
        qkv = add("qkv", "linear", add("norm1", "rms_norm", x, block=block), block=block, out_features=48, bias=False)
        attention = add("attention", "self_attention", qkv, block=block, heads=4, head_dim=4)
        out = add("out", "linear", attention, block=block, out_features=16, bias=False)
        middle = add("add1", "add", x, out, block=block)
        up = add(
            "up", "linear", add("norm2", "rms_norm", middle, block=block), block=block, out_features=64, bias=False
        )
        down = add(
            "down",
            "linear",
            add("glu", "glu", up, block=block, function="silu"),
            block=block,
            out_features=16,
            bias=False,
        )
        x = add("add2", "add", middle, down, block=block)
    add("loss", "softmax", add("head", "linear", add("norm", "rms_norm", x), out_features=24, bias=False))
    return layers.graph("decoder")


def predicted_tensor_elements(plan: MeshPlan) -> float:
    """Elements that a rank sends for tensor parallelism in a step of the decoder, the three all-reduces of the loss left out."""
    workload = roofline_workload(decodernetwork(), _DEVICE, plan.global_batch)
    # DTensor keeps what it gathered for the backward pass.
    costs = MeshModel.build(workload, _UNIT_LINKS, MeshAssumptions(column_overlap=0.0)).evaluate_plans([plan])
    rows = plan.micro_batch * 8
    return float(costs.tp_exposed_s[0]) / 4 - 3 * 2 * (plan.tp - 1) / plan.tp * rows

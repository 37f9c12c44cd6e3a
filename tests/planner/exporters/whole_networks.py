"""Bundled networks with few channels and plans that split their layers, as jobs; test_torch_runs.py runs what is exported.

Channels are a sixteenth of the file's, a multiple of eight at least, and images smaller; layers and connections are those of the file.
"""

from __future__ import annotations

import functools
import math
import random
from typing import Any

import numpy as np
import yaml

from costmodel.layerwise.plan import Plan, Split, legal_splits, split_table
from costmodel.network.graph import Graph
from planner.exporters.job import LayerJob
from planner.exporters.torch_dtensor.layers import refusals
from planner.files.resources import InMemory, bundled
from planner.importers.networks import load_model
from tests.planner.exporters.layer_jobs import layer_job

# Rows and columns of the images; LeNet-300-100 is run in its own size, whose 300, 100 and 10 features do not divide by 8.
NETWORKS = {"alexnet-torchvision": 64, "vgg-a": 32, "resnet18": 48, "mlp": None}
# Name -> micro-batches, of BATCH samples each. "drawn" has another split in every layer, the others the same wherever a layer takes it.
PLANS = {"data": 1, "channels": 1, "products": 1, "drawn": 2}
BATCH = 8
_WISHES = {
    "data": lambda workers: Split(batch=workers),
    "channels": lambda workers: Split(out_channels=workers),
    "products": lambda workers: Split(in_channels=2, out_channels=workers // 2),
}
# What the modules of torch are made of.
_READ = (
    "out_channels",
    "out_features",
    "kernel",
    "stride",
    "padding",
    "dilation",
    "groups",
    "bias",
    "norm",
    "activation",
    "function",
)
_WIDTHS = ("out_channels", "out_features", "out")


def _narrower(value: Any) -> Any:
    if isinstance(value, list):
        return [_narrower(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: max(8, item // 128 * 8) if key in _WIDTHS and isinstance(item, int) else _narrower(item)
        for key, item in value.items()
    }


@functools.cache
def graph_of(network: str) -> Graph:
    content, rows = yaml.safe_load(bundled("models")[network].read_text(encoding="utf-8")), NETWORKS[network]
    if rows is None:
        return load_model(network).graph
    content = _narrower(content)
    del content["published_parameters"]
    content["layers"][0]["shape"] = [3, rows, rows]
    return load_model(InMemory("a narrow network", content)).graph


def _job(network: str, splits: tuple[Split, ...], micro_batches: int = 1) -> LayerJob:
    plan = Plan(
        workers=splits[0].workers,
        num_micro_batches=micro_batches,
        splits=splits,
        collectives=(None,) * len(splits),
    )
    return layer_job(network, plan, graph=graph_of(network), global_batch=BATCH * micro_batches)


@functools.cache
def _choices(network: str, workers: int) -> list[list[Split]]:
    """Splits of every layer that the cost model allows and that the target takes beside a split of the batch."""
    graph, table, by_batch = graph_of(network), split_table([workers]), Split(batch=workers)
    found = []
    for i, layer in enumerate(graph.layers):
        splits = [table.split(int(row)) for row in np.flatnonzero(legal_splits(layer, table, BATCH))]
        others = [by_batch] * len(graph.layers)
        found.append([one for one in splits if not refusals(_job(network, (*others[:i], one, *others[i + 1 :])))])
    return found


def job_of_network(network: str, name: str, workers: int) -> LayerJob:
    """A plan of PLANS for a network."""
    draw, wished = random.Random(f"{network}-{name}-{workers}"), _WISHES.get(name)
    splits = []
    for choices in _choices(network, workers):
        # Inputs beside outputs need a mesh that cuts the outputs once.
        drawn = [split for split in choices if split.in_channels == 1 or split.out_channels == 1]
        wanted = wished(workers) if wished else draw.choice(drawn)
        splits.append(wanted if wanted in choices else Split(batch=workers))
    return _job(network, tuple(splits), PLANS[name])


def described(job: LayerJob) -> list[dict[str, Any]]:
    """Layers as torch_ranks.py builds them, and over how many shares of the batch each is split."""
    return [
        {
            "name": layer.name,
            "kind": layer.kind,
            "inputs": layer.inputs,
            "channels": layer.input_shapes[0][0] if layer.inputs else 0,
            "features": math.prod(layer.input_shapes[0]) if layer.inputs else 0,
            "shares": split.batch,
            **{key: value for key in _READ if (value := getattr(layer.params, key, None)) is not None},
        }
        for layer, split in zip(job.graph.layers, job.plan.splits, strict=True)
    ]

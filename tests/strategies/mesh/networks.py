"""Small random transformers and clusters for tests of the mesh search."""

from __future__ import annotations

import random

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.network.graph import Graph
from costmodel.workload import Workload
from tests.networks import Layers, roofline_workload


def decoder(
    *,
    blocks: int,
    features: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 128,
    vocabulary: int = 512,
    positions: int = 16,
    experts: int = 0,
    dense_blocks: int = 0,
    wide: int = 0,
) -> Graph:
    """A decoder of ``blocks`` blocks; with experts, those after the first ``dense_blocks`` are mixtures.

    The feed-forward layers of the first ``wide`` blocks are twice as wide.
    """
    layers = Layers()
    add, dim = layers.add, features // heads
    previous = add(
        "embedding", "embedding", add("tokens", "input", shape=(1, positions)), num_embeddings=vocabulary, dim=features
    )
    for n in range(blocks):
        block, width = f"blocks.{n}", ffn * (2 if n < wide else 1)
        norm = add("norm1", "rms_norm", previous, block=block)
        qkv = add("qkv", "linear", norm, block=block, out_features=(heads + 2 * kv_heads) * dim, bias=False)
        attention = add("attention", "self_attention", qkv, block=block, heads=heads, kv_heads=kv_heads, head_dim=dim)
        proj = add("proj", "linear", attention, block=block, out_features=features, bias=False)
        add1 = add("add1", "add", proj, previous, block=block)
        norm = add("norm2", "rms_norm", add1, block=block)
        if experts and n >= dense_blocks:
            inner = add("experts", "moe", norm, block=block, experts=experts, top_k=2, ffn=ffn)
        else:
            up = add("up", "linear", norm, block=block, out_features=2 * width, bias=False)
            glu = add("glu", "glu", up, block=block, function="silu")
            inner = add("down", "linear", glu, block=block, out_features=features, bias=False)
        previous = add("add2", "add", inner, add1, block=block)
    norm = add("norm", "rms_norm", previous)
    add("loss", "softmax", add("head", "linear", norm, out_features=vocabulary, bias=False))
    return layers.graph("decoder")


def two_level_cluster(
    *,
    per_node: int = 4,
    peak: float = 100e12,
    memory: float = 16e9,
    inside: float = 100e9,
    outside: float = 10e9,
    is_limited: bool = False,
) -> Cluster:
    """Nodes of equal devices; with ``is_limited``, their power limit halves the rates of large products."""
    device = Device(
        name="d",
        peak_flop_per_s={"fp32": peak / 8, "bf16": peak},
        memory_bytes=memory,
        memory_bandwidth_bytes_per_s=1e12,
        launch_overhead_s=1e-6,
        sustained_flop_per_s={"bf16": 0.4 * peak} if is_limited else {},
    )
    levels = (
        Level(name="node", size=per_node, bandwidth_bytes_per_s=inside, latency_s=1e-6),
        Level(name="fabric", size=None, bandwidth_bytes_per_s=outside, latency_s=5e-6),
    )
    return Cluster(name="c", groups=(DeviceGroup(device=device),), levels=levels)


def workload_of(graph: Graph, cluster: Cluster, batch: int, precision: str = "bf16") -> Workload:
    """Adam training."""
    return roofline_workload(graph, cluster.device, batch, precision=precision, optimizer="adam", context_bytes=0)


def random_case(seed: int) -> tuple[Workload, Cluster, int]:
    """A small network, a cluster and how many devices of it to use."""
    rng = random.Random(seed)
    features = rng.choice([64, 256, 1024])
    graph = decoder(
        blocks=rng.choice([2, 3, 4]),
        features=features,
        heads=4,
        kv_heads=rng.choice([1, 2, 4]),
        ffn=2 * features,
        vocabulary=rng.choice([256, 4096]),
        positions=rng.choice([8, 64, 512]),
        experts=rng.choice([0, 0, 2, 4]),
        dense_blocks=rng.choice([0, 1]),
    )
    cluster = two_level_cluster(
        per_node=rng.choice([2, 4]),
        inside=rng.choice([20e9, 300e9]),
        outside=rng.choice([2e9, 25e9]),
        is_limited=seed % 2 == 1,
    )
    return workload_of(graph, cluster, rng.choice([4, 6, 8])), cluster, rng.choice([2, 4, 6])

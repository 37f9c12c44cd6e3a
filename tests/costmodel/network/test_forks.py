"""Sums of gradients where branches part: joins against an independent library, times by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import Efficiency
from costmodel.kernels.roofline import EAGER, ImageSoftware, RooflineCompute
from costmodel.layerwise.plan import split_table
from costmodel.layerwise.tables import CostTables
from costmodel.network.graph import Graph, _joins, gradient_passes
from costmodel.network.layers import Layer, Shape, ShapeError, Shard, family_of, params_from
from costmodel.precision import OPTIMIZERS, PRECISIONS
from planner.importers.networks import load_model
from tests.networks import network, roofline_workload

# Reads 100 GB/s without any loss.
DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 1e12},
    memory_bytes=16e9,
    memory_bandwidth_bytes_per_s=1e11,
    launch_overhead_s=0.0,
    efficiency=Efficiency(memory_fraction=1),
)
CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(Level(name="flat", size=None, bandwidth_bytes_per_s=1e9, latency_s=0.0),),
)


def _branches(join: str, count: int = 2) -> Graph:
    """One convolution whose output as many others read, and what joins them."""
    conv = {"out_channels": 8, "kernel": 1}
    names = [f"branch{n}" for n in range(count)]
    rows = [("stem", "convolution", ("data",), conv), *((name, "convolution", ("stem",), conv) for name in names)]
    return network((4, 10, 10), *rows, ("join", join, tuple(names), {}))


def _first_part_s(graph: Graph, software: ImageSoftware = EAGER, *, training: bool = True) -> tuple[float, float]:
    """Backward times of the first convolution: of its input, and of its weights."""
    load = roofline_workload(graph, DEVICE, 5, training=training)
    load = replace(load, compute=replace(load.compute, software=software))
    costs = CostTables(load, CLUSTER, split_table([1], batch_only=True), 1).layers[graph.index("stem")]
    return float(costs.backward_input_s[0]), float(costs.backward_weight_s[0])


def test_joins_are_those_of_a_library_of_graphs() -> None:
    draw = random.Random(7)
    for _ in range(60):
        size = draw.randint(2, 14)
        readers = [sorted(draw.sample(range(n + 1, size), min(draw.randint(0, 3), size - n - 1))) for n in range(size)]
        backwards = nx.DiGraph([(v, u) for u, of in enumerate(readers) for v in (of or [size])])
        expected = nx.immediate_dominators(backwards, size)
        assert _joins(readers) == [expected[n] for n in range(size)]


@pytest.mark.parametrize(
    ("join", "count", "passes"), [("concat", 2, 3.0), ("concat", 4, 5.0), ("add", 2, 0.0), ("add", 3, 0.0)]
)
def test_what_an_addition_charges_is_not_charged_again(join: str, count: int, passes: float) -> None:
    graph = _branches(join, count)
    assert gradient_passes(graph)[graph.index("stem")] == passes


def test_more_branches_than_an_addition_joins() -> None:
    """Inception-ResNet: two convolutions are joined, and their output is added to what they read."""
    conv = {"out_channels": 8, "kernel": 1}
    rows = [("stem", "convolution", ("data",), conv), *((name, "convolution", ("stem",), conv) for name in ("a", "b"))]
    rows += [
        ("both", "concat", ("a", "b"), {}),
        ("back", "convolution", ("both",), conv),
        ("sum", "add", ("stem", "back"), {}),
    ]
    graph = network((4, 10, 10), *rows)
    assert gradient_passes(graph)[graph.index("stem")] == (3 + 1) - (2 + 1)


def test_the_sum_is_a_kernel_that_moves_its_passes() -> None:
    # 3 passes over 5 images of 8 x 10 x 10 numbers of 4 bytes at 100 GB/s.
    expected = 3 * 5 * 800 * 4 / 1e11
    joined, added = _first_part_s(_branches("concat")), _first_part_s(_branches("add"))
    assert joined[0] - added[0] == pytest.approx(expected, rel=1e-9)
    assert joined[1] == added[1]


def test_software_that_adds_to_what_is_there_does_without() -> None:
    neon = ImageSoftware(fuses=frozenset({"gradient sum"}))
    assert _first_part_s(_branches("concat"), neon) == _first_part_s(_branches("add"), neon)
    assert _first_part_s(_branches("concat"), training=False)[0] == 0.0


def test_nothing_is_summed_that_needs_no_gradient() -> None:
    conv = {"out_channels": 8, "kernel": 1}
    rows = [(name, "convolution", ("data",), conv) for name in ("a", "b")]
    assert gradient_passes(network((4, 10, 10), *rows, ("join", "concat", ("a", "b"), {}))) == (0.0,) * 4


@pytest.mark.parametrize(
    ("name", "some"), [("resnet50", False), ("vgg16", False), ("inception_v3", True), ("squeezenet-1.1", True)]
)
def test_residual_networks_pay_at_their_additions(name: str, *, some: bool) -> None:
    assert bool(np.any(np.array(gradient_passes(load_model(name).graph)) > 0.0)) is some


def test_the_program_of_the_paper_has_no_such_term() -> None:
    from costmodel.paleo.model import PaleoCompute

    graph = _branches("concat")
    paleo = PaleoCompute(device=DEVICE)
    layer = graph.layers[graph.index("stem")]
    assert float(paleo.sum_s(layer, np.array([1e9]))[0]) == 0.0
    roofline = RooflineCompute(device=DEVICE, precision=PRECISIONS["fp32"], optimizer=OPTIMIZERS["momentum"])
    assert float(roofline.sum_s(layer, np.array([1e9]))[0]) == pytest.approx(4e9 / 1e11)


# --- Layers of last resort, by numbers worked out by hand ---------------------------------------------------------------------------------


def layer(kind: str, *shapes: Shape, **values: object) -> Layer:
    params = params_from(kind, values)
    out = family_of(kind).output_shape(params, shapes)
    names = tuple(f"x{i}" for i in range(len(shapes)))
    return Layer(name="l", kind=kind, params=params, inputs=names, input_shapes=shapes, output_shape=out)


def shard(one: Layer, batch: float, split: float = 1.0) -> Shard:
    unit = np.ones(1)
    channels = one.output_shape[0] / split * unit
    height = (one.output_shape[1] if len(one.output_shape) == 3 else 1) * unit
    return Shard(batch=batch * unit, out_channels=channels, in_channels=channels, height=height, split_out=split * unit,
                 split_in=unit, split_height=unit)  # fmt: skip


def test_products_count_every_pair_and_share_whole_products() -> None:
    scores = layer("matmul", (4, 3, 5), (4, 7, 5), transposed=True)
    assert scores.output_shape == (4, 3, 7)
    work = scores.family.work(scores, shard(scores, 2))
    assert float(work.forward[0][0].flop[0]) == 2 * 4 * (2 * 3 * 7 * 5)
    assert sum(float(k.flop[0]) for k in work.backward_input[0]) == 2 * float(work.forward[0][0].flop[0])
    assert float(scores.family.work(scores, shard(scores, 2, 4)).forward[0][0].flop[0]) == 2 * (2 * 3 * 7 * 5)
    with pytest.raises(ShapeError, match="a product needs inputs"):
        layer("matmul", (4, 3, 5), (4, 7, 5))


def test_a_gate_per_channel_is_read_once_per_channel() -> None:
    gated = layer("pointwise", (8, 4, 4), (8,))
    forward = gated.family.work(gated, shard(gated, 2)).forward[0][0]
    assert float(forward.elements[0]) == 2 * (2 * 128 + 8)
    assert gated.family.limits(gated).out_channels == 8
    with pytest.raises(ShapeError, match="cannot be repeated"):
        layer("pointwise", (8, 4, 4), (4,))


def test_copies_and_sums() -> None:
    turned = layer("rearrange", (6, 4), shape=(4, 6))
    assert float(turned.family.work(turned, shard(turned, 3)).forward[0][0].elements[0]) == 3 * 48
    summed = layer("reduce", (6, 4), shape=(6,))
    assert float(summed.family.work(summed, shard(summed, 3)).forward[0][0].flop[0]) == 3 * 24
    assert layer("batch_norm", (6, 2, 2), affine=True).weight_count == 12
    assert layer("batch_norm", (6, 2, 2)).weight_count == 0

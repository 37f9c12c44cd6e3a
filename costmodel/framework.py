"""What a training framework adds to the arithmetic of its network: costs, what it does unless told otherwise, what it can run.

A framework is part of a problem. Its data are read from files (`planner.files.loading`); this module says what they mean for the cost
model: assumptions of plans over a mesh (`MeshAssumptions`) and of plans with a split per layer (`LayerAssumptions`), which attention
kernels a device runs, and where stages are cut. The neutral values are those of a well-tuned implementation, which no framework is quicker
than; a framework that does not state a cost has the one that runs usually have (`costmodel.fields.as_run`).

Updates in a loop
-----------------
An eager framework's host starts the update of one weight tensor after the other while the device waits. The device waits where the host
waited for the device just before: with scaled losses, whether gradients overflowed decides whether there is an update at all
(torch/cuda/amp/grad_scaler.py, ``found_inf.item()``). The time of the calls of one tensor is an assumption
(`LayerAssumptions.update_call_s`).

Input
-----
Samples are read from storage, and copied from the host to the device.

    copy      batch x sample bytes / share of a device of the links inside a node
    storage   samples of a node x stored bytes / rate of the storage, which goes on alongside the step

A copy that is not prefetched lengthens the step; storage that is slower than the step decides it instead.

Parameter servers
-----------------
Weights may live on servers instead of on every device. Every node of the cluster runs a server alongside its workers, and each server keeps
an equal share of the weights (TensorFlow, tf_cnn_benchmarks: ``variable_update`` ``parameter_server`` and ``distributed_replicated``; Li et
al., Scaling distributed machine learning with the parameter server, OSDI 2014). In a step

    push     W / b_host + W (N - 1) / N / b_net    gradients, layer by layer while the backward pass runs
    pull     the same, of the new weights, after the last gradient

with W the bytes of the weights, N the nodes, b_host what a device has of the slowest links inside its node, b_net the bandwidth of a
node. A pull cannot hide: the next step starts with it. A push hides behind the backward pass as far as that lasts. Inside one node servers
cost no more than an all-reduce in what was measured (benchmarks/notes/accuracy-tried.md, parameter servers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray, largest_of
from costmodel.fields import as_run, assumption, with_values
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY
from costmodel.hardware.host import Host, host_rates
from costmodel.kernels.roofline import ImageSoftware
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.framework_rules import Rules
from costmodel.network.layers import Layer
from costmodel.network.layers.base import Fusable
from costmodel.precision import Optimizer, Precision

# Standard deviation of the time that equal work takes on devices of one kind. Sinha et al., Not All GPUs Are Created Equal (SC22,
# arXiv:2208.11035, abstract): 8 % on average between the whiskers of a cluster's devices, which are 5.4 standard deviations apart.
DEVICE_SPREAD = 0.08 / 5.4
_NEVER = 1e-6  # a rate at which no algorithm is chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAssumptions:
    """Costs of the software around the layers; 0 adds nothing."""

    device_spread: float = assumption(
        0.0,
        "standard deviation of the time of equal work on devices of one kind, over the mean: workers wait for the slowest of them",
        "under a framework: 0.08 / 5.4 (Sinha et al., arXiv:2208.11035, abstract)",
        as_run=DEVICE_SPREAD,
    )
    update_call_s: float = assumption(
        0.0,
        "time of the host to start the update of one weight tensor, for which the device waits",
        "none unless a framework says otherwise: multi-tensor optimizers start a few kernels for all tensors together",
    )
    channels_first: float = assumption(
        0.0,
        "1: images lie channel by channel in 16 bits, too, so that matrix units get them transposed; 0: they do so in tf32 only",
        "cuDNN Developer Guide, tensor layouts",
        most=1.0,
    )
    fast_convolutions: float = assumption(
        1.0,
        "1: convolutions by Winograd's method and by FFT are tried, too; 0: only products of matrices",
        "cuDNN since its version 3",
        most=1.0,
    )
    layer_overlap: float = assumption(
        1.0,
        "1: the gradients of a layer are exchanged while those of the layers before it are computed; 0: all after the backward pass",
        "PyTorch DDP (arXiv:2006.15704, section 3.2.3), Horovod (arXiv:1802.05799), Caffe since its release 1.0 (layer_wise_reduce)",
        most=1.0,
    )
    fused_activation: float = assumption(
        0.0,
        "1: the kernel before it computes an activation",
        "none unless a framework says otherwise",
        most=1.0,
    )
    fused_bias: float = assumption(
        0.0, "1: products add their bias", "none unless a framework says otherwise", most=1.0
    )
    fused_concatenation: float = assumption(
        0.0,
        "1: branches write into what they are joined to",
        "none unless a framework says otherwise",
        most=1.0,
    )
    fused_gradient_sum: float = assumption(
        0.0,
        "1: readers of an output add to its gradient",
        "none unless a framework says otherwise",
        most=1.0,
    )
    fused_normalised_gradient: float = assumption(
        0.0,
        "1: the gradient of a normalisation computes that of the activation behind it",
        "none unless a framework says otherwise",
        most=1.0,
    )
    parameter_servers: float = assumption(
        0.0,
        "1: weights live on a server on every node and travel there and back in 32 bits in each step, beyond one node; 0: all-reduce",
        "Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014",
        most=1.0,
    )
    real_input: float = assumption(
        0.0,
        "1: samples are copied from the host in every step; 0: they are on the device",
        "assumption: input is prefetched",
        most=1.0,
    )
    input_value_bytes: float = assumption(
        4.0,
        "bytes per value of a sample that is copied",
        "frameworks hand images over in fp32",
        needs="real_input",
    )
    storage_bytes_per_s: float = assumption(
        0.0,
        "rate at which a node reads stored samples; 0: it is never waited for",
        "assumption: storage keeps up",
        needs="stored_sample_bytes",
    )
    stored_sample_bytes: float = assumption(
        0.0,
        "bytes of a sample as it is stored; 0: storage is never waited for",
        "assumption: storage keeps up",
        needs="storage_bytes_per_s",
    )

    def image_software(self) -> ImageSoftware:
        """Which kernels are left out, and how images lie in memory.

        >>> sorted(LayerAssumptions(fused_activation=1.0, fused_gradient_sum=1.0).image_software().fuses)
        ['activation', 'gradient sum']
        """
        fuses = frozenset(
            name for name in get_args(Fusable) if name and getattr(self, f"fused_{name.replace(' ', '_')}")
        )
        return ImageSoftware(fuses=fuses, channels_first=bool(self.channels_first))

    def device_as_used(self, device: Device) -> Device:
        """The device without the convolution algorithms that the software does not have."""
        if self.fast_convolutions:
            return device
        return replace(device, efficiency=replace(device.efficiency, winograd_fraction=_NEVER, fft_fraction=_NEVER))


WELL_TUNED = LayerAssumptions()
# Real jobs, of a framework that says nothing else: their devices differ.
AS_RUN = as_run(LayerAssumptions)
_MESH_AS_RUN = as_run(MeshAssumptions)


# "balanced": the slowest stage is as fast as possible (`costmodel.mesh.stages`); "equal": as many blocks in each, whatever else the first
# and the last hold, and balanced where that does not come out even; "threshold": `costmodel.mesh.stages`.
StageCut = Literal["balanced", "equal", "threshold"]
# Attention kernels: those made for the device, those of an earlier generation, which run on any, or those of the first one.
Attention = Literal["newest", "portable", "first"]
Selective = Literal["cheap", "modules", "operators"]
# When a cost counts, besides those that always do.
Condition = Literal["on_fp4_devices", "in_fp16", "in_16_bits", "in_mxfp8"]
CONDITIONS: tuple[Condition, ...] = ("on_fp4_devices", "in_fp16", "in_16_bits", "in_mxfp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What a framework does unless it is told otherwise; None: nobody says.

    Attributes
    ----------
    sequence_parallel : bool or None
    zero_stage : int or None
    recompute : str or None
        "none", "full", or "as_needed": what memory asks for.
    selective : str
        What selective recomputation runs again (`costmodel.mesh.modules.repeats_of`): "cheap" layers, "modules" that are kernels of
        their own, or "operators", all but attention and every other product.
    interleaves : bool
        Its runs interleave the chunks of their pipelines, as many as are fastest.
    accumulates : bool
        Whether it cuts the batch of a replica into micro-batches.
    last_micro_batch_is_smaller : bool
        Whether the last micro-batch may be smaller.
    narrow_weights : bool
        Nothing is kept in 32 bits.
    gradient_bytes : float or None
        Per weight, of the gradients that accumulate and travel.
    drops_hidden_states : bool
        Its recipes of GPT drop hidden states.
    adapts_all : bool
        Adapters are put to all matrices of a block, not to those of the attention alone.
    fp8 : str
        Recipes (keys of `PRECISIONS`, with blanks between them) that it means by fp8, the first that the device runs.
    offloads : str
        What its recipes keep on the host, with blanks between: optimizer, activations.
    forces_balance : bool
        Its published runs send equally many tokens to every expert.
    casts_in_passes : bool
        Narrow formats are cast for each product, and neither kept nor gathered (`Precision.in_passes`).
    prefill_tokens : int
        Tokens of prompts that a pass of an engine reads at most; 0: nobody says.
    prefill_alone : bool
        Its passes that read prompts decode nothing.
    """

    sequence_parallel: bool | None = None
    zero_stage: int | None = None
    recompute: str | None = None
    selective: Selective = "cheap"
    interleaves: bool = False
    accumulates: bool = True
    last_micro_batch_is_smaller: bool = False
    narrow_weights: bool = False
    gradient_bytes: float | None = None
    drops_hidden_states: bool = False
    adapts_all: bool = False
    fp8: str = ""
    offloads: str = ""
    forces_balance: bool = False
    casts_in_passes: bool = False
    prefill_tokens: int = 0
    prefill_alone: bool = False

    def prefill(self, prompt: int, places: int, output: int | None = None) -> tuple[int, int]:
        """How a replica with so many places reads prompts of so many tokens.

        A pass reads as many as its tokens allow. ``output``: of a benchmark, answers of so many tokens. Its requests are equal, and end as
        they were read; clients' first ones come one after the other, so that a pass finds those that end in one pass.

        Returns
        -------
        tuple of int
            Tokens of a prompt per pass beside the decoding, or 0 for whole prompts in passes of their own, and prompts per pass.

        Examples
        --------
        >>> engine = Defaults(prefill_tokens=8192)
        >>> engine.prefill(1000, 64), engine.prefill(1000, 64, 100), engine.prefill(1000, 64, 16)
        ((1000, 8), (1000, 1), (1000, 4))
        >>> Defaults(prefill_tokens=8192, prefill_alone=True).prefill(20000, 64), Defaults().prefill(1000, 64)
        ((0, 1), (0, 1))
        """
        chunk = 0 if self.prefill_alone else min(self.prefill_tokens, prompt)
        found = places if output is None else -(-places // output)
        return chunk, max(1, min(self.prefill_tokens // prompt, found))

    def prefill_apart(self, prompt: int) -> tuple[int, int]:
        """The same of a worker that only reads prompts: parts of a prompt that is longer than a pass, else as many prompts as a pass takes.

        >>> engine = Defaults(prefill_tokens=8192)
        >>> engine.prefill_apart(1000), engine.prefill_apart(20000), Defaults().prefill_apart(1000)
        ((0, 8), (8192, 1), (0, 1))
        """
        chunk = self.prefill_tokens if 0 < self.prefill_tokens < prompt else 0
        return chunk, max(1, self.prefill_tokens // prompt)


# Costs of engines: fields of `ServingAssumptions`, which are made with a framework and so cannot be read here.
SERVING_COSTS = frozenset({"pass_overhead_s", "passes_ahead", "unpacked_4_bits", "unpacking_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework of one version.

    Attributes
    ----------
    name : str
        Empty: none is named, so that the answer is that of a well-tuned implementation.
    title : str
        Its name for people.
    version : str
        Which versions are meant.
    costs : mapping of str to float
        Assumptions that it states: fields of `MeshAssumptions` and `LayerAssumptions`, or of an engine of `ServingAssumptions`. The others
        are those of `costmodel.fields.as_run`.
    conditional : mapping of Condition to such a mapping
        Costs that count on devices which compute in fp4, in fp16 (where losses are scaled), in 16 bits or in mxfp8.
    fitted : frozenset of str
        Costs that were fitted to runs.
    serves : bool
        It serves networks and trains none.
    errors_of : str
        Framework whose published runs the error bars of this one are made of; empty: its own.
    stages : StageCut
    attention : Attention
    defaults : Defaults
    rules : Rules

    Raises
    ------
    ValueError
        A cost is no assumption of these models.

    Examples
    --------
    >>> slow = Framework(name="slow", costs={"host_launch_s": 1e-3, "update_call_s": 2e-5})
    >>> slow.mesh_assumptions().host_launch_s, slow.layer_assumptions().update_call_s
    (0.001, 2e-05)
    """

    name: str = ""
    title: str = ""
    version: str = ""
    costs: Mapping[str, float] = field(default_factory=dict)
    conditional: Mapping[Condition, Mapping[str, float]] = field(default_factory=dict)
    fitted: frozenset[str] = frozenset()
    serves: bool = False
    errors_of: str = ""
    stages: StageCut = "balanced"
    attention: Attention = "newest"
    defaults: Defaults = Defaults()
    rules: Rules = Rules()

    def __post_init__(self) -> None:
        known = {*MeshAssumptions.__dataclass_fields__, *LayerAssumptions.__dataclass_fields__}
        known |= SERVING_COSTS if self.serves else set()
        for name in sorted({*self.costs}.union(*self.conditional.values())):
            if name not in known:
                raise ValueError(f"framework '{self.name}': '{name}' is no assumption of the cost model")
        frozen = {when: MappingProxyType(dict(costs)) for when, costs in self.conditional.items()}
        object.__setattr__(self, "costs", MappingProxyType(dict(self.costs)))
        object.__setattr__(self, "conditional", MappingProxyType(frozen))

    def __hash__(self) -> int:
        """By name and version: a mapping has none."""
        return hash((self.name, self.version))

    def mesh_assumptions(
        self, *, precision: Precision | None = None, has_fp4: bool = False, host: Host | None = None
    ) -> MeshAssumptions:
        """Assumptions of plans over a mesh with the costs of the framework, and the rates of the nodes' host, put in.

        ``has_fp4``: the device computes in fp4. Gradients accumulate as the framework's defaults say; else in 16 bits under fp16
        (Megatron-LM accumulates in 32 bits by default with bf16 only) and where nothing is kept in 32 bits.
        """
        assumed = with_values(_MESH_AS_RUN if self.name else DEFAULT_ASSUMPTIONS, host_rates(host))
        is_narrow = self.defaults.narrow_weights or (precision is not None and precision.name == "fp16")
        width = self.defaults.gradient_bytes or (2.0 if is_narrow else assumed.main_gradient_bytes)
        return with_values(assumed, {"main_gradient_bytes": width, **self._counting(precision, has_fp4)})

    def kept(self, precision: Precision, optimizer: Optimizer) -> tuple[Precision, Optimizer]:
        """How its runs keep weights and the state of the optimizer: in 16 bits alone where it keeps nothing in 32, and casts of no pass.

        >>> from costmodel.precision import OPTIMIZERS, PRECISIONS
        >>> narrow = Framework(name="narrow", defaults=Defaults(narrow_weights=True))
        >>> precision, optimizer = narrow.kept(PRECISIONS["bf16"], OPTIMIZERS["adam"])
        >>> precision.master_bytes, optimizer.state_bytes
        (0.0, 4.0)
        """
        if self.defaults.casts_in_passes and precision.casts:
            precision = replace(precision, in_passes=True, copies=1, wide_weights=False, gathers_weights=False)
        if not self.defaults.narrow_weights or precision.weight_bytes != 2:
            return precision, optimizer
        if optimizer.name == optimizer.rule:  # of 32 bits
            optimizer = replace(optimizer, state_bytes=optimizer.state_bytes / 2.0)
        return replace(precision, master_bytes=0.0), optimizer

    def layer_assumptions(
        self, precision: Precision | None = None, *, assumptions: LayerAssumptions | None = None
    ) -> LayerAssumptions:
        """The same of plans with a split per layer; the devices of a framework's jobs differ."""
        usual = AS_RUN if self.name else WELL_TUNED
        return with_values(assumptions or usual, self._counting(precision, has_fp4=False))

    def _counting(self, precision: Precision | None, has_fp4: bool) -> dict[str, float]:
        """Costs that count; the later ones win."""
        name = "" if precision is None else precision.name
        counts: dict[Condition, bool] = {
            "on_fp4_devices": has_fp4,
            "in_fp16": name == "fp16",
            "in_16_bits": name in ("fp16", "bf16"),
            "in_mxfp8": name == "mxfp8",
        }
        conditional = [costs for when, costs in self.conditional.items() if counts[when]]
        return {name: cost for costs in (self.costs, *conditional) for name, cost in costs.items()}


# A well-tuned implementation. On Blackwell the host starts its kernels as CUDA graphs, in mxfp8 those of experts, too, as recipes of
# Megatron-Bridge do (scripts/performance/configs).
NO_FRAMEWORK = Framework(conditional={"on_fp4_devices": {"captured": 1.0}, "in_mxfp8": {"expert_launches": 0.0}})
# Software of a run of which nothing is known but that it ran.
UNKNOWN = Framework(name="unknown", attention="portable")


def recompute_as_needed(blocks: int) -> tuple[tuple[str, int], ...]:
    """What is tried where memory says what is recomputed: mode, and blocks of a chunk of so many.

    >>> recompute_as_needed(6)
    (('none', 0), ('selective', 0), ('full', 1), ('full', 2), ('full', 4), ('full', 6))
    """
    counts = (*(count for count in (1, 2, 4, 8, 16, 32, 64) if count < blocks), blocks)
    return (("none", 0), ("selective", 0), *(("full", count) for count in counts))


# Rate of the Triton kernel over that of FlashAttention-2: fit to steps of llm-foundry on A100. The authors of FlashAttention-2 found theirs
# 1.3 to 2.5 times as fast as the Triton kernel and 1.7 to 3 times as fast as the first one in CUDA (arXiv:2307.08691, section 4.1).
_FIRST_SHARE = 0.55


def with_attention(device: Device, attention: Attention) -> Device:
    """The device with the rates of these kernels.

    It stays as it is where ``portable_attention_fraction`` is 1 and they are not the first ones, and where its file states no rate of
    attention: the default was fitted to the first ones.
    """
    known = device.efficiency
    usual = DEFAULT_EFFICIENCY
    states = (known.attention_fraction, known.attention_backward_fraction) != (
        usual.attention_fraction,
        usual.attention_backward_fraction,
    )
    share = _FIRST_SHARE if attention == "first" and states else 1.0
    share *= 1.0 if attention == "newest" else known.portable_attention_fraction
    if share == 1.0:
        return device
    slower = replace(
        known,
        attention_fraction=known.attention_fraction * share,
        attention_backward_fraction=known.attention_backward_fraction * share,
        # Their products are slower, not the exponentials beside them.
        attention_depth=known.attention_depth * share,
        attention_backward_depth=known.attention_backward_depth * share,
    )
    return replace(device, efficiency=slower)


def cluster_run_by(cluster: Cluster, attention: Attention) -> Cluster:
    """The cluster with the attention kernels of a framework."""
    groups = tuple(replace(group, device=with_attention(group.device, attention)) for group in cluster.groups)
    return cluster if groups == cluster.groups else replace(cluster, groups=groups)


def tensors_of(layer: Layer) -> int:
    """Tensors of trained weights of a layer as PyTorch counts them: a matrix, a bias, scale and shift of a normalisation.

    >>> from costmodel.network.graph import Graph
    >>> from costmodel.network.layers.base import LayerSpec, params_from
    >>> image = LayerSpec(name="image", kind="input", params=params_from("input", {"shape": (3, 8, 8)}))
    >>> params = params_from("convolution", {"out_channels": 4, "kernel": 1, "norm": "batch"})
    >>> conv = LayerSpec(name="conv", kind="convolution", params=params, inputs=("image",))
    >>> sum(map(tensors_of, Graph.build("small", [image, conv]).layers))
    4
    """
    if layer.is_frozen or not layer.family.weight_count(layer):
        return 0
    parts = (getattr(layer.params, "bias", False), *[getattr(layer.params, "norm", None) is not None] * 2)
    return (2 if layer.kind.endswith("norm") else 1) + sum(map(bool, parts))


def slowest_of(workers: ArrayLike, spread: float) -> FloatArray:
    """How long the slowest of some devices takes on average, over one of them: their times are normally distributed.

    Parameters
    ----------
    workers : array of int
    spread : float
        Standard deviation over the mean.

    >>> slowest_of([1, 8, 64, 1024], 0.08 / 5.4).round(3).tolist()
    [1.0, 1.021, 1.035, 1.048]
    """
    return np.asarray(1.0 + spread * largest_of(workers))


def copy_s(batch_bytes: ArrayLike, workers: ArrayLike, cluster: Cluster) -> FloatArray:
    """Seconds to copy the input of every worker from its host.

    Parameters
    ----------
    batch_bytes : array
        Input of one worker.
    workers : array
        Where they are fewer than a node has, each has more of a shared port.
    cluster : Cluster
        Its links inside a node reach the host, too.

    Examples
    --------
    300 MB over a port of 12 GB/s alone, and where two share it.

    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> board = Level(name="board", size=2, bandwidth_bytes_per_s=12e9, latency_s=0.0)
    >>> node = Level(name="node", size=2, bandwidth_bytes_per_s=6e9, latency_s=0.0, shared_by=2)
    >>> network = Level(name="network", size=None, bandwidth_bytes_per_s=1e9, latency_s=0.0)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(board, node, network))
    >>> copy_s(300e6, [1, 4], cluster).tolist()
    [0.025, 0.05]
    """
    inside = cluster.levels[:-1] or cluster.levels
    count = np.asarray(workers, dtype=np.float64)
    rates = [level.port_bytes_per_s / np.minimum(level.shared_by, count) for level in inside]
    return np.asarray(batch_bytes / np.minimum.reduce(rates))


def storage_s(
    samples: ArrayLike, sample_bytes: float, storage_bytes_per_s: float, workers: ArrayLike, node: int
) -> FloatArray:
    """Seconds in which the storage of a node reads its share of a step's samples; 0 where either number of the storage is 0.

    >>> storage_s(1000, 1e6, 1e9, [1, 8, 16], 8).tolist(), storage_s(1000, 1e6, 0.0, 8, 8).tolist()
    ([1.0, 1.0, 0.5], 0.0)
    """
    count = np.asarray(workers, dtype=np.float64)
    if not (sample_bytes and storage_bytes_per_s):
        return np.zeros(np.shape(count))
    return np.asarray(np.asarray(samples) * sample_bytes * np.minimum(count, node) / count / storage_bytes_per_s)


# Servers keep and send fp32.
SERVER_WEIGHT_BYTES = 4.0


def node_size(cluster: Cluster) -> int:
    """Workers of one node: of all levels but the outermost."""
    size = 1
    for level in cluster.levels[:-1]:
        size *= level.size or 1
    return size


def server_transfer_s(weight_bytes: ArrayLike, workers: ArrayLike, cluster: Cluster) -> FloatArray:
    """Seconds to move weights once between the servers and every worker, latencies aside; 0 for one worker, which has them next to it.

    Parameters
    ----------
    weight_bytes, workers : arrays of one shape
    cluster : Cluster

    Examples
    --------
    400 MB over links of 10 GB/s that four devices use at once and that reach 8 GB/s; two nodes swap half of it at 1 GB/s.

    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=4, bandwidth_bytes_per_s=10e9, latency_s=0.0, efficiency=0.8)
    >>> network = Level(name="network", size=None, bandwidth_bytes_per_s=0.25e9, latency_s=0.0, shared_by=4)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, network))
    >>> server_transfer_s([400e6, 400e6, 400e6], [1, 4, 8], cluster).round(6).tolist()
    [0.0, 0.05, 0.25]
    """
    weights, count = np.asarray(weight_bytes, dtype=np.float64), np.asarray(workers)
    inside, size = cluster.levels[:-1], node_size(cluster)
    slowest = min((level.bandwidth_bytes_per_s * level.reached for level in inside), default=float("inf"))
    nodes = -(-count // size)
    outer = cluster.levels[-1]
    node_bytes_per_s = outer.bandwidth_bytes_per_s * outer.reached * size
    time = weights / slowest + weights * (nodes - 1) / nodes / node_bytes_per_s
    return np.where(count > 1, time, 0.0)


def server_round_trip_s(workers: ArrayLike, cluster: Cluster) -> FloatArray:
    """Latency of a push and a pull, which the tensors of a step share."""
    count = np.asarray(workers)
    return np.where(count > node_size(cluster), 2.0 * cluster.levels[-1].latency_s, 0.0)

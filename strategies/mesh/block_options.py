"""What can be done with one layer of a block on tp ranks, and what each option costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from costmodel.layers import Layer
from costmodel.mesh.roles import LayerRole, Role
from costmodel.mesh.shares import RowKeys, shard_of
from costmodel.mesh.units import MeshError, UnitKind
from costmodel.workload import Workload
from strategies.mesh.block_moves import WHOLE, Collectives, Layout

__all__ = ["BlockOption", "BlockSpace", "OptionCosts", "cost_options", "options_of"]

FloatArray = NDArray[np.float64]
Way = Literal["column", "row", "channel", "positions", "whole"]

# Layers that treat every position alike, without a matrix: a rank may work on a share of the positions.
PER_POSITION = frozenset(
    {"rms_norm", "layer_norm", "add", "dropout", "activation", "glu", "slice_features", "position_embedding", "concat"}
)
# Inputs that stay whole beside split ones (costmodel.mesh.roles): the rotary part of compressed keys is shared by all heads.
WHOLE_INPUTS = {"latent_attention": frozenset({2})}
# Mixtures of experts have groups of their own; inputs lie between an encoder and a decoder.
_FOREIGN = frozenset({"moe", "input"})


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class BlockOption:
    """One way to run a layer.

    Attributes
    ----------
    way : str
        column, row: the matrix split by its outputs, inputs; channel: a share of the channels or heads; positions: a share of the
        positions; whole: everything on every rank.
    degree : int
        Shares; where it is less than tp they are repeated.
    leaves : Layout
        Layout of the output.
    """

    way: Way
    degree: int
    leaves: Layout

    @property
    def role(self) -> Role:
        """The role of `costmodel.mesh.roles` that the option plays: shares of the positions are whole channels."""
        return "whole" if self.way == "positions" else self.way

    def needs(self, kind: str, input_index: int) -> Layout:
        """Layout in which the layer reads an input.

        >>> BlockOption(way="column", degree=8, leaves=Layout(form="channels", degree=8)).needs("linear", 0)
        Layout(form='gathered', degree=8)
        """
        whole_input = input_index in WHOLE_INPUTS.get(kind, frozenset())
        if self.way == "column" or (self.way == "channel" and whole_input):
            return Layout(form="gathered", degree=self.degree)
        if self.way in ("row", "channel"):
            return Layout(form="channels", degree=self.degree)
        return Layout(form="positions", degree=self.degree) if self.way == "positions" else WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpace:
    """What the program may choose from.

    Attributes
    ----------
    degrees : tuple of int
        Shares of a split layer, ascending, each greater than 1.
    positions : bool
        Whether layers without matrices may work on shares of the positions (sequence parallelism).
    whole_matrices : bool
        Whether a matrix may be repeated on every rank.
    split_norms : bool
        Whether a normalisation may work on a share of its features, its statistics summed over the ranks. No trainer does.
    """

    degrees: tuple[int, ...]
    positions: bool = True
    whole_matrices: bool = True
    split_norms: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCosts:
    """Costs of the options of a layer; arrays (options,)."""

    options: tuple[BlockOption, ...]
    forward_s: FloatArray  # of a micro-batch, collectives of the layer itself included
    backward_s: FloatArray
    backward_compute_s: FloatArray  # the part of it that can hide an exchange
    update_s: FloatArray  # of a step
    exchange_s: FloatArray  # gradients of repeated weights whose uses differ, of a step
    memory_bytes: FloatArray


def options_of(layer: Layer, space: BlockSpace) -> tuple[BlockOption, ...]:
    """Legal options of a layer: degrees divide what they share out.

    Raises
    ------
    MeshError
        The layer is a mixture of experts or an input.
    """
    if layer.kind in _FOREIGN:
        raise MeshError(
            f"layer '{layer.name}' ({layer.kind}) is not split with its block; the program takes blocks without it"
        )
    limits = layer.family.limits(layer)
    positions = int(np.prod(layer.output_shape[1:]))
    result: list[BlockOption] = []
    for t in space.degrees:
        channels = Layout(form="channels", degree=t)
        cut = Layout(form="positions", degree=t)
        by_position = space.positions and positions % t == 0
        if layer.kind == "linear":
            if limits.out_channels % t == 0:
                result.append(BlockOption(way="column", degree=t, leaves=channels))
            if limits.in_channels % t == 0:
                ends = [x for x in (channels, cut) if by_position or x is not cut]
                result += [BlockOption(way="row", degree=t, leaves=x) for x in (*ends, WHOLE)]
            continue
        splits = limits.channelwise and limits.out_channels % t == 0 and _kv_heads_fit(layer, t)
        if splits and (space.split_norms or not layer.kind.endswith("_norm")):
            result.append(BlockOption(way="channel", degree=t, leaves=channels))
        if by_position and layer.kind in PER_POSITION:
            result.append(BlockOption(way="positions", degree=t, leaves=cut))
    if layer.kind != "linear" or space.whole_matrices or not result:
        result.append(BlockOption(way="whole", degree=1, leaves=WHOLE))
    return tuple(result)


def _kv_heads_fit(layer: Layer, t: int) -> bool:
    if layer.kind not in ("self_attention", "cross_attention"):
        return True
    kv: int = layer.params.kv_heads or layer.params.heads
    return kv % t == 0 or t % kv == 0


def cost_options(
    workload: Workload,
    layers: Sequence[Layer],
    kind: UnitKind,
    position: int,
    options: tuple[BlockOption, ...],
    micro_batch: int,
    collectives: Collectives,
) -> OptionCosts:
    """Cost the options of one layer of a unit.

    Parameters
    ----------
    workload : Workload
    layers : sequence of Layer
        Of the whole network.
    kind : UnitKind
    position : int
        Of the layer in the unit.
    options : tuple of BlockOption
    micro_batch : int
        Samples.
    collectives : Collectives
    """
    parts = [_cost_option(workload, layers, kind, position, option, micro_batch, collectives) for option in options]
    columns = np.array(parts, dtype=np.float64).reshape(len(options), 6).T
    return OptionCosts(
        options=options,
        forward_s=columns[0],
        backward_s=columns[1],
        backward_compute_s=columns[2],
        update_s=columns[3],
        exchange_s=columns[4],
        memory_bytes=columns[5],
    )


def _cost_option(
    workload: Workload,
    layers: Sequence[Layer],
    kind: UnitKind,
    position: int,
    option: BlockOption,
    micro_batch: int,
    collectives: Collectives,
) -> tuple[float, float, float, float, float, float]:
    """(forward, backward, backward compute, update, exchange, memory) of one option."""
    layer = layers[kind.layers[position]]
    one = np.ones(1, dtype=np.int64)
    keys = RowKeys(
        tp=option.degree * one,
        sequence_parallel=int(option.way == "positions") * one,
        cp=one,
        ep=one,
        etp=one,
        micro_batch=micro_batch * one,
    )
    shard = shard_of(layers, kind, position, LayerRole(role=option.role), keys)
    times = workload.compute.pass_times(layer, shard, needs_input_gradient=True)
    forward, compute = float(times.forward_s[0]), float(times.backward_s[0]) if workload.training else 0.0
    backward = compute
    width = workload.precision.activation_bytes
    tensor = float(micro_batch * np.prod(layer.output_shape)) * width
    if option.way == "row":
        operation, back = ("all_reduce", "") if option.leaves.form == "whole" else ("reduce_scatter", "all_gather")
        forward += collectives.time_s(operation, option.degree, tensor)
        backward += collectives.time_s(back, option.degree, tensor) if back and workload.training else 0.0
    elif option.way == "channel":
        for inner in layer.family.work(layer, shard).exchanges:
            if inner.over == "out_channels":
                time = collectives.time_s(inner.operation, option.degree, float(np.max(inner.elements)) * width)
                forward += inner.repeats * time if inner.phase == "forward" else 0.0
                backward += inner.repeats * time if inner.phase != "forward" and workload.training else 0.0
    share = 1.0 if option.way in ("positions", "whole") else float(shard.out_channels[0]) / layer.output_shape[0]
    if option.way == "row":
        share = 1.0 / option.degree
    weights = float(layer.weight_count + layer.norm_count) * share
    trained = float(layer.adapter_count if layer.is_frozen else layer.weight_count + layer.norm_count) * share
    update = float(workload.compute.update_s(np.array([trained]))[0]) if workload.training else 0.0
    exchange = 0.0
    if workload.training and option.way == "positions":
        exchange = collectives.time_s("all_reduce", option.degree, trained * workload.precision.gradient_bytes)
    memory = _memory_bytes(workload, layers, kind, position, option, weights, trained, tensor)
    memory += float(layer.family.saved_elements(layer, shard)[0]) * width if workload.training else 0.0
    return forward, backward, compute, update, exchange, memory


def _memory_bytes(
    workload: Workload,
    layers: Sequence[Layer],
    kind: UnitKind,
    position: int,
    option: BlockOption,
    weights: float,
    trained: float,
    tensor_bytes: float,
) -> float:
    """Weights with their state, and the output where a layer of the unit keeps what it reads."""
    precision = workload.precision
    if not workload.training:
        return weights * precision.weight_bytes
    state = precision.gradient_bytes + precision.master_bytes + workload.optimizer.state_bytes
    readers = [layers[kind.layers[r]] for r, inputs in enumerate(kind.inputs) if position in inputs]
    kept = not readers or any(reader.keeps_input for reader in readers)
    return weights * precision.weight_bytes + trained * state + (tensor_bytes / option.leaves.degree if kept else 0.0)

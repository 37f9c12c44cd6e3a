"""Rows that plans share: the part of a layer on one rank, and a table of costs that grows by rows.

A row is (tp, sequence parallel, cp, ep, etp, micro-batch). All that plans differ in besides it does not change the time of a module.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from costmodel.arrays import FloatArray, IntArray, combined
from costmodel.mesh.modules import ModuleKind
from costmodel.mesh.tensor_parallel import LayerRole
from costmodel.network.layers import Layer, Shard

__all__ = ["MODULE_COLUMNS", "ModuleRows", "ModuleTable", "RowKeys", "rows_held", "shard_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowKeys:
    """Rows of the table; arrays (n,)."""

    tp: IntArray
    sequence_parallel: IntArray
    cp: IntArray
    ep: IntArray
    etp: IntArray
    micro_batch: IntArray

    def __len__(self) -> int:
        return len(self.tp)

    def without_experts(self) -> tuple[RowKeys, IntArray]:
        """The rows that differ but for ep and etp, and which of them every row is."""
        first, row = combined(self.tp, self.sequence_parallel, self.cp, self.micro_batch)
        one = np.ones(len(first), dtype=np.int64)
        few = RowKeys(
            tp=self.tp[first],
            sequence_parallel=self.sequence_parallel[first],
            cp=self.cp[first],
            ep=one,
            etp=one,
            micro_batch=self.micro_batch[first],
        )
        return few, row


def shard_of(layers: Sequence[Layer], kind: ModuleKind, position: int, role: LayerRole, keys: RowKeys) -> Shard:
    """Share of one rank of a layer of a module, in every row."""
    layer = layers[kind.layers[position]]
    tp, ranks = keys.tp.astype(np.float64), role.ranks(keys.tp).astype(np.float64)
    one = np.ones_like(tp)
    out, inside = float(layer.output_shape[0]), float(layer.input_shapes[0][0]) if layer.input_shapes else 1.0
    if layer.kind == "linear" and len(layer.input_shapes[0]) > 2:
        inside = float(np.prod(layer.input_shapes[0]))
    sequence = keys.cp.astype(np.float64)
    split_out = split_in = one
    out_channels, in_channels = out * one, inside * one
    if role.role == "column":
        split_out, out_channels = ranks, _column_width(layers, kind, position, ranks)
    elif role.role == "row":
        split_in, in_channels = ranks, np.ceil(inside / ranks)
    elif role.role == "channel":
        split_out, out_channels, in_channels = ranks, np.ceil(out / ranks), np.ceil(inside / ranks)
    elif role.role == "experts":
        split_out, sequence = keys.etp.astype(np.float64), sequence * tp / keys.etp
    elif role.role == "whole":
        sequence = sequence * np.where(keys.sequence_parallel > 0, tp, 1.0)
    height = float(layer.output_shape[1]) if len(layer.output_shape) == 3 else 1.0
    return Shard(
        batch=keys.micro_batch.astype(np.float64),
        out_channels=out_channels,
        in_channels=in_channels,
        height=height * one,
        split_out=split_out,
        split_in=split_in,
        split_height=one,
        sequence=sequence,
        experts=keys.ep.astype(np.float64),
    )


def rows_held(layer: Layer, shard: Shard) -> FloatArray:
    """Positions of all samples of a share."""
    return np.asarray(shard.batch * np.ceil(np.prod(layer.output_shape[1:]) / shard.sequence))


def _column_width(layers: Sequence[Layer], kind: ModuleKind, position: int, ranks: FloatArray) -> FloatArray:
    """Outputs of a rank of a column-split matrix; key and value heads are repeated where there are fewer of them than ranks."""
    width = float(layers[kind.layers[position]].output_shape[0])
    share = np.ceil(width / ranks)
    for reader, inputs in enumerate(kind.inputs):
        layer = layers[kind.layers[reader]]
        if position in inputs and layer.kind in ("self_attention", "cross_attention"):
            heads, kv_heads, dim = (
                layer.params.heads,
                layer.params.kv_heads or layer.params.heads,
                layer.params.head_dim,
            )
            own_kv = np.maximum(np.ceil(kv_heads / ranks), 1.0)
            if layer.kind == "self_attention":
                return np.asarray((np.ceil(heads / ranks) + 2.0 * own_kv) * dim)
            if inputs[1] == position:
                return np.asarray(2.0 * own_kv * dim)
    return np.asarray(share)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTable:
    """Costs of a module; arrays (n rows, K kinds). Times and message sizes are of one micro-batch, sizes in bytes per rank."""

    forward_s: FloatArray
    backward_s: FloatArray  # both gradients
    weight_s: FloatArray  # the part of backward_s that only weight gradients need
    selective_s: FloatArray  # forward time of the layers that selective recomputation runs again
    tp_forward_s: FloatArray
    tp_backward_s: FloatArray
    etp_forward_s: FloatArray  # gathering and reducing tokens inside experts
    attention_forward_s: FloatArray  # part of forward_s that hides a ring of keys and values
    attention_backward_s: FloatArray
    kv_bytes: FloatArray  # keys and values of a rank's positions
    heads_bytes: FloatArray  # queries, keys, values and outputs of a rank's positions
    dispatch_bytes: FloatArray  # tokens that a rank sends to experts, once for each expert of theirs
    token_bytes: FloatArray  # the same tokens, each once
    drawn_bytes: FloatArray  # each as often as `costmodel.mesh.communication.free_draws` says
    returned_bytes: FloatArray  # the same of their gradients
    saved_bytes: FloatArray  # kept for the backward pass, nothing recomputed
    saved_selective_bytes: FloatArray
    entering_bytes: FloatArray  # the module's input
    input_bytes: FloatArray  # the same if full recomputation keeps it: where a gradient flows through the module
    logits_bytes: FloatArray  # the loss and what enters it; not in saved_bytes
    dense_count: FloatArray  # weights of a rank outside routed experts
    expert_count: FloatArray
    dense_trainable: FloatArray
    expert_trainable: FloatArray
    tied_count: FloatArray  # weights of another module that this one needs a copy of
    tied_trainable: FloatArray
    apart_trainable: (
        FloatArray  # the part of dense_trainable whose gradients the tensor-parallel ranks add up, once per step
    )
    # What the host starts: kernels, and collectives over the tensor-parallel ranks (0 for one rank).
    forward_launches: FloatArray
    backward_launches: FloatArray  # without those that only weight gradients need
    weight_launches: FloatArray
    selective_launches: FloatArray
    tensors: FloatArray  # weight tensors that are trained
    tp_forward_starts: FloatArray
    tp_backward_starts: FloatArray
    widest_bytes: FloatArray  # largest tensor of a rank: the gradient that is under way in the backward pass

    @classmethod
    def of_stack(cls, stack: FloatArray) -> ModuleTable:
        """The table of an array (fields, n, K)."""
        return cls(**dict(zip(MODULE_COLUMNS, stack, strict=True)))


MODULE_COLUMNS: tuple[str, ...] = tuple(item.name for item in fields(ModuleTable))


@dataclass(slots=True, kw_only=True)
class ModuleRows:
    """Rows of the table that have been computed, each under a key.

    >>> rows, ones = ModuleRows(), np.ones((len(MODULE_COLUMNS), 2, 3))
    >>> rows.add([(1,), (2,)], ModuleTable.of_stack(ones * np.array([[[1.0], [2.0]]])))
    >>> rows.missing([(2,), (3,)]), rows.table([(2,), (2,), (1,)]).forward_s[:, 0].tolist()
    ([1], [2.0, 2.0, 1.0])
    """

    _places: dict[Hashable, int] = field(default_factory=dict)
    # (fields, room, K): rows beyond those known are room for more, so that adding does not copy all of them every time.
    _stack: FloatArray = field(default_factory=lambda: np.zeros((len(MODULE_COLUMNS), 0, 0)))

    def missing(self, keys: Sequence[Hashable]) -> list[int]:
        """Positions of the keys that are not known."""
        return [n for n, key in enumerate(keys) if key not in self._places]

    def add(self, keys: Sequence[Hashable], rows: ModuleTable) -> None:
        """Remember rows under keys that are not known."""
        columns = [getattr(rows, name) for name in MODULE_COLUMNS]
        known, kinds = len(self._places), columns[0].shape[1]
        size = known + len(keys)
        if size > self._stack.shape[1]:
            grown = np.empty((len(MODULE_COLUMNS), max(size, 2 * known), kinds))
            if known:
                grown[:, :known] = self._stack[:, :known]
            self._stack = grown
        for own, column in zip(self._stack, columns, strict=True):
            own[known:size] = column
        self._places |= {key: known + n for n, key in enumerate(keys)}

    def table(self, keys: Sequence[Hashable], index: IntArray | None = None) -> ModuleTable:
        """Rows of known keys; with an index, those of ``keys[index]``."""
        place = np.array([self._places[key] for key in keys], dtype=np.int64)
        return ModuleTable.of_stack(self._stack.take(place if index is None else place[index], axis=1))

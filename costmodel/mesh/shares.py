"""What one rank holds of a layer: rows of (tp, sequence parallel, cp, ep, etp, micro-batch) and the share that each stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mesh.keys import combined
from costmodel.mesh.roles import LayerRole
from costmodel.mesh.units import UnitKind
from costmodel.network.layers import Layer, Shard

__all__ = ["RowKeys", "rows_held", "shard_of"]


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


def shard_of(layers: Sequence[Layer], kind: UnitKind, position: int, role: LayerRole, keys: RowKeys) -> Shard:
    """Share of one rank of a layer of a unit, in every row."""
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


def _column_width(layers: Sequence[Layer], kind: UnitKind, position: int, ranks: FloatArray) -> FloatArray:
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

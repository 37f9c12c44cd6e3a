"""Data parallelism: which ranks share or repeat the weights of a stage, and what it costs to keep them equal.

Under ZeRO (Rajbhandari et al., arXiv:1910.02054) the ``dp_shard x cp`` ranks that work with the same weights share
the optimizer state (stage 1), the gradients (2) and the weights (3); ``dp_replicate`` such groups repeat them (HSDP).
Routed experts have ``tp cp dp / (ep etp)`` copies, shared in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray, StructOfArrays
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.communication import GroupTimes
from costmodel.mesh.plan import MeshBatch

__all__ = ["CopyGroups", "CopyTimes", "Division", "copy_groups", "exposed_exchange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyGroups(StructOfArrays):
    """Groups of ranks with the same weights; arrays (n,). Degrees of 1 are no groups."""

    shard: IntArray  # ranks that share one copy (1 without ZeRO)
    shard_stride: IntArray
    replicate: IntArray  # copies
    replicate_stride: IntArray
    expert_shard: IntArray
    expert_replicate: IntArray
    expert_stride: IntArray


def copy_groups(batch: MeshBatch, stride: dict[str, IntArray]) -> CopyGroups:
    """Find the groups of every plan.

    Parameters
    ----------
    batch : MeshBatch
    stride : dict
        As `costmodel.mesh.communication.strides`.

    Returns
    -------
    CopyGroups

    Notes
    -----
    A group over two dimensions covers the range of the outer one; its members are taken as spread evenly over it.
    """
    zero = batch.zero_stage > 0
    cp, dp = batch.cp, batch.dp
    shard = np.where(zero, batch.dp_shard * cp, 1)
    shard_extent = np.maximum(
        np.where(batch.dp_shard > 1, stride["dp"] * batch.dp_shard, 1), np.where(cp > 1, stride["cp"] * cp, 1)
    )
    replicate = np.where(zero, batch.dp_replicate, dp * cp)
    all_extent = np.maximum(np.where(dp > 1, stride["dp"] * dp, 1), np.where(cp > 1, stride["cp"] * cp, 1))
    replicate_stride = np.where(
        zero, stride["dp"] * batch.dp_shard, np.maximum(all_extent // np.maximum(dp * cp, 1), 1)
    )
    ranks = batch.tp * cp * dp
    copies = np.maximum(ranks // (batch.ep * batch.etp), 1)
    expert_shard = np.where(zero, np.maximum(copies // batch.dp_replicate, 1), 1)
    return CopyGroups(
        shard=shard,
        shard_stride=np.maximum(shard_extent // np.maximum(shard, 1), 1),
        replicate=replicate,
        replicate_stride=replicate_stride,
        expert_shard=expert_shard,
        expert_replicate=copies // expert_shard,
        expert_stride=np.maximum(np.maximum(all_extent, batch.tp) // copies, 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How plans divide dp, and what they keep on the host; arrays (n,)."""

    zero_stage: IntArray
    dp_replicate: IntArray
    dp_shard: IntArray
    offload_optimizer: IntArray
    offload_activations: IntArray
    copies: CopyGroups

    @classmethod
    def of(cls, batch: MeshBatch, stride: dict[str, IntArray]) -> Division:
        """The division of whole plans."""
        return cls(
            zero_stage=batch.zero_stage,
            dp_replicate=batch.dp_replicate,
            dp_shard=batch.dp_shard,
            offload_optimizer=batch.offload_optimizer,
            offload_activations=batch.offload_activations,
            copies=copy_groups(batch, stride),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTimes:
    """Collectives in the groups of `copy_groups`; messages (n, X) are the whole weights or gradients of a rank."""

    groups: GroupTimes
    copies: CopyGroups
    shard: IntArray  # numbers of the groups, (n,)
    replicate: IntArray
    expert_shard: IntArray
    expert_replicate: IntArray

    @classmethod
    def of(cls, groups: GroupTimes, copies: CopyGroups, *, has_experts: bool) -> CopyTimes:
        """Look the groups up."""
        nothing = np.zeros(0, dtype=np.int64)
        # The copies of an expert's shard are a whole set of shards apart.
        apart = copies.expert_stride * copies.expert_shard
        return cls(
            groups=groups,
            copies=copies,
            shard=groups.find(copies.shard, copies.shard_stride),
            replicate=groups.find(copies.replicate, copies.replicate_stride),
            expert_shard=groups.find(copies.expert_shard, copies.expert_stride) if has_experts else nothing,
            expert_replicate=groups.find(copies.expert_replicate, apart) if has_experts else nothing,
        )

    def take(self, index: IntArray) -> CopyTimes:
        """A selection of the plans."""
        some = self.expert_shard, self.expert_replicate
        return CopyTimes(
            groups=self.groups,
            copies=self.copies.take(index),
            shard=self.shard[index],
            replicate=self.replicate[index],
            expert_shard=some[0][index] if len(some[0]) else some[0],
            expert_replicate=some[1][index] if len(some[1]) else some[1],
        )

    def gather_s(self, dense_bytes: FloatArray, expert_bytes: FloatArray) -> FloatArray:
        """Time to gather weights from their shards."""
        return self._both("all_gather", self.shard, self.expert_shard, dense_bytes, expert_bytes)

    def reduce_s(self, dense_bytes: FloatArray, expert_bytes: FloatArray, *, in_buckets: bool = True) -> FloatArray:
        """Time to reduce gradients into their shards; not in buckets where ZeRO-3 reduces module by module."""
        return self._both(
            "reduce_scatter", self.shard, self.expert_shard, dense_bytes, expert_bytes, in_buckets=in_buckets
        )

    def whole_s(self, dense_bytes: FloatArray, expert_bytes: FloatArray) -> FloatArray:
        """Time to add up whole gradients over the ranks that share the optimizer, all at once."""
        return self._both("all_reduce", self.shard, self.expert_shard, dense_bytes, expert_bytes)

    def replicate_s(self, dense_bytes: FloatArray, expert_bytes: FloatArray) -> FloatArray:
        """Time to add up the gradients of the copies, each rank its shard, in buckets."""
        dense = dense_bytes / self.copies.shard[:, None]
        experts = expert_bytes / self.copies.expert_shard[:, None]
        return self._both("all_reduce", self.replicate, self.expert_replicate, dense, experts, in_buckets=True)

    def _both(
        self,
        operation: str,
        dense: IntArray,
        experts: IntArray,
        dense_bytes: FloatArray,
        expert_bytes: FloatArray,
        *,
        in_buckets: bool = False,
    ) -> FloatArray:
        """Both kinds of weights."""
        total: FloatArray | None = None
        for group, message in ((dense, dense_bytes), (experts, expert_bytes)):
            if not len(group):
                continue
            timed = self._buckets_s if in_buckets else self.groups.time_s
            time = timed(operation, group, message)
            total = time if total is None else total + time
        assert total is not None
        return total

    def _buckets_s(self, operation: str, group: IntArray, message_bytes: FloatArray) -> FloatArray:
        """Gradients travel bucket by bucket, each of which pays the latency of its collective and waits for ranks of other nodes."""
        size, wait_s = self.groups.assumptions.bucket_bytes, self.groups.assumptions.bucket_wait_s
        pieces = np.maximum(message_bytes / size, 1.0) if size > 0 else np.ones_like(message_bytes)
        each_s = self.groups.time_s(operation, group, message_bytes / pieces)
        if wait_s:
            each_s = each_s + np.where((each_s > 0) & self.groups.spans_nodes(group)[:, None], wait_s, 0.0)
        return np.asarray(pieces * each_s)


def exposed_exchange(
    assumptions: MeshAssumptions,
    exchange_s: FloatArray,
    exchanged_bytes: FloatArray,
    compute_s: FloatArray,
    last_bytes: FloatArray | float = 0.0,
) -> FloatArray:
    """What compute does not hide of an exchange: at least the last bucket, which only then is complete, or what compute alongside it loses.

    ``last_bytes`` come together at the end, all in the last bucket: gradients of an embedding.

    >>> from costmodel.mesh.assumptions import MeshAssumptions
    >>> a = MeshAssumptions(dp_overlap=0.5, bucket_bytes=1e6, interference=0.05)
    >>> exposed_exchange(a, np.array([1.0]), np.array([1e7]), np.array([1.0])).tolist()  # half hidden
    [0.5]
    >>> exposed_exchange(a, np.array([1.0]), np.array([1e7]), np.array([9.0])).tolist()  # all but the last of ten buckets
    [0.1]
    """
    bucket = np.maximum(assumptions.bucket_bytes, last_bytes)
    last = exchange_s * np.clip(bucket / np.maximum(exchanged_bytes, 1.0), assumptions.interference, 1.0)
    return np.asarray(np.maximum(exchange_s - assumptions.dp_overlap * compute_s, last))

"""Memory-saving modes of a pipeline (what is recomputed, what is kept on the host), and the least memory that each of them needs.

A mode fits a pipeline only if it fits with dp wholly shared out, where every rank holds least. There, a rank needs

    state(ZeRO stage, optimizer state here or on the host) + kept(recomputation, activations here or on the host)

and both are asked of the cost model separately (`PipelineMemory.state_bytes`, `lasting_bytes`). No order of the ranks is looked at: memory
does not know it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray, StructOfArrays, combined, stacked
from costmodel.mesh.communication import Division
from costmodel.mesh.memory import PipelineMemory
from costmodel.mesh.passes import PIPELINE_FIELDS
from costmodel.mesh.plan import FULL, NO_RECOMPUTE, RECOMPUTE, MeshBatch, MeshPlan
from costmodel.tolerances import EQUAL
from strategies.mesh.space import MeshSpace

_FIELDS = tuple(name for name in PIPELINE_FIELDS if name not in ("order", "domain_gpus"))

MemoryMode = tuple[int, int, int]  # recomputation, offload_optimizer, offload_activations


def recomputing(batch: MeshBatch, kind: int, blocks: IntArray | int) -> MeshBatch:
    """The same plans with another kind of recomputation; ``blocks`` count for full recomputation only."""
    zero = np.zeros(len(batch), dtype=np.int64)
    return replace(batch, recompute=zero + kind, recompute_blocks=zero + (blocks if kind == FULL else 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryModes:
    """The modes that are allowed, quick ones first: they set the goal for the others.

    Attributes
    ----------
    space : MeshSpace
    each : tuple of MemoryMode
        V of them.
    stages : tuple of int
        Z stages of ZeRO.
    """

    space: MeshSpace
    each: tuple[MemoryMode, ...]
    stages: tuple[int, ...]

    @classmethod
    def of(cls, space: MeshSpace) -> MemoryModes:
        """Those of a space."""
        each = tuple(
            (kind, optimizer, activations)
            for activations in space.flags("offload_activations").tolist()
            for optimizer in space.flags("offload_optimizer").tolist()
            for kind in space.categories("recompute", RECOMPUTE).tolist()
        )
        return cls(space=space, each=each, stages=tuple(space.values("zero_stage", [0, 1, 2, 3]).tolist()))

    @property
    def kinds(self) -> tuple[int, ...]:
        """Kinds of recomputation."""
        return tuple(dict.fromkeys(kind for kind, _, _ in self.each))

    @property
    def plain(self) -> MemoryMode:
        """The quickest mode that updates on the device, allowed or not: the least recomputation, nothing on the host."""
        kinds = self.kinds
        if len(kinds) != 1 or (kinds[0] == FULL and not self.space.recomputes_all):
            return NO_RECOMPUTE, 0, 0
        return kinds[0], 0, 0

    def plainly(self, batch: MeshBatch) -> MeshBatch:
        """Plans with the recomputation of the plain mode."""
        kind = self.plain[0]
        return recomputing(batch, kind, self.space.most_blocks(batch.pp, batch.vpp) if kind == FULL else 0)

    @property
    def capacity_bytes(self) -> float:
        """What a rank has, and a little more."""
        return self.space.settings.capacity_bytes * (1 + EQUAL)

    def needs(self, batch: MeshBatch) -> ModeNeeds:
        """Least memory of every mode of some pipelines, and what it makes them do."""
        first, inverse = combined(*(getattr(batch, name) for name in _FIELDS), batch.dp)
        flags = tuple(sorted({activations for _, _, activations in self.each}))
        return _Memory(self, batch.take(first), flags).needs().take(inverse)

    def least_bytes(self, batch: MeshBatch) -> FloatArray:
        """Least memory of any mode of some pipelines, (n,)."""
        if not len(batch):
            return np.zeros(0)
        # What waits on the host takes no room on the device, so as much does as may.
        flags = {activations for _, _, activations in self.each}
        return _Memory(self, batch, (max(flags),)).least_bytes(max(optimizer for _, optimizer, _ in self.each))

    def smallest_plan(self, pipeline: MeshBatch, v: int, z: int) -> MeshPlan:
        """The plan of least memory of one pipeline that runs in one mode."""
        kind, optimizer, activations = self.each[v]
        most = self.space.most_blocks(pipeline.pp, pipeline.vpp)
        plan = _wholly_shared(recomputing(pipeline, kind, most), self.stages[z]).plan(0)
        placed = replace(plan, domain_gpus=max(plan.domain_gpus, 0))
        return replace(placed, offload_optimizer=bool(optimizer), offload_activations=bool(activations))


def _wholly_shared(batch: MeshBatch, stage: int) -> MeshBatch:
    """The division of dp with least memory under a stage of ZeRO, which needs more than one rank to share."""
    shared = (stage > 0) & (batch.dp * batch.cp > 1)
    return replace(
        batch,
        zero_stage=np.where(shared, stage, 0),
        dp_shard=np.where(shared, batch.dp, 1),
        dp_replicate=np.where(shared, 1, batch.dp),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeNeeds(StructOfArrays):
    """What the modes of n pipelines need at least; Q kinds of ranks.

    Attributes
    ----------
    memory_bytes : array (n, V, Z)
        Of the fullest rank.
    blocks : array (n, 2, Z)
        Fewest blocks per chunk that full recomputation must run again, with the optimizer state here and on the host,
        activations being kept.
    kept_bytes : array (n, kinds of recomputation, Q)
        Activations of the blocks of one micro-batch; of full recomputation as long as nothing is recomputed.
    input_bytes : array (n, Q)
        The same where all blocks are recomputed.
    """

    memory_bytes: FloatArray
    blocks: IntArray
    kept_bytes: FloatArray
    input_bytes: FloatArray


class _Memory:
    """Memory of some pipelines with dp wholly shared out, arrays (n, Q)."""

    def __init__(self, modes: MemoryModes, batch: MeshBatch, flags: tuple[int, ...]) -> None:
        self.modes, self.batch = modes, batch
        self.most = modes.space.most_blocks(batch.pp, batch.vpp)
        model = modes.space.model
        batches = [recomputing(batch, kind, self.most) for kind in modes.kinds]
        self.parts = dict(zip(modes.kinds, model.pipeline_memories(batches), strict=True))
        base = next(iter(self.parts.values()))
        self.state: list[tuple[FloatArray, FloatArray]] = []  # stage -> with and without optimizer state
        for stage in modes.stages:
            shared = Division.of(_wholly_shared(batch, stage))
            whole, optimizer_bytes = base.state_bytes(np.arange(len(batch)), shared)
            self.state.append((whole, whole - optimizer_bytes))
        self.more = {(kind, flag): _kept(part, flag) for kind, part in self.parts.items() for flag in flags}

    def least_bytes(self, optimizer: int) -> FloatArray:
        """Of the fullest rank, run the best of the modes that are known here, (n,)."""
        least = np.full(len(self.batch), np.inf)
        for more in self.more.values():
            for state in self.state:
                np.minimum(least, _fullest(state[optimizer] + more), out=least)
        return least

    def needs(self) -> ModeNeeds:
        """Everything asked for."""
        needed = np.empty((len(self.batch), len(self.modes.each), len(self.state)), order="F")
        for v, (kind, optimizer, activations) in enumerate(self.modes.each):
            for z, state in enumerate(self.state):
                needed[:, v, z] = _fullest(state[optimizer] + self.more[kind, activations])
        alive = self.parts[self.modes.kinds[0]].alive
        return ModeNeeds(
            memory_bytes=needed,
            blocks=stacked([self._least_blocks(optimizer) for optimizer in (0, 1)]),
            kept_bytes=stacked([part.kept_bytes / alive for part in self.parts.values()]),
            input_bytes=next(iter(self.parts.values())).input_bytes / alive,
        )

    def _least_blocks(self, optimizer: int) -> IntArray:
        """(n, Z). Memory falls with every block that is recomputed, by as much as a rank's chunks hold of it at most."""
        shape = len(self.batch), len(self.state)
        if (FULL, 0) not in self.more:
            return np.zeros(shape, dtype=np.int64, order="F")
        part = self.parts[FULL]
        saved = (1.0 + part.assumptions.allocator_slack) * (part.kept_bytes - part.input_bytes)
        blocks = np.where(part.exists, part.blocks / np.maximum(saved, 1.0), 0.0)
        result = np.empty(shape, dtype=np.int64, order="F")
        for z, state in enumerate(self.state):
            over = np.where(part.exists, state[optimizer] + self.more[FULL, 0] + saved - self.modes.capacity_bytes, 0.0)
            result[:, z] = np.clip(np.ceil(np.max(over * blocks, axis=1) - EQUAL), 1, self.most)
        return result


def _kept(memory: PipelineMemory, on_host: int) -> FloatArray:
    """What lasts on the device whatever dp is, activations here or, as far as there is room, on the host; less than all for padding."""
    lasting, away = memory.lasting_bytes(on_host)
    if on_host and np.isfinite(memory.host_share_bytes).any():
        back = np.maximum(away - memory.host_share_bytes, 0.0)
        lasting = lasting + (1.0 + memory.assumptions.allocator_slack) * back
    return np.where(memory.exists, lasting, -np.inf)


def _fullest(rank_bytes: FloatArray) -> FloatArray:
    """The largest of every row, (n,); rank by rank, since there are few of them and many rows."""
    fullest = rank_bytes[:, 0].copy()
    for rank in range(1, rank_bytes.shape[1]):
        np.maximum(fullest, rank_bytes[:, rank], out=fullest)
    return fullest

"""How blocks of tensors change hands between ranks; plan_layouts.py has the layers that need it.

A copy of this file lies beside every plan.py; it needs torch alone (2.6 or later).

Moving from one layout to another is one all-to-all of exactly the pieces that change hands, then one all-gather over the ranks that
need the same block; the gradient takes the adjoint, a reduce-scatter and an all-to-all. DTensor's own ``redistribute`` goes through
one dimension of the mesh after the other and, on CPU, gathers where an all-to-all would do, so that it moves more.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

__all__ = [
    "Blocks",
    "Region",
    "Scatter",
    "as_dtensor",
    "bring",
    "cuts_of",
    "extents",
    "group_over",
    "members_of",
    "own_index",
    "regions_of",
    "share",
]

# Per tensor dimension, where a block starts and where it stops.
Region = tuple[tuple[int, int], ...]
# (dimension of the mesh, dimension of the tensor that it cuts), in the order of the cuts.
Cuts = tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=4096)
def regions_of(mesh_shape: tuple[int, ...], shape: tuple[int, ...], cuts: Cuts) -> tuple[Region, ...]:
    """Block of every rank, in the order of the mesh; cut as DTensor cuts, in chunks rounded up."""
    result = []
    for coordinate in itertools.product(*map(range, mesh_shape)):
        region = [(0, extent) for extent in shape]
        for mesh_dim, dim in cuts:
            start, stop = region[dim]
            size = -(-(stop - start) // mesh_shape[mesh_dim])
            first = min(start + coordinate[mesh_dim] * size, stop)
            region[dim] = (first, min(first + size, stop))
        result.append(tuple(region))
    return tuple(result)


def _common(one: Region, other: Region) -> Region | None:
    both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return both if all(start < stop for start, stop in both) else None


def _inside(outer: Region, inner: Region) -> tuple[slice, ...]:
    """Where a block lies in the local tensor that holds another."""
    return tuple(slice(c - a, d - a) for (a, _), (c, d) in zip(outer, inner, strict=True))


def extents(region: Region) -> tuple[int, ...]:
    """Shape of a block."""
    return tuple(stop - start for start, stop in region)


_GROUPS: dict[tuple[Any, ...], Any] = {}


def group_over(mesh: DeviceMesh, dims: tuple[int, ...]) -> Any:
    """Ranks that differ in these dimensions of the mesh only, in the order of the mesh; every rank must ask in the same order."""
    if len(dims) == 1:
        return mesh.get_group(dims[0])
    ranks = mesh.mesh.movedim(dims, tuple(range(mesh.ndim - len(dims), mesh.ndim)))
    lists = ranks.reshape(-1, math.prod(mesh.shape[d] for d in dims)).tolist()
    key = (mesh.device_type, tuple(map(tuple, lists)))
    if key not in _GROUPS:
        _GROUPS[key] = dist.new_subgroups_by_enumeration(lists)[0]
    return _GROUPS[key]


def members_of(mesh: DeviceMesh, dims: tuple[int, ...]) -> list[int]:
    """Positions in the mesh of this rank's group over these dimensions."""
    mine = place_in(mesh)
    ranges = [range(size) if d in dims else (mine[d],) for d, size in enumerate(mesh.shape)]
    return [index_of(tuple(mesh.shape), coordinate) for coordinate in itertools.product(*ranges)]


def place_in(mesh: DeviceMesh) -> tuple[int, ...]:
    found = mesh.get_coordinate()
    if found is None:
        raise ValueError(f"rank {dist.get_rank()} is not part of the mesh {mesh}")
    return tuple(found)


def index_of(mesh_shape: tuple[int, ...], coordinate: Sequence[int]) -> int:
    index = 0
    for size, at in zip(mesh_shape, coordinate, strict=True):
        index = index * size + at
    return index


def own_index(mesh: DeviceMesh) -> int:
    """Position of this rank in the mesh."""
    return index_of(tuple(mesh.shape), place_in(mesh))


class _Pieces:
    """Who sends which piece to whom, from one layout to another; the same for all ranks, seen from this one."""

    def __init__(self, mesh: DeviceMesh, shape: tuple[int, ...], source: Cuts, target: Cuts) -> None:
        mesh_shape, mine = tuple(mesh.shape), place_in(mesh)
        held, needed = regions_of(mesh_shape, shape, source), regions_of(mesh_shape, shape, target)
        coordinates = list(itertools.product(*map(range, mesh_shape)))
        # Of equal copies each rank takes the one that shares its coordinates.
        copied = [d for d in range(len(mesh_shape)) if d not in {m for m, _ in source}]
        me = index_of(mesh_shape, mine)
        self.held, self.needed = held[me], needed[me]
        self.changes = held != needed
        self.dims = tuple(d for d in range(len(mesh_shape)) if d not in copied)
        self.group = group_over(mesh, self.dims) if self.changes else None
        peers = [i for i, at in enumerate(coordinates) if all(at[d] == mine[d] for d in copied)]
        self.sent = [_common(held[me], needed[i]) for i in peers]
        self.received = [_common(held[i], needed[me]) for i in peers]


# The block that a rank has, and the piece of it for each rank of a group.
_Cut = tuple[Region, Sequence[Region | None]]


def _exchange(x: Tensor, source: _Cut, target: _Cut, group: Any) -> Tensor:
    """One all-to-all of unequal pieces."""
    (own, sent), (goal, received) = source, target
    pieces = [x[_inside(own, region)].reshape(-1) if region else x.new_empty(0) for region in sent]
    sizes = [math.prod(extents(region)) if region else 0 for region in received]
    arrived = x.new_empty(sum(sizes))
    dist.all_to_all_single(arrived, torch.cat(pieces), sizes, [piece.numel() for piece in pieces], group=group)
    result = x.new_zeros(extents(goal))
    for region, piece in zip(received, arrived.split(sizes), strict=True):
        if region:
            result[_inside(goal, region)] = piece.view(extents(region))
    return result


class _Move(torch.autograd.Function):
    """From one layout without copies to another; back the same way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pieces: _Pieces) -> Tensor:
        ctx.pieces = pieces
        return _exchange(x, (pieces.held, pieces.sent), (pieces.needed, pieces.received), pieces.group)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        p = ctx.pieces
        return _exchange(grads[0], (p.needed, p.received), (p.held, p.sent), p.group), None


class Blocks:
    """A block that the ranks of a group share: its pieces by rank, and the whole."""

    def __init__(self, mesh: DeviceMesh, dims: tuple[int, ...], whole: Region, pieces: Sequence[Region]) -> None:
        self.whole, self.group = whole, group_over(mesh, dims)
        members = members_of(mesh, dims)
        self.pieces = [pieces[i] for i in members]
        self.mine = pieces[own_index(mesh)]
        self.largest = max(math.prod(extents(piece)) for piece in self.pieces)


def _called(new: str, old: str) -> Any:
    """A collective of torch.distributed by its name since torch 2.13, or before."""
    return getattr(dist, new, None) or getattr(dist, old)


def _padded(x: Tensor, size: int) -> Tensor:
    x = x.reshape(-1)
    return x if x.numel() == size else torch.cat([x, x.new_zeros(size - x.numel())])


def _all_gather(x: Tensor, blocks: Blocks) -> Tensor:
    gathered = x.new_empty(len(blocks.pieces) * blocks.largest)
    _called("all_gather_single", "all_gather_into_tensor")(gathered, _padded(x, blocks.largest), group=blocks.group)
    result = x.new_empty(extents(blocks.whole))
    for piece, flat in zip(blocks.pieces, gathered.view(len(blocks.pieces), -1), strict=True):
        result[_inside(blocks.whole, piece)] = flat[: math.prod(extents(piece))].view(extents(piece))
    return result


def _reduce_scatter(x: Tensor, blocks: Blocks) -> Tensor:
    parts = [_padded(x[_inside(blocks.whole, piece)], blocks.largest) for piece in blocks.pieces]
    result = x.new_empty(blocks.largest)
    _called("reduce_scatter_single", "reduce_scatter_tensor")(result, torch.cat(parts), group=blocks.group)
    own = extents(blocks.mine)
    return result[: math.prod(own)].view(own)


class _Gather(torch.autograd.Function):
    """All-gather; its adjoint is a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Blocks) -> Tensor:
        ctx.blocks = blocks
        return _all_gather(x, blocks)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _reduce_scatter(grads[0], ctx.blocks), None


class Scatter(torch.autograd.Function):
    """Sum of partial results, each rank its piece; its adjoint is an all-gather."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, blocks: Blocks) -> Tensor:
        """Reduce-scatter."""
        ctx.blocks = blocks
        return _reduce_scatter(x, blocks)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """All-gather."""
        return _all_gather(grads[0], ctx.blocks), None


def cuts_of(placements: Sequence[Placement], ndim: int) -> Cuts:
    """What the dimensions of the mesh cut.

    Raises
    ------
    ValueError
        A sum that is not complete, or a placement of another library.
    """
    for placement in placements:
        if not isinstance(placement, Shard | Replicate):
            raise ValueError(f"an activation is {placement}; layers take Shard and Replicate")
    return tuple((m, p.dim % ndim) for m, p in enumerate(placements) if isinstance(p, Shard))


def bring(x: DTensor, need: Sequence[Placement]) -> Tensor:
    """The local block of an activation in the layout that a layer needs."""
    mesh, shape = x.device_mesh, tuple(x.shape)
    source, target = cuts_of(x.placements, x.ndim), cuts_of(need, x.ndim)
    # What every rank has gets a gradient from every rank: a sum to come.
    local = x.to_local(grad_placements=[Partial() if isinstance(p, Replicate) else p for p in x.placements])
    shared = {m for m, _ in target}
    gathered = tuple((m, dim) for m, dim in source if m not in shared)
    pieces = _Pieces(mesh, shape, source, target + gathered)
    if pieces.changes and not source:
        local = local[_inside(pieces.held, pieces.needed)]
    elif pieces.changes:
        local = _Move.apply(local, pieces)
    if gathered:
        mesh_shape = tuple(mesh.shape)
        whole = regions_of(mesh_shape, shape, target)[own_index(mesh)]
        parts = regions_of(mesh_shape, shape, target + gathered)
        local = _Gather.apply(local, Blocks(mesh, tuple(m for m, _ in gathered), whole, parts))
    return local


def as_dtensor(local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], shape: Sequence[int]) -> DTensor:
    """A DTensor of a known shape: blocks may be unequal."""
    stride = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride)


def share(batch: Tensor, mesh: DeviceMesh, layout: Sequence[Placement]) -> DTensor:
    """Cut a micro-batch that every rank has loaded; moves nothing.

    A loader that gives every rank its own share uses ``DTensor.from_local(share, mesh, layout)`` instead.
    """
    mesh_shape = tuple(mesh.shape)
    region = regions_of(mesh_shape, tuple(batch.shape), cuts_of(layout, batch.ndim))[own_index(mesh)]
    whole: Region = tuple((0, extent) for extent in batch.shape)
    return as_dtensor(batch[_inside(whole, region)].contiguous(), mesh, layout, batch.shape)

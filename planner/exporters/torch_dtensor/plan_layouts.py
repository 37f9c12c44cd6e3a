"""Layers split over a device mesh as a plan says: parameters and activations are DTensors.

A copy of this file lies beside every plan.py; it needs torch alone (2.6 or later). Between layers activations are DTensors, cut by the
batch (``Shard(0)``) or by channels. A layer brings its input into the layout that its split needs, computes on local tensors, and
hands its output on as a DTensor; what has no entry in the plan (activations, flatten, a sum) is dispatched by DTensor itself.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from plan_moves import (
    Blocks,
    Region,
    Scatter,
    as_dtensor,
    bring,
    cuts_of,
    extents,
    group_over,
    members_of,
    own_index,
    regions_of,
    share,
)
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.distributed.tensor.placement_types import Placement

__all__ = ["Matrix", "PerChannel", "Whole", "check_names", "cross_entropy", "no_exchange", "share"]


def _local(parameter: Any, summed: Sequence[int]) -> Tensor:
    """The local block of a parameter; its gradient is to be summed over dimensions of the mesh."""
    if not isinstance(parameter, DTensor):
        raise ValueError("a parameter of a layer in the plan is no DTensor: it was replaced after parallelize")
    return parameter.to_local(
        grad_placements=[Partial() if m in summed else p for m, p in enumerate(parameter.placements)]
    )


def _distribute(module: nn.Module, name: str, mesh: DeviceMesh, placements: Sequence[Placement], frozen: bool = False) -> None:  # fmt: skip
    old = getattr(module, name)
    if old is None:
        return
    new = nn.Parameter(
        distribute_tensor(old.detach(), mesh, placements), requires_grad=old.requires_grad and not frozen
    )
    module.register_parameter(name, new)
    if new.requires_grad:
        new.register_post_accumulate_grad_hook(_exchange_gradient)


# Whether the backward pass that runs is the last of the step.
_IS_LAST = [True]


def _exchange_gradient(parameter: Tensor) -> None:
    """All-reduce over the ranks with the same weights, as soon as the gradient is complete."""
    grad: Any = parameter.grad
    dims = tuple(m for m, p in enumerate(grad.placements) if p.is_partial()) if grad is not None else ()
    if not dims or not _IS_LAST[0]:
        return
    mesh = grad.device_mesh
    # Runs beside the rest of the backward pass; whoever reads the gradient first waits for it.
    total = collectives.all_reduce(grad.to_local(), "sum", group_over(mesh, dims))
    placements: Any = parameter.placements
    parameter.grad = as_dtensor(total, mesh, placements, parameter.shape)


@contextlib.contextmanager
def no_exchange() -> Iterator[None]:
    """Accumulate gradients without exchanging them: around every backward pass of a step but the last."""
    _IS_LAST[0] = False
    try:
        yield
    finally:
        _IS_LAST[0] = True


class Matrix(ParallelStyle):
    """A fully connected layer or a convolution: ``nn.Linear``, ``nn.Conv1d``, ``nn.Conv2d``, ``nn.Conv3d``.

    Parameters
    ----------
    input : sequence of Placement
        Layout that the input is brought into: ``Shard(0)`` where the mesh splits the batch, ``Replicate()`` where it splits the outputs,
        the shard of the channels where it splits the inputs.
    weight : sequence of Placement
        ``Replicate()``, ``Shard(0)`` and ``Shard(1)`` for the same three. Beside a split of the inputs the outputs are split in
        strides, so that the pieces of the summed output lie in the order of the mesh.
    output : sequence of Placement
    """

    def __init__(
        self,
        *,
        input: Sequence[Placement],  # noqa: A002
        weight: Sequence[Placement],
        output: Sequence[Placement],
    ) -> None:
        super().__init__()
        self.input, self.weight, self.output = tuple(input), tuple(weight), tuple(output)
        self.batch = tuple(m for m, p in enumerate(self.weight) if isinstance(p, Replicate))
        self.inputs = tuple(m for m, p in enumerate(self.weight) if isinstance(p, Shard) and p.dim == 1)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Distribute the parameters and change the forward pass."""
        if not isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            raise TypeError(f"Matrix takes nn.Linear and nn.Conv1d to 3d, not {type(module).__name__}; see MODULES")
        _distribute(module, "weight", device_mesh, self.weight)
        bias = [Replicate() if m in self.batch else Shard(0) for m in range(device_mesh.ndim)]
        _distribute(module, "bias", device_mesh, bias)
        module.forward = functools.partial(self._run, module, device_mesh)
        return module

    def _run(self, module: Any, mesh: DeviceMesh, x: DTensor) -> DTensor:
        local = bring(x, self.input)
        weight = _local(module.weight, self.batch)
        bias = None if module.bias is None else _local(module.bias, self.batch)
        y = _product(module, local, weight, None if self.inputs else bias, self._groups(module, mesh))
        channel = y.ndim - 1 if isinstance(module, nn.Linear) else 1
        shape = list(x.shape[:1]) + list(y.shape[1:])
        shape[channel] = module.weight.shape[0]
        if self.inputs:
            y = self._sum(y, mesh, shape, channel)
            if bias is not None:
                y = y + bias.view(-1, *[1] * (y.ndim - 1 - channel))
        return as_dtensor(y, mesh, self.output, shape)

    def _groups(self, module: Any, mesh: DeviceMesh) -> int:
        """Groups of a convolution that this rank holds."""
        split = [m for m, p in enumerate(self.input) if isinstance(p, Shard) and p.dim == 1 and m not in self.inputs]
        return int(getattr(module, "groups", 1)) // math.prod(mesh.shape[m] for m in split)

    def _sum(self, y: Tensor, mesh: DeviceMesh, shape: Sequence[int], channel: int) -> Tensor:
        """Add the partial sums; every rank keeps its piece of the outputs, which lie one after the other in ``y``."""
        mesh_shape = tuple(mesh.shape)
        regions = regions_of(mesh_shape, tuple(shape), cuts_of(self.output, y.ndim))
        pieces: list[Region] = [()] * len(regions)
        start = 0
        for i in members_of(mesh, self.inputs):
            size = extents(regions[i])[channel]
            pieces[i] = tuple((start, start + size) if d == channel else (0, n) for d, n in enumerate(y.shape))
            start += size
        whole: Region = tuple((0, extent) for extent in y.shape)
        return Scatter.apply(y, Blocks(mesh, self.inputs, whole, pieces))


def _product(module: Any, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    if isinstance(module, nn.Linear):
        return nn.functional.linear(x, weight, bias)
    if module.padding_mode != "zeros":
        padding = module._reversed_padding_repeated_twice
        x, pad = nn.functional.pad(x, padding, mode=module.padding_mode), 0
    else:
        pad = module.padding
    run = {3: nn.functional.conv1d, 4: nn.functional.conv2d, 5: nn.functional.conv3d}[x.ndim]
    return run(x, weight, bias, module.stride, pad, module.dilation, groups)


@contextlib.contextmanager
def _on_blocks(module: nn.Module, summed: Sequence[int]) -> Iterator[None]:
    """Put local blocks in the place of the parameters while a module runs."""
    kept = [(owner, dict(owner._parameters)) for owner in module.modules()]
    try:
        for owner, parameters in kept:
            for name, parameter in parameters.items():
                owner._parameters[name] = None if parameter is None else _local(parameter, summed)
        yield
    finally:
        for owner, parameters in kept:
            owner._parameters.update(parameters)


class PerChannel(ParallelStyle):
    """A layer that treats channels apart: pooling, dropout, activation, batch normalisation (of the local batch, as in DDP).

    Parameters
    ----------
    layout : sequence of Placement
        Of input and output.
    """

    def __init__(self, *, layout: Sequence[Placement]) -> None:
        super().__init__()
        self.layout = tuple(layout)
        self.batch = tuple(m for m, p in enumerate(self.layout) if isinstance(p, Shard) and p.dim == 0)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Cut parameters and buffers by channel and change the forward pass."""
        cut = [Replicate() if m in self.batch else Shard(0) for m in range(device_mesh.ndim)]
        for name, _ in list(module.named_parameters(recurse=False)):
            _distribute(module, name, device_mesh, cut)
        for name, buffer in list(module.named_buffers(recurse=False)):
            if buffer.ndim == 1:
                module.register_buffer(name, share(buffer, device_mesh, cut).to_local().clone())
        module.forward = functools.partial(self._run, module, device_mesh)
        return module

    def _run(self, module: nn.Module, mesh: DeviceMesh, x: DTensor) -> DTensor:
        local = bring(x, self.layout)
        if isinstance(module, nn.modules.dropout._DropoutNd):  # DTensor draws other numbers on every rank
            return type(module).forward(module, as_dtensor(local, mesh, self.layout, x.shape))
        with _on_blocks(module, self.batch):
            y = type(module).forward(module, local)
        shape = [*x.shape[:2], *y.shape[2:]]
        if any(isinstance(p, Shard) and p.dim % x.ndim > 1 for p in self.layout):
            shape = list(x.shape)
        return as_dtensor(y, mesh, self.layout, shape)


class Whole(ParallelStyle):
    """Any module on a share of the batch: data parallelism. Its weights are whole on every rank."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        """Copy the parameters to every rank and change the forward pass."""
        everywhere = [Replicate()] * device_mesh.ndim
        for owner in module.modules():
            for name, _ in list(owner.named_parameters(recurse=False)):
                _distribute(owner, name, device_mesh, everywhere)
        module.forward = functools.partial(self._run, module, device_mesh)
        return module

    def _run(self, module: nn.Module, mesh: DeviceMesh, *args: Any, **kwargs: Any) -> Any:
        by_batch, every = [Shard(0)] * mesh.ndim, range(mesh.ndim)
        samples = next((x.shape[0] for x in [*args, *kwargs.values()] if isinstance(x, DTensor)), None)
        if samples is None:
            raise TypeError(f"{type(module).__name__} got no DTensor; give the model share(batch, mesh, INPUT)")
        taken = [bring(x, by_batch) if isinstance(x, DTensor) else x for x in args]
        named = {key: bring(x, by_batch) if isinstance(x, DTensor) else x for key, x in kwargs.items()}
        with _on_blocks(module, every):
            y = type(module).forward(module, *taken, **named)
        back = [as_dtensor(t, mesh, by_batch, (samples, *t.shape[1:])) for t in (y if isinstance(y, tuple) else (y,))]
        return tuple(back) if isinstance(y, tuple) else back[0]


def check_names(module: nn.Module, names: Sequence[str]) -> None:
    """Every name must be a module, and every parameter must lie in one of them.

    Raises
    ------
    ValueError
        Lists what does not fit; MODULES in plan.py is the table to change.
    """
    known = dict(module.named_modules())
    problems = [f"'{name}' is no module" for name in names if name not in known]
    covered = tuple(f"{name}." if name else "" for name in names)
    problems += [f"'{name}' is in no layer" for name, _ in module.named_parameters() if not name.startswith(covered)]
    if problems:
        listed = "; ".join(problems[:10]) + (f"; and {len(problems) - 10} more" if problems[10:] else "")
        raise ValueError(
            f"MODULES in plan.py does not fit this model: {listed}. Modules: {', '.join(filter(None, known))}"
        )


class _CrossEntropy(torch.autograd.Function):
    """Softmax and cross-entropy over classes that a group shares: two all-reduces of one number per row."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, first: int, ranks: int, group: Any, scale: float) -> Tensor:
        largest = logits.amax(-1) if logits.shape[-1] else logits.new_full(logits.shape[:-1], -math.inf)
        if group is not None:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = logits - largest[..., None]
        total = shifted.exp().sum(-1)
        if group is not None:
            dist.all_reduce(total, group=group)
        own = (labels >= first) & (labels < first + logits.shape[-1])
        place = (labels - first).clamp(0, max(logits.shape[-1] - 1, 0))[..., None]
        chosen = (
            torch.where(own, shifted.gather(-1, place)[..., 0], 0.0) if logits.shape[-1] else torch.zeros_like(total)
        )
        ctx.save_for_backward(shifted.exp() / total[..., None], own, place)
        ctx.scale = scale
        # Every rank of the group knows the logarithm; each counts its part, so that the ranks' losses add up.
        return (total.log() / ranks - chosen).sum() * scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        share_of_one, own, place = ctx.saved_tensors
        if share_of_one.shape[-1]:
            share_of_one = share_of_one.scatter_add(-1, place, -own[..., None].to(share_of_one.dtype))
        return share_of_one * (ctx.scale * grads[0]), None, None, None, None, None


def cross_entropy(
    logits: DTensor, labels: Tensor, layout: Sequence[Placement], *, num_micro_batches: int = 1
) -> Tensor:
    """Part of this rank in the mean loss of a step; the parts of all ranks and micro-batches add up to it.

    Parameters
    ----------
    logits : DTensor
        (samples, classes) or (samples, positions, classes).
    labels : Tensor
        Of the whole micro-batch: (samples,) or (samples, positions).
    layout : sequence of Placement
        How the plan splits the softmax.
    """
    mesh, dim = logits.device_mesh, logits.ndim - 1
    cuts = cuts_of(layout, logits.ndim)
    local = bring(logits, layout)
    mesh_shape = tuple(mesh.shape)
    region = regions_of(mesh_shape, tuple(logits.shape), cuts)[own_index(mesh)]
    rows = labels[tuple(slice(*pair) for pair in region[:-1])]
    dims = tuple(m for m, d in cuts if d == dim)
    ranks = math.prod(mesh.shape[m] for m in dims)
    scale = 1.0 / (labels.numel() * num_micro_batches)
    group = group_over(mesh, dims) if dims else None
    return _CrossEntropy.apply(local, rows, region[-1][0], ranks, group, scale)

"""Views: which elements of a layer's output a tensor's dimensions run over.

A dimension is a product of atoms, and an atom runs over a part of one axis of the layer's output (channels first,
`costmodel.network.graph`) in equal steps. Splitting, merging and permuting dimensions rearranges atoms; no element moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from costmodel.network.layers import Shape

__all__ = ["BATCH", "REPEATED", "Atom", "Dims", "View", "canonical_dims", "merged", "renumbered", "split_dims"]

BATCH = -1  # the axis of samples
REPEATED = -2  # an axis along which the same elements are repeated


class Atom(NamedTuple):
    """``size`` elements of an axis, ``stride`` apart."""

    axis: int
    size: int
    stride: int


Dims = tuple[tuple[Atom, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A tensor as a view of a layer.

    Attributes
    ----------
    start : tuple of int
        Where it begins on each axis of the layer.
    flop : float
        Operations per element that are still to be done, element by element and with constants.
    norm : str
        What the operations still to be done amount to: "centered", "layer" or "rms".
    parts : tuple
        Starts of the equal pieces that it is a sum of, each times constants: rotary positions, until all pieces are together again.
    """

    layer: str
    dims: Dims
    start: tuple[int, ...]
    flop: float = 0.0
    norm: str = ""
    parts: tuple[tuple[int, ...], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor."""
        return tuple(math.prod(atom.size for atom in dim) for dim in self.dims)

    def with_dims(self, dims: Iterable[Iterable[Atom]]) -> View:
        """The same elements in other dimensions."""
        return replace(self, dims=tuple(merged(dim) for dim in dims))

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """Other extents; None where a dimension would cut through an atom unevenly.

        Examples
        --------
        >>> view = View(layer="qkv", dims=canonical_dims((24, 5), 2), start=(0, 0))
        >>> heads = view.reshaped((2, 5, 3, 4, 2))
        >>> heads.dims[2:]
        ((Atom(axis=0, size=3, stride=8),), (Atom(axis=0, size=4, stride=2),), (Atom(axis=0, size=2, stride=1),))
        >>> heads.reshaped((2, 5, 24)) == view, view.reshaped((2, 12, 10)) is None
        (True, True)
        """
        dims = split_dims([atom for dim in self.dims for atom in dim], shape)
        return None if dims is None else self.with_dims(dims)

    def permuted(self, order: Sequence[int]) -> View:
        """Dimensions in another order."""
        return replace(self, dims=tuple(self.dims[i] for i in order))

    def expanded(self, shape: Sequence[int]) -> View:
        """Dimensions of one element repeated."""
        dims = [()] * (len(shape) - len(self.dims)) + list(self.dims)
        own = [math.prod(atom.size for atom in dim) for dim in dims]
        return self.with_dims(
            dim if size == extent else (*dim, Atom(REPEATED, extent, 0))
            for dim, size, extent in zip(dims, own, shape, strict=True)
        )

    def sliced(self, dim: int, start: int, size: int, step: int = 1) -> View | None:
        """Part of a dimension; None where it is a product of atoms."""
        atoms = merged(self.dims[dim])
        if size == math.prod(atom.size for atom in atoms) and step == 1:
            return self
        if len(atoms) != 1 or atoms[0].axis < 0:
            return None
        atom = atoms[0]
        begin = list(self.start)
        begin[atom.axis] += start * atom.stride
        dims = list(self.dims)
        dims[dim] = (Atom(atom.axis, size, atom.stride * step),)
        return replace(self, dims=tuple(dims), start=tuple(begin))

    def selected(self, dim: int, index: int) -> View | None:
        """One element of a dimension, which goes away; None for samples."""
        begin = list(self.start)
        rest = index
        for atom in reversed(self.dims[dim]):
            rest, own = divmod(rest, atom.size)
            if atom.axis == BATCH and atom.size > 1:
                return None
            if atom.axis >= 0:
                begin[atom.axis] += own * atom.stride
        return replace(self, dims=(*self.dims[:dim], *self.dims[dim + 1 :]), start=tuple(begin))


def merged(dim: Iterable[Atom]) -> tuple[Atom, ...]:
    """Put neighbouring atoms together where they run on; leave out those of one element.

    >>> merged((Atom(0, 3, 8), Atom(0, 8, 1), Atom(1, 1, 1)))
    (Atom(axis=0, size=24, stride=1),)
    """
    result: list[Atom] = []
    for atom in dim:
        if atom.size == 1:
            continue
        last = result[-1] if result else None
        if last is not None and last.axis == atom.axis and (last.stride == atom.size * atom.stride or atom.axis < 0):
            result[-1] = Atom(atom.axis, last.size * atom.size, atom.stride)
        else:
            result.append(atom)
    return tuple(result)


def split_dims(atoms: Sequence[Atom], shape: Sequence[int]) -> list[tuple[Atom, ...]] | None:
    """Distribute a row of atoms over dimensions of given extents, cutting atoms where an extent ends inside."""
    queue = [atom for atom in atoms if atom.size != 1]
    queue.reverse()
    dims: list[tuple[Atom, ...]] = []
    for extent in shape:
        own: list[Atom] = []
        rest = extent
        while rest > 1:
            if not queue:
                return None
            atom = queue.pop()
            if rest % atom.size == 0:
                own.append(atom)
                rest //= atom.size
            elif atom.size % rest == 0:
                inner = atom.size // rest
                own.append(Atom(atom.axis, rest, atom.stride * inner))
                queue.append(Atom(atom.axis, inner, atom.stride))
                rest = 1
            else:
                return None
        dims.append(tuple(own))
    return None if queue else dims


def canonical_dims(shape: Shape, batch: int) -> Dims:
    """How frameworks lay out a layer's output: samples, then (features), (positions, features) or (channels, height, width).

    >>> canonical_dims((8, 5), 2)
    ((Atom(axis=-1, size=2, stride=1),), (Atom(axis=1, size=5, stride=1),), (Atom(axis=0, size=8, stride=1),))
    """
    order = (1, 0) if len(shape) == 2 else tuple(range(len(shape)))
    return (merged([Atom(BATCH, batch, 1)]), *(merged([Atom(axis, shape[axis], 1)]) for axis in order))


def renumbered(dims: Dims, axis: int, inner: int = 1, *, repeats: bool = True) -> Dims:
    """Dimensions whose elements are counted in their own order along an axis, ``inner`` apart; samples stay what they are.

    Parameters
    ----------
    dims : tuple
    axis, inner : int
    repeats : bool
        Elements that are repeated count each time; left out otherwise.

    Examples
    --------
    >>> renumbered((((Atom(BATCH, 2, 1), Atom(1, 3, 1))), (Atom(2, 4, 1),)), 0)[1]
    (Atom(axis=0, size=4, stride=1),)
    """
    ignored = (BATCH,) if repeats else (BATCH, REPEATED)
    step = inner * math.prod(atom.size for dim in dims for atom in dim if atom.axis not in ignored)
    new = []
    for dim in dims:
        atoms = []
        for atom in dim:
            if atom.axis not in ignored:
                step //= atom.size
                atoms.append(Atom(axis, atom.size, step))
            elif atom.axis == BATCH:
                atoms.append(atom)
        new.append(merged(atoms))
    return tuple(new)

"""Views, which say what elements of a layer's output a tensor's dimensions run over, and layers that are made from views.

A dimension is a product of atoms, and an atom runs over a part of one axis of the layer's output (channels first,
`costmodel.network.graph`) in equal steps. Splitting, merging and permuting dimensions rearranges atoms; no element moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from costmodel.network.layers import Shape
from planner.importers.drafts import Drafts

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


def has_samples(dims: Iterable[Iterable[Atom]]) -> bool:
    """Whether any of these dimensions runs over samples."""
    return any(atom.axis == BATCH and atom.size > 1 for dim in dims for atom in dim)


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


# -- what a tensor can be beside a view ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A tensor that no layer makes: a constant, a mask, positions, or numbers worked out of integer inputs."""

    shape: tuple[int, ...]
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A parameter, or numbers worked out of one parameter; ``table`` is its own shape, ``piece`` says which part is left of it."""

    shape: tuple[int, ...]
    key: str
    table: tuple[int, ...]
    is_trained: bool = True
    piece: str = ""

    def cut(self, shape: tuple[int, ...], dim: int, start: int) -> Weight:
        """A part of it, which another layer may have the rest of: projections that are kept in one parameter."""
        if math.prod(shape) == math.prod(self.shape):
            return replace(self, shape=shape)
        return replace(self, shape=shape, piece=f"{self.piece}[{dim}:{start}:{math.prod(shape)}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Scores of attention on their way to the values: queries times keys, then scaled, masked, normalised."""

    queries: View
    keys: View  # (..., positions, features), not transposed
    shape: tuple[int, ...]
    mask: Fixed | None = None
    flop: float = 0.0
    is_probability: bool = False
    dropout: float = 0.0
    buckets: int = 0
    learned: int = 0  # other parameters that they are scaled by

    @property
    def heads(self) -> int:
        """Products per sample, or per window of one."""
        return math.prod(self.shape[1:-2])

    @property
    def key(self) -> tuple[object, ...]:
        """The same for the same scores, however their dimensions are split."""
        return tuple((view.layer, view.start) for view in (self.queries, self.keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class States:
    """Last states of recurrent cells, one per layer and direction along the first dimension."""

    views: tuple[View, ...]  # (1, samples, units), or with the first two exchanged

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor."""
        return (len(self.views), *self.views[0].shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Complex:
    """Pairs of features as complex numbers, on their way to being turned (rotary positions)."""

    view: View  # with a last dimension of 2

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor."""
        return self.view.shape[:-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistic:
    """Mean over the last dimension of a view, or of its square, on its way to a normalisation."""

    view: View
    is_square: bool
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A gate that is half of an activation written out: x times this is the activation ``layer`` of x."""

    view: View
    source: View

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tensor."""
        return self.view.shape


Value = View | Fixed | Weight | Product | Complex | States | Statistic | Pair


class Network:
    """Adds layers, and gives views of them."""

    def __init__(self, batch: int) -> None:
        self.drafts = Drafts()
        self.batch = batch
        self.name = ""  # of the operation that is being read

    def add(
        self, kind: str, values: Mapping[str, Any], inputs: Sequence[str], *, name: str = "", frozen: bool = False
    ) -> str:
        """Add a layer."""
        return self.drafts.add(name or self.name or kind, kind, values, inputs, frozen=frozen)

    def shape(self, view: View) -> Shape:
        """Output of the layer behind a view."""
        return self.drafts.shape(view.layer)

    def whole(self, layer: str) -> View:
        """All of a layer's output, as frameworks lay it out."""
        shape = self.drafts.shape(layer)
        return View(layer=layer, dims=canonical_dims(shape, self.batch), start=(0,) * len(shape))

    def forced(self, view: View) -> View:
        """The same with the operations done that are still to be done."""
        plain = replace(view, flop=0.0, norm="", parts=())
        if view.parts:  # a sum of pieces of a layer
            pieces = [self.covering(replace(plain, start=start)) for start in view.parts]
            name = f"{self.name}/sum"
            layer = self.add("pointwise", {"flop": view.flop}, [piece.layer for piece in pieces], name=name)
            return replace(pieces[0], layer=layer)
        if not view.flop:
            return view
        return self.elementwise("pointwise", {"flop": view.flop}, plain, name=f"{self.name}/pointwise")

    def elementwise(
        self, kind: str, values: Mapping[str, Any], view: View, *, name: str = "", frozen: bool = False
    ) -> View:
        """Add a layer that treats every element alike, in whatever order they are."""
        source = self.covering(view)
        return replace(source, layer=self.add(kind, values, [source.layer], name=name, frozen=frozen))

    # -- forms --------------------------------------------------------------------------------------------------------------

    def covering(self, view: View) -> View:
        """A view that runs over its whole layer, in any order: for what works element by element."""
        view = self.forced(view)
        shape = self.shape(view)
        counts = _count_axes([atom for dim in view.dims for atom in dim])
        if counts.keys() <= set(range(BATCH, len(shape))):
            covered = tuple(counts.get(axis, 1) for axis in range(len(shape)))
            if covered == shape and not any(view.start):
                return view
            if covered[1:] == shape[1:] and not any(view.start[1:]) and _is_contiguous(view):
                return self.cut(view, covered[0])
        return self.rearranged(view)

    def rearranged(self, view: View, form: Shape | None = None) -> View:
        """A copy in the order of the tensor's dimensions."""
        view = self.forced(view)
        shape, dims = natural_form(view.dims)
        if form is not None:
            shape, dims = form, ()
        layer = self.add("rearrange", {"shape": shape}, [view.layer], name=f"{self.name}/rearrange")
        return View(layer=layer, dims=dims or canonical_dims(shape, self.batch), start=(0,) * len(shape))

    def rows(self, view: View) -> View:
        """A view with the features last, all of them: (features,) or (features, positions), for what works on every position."""
        view = self.forced(view)
        shape, last = self.shape(view), merged(view.dims[-1])
        rest = [atom for dim in view.dims[:-1] for atom in dim if atom.axis != BATCH]
        if not last:
            last = (Atom(0, 1, 1),)
        is_whole = len(last) == 1 and last[0].axis == 0 and last[0].stride == 1
        positions = _count_axes(rest)
        if is_whole and len(shape) <= 2:
            all_positions = len(shape) == 2 and positions == {1: shape[1]} and not view.start[1]
            if all_positions or (len(shape) == 1 and not rest):
                return view if last[0].size == shape[0] else self.cut(view, last[0].size)
            if len(shape) == 2 and not rest and shape[1] == 1:
                return self.rearranged(view)
            if len(shape) == 2 and not rest and shape[0] == last[0].size:
                values = {"index": view.start[1]}
                layer = self.add("select_position", values, [view.layer], name=f"{self.name}/select")
                return View(layer=layer, dims=view.dims, start=(0,))
        covers_image = (
            len(shape) == 3 and set(positions) <= {1, 2} and math.prod(positions.values()) == math.prod(shape[1:])
        )
        if is_whole and covers_image and last[0].size == shape[0] and not any(view.start):
            layer = self.add("to_sequence", {}, [view.layer], name=f"{self.name}/to_sequence")
            return View(layer=layer, dims=_renumbered(view.dims, shape[0]), start=(0, 0))
        if not rest and _flat(view, shape):
            layer = self.add("flatten", {}, [view.layer], name=f"{self.name}/flatten")
            return View(layer=layer, dims=(*view.dims[:-1], (Atom(0, math.prod(shape), 1),)), start=(0,))
        size = math.prod(atom.size for atom in last)
        total = math.prod(atom.size for atom in rest)
        layer_shape = (size, total) if rest else (size,)
        layer = self.add("rearrange", {"shape": layer_shape}, [view.layer], name=f"{self.name}/rearrange")
        return View(layer=layer, dims=_renumbered(view.dims, size), start=(0,) * len(layer_shape))

    def flat_input(self, view: View) -> View:
        """As `rows`; but an image that is flattened stays one, which linear layers flatten themselves."""
        view = self.forced(view)
        shape = self.shape(view)
        rest = [atom for dim in view.dims[:-1] for atom in dim if atom.axis != BATCH]
        return view if not rest and len(shape) == 3 and _flat(view, shape) else self.rows(view)

    def image(self, view: View) -> View:
        """(channels, height, width)."""
        view = self.forced(view)
        shape = self.shape(view)
        wanted = canonical_dims(shape, self.batch)[1:]
        if len(shape) == 3 and _without_batch(view.dims)[-3:] == wanted and not any(view.start):
            return view
        sizes = view.shape
        if len(sizes) != 4:
            return self.rearranged(view)
        return self.rearranged(view, sizes[1:])

    def matrices(self, view: View, rows: int, columns: int) -> View:
        """(products, rows, columns) for a product of layers."""
        view = self.forced(view)
        shape = self.shape(view)
        own = tuple(dim for dim in _without_batch(view.dims) if dim)
        total = math.prod(atom.size for dim in own for atom in dim)
        wanted = (total // (rows * columns), rows, columns)
        plain = tuple(dim for dim in canonical_dims(shape, self.batch)[1:] if dim)
        if shape == wanted and own == plain and not any(view.start):
            return view
        return self.rearranged(view, wanted)

    def cut(self, view: View, features: int) -> View:
        """A view of some neighbouring features, of a layer that has these alone."""
        values = {"features": features, "start": view.start[0]}
        layer = self.add("slice_features", values, [view.layer], name=f"{self.name}/slice")
        return replace(view, layer=layer, start=(0,) * len(view.start))


def _without_batch(dims: Dims) -> Dims:
    return tuple(tuple(atom for atom in dim if atom.axis != BATCH) for dim in dims)


def _count_axes(atoms: Sequence[Atom]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for atom in atoms:
        counts[atom.axis] = counts.get(atom.axis, 1) * atom.size
    return counts


def _is_contiguous(view: View) -> bool:
    """Whether a view runs over neighbouring features, each once."""
    step = 1
    for atom in sorted((atom for dim in view.dims for atom in dim if atom.axis == 0), key=lambda atom: atom.stride):
        if atom.stride != step:
            return False
        step *= atom.size
    return True


def _flat(view: View, shape: Shape) -> bool:
    """Whether the last dimension is the whole output in its own order."""
    wanted = merged(Atom(axis, shape[axis], 1) for axis in ((1, 0) if len(shape) == 2 else range(len(shape))))
    return merged(view.dims[-1]) == wanted and not any(view.start)


def natural_form(dims: Dims) -> tuple[Shape, Dims]:
    """Shape of a copy in the order of the dimensions, and the dimensions as a view of it.

    Examples
    --------
    >>> dims = ((Atom(BATCH, 2, 1),), (Atom(0, 4, 8),), (Atom(1, 5, 1),), (Atom(0, 8, 1),))  # heads before positions
    >>> natural_form(dims)[0]
    (4, 5, 8)
    """
    sizes = [math.prod(atom.size for atom in dim if atom.axis != BATCH) for dim in dims]
    used = [i for i, size in enumerate(sizes) if size > 1]
    if not used:
        return (1,), tuple(tuple(atom for atom in dim if atom.axis == BATCH) for dim in dims)
    extents = [sizes[i] for i in used]
    axes = {1: [0], 2: [1, 0], 3: [0, 1, 2]}.get(len(used), [0] * (len(used) - 2) + [1, 2])
    shape = [1] * (max(axes) + 1)
    for axis, extent in zip(axes, extents, strict=True):
        shape[axis] *= extent
    result: list[tuple[Atom, ...]] = [()] * len(dims)
    strides = [1] * len(shape)
    for i, axis in reversed(list(zip(used, axes, strict=True))):
        result[i] = (Atom(axis, sizes[i], strides[axis]),)
        strides[axis] *= sizes[i]
    new = []
    for dim, own in zip(dims, result, strict=True):
        atoms = list(own)
        for position, atom in enumerate(dim):
            if atom.axis == BATCH:
                atoms.insert(0 if position == 0 else len(atoms), atom)
        new.append(tuple(atoms))
    return tuple(shape), tuple(new)


def _renumbered(dims: Dims, features: int) -> Dims:
    """Dimensions whose positions are counted in their own order, of a new layer (features, positions)."""
    batch = tuple(atom for atom in dims[-1] if atom.axis == BATCH)
    return (*renumbered(dims[:-1], 1), merged((*batch, Atom(0, features, 1))))


# -- scores of attention as layers of their own ------------------------------------------------------------------------------


def explicit_scores(network: Network, product: Product) -> View:
    """The scores as layers of their own: a batched product, what follows it, a softmax."""
    name = network.name
    rows, columns = product.shape[-2:]
    inner = product.queries.shape[-1]
    left = network.matrices(product.queries, rows, inner)
    right = network.matrices(product.keys, columns, inner)
    layer = network.add("matmul", {"transposed": True}, [left.layer, right.layer], name=f"{name}/scores")
    if product.flop:
        scale = {"flop": product.flop, "weights": product.buckets * product.heads + product.learned}
        layer = network.add("pointwise", scale, [layer], name=f"{name}/scale")
    if product.is_probability:
        layer = network.add("softmax", {}, [layer], name=f"{name}/softmax")
        if product.dropout:
            layer = network.add("dropout", {"keep": round(1.0 - product.dropout, 6)}, [layer], name=f"{name}/dropout")
    return product_view(network, layer, product.queries, product.shape)


def product_view(network: Network, layer: str, like: View, shape: tuple[int, ...]) -> View:
    """A product of layers (g, m, n) in the dimensions of its first factor."""
    _, rows, columns = network.drafts.shape(layer)
    dims = renumbered(like.dims[:-2], 0)
    rest = tuple(atom for atom in like.dims[-2] if atom.axis == BATCH)
    assert len(shape) == len(dims) + 2, "a product has the dimensions of its first factor"
    return View(
        layer=layer,
        dims=(*dims, merged((*rest, Atom(1, rows, 1))), merged([Atom(2, columns, 1)])),
        start=(0, 0, 0),
    )

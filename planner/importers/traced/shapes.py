"""Operations on shapes: views where they can be, layers where not."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from planner.importers.traced.conversion import Conversion, kinds
from planner.importers.traced.program import Operation
from planner.importers.traced.views import (
    BATCH,
    REPEATED,
    Atom,
    Complex,
    Fixed,
    Product,
    States,
    Value,
    View,
    Weight,
    has_samples,
    merged,
)


@kinds("reshape")
def _reshape(self: Conversion, operation: Operation) -> Value:
    value, shape = self.value(operation, 0), operation.shapes[0]
    if isinstance(value, Complex) and (pairs := value.view.reshaped((*shape, 2))) is not None:
        return Complex(view=pairs)
    if isinstance(value, Product):
        found = _reshaped_product(value, shape)
        if found is not None:
            return found
    if isinstance(value, States) and len(value.views) == 1 and shape == value.shape[1:]:
        return value.views[0].reshaped(shape) or self.copied(value.views[0], shape)
    view = self.view(operation)
    return view.reshaped(shape) or self.network.rearranged(view).reshaped(shape) or self.copied(view, shape)


def _reshaped_product(product: Product, shape: tuple[int, ...]) -> Product | None:
    """Scores whose leading dimensions are split or merged."""
    if shape[-2:] != product.shape[-2:]:
        return None
    queries = product.queries.reshaped((*shape[:-2], *product.queries.shape[-2:]))
    keys = product.keys.reshaped((*shape[:-2], *product.keys.shape[-2:]))
    return None if queries is None or keys is None else replace(product, queries=queries, keys=keys, shape=shape)


@kinds("permute")
def _permute(self: Conversion, operation: Operation) -> Value:
    value, order = self.value(operation, 0), operation.attributes["order"]
    if isinstance(value, Weight):
        return replace(value, shape=tuple(value.shape[i] for i in order))
    if isinstance(value, Complex):
        return Complex(view=value.view.permuted([*order, len(order)]))
    return self.view(operation).permuted(order)


@kinds("as_complex")
def _as_complex(self: Conversion, operation: Operation) -> Value:
    return Complex(view=self.view(operation))


@kinds("as_real")
def _as_real(self: Conversion, operation: Operation) -> Value:
    value = self.value(operation, 0)
    return value.view if isinstance(value, Complex) else self.view(operation)


@kinds("expand")
def _expand(self: Conversion, operation: Operation) -> Value:
    view, shape = self.view(operation), operation.shapes[0]
    return view if view.shape == shape else view.expanded(shape)


@kinds("slice")
def _slice(self: Conversion, operation: Operation) -> Value:
    value, shape, attributes = self.value(operation, 0), operation.shapes[0], operation.attributes
    dim = attributes["dim"]
    if isinstance(value, Weight):
        return value.cut(shape, dim, attributes["start"])
    if isinstance(value, States) and dim == 0:
        return States(views=value.views[attributes["start"] : attributes["stop"] : attributes.get("step", 1)])
    view = self.view(operation)
    if view.shape == shape:
        return view
    self.mixes_samples |= has_samples([view.dims[dim]])
    return view.sliced(dim, attributes["start"], shape[dim], attributes.get("step", 1)) or self.copied(view, shape)


@kinds("select")
def _select(self: Conversion, operation: Operation) -> Value:
    value, shape = self.value(operation, 0), operation.shapes[0]
    return _selected(self, value, operation.attributes["dim"], operation.attributes["index"], shape)


def _selected(self: Conversion, value: Value | None, dim: int, index: int, shape: tuple[int, ...]) -> Value:
    if isinstance(value, Weight):
        return value.cut(shape, dim, index)
    if isinstance(value, States) and dim == 0:
        view = value.views[index % len(value.views)]
        return view.reshaped(shape) or self.copied(view, shape)
    assert value is not None, "an element of something"
    view = self.plain(value)
    self.mixes_samples |= has_samples([view.dims[dim]])
    return view.selected(dim, index % view.shape[dim]) or self.copied(view, shape)


@kinds("unbind")
def _unbind(self: Conversion, operation: Operation) -> list[Value]:
    value, dim = self.value(operation, 0), operation.attributes["dim"]
    return [_selected(self, value, dim, i, shape) for i, shape in enumerate(operation.shapes)]


@kinds("repeat")
def _repeat(self: Conversion, operation: Operation) -> Value:
    """A dimension repeated: every element by itself (``inner``), or all of it again and again."""
    attributes = operation.attributes
    view, dim, again = self.view(operation), attributes["dim"], (Atom(REPEATED, attributes["times"], 0),)
    own = (*view.dims[dim], *again) if attributes["inner"] else (*again, *view.dims[dim])
    return view.with_dims([*view.dims[:dim], own, *view.dims[dim + 1 :]])


@kinds("split")
def _split(self: Conversion, operation: Operation) -> list[Value]:
    value, dim = self.value(operation, 0), operation.attributes["dim"]
    begins = itertools.accumulate((shape[dim] for shape in operation.shapes), initial=0)
    pieces = list(zip(operation.shapes, begins, strict=False))
    if isinstance(value, Weight):
        return [value.cut(shape, dim, start) for shape, start in pieces]
    view = self.view(operation)
    return [view.sliced(dim, start, shape[dim]) or self.copied(view, shape) for shape, start in pieces]


@kinds("stack")
def _stack(self: Conversion, operation: Operation) -> Value:
    """A concatenation along a new dimension."""
    dim, shape, grown = operation.attributes["dim"], operation.shapes[0], list[Value]()
    for value in (self.values[name] for name in operation.inputs if name is not None):
        if isinstance(value, (Weight, Fixed)):
            grown.append(replace(value, shape=(*shape[:dim], 1, *shape[dim + 1 :])))
        else:
            view = self.plain(value)
            grown.append(view.with_dims([*view.dims[:dim], (), *view.dims[dim:]]))
    return _joined(self, grown, operation)


@kinds("cat")
def _cat(self: Conversion, operation: Operation) -> Value:
    return _joined(self, [self.values[name] for name in operation.inputs if name is not None], operation)


def _joined(self: Conversion, values: list[Value], operation: Operation) -> Value:
    dim, shape = operation.attributes["dim"], operation.shapes[0]
    if all(isinstance(value, (Weight, Fixed)) for value in values):
        weights = [value for value in values if isinstance(value, Weight)]
        return replace(weights[0], shape=shape) if weights else Fixed(shape=shape)
    if dim == 0 and all(isinstance(value, States) for value in values):
        return States(views=tuple(view for value in values if isinstance(value, States) for view in value.views))
    if (token := _class_token(self, values, dim)) is not None:
        return token
    for value in values:
        if isinstance(value, Weight):
            self.notes.append(
                f"{operation.path or operation.source}: a parameter beside a layer's output is not counted"
            )
    views = [self.plain(value) for value in values if not isinstance(value, (Weight, Fixed))]
    if len(views) == len(values):
        return _concatenated(self, views, operation)
    return self.copied(views[0], shape) if len(views) == 1 else _parts(self, views, dim, shape)


def _concatenated(self: Conversion, views: list[View], operation: Operation) -> View:
    dim, shape = operation.attributes["dim"], operation.shapes[0]
    self.mixes_samples |= has_samples([views[0].dims[dim]])
    whole = _together(views, dim) or _channels(self, views, dim)
    if whole is not None:
        return whole
    if len({view.layer for view in views}) == 1:  # pieces of one layer in another order: a shift, a merging of patches
        flop = max(view.flop for view in views)
        return replace(self.copied(replace(views[0], flop=0.0), shape), flop=flop)
    return _parts(self, views, dim, shape)


def _parts(self: Conversion, views: list[View], dim: int, shape: tuple[int, ...]) -> View:
    """Layers' outputs one after the other along a dimension that is not the features': copies, put side by side."""
    extents = [math.prod(atom.size for atom in view.dims[dim] if atom.axis != BATCH) for view in views]
    rest = math.prod(view.shape[i] for view in views[:1] for i in range(len(shape)) if i != dim)
    batch = math.prod(atom.size for each in views[0].dims for atom in each if atom.axis == BATCH)
    rest //= max(batch, 1)
    parts = [self.network.rearranged(view, (extent, rest)).layer for view, extent in zip(views, extents, strict=True)]
    layer = self.network.add("concat", {}, parts)
    own, step = [], rest
    for i, extent in enumerate(shape):
        samples = tuple(atom for atom in views[0].dims[i] if atom.axis == BATCH)
        left = extent // math.prod(atom.size for atom in samples)
        if i == dim:
            own.append((*samples, Atom(0, sum(extents), 1)))
            continue
        step //= max(left, 1)
        own.append((*samples, Atom(1, left, step)))
    view = View(layer=layer, dims=tuple(merged(each) for each in own), start=(0, 0))
    return view if view.shape == shape else self.copied(view, shape)


def _together(views: list[View], dim: int) -> View | None:
    """Pieces of one tensor put together again, in any order where something is still to be done to them (rotary positions)."""
    views = _pieces_apart(views)
    first = views[0]
    if any(view.layer != first.layer for view in views):
        return None
    done = sum(view.flop for view in views)
    atoms = [merged(view.dims[dim]) for view in views]
    along = _axis_and_stride(views, atoms)
    same = along is not None and all(
        not view.parts
        and view.dims[:dim] == first.dims[:dim]
        and view.dims[dim + 1 :] == first.dims[dim + 1 :]
        and len(atom) == len(atoms[0])
        and (not atom or (atom[0].axis, atom[0].stride) == along)
        for view, atom in zip(views, atoms, strict=True)
    )
    if not same or along is None:
        return None
    axis, stride = along
    others = [tuple(s for i, s in enumerate(view.start) if i != axis) for view in views]
    sizes = [atom[0].size if atom else 1 for atom in atoms]
    pieces = sorted(zip((view.start[axis] for view in views), sizes, strict=True))
    runs_on = all(start + size * stride == after for (start, size), (after, _) in itertools.pairwise(pieces))
    in_order = [view.start[axis] for view in views] == [start for start, _ in pieces]
    if len(set(others)) > 1 or not runs_on or not (in_order or done):
        return None
    start = list(first.start)
    start[axis] = pieces[0][0]
    dims = list(first.dims)
    dims[dim] = (Atom(axis, sum(sizes), stride),)
    return View(layer=first.layer, dims=tuple(dims), start=tuple(start), flop=done)


def _axis_and_stride(views: list[View], atoms: list[tuple[Atom, ...]]) -> tuple[int, int] | None:
    """Axis of the layer that pieces follow each other on, and the step on it; of single elements the step is that between them."""
    if len(atoms[0]) == 1 and atoms[0][0].axis >= 0:
        return atoms[0][0].axis, atoms[0][0].stride
    starts = sorted(view.start for view in views)
    if atoms[0] or len(set(starts)) < max(len(starts), 2):
        return None
    steps = {tuple(b - a for a, b in zip(one, other, strict=True)) for one, other in itertools.pairwise(starts)}
    moved = [(axis, step) for axis, step in enumerate(next(iter(steps))) if step]
    return moved[0] if len(steps) == 1 and len(moved) == 1 else None


def _pieces_apart(views: list[View]) -> list[View]:
    """Sums of the same pieces, as many as there are pieces, stand for the pieces."""
    parts = views[0].parts
    if len(parts) != len(views) or any(view.parts != parts or view.layer != views[0].layer for view in views):
        return views
    return [replace(view, start=start, parts=()) for view, start in zip(views, parts, strict=True)]


def _channels(self: Conversion, views: list[View], dim: int) -> View | None:
    """A concatenation along features or channels."""
    network = self.network
    whole = [network.covering(view) for view in views]
    shapes = [network.shape(view) for view in whole]
    axis_dims = {i for view in whole for i, atoms in enumerate(view.dims) for atom in atoms if atom.axis == 0}
    rest = {(shape[1:], view.dims[:dim] + view.dims[dim + 1 :]) for shape, view in zip(shapes, whole, strict=True)}
    if axis_dims != {dim} or len(rest) > 1 or any(len(view.dims[dim]) != 1 for view in whole):
        return None
    layer = network.add("concat", {}, [view.layer for view in whole])
    dims = list(whole[0].dims)
    dims[dim] = (Atom(0, sum(shape[0] for shape in shapes), 1),)
    return View(layer=layer, dims=tuple(dims), start=(0,) * len(shapes[0]))


def _class_token(self: Conversion, values: list[Value], dim: int) -> View | None:
    """A learned position before those of an image (vision transformers)."""
    if len(values) != 2 or dim != 1 or not isinstance(values[0], Weight) or not isinstance(values[1], View):
        return None
    token, view = values[0], values[1]
    shape = self.network.shape(view)
    if len(shape) != 3 or len(view.dims) != 3 or token.shape[1] != 1 or merged(view.dims[2]) != (Atom(0, shape[0], 1),):
        return None
    self.owned[token.key] = token.shape[-1]  # however often an exporter wrote it out
    layer = self.network.add("to_sequence", {"class_token": True}, [self.network.covering(view).layer])
    return self.network.whole(layer)


@kinds("write")
def _write(self: Conversion, operation: Operation) -> Value:
    """A tensor after a part of it was written in place: the tensor, and what was written."""
    whole, part, shape = self.value(operation, 0), self.value(operation, 1), operation.shapes[0]
    assert whole is not None
    assert part is not None
    if part.shape == shape:
        return part
    if isinstance(part, (Fixed, Weight)):
        if isinstance(whole, Fixed):
            return replace(part, shape=shape)
        return whole if isinstance(whole, Weight) else replace(self.plain(whole), flop=self.plain(whole).flop + 1.0)
    if isinstance(whole, Fixed):
        return self.copied(self.plain(part), shape)
    # What is written goes to its place, and the rest stays: a copy of either, and one kernel that has both.
    note = "parts of a layer's output that are written in place are read as copies of all of it"
    if note not in self.notes:
        self.notes.append(note)
    network = self.network
    first = network.covering(self.plain(whole))
    other = network.rearranged(self.plain(part), network.shape(first))
    return replace(first, layer=network.add("pointwise", {"flop": 0.0}, [first.layer, other.layer]))


@kinds("copy")
def _copy(self: Conversion, operation: Operation) -> Value:
    """Paddings, shifts, repetitions: a copy in another shape."""
    view = self.view(operation)
    return view if math.prod(view.shape) == 0 else self.copied(view, operation.shapes[0])

"""Sums and products element by element, and what they are part of: biases, positions, norms, gates, activations written out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from planner.importers.traced.conversion import Conversion, kinds
from planner.importers.traced.program import Operation
from planner.importers.traced.views import Complex, Fixed, Pair, Product, Statistic, Value, View, Weight, merged

# Operations before a tanh from which on it is taken to be the inside of GELU's approximation (a cube, two products and a sum).
_GELU_FLOP = 3.0


@kinds("unary", "activation")
def _unary(self: Conversion, operation: Operation) -> Value:
    value, function = self.value(operation, 0), operation.attributes.get("function", "")
    if isinstance(value, Statistic):
        return value
    if isinstance(value, Product) and not value.is_probability:
        return replace(value, flop=value.flop + 1.0)
    view = self.view(operation)
    if function == "erf" or (function == "tanh" and view.flop >= _GELU_FLOP):
        # The inside of a GELU that is written out: x times it is the activation.
        source, name = self.network.covering(replace(view, flop=0.0)), f"{self.network.name}/gelu"
        layer = self.network.add("activation", {"function": "gelu"}, [source.layer], name=name)
        return Pair(view=replace(source, layer=layer), source=source)
    if operation.kind == "unary" or function == "hard":
        flop = 4.0 if function == "hard" else float(operation.attributes.get("flop", 1.0))  # piecewise linear ones
        return replace(view, flop=view.flop + flop)
    return self.network.elementwise("activation", {"function": function}, view)


@kinds("binary")
def _binary(self: Conversion, operation: Operation) -> Value | list[Value]:
    values = [self.values[name] for name in operation.inputs if name is not None]
    made = [value for value in values if not isinstance(value, (Fixed, Weight))]
    if not made:  # of parameters: worked out once per step
        weights = [value for value in values if isinstance(value, Weight)]
        return replace(weights[0], shape=operation.shapes[0])
    if len(made) == 1:
        others = [value for value in values if isinstance(value, (Fixed, Weight))]
        return _with_constant(self, operation, made[0], others[0] if others else None)
    return _of_two(self, operation, made[0], made[1])


# -- with a constant or a parameter ------------------------------------------------------------------------------------------


def _with_constant(self: Conversion, operation: Operation, value: Value, other: Fixed | Weight | None) -> Value:
    op, shape = operation.attributes["op"], operation.shapes[0]
    if isinstance(value, (Statistic, Pair)) and (other is None or math.prod(other.shape) == 1):
        return value
    if isinstance(value, Product) and not value.is_probability:
        return on_scores(self, op, value, other)
    if isinstance(value, Complex) and op == "mul":  # four products and two sums of a pair
        return Complex(view=replace(value.view, flop=value.view.flop + 3.0))
    view = self.plain(value)
    if isinstance(other, Weight):
        return _with_weight(self, operation, view, other)
    if view.shape != shape:
        view = view.expanded(shape)
    draft = self.drafts.layers[view.layer]
    if draft.name in self.halves and (other is None or math.prod(other.shape) == 1) and not view.flop:
        return view  # the factor 1/2 of GELU
    return replace(view, flop=view.flop + 1.0)


def on_scores(self: Conversion, op: str, product: Product, other: Fixed | Weight | None) -> Value:
    """Scores scaled, masked, or with biases by distance."""
    mask, buckets, learned, heads = product.mask, product.buckets, product.learned, product.heads
    if isinstance(other, Weight):
        elements = math.prod(other.table)
        if op == "add" and heads and elements % heads == 0:
            # Layers may share a table of biases: the first has it.
            buckets = 0 if other.key in self.owned else elements // heads
        elif other.key not in self.owned:
            learned += elements
        self.own(other)
    elif op in ("add", "where") and other is not None and math.prod(other.shape) > 1:
        mask = other
    return replace(product, mask=mask, buckets=buckets, learned=learned, flop=product.flop + 1.0)


def _with_weight(self: Conversion, operation: Operation, view: View, weight: Weight) -> Value:
    op, elements = operation.attributes["op"], math.prod(weight.shape)
    if len(view.shape) < len(operation.shapes[0]):
        view = view.expanded(operation.shapes[0])
    if op == "mul" and len(view.shape) > 2 and weight.shape[-2:] == view.shape[-2:] and weight.shape[-2] > 1:
        # Factors that differ from position to position: tables of rotary positions, which files do not tell from parameters.
        note = f"factors per position and feature ('{weight.key}', ...) are taken to be constants, such as rotary positions"
        if not any(old.startswith("factors per position") for old in self.notes):
            self.notes.append(note)
        return replace(view, flop=view.flop + 1.0)
    self.own(weight)
    last = weight.shape[-1:] == view.shape[-1:] and elements == view.shape[-1]
    if op == "mul" and view.norm in ("rms", "layer") and last:
        source = self.network.rows(replace(view, flop=0.0, norm=""))
        values = {"bias": False} if view.norm == "layer" else {}
        kind = f"{view.norm}_norm"
        layer = self.network.add(kind, values, [source.layer], frozen=not weight.is_trained)
        return replace(source, layer=layer)
    draft = self.drafts.layers[view.layer]
    is_fresh = not view.flop and not any(draft.name in other.inputs for other in self.drafts.layers.values())
    if op == "add" and is_fresh and getattr(draft.params, "bias", True) is False:
        channels = draft.output_shape[0]
        along = merged(view.dims[-1]) if last else merged(view.dims[1]) if len(view.dims) == 4 else ()
        if elements == channels and [(atom.axis, atom.size) for atom in along] == [(0, channels)]:
            self.drafts.change(draft.name, bias=True)
            return view
    # Learned positions: a row of the table per position of the sequence.
    source = self.network.covering(view)
    shape, table = self.network.shape(source), math.prod(weight.table)
    kind, name = "pointwise", ""
    stated: dict[str, Any] = {"flop": 1.0, "weights": table}
    if op == "add" and len(shape) == 2 and elements == shape[0] * shape[1] <= table:
        kind, stated = "position_embedding", {"max_positions": table // shape[0]}
        name = self.network.name if ":" in weight.key else weight.key.removesuffix(".weight")
    return self.network.elementwise(kind, stated, source, name=name, frozen=not weight.is_trained)


# -- of two layers -----------------------------------------------------------------------------------------------------------


def _of_two(self: Conversion, operation: Operation, first: Value, second: Value) -> Value | list[Value]:  # noqa: PLR0911
    op = operation.attributes["op"]
    for one, other in ((first, second), (second, first)):
        if not isinstance(one, View):
            continue
        if op in ("mul", "div", "sub") and isinstance(other, Statistic) and _same(one, other.view):
            # X minus its mean; that or x divided by the root of its mean square.
            norm = "centered" if op == "sub" else "layer" if one.norm == "centered" else "rms"
            return replace(one, flop=one.flop + 1.0, norm=norm)
        if op == "mul" and isinstance(other, Pair) and _same(one, other.source):
            self.halves.add(other.view.layer)
            return other.view
        if op == "mul" and isinstance(other, View) and _is_sigmoid_of(self, other, one):
            self.drafts.change(other.layer, function="swish")
            return other
    left, right = self.plain(first), self.plain(second)
    flop = left.flop + right.flop + 1.0
    if flop > 1.0 and _same(left, right):  # still the same tensor: squares, rotary positions
        return replace(left, flop=flop, norm="")
    is_turn = left.layer == right.layer and left.dims == right.dims and left.start[1:] == right.start[1:]
    is_worked_on = min(left.flop, right.flop) > 0 and not left.parts and not right.parts
    if op in ("add", "sub") and is_turn and left.start != right.start and is_worked_on:
        # Two pieces of a layer times constants: halves or pairs of features that are turned into each other.
        return replace(left, flop=flop, norm="", parts=tuple(sorted((left.start, right.start))))
    if op == "mul" and left == right:
        return replace(left, flop=1.0)
    if op != "add" or operation.attributes.get("scaled"):
        return pointwise(self, operation)
    return _sum(self, operation, left, right)


def _same(one: View, other: View) -> bool:
    return one.layer == other.layer and one.dims == other.dims and one.start == other.start


def _is_sigmoid_of(self: Conversion, gate: View, view: View) -> bool:
    layers = self.drafts.layers
    draft = layers[gate.layer]
    return (
        draft.kind == "activation"
        and draft.params.function == "sigmoid"
        and draft.inputs == (view.layer,)
        and not view.flop
        and not gate.flop
        and view.dims == gate.dims
        and not any(gate.layer in other.inputs for other in layers.values())
    )


def _sum(self: Conversion, operation: Operation, left: View, right: View) -> Value | list[Value]:
    shape = operation.shapes[0]
    if left.shape != shape or right.shape != shape:
        return pointwise(self, operation)
    network = self.network
    first, second = network.covering(left), network.covering(right)
    if network.shape(first) != network.shape(second) or first.dims != second.dims:
        # The same elements in another order: the order of the first counts.
        if len(network.shape(first)) == 2 and len(network.shape(second)) != 2:
            second = network.rows(second)
        elif len(network.shape(second)) == 2 and len(network.shape(first)) != 2:
            first = network.rows(first)
    if network.shape(first) != network.shape(second):
        first, second = network.rearranged(first), network.rearranged(second)
    return replace(first, layer=network.add("add", {}, [first.layer, second.layer]))


# -- of several, or where a condition holds --------------------------------------------------------------------------------------


@kinds("where")
def _where(self: Conversion, operation: Operation) -> Value | list[Value]:
    """Condition, value where it holds, value elsewhere: a mask where only one of these is a layer's output."""
    made = [v for v in map(self.values.get, filter(None, operation.inputs)) if not isinstance(v, (Fixed, Weight))]
    if len(made) == 1 and isinstance(made[0], Product):
        condition = self.value(operation, 0)
        hides = self.value(operation, 2) is made[0]  # values are kept where the condition is false
        mask = condition if isinstance(condition, Fixed) else Fixed(shape=made[0].shape)
        if mask.value is not None:
            shown = np.asarray(mask.value).astype(bool)
            mask = replace(mask, value=~shown if hides else shown)
        return replace(made[0], mask=mask, flop=made[0].flop + 1.0)
    view = self.plain(made[0]) if len(made) == 1 and made[0] is not None else None
    if view is not None and view.shape == operation.shapes[0]:
        return replace(view, flop=view.flop + 1.0)
    return pointwise(self, operation)


@kinds("pointwise")
def pointwise(self: Conversion, operation: Operation) -> View:
    """A layer of its own for an operation on several layers' outputs."""
    network, shape = self.network, operation.shapes[0]
    values = [self.values[name] for name in operation.inputs if name is not None]
    views = [self.plain(value) for value in values if not isinstance(value, (Fixed, Weight))]
    views.sort(key=lambda view: view.shape != shape)
    first = network.covering(views[0])
    if first.shape != shape:
        first = network.rearranged(first.expanded(shape))
    layers, wanted = [first.layer], network.shape(first)
    for view in views[1:]:
        other = network.covering(view)
        own = network.shape(other)
        # What is repeated along trailing axes is read as it is.
        is_repeated = len(own) < len(wanted) and own == wanted[: len(own)]
        if not is_repeated and (other.dims != first.dims or own != wanted):
            other = network.rearranged(other, wanted)
        layers.append(other.layer)
    flop = float(operation.attributes.get("flop", 1.0))
    return replace(first, layer=network.add("pointwise", {"flop": flop}, layers))

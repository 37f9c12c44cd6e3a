"""Recurrent layers: LSTM, GRU and plain recurrences, one layer of a network file per layer, both directions in one."""

from __future__ import annotations

from typing import Any

from planner.importers.traced.conversion import KINDS, Conversion, kinds
from planner.importers.traced.network import Fixed, States, Value, Weight
from planner.importers.traced.program import Operation, ProgramFault
from planner.importers.traced.views import BATCH, Atom, View, merged

__all__ = ["KINDS"]


@kinds("recurrent")
def _recurrent(self: Conversion, operation: Operation) -> list[Value]:
    """A stack of layers.

    Inputs are the sequence, the initial states (``states`` of them) and the weights, layer by layer. Attributes: ``cell``, ``hidden``,
    ``layers``, ``directions``, ``time`` (the dimension of the positions), ``biases`` per gate, ``dropout`` between layers, and
    ``is_split``: the first output has a dimension for the directions (ONNX).
    """
    attributes = operation.attributes
    view = self.view(operation)
    time = attributes["time"]
    if len(view.dims) != 3:
        raise ProgramFault(
            f"{operation.source} '{operation.outputs[0]}': a sequence of {len(view.dims)} dimensions is not known"
        )
    if any(atom.axis == BATCH and atom.size > 1 for atom in view.dims[time]):
        self.mixes_samples = True
        raise ProgramFault(
            f"{operation.source} '{operation.outputs[0]}': it runs over what is taken for the samples, the first dimension of the inputs"
        )
    begin = 1 + attributes["states"]
    initial = [self.value(operation, index) for index in range(1, begin)]
    if any(value is not None and not isinstance(value, (Fixed, Weight)) for value in initial):
        self.notes.append(
            "recurrent layers that begin with the state of another layer are taken to begin by themselves"
        )
    for value in initial:
        if isinstance(value, Weight):
            self.notes.append("a learned initial state of a recurrent layer is not counted")
    weights = [self.weight(operation, index) for index in range(begin, len(operation.inputs))]
    layers, directions, hidden = attributes["layers"], attributes["directions"], attributes["hidden"]
    per_layer = len(weights) // layers
    source, states = self.network.rows(view), []
    samples = tuple(atom for atom in view.dims[1 - time] if atom.axis == BATCH)
    layer = source.layer
    for number in range(layers):
        own = [weight for weight in weights[number * per_layer : (number + 1) * per_layer] if weight is not None]
        layer = _layer(self, attributes, layer, own, number)
        for direction in range(directions):
            last = self.network.drafts.shape(layer)[1] - 1 if direction == 0 else 0
            dims = ((), merged(samples), merged([Atom(0, hidden, 1)]))
            states.append(View(layer=layer, dims=dims, start=(direction * hidden, last)))
        if attributes.get("dropout", 0.0) and number < layers - 1:
            keep = {"keep": round(1.0 - attributes["dropout"], 6)}
            layer = self.network.add("dropout", keep, [layer], name=f"{self.network.name}/dropout")
    output = _output(self, view, layer, attributes)
    return [output, *[States(views=tuple(states))] * (len(operation.outputs) - 1)]


def _layer(self: Conversion, attributes: Any, source: str, own: list[Weight], number: int) -> str:
    """One layer, both directions."""
    for weight in own:
        self.own_piece(weight)
    values = {
        "cell": attributes["cell"],
        "hidden": attributes["hidden"],
        "bidirectional": attributes["directions"] == 2,
        "biases": attributes["biases"],
    }
    name = self.network.name if attributes["layers"] == 1 else f"{self.network.name}/{number}"
    return self.network.add("lstm", values, [source], name=name, frozen=not any(weight.is_trained for weight in own))


def _output(self: Conversion, view: View, layer: str, attributes: Any) -> View:
    """(positions, samples, units), as the input; with a dimension for the directions behind the positions where it is split."""
    width, positions = self.network.drafts.shape(layer)
    time, directions = attributes["time"], attributes["directions"]
    samples = tuple(atom for atom in view.dims[1 - time] if atom.axis == BATCH)
    along, across = merged([Atom(1, positions, 1)]), merged(samples)
    if attributes.get("is_split"):
        units = width // directions
        each = merged([Atom(0, directions, units)])
        return View(layer=layer, dims=(along, each, across, merged([Atom(0, units, 1)])), start=(0, 0))
    outer = (along, across) if time == 0 else (across, along)
    return View(layer=layer, dims=(*outer, merged([Atom(0, width, 1)])), start=(0, 0))

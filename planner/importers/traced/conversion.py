"""From a program to layers: what the handlers of the vocabulary have in common.

A handler is a function of `shapes`, `windows`, `products` or `arithmetic`, decorated with the names of its operations.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.importers.drafts import DraftError, clean_name
from planner.importers.sources import registering
from planner.importers.traced.program import Operation, Program, ProgramFault, Tensor, needed_operations
from planner.importers.traced.views import (
    BATCH,
    Atom,
    Complex,
    Fixed,
    Network,
    Pair,
    Product,
    States,
    Statistic,
    Value,
    View,
    Weight,
    canonical_dims,
    explicit_scores,
    natural_form,
)

_Handler = Callable[["Conversion", Operation], Value | list[Value]]
KINDS: dict[str, _Handler] = {}
kinds = registering(KINDS, "operation")


class Conversion:
    """Reads a program; `drafts` are its layers then.

    Parameters
    ----------
    program : Program
    assume_free : frozenset of str
        Operators outside the vocabulary that cost nothing.
    """

    def __init__(self, program: Program, assume_free: frozenset[str] = frozenset()) -> None:
        self.program = program
        self.network = Network(program.batch)
        self.drafts = self.network.drafts
        self.values: dict[str, Value] = {}
        self.notes: list[str] = list(program.notes)
        self.assume_free = assume_free
        self.assumed: Counter[str] = Counter()
        self.integers: set[str] = set()
        self.owned: dict[str, int] = {}  # parameter -> elements
        self.matrices: set[str] = set()  # parameters that are matrices or tables of layers already
        self.lookups: set[str] = set()  # those that are tables of embeddings
        self.attended: dict[
            tuple[object, ...], str
        ] = {}  # keys of scores -> the layer of attention that they are part of
        self.scores: dict[tuple[object, ...], View] = {}  # those whose probabilities are a layer's output of their own
        self.halves: set[str] = set()  # activations that were found written out
        self.mixes_samples = False  # an operation works across what is taken for the samples

    def run(self) -> tuple[str, ...]:
        """Read every operation; the names of the layers that make the outputs.

        Raises
        ------
        ProgramFault
            With the operation at which it stopped.
        """
        for name, tensor in self.program.tensors.items():
            try:
                self.values[name] = self._leaf(tensor)
            except DraftError as error:
                raise ProgramFault(f"{tensor.role} '{tensor.name}': {error}") from None
        for operation in needed_operations(self.program.operations, self.program.outputs):
            self.network.name = operation.path or operation.kind
            try:
                self._read(operation)
            except DraftError as error:
                raise operation.fault(f"{error}") from None
        outputs = []
        for name in self.program.outputs:
            self.network.name = "output"
            value = self.values.get(name)
            if isinstance(value, Product) and (layer := self.probabilities_of(value)) is not None:
                outputs.append(layer)  # it hands out its probabilities
            elif value is not None and not isinstance(value, (Fixed, Weight)):
                outputs.append(self.plain(value).layer)
        return tuple(dict.fromkeys(outputs))

    # -- values -------------------------------------------------------------------------------------------------------------

    def _leaf(self, tensor: Tensor) -> Value:
        match tensor.role:
            case "constant":
                return Fixed(shape=tensor.shape, value=tensor.value)
            case "parameter":
                return Weight(shape=tensor.shape, key=tensor.key, table=tensor.shape, is_trained=tensor.is_trained)
            case _:
                return self._input(tensor)

    def _input(self, tensor: Tensor) -> Value:
        shape, axis = tensor.shape, self.program.batch_axis
        if axis and len(shape) > axis:
            shape = (shape[axis], *shape[:axis], *shape[axis + 1 :])
        if not shape or (tensor.is_integer and len(shape) != 2) or shape[0] != self.program.batch or len(shape) > 4:
            if not tensor.is_integer and len(shape) > 4:
                raise ProgramFault(f"input '{tensor.name}' has {len(shape)} dimensions; at most 4 are known")
            return Fixed(shape=tensor.shape)
        rest = shape[1:] or (1,)
        form = (1, rest[0]) if tensor.is_integer else (rest[1], rest[0]) if len(rest) == 2 else rest
        layer = self.network.add("input", {"shape": form}, [], name=clean_name(tensor.name))
        if tensor.is_integer:
            self.integers.add(layer)
            dims = canonical_dims(form, self.program.batch)[:2]
        else:
            dims = self.network.whole(layer).dims[: len(shape)]
        if axis and len(shape) > axis:
            dims = (*dims[1 : axis + 1], dims[0], *dims[axis + 1 :])
        return View(layer=layer, dims=dims, start=(0,) * len(form))

    def _read(self, operation: Operation) -> None:
        inputs = [self.values[name] for name in operation.inputs if name is not None]
        result: Value | list[Value]
        if operation.kind not in KINDS:
            result = self._unknown(operation, inputs)
        elif (
            operation.kind != "embedding"
            and all(isinstance(value, Fixed) or self.is_index(value) for value in inputs)
            and not (operation.kind in _KEEPS_INDEX and inputs and self.is_index(inputs[0]))
        ):
            result = [Fixed(shape=shape) for shape in operation.shapes]
        elif (operation.kind in _OF_WEIGHTS and isinstance(inputs[0], Weight)) or (
            operation.kind in _PRODUCTS and all(isinstance(value, (Fixed, Weight)) for value in inputs)
        ):
            result = self._of_weights(inputs, operation.shapes[0])
        else:
            result = KINDS[operation.kind](self, operation)
        results = result if isinstance(result, list) else [result]
        for name, value in zip(operation.outputs, results, strict=False):
            self.values[name] = value
        for name, shape in list(zip(operation.outputs, operation.shapes, strict=True))[len(results) :]:
            self.values[name] = Fixed(shape=shape)

    def _of_weights(self, values: list[Value], shape: tuple[int, ...]) -> Value:
        """Numbers that are worked out of parameters, once per step: all of them as one parameter."""
        weights = [value for value in values if isinstance(value, Weight)]
        if not weights:
            return Fixed(shape=shape)
        first = weights[0]
        if len(weights) == 1:
            return replace(first, shape=shape)
        note = "numbers that are worked out of parameters once per step"
        if not any(old.startswith(note) for old in self.notes):
            self.notes.append(
                f"{note} ('{first.key}', ...) take no time here: standardised weights, tables of positions"
            )
        together = sum(math.prod(weight.table) for weight in weights)
        return replace(first, shape=shape, table=(together,))

    def _unknown(self, operation: Operation, inputs: list[Value]) -> list[Value]:
        if all(isinstance(value, Fixed) or self.is_index(value) for value in inputs):
            return [Fixed(shape=shape) for shape in operation.shapes]
        if operation.source not in self.assume_free:
            raise ProgramFault(f"operator {operation.source} is not known")
        self.assumed[operation.source] += 1
        views = [self.plain(value) for value in inputs if not isinstance(value, (Fixed, Weight))]
        results: list[Value] = []
        for shape in operation.shapes:
            dims = tuple((Atom(BATCH, shape[0], 1),) if i == 0 else (Atom(i, e, 1),) for i, e in enumerate(shape))
            form, own = natural_form(dims)
            name = f"assumed_free/{operation.source}"
            layer = self.network.add("assumed_free", {"shape": form}, [view.layer for view in views], name=name)
            results.append(View(layer=layer, dims=own, start=(0,) * len(form)))
        return results

    def value(self, operation: Operation, index: int) -> Value | None:
        """An input of an operation; None where it is left out."""
        if index >= len(operation.inputs) or operation.inputs[index] is None:
            return None
        return self.values[operation.inputs[index]]  # type: ignore[index]

    def view(self, operation: Operation, index: int = 0) -> View:
        """An input that a layer makes."""
        value = self.value(operation, index)
        if value is None or isinstance(value, (Fixed, Weight)):
            what = "a constant" if isinstance(value, Fixed) else "left out"
            if isinstance(value, Weight):
                what = f"the parameter '{value.key}', such as queries that are learned, which no layer reads"
            raise operation.fault(f"input {index + 1} is {what}")
        return self.plain(value)

    def weight(self, operation: Operation, index: int) -> Weight | None:
        """An input that is a parameter."""
        value = self.value(operation, index)
        if value is None:
            return None
        if isinstance(value, Fixed) and index == 2 and value.value is not None and not np.any(value.value):
            return None  # exporters write a bias of zeros where there is none
        if isinstance(value, Fixed):  # a constant in a weight's place is a frozen weight
            return Weight(
                shape=value.shape, key=f"constant:{operation.inputs[index]}", table=value.shape, is_trained=False
            )
        if not isinstance(value, Weight):
            raise operation.fault("its weights come from another layer")
        return value

    def plain(self, value: Value) -> View:
        """A view of a layer, whatever the value was on its way to."""
        match value:
            case View():
                return value
            case Product():
                return self._scores(value)
            case States():
                return self._states(value)
            case Statistic():
                source = self.network.covering(replace(value.view, flop=0.0, norm=""))
                if value.is_square:
                    source = self.network.forced(replace(source, flop=1.0))
                return self.reduced(source, [len(value.shape) - 1], keep=True, shape=value.shape)
            case Pair():
                return value.view
            case Weight():
                why = "such as learned queries: no layer reads that"
                raise ProgramFault(f"the parameter '{value.key}' stands where a layer's output is needed, {why}")
            case Complex():
                raise ProgramFault("complex numbers stand where a layer's output is needed")
            case Fixed():
                raise ProgramFault("a constant stands where a layer's output is needed")

    def probabilities_of(self, product: Product) -> str | None:
        """The layer of attention that has these inside, which is then one that writes them to memory; None where there is none."""
        layer = self.attended.get(product.key) if product.is_probability else None
        if layer is not None:
            self.drafts.change(layer, fused=False)
        return layer

    def _scores(self, product: Product) -> View:
        """Scores as a layer's output: written out, or handed out by the attention that they are part of."""
        attention = self.probabilities_of(product)
        if attention is None and not product.is_probability:
            return explicit_scores(self.network, product)
        if attention is None:
            self.scores[product.key] = explicit_scores(self.network, product)
        elif product.key not in self.scores:
            self.scores[product.key] = self.copied(self.network.whole(attention), product.shape)
        return self.scores[product.key]

    def _states(self, states: States) -> View:
        layers = [self.network.rows(view).layer for view in states.views]
        layer = self.network.add("concat", {}, layers) if len(layers) > 1 else layers[0]
        first = states.views[0]
        size = first.shape[-1]
        return View(
            layer=layer, dims=((Atom(0, len(layers), size),), *first.dims[1:-1], (Atom(0, size, 1),)), start=(0,)
        )

    def reduced(self, view: View, dims: list[int], *, keep: bool, shape: tuple[int, ...]) -> View:
        """Sum, mean or maximum over some dimensions."""
        source = self.network.covering(view)
        left = [dim for i, dim in enumerate(source.dims) if i not in dims]
        form, own = natural_form(tuple(left))
        layer = self.network.add("reduce", {"shape": form}, [source.layer])
        result = list(own)
        if keep:
            for i in sorted(dims):
                result.insert(i, ())
        if len(result) != len(shape):
            raise ProgramFault("a reduction does not leave the dimensions that the file says")
        return View(layer=layer, dims=tuple(result), start=(0,) * len(form))

    def weight_name(self, key: str) -> str:
        """Name of the layer that owns a parameter."""
        path = self.network.name
        return path if self.program.has_scopes and "." in path else _weight_name(key, path)

    def is_index(self, value: Value) -> bool:
        """Whether a value is an input of whole numbers, as it came."""
        return isinstance(value, View) and value.layer in self.integers

    def own(self, weight: Weight) -> None:
        """Count a parameter, once."""
        self.owned.setdefault(weight.key, math.prod(weight.table))

    def own_vectors(self, *weights: Weight | None) -> None:
        """Count a scale or shift: ONNX files keep equal ones, such as the ones and zeros of new networks, once for all layers."""
        for weight in weights:
            if weight is not None:
                key = f"{weight.key} of {self.network.name}" if self.program.has_scopes else weight.key
                self.owned.setdefault(key, math.prod(weight.table))

    def own_piece(self, weight: Weight) -> str:
        """Count what is used of a parameter, once; several layers may use a piece each. Returns what identifies the piece."""
        key = f"{weight.key}{weight.piece}"
        self.owned.setdefault(key, math.prod(weight.shape) if weight.piece else math.prod(weight.table))
        return key

    def copied(self, view: View, shape: tuple[int, ...]) -> View:
        """A layer's output in a tensor of a given shape."""
        batch = self.program.batch
        # Samples stay where they are, as a dimension or the outer part of one.
        held = [i for i, dim in enumerate(view.dims) if any(atom.axis == BATCH for atom in dim)]
        candidates = [i for i in (*held, 0, self.program.batch_axis) if i < len(shape)]
        whole = [i for i in candidates if shape[i] == batch]
        where = next(iter([*whole, *(i for i in candidates if shape[i] % batch == 0)]), None)
        dims = tuple(
            (Atom(BATCH, batch, 1), Atom(i, extent // batch, 1)) if i == where else (Atom(i, extent, 1),)
            for i, extent in enumerate(shape)
        )
        form, own = natural_form(dims)
        source = self.network.forced(view).layer
        layer = self.network.add("rearrange", {"shape": form}, [source], name=f"{self.network.name}/copy")
        return View(layer=layer, dims=own, start=(0,) * len(form))


# Operations that make positions or biases by distance of parameters and constants alone.
_PRODUCTS = frozenset({"linear", "convolution", "matmul", "einsum", "where", "pointwise"})
# Operations that leave integer inputs what they are.
_KEEPS_INDEX = frozenset({"alias", "reshape", "slice"})
# Operations on a parameter whose result is a parameter of another shape.
_OF_WEIGHTS = frozenset(
    {
        "reshape",
        "expand",
        "repeat",
        "copy",
        "unary",
        "activation",
        "reduce",
        "softmax",
        "batch_norm",
        "layer_norm",
        "group_norm",
    }
)


# Names that exporters make up for what they worked out.
_MADE_UP = re.compile(r"(val|onnx|constant|node|_?tensor)_?\w*\d+")


def _weight_name(key: str, fallback: str) -> str:
    """Name of a layer by its parameter: ``blocks.0.fc.weight`` is of ``blocks.0.fc``."""
    if ":" in key or not key or _MADE_UP.fullmatch(key):
        return fallback
    head, _, last = key.rpartition(".")
    if not head:
        return last.removesuffix("_weight").removesuffix("weight") or fallback
    inner = last.removesuffix("weight").rstrip("_")
    return f"{head}.{inner}" if inner and inner not in ("gamma", "scale") else head

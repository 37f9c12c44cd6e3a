"""From a program to layers: the operations of the vocabulary, one method each, or a function of `shapes` or `tables`.

To add one, decorate it with the names of its operations.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import numpy as np

from planner.importers.drafts import DraftError, Drafts, clean_name
from planner.importers.traced.arithmetic import binary, unary
from planner.importers.traced.attention import add_attention, explicit_scores, is_causal, product_view
from planner.importers.traced.constants import folded
from planner.importers.traced.network import Fixed, Network, Pair, Product, Statistic, Value, Weight, natural_form
from planner.importers.traced.program import Operation, Program, ProgramFault, Tensor
from planner.importers.traced.views import BATCH, Atom, View, canonical_dims, merged

__all__ = ["KINDS", "Conversion"]

_Handler = Callable[["Conversion", Operation], Value | list[Value]]
_H = TypeVar("_H", bound=_Handler)
KINDS: dict[str, _Handler] = {}
# Elements of a constant that is worked out here.
_MAX_FOLDED = 1 << 24


def _kinds(*names: str) -> Callable[[_H], _H]:
    def add(handler: _H) -> _H:
        for name in names:
            assert name not in KINDS, f"operation {name!r} registered twice"
            KINDS[name] = handler
        return handler

    return add


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
        self.values: dict[str, Value] = {}
        self.notes: list[str] = list(program.notes)
        self.assume_free = assume_free
        self.assumed: Counter[str] = Counter()
        self.integers: set[str] = set()
        self.owned: dict[str, int] = {}  # parameter -> elements
        self.matrices: set[str] = set()  # parameters that are matrices or tables of layers already
        self.dependent: set[str] = set()  # fixed tensors worked out of inputs

    @property
    def drafts(self) -> Drafts:
        """The layers."""
        return self.network.drafts

    def run(self) -> tuple[str, ...]:
        """Read every operation; the names of the layers that make the outputs.

        Raises
        ------
        ProgramFault
            With the operation at which it stopped.
        """
        for name, tensor in self.program.tensors.items():
            self.values[name] = self._leaf(tensor)
        for operation in self.program.operations:
            self.network.name = _name_of(operation)
            try:
                self._read(operation)
            except DraftError as error:
                raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': {error}") from None
        outputs = []
        for name in self.program.outputs:
            self.network.name = "output"
            value = self.values.get(name)
            if value is not None and not isinstance(value, (Fixed, Weight)):
                outputs.append(self.plain(value).layer)
        return tuple(outputs)

    # -- values -------------------------------------------------------------------------------------------------------------

    def _leaf(self, tensor: Tensor) -> Value:
        if tensor.role == "constant":
            return Fixed(shape=tensor.shape, value=tensor.value)
        if tensor.role == "parameter":
            return Weight(shape=tensor.shape, key=tensor.key, table=tensor.shape, is_trained=tensor.is_trained)
        return self._input(tensor)

    def _input(self, tensor: Tensor) -> Value:
        shape = tensor.shape
        if not shape or (tensor.is_integer and len(shape) != 2) or shape[0] != self.program.batch or len(shape) > 4:
            if not tensor.is_integer and len(shape) > 4:
                raise ProgramFault(f"input '{tensor.name}' has {len(shape)} dimensions; at most 4 are known")
            return Fixed(shape=shape)
        rest = shape[1:] or (1,)
        form = (1, rest[0]) if tensor.is_integer else (rest[1], rest[0]) if len(rest) == 2 else rest
        layer = self.network.add("input", {"shape": form}, [], name=clean_name(tensor.name))
        if tensor.is_integer:
            self.integers.add(layer)
            dims = canonical_dims(form, self.program.batch)[:2]
            return View(layer=layer, dims=dims, start=(0, 0))
        whole = self.network.whole(layer)
        return replace(whole, dims=whole.dims[: len(shape)])

    def _read(self, operation: Operation) -> None:
        inputs = [self.values[name] for name in operation.inputs if name is not None]
        result: Value | list[Value]
        if operation.kind not in KINDS:
            result = self._unknown(operation, inputs)
        elif operation.kind == "fixed" or (
            operation.kind not in ("embedding", "input")
            and all(isinstance(value, Fixed) or self.is_index(value) for value in inputs)
            and not (operation.kind in _KEEPS_INDEX and inputs and self.is_index(inputs[0]))
        ):
            result = [self._folded(operation, shape) for shape in operation.shapes]
        else:
            result = KINDS[operation.kind](self, operation)
        results = result if isinstance(result, list) else [result]
        for name, value in zip(operation.outputs, results, strict=False):
            self.values[name] = value
        for name, shape in list(zip(operation.outputs, operation.shapes, strict=True))[len(results) :]:
            self.values[name] = Fixed(shape=shape)

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

    def _folded(self, operation: Operation, shape: tuple[int, ...]) -> Value:
        """A constant made of constants, with its numbers where these are few and known."""
        inputs = [self.values[name] for name in operation.inputs if name is not None]
        known = [value.value for value in inputs if isinstance(value, Fixed) and value.value is not None]
        value = None
        if "fill" in operation.attributes and math.prod(shape) <= _MAX_FOLDED:
            value = np.full(shape, operation.attributes["fill"])
        elif len(known) == len(inputs) and known and math.prod(shape) <= _MAX_FOLDED:
            value = folded(operation, [np.asarray(item) for item in known], shape)
        return Fixed(shape=shape, value=value)

    def value(self, operation: Operation, index: int) -> Value | None:
        """An input of an operation; None where it is left out."""
        if index >= len(operation.inputs) or operation.inputs[index] is None:
            return None
        return self.values[operation.inputs[index]]  # type: ignore[index]

    def view(self, operation: Operation, index: int = 0) -> View:
        """An input that a layer makes."""
        value = self.value(operation, index)
        if value is None or isinstance(value, (Fixed, Weight)):
            what = "a constant" if isinstance(value, Fixed) else "a parameter" if value is not None else "left out"
            raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': input {index + 1} is {what}")
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
            raise ProgramFault(f"{operation.source} '{operation.outputs[0]}': its weights come from another layer")
        return value

    def plain(self, value: Value) -> View:
        """A view of a layer, whatever the value was on its way to."""
        if isinstance(value, View):
            return value
        if isinstance(value, Product):
            return explicit_scores(self.network, value)
        if isinstance(value, Statistic):
            flop = 1.0 if value.is_square else 0.0
            source = self.network.covering(replace(value.view, flop=0.0, norm=""))
            return self.reduced(source, [len(value.shape) - 1], keep=True, shape=value.shape, extra=flop)
        if isinstance(value, Pair):
            return value.view
        raise ProgramFault("a parameter or constant stands where a layer's output is needed")

    def reduced(self, view: View, dims: list[int], *, keep: bool, shape: tuple[int, ...], extra: float = 0.0) -> View:
        """Sum, mean or maximum over some dimensions."""
        source = self.network.covering(view)
        if extra:
            source = self.network.forced(replace(source, flop=extra))
        left = [dim for i, dim in enumerate(source.dims) if i not in dims]
        form, own = natural_form(tuple(left))
        layer = self.network.add("reduce", {"shape": form}, [source.layer])
        result = list(own)
        if keep:
            for i in sorted(dims):
                result.insert(i, ())
        assert len(result) == len(shape), "a reduction leaves the dimensions that it says"
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

    # -- products -----------------------------------------------------------------------------------------------------------

    @_kinds("linear")
    def _linear(self, operation: Operation) -> Value:
        weight, bias = self.weight(operation, 1), self.weight(operation, 2)
        assert weight is not None
        return self.add_linear(
            self.view(operation), weight, bias, transposed=operation.attributes.get("transposed", True)
        )

    def add_linear(self, view: View, weight: Weight, bias: Weight | None, *, transposed: bool) -> View:
        """Features by a matrix, ``transposed`` where it is (outputs, inputs)."""
        outputs = weight.shape[0 if transposed else 1]
        source = self.network.flat_input(view)
        tied = weight.key in self.matrices
        self.matrices.add(weight.key)
        for one in (weight, bias):
            if one is not None:
                self.own(one)
        values = {"out_features": outputs, "bias": bias is not None, "tied": tied}
        name = self.weight_name(weight.key)
        frozen = not weight.is_trained and not (bias and bias.is_trained)
        layer = self.network.add("linear", values, [source.layer], name=name, frozen=frozen)
        dims = (*source.dims[:-1], tuple(a for a in source.dims[-1] if a.axis == BATCH) + merged([Atom(0, outputs, 1)]))
        return View(layer=layer, dims=dims, start=(0,) * len(self.drafts.shape(layer)))

    @_kinds("matmul")
    def _matmul(self, operation: Operation) -> Value:
        left, right = self.value(operation, 0), self.value(operation, 1)
        if isinstance(right, Weight) and len(right.shape) == 2 and left is not None:
            return self.add_linear(self.plain(left), right, None, transposed=False)
        if isinstance(left, Product) and left.is_probability and isinstance(right, View):
            return self._attended(left, right, operation.shapes[0])
        if left is None or right is None or isinstance(left, (Fixed, Weight)) or isinstance(right, (Fixed, Weight)):
            return self._with_constant(operation)
        first, second = self.plain(left), self.plain(right)
        if len(first.dims) != len(second.dims) or len(first.dims) < 3:
            raise ProgramFault(
                f"{operation.source} '{operation.outputs[0]}': {first.shape} by {second.shape} is not known"
            )
        order = [*range(len(second.dims) - 2), len(second.dims) - 1, len(second.dims) - 2]
        return Product(queries=first, keys=second.permuted(order), shape=operation.shapes[0])

    def _with_constant(self, operation: Operation) -> Value:
        """A product with a constant matrix: a layer with frozen weights."""
        left, right = self.value(operation, 0), self.value(operation, 1)
        constant, other = (left, right) if isinstance(left, (Fixed, Weight)) else (right, left)
        if (
            other is None
            or constant is None
            or isinstance(other, (Fixed, Weight))
            or len(constant.shape) != 2
            or other is right
        ):
            raise ProgramFault(
                f"{operation.source} '{operation.outputs[0]}': a product with a constant from the left is not known"
            )
        frozen = Weight(
            shape=constant.shape, key=f"constant:{operation.outputs[0]}", table=constant.shape, is_trained=False
        )
        return self.add_linear(self.plain(other), frozen, None, transposed=False)

    def _attended(self, product: Product, values: View, shape: tuple[int, ...]) -> View:
        """Probabilities times values."""
        positions = product.shape[-2], product.shape[-1]
        causal = is_causal(product.mask, *positions)
        if causal is None:
            self._note_mask()
        plain = replace(product, flop=0.0)
        queries, keys = (replace(view, flop=0.0) for view in (plain.queries, plain.keys))
        found = add_attention(
            self.network,
            replace(plain, queries=queries, keys=keys),
            replace(values, flop=0.0),
            causal=bool(causal),
            fused=self.program.is_fused,
        )
        if found is not None:
            return found
        scores = explicit_scores(self.network, product)
        rows, columns, inner = shape[-2], shape[-1], product.shape[-1]
        left = self.network.matrices(scores, rows, inner)
        right = self.network.matrices(values, inner, columns)
        layer = self.network.add("matmul", {}, [left.layer, right.layer])
        return product_view(self.network, layer, scores, shape)

    def _note_mask(self) -> None:
        note = "a mask of attention whose numbers are not in the program is taken to hide nothing"
        if note not in self.notes:
            self.notes.append(note)

    @_kinds("attention")
    def _attention(self, operation: Operation) -> Value:
        """One operator for all of it (scaled_dot_product_attention)."""
        queries, keys, values = (self.view(operation, i) for i in range(3))
        mask = self.value(operation, 3)
        given = mask if isinstance(mask, Fixed) else None
        attributes = operation.attributes
        shape = (*queries.shape[:-1], keys.shape[-2])
        dropout = float(attributes.get("dropout", 0.0))
        product = Product(queries=queries, keys=keys, shape=shape, mask=given, is_probability=True, dropout=dropout)
        causal = True if attributes.get("causal") else is_causal(given, shape[-2], shape[-1])
        if causal is None:
            self._note_mask()
        plain = replace(product, queries=replace(queries, flop=0.0), keys=replace(keys, flop=0.0))
        found = add_attention(self.network, plain, replace(values, flop=0.0), causal=bool(causal), fused=True)
        if found is not None:
            return found
        return self._attended(replace(product, flop=2.0), values, operation.shapes[0])

    @_kinds("softmax")
    def _softmax(self, operation: Operation) -> Value:
        value = self.value(operation, 0)
        dim = operation.attributes.get("dim", -1) % max(len(operation.shapes[0]), 1)
        if isinstance(value, Product) and dim == len(value.shape) - 1 and not value.is_probability:
            return replace(value, is_probability=True)
        source = self.network.covering(self.view(operation))
        return replace(source, layer=self.network.add("softmax", {}, [source.layer]))

    @_kinds("dropout")
    def _dropout(self, operation: Operation) -> Value:
        value, rate = self.value(operation, 0), float(operation.attributes.get("p", 0.0))
        if value is None or not 0.0 < rate < 1.0:
            return value if value is not None else Fixed(shape=operation.shapes[0])
        if isinstance(value, Product) and value.is_probability:
            return replace(value, dropout=rate)
        source = self.network.covering(self.view(operation))
        layer = self.network.add("dropout", {"keep": round(1.0 - rate, 6)}, [source.layer])
        return replace(source, layer=layer)

    # -- element by element -------------------------------------------------------------------------------------------------

    @_kinds("binary")
    def _binary(self, operation: Operation) -> Value:
        return binary(self, operation)

    @_kinds("unary", "activation")
    def _unary(self, operation: Operation) -> Value:
        return unary(self, operation)

    @_kinds("where")
    def _where(self, operation: Operation) -> Value:
        """Condition, value where it holds, value elsewhere: a mask where only one of these is a layer's output."""
        made = [v for v in map(self.values.get, filter(None, operation.inputs)) if not isinstance(v, (Fixed, Weight))]
        if len(made) == 1 and isinstance(made[0], Product):
            condition = self.value(operation, 0)
            hides = self.value(operation, 2) is made[0]  # values are kept where the condition is false
            mask = condition if isinstance(condition, Fixed) else Fixed(shape=made[0].shape)
            if mask.value is not None and hides:
                mask = replace(mask, value=~np.asarray(mask.value).astype(bool))
            elif mask.value is not None:
                mask = replace(mask, value=np.asarray(mask.value).astype(bool))
            return replace(made[0], mask=mask, flop=made[0].flop + 1.0)
        if len(made) == 1 and made[0] is not None:
            view = self.plain(made[0])
            return (
                replace(view, flop=view.flop + 1.0) if view.shape == operation.shapes[0] else self.pointwise(operation)
            )
        return self.pointwise(operation)

    def pointwise(self, operation: Operation, flop: float = 1.0) -> View:
        """A layer of its own for an operation on several layers' outputs."""
        views = [
            self.plain(value)
            for name in operation.inputs
            if name is not None and not isinstance(value := self.values[name], (Fixed, Weight))
        ]
        views.sort(key=lambda view: view.shape != operation.shapes[0])
        first = self.network.covering(views[0])
        if first.shape != operation.shapes[0]:
            first = self.network.rearranged(first.expanded(operation.shapes[0]))
        layers = [first.layer]
        for view in views[1:]:
            other = self.network.covering(view)
            if other.dims != first.dims or self.network.shape(other) != self.network.shape(first):
                other = self._repeated(other, first)
            layers.append(other.layer)
        return replace(first, layer=self.network.add("pointwise", {"flop": flop}, layers))

    def _repeated(self, other: View, first: View) -> View:
        """The second input of a pointwise layer: as it is where it is repeated along trailing axes, else a copy in the right shape."""
        shape, wanted = self.network.shape(other), self.network.shape(first)
        if len(shape) < len(wanted) and shape == wanted[: len(shape)]:
            return other
        return self.network.rearranged(other, wanted)

    def copied(self, views: list[View], shape: tuple[int, ...]) -> View:
        """Several layers' outputs in one tensor of a given shape."""
        batched = shape and shape[0] == self.program.batch
        dims = tuple((Atom(BATCH if batched and i == 0 else i, extent, 1),) for i, extent in enumerate(shape))
        form, own = natural_form(dims)
        sources = [self.network.forced(view).layer for view in views]
        layer = self.network.add("rearrange", {"shape": form}, sources, name=f"{self.network.name}/copy")
        return View(layer=layer, dims=own, start=(0,) * len(form))


# Operations that leave integer inputs what they are.
_KEEPS_INDEX = frozenset({"alias", "reshape", "slice"})


def _name_of(operation: Operation) -> str:
    return operation.path or operation.kind


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

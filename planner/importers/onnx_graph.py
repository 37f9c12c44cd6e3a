"""ONNX graphs in the vocabulary of `planner.importers.traced`."""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from collections import Counter, defaultdict
from typing import Any

from planner.importers.onnx_constants import MAX_FOLDED, Values
from planner.importers.onnx_operators import OPERATORS, Node
from planner.importers.traced.program import Operation, Program, ProgramFault, Tensor

__all__ = ["program_of"]

# What torch's exporter calls results: by the operator of ATen, numbered.
_RESULT = re.compile(
    r"(unsqueeze|squeeze|add|sub|mul|div|neg|permute|transpose|expand|view|reshape|where|masked_fill|cos|sin|"
    r"pow|cat|stack|(zeros|ones|full)(_like)?|new_(zeros|ones|full)|arange|triu|tril|linear)(_\d+)?"
)
_ELEMENT_BY_ELEMENT = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Expand"})


def program_of(model: Any) -> tuple[Program, Counter[str]]:
    """Write a model with inferred shapes in the vocabulary of `planner.importers.traced`.

    Returns
    -------
    program : Program
    unknown : Counter
        Operators that are not known, with their counts.
    """
    return _Graph(model).run()


class _Graph:
    def __init__(self, model: Any) -> None:
        self.onnx = importlib.import_module("onnx")
        self.graph = model.graph
        self.known = Values(self.onnx, model)
        self.shapes, self.types, self.constants = self.known.shapes, self.known.types, self.known.constants
        self.tensors: dict[str, Tensor] = {}
        self.operations: list[Operation] = []
        self.made: set[str] = set()
        self.unknown: Counter[str] = Counter()
        self.worked_out: list[str] = []
        self.notes: list[str] = []
        self.readers: defaultdict[str, set[str]] = defaultdict(set)
        for node in model.graph.node:
            for name in node.input:
                self.readers[name].add(node.op_type)

    def run(self) -> tuple[Program, Counter[str]]:
        for value in (*self.graph.value_info, *self.graph.output, *self.graph.input):
            self.known.note_shape(value)
        for tensor in self.graph.initializer:
            self._initializer(tensor)
        for value in self.graph.input:
            if value.name not in self.tensors:
                self._input(value)
        for node in self.graph.node:
            self._node(node)
        self._tie()
        inputs = [tensor for tensor in self.tensors.values() if tensor.role == "input"]
        if not inputs:
            raise ProgramFault("has no inputs")
        batch = next((t.shape[0] for t in inputs if t.shape), 1)
        outputs = tuple(value.name for value in self.graph.output)
        notes = self.notes
        if self.worked_out:
            notes.append(
                f"{len(self.worked_out)} tensors that the exporter worked out ({', '.join(self.worked_out[:3])}) are taken for "
                "constants, though parameters may be in them"
            )
        if any(node.op_type == "Softmax" for node in self.graph.node):
            notes.append(
                "attention that is written out is taken to run in a fused kernel: ONNX files do not say how it is run"
            )
        program = Program(
            tensors=self.tensors,
            operations=self.operations,
            outputs=outputs,
            batch=batch,
            is_fused=True,
            has_scopes=True,
            notes=notes,
        )
        return program, self.unknown

    # -- leaves -------------------------------------------------------------------------------------------------------------

    def _input(self, value: Any) -> None:
        if value.name not in self.shapes:
            dims = [dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
            raise ProgramFault(
                f"input '{value.name}' has extents that are not numbers: {' x '.join(dims) or 'unknown'}; export with fixed shapes"
            )
        self.tensors[value.name] = Tensor(
            shape=self.shapes[value.name], role="input", name=value.name, is_integer=not self.known.is_float(value.name)
        )

    def _initializer(self, tensor: Any) -> None:
        shape = tuple(int(extent) for extent in tensor.dims)
        if any(extent < 0 for extent in shape):
            raise ProgramFault(f"tensor '{tensor.name}' has a negative extent")
        self.shapes[tensor.name] = shape
        self.types[tensor.name] = tensor.data_type
        numbers = self.known.numbers_of(tensor) if math.prod(shape) <= MAX_FOLDED else None
        # A parameter: real numbers, more than one. Masks are constants: they hold an infinity, or nothing but 0 and 1 in a square.
        is_large = math.prod(shape) > 1 or "PRelu" in self.readers[tensor.name]
        is_weight = self.known.is_float(tensor.name) and is_large and not _is_mask(numbers, shape)
        if is_weight and self._is_worked_out(tensor.name, shape):
            self.worked_out.append(tensor.name)
            is_weight = False
        if is_weight:
            self.tensors[tensor.name] = Tensor(shape=shape, role="parameter", name=tensor.name, key=tensor.name)
            return
        if numbers is not None:
            self.constants[tensor.name] = numbers
        self.tensors[tensor.name] = Tensor(shape=shape, role="constant", name=tensor.name, value=numbers)

    def _is_worked_out(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether an exporter has made a constant of several tensors: it calls that as the operation that it was the result of."""
        if not self.readers[name] <= _ELEMENT_BY_ELEMENT:
            return False
        # The older exporter numbers what it worked out; what has up to three dimensions may be learned positions, cut to length.
        return len(shape) > 1 and (
            _RESULT.fullmatch(name) is not None or (len(shape) > 3 and name.startswith("onnx::"))
        )

    def _tie(self) -> None:
        """A matrix that is a table transposed is the same parameter: exporters write a tied head out once more."""
        tables = {n.input[0] for n in self.graph.node if n.op_type == "Gather" and n.input[0] in self.tensors}
        matrices = {n.input[1] for n in self.graph.node if n.op_type == "MatMul" and n.input[1] in self.tensors}
        stored = {tensor.name: tensor for tensor in self.graph.initializer if tensor.name in tables | matrices}
        for table in sorted(tables & stored.keys()):
            for matrix in sorted(matrices & stored.keys()):
                if self.shapes[matrix] != self.shapes[table][::-1] or len(self.shapes[table]) != 2:
                    continue
                outside = self.onnx.TensorProto.EXTERNAL
                if outside in (stored[table].data_location, stored[matrix].data_location) and matrix != table:
                    self.notes.append(
                        f"'{matrix}' may be the table '{table}' transposed; their numbers are in another file, so they are counted as two"
                    )
                one, other = self.known.numbers_of(stored[table]), self.known.numbers_of(stored[matrix])
                if one is not None and other is not None and (other == one.T).all():
                    self.tensors[matrix] = dataclasses.replace(self.tensors[matrix], key=table)

    # -- nodes --------------------------------------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        outputs = [name for name in node.output if name]
        if self.known.folds(node):
            value = self.constants[outputs[0]]
            self.tensors[outputs[0]] = Tensor(shape=value.shape, role="constant", name=outputs[0], value=value)
            return
        self.known.infer(node)
        missing = [name for name in outputs if name not in self.shapes]
        attributes = {attribute.name: self._attribute(attribute) for attribute in node.attribute}
        is_known = node.domain in ("", "ai.onnx", "com.microsoft") and node.op_type in OPERATORS
        operator = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        inputs = [name or None for name in node.input]
        if not is_known:
            self.unknown[operator] += 1
            for name in missing:  # as its first input, so that the rest can be read and all that is unknown be listed
                self.shapes[name] = self.shapes.get(node.input[0] if node.input else "", (1,))
            shapes = tuple(self.shapes[name] for name in outputs)
            self._add(node, "unknown", operator, inputs, {}, shapes, outputs)
            return
        for name in missing[:]:
            if node.op_type == "Dropout" or (node.op_type == "BatchNormalization" and name != outputs[0]):
                self.shapes[name] = self.shapes[node.input[0]]
                missing.remove(name)
        if missing:
            if self.unknown:  # its shape depends on one that is not known
                self.shapes.update(dict.fromkeys(missing, self.shapes.get(node.input[0], (1,))))
            else:
                raise ProgramFault(
                    f"the shape of '{missing[0]}' ({node.op_type}) is not known; export with fixed shapes"
                )
        shapes = tuple(self.shapes[name] for name in outputs)
        reading = Node(operator, inputs, attributes, shapes, lambda name: self.shapes.get(name, ()), self.constants.get)
        OPERATORS[node.op_type](reading)
        self._add(node, reading.kind, operator, reading.inputs, reading.result, shapes, outputs)

    def _attribute(self, attribute: Any) -> Any:
        value = self.onnx.helper.get_attribute_value(attribute)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def _add(
        self,
        node: Any,
        kind: str,
        operator: str,
        inputs: list[str | None],
        attributes: dict[str, Any],
        shapes: tuple[tuple[int, ...], ...],
        outputs: list[str],
    ) -> None:
        for name in inputs:
            if name is not None and name not in self.tensors and name not in self.made:
                raise ProgramFault(f"node '{node.name or operator}' reads '{name}', which nothing makes")
        word = attributes.get("function") or (attributes.get("op") if kind == "binary" else "") or kind
        self.made.update(outputs)
        self.operations.append(
            Operation(
                kind=kind,
                source=operator,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                shapes=shapes,
                attributes=attributes,
                path=_path(node, str(word)),
            )
        )


def _path(node: Any, word: str) -> str:
    """Module of a node: as torch's exporter notes it, else by the node's name (``/layers.0/fc/MatMul``)."""
    import ast

    from planner.importers.torch_program import scoped

    notes = {entry.key: entry.value for entry in node.metadata_props}
    scopes, classes = notes.get("pkg.torch.onnx.name_scopes"), notes.get("pkg.torch.onnx.class_hierarchy")
    if scopes and classes:
        try:  # literals: lists of names
            names, kinds = ast.literal_eval(scopes), ast.literal_eval(classes)
            if len(names) >= 2 and len(kinds) >= 2:
                return scoped(str(names[-2]), str(kinds[-2]), word)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
    folder = node.name.strip("/").rpartition("/")[0].replace("/", ".") if "/" in node.name else ""
    return f"{folder}.{word}" if folder else word


def _is_mask(numbers: Any, shape: tuple[int, ...]) -> bool:
    if numbers is None or len(shape) < 2 or shape[-1] != shape[-2]:
        return False
    import numpy as np

    lowest = numbers.min()
    return bool(lowest < -1e4 or (np.isin(numbers, (0.0, 1.0)).all() and not (numbers == numbers.flat[0]).all()))

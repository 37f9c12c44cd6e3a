"""ONNX files: read as protocol buffers, checked, given shapes by onnx itself, and written in the vocabulary of `planner.importers.traced`.

Weights are never needed (files of their own need not be there), and nothing is executed. Numbers that shapes are worked out of
(`Shape`, `Gather`, `Concat`, ... of small tensors of whole numbers) are folded by onnx's reference implementations of a fixed list of
operators.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import math
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from planner.core.errors import MissingExtra, PlannerError
from planner.files.text import failure
from planner.importers.operators import CONTROL_FLOW, OPERATORS, Call
from planner.importers.sources import ForeignNetwork, ImportOptions, check_assumed
from planner.importers.traced.program import Operation, Program, ProgramFault, Tensor

__all__ = ["FORMAT", "MAX_FOLDED", "Values", "detect", "first_line", "load", "program_of"]

FORMAT = "ONNX"

# ModelProto begins with field 1, ir_version: a small number (onnx/onnx.proto).
_HEADS = tuple(bytes((0x08, version)) for version in range(1, 128))
_MAX_BYTES = 2 * 2**30  # of a protobuf message
_MAX_NODES = 200_000
# Symbolic extents: the first dimension of an input is the batch, others have to be numbers.
_BATCH = 1


def detect(head: bytes) -> bool:
    """Whether a file begins like an ONNX model.

    >>> detect(bytes((8, 9, 18, 7)) + b"pytorch"), detect(b"name: net")
    (True, False)
    """
    # Then come fields with a length (producer_name, graph, ...) or model_version.
    return head.startswith(_HEADS) and len(head) > 2 and head[2] in (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72)


def load(path: Path, options: ImportOptions) -> ForeignNetwork:
    """Read an ONNX file.

    Raises
    ------
    InputFileError
        It is broken, has control flow or operators that are not known, or sizes that are not.
    MissingExtra
        onnx is not installed.
    """
    onnx = _onnx()
    model, digest = _read(onnx, path)
    from planner.importers.onnx_file import program_of
    from planner.importers.traced.reading import document_of_program

    try:
        program, unknown = program_of(model)
        check_assumed(path, unknown, options)
        version = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
        source = f"ONNX {path.name}, opset {version}"
        imported = document_of_program(program, name=path.stem, source=source, assume_free=options.assume_free)
    except ProgramFault as fault:
        raise failure(path, str(fault)) from None
    except PlannerError:
        raise
    except Exception as error:
        broken = _what_is_broken(onnx, model)
        if broken:
            raise failure(path, f"is a broken ONNX file: {broken}") from error
        raise
    return ForeignNetwork(sha256=digest, imported=imported)


def _what_is_broken(onnx: Any, model: Any) -> str:
    """What onnx's own checker says of a file that could not be read; empty where it finds it whole."""
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        return first_line(error) or type(error).__name__
    return ""


def _onnx() -> Any:
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        raise MissingExtra("reading ONNX files", "onnx", "onnx") from None
    return onnx


def _read(onnx: Any, path: Path) -> tuple[Any, str]:
    """The model with all its shapes, and the hash of the file."""
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= _MAX_BYTES else b""
    except OSError as error:
        raise failure(path, f"cannot be read: {error.strerror or error}") from None
    if size > _MAX_BYTES:
        raise failure(path, "is larger than 2 GiB, the limit of ONNX files; keep the weights in a file of their own")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own class differs between its implementations
        raise failure(path, f"is a broken or truncated ONNX file: {str(error)[:200] or type(error).__name__}") from None
    if not model.HasField("graph") or not model.graph.node:
        raise failure(path, "is an ONNX file without a graph: it is broken or truncated")
    _check(onnx, path, model)
    digest = hashlib.sha256(data).hexdigest()
    if model.functions:
        model = importlib.import_module("onnx.inliner").inline_local_functions(model)
    _set_batch(model)
    return _inferred(onnx, path, model), digest


def _inferred(onnx: Any, path: Path, model: Any) -> Any:
    """The model with shapes; what an exporter has noted of values in between may be wrong, and is then left out."""
    infer = onnx.shape_inference.infer_shapes
    try:
        return infer(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:
        fault = _no_shapes(model, str(error))
    if model.graph.value_info:
        del model.graph.value_info[:]
        try:
            return infer(model, check_type=True, strict_mode=True, data_prop=True)
        except Exception:  # noqa: S110 - the first fault is the one that is told
            pass
    raise failure(path, fault)


def _no_shapes(model: Any, error: str) -> str:
    """Why shapes are not known: often the values of a small tensor that lie in another file, which is never opened."""
    outside = [
        t.name for t in model.graph.initializer if t.data_location and t.data_type in (6, 7) and f": {t.name}" in error
    ]
    if outside:
        return (
            f"shapes depend on the tensor '{outside[0]}', which is external data; files beside the model are not opened: save it with "
            "small tensors inside (onnx.save with size_threshold=1024)"
        )
    return f"its shapes cannot be inferred: {first_line(error)}"


def first_line(error: object) -> str:
    """The first line of a message of onnx, which can be long."""
    return str(error).strip().partition("\n")[0][:300]


def _check(onnx: Any, path: Path, model: Any) -> None:
    """Refuse control flow by name, versions that are not known, and more nodes than any network has."""
    newest = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and not 1 <= entry.version <= newest:
            raise failure(
                path, f"is of opset {entry.version}; the installed onnx knows versions up to {newest}, from 1 on"
            )
    if len(model.graph.node) > _MAX_NODES:
        raise failure(path, f"has {len(model.graph.node):,} nodes; more than {_MAX_NODES:,} are not read")
    for node in model.graph.node:
        words = (node.name, node.op_type, node.domain, *node.input, *node.output)
        if not all(isinstance(word, str) for word in words):  # protobuf hands out bytes where they are not UTF-8
            raise failure(path, "has names that are not UTF-8: it is broken")
    control = Counter(node.op_type for node in model.graph.node if node.op_type in CONTROL_FLOW)
    for function in model.functions:
        control.update(node.op_type for node in function.node if node.op_type in CONTROL_FLOW)
    if control:
        listed = ", ".join(f"{name} ({count})" for name, count in control.most_common())
        raise failure(path, f"has control flow: {listed}; what it costs depends on the data, export it without")


def _set_batch(model: Any) -> None:
    """Symbolic batches are 1."""
    initial = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in initial and dims and not dims[0].HasField("dim_value"):
            dims[0].dim_value = _BATCH


# -- graphs -----------------------------------------------------------------------------------------------------------------


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
        call = Call(
            node.op_type, inputs, attributes, shapes, lambda name: self.shapes.get(name, ()), self.constants.get
        )
        kind, read, own = OPERATORS[node.op_type](call)
        self._add(node, kind, operator, list(read), own, shapes, outputs)

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


# -- what is known of values: shapes, types, numbers ------------------------------------------------------------------------


MAX_FOLDED = 1 << 20  # elements of a constant that is worked out
# Operators whose results on small constants are worked out, by onnx.reference.
_FOLDED = frozenset({
    "Shape", "Gather", "Concat", "Unsqueeze", "Squeeze", "Cast", "Add", "Sub", "Mul", "Div", "Neg", "Slice", "Constant", "Range",
    "ConstantOfShape", "Expand", "Where", "Equal", "Reshape", "Transpose", "Trilu", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
    "Not", "And", "Or", "Max", "Min", "Identity", "Size", "ReduceProd", "Mod", "Floor", "Ceil", "Sqrt", "Abs", "ReduceMax", "CastLike",
})  # fmt: skip


class Values:
    """Shapes, element types and numbers by the name of the value.

    Parameters
    ----------
    onnx : module
    model : onnx.ModelProto
        With inferred shapes.
    """

    def __init__(self, onnx: Any, model: Any) -> None:
        self._onnx = onnx
        self._imports = list(model.opset_import)
        self._opset = {entry.domain: entry.version for entry in model.opset_import}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, int] = {}
        self.constants: dict[str, Any] = {}

    def note_shape(self, value: Any) -> None:
        """Remember what a declaration says; a shape that is not all numbers is not known."""
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            return
        self.types[value.name] = tensor.elem_type
        if not tensor.HasField("shape"):
            return
        dims = tensor.shape.dim
        if all(dim.HasField("dim_value") for dim in dims):
            self.shapes[value.name] = tuple(int(dim.dim_value) for dim in dims)

    def is_float(self, name: str) -> bool:
        """Whether a value holds real numbers."""
        kinds = self._onnx.TensorProto
        return self.types.get(name) in {kinds.FLOAT, kinds.FLOAT16, kinds.DOUBLE, kinds.BFLOAT16}

    def numbers_of(self, tensor: Any) -> Any:
        """Numbers of a small stored tensor; None where they are in another file."""
        if tensor.data_location == self._onnx.TensorProto.EXTERNAL:
            return None
        try:
            return self._onnx.numpy_helper.to_array(tensor)
        except Exception:
            raise ProgramFault(
                f"the numbers of tensor '{tensor.name}' do not fit its shape: the file is broken"
            ) from None

    def infer(self, node: Any) -> None:
        """Shapes that depend on folded numbers (``Slice(Shape(x))`` of torch's older exporter): onnx's inference of this one node."""
        inputs = {name for name in node.input if name}
        if (
            all(name in self.shapes for name in node.output if name)
            or not inputs <= self.shapes.keys() & self.types.keys()
        ):
            return
        defs, helper = self._onnx.defs, self._onnx.helper
        version = self._opset.get(node.domain)
        if version is None or not defs.has(node.op_type, version, node.domain):
            return
        schema = defs.get_schema(node.op_type, version, node.domain)
        types = {name: helper.make_tensor_type_proto(self.types[name], self.shapes[name]) for name in inputs}
        data = {
            name: self._onnx.numpy_helper.from_array(self.constants[name], name)
            for name in inputs & self.constants.keys()
        }
        try:
            made = self._onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=list(self._imports)
            )
        except Exception as error:
            raise ProgramFault(
                f"the shape of '{node.output[0]}' ({node.op_type}) cannot be inferred: {first_line(error)}"
            ) from None
        for value in (helper.make_value_info(name, kind) for name, kind in made.items()):
            self.note_shape(value)

    def folds(self, node: Any) -> bool:
        """Work a small constant out; whether that was possible."""
        if node.op_type not in _FOLDED or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            return False
        output = node.output[0]
        known = self.shapes.get(output)
        if (math.prod(known) if known is not None else self._growth(node)) > MAX_FOLDED:
            return False
        if node.op_type == "Shape" and node.input[0] in self.shapes:
            import numpy as np

            bounds = {attribute.name: attribute.i for attribute in node.attribute}
            value: Any = np.array(self.shapes[node.input[0]][bounds.get("start") : bounds.get("end")], dtype=np.int64)
        elif node.op_type == "CastLike" and node.input[0] in self.constants:
            value = self.constants[node.input[0]]  # its numbers matter here, not their type
        elif all(name in self.constants for name in node.input if name):
            value = self._evaluated(node)
        else:
            return False
        if value is None or value.size > MAX_FOLDED:
            return False
        self.constants[output] = value
        self.shapes[output] = tuple(value.shape)
        self.types.setdefault(output, int(self._onnx.helper.np_dtype_to_tensor_dtype(value.dtype)))
        return True

    def _growth(self, node: Any) -> float:
        """Elements of a constant before it is worked out: few numbers can ask for many."""
        inputs: list[Any] = [self.constants.get(name) for name in node.input if name]
        if any(value is None for value in inputs) or not inputs:
            return 0.0
        if node.op_type == "Range":
            start, limit, delta = (float(value.reshape(-1)[0]) for value in inputs)
            return abs((limit - start) / delta) if delta else math.inf
        if node.op_type in ("Expand", "ConstantOfShape", "Reshape"):
            extents = [abs(float(extent)) for extent in inputs[-1].reshape(-1)]
            return math.prod(max(extent, 1.0) for extent in extents) * (
                inputs[0].size if node.op_type == "Expand" else 1
            )
        return float(math.prod(max(value.size, 1) for value in inputs)) if len(inputs) < 4 else 0.0

    def _evaluated(self, node: Any) -> Any:
        if node.op_type == "Constant" and len(node.attribute) == 1 and node.attribute[0].name == "value":
            return self.numbers_of(node.attribute[0].t)
        reference = importlib.import_module("onnx.reference")
        try:
            feeds = {name: self.constants[name] for name in node.input if name}
            return reference.ReferenceEvaluator(node, opsets=dict(self._opset)).run(None, feeds)[0]
        except Exception:
            return None  # what cannot be worked out stays a tensor whose numbers are not known

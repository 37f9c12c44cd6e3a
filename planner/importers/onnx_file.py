"""ONNX files: read as protocol buffers, checked, given shapes by onnx itself, and written in the vocabulary of `planner.importers.traced`.

Weights are never needed (files of their own need not be there), and nothing is executed. Numbers that shapes are worked out of
(`Shape`, `Gather`, `Concat`, ... of small tensors of whole numbers) are folded by onnx's reference implementations of a fixed list of
operators.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from planner.core.errors import MissingExtra, PlannerError
from planner.files.text import failure
from planner.importers.operators import CONTROL_FLOW, OPERATORS, Call
from planner.importers.sources import ImportedDocument
from planner.importers.traced.program import Program, ProgramFault, Tensor

FORMAT = "ONNX"

# ModelProto begins with field 1, ir_version: a small number (onnx/onnx.proto).
_HEADS = tuple(bytes((0x08, version)) for version in range(1, 128))
_MAX_BYTES = 2 * 2**30  # of a protobuf message
_MAX_NODES = 200_000


def detect(head: bytes) -> bool:
    """Whether a file begins like an ONNX model.

    >>> detect(bytes((8, 9, 18, 7)) + b"pytorch"), detect(b"name: net")
    (True, False)
    """
    # Then come fields with a length (producer_name, graph, ...) or model_version.
    return head.startswith(_HEADS) and len(head) > 2 and head[2] in (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72)


def load(path: Path, assume_free: frozenset[str]) -> ImportedDocument:
    """Read an ONNX file.

    Raises
    ------
    InputFileError
        It is broken, has control flow or operators that are not known, or sizes that are not.
    MissingExtra
        onnx is not installed.
    """
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        raise MissingExtra("reading ONNX files", "onnx", "onnx") from None
    model, digest = _read(onnx, path)
    from planner.importers.traced.reading import document_of_program

    try:
        version = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
        source = f"ONNX {path.name}, opset {version}"
        imported = document_of_program(program_of(model), path.stem, source, path, assume_free)
    except ProgramFault as fault:
        raise failure(path, str(fault)) from None
    except PlannerError:
        raise
    except Exception as error:
        try:
            onnx.checker.check_model(model)
        except Exception as broken:
            raise failure(path, f"is a broken ONNX file: {_first_line(broken) or type(broken).__name__}") from error
        raise
    return dataclasses.replace(imported, sha256=digest)


def _read(onnx: Any, path: Path) -> tuple[Any, str]:
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
    if model.functions:
        model = importlib.import_module("onnx.inliner").inline_local_functions(model)
    initial = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:  # symbolic batches are 1
        dims = value.type.tensor_type.shape.dim
        if value.name not in initial and dims and not dims[0].HasField("dim_value"):
            dims[0].dim_value = 1
    return _inferred(onnx, path, model), hashlib.sha256(data).hexdigest()


def _inferred(onnx: Any, path: Path, model: Any) -> Any:
    """The model with shapes; what an exporter has noted of values in between may be wrong, and is then left out."""
    first = ""
    for _ in range(2):
        try:
            return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        except Exception as error:
            first = first or str(error)
        del model.graph.value_info[:]
    fault = f"its shapes cannot be inferred: {_first_line(first)}"
    for (
        tensor
    ) in model.graph.initializer:  # often the values of a small tensor that lie in another file, which is never opened
        if tensor.data_location and tensor.data_type in (6, 7) and f": {tensor.name}" in first:
            fault = (
                f"shapes depend on the tensor '{tensor.name}', which is external data; files beside the model are not opened: save it "
                "with small tensors inside (onnx.save with size_threshold=1024)"
            )
            break
    raise failure(path, fault)


def _first_line(error: object) -> str:
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
    fault = _what_aborts(model.graph)
    if fault:
        raise failure(path, fault)
    control = Counter(node.op_type for node in model.graph.node if node.op_type in CONTROL_FLOW)
    for function in model.functions:
        control.update(node.op_type for node in function.node if node.op_type in CONTROL_FLOW)
    if control:
        listed = ", ".join(f"{name} ({count})" for name, count in control.most_common())
        raise failure(path, f"has control flow: {listed}; what it costs depends on the data, export it without")


def _what_aborts(graph: Any) -> str:
    """What ends the process, or reads memory that is not its own, while onnx infers shapes; it checks neither."""
    for value in graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value < 1:
                return f"input '{value.name}' has an extent of {dim.dim_value}; export with the shapes of an example"
    for node in graph.node:
        counts = [attribute.i for attribute in node.attribute if attribute.name == "num_outputs"]
        if node.op_type == "Split" and counts and counts[0] != len(node.output):
            return f"is broken: a Split has {len(node.output)} outputs and says {counts[0]}"
    return ""


# -- graphs -----------------------------------------------------------------------------------------------------------------


# What torch's exporter calls results: by the operator of ATen, numbered.
_RESULT = re.compile(
    r"(unsqueeze|squeeze|add|sub|mul|div|neg|permute|transpose|expand|view|reshape|where|masked_fill|cos|sin|"
    r"pow|cat|stack|(zeros|ones|full)(_like)?|new_(zeros|ones|full)|arange|triu|tril|linear)(_\d+)?"
)
_ELEMENT_BY_ELEMENT = frozenset({"Add", "Sub", "Mul", "Div", "Where", "Expand"})


_MAX_STORED = 1 << 20  # elements of a constant whose numbers are looked at
_MAX_FOLDED = 1 << 24  # elements of one that is worked out
# Operators whose results on small constants are worked out, by onnx.reference.
_FOLDED = frozenset({
    "Shape", "Gather", "Concat", "Unsqueeze", "Squeeze", "Cast", "Add", "Sub", "Mul", "Div", "Neg", "Slice", "Constant", "Range",
    "ConstantOfShape", "Expand", "Where", "Equal", "Reshape", "Transpose", "Trilu", "Less", "LessOrEqual", "Greater", "GreaterOrEqual",
    "Not", "And", "Or", "Max", "Min", "Identity", "Size", "ReduceProd", "Mod", "Floor", "Ceil", "Sqrt", "Abs", "ReduceMax", "CastLike",
})  # fmt: skip


def program_of(model: Any) -> Program:
    """Write a model with inferred shapes in the vocabulary of `planner.importers.traced`."""
    return _Graph(model).run()


class _Graph:
    def __init__(self, model: Any) -> None:
        self.onnx = importlib.import_module("onnx")
        self.imports = list(model.opset_import)
        self.opset = {entry.domain: entry.version for entry in model.opset_import}
        self.graph = model.graph
        self.program = Program(is_fused=True, has_scopes=True)
        # What is known of values, by their names.
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.types: dict[str, int] = {}
        self.constants: dict[str, Any] = {}
        self.made: set[str] = set()
        self.worked_out: list[str] = []
        self.readers: defaultdict[str, set[str]] = defaultdict(set)
        for node in model.graph.node:
            for name in node.input:
                self.readers[name].add(node.op_type)

    def run(self) -> Program:
        graph, program = self.graph, self.program
        for value in (*graph.value_info, *graph.output, *graph.input):
            self._note_shape(value)
        for tensor in graph.initializer:
            self._initializer(tensor)
        for value in graph.input:
            if value.name not in program.tensors:
                self._input(value)
        for node in graph.node:
            self._node(node)
        self._tie()
        inputs = [tensor for tensor in program.tensors.values() if tensor.role == "input"]
        if not inputs:
            raise ProgramFault("has no inputs")
        program.batch = next((t.shape[0] for t in inputs if t.shape), 1)
        program.outputs = tuple(value.name for value in graph.output)
        if self.worked_out:
            program.notes.append(
                f"{len(self.worked_out)} tensors that the exporter worked out ({', '.join(self.worked_out[:3])}) are taken for "
                "constants, though parameters may be in them"
            )
        if any(node.op_type == "Softmax" for node in graph.node):
            program.notes.append(
                "attention that is written out is taken to run in a fused kernel: ONNX files do not say how it is run"
            )
        return program

    # -- leaves -------------------------------------------------------------------------------------------------------------

    def _input(self, value: Any) -> None:
        name = value.name
        if name not in self.shapes:
            dims = [dim.dim_param or str(dim.dim_value) for dim in value.type.tensor_type.shape.dim]
            raise ProgramFault(
                f"input '{name}' has extents that are not numbers: {' x '.join(dims) or 'unknown'}; export with fixed shapes"
            )
        is_integer = not self._is_float(name)
        self.program.tensors[name] = Tensor(shape=self.shapes[name], role="input", name=name, is_integer=is_integer)

    def _initializer(self, tensor: Any) -> None:
        name, shape = tensor.name, tuple(int(extent) for extent in tensor.dims)
        if any(extent < 0 for extent in shape):
            raise ProgramFault(f"tensor '{name}' has a negative extent")
        self.shapes[name], self.types[name] = shape, tensor.data_type
        numbers = self._numbers_of(tensor) if math.prod(shape) <= _MAX_STORED else None
        # A parameter: real numbers, more than one. Masks are constants: they hold an infinity, or nothing but 0 and 1 in a square.
        is_large = math.prod(shape) > 1 or "PRelu" in self.readers[name]
        if self._is_float(name) and is_large and not _is_mask(numbers, shape):
            if not self._is_worked_out(name, shape):
                self.program.tensors[name] = Tensor(shape=shape, role="parameter", name=name, key=name)
                return
            self.worked_out.append(name)
        if numbers is not None:
            self.constants[name] = numbers
        self.program.tensors[name] = Tensor(shape=shape, role="constant", name=name, value=numbers)

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
        tensors = self.program.tensors
        tables = {n.input[0] for n in self.graph.node if n.op_type == "Gather" and n.input[0] in tensors}
        matrices = {n.input[1] for n in self.graph.node if n.op_type == "MatMul" and n.input[1] in tensors}
        stored = {tensor.name: tensor for tensor in self.graph.initializer if tensor.name in tables | matrices}
        for table in sorted(tables & stored.keys()):
            for matrix in sorted(matrices & stored.keys()):
                if self.shapes[matrix] != self.shapes[table][::-1] or len(self.shapes[table]) != 2:
                    continue
                outside = self.onnx.TensorProto.EXTERNAL
                if outside in (stored[table].data_location, stored[matrix].data_location) and matrix != table:
                    self.program.notes.append(
                        f"'{matrix}' may be the table '{table}' transposed; their numbers are in another file, so they are counted as two"
                    )
                one, other = self._numbers_of(stored[table]), self._numbers_of(stored[matrix])
                if one is not None and other is not None and (other == one.T).all():
                    tensors[matrix] = dataclasses.replace(tensors[matrix], key=table)

    # -- nodes --------------------------------------------------------------------------------------------------------------

    def _node(self, node: Any) -> None:
        outputs = [name for name in node.output if name]
        if self._folds(node):
            name, value = outputs[0], self.constants[outputs[0]]
            self.program.tensors[name] = Tensor(shape=value.shape, role="constant", name=name, value=value)
            return
        self._infer(node)
        inputs: Sequence[str | None] = [name or None for name in node.input]
        shapes = self.shapes
        is_known = node.domain in ("", "ai.onnx", "com.microsoft") and node.op_type in OPERATORS
        operator = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        if not is_known:
            self.program.unknown[operator] += 1
        for name in outputs:
            is_like_input = node.op_type == "Dropout" or (node.op_type == "BatchNormalization" and name != outputs[0])
            # What follows an operator that is not known gets a shape, too, so that all that is unknown be listed.
            if name not in shapes and (is_like_input or self.program.unknown):
                shapes[name] = shapes.get(node.input[0] if node.input else "", (1,))
            elif name not in shapes:
                raise ProgramFault(f"the shape of '{name}' ({node.op_type}) is not known; export with fixed shapes")
        made, kind, own = tuple(shapes[name] for name in outputs), "unknown", dict[str, Any]()
        if is_known:
            attributes = {attribute.name: self._attribute(attribute) for attribute in node.attribute}
            call = Call(node.op_type, inputs, attributes, made, lambda name: shapes.get(name, ()), self.constants.get)
            kind, inputs, own = OPERATORS[node.op_type](call)
        for read in inputs:
            if read is not None and read not in self.program.tensors and read not in self.made:
                raise ProgramFault(f"node '{node.name or operator}' reads '{read}', which nothing makes")
        self.made.update(outputs)
        self.program.add(kind, operator, inputs, outputs, made, own, _module(node))

    def _attribute(self, attribute: Any) -> Any:
        value = self.onnx.helper.get_attribute_value(attribute)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    # -- what is known of values --------------------------------------------------------------------------------------------

    def _note_shape(self, value: Any) -> None:
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

    def _is_float(self, name: str) -> bool:
        kinds = self.onnx.TensorProto
        return self.types.get(name) in {kinds.FLOAT, kinds.FLOAT16, kinds.DOUBLE, kinds.BFLOAT16}

    def _numbers_of(self, tensor: Any) -> Any:
        """Numbers of a small stored tensor; None where they are in another file."""
        if tensor.data_location == self.onnx.TensorProto.EXTERNAL:
            return None
        try:
            return self.onnx.numpy_helper.to_array(tensor)
        except Exception:
            raise ProgramFault(
                f"the numbers of tensor '{tensor.name}' do not fit its shape: the file is broken"
            ) from None

    def _infer(self, node: Any) -> None:
        """Shapes that depend on folded numbers (``Slice(Shape(x))`` of torch's older exporter): onnx's inference of this one node."""
        inputs = {name for name in node.input if name}
        if (
            all(name in self.shapes for name in node.output if name)
            or not inputs <= self.shapes.keys() & self.types.keys()
        ):
            return
        defs, helper = self.onnx.defs, self.onnx.helper
        version = self.opset.get(node.domain)
        if version is None or not defs.has(node.op_type, version, node.domain):
            return
        schema = defs.get_schema(node.op_type, version, node.domain)
        types = {name: helper.make_tensor_type_proto(self.types[name], self.shapes[name]) for name in inputs}
        data = {
            name: self.onnx.numpy_helper.from_array(self.constants[name], name)
            for name in inputs & self.constants.keys()
        }
        try:
            made = self.onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=list(self.imports)
            )
        except Exception as error:
            raise ProgramFault(
                f"the shape of '{node.output[0]}' ({node.op_type}) cannot be inferred: {_first_line(error)}"
            ) from None
        for value in (helper.make_value_info(name, kind) for name, kind in made.items()):
            self._note_shape(value)

    def _folds(self, node: Any) -> bool:
        """Work a small constant out; whether that was possible."""
        if node.op_type not in _FOLDED or node.domain not in ("", "ai.onnx") or len(node.output) != 1:
            return False
        output = node.output[0]
        known = self.shapes.get(output)
        if (math.prod(known) if known is not None else self._growth(node)) > _MAX_FOLDED:
            return False
        if node.op_type == "Shape" and node.input[0] in self.shapes:
            bounds = {attribute.name: attribute.i for attribute in node.attribute}
            value: Any = np.array(self.shapes[node.input[0]][bounds.get("start") : bounds.get("end")], dtype=np.int64)
        elif node.op_type == "CastLike" and node.input[0] in self.constants:
            value = self.constants[node.input[0]]  # its numbers matter here, not their type
        elif all(name in self.constants for name in node.input if name):
            value = self._evaluated(node)
        else:
            return False
        if value is None or value.size > _MAX_FOLDED:
            return False
        self.constants[output] = value
        self.shapes[output] = tuple(value.shape)
        self.types.setdefault(output, int(self.onnx.helper.np_dtype_to_tensor_dtype(value.dtype)))
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
            return self._numbers_of(node.attribute[0].t)
        reference = importlib.import_module("onnx.reference")
        try:
            feeds = {name: self.constants[name] for name in node.input if name}
            return reference.ReferenceEvaluator(node, opsets=dict(self.opset)).run(None, feeds)[0]
        except Exception:
            return None  # what cannot be worked out stays a tensor whose numbers are not known


def _module(node: Any) -> tuple[str, str]:
    """Module of a node and its class: as torch's exporter notes it, else by the node's name (``/layers.0/fc/MatMul``)."""
    notes = {entry.key: entry.value for entry in node.metadata_props}
    try:  # literals: lists of names
        scopes = ast.literal_eval(notes.get("pkg.torch.onnx.name_scopes", "[]"))
        classes = ast.literal_eval(notes.get("pkg.torch.onnx.class_hierarchy", "[]"))
        if len(scopes) >= 2 and len(classes) >= 2:
            return str(scopes[-2]), str(classes[-2])
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        pass
    return node.name.strip("/").rpartition("/")[0].replace("/", "."), ""


def _is_mask(numbers: Any, shape: tuple[int, ...]) -> bool:
    if numbers is None or len(shape) < 2 or shape[-1] != shape[-2]:
        return False
    lowest = numbers.min()
    return bool(lowest < -1e4 or (np.isin(numbers, (0.0, 1.0)).all() and not (numbers == numbers.flat[0]).all()))

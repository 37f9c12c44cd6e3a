"""What is known of the values of an ONNX graph: shapes, types, and the numbers of small constants, which are worked out.

Numbers that shapes are worked out of (`Shape`, `Gather`, `Concat`, ... of small tensors of whole numbers) are folded by onnx's reference
implementations of a fixed list of operators.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

from planner.importers.onnx_file import first_line
from planner.importers.traced.program import ProgramFault

__all__ = ["MAX_FOLDED", "Values"]

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

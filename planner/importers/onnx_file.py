"""ONNX files: read as protocol buffers, checked, and given shapes by onnx itself; weights are never needed, nothing is executed.

Weights in files of their own need not be there.
"""

from __future__ import annotations

import hashlib
import importlib
from collections import Counter
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError, PlannerError
from planner.importers.onnx_operators import CONTROL_FLOW
from planner.importers.sources import ForeignNetwork, ImportOptions, MissingExtra, check_assumed
from planner.importers.traced.program import ProgramFault

__all__ = ["FORMAT", "detect", "first_line", "load"]

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
    from planner.importers.onnx_graph import program_of
    from planner.importers.traced.reading import document_of_program

    try:
        program, unknown = program_of(model)
        check_assumed(path, unknown, options)
        version = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=0)
        source = f"ONNX {path.name}, opset {version}"
        imported = document_of_program(program, name=path.stem, source=source, assume_free=options.assume_free)
    except ProgramFault as fault:
        raise InputFileError([FileProblem(path=path, message=str(fault))]) from None
    except PlannerError:
        raise
    except Exception as error:
        broken = _what_is_broken(onnx, model)
        if broken:
            raise _failure(path, f"is a broken ONNX file: {broken}") from error
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
        raise _failure(path, f"cannot be read: {error.strerror or error}") from None
    if size > _MAX_BYTES:
        raise _failure(path, "is larger than 2 GiB, the limit of ONNX files; keep the weights in a file of their own")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own class differs between its implementations
        raise _failure(
            path, f"is a broken or truncated ONNX file: {str(error)[:200] or type(error).__name__}"
        ) from None
    if not model.HasField("graph") or not model.graph.node:
        raise _failure(path, "is an ONNX file without a graph: it is broken or truncated")
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
    raise _failure(path, fault)


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
            raise _failure(
                path, f"is of opset {entry.version}; the installed onnx knows versions up to {newest}, from 1 on"
            )
    if len(model.graph.node) > _MAX_NODES:
        raise _failure(path, f"has {len(model.graph.node):,} nodes; more than {_MAX_NODES:,} are not read")
    for node in model.graph.node:
        words = (node.name, node.op_type, node.domain, *node.input, *node.output)
        if not all(isinstance(word, str) for word in words):  # protobuf hands out bytes where they are not UTF-8
            raise _failure(path, "has names that are not UTF-8: it is broken")
    control = Counter(node.op_type for node in model.graph.node if node.op_type in CONTROL_FLOW)
    for function in model.functions:
        control.update(node.op_type for node in function.node if node.op_type in CONTROL_FLOW)
    if control:
        listed = ", ".join(f"{name} ({count})" for name, count in control.most_common())
        raise _failure(path, f"has control flow: {listed}; what it costs depends on the data, export it without")


def _set_batch(model: Any) -> None:
    """Symbolic batches are 1."""
    initial = {tensor.name for tensor in model.graph.initializer}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in initial and dims and not dims[0].HasField("dim_value"):
            dims[0].dim_value = _BATCH


def _failure(path: Path, message: str) -> InputFileError:
    return InputFileError([FileProblem(path=path, message=message)])

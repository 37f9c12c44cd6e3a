"""Programs of torch.export: archives (.pt2), and modules traced here without computing anything.

An archive is read by torch.export's own loader. Parts of an archive that are pickles (objects of other classes than tensors) are
refused before it is opened: unpickling runs code. Small constants (masks, positions, indices) are worked out by torch's own operators,
those of a fixed list, on tensors that the program holds or makes itself, on the CPU.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import math
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.core.errors import InputFileError, MissingExtra, UsageError
from planner.files.loading import LoadedModel, model_of
from planner.files.text import failure
from planner.importers.operators import OPERATORS, Call
from planner.importers.sources import ForeignNetwork, ImportedDocument, ImportOptions, check_assumed, document_of
from planner.importers.traced.program import Operation, Program, ProgramFault, Tensor

__all__ = ["FORMAT", "Constants", "detect", "document_of_module", "from_torch", "load", "program_of"]

FORMAT = "torch.export archive"

_HINT = "; a decision depends on the data: give torch's transformer layers is_causal (tgt_is_causal) and write loops with fixed shapes"
_ZIP = b"PK\x03\x04"
# The first whose loader reads tensors without unpickling anything else (weights_only by default).
_MIN_TORCH = (2, 6)


def detect(head: bytes) -> bool:
    r"""Whether a file begins like a zip archive, which torch's files are.

    >>> detect(b"PK\x03\x04..."), detect(b"name: net")
    (True, False)
    """
    return head.startswith(_ZIP)


def load(path: Path, options: ImportOptions) -> ForeignNetwork:
    """Read an archive of torch.export.

    Raises
    ------
    InputFileError
        It is no such archive, is broken, holds pickles, or has operators that are not known.
    MissingExtra
        torch is not installed.
    """
    _check_archive(path)
    torch = _torch()
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _MIN_TORCH:
        raise UsageError(
            f"{path}: archives are read with torch {'.'.join(map(str, _MIN_TORCH))} or later, this is {torch.__version__}"
        )
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.load(str(path))
    except Exception as error:  # whatever the loader meets in a broken file
        reason = str(error).partition("\n")[0][:200]
        raise failure(path, f"cannot be read as a {FORMAT}: {type(error).__name__}: {reason}") from None
    name = path.stem
    imported = _document(exported, name=name, source=f"{FORMAT} {path.name}", options=options, path=path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return ForeignNetwork(sha256=digest, imported=imported)


def document_of_module(
    module: Any, example_inputs: Sequence[Any], *, name: str = "", options: ImportOptions | None = None
) -> ImportedDocument:
    """Trace a module and make a network file of it; see `planner.from_torch`.

    Raises
    ------
    UsageError
        It cannot be exported; the message is torch's.
    """
    torch = _torch()
    import warnings

    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"from_torch takes a torch.nn.Module, not {type(module).__name__}")
    inputs = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    device = next((tensor.device for tensor in [*module.parameters(), *module.buffers()]), None)
    moved = tuple(_moved(torch, item, device) for item in inputs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, moved)
    except Exception as error:  # dynamic control flow, wrong inputs, ...
        reason = next((line for line in str(error).splitlines() if line.strip()), "")[:300]
        hint = _HINT if "DataDependent" in type(error).__name__ else ""
        raise UsageError(
            f"torch.export cannot trace {type(module).__name__}: {type(error).__name__}: {reason}{hint}"
        ) from error
    title = name or type(module).__name__
    source = f"torch.export of {type(module).__name__}"
    return _document(exported, name=title, source=source, options=options or ImportOptions(), path=Path(title))


def _moved(torch: Any, item: Any, device: Any) -> Any:
    """Inputs on the device of the module: nothing is computed, so a tensor on the meta device will do."""
    if isinstance(item, torch.Tensor) and device is not None and item.device != device:
        return torch.empty_like(item, device=device)
    return item


def _torch() -> Any:
    try:
        importlib.import_module("torch.export")
        torch = importlib.import_module("torch")
    except ImportError:
        raise MissingExtra("reading programs of torch", "torch", "torch") from None
    return torch


def _check_archive(path: Path) -> None:
    """Refuse what is no archive of torch.export, and what would be unpickled."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            inner = [name.partition("/")[2] or name for name in names]
            is_old = "serialized_exported_program.json" in names
            is_export = is_old or any(name.startswith("models/") and name.endswith(".json") for name in inner)
            if not is_export:
                what = "a pickled checkpoint (torch.save) or TorchScript" if "data.pkl" in inner else "a zip archive"
                raise failure(path, f"is {what}, not a program saved by torch.export.save; pickles are never opened")
            for name, own in zip(names, inner, strict=True):
                is_config = own.startswith("data/constants/") and own.endswith(".json")
                pickled = _pickled_constants(archive.read(name)) if is_config else []
                if "custom_obj" in own or pickled:
                    raise failure(path, f"holds pickled objects ('{own}'), which would run code when they are opened")
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputFileError):
            raise
        raise failure(path, f"is a broken archive: {str(error)[:200] or type(error).__name__}") from None


def _pickled_constants(text: bytes) -> list[str]:
    """Constants of an archive that are no tensors."""
    config = json.loads(text).get("config", {})
    return [name for name, entry in config.items() if str(entry.get("path_name", "")).startswith("custom_obj")]


def _document(exported: Any, *, name: str, source: str, options: ImportOptions, path: Path) -> ImportedDocument:
    from planner.importers.traced.reading import document_of_program

    try:
        program, unknown = program_of(exported)
        check_assumed(path, unknown, options)
        return document_of_program(program, name=name, source=source, assume_free=options.assume_free)
    except ProgramFault as fault:
        raise failure(path, str(fault)) from None


class Ref(str):
    """A tensor among the arguments of an operator, by its name."""

    __slots__ = ()


def program_of(exported: Any) -> tuple[Program, Counter[str]]:
    """Write an exported program in the vocabulary of `planner.importers.traced`.

    Returns
    -------
    program : Program
    unknown : Counter
        Operators that are not known, with their counts.
    """
    return _Export(exported).run()


_NAMESPACES = ("aten", "prims", "prim")


class _Export:
    def __init__(self, exported: Any) -> None:
        self.exported = exported
        self.tensors: dict[str, Tensor] = {}
        self.operations: list[Operation] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.parts: dict[str, tuple[str, ...]] = {}  # operator with several outputs -> their names
        self.unknown: Counter[str] = Counter()
        self.notes: list[str] = []
        self._storages: dict[int, str] = {}
        self._constants = Constants()

    def run(self) -> tuple[Program, Counter[str]]:
        outputs: tuple[str, ...] = ()
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node)
            elif node.op == "get_attr":
                self.tensors[node.name] = Tensor(shape=self._shape(node), role="constant", name=node.name)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                outputs = self._outputs(node)
        batch = self._batch()
        program = Program(
            tensors=self.tensors, operations=self.operations, outputs=outputs, batch=batch, notes=self.notes
        )
        return program, self.unknown

    def _batch(self) -> int:
        inputs = [t for t in self.tensors.values() if t.role == "input" and t.shape]
        if not inputs:
            raise ProgramFault("has no inputs that are tensors")
        return inputs[0].shape[0]

    def _outputs(self, node: Any) -> tuple[str, ...]:
        """Results of the user's module; updated statistics of norms are none."""
        names = []
        kinds = [spec.kind.name for spec in self.exported.graph_signature.output_specs]
        for argument, kind in zip(node.args[0], kinds, strict=False):
            if kind in ("USER_OUTPUT", "LOSS_OUTPUT") and hasattr(argument, "name"):
                names.append(argument.name)
        return tuple(names)

    # -- leaves -------------------------------------------------------------------------------------------------------------

    def _placeholder(self, node: Any) -> None:
        signature = self.exported.graph_signature
        value = node.meta.get("val")
        if not hasattr(value, "shape"):
            return
        key = signature.inputs_to_parameters.get(node.name)
        shape = self._shape(node)
        self.shapes[node.name] = shape
        if key is not None:
            stored = self.exported.state_dict.get(key)
            is_trained = bool(getattr(stored, "requires_grad", True))
            same = self._storages.setdefault(id(stored), key) if stored is not None else key
            self.tensors[node.name] = Tensor(shape=shape, role="parameter", name=key, key=same, is_trained=is_trained)
            return
        is_integer = not value.dtype.is_floating_point and not value.dtype.is_complex
        if node.name in signature.inputs_to_buffers or node.name in signature.inputs_to_lifted_tensor_constants:
            name = signature.inputs_to_buffers.get(node.name) or signature.inputs_to_lifted_tensor_constants[node.name]
            stored = self.exported.state_dict.get(name, self.exported.constants.get(name))
            self.tensors[node.name] = Tensor(
                shape=shape, role="constant", name=name, value=self._constants.keep(node.name, stored)
            )
            return
        self.tensors[node.name] = Tensor(shape=shape, role="input", name=node.name, is_integer=is_integer)

    def _shape(self, node: Any) -> tuple[int, ...]:
        return self._extents(node.meta.get("val"), node.name)

    def _extents(self, value: Any, name: str) -> tuple[int, ...]:
        """Extents as numbers; a dynamic one is that of the example that the program was traced with."""
        result = []
        for extent in getattr(value, "shape", ()):
            if isinstance(extent, int):
                result.append(extent)
                continue
            hint = getattr(extent.node, "hint", None)
            if hint is None:
                raise ProgramFault(
                    f"tensor '{name}' has an extent that depends on the data ({extent}), such as the tokens that a router sends to an "
                    "expert; write the layer so that its shapes are fixed"
                )
            result.append(int(hint))
        return tuple(result)

    # -- operators ----------------------------------------------------------------------------------------------------------

    def _call(self, node: Any) -> None:
        target = str(node.target)
        if "getitem" in getattr(node.target, "__name__", ""):
            source, index = node.args
            names = self.parts.get(source.name, (source.name,))
            if index < len(names):
                self._add(node, "alias", target, [Ref(names[index])], {}, (self._shape(node),), (node.name,))
            return
        space, _, rest = target.partition(".")
        operator = rest.partition(".")[0] if space in _NAMESPACES else target
        value = node.meta.get("val")
        several = isinstance(value, (list, tuple))
        tensors = (
            [item for item in value if hasattr(item, "shape")]
            if several
            else [value]
            if hasattr(value, "shape")
            else []
        )
        if not tensors:
            return  # tests of shapes and numbers
        shapes = tuple(self._extents(item, node.name) for item in tensors)
        names = tuple(f"{node.name}:{i}" for i in range(len(tensors))) if several else (node.name,)
        self.parts[node.name] = names
        for own, shape in zip(names, shapes, strict=True):
            self.shapes[own] = shape
        self.shapes[node.name] = shapes[0]
        if space in _NAMESPACES and not several and self._constants.works_out(node, operator, shapes[0]):
            value = self._constants.numbers(node.name)
            self.tensors[node.name] = Tensor(shape=shapes[0], role="constant", name=node.name, value=value)
            return
        arguments, inputs = self._arguments(node)
        if operator not in OPERATORS or space not in _NAMESPACES:
            self.unknown[target] += 1
            self._add(node, "unknown", target, [item for item in inputs if item is not None], {}, shapes, names)
            return
        call = Call(operator, inputs, arguments, shapes, lambda ref: self.shapes.get(str(ref), ()))
        kind, read, attributes = OPERATORS[operator](call)
        given = [item if isinstance(item, Ref) else None for item in read]
        self._add(node, kind, target, given, attributes, shapes, names)

    def _arguments(self, node: Any) -> tuple[dict[str, Any], list[Any]]:
        """All arguments by name, and those that the operator declares as tensors."""
        schema = getattr(node.target, "_schema", None)
        arguments: dict[str, Any] = {}
        inputs: list[Any] = []
        if schema is None:
            arguments = {f"arg{i}": self._argument(item) for i, item in enumerate(node.args)}
            return arguments, [item for item in arguments.values() if isinstance(item, Ref)]
        for i, declared in enumerate(schema.arguments):
            if i < len(node.args) and not declared.kwarg_only:
                value = node.args[i]
            elif declared.name in node.kwargs:
                value = node.kwargs[declared.name]
            else:
                value = declared.default_value if declared.has_default_value() else None
            own = arguments[declared.name] = self._argument(value)
            if isinstance(own, list):
                inputs += [item for item in own if isinstance(item, Ref)]
            elif "Tensor" in str(declared.type):
                inputs.append(own if isinstance(own, Ref) else None)
        return arguments, inputs

    def _argument(self, value: Any) -> Any:
        if hasattr(value, "op") and hasattr(value, "meta"):
            inner = value.meta.get("val")
            if hasattr(inner, "shape"):
                return Ref(self.parts.get(value.name, (value.name,))[0])
            return getattr(getattr(inner, "node", None), "hint", inner)
        if isinstance(value, (list, tuple)):
            return [self._argument(item) for item in value]
        return value

    def _add(
        self,
        node: Any,
        kind: str,
        source: str,
        inputs: Sequence[Any],
        attributes: dict[str, Any],
        shapes: tuple[tuple[int, ...], ...],
        names: tuple[str, ...],
    ) -> None:
        for own, shape in zip(names, shapes, strict=True):
            self.shapes[own] = shape
        self.operations.append(
            Operation(
                kind=kind,
                source=source,
                inputs=tuple(None if item is None else str(item) for item in inputs),
                outputs=names,
                shapes=shapes,
                attributes=attributes,
                path=_path(node, source if kind == "unknown" else kind, attributes),
            )
        )


def _path(node: Any, kind: str, attributes: dict[str, Any]) -> str:
    """Module of an operation; behind it what it does, unless the module is that alone."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return attributes.get("function") or attributes.get("op") or kind
    path, kind_of_module = stack[-1]
    word = attributes.get("function") or (attributes.get("op") if kind == "binary" else "") or kind
    return scoped(str(path), str(kind_of_module), str(word))


# Modules that hold others, or do several things.
_COMPOSITE = ("Sequential", "ModuleList", "MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder",
              "TransformerEncoderLayer", "TransformerDecoderLayer")  # fmt: skip


def scoped(path: str, class_name: str, word: str) -> str:
    """Name of an operation in a module.

    >>> scoped("layers.0.fc", "torch.nn.modules.linear.Linear", "linear"), scoped("layers.0", "__main__.Block", "add")
    ('layers.0.fc', 'layers.0.add')
    """
    is_leaf = class_name.startswith("torch.nn.modules.") and class_name.rpartition(".")[2] not in _COMPOSITE
    if not path:
        return word
    return path if is_leaf else f"{path}.{word}"


# -- numbers of small constants ---------------------------------------------------------------------------------------------


_MAX_ELEMENTS = 1 << 22  # of one constant: a mask of 2048 positions
_MAX_WORK = 1 << 26  # elements of all of them together
_FOLDED = frozenset({
    "arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "scalar_tensor", "eye",
    "linspace", "tril", "triu", "view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "t",
    "permute", "expand", "expand_as", "slice", "select", "cat", "stack", "clone", "alias", "detach", "to", "_to_copy", "type_as",
    "contiguous", "lift_fresh_copy", "add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "floor", "minimum", "maximum", "min", "max", "clamp", "remainder", "floor_divide",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_not",
    "logical_and", "logical_or", "bitwise_not", "bitwise_and", "bitwise_or", "__and__", "__or__", "where", "masked_fill", "outer", "repeat",
    "_assert_tensor_metadata", "index", "index_select", "roll", "flip", "any", "all", "masked_fill_", "add_", "mul_", "sub_",
})  # fmt: skip


class Constants:
    """Tensors of a program whose numbers are known, by the name of the node that makes them."""

    def __init__(self) -> None:
        self._tensors: dict[str, Any] = {}
        self._work = 0

    def keep(self, name: str, stored: Any) -> Any:
        """Remember a tensor that the program holds; its numbers as an array, None where there are none."""
        is_known = (
            stored is not None
            and hasattr(stored, "numel")
            and stored.device.type == "cpu"
            and stored.numel() <= _MAX_ELEMENTS
            and not stored.dtype.is_complex
            and not _is_fake(stored)
        )
        if is_known:
            self._tensors[name] = stored.detach()
        return self.numbers(name)

    def numbers(self, name: str) -> Any:
        """Numbers as an array; None where they are not known."""
        tensor = self._tensors.get(name)
        if tensor is None:
            return None
        try:
            return (tensor.float() if tensor.dtype.is_floating_point else tensor).numpy()
        except (RuntimeError, TypeError):  # tensors without numbers, of whatever kind
            return None

    def works_out(self, node: Any, operator: str, shape: tuple[int, ...]) -> bool:
        """Work a node out where everything that it reads is known; whether that was possible."""
        elements = math.prod(shape)
        if operator not in _FOLDED or elements > _MAX_ELEMENTS or self._work + elements > _MAX_WORK:
            return False
        try:
            arguments = [self._argument(item) for item in node.args]
            named = {
                key: self._argument(item) for key, item in node.kwargs.items() if key not in ("device", "pin_memory")
            }
        except LookupError:
            return False
        if operator.endswith("_"):  # what it writes into may be a buffer of the program
            arguments[0] = arguments[0].clone()
        makes = any(argument.name == "device" for argument in node.target._schema.arguments)
        try:
            result = node.target(*arguments, **named, **({"device": "cpu"} if makes else {}))
        except Exception:
            return False  # what cannot be worked out stays a tensor whose numbers are not known
        if not hasattr(result, "numel") or tuple(result.shape) != shape or result.dtype.is_complex:
            return False
        self._work += elements
        self._tensors[node.name] = result
        return True

    def _argument(self, item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return [self._argument(one) for one in item]
        if not hasattr(item, "op"):
            return item
        value = item.meta.get("val")
        if isinstance(value, (bool, int, float)):
            return value
        return self._tensors[item.name]


def _is_fake(tensor: Any) -> bool:
    return type(tensor).__name__ == "FakeTensor"


# -- planner.from_torch -----------------------------------------------------------------------------------------------------


def from_torch(
    module: Any,
    example_inputs: Sequence[Any],
    *,
    name: str = "",
    global_batch: int | None = None,
    assume_free: Sequence[str] = (),
) -> LoadedModel:
    """Read a torch module as a network.

    The module is traced by ``torch.export``, which computes nothing; made under ``torch.device("meta")``, it needs no memory for its
    weights either. It is read in the mode that it is in: ``module.train()`` keeps its dropout.

    Parameters
    ----------
    module : torch.nn.Module
        Or a ``torch.fx.GraphModule``.
    example_inputs : sequence of tensors
        The arguments of ``forward``; the first dimension of each is the batch. Their numbers are not read.
    name : str, optional
        Name of the network; the module's class unless given.
    global_batch : int, optional
        Usual samples per training step; the examples' batch unless given.
    assume_free : sequence of str
        Operators that are not known and are taken to cost nothing, which every output says.

    Returns
    -------
    LoadedModel

    Raises
    ------
    UsageError
        torch cannot export it.
    InputFileError
        It has operators that are not known; the message counts them.
    MissingExtra
        torch is not installed.

    Examples
    --------
    >>> import planner, torch  # doctest: +SKIP
    >>> with torch.device("meta"):  # doctest: +SKIP
    ...     module = torch.nn.Linear(8, 4)
    >>> planner.from_torch(module, (torch.zeros(2, 8),)).graph.weight_count  # doctest: +SKIP
    36
    """
    imported = document_of_module(
        module, example_inputs, name=name, options=ImportOptions(assume_free=frozenset(assume_free))
    )
    content = dict(imported.content)
    if global_batch is not None:
        content["global_batch"] = global_batch
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=list).encode()).hexdigest()
    imported = dataclasses.replace(imported, content=content)
    return model_of(document_of(Path(str(content["name"])), digest, content), imported.notes)

"""Programs of torch.export: archives (.pt2), and modules traced here without computing anything.

An archive is read by torch.export's own loader. Parts of an archive that are pickles (objects of other classes than tensors) are
refused before it is opened: unpickling runs code. Small constants (masks, positions, indices) are worked out by torch's own operators,
those of a fixed list, on tensors that the program holds or makes itself, on the CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import json
import logging
import math
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from planner.core.errors import InputFileError, MissingExtra, UsageError
from planner.files.documents import document_of
from planner.files.loading import LoadedModel, model_of
from planner.files.text import failure
from planner.importers.operators import OPERATORS, Call
from planner.importers.sources import ImportedDocument
from planner.importers.traced.program import Program, ProgramFault, Tensor

FORMAT = "torch.export archive"

_HINT = "; a decision depends on the data: give torch's transformer layers is_causal (tgt_is_causal) and write loops with fixed shapes"
_ZIP = b"PK\x03\x04"
# The first whose loader reads tensors without unpickling anything else (weights_only by default).
_MIN_TORCH = (2, 6)
# Parts of an archive that torch unpickles, or loads as machine code.
_RUN = ("custom_obj", "opaque_obj", "aotinductor")


def detect(head: bytes) -> bool:
    r"""Whether a file begins like a zip archive, which torch's files are.

    >>> detect(b"PK\x03\x04..."), detect(b"name: net")
    (True, False)
    """
    return head.startswith(_ZIP)


def load(path: Path, assume_free: frozenset[str]) -> ImportedDocument:
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
    met: list[Exception] = []
    try:
        with _quiet_and_safe(met):
            exported = torch.export.load(str(path))
    except Exception as error:  # whatever the loader meets in a broken file
        first = met[0] if met else error
        reason = str(first).partition("\n")[0][:200]
        raise failure(path, f"cannot be read as a {FORMAT}: {type(first).__name__}: {reason}") from None
    imported = _document(exported, path.stem, f"{FORMAT} {path.name}", path, assume_free)
    return dataclasses.replace(imported, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@contextlib.contextmanager
def _quiet_and_safe(met: list[Exception]) -> Iterator[None]:
    """While torch loads an archive: nothing but tensors is unpickled, and errors that it logs are kept instead of printed.

    The loader unpickles whatever the plain way refuses (``weights_only=False``), the example inputs for one, unless a variable of the
    environment forbids it: https://docs.pytorch.org/docs/stable/notes/serialization.html
    """

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], Exception):
            met.append(record.exc_info[1])
        return False

    logger, before = logging.getLogger("torch.export"), dict(os.environ)
    os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    os.environ["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    logger.addFilter(keep)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.removeFilter(keep)
        for name in ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def _torch() -> Any:
    try:
        importlib.import_module("torch.export")
        return importlib.import_module("torch")
    except ImportError:
        raise MissingExtra("reading programs of torch", "torch", "torch") from None


def _document(exported: Any, name: str, source: str, path: Path, assume_free: frozenset[str]) -> ImportedDocument:
    from planner.importers.traced.reading import document_of_program

    try:
        return document_of_program(program_of(exported), name, source, path, assume_free)
    except ProgramFault as fault:
        raise failure(path, str(fault)) from None


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
            for entry, own in zip(archive.infolist(), inner, strict=True):  # several may have one name
                is_config = own.startswith(("data/constants/", "data/weights/")) and own.endswith(".json")
                if any(kind in own for kind in _RUN) or (is_config and _has_pickles(archive.read(entry))):
                    raise failure(
                        path, f"holds pickled objects or programs ('{own}'), which would run code when they are opened"
                    )
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, InputFileError):
            raise
        raise failure(path, f"is a broken archive: {str(error)[:200] or type(error).__name__}") from None


def _has_pickles(text: bytes) -> bool:
    """Whether a list of weights or constants names anything but plain tensors; ValueError if it is no such list."""
    content = json.loads(text)
    entries = content.get("config") if isinstance(content, dict) else None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise ValueError("a list of its tensors is not one of torch.export")
    return any(
        entry.get("use_pickle") or not str(entry.get("path_name")).startswith(("weight_", "tensor_"))
        for entry in entries.values()
    )


# -- programs ---------------------------------------------------------------------------------------------------------------


_NAMESPACES = ("aten", "prims", "prim")
# Small constants that are worked out: elements of one (a mask of 4096 positions), bytes of all of them together, and by what.
_MAX_ELEMENTS = 1 << 24
_MAX_BYTES = 1 << 31
_FOLDED = frozenset({
    "arange", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "scalar_tensor", "eye",
    "linspace", "tril", "triu", "view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "transpose", "t",
    "permute", "expand", "expand_as", "slice", "select", "cat", "stack", "clone", "alias", "detach", "to", "_to_copy", "type_as",
    "contiguous", "lift_fresh_copy", "add", "sub", "rsub", "mul", "div", "pow", "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "floor", "minimum", "maximum", "min", "max", "clamp", "remainder", "floor_divide",
    "eq", "ne", "lt", "le", "gt", "ge", "logical_not",
    "logical_and", "logical_or", "bitwise_not", "bitwise_and", "bitwise_or", "__and__", "__or__", "where", "masked_fill", "outer", "repeat",
    "_assert_tensor_metadata", "index", "index_select", "roll", "flip", "any", "all", "masked_fill_", "add_", "mul_", "sub_",
    "fill_", "zero_", "copy_",
})  # fmt: skip


class _Ref(str):
    """A tensor among the arguments of an operator, by its name."""

    __slots__ = ()


def program_of(exported: Any) -> Program:
    """Write an exported program in the vocabulary of `planner.importers.traced`."""
    return _Export(exported).run()


class _Export:
    def __init__(self, exported: Any) -> None:
        self.exported = exported
        self.program = Program()
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.parts: dict[str, tuple[str, ...]] = {}  # operator with several outputs -> their names
        self._storages: dict[int, str] = {}
        self._renamed: dict[str, str] = {}  # tensor that was written in place -> what it is since
        self._views: dict[str, str] = {}  # view -> the tensor that it is a part of
        self._constants: dict[str, Any] = {}  # tensors whose numbers are known, by the node that makes them
        self._kept: set[int] = set()  # memory of those that the program holds, which is not written
        self._bytes = 0  # of what was worked out

    def run(self) -> Program:
        program, kinds = self.program, [spec.kind.name for spec in self.exported.graph_signature.output_specs]
        for node in self.exported.graph.nodes:
            match node.op:
                case "placeholder" if hasattr(node.meta.get("val"), "shape"):
                    self._placeholder(node, node.meta["val"])
                case "get_attr":
                    shape = self._extents(node.meta.get("val"), node.name)
                    program.tensors[node.name] = Tensor(shape=shape, role="constant", name=node.name)
                case "call_function":
                    self._call(node)
                case "output":  # updated statistics of norms are none
                    made = zip(node.args[0], kinds, strict=False)
                    results = [argument for argument, kind in made if kind in ("USER_OUTPUT", "LOSS_OUTPUT")]
                    program.outputs = tuple(argument.name for argument in results if hasattr(argument, "name"))
        inputs = [t for t in program.tensors.values() if t.role == "input" and t.shape]
        if not inputs:
            raise ProgramFault("has no inputs that are tensors")
        program.batch = inputs[0].shape[0]
        return program

    def _placeholder(self, node: Any, value: Any) -> None:
        signature, state, tensors = self.exported.graph_signature, self.exported.state_dict, self.program.tensors
        shape = self.shapes[node.name] = self._extents(value, node.name)
        key = signature.inputs_to_parameters.get(node.name)
        buffer = signature.inputs_to_buffers.get(node.name, signature.inputs_to_lifted_tensor_constants.get(node.name))
        if key is not None:
            stored = state.get(key)
            is_trained = bool(getattr(stored, "requires_grad", True))
            same = self._storages.setdefault(id(stored), key) if stored is not None else key
            tensors[node.name] = Tensor(shape=shape, role="parameter", name=key, key=same, is_trained=is_trained)
        elif buffer is not None:
            self._keep(node.name, state.get(buffer, self.exported.constants.get(buffer)))
            numbers = self._numbers(node.name)
            tensors[node.name] = Tensor(shape=shape, role="constant", name=buffer, value=numbers)
        else:
            is_integer = not value.dtype.is_floating_point and not value.dtype.is_complex
            tensors[node.name] = Tensor(shape=shape, role="input", name=node.name, is_integer=is_integer)

    def _extents(self, value: Any, name: str) -> tuple[int, ...]:
        """Extents as numbers; a dynamic one is that of the example that the program was traced with."""
        result = []
        for extent in getattr(value, "shape", ()):
            number = extent if isinstance(extent, int) else getattr(extent.node, "hint", None)
            if number is None:
                raise ProgramFault(
                    f"tensor '{name}' has an extent that depends on the data ({extent}), such as the tokens that a router sends to an "
                    "expert; write the layer so that its shapes are fixed"
                )
            result.append(int(number))
        return tuple(result)

    # -- operators ----------------------------------------------------------------------------------------------------------

    def _call(self, node: Any) -> None:
        target, value = str(node.target), node.meta.get("val")
        if "getitem" in getattr(node.target, "__name__", ""):
            source, index = node.args
            names = self.parts.get(source.name, (source.name,))
            if index < len(names):
                self._add(node, "alias", [_Ref(names[index])], {}, (self._extents(value, node.name),), (node.name,))
            return
        space, _, rest = target.partition(".")
        operator = rest.partition(".")[0] if space in _NAMESPACES else target
        several = isinstance(value, (list, tuple))
        tensors = [item for item in (value if several else [value]) if hasattr(item, "shape")]
        if not tensors:
            return  # tests of shapes and numbers
        shapes = tuple(self._extents(item, node.name) for item in tensors)
        names = tuple(f"{node.name}:{i}" for i in range(len(tensors))) if several else (node.name,)
        self.parts[node.name] = names
        self.shapes[node.name] = shapes[0]
        writes = self._note_views(node)
        if space in _NAMESPACES and not several and self._works_out(node, operator, shapes[0]):
            numbers = self._numbers(node.name)
            made = Tensor(shape=shapes[0], role="constant", name=node.name, value=numbers)
            self.program.tensors[node.name] = made
            return
        arguments, inputs = self._arguments(node)
        if operator not in OPERATORS or space not in _NAMESPACES:
            self.program.unknown[target] += 1
            self._add(node, "unknown", [item for item in inputs if item is not None], {}, shapes, names)
            return
        call = Call(operator, inputs, arguments, shapes, lambda ref: self.shapes.get(str(ref), ()))
        kind, read, attributes = OPERATORS[operator](call)
        self._add(node, kind, [item if isinstance(item, _Ref) else None for item in read], attributes, shapes, names)
        if writes is not None:
            self._written(node, writes)

    def _note_views(self, node: Any) -> str | None:
        """Remember whose part a result is; the tensor that an operator writes in place, None of any other."""
        schema = getattr(node.target, "_schema", None)
        declared = schema.arguments[0].alias_info if schema is not None and schema.arguments else None
        if declared is None or not node.args or not hasattr(node.args[0], "name"):
            return None
        source = str(node.args[0].name)
        self._views[node.name] = self._views.get(source, source)
        return source if declared.is_write else None

    def _written(self, node: Any, target: str) -> None:
        """What reads a tensor behind an operator that wrote it, or a part of it, in place reads the result."""
        whole = self._views.get(target, target)
        if whole == target:
            self._renamed[target] = node.name
            return
        name, before = f"{node.name}:written", self._renamed.get(whole, whole)
        self._renamed[whole] = name
        shape = self.shapes[whole]
        self._add(node, "write", [_Ref(before), _Ref(node.name)], {}, (shape,), (name,))

    def _arguments(self, node: Any) -> tuple[dict[str, Any], list[Any]]:
        """All arguments by name, and those that the operator declares as tensors."""
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            arguments = {f"arg{i}": self._argument(item) for i, item in enumerate(node.args)}
            return arguments, [item for item in arguments.values() if isinstance(item, _Ref)]
        arguments, inputs = dict[str, Any](), list[Any]()
        for i, declared in enumerate(schema.arguments):
            if i < len(node.args) and not declared.kwarg_only:
                value = node.args[i]
            else:
                default = declared.default_value if declared.has_default_value() else None
                value = node.kwargs.get(declared.name, default)
            own = arguments[declared.name] = self._argument(value)
            if isinstance(own, list):
                inputs += [item for item in own if isinstance(item, _Ref)]
            elif "Tensor" in str(declared.type):
                inputs.append(own if isinstance(own, _Ref) else None)
        return arguments, inputs

    def _argument(self, value: Any) -> Any:
        if hasattr(value, "op") and hasattr(value, "meta"):
            inner = value.meta.get("val")
            if hasattr(inner, "shape"):
                first = self.parts.get(value.name, (value.name,))[0]
                return _Ref(self._renamed.get(first, first))
            return getattr(getattr(inner, "node", None), "hint", inner)
        if isinstance(value, (list, tuple)):
            return [self._argument(item) for item in value]
        return value

    def _add(
        self,
        node: Any,
        kind: str,
        inputs: Sequence[str | None],
        attributes: dict[str, Any],
        shapes: tuple[tuple[int, ...], ...],
        names: tuple[str, ...],
    ) -> None:
        self.shapes.update(zip(names, shapes, strict=True))
        modules = list((node.meta.get("nn_module_stack") or {}).values())
        module = modules[-1] if modules else ("", "")
        self.program.add(kind, str(node.target), inputs, names, shapes, attributes, module)

    # -- numbers of small constants ------------------------------------------------------------------------------------------

    def _keep(self, name: str, stored: Any) -> None:
        """Remember a tensor that the program holds, if it is small and has numbers."""
        if (
            hasattr(stored, "numel")
            and stored.device.type == "cpu"
            and stored.numel() <= _MAX_ELEMENTS
            and not stored.dtype.is_complex
            and type(stored).__name__ != "FakeTensor"
        ):
            self._constants[name] = stored.detach()
            self._kept.add(stored.untyped_storage().data_ptr())

    def _numbers(self, name: str) -> Any:
        """Numbers as an array; None where they are not known."""
        tensor = self._constants.get(name)
        if tensor is None:
            return None
        try:
            return (tensor.float() if tensor.dtype.is_floating_point else tensor).numpy()
        except (RuntimeError, TypeError):  # tensors without numbers, of whatever kind
            return None

    def _works_out(self, node: Any, operator: str, shape: tuple[int, ...]) -> bool:
        """Work a node out where everything that it reads is known; whether that was possible."""
        if operator not in _FOLDED or math.prod(shape) > _MAX_ELEMENTS or self._bytes > _MAX_BYTES:
            return False
        try:
            # Of what it is like, a new tensor has the kind of numbers alone.
            is_new = operator.startswith("new_") and hasattr(node.args[0].meta.get("val"), "dtype")
            like = [_torch().empty(0, dtype=node.args[0].meta["val"].dtype)] if is_new else []
            arguments = [*like, *self._known(node.args[len(like) :])]
            named = {key: self._known(item) for key, item in node.kwargs.items() if key not in ("device", "pin_memory")}
        except LookupError:
            return False
        if operator.endswith("_") and arguments[0].untyped_storage().data_ptr() in self._kept:
            arguments[0] = arguments[0].clone()
        if any(argument.name == "device" for argument in node.target._schema.arguments):
            named["device"] = "cpu"
        try:
            result = node.target(*arguments, **named)
        except Exception:
            return False  # what cannot be worked out stays a tensor whose numbers are not known
        if not hasattr(result, "numel") or tuple(result.shape) != shape or result.dtype.is_complex:
            return False
        self._bytes += 0 if result._is_view() else result.nbytes
        self._constants[node.name] = result
        return True

    def _known(self, item: Any) -> Any:
        if isinstance(item, (list, tuple)):
            return [self._known(one) for one in item]
        if not hasattr(item, "op"):
            return item
        value = item.meta.get("val")
        return value if isinstance(value, (bool, int, float)) else self._constants[item.name]


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
    torch = _torch()
    kind = type(module).__name__
    if not isinstance(module, torch.nn.Module):
        raise UsageError(f"from_torch takes a torch.nn.Module, not {kind}")
    inputs = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
    device = next((tensor.device for tensor in [*module.parameters(), *module.buffers()]), None)
    # Nothing is computed, so tensors on the device of the module will do, be it the meta device.
    moved = tuple(
        torch.empty_like(item, device=device)
        if isinstance(item, torch.Tensor) and item.device != (device or item.device)
        else item
        for item in inputs
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported = torch.export.export(module, moved)
    except Exception as error:  # dynamic control flow, wrong inputs, ...
        reason = next((line for line in str(error).splitlines() if line.strip()), "")[:300]
        hint = _HINT if "DataDependent" in type(error).__name__ else ""
        raise UsageError(f"torch.export cannot trace {kind}: {type(error).__name__}: {reason}{hint}") from error
    title = name or kind
    imported = _document(exported, title, f"torch.export of {kind}", Path(title), frozenset(assume_free))
    content = dict(imported.content)
    if global_batch is not None:
        content["global_batch"] = global_batch
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=list).encode()).hexdigest()
    return model_of(document_of(Path(str(content["name"])), digest, content), imported.notes)

"""A program as a network file. It is converted, joined (projections of one tensor, gated units), its parameters counted, and written."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from costmodel.network.layers import Layer, params_from
from planner.importers.drafts import Drafts, clean_name, with_params
from planner.importers.sources import ImportedDocument, check_assumed, counts_text, network_content
from planner.importers.traced import arithmetic, products, shapes, windows  # noqa: F401 - they register what reads each operation
from planner.importers.traced.conversion import Conversion
from planner.importers.traced.program import Program, ProgramFault


def document_of_program(
    program: Program, name: str, source: str, path: Path, assume_free: frozenset[str]
) -> ImportedDocument:
    """Make a network file of a program.

    Parameters
    ----------
    program : Program
    name, source : str
        Of the network file.
    path : Path
        The program's file.
    assume_free : frozenset of str
        Operators outside the vocabulary that cost nothing.

    Raises
    ------
    ProgramFault
        The program is not a network that layers here can describe; the message names the operation.
    InputFileError
        It has operators that are not known.
    """
    check_assumed(path, program.unknown, assume_free)
    conversion, outputs = _converted(program, assume_free)
    drafts = conversion.drafts
    if all(draft.kind == "input" for draft in drafts.layers.values()):
        raise ProgramFault("has no operations that work on its inputs")
    join(drafts, outputs)
    counted, owned = sum(draft.weight_count for draft in drafts.layers.values()), sum(conversion.owned.values())
    differs = f"the layers count {counted:,} parameters, the program uses {owned:,}: shared or partly used ones differ"
    free = f"; assumed free: {', '.join(conversion.assumed)}" if conversion.assumed else ""
    notes = [
        *conversion.notes,
        *([differs] if counted != owned else []),
        *([f"ASSUMED FREE by --assume-free: {counts_text(conversion.assumed)}"] if free else []),
    ]
    seq = _sequence_length(drafts)
    header = {
        "name": clean_name(name),
        "source": source + free,
        "global_batch": conversion.program.batch,
        **({} if seq is None else {"seq": seq}),
    }
    content = network_content(drafts, header=header, outputs=outputs)
    if seq is not None:
        for entry in content["layers"]:
            if entry.get("type") == "input":
                entry["shape"] = [entry["shape"][0], "$seq"]
    return ImportedDocument(content=content, notes=tuple(dict.fromkeys(notes)))


def _converted(program: Program, assume_free: frozenset[str]) -> tuple[Conversion, tuple[str, ...]]:
    """Read a program, and where operations then work across samples, with the second dimension of the inputs for the samples.

    torch's recurrent layers and transformers have positions before samples unless told otherwise, and a program does not say which is
    which; only what mixes the elements of a dimension does.
    """
    first = Conversion(program, assume_free)
    fault: ProgramFault | None = None
    outputs: tuple[str, ...] = ()
    try:
        outputs = first.run()
    except ProgramFault as error:
        fault = error
    shapes_of_inputs = [tensor.shape for tensor in program.tensors.values() if tensor.role == "input"]
    real = [shape for shape in shapes_of_inputs if len(shape) in (2, 3)]
    batch = real[0][1] if real else 0
    differ = len({shape[0] for shape in real}) > 1 and len({shape[1] for shape in real}) == 1
    if batch and (first.mixes_samples or (fault is not None and differ)):
        note = "the second dimension of the inputs is taken for the samples, the first for the positions"
        other = Conversion(
            dataclasses.replace(program, batch=batch, batch_axis=1, notes=[*program.notes, note]), assume_free
        )
        try:
            found = other.run()
        except ProgramFault:
            found = None
        if found is not None and not other.mixes_samples:
            return other, found
    if fault is not None:
        raise fault
    return first, outputs


def _sequence_length(drafts: Drafts) -> int | None:
    """Positions of the inputs, where they alone say how long everything is: no layer states a shape or a position."""
    shapes_of_inputs = [draft.output_shape for draft in drafts.layers.values() if draft.kind == "input"]
    lengths = {shape[1] if len(shape) == 2 else None for shape in shapes_of_inputs}
    stated = ("rearrange", "reduce", "assumed_free", "flatten", "matmul")
    if len(lengths) != 1 or any(draft.kind in stated for draft in drafts.layers.values()):
        return None
    return lengths.pop()


# -- layers that are one in all but name ------------------------------------------------------------------------------------


_GATES = {"swish": "silu", "gelu": "gelu", "relu": "relu", "sigmoid": "sigmoid"}


def join(drafts: Drafts, outputs: Iterable[str]) -> None:
    """Join sibling projections and gated units, in place.

    *Queries, keys and values*: a concatenation that alone reads linear layers of one input is one linear layer with all their outputs.
    *Gated units*: function(gate) x value, of two such layers or of the halves of one, is a `glu`.
    """
    kept = set(outputs)
    _remove_unused(drafts, kept)
    _gates(drafts, kept)
    _concats(drafts, kept)


def _remove_unused(drafts: Drafts, kept: set[str]) -> None:
    """Layers without weights that nothing reads: masks' inputs, halves that were tried."""
    unused = [""]
    while unused:
        readers = drafts.readers()
        unused = [
            name
            for name, draft in drafts.layers.items()
            if not readers[name]
            and name not in kept
            and draft.kind in ("input", "rearrange", "slice_features", "reduce")
            and len(drafts.layers) > 1
        ]
        for name in unused:
            del drafts.layers[name]


def _alone(drafts: Drafts, names: Iterable[str], reader: str, kept: set[str]) -> bool:
    readers = drafts.readers()
    return all(readers[name] == [reader] and name not in kept for name in names)


def _siblings(drafts: Drafts, names: Iterable[str]) -> list[Layer] | None:
    """Linear layers of one input that differ in their outputs only."""
    found = [drafts.layers[name] for name in names]
    first = found[0]
    if any(draft.kind != "linear" for draft in found) or len({draft.name for draft in found}) < len(found):
        return None
    same = all(
        draft.inputs == first.inputs
        and draft.frozen == first.frozen
        and with_params(draft, out_features=1).params == with_params(first, out_features=1).params
        for draft in found
    )
    return found if same and not first.params.tied else None


def _merge(drafts: Drafts, parts: list[Layer], target: str, suffix: str) -> str:
    """Put one linear layer in the place of the first of some."""
    first, outputs = parts[0], sum(part.params.out_features for part in parts)
    folder = first.name.rpartition("/")[0]
    name = f"{folder}/{suffix}" if folder else suffix
    if name in drafts.layers and name != target:
        name = f"{first.name}_{suffix}"
    shape = (outputs, *first.output_shape[1:])
    merged = dataclasses.replace(with_params(first, out_features=outputs), name=name, output_shape=shape)
    gone = {part.name for part in parts[1:]}
    kept = [merged if draft.name == first.name else draft for draft in drafts.layers.values() if draft.name not in gone]
    drafts.layers = {draft.name: draft for draft in kept}
    return name


def _concats(drafts: Drafts, kept: set[str]) -> None:
    for name in [draft.name for draft in drafts.layers.values() if draft.kind == "concat" and draft.name not in kept]:
        concat = drafts.layers[name]
        parts = _siblings(drafts, concat.inputs)
        if parts is None or not _alone(drafts, concat.inputs, name, kept):
            continue
        del drafts.layers[name]
        merged = _merge(drafts, parts, name, "kv" if len(parts) == 2 else "qkv")
        for reader, draft in drafts.layers.items():
            inputs = tuple(merged if parent == name else parent for parent in draft.inputs)
            drafts.layers[reader] = dataclasses.replace(draft, inputs=inputs)


def _gates(drafts: Drafts, kept: set[str]) -> None:
    for name in list(drafts.layers):
        draft = drafts.layers.get(name)
        if (
            draft is None
            or draft.kind != "pointwise"
            or draft.params != params_from("pointwise", {"flop": 1.0})
            or len(draft.inputs) != 2
        ):
            continue
        for gate, value in (draft.inputs, draft.inputs[::-1]):
            if gate in drafts.layers and _glu(drafts, draft, gate, value, kept):
                break


def _glu(drafts: Drafts, product: Layer, gate: str, value: str, kept: set[str]) -> bool:
    activation = drafts.layers[gate]
    function = _GATES.get(str(getattr(activation.params, "function", None)))
    if activation.kind != "activation" or function is None or len(product.output_shape) > 2 or gate == value:
        return False
    source = activation.inputs[0]
    if not (_alone(drafts, [gate, value], product.name, kept) and _alone(drafts, [source], gate, kept)):
        return False
    layers = drafts.layers
    if layers[source].kind == "slice_features" and layers[value].kind == "slice_features":
        whole = layers[source].inputs[0]
        half = product.output_shape[0]
        if layers[value].inputs != (whole,) or layers[whole].output_shape[0] != 2 * half:
            return False
        if {layers[one].params.start for one in (source, value)} != {0, half}:
            return False
        for one in (source, value, gate):
            del layers[one]
    else:
        parts = _siblings(drafts, [source, value])
        if parts is None or parts[0].output_shape != parts[1].output_shape:
            return False
        del layers[gate]
        # In the place of the later one, so that both inputs exist.
        whole = _merge(drafts, parts, product.name, "gate_up")
    shape = drafts.layers[whole].output_shape
    drafts.layers[product.name] = dataclasses.replace(
        product, kind="glu", params=params_from("glu", {"function": function}), inputs=(whole,), input_shapes=(shape,)
    )
    return True

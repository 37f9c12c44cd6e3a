"""A program as a network file: converts, joins, checks the count of parameters, writes."""

from __future__ import annotations

import dataclasses
from typing import Any

from planner.importers.documents import ImportedDocument
from planner.importers.drafts import Drafts, clean_name
from planner.importers.sources import network_content
from planner.importers.traced import arithmetic, einsum, products, recurrent, shapes, tables, windows
from planner.importers.traced.conversion import KINDS, Conversion
from planner.importers.traced.joining import join
from planner.importers.traced.program import Program, ProgramFault

__all__ = ["document_of_program"]

# Importing them registers what reads each operation.
_HANDLERS = (arithmetic, einsum, products, recurrent, shapes, tables, windows)
assert all(module.KINDS is KINDS for module in _HANDLERS), "one table, filled by all of them"


def document_of_program(
    program: Program, *, name: str, source: str, assume_free: frozenset[str] = frozenset()
) -> ImportedDocument:
    """Make a network file of a program.

    Parameters
    ----------
    program : Program
    name, source : str
        Of the network file.
    assume_free : frozenset of str
        Operators outside the vocabulary that cost nothing.

    Raises
    ------
    ProgramFault
        The program is not a network that layers here can describe; the message names the operation.
    """
    conversion, outputs = _converted(program, assume_free)
    drafts = conversion.drafts
    if all(draft.kind == "input" for draft in drafts.layers.values()):
        raise ProgramFault("has no operations that work on its inputs")
    join(drafts, outputs)
    notes = list(conversion.notes)
    counted = sum(draft.weight_count for draft in drafts.layers.values())
    owned = sum(conversion.owned.values())
    if counted != owned:
        notes.append(
            f"the layers count {counted:,} parameters, the program uses {owned:,}: shared or partly used ones differ"
        )
    free = ""
    if conversion.assumed:
        listed = ", ".join(f"{operator} ({count})" for operator, count in conversion.assumed.items())
        notes.append(f"ASSUMED FREE by --assume-free: {listed}")
        free = f"; assumed free: {', '.join(conversion.assumed)}"
    header: dict[str, Any] = {
        "name": clean_name(name),
        "source": source + free,
        "global_batch": conversion.program.batch,
    }
    seq = _sequence_length(drafts)
    if seq is not None:
        header["seq"] = seq
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

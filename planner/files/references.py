"""References of a network file to parameters (``$name``): every one is checked once, whether its block is used or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from planner.core.errors import did_you_mean
from planner.files.documents import Document, Location, Node
from planner.schema.common import is_reference
from planner.schema.model import NetworkFile

__all__ = ["SEQ", "check_references"]

SEQ = "$seq"
_NO_SEQ = (
    "'$seq' stands for the positions of a sample, and this file does not say how many; add a line like 'seq: 2048'"
)


class _Note(Protocol):
    def __call__(self, location: Location, message: str, *, at_key: bool = False) -> None: ...


def check_references(network: NetworkFile, document: Document, seq: int | None, note: _Note) -> None:
    """Note parameters that nothing has, and those that stand in two places.

    Parameters
    ----------
    network : NetworkFile
    document : Document
        The file it was read from.
    seq : int or None
        What ``$seq`` stands for.
    note : function
        Takes the place of a problem and the message.
    """

    def check(node: Node, location: Location, block: str, known: Sequence[str]) -> None:
        for step, child in (node.children or {}).items():  # as deep as a document may be: recursion is safe
            check(child, (*location, step), block, known)
        if is_reference(node.value) and node.value[1:] not in known and (node.value != SEQ or seq is None):
            note(location, _missing(node.value, block, known))

    check(document.find(("layers",))[0], ("layers",), "", ())
    for name, block in network.blocks.items():
        for parameter in block.parameters:
            if parameter in block.defaults:
                location = ("blocks", name, "defaults", parameter)
                note(location, f"'{parameter}' is listed under 'parameters' as well; keep one", at_key=True)
        for parameter, value in block.defaults.items():
            if value == SEQ and seq is None:
                note(("blocks", name, "defaults", parameter), _NO_SEQ)
        for body in ("layers", "branches"):
            node, found, _ = document.find(("blocks", name, body))
            if len(found) == 3:
                check(node, found, name, (*block.parameters, *block.defaults))


def _missing(reference: str, block: str, known: Sequence[str]) -> str:
    """Why a reference means nothing."""
    if reference == SEQ:
        return _NO_SEQ
    if not block:
        return f"'{reference}' names a parameter, and only the layers of a block have parameters"
    hint = did_you_mean(reference[1:], known) or f"; it has {', '.join(known) or 'none'}"
    return f"block '{block}' has no parameter '{reference[1:]}'{hint}"

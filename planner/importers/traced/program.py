"""The vocabulary that front ends write a graph of tensors in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Operation", "Program", "ProgramFault", "Tensor"]


class ProgramFault(ValueError):  # noqa: N818 - named after the situation
    """An operation cannot be read; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor that is not the result of an operation.

    Attributes
    ----------
    key : str
        Identity of a parameter's storage: tied parameters have the same.
    value : array, optional
        Of small constants.
    is_trained : bool
        A parameter that gets a gradient.
    """

    shape: tuple[int, ...]
    role: Literal["input", "parameter", "constant"]
    name: str
    key: str = ""
    is_integer: bool = False
    is_trained: bool = True
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation.

    Attributes
    ----------
    kind : str
        Of the vocabulary in `planner.importers.traced.conversion`.
    source : str
        What the foreign program calls the operator.
    inputs : tuple
        Names of tensors; None for those left out.
    shapes : tuple
        Of the outputs.
    path : str
        Module or scope that it belongs to.
    """

    kind: str
    source: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    path: str = ""


@dataclass(slots=True, kw_only=True)
class Program:
    """A graph of tensors in topological order.

    Attributes
    ----------
    batch : int
        Samples of the example: the extent of the dimension ``batch_axis`` of the inputs.
    is_fused : bool
        Attention that is written out is run by a fused kernel.
    has_scopes : bool
        Paths of operations name layers better than parameters do.
    """

    tensors: dict[str, Tensor]
    operations: list[Operation]
    outputs: tuple[str, ...]
    batch: int
    batch_axis: int = 0
    is_fused: bool = False
    has_scopes: bool = False
    notes: list[str] = field(default_factory=list)

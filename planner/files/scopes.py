"""What the unfolding of a network file keeps while names are not looked up yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.files.documents import Location

__all__ = ["Pending", "Scope", "Target", "Value"]


@dataclass(frozen=True, slots=True)
class Value:
    """A parameter's value, where it was written, and the scope whose names it may use."""

    value: Any
    location: Location
    scope: Scope


@dataclass(frozen=True, slots=True)
class Target:
    """An input as written: a word of a scope."""

    text: str
    location: Location
    scope: Scope


@dataclass(slots=True)
class Scope:
    """What the names of a list of layers mean. Branches see their surroundings (``parent``), blocks do not."""

    prefix: str
    parent: Scope | None = None
    input: str | Target | None = None  # full name, or not yet looked up
    values: Mapping[str, Value] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    nesting: int = 0
    block: str = ""  # whose body this is
    instance: str = ""  # full name of the outermost repetition around
    frozen: bool = False


@dataclass(slots=True)
class Pending:
    """A layer whose inputs are not looked up yet: they may be written further down."""

    name: str
    kind: str
    params: Any
    inputs: tuple[str | Target, ...]
    location: Location
    block: str = ""
    frozen: bool = False
    lora_rank: int = 0

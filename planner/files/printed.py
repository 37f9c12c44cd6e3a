"""How loaded networks, devices and clusters print, and show in notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.core.blocks import Block

__all__ = ["Printed"]

_WIDTH = 120


class Printed(ABC):
    """Base of what is loaded; a class says in `_blocks` what it shows."""

    __slots__ = ()
    path: Path

    @abstractmethod
    def _blocks(self) -> Sequence[Block]: ...

    def __str__(self) -> str:
        from planner.report.text import plain_text

        return plain_text(self._blocks(), _WIDTH).rstrip("\n")

    def __repr__(self) -> str:
        return f"<planner.{type(self).__name__} of {self.path}>"

    def _repr_html_(self) -> str:
        from planner.report.notebook import html_of

        return html_of(self._blocks())

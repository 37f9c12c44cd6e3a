"""What the inputs of a network file mean: words of a scope become full names of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from planner.core.errors import did_you_mean
from planner.files.documents import Location
from planner.files.scopes import Scope, Target
from planner.schema.common import is_reference

__all__ = ["MAX_NESTING", "InputNames"]

MAX_NESTING = 16  # blocks inside blocks
_MAX_COMPARISONS = 50_000  # names that are compared with misspelt ones: a second or so


class InputNames:
    """Resolves the inputs of layers once all layers are known.

    Parameters
    ----------
    note : function of place and message
        Reports a problem.
    origins : mapping
        Full name of a layer or group -> where it is written.
    outputs : mapping
        Full name of a group -> its output.
    broken : collection of str
        Entries whose problems are reported: what they would have held is not missing.
    """

    def __init__(
        self,
        note: Callable[[Location, str], None],
        origins: Mapping[str, Location],
        outputs: Mapping[str, str | Target | None],
        broken: Collection[str],
    ) -> None:
        self._note = note
        self._origins = origins
        self._outputs = outputs
        self._broken = broken
        self._misses = 0

    def resolve(self, target: str | Target | None) -> str | None:
        """Follow a name to a layer; None where that fails, which is then noted."""
        for _ in range(4 * MAX_NESTING + 4 * len(self._outputs)):
            if isinstance(target, Target):
                target = self._meaning(target)
            elif target is None or target not in self._outputs:
                return target
            else:
                target = self._outputs[target]
        return None

    def _handed_in(self, target: Target) -> Target | None:
        """What a parameter that stands for a layer means where the block is used."""
        found = target.scope.values.get(target.text[1:])
        if found is None:
            if target.text == "$seq":
                self._note(target.location, "expected the name of a layer, '$seq' is a number")
            return None  # others are noted where references are checked
        if not isinstance(found.value, str):
            self._note(found.location, f"expected the name of a layer, got {found.value}")
            return None
        return Target(found.value, found.location, found.scope)

    def _meaning(self, target: Target) -> str | Target | None:
        if is_reference(target.text):
            return self._handed_in(target)
        scope: Scope | None = target.scope
        visible: list[str] = []
        while scope is not None:
            if target.text == "input" and scope.input is not None:
                return scope.input
            full = scope.prefix + target.text
            if full in self._origins or full in self._outputs:
                return full
            if any(full[:end] in self._broken for end, letter in enumerate(full) if letter == "."):
                return None
            visible += scope.names
            scope = scope.parent
        self._misses += 1
        hint = did_you_mean(target.text, visible) if self._misses * len(visible) < _MAX_COMPARISONS else ""
        where = f" in block '{target.scope.block}'" if target.scope.block else ""
        self._note(target.location, f"input '{target.text[:60]}' does not exist{where}{hint}")
        return None

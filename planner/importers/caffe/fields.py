"""Fields of a message with their types checked; every fault knows its place in the file."""

from __future__ import annotations

from planner.importers.caffe.text_format import Message, Value

__all__ = ["Fault", "Fields"]

_MAX_EXTENT = 10**9


class Fault(ValueError):  # noqa: N818 - caught and attached to its file
    """What is wrong in a message. ``is_follow_up``: its cause is reported already."""

    def __init__(self, message: str, line: int, column: int, where: str = "", *, is_follow_up: bool = False) -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.where = where
        self.is_follow_up = is_follow_up


class Fields:
    """Reads the fields of one message; of a field given twice the last value counts, as in protocol buffers."""

    def __init__(self, message: Message, label: str = "") -> None:
        self.message = message
        names = message.values("name")
        name = names[0].value if names and isinstance(names[0].value, str) else ""
        self.label = label or name

    def fault(self, message: str, at: Value | None = None, *, is_follow_up: bool = False) -> Fault:
        """A fault at a value, or at the message."""
        place = at or self.message
        return Fault(message, place.line, place.column, self.label, is_follow_up=is_follow_up)

    def inner(self, name: str) -> Fields:
        """A message inside; an empty one where it is missing."""
        messages = self.message.messages(name)
        if self.message.values(name) and not messages:
            raise self.fault(f"'{name}' must be a message: {name} {{ ... }}", self.message.values(name)[0])
        return Fields(messages[-1] if messages else Message(self.message.line, self.message.column), self.label)

    def has(self, name: str) -> bool:
        """Whether a field is given."""
        return bool(self.message.values(name))

    def texts(self, name: str) -> list[str]:
        """Every value of a field of strings or words."""
        result = []
        for item in self.message.values(name):
            if not isinstance(item.value, str):
                raise self.fault(f"'{name}' must be text", item)
            result.append(item.value)
        return result

    def text(self, name: str, default: str) -> str:
        """A string or word."""
        values = self.texts(name)
        return values[-1] if values else default

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        values = self.message.values(name)
        if not values:
            return default
        if not isinstance(values[-1].value, (bool, int)) or values[-1].value not in (0, 1):
            raise self.fault(f"'{name}' must be true or false", values[-1])
        return bool(values[-1].value)

    def integers(self, name: str, *, least: int = 0) -> list[int]:
        """Every value of a field of whole numbers."""
        result = []
        for item in self.message.values(name):
            if isinstance(item.value, bool) or not isinstance(item.value, int):
                raise self.fault(f"'{name}' must be a whole number", item)
            if not least <= item.value <= _MAX_EXTENT:
                raise self.fault(f"'{name}' is {item.value}; it must be from {least} to {_MAX_EXTENT}", item)
            result.append(item.value)
        return result

    def integer(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number; needed where there is no default."""
        values = self.integers(name, least=least)
        if values:
            return values[-1]
        if default is None:
            raise self.fault(f"'{name}' is missing")
        return default

    def number(self, name: str, default: float) -> float:
        """A number."""
        values = self.message.values(name)
        if not values:
            return default
        value = values[-1].value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fault(f"'{name}' must be a number", values[-1])
        return float(value)

    def size(self, name: str, prefix: str, default: int, *, least: int) -> tuple[int, int]:
        """Height and width: ``name`` once or twice, or ``prefix_h`` and ``prefix_w``."""
        repeated = self.integers(name, least=least)
        height, width = self.integers(f"{prefix}_h", least=least), self.integers(f"{prefix}_w", least=least)
        if height or width:
            if repeated or not (height and width):
                raise self.fault(f"'{prefix}_h' and '{prefix}_w' go together and exclude '{name}'")
            return height[-1], width[-1]
        if len(repeated) > 2:
            raise self.fault(f"'{name}' has {len(repeated)} values; only images (2 dimensions) are known")
        if not repeated:
            return default, default
        return repeated[0], repeated[-1]

"""A value that was found, or had to be assumed, and how it is written into a file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

__all__ = ["Fact", "comment_text", "number_text", "quoted"]

# Plain text needs no quotes in YAML: it starts with a letter and holds no character that means something, or is a quantity with a
# unit. Whatever might be a number to some reader ("0E0", "1_000", "0o7") is quoted.
_PLAIN = re.compile(r"[A-Za-z][^#:\n\"'{}\[\],&*!|>%@`\\]*|[0-9][0-9.e+]* [A-Za-z][A-Za-z/]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A key of a file and its value.

    Attributes
    ----------
    key : str
    text : str
        The value with its unit, as the file has it.
    source : str
        Where it comes from; for an assumption, what is assumed and why.
    is_known : bool
        False for an assumption.
    is_mapping : bool
        The text is a YAML mapping, not a string.
    """

    key: str
    text: str
    source: str
    is_known: bool = True
    is_mapping: bool = False

    def line(self, indent: str = "") -> str:
        """``key: value  # unknown: assumed ...``.

        >>> Fact(key="memory", text="80 GiB", source="nvidia-smi").line()
        'memory: 80 GiB'
        >>> Fact(key="latency", text="5 us", source="a guess", is_known=False).line()
        'latency: 5 us  # unknown: assumed, a guess'
        """
        remark = "" if self.is_known else f"  # unknown: assumed, {comment_text(self.source)}"
        return f"{indent}{self.key}: {self.text if self.is_mapping else quoted(self.text)}{remark}"


def quoted(text: str) -> str:
    r"""Write a text as a YAML scalar on one line.

    >>> quoted("450 GB/s"), quoted('say "x": 1'), quoted("a\nb")
    ('450 GB/s', '"say \\"x\\": 1"', '"a\\nb"')
    """
    plain = _PLAIN.fullmatch(text) and text == text.strip() and text.isprintable() and _reads_back(text)
    # What JSON writes is YAML too.
    return text if plain else json.dumps(text, ensure_ascii=False)


def _reads_back(text: str) -> bool:
    """Whether YAML takes a plain text for that text, not for a number, a date or a truth value."""
    import yaml

    try:
        return bool(yaml.safe_load(text) == text)
    except yaml.YAMLError:
        return False


def comment_text(text: str) -> str:
    """One printable line for a comment."""
    return "".join(c if c.isprintable() else " " for c in text)


def number_text(value: float) -> str:
    """A number as short as it is exact to six digits.

    >>> number_text(450.0), number_text(26.5625), number_text(1234567.0)
    ('450', '26.5625', '1.23457e+06')
    """
    return f"{value:.6g}"

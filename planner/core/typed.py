"""What to type next, made from the command that was typed."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping

# Options that say what is written or how, which another run need not write again; True: a value follows.
WRITTEN = {
    "--html": True,
    "--plot": True,
    "--figure": True,
    "--trace": True,
    "--output": True,
    "-o": True,
    "--format": True,
    "-f": True,
    "--width": True,
    "--json": False,
    "--static": False,
    "--quiet": False,
    "-q": False,
    "--verbose": False,
    "-v": False,
}


def is_typed(line: str) -> bool:
    """Whether a question was asked on the command line; one of Python has the call in its place."""
    return line.startswith("planner ")


def asked_again(
    line: str, changes: Mapping[str, str | None] | None = None, *, command: str = "", switches: Collection[str] = ()
) -> str:
    """The command that asks a question again, with other options.

    Parameters
    ----------
    line : str
        The command that was typed.
    changes : mapping of str to str or None, optional
        New values by their options; None leaves an option out.
    command : str
        In place of its first word, such as "optimize".
    switches : collection of str
        Options without a value that are left out.

    Examples
    --------
    >>> line = "planner size gpt2 -v --days 3 --max-tpot=40ms --html page.html"
    >>> asked_again(line, {"--days": None, "--max-tpot": "30ms", "--gpus": "8"}, command="optimize")
    'planner optimize gpt2 --max-tpot 30ms --gpus 8'
    """
    new = {} if changes is None else changes
    words, kept = iter(shlex.split(line)), []
    for word in words:
        name, equals, _ = word.partition("=")
        has_value = True if name in new else WRITTEN.get(name)
        if has_value and not equals:
            next(words, None)
        elif has_value is None and name not in switches:
            kept.append(word)
    if command:
        kept[1] = command
    return shlex.join([*kept, *(text for name, value in new.items() if value is not None for text in (name, value))])

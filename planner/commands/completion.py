"""Words that the shell completes: bundled names, and the values that options take.

What holds the words is imported when the user presses Tab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import typer

from planner.api.readers import Option, words_from


def completion_of(option: Option) -> Callable[[typer.Context, str], list[str]] | None:
    """What completes the value of an option; None for numbers, files and what is free.

    >>> completion_of(Option(flags="--mode", metavar="MODE", help="", words="training inference"))(None, "inf")
    ['inference']
    """
    if not option.words:
        return None

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if option.is_list else ("", "", incomplete)
        mode = (getattr(ctx, "params", None) or {}).get("mode")
        source = option.inference_words if mode == "inference" and option.inference_words else option.words
        return [f"{before}{comma}{word}" for word in words_starting(source, last)]

    return complete


def words_starting(source: str, incomplete: str) -> list[str]:
    """Words of a source (`planner.api.readers.Option.words`) with this beginning."""
    return [word for word in words_from(source) if word.startswith(incomplete)]


def command_to_complete(environment: Mapping[str, str], commands: Iterable[str]) -> str | None:
    """The command whose options or words are completed; None while the command itself is typed.

    Loading this one alone is several times as fast as loading all.

    Parameters
    ----------
    environment : mapping
        With what the shell says: ``COMP_WORDS`` and ``COMP_CWORD`` (bash), or ``_TYPER_COMPLETE_ARGS`` (zsh, fish, PowerShell).
    commands : iterable of str

    Examples
    --------
    >>> command_to_complete({"COMP_WORDS": "planner list mo", "COMP_CWORD": "2"}, ["list"])
    'list'
    >>> command_to_complete({"_TYPER_COMPLETE_ARGS": "planner list"}, ["list"]) is None
    True
    """
    text = environment.get("COMP_WORDS", environment.get("_TYPER_COMPLETE_ARGS", ""))
    words = text.split()
    if len(words) < 2 or words[1] not in commands:
        return None
    if "COMP_WORDS" in environment:
        number = environment.get("COMP_CWORD", "")
        return words[1] if number.isdigit() and int(number) > 1 else None
    is_past = len(words) > 2 or text != text.rstrip()
    return words[1] if is_past else None

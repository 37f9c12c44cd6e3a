"""Words that the shell completes: bundled names, and the values that options take.

What holds the words is imported when the user presses Tab.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import typer

__all__ = ["COMPLETED", "command_to_complete", "completion_of", "words_from"]

# Option -> where its words are: "kind:models" for bundled files, "module:NAME" for a tuple, mapping or set, "module:NAME:ARGUMENT" for a
# function of one, else the words themselves.
COMPLETED: dict[str, str] = {
    "--model": "kind:models",
    "--cluster": "kind:clusters",
    "--device": "kind:devices",
    "--calibration": "kind:calibrations",
    "--framework": "kind:frameworks",
    "--precision": "costmodel.precision:PRECISIONS",
    "--optimizer": "costmodel.precision:OPTIMIZERS",
    "--mode": "training inference",
    "--objective": "strategies.mesh.settings:OBJECTIVES",
    "--space": "planner.commands.question:SPACES",
    "--family": "planner.commands.question:FAMILIES",
    "--collective": "costmodel.hardware.collectives:names_of:all_reduce",
    "--cost-model": "roofline paleo",
    "--solver": "auto program elimination",
    "--format": "planner.commands.output:FORMATS",
    "--to": "planner.exporters:EXPORTERS",
    "--from": "planner.exporters.runs:RUNS",
    "--zero": "0 1 2 3",
    "--schedule": "costmodel.mesh.plan:SCHEDULES",
    "--recompute": "costmodel.mesh.plan:RECOMPUTE",
    "--cp-kind": "costmodel.mesh.plan:CP_KINDS",
    "--order": "costmodel.mesh.plan:ORDERS",
    "--offload": "optimizer activations none",
    "--kv-precision": "fp32 fp16 bf16 fp8",
    "--contiguity": "chain convex",
    "--method": "planner.placement.question:METHODS",
}
# (command, option) -> words, where a command has others.
_OF_COMMAND = {
    ("place", "--objective"): "throughput latency",
    ("scale", "--family"): "planner.commands.options:SCALE_FAMILIES",
}
_OF_SERVING = {"--objective": "strategies.serving.space:SERVING_OBJECTIVES"}
# Several words with commas between them.
_LISTS = frozenset({"--zero", "--schedule", "--recompute", "--cp-kind", "--order", "--offload"})
_LISTS_OF_COMMAND = frozenset({("sweep", "--cluster"), ("size", "--cluster")})


def completion_of(flags: Iterable[str]) -> Callable[[typer.Context, str], list[str]] | None:
    """What completes the value of an option; None for numbers, files and what is free.

    >>> completion_of(["--mode"])(None, "inf"), completion_of(["--gpus", "-g"])
    (['inference'], None)
    """
    flag = next((flag for flag in flags if flag in COMPLETED), None)
    if flag is None:
        return None

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        is_list = flag in _LISTS or (str(getattr(ctx, "info_name", None)), flag) in _LISTS_OF_COMMAND
        before, comma, last = incomplete.rpartition(",") if is_list else ("", "", incomplete)
        return [f"{before}{comma}{word}" for word in words_from(_source(ctx, flag)) if word.startswith(last)]

    return complete


def _source(ctx: Any, flag: str) -> str:
    command = getattr(ctx, "info_name", None)
    mode = (getattr(ctx, "params", None) or {}).get("mode")
    if mode == "inference" and flag in _OF_SERVING and command != "place":
        return _OF_SERVING[flag]
    return _OF_COMMAND.get((str(command), flag), COMPLETED[flag])


def words_from(source: str) -> list[str]:
    """Words of a source, as `COMPLETED` names it.

    >>> words_from("roofline paleo"), "alexnet" in words_from("kind:models"), "1f1b" in words_from("costmodel.mesh.plan:SCHEDULES")
    (['roofline', 'paleo'], True, True)
    """
    module, colon, name = source.partition(":")
    if not colon:
        return source.split()
    if module == "kind":
        from planner.files.resources import bundled

        return list(bundled(name))
    name, called, argument = name.partition(":")
    found = getattr(importlib.import_module(module), name)
    return [str(word) for word in (found(argument) if called else found)]


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

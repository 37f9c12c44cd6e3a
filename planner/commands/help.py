"""Help as plain text: options in named groups, the same with every version of typer and without rich (100 ms)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typer.core import TyperCommand

from planner.commands.options import GROUPS

__all__ = ["GroupedCommand"]

_REST = "Help"


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by group, in the order in which they are declared."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line with one reader for all options that are plain words."""
        _share_readers(self.params)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Write MODEL where typer may write {MODEL}: one form for every version."""
        arguments = [p.metavar or p.name or "" for p in self.get_params(ctx) if p.param_type_name == "argument"]
        return ["[OPTIONS]", *arguments]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then the groups."""
        arguments: list[tuple[str, str]] = []
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in (*GROUPS, _REST)}
        for parameter in self.get_params(ctx):
            if getattr(parameter, "hidden", False):
                continue
            text = getattr(parameter, "help", None) or ""
            if parameter.param_type_name == "argument":
                arguments.append((parameter.metavar or parameter.name or "", text))
                continue
            flags = ", ".join(sorted(parameter.opts, key=lambda flag: (flag.startswith("--"), flag)))
            if parameter.secondary_opts:
                flags += " / " + ", ".join(parameter.secondary_opts)
            metavar = "" if getattr(parameter, "is_flag", False) else f" {parameter.metavar or ''}"
            groups[getattr(parameter, "rich_help_panel", None) or _REST].append((flags + metavar, text))
        for title, records in (("Arguments", arguments), *groups.items()):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _share_readers(parameters: Sequence[Any]) -> None:
    """Let options that are plain words share what reads them: typer makes a pydantic adapter for each, 1 ms, and here are 60.

    A version of typer that keeps its readers elsewhere makes them all.
    """
    readers: dict[Any, Any] = {}
    for parameter in parameters:
        descriptor = getattr(parameter, "type_descriptor", None)
        if (
            descriptor is None
            or descriptor.annotation is not str
            or getattr(parameter, "_runtime_param", 0) is not None
        ):
            continue
        info = descriptor.parameter_info
        # Whatever else changes how a word is read.
        key = tuple(getattr(info, name, None) for name in ("parser", "click_type", "min", "max", "case_sensitive"))
        if key in readers:
            parameter._runtime_param = readers[key]
        else:
            readers[key] = parameter.get_runtime_param()

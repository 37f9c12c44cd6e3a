"""``planner list``: what is bundled, and what can be named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.output import emit
from planner.commands.question import output_of
from planner.commands.values import Values

__all__ = ["list_", "rows_of"]

_KINDS = ("models", "devices", "clusters", "frameworks", "calibrations", "collectives", "importers", "exporters")
What = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="models, devices, clusters, frameworks, calibrations, collectives, importers or exporters.",
        show_default=False,
        autocompletion=lambda incomplete: [kind for kind in _KINDS if kind.startswith(incomplete)],
    ),
]


def list_(
    what: What,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """List the bundled models, devices, clusters, frameworks and calibrations, the collectives, the importers or the exporters."""
    options: dict[str, Any] = locals()
    values = Values()
    # "planner list model" means the models.
    kind = values.choice("WHAT", f"{what}s" if f"{what}s" in _KINDS else what, _KINDS)
    where = output_of(options, values)
    values.check()

    from planner.files.listing import listing_report

    emit(listing_report(kind, rows_of(kind, verbose=verbose)), where)


def rows_of(kind: str, *, verbose: bool = False) -> Sequence[Mapping[str, Any]]:
    """What there is of a kind, one of those that the command lists; ``verbose``: every number of the frameworks, with its source."""
    if kind == "frameworks" and verbose:
        from planner.files.listing import framework_rows

        return framework_rows()
    if kind == "collectives":
        from planner.files.listing import collective_rows

        return collective_rows()
    if kind == "importers":
        from planner.importers.sources import format_rows

        return format_rows()
    if kind == "exporters":
        from planner.exporters import exporter_rows

        return exporter_rows()
    from planner.files.listing import file_rows

    return file_rows(kind)

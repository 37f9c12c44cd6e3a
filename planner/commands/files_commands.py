"""``planner import`` and ``planner schema``: files in, and what files and results look like."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.output import emit, output_from, remark
from planner.commands.values import Values
from planner.files.output import write_atomically
from planner.schema import DOCUMENTS

__all__ = ["import_", "schema"]

Source = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="A file of a format of 'planner list importers', found by its content; or a folder with a config.json.",
        show_default=False,
    ),
]
# Document -> the command or option that it belongs to, where its name does not say.
_OF = {
    "algorithms": "--paleo-algorithms",
    "result": "optimize",
    "breakdown": "estimate, explain",
    "validation": "validate",
}
_WHAT = f"{', '.join(name + (f' ({_OF[name]})' if name in _OF else '') for name in DOCUMENTS)}."
Document = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help=_WHAT,
        show_default=False,
        autocompletion=lambda incomplete: [name for name in DOCUMENTS if name.startswith(incomplete)],
    ),
]


def import_(
    source: Source,
    assume_free: o.AssumeFree = None,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    output: o.Output = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Turn a network of another program into a network file of this one (YAML, or JSON with --json).

    planner import Llama-3.1-8B/config.json -o llama3.yaml
    """
    values = Values()
    where = output_from(values, json=json, format=format, output=output, width=None, quiet=quiet, verbose=verbose)
    if format is not None and where.format not in ("json", "yaml"):
        values.add(f"--format {where.format}: a network file is yaml or json")
    values.check()

    from planner.importers.networks import import_network, network_path
    from planner.importers.sources import text_of
    from planner.report.machine import finite, json_text

    model = import_network(network_path(Path(source)), assume_free=assume_free or ())
    is_json = json or (format is not None and where.format == "json")
    text = json_text(finite(model.content)) if is_json else text_of(model)
    for note in model.notes:
        remark(where, note)
    if where.path is None:
        sys.stdout.write(text)
        return
    write_atomically(where.path, text)
    remark(where, f"wrote {where.path}")


def schema(
    document: Document,
    output: o.Output = None,
    format: o.Format = None,  # noqa: A002 - the option's name
    json: o.Json = False,  # noqa: ARG001 - a schema is JSON unless --format says yaml
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Print the JSON Schema of a file or of a result, for editors and programs."""
    from planner.schema import json_schema

    values = Values()
    chosen = values.choice("WHAT", document, tuple(DOCUMENTS))
    where = output_from(
        values, json=format is None, format=format, output=output, width=None, quiet=quiet, verbose=verbose
    )
    if where.format not in ("json", "yaml"):
        values.add(f"--format {where.format}: a schema is json or yaml")
    values.check()

    from planner.core.blocks import Report

    content: dict[str, Any] = json_schema(chosen)
    emit(Report(blocks=lambda: (), data=lambda: content, records=lambda: ()), where)

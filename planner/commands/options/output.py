"""The options that say what is printed and where."""

from __future__ import annotations

from typing import Annotated

from planner.commands.options.panels import OUTPUT, option

__all__ = [
    "Export",
    "Format",
    "Json",
    "Output",
    "Quiet",
    "Verbose",
    "Width",
]

Json = Annotated[bool, option("--json", metavar=None, help="The same as --format json.", group=OUTPUT)]
Format = Annotated[
    str | None,
    option(
        "--format",
        "-f",
        metavar="NAME",
        help="table, json, csv, markdown or yaml. Default: by the suffix of -o, else table.",
        group=OUTPUT,
    ),
]
Output = Annotated[
    str | None,
    option("--output", "-o", metavar="FILE", help="Write the result to FILE in place of stdout.", group=OUTPUT),
]
Export = Annotated[
    str | None, option("--export", metavar="FILE", help="Also write the best plan as a plan file (YAML).", group=OUTPUT)
]
Width = Annotated[
    str | None,
    option("--width", metavar="N", help="Characters per line of the table. Default: the terminal's.", group=OUTPUT),
]
Quiet = Annotated[
    bool, option("--quiet", "-q", metavar=None, help="No progress and no remarks on stderr.", group=OUTPUT)
]
Verbose = Annotated[
    bool,
    option(
        "--verbose", "-v", metavar=None, help="Log each step on stderr; tracebacks of internal errors.", group=OUTPUT
    ),
]

"""``planner export``: what a trainer or server needs to start with a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.commands import options as o
from planner.commands.output import emit, remark
from planner.commands.question import output_of
from planner.commands.values import Values
from planner.core.errors import OutputError, UsageError

if TYPE_CHECKING:
    from planner.core.blocks import Report
    from planner.exporters.export import Export

__all__ = ["export", "export_of_file", "export_report"]


PlanArgument = Annotated[
    str, typer.Argument(metavar="PLAN", help="A plan file, as --export writes it.", show_default=False)
]
Target = Annotated[
    str | None,
    o.option(
        "--to",
        "-t",
        metavar="TARGET",
        help="torch, megatron, megatron-bridge, torchtitan, deepspeed, accelerate, nanotron or vllm ('planner list exporters').",
        group=o.OUTPUT,
    ),
]
TargetVersion = Annotated[
    str | None,
    o.option(
        "--target-version",
        metavar="V",
        help="Write for this version of the target ('planner list exporters'). Default: the newest known.",
        group=o.OUTPUT,
    ),
]
Strict = Annotated[
    bool,
    o.option(
        "--strict",
        metavar=None,
        help="Refuse a plan with a setting that the target cannot express, rather than list it.",
        group=o.OUTPUT,
    ),
]
Folder = Annotated[
    str | None,
    o.option(
        "--output-dir",
        "-o",
        metavar="DIR",
        help="The folder to write; it appears complete or not at all.",
        group=o.OUTPUT,
    ),
]
Force = Annotated[
    bool,
    o.option(
        "--force",
        metavar=None,
        help="Replace an earlier export in DIR; other files are never replaced.",
        group=o.OUTPUT,
    ),
]


def export(
    plan: PlanArgument,
    to: Target = None,
    target_version: TargetVersion = None,
    output_dir: Folder = None,
    strict: Strict = False,
    force: Force = False,
    json: o.Json = False,
    format: o.Format = None,  # noqa: A002 - the option's name
    width: o.Width = None,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Write a plan for the program that runs it: arguments or configuration, environment, launch scripts, the prediction.

    Settings that the program cannot express are listed; combinations that it refuses are an error.

    \b
    planner export plan.yaml --to megatron -o run/
    planner export plan.yaml --to torchtitan --target-version v0.2.2 --strict -o run/
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    options: dict[str, Any] = {**locals(), "output": None}
    values = Values()
    where = output_of(options, values)
    from planner.exporters import EXPORTERS, TARGETS_ELSEWHERE

    if to is None:
        values.add(f"--to: is missing; name a target ({', '.join(EXPORTERS)})")
    elif to not in EXPORTERS and (meant := TARGETS_ELSEWHERE.get(to.lower())) is not None:
        values.add(f"--to {to}: its plans are written for {meant}: --to {meant}")
    elif to not in EXPORTERS:
        values.choice("--to", to, tuple(EXPORTERS))
    if not output_dir:
        values.add("-o: is missing; name the folder to write")
    values.check()
    assert to is not None
    assert output_dir is not None

    from planner.exporters.folder import check_folder, write_folder

    folder = Path(output_dir)
    try:
        check_folder(folder, force=force)
    except OutputError as error:
        raise OutputError(f"-o {error}") from None
    written, warnings = export_of_file(Path(plan), to, target_version, strict=strict)
    for warning in warnings:
        remark(where, f"warning: {warning}")
    write_folder(folder, written.files, force=force)
    for setting, why in written.account.cannot.items():
        remark(where, f"not expressed: {setting}: {why}")
    for setting, what in written.account.by_hand.items():
        remark(where, f"left to you: {setting}: {what}")
    emit(export_report(written, folder), where)


def export_of_file(path: Path, target: str, version: str | None, *, strict: bool) -> tuple[Export, tuple[str, ...]]:
    """What a target needs to start with the plan of a file, and what no longer holds of the file."""
    from planner.exporters import exporter_of, targets_that_take
    from planner.exporters.export import make_export
    from planner.exporters.plans import job_of_file

    exporter = exporter_of(target)
    job, kind, warnings = job_of_file(path, exporter.TAKES)
    if kind not in exporter.TAKES:
        words = {
            "serving": "a way to serve",
            "mesh": "a training run",
            "layers": "a split per layer",
            "data": "data parallelism of a network without blocks",
        }
        able = ", ".join(targets_that_take(kind))
        raise UsageError(
            f"--to {target}: {path} is a plan for {words[kind]}, which {exporter.TITLE} does not take; use {able}"
        )
    return make_export(job, target, version, strict=strict), warnings


def export_report(exported: Export, folder: Path | None) -> Report:
    """What was written and what was not, in every form."""
    from planner.core.blocks import Block, Column, Report, Table
    from planner.report.documents import RESULT_VERSION

    rows = [
        {"file": name if folder is None else str(folder / name), "bytes": len(text.encode())}
        for name, text in exported.files.items()
    ]
    data = {
        "schema_version": RESULT_VERSION,
        "target": exported.target,
        "target_version": exported.version,
        "folder": None if folder is None else str(folder),
        "files": rows,
        "written": exported.account.written,
        "cannot_express": exported.account.cannot,
        "left_to_user": exported.account.by_hand,
    }

    def blocks() -> list[Block]:
        names = Column(
            title="file", cells=tuple(str(row["file"]) for row in rows), is_text=True, flexible=False, priority=0
        )
        sizes = Column(
            title="bytes", cells=tuple(f"{row['bytes']:,}" for row in rows), is_text=False, flexible=False, priority=1
        )
        return [Table(columns=(names, sizes))]

    return Report(blocks=blocks, data=lambda: data, records=lambda: rows)

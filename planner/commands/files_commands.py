"""``planner export``, ``import``, ``list`` and ``schema``: plans out, networks in, what can be named and what files look like."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from planner.api.keywords import EstimateOptions, options_of
from planner.api.readers import OUTPUT, Option
from planner.commands.command import Typed, argument, command
from planner.commands.output import OUTPUT_OPTIONS, REPORT_ONLY, emit, output_of, remark
from planner.core.errors import ExitCode, OutputError
from planner.core.request import LISTED
from planner.files.output import write_atomically
from planner.schema import DOCUMENTS, json_schema

# What `show` shows.
SHOWN = ("device", "cluster", "model", "framework", "failure")

_EXPORT = {
    "to": Option(
        "--to -t",
        "TARGET",
        "torch, megatron, megatron-bridge, torchtitan, deepspeed, accelerate, nanotron or vllm ('planner list exporters').",
        panel=OUTPUT,
        words="planner.exporters:EXPORTERS",
    ),
    "target_version": Option(
        "--target-version",
        "V",
        "Write for this version of the target ('planner list exporters'). Default: the newest known.",
        panel=OUTPUT,
    ),
    "output_dir": Option(
        "--output-dir -o", "DIR", "The folder to write; it appears complete or not at all.", panel=OUTPUT
    ),
    "strict": Option(
        "--strict",
        None,
        "Refuse a plan with a setting that the target cannot express, rather than list it.",
        panel=OUTPUT,
    ),
    "force": Option("--force", None, "Replace an earlier export in DIR; other files are never replaced.", panel=OUTPUT),
    "check": Option(
        "--check",
        None,
        "Let the target's own parser read the files, in the first Python on PATH; exit code 1 where it refuses "
        "them or is not installed there.",
        panel=OUTPUT,
    ),
}


@command(_EXPORT, REPORT_ONLY, plan=argument(str, "PLAN", "A plan file, as --export writes it."))
def export(typed: Typed) -> None:
    """Write a plan for the program that runs it: arguments or configuration, environment, launch scripts, the prediction.

    Settings that the program cannot express are listed; combinations that it refuses are an error.

    \b
    planner export plan.yaml --to megatron -o run/
    planner export plan.yaml --to torchtitan --target-version v0.2.2 --strict -o run/
    planner export plan.yaml --to deepspeed --check -o run/
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    given, values = typed.given, typed.values
    where = output_of(typed)
    from planner.api.exports import export_of_plan, export_report
    from planner.exporters import EXPORTERS, TARGETS_ELSEWHERE
    from planner.exporters.check import check_exports
    from planner.exporters.export import check_folder, write_folder

    to, folder, force = given.get("to"), Path(given.get("output_dir", "")), "force" in given
    if to is None:
        values.add(f"--to: is missing; name a target ({', '.join(EXPORTERS)})")
    elif to not in EXPORTERS and (meant := TARGETS_ELSEWHERE.get(to.lower())) is not None:
        values.add(f"--to {to}: its plans are written for {meant}: --to {meant}")
    elif to not in EXPORTERS:
        values.choice("--to", to, tuple(EXPORTERS))
    if not given.get("output_dir"):
        values.add("-o: is missing; name the folder to write")
    values.check()
    try:
        check_folder(folder, force=force)
    except OutputError as error:
        raise OutputError(f"-o {error}") from None
    written, warnings = export_of_plan(given["plan"], str(to), given.get("target_version"), strict="strict" in given)
    for warning in warnings:
        remark(where, f"warning: {warning}")
    write_folder(folder, written.files, force=force)
    for setting, why in written.account.cannot.items():
        remark(where, f"not expressed: {setting}: {why}")
    for setting, what in written.account.by_hand.items():
        remark(where, f"left to you: {setting}: {what}")
    checked = check_exports(written.target, [folder])[0] if "check" in given else None
    emit(export_report(written, folder, checked), where)
    if checked is not None and checked.status != "accepted":  # a check that did not happen has failed
        raise typer.Exit(ExitCode.NO_PLAN)


@command(
    OUTPUT_OPTIONS,
    what=argument(
        str,
        "WHAT",
        f"{', '.join(LISTED[:-1])} or {LISTED[-1]}.",
        " ".join(LISTED),
    ),
    names=argument(list[str] | None, "[NAME]...", "Only these of them, or files of your own."),
)
def list_(typed: Typed) -> None:
    """List bundled models, devices, clusters, frameworks, calibrations, failures, formats, schedules, collectives, importers, exporters.

    With -v, devices come with their best and sustained rates by format, clusters with their links, and frameworks with every cost, default
    and rule, each with its source.

    \b
    planner list devices
    planner list devices b200 -v
    planner list frameworks megatron-lm -v
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    what = typed.given["what"]
    # "planner list model" means the models.
    kind = typed.values.choice("WHAT", f"{what}s" if f"{what}s" in LISTED else what, LISTED)
    where = output_of(typed)
    typed.values.check()

    from planner.api.bundle import rows_of
    from planner.files.listing import listing_report

    emit(listing_report(kind, rows_of(kind, typed.given.get("names", ()), verbose=where.verbose)), where)


@command(
    OUTPUT_OPTIONS,
    kind=argument(str, "WHAT", "device, cluster, model, framework or failure.", " ".join(SHOWN)),
    name=argument(str, "NAME", "A name that means it alone ('planner list devices', ...), or a file of your own."),
)
def show(typed: Typed) -> None:
    """Show everything that is known of one device, cluster, network, framework or list of failures, each number with its source.

    \b
    planner show device h100-sxm
    planner show cluster h100
    planner show model llama3-8b
    planner show framework megatron-lm
    planner show failure default
    """  # noqa: D301 - the \b of click, "keep these lines", not a backslash
    what = typed.given["kind"]
    # "planner show devices" means one of them.
    kind = typed.values.choice("WHAT", what.removesuffix("s"), tuple(SHOWN))
    where = output_of(typed)
    typed.values.check()
    from planner.api.showing import show_report

    emit(show_report(kind, typed.given["name"]), where)


@command(
    {"assume_free": options_of(EstimateOptions)["assume_free"]},
    {name: option for name, option in OUTPUT_OPTIONS.items() if name != "width"},
    source=argument(
        str,
        "FILE",
        "A file of a format of 'planner list importers', found by its content; or a folder with a config.json.",
    ),
)
def import_(typed: Typed) -> None:
    """Turn a network of another program into a network file of this one (YAML, or JSON with --json).

    planner import Llama-3.1-8B/config.json -o llama3.yaml
    """
    given, values = typed.given, typed.values
    where = output_of(typed)
    if "format" in given and where.format not in ("json", "yaml"):
        values.add(f"--format {where.format}: a network file is yaml or json")
    values.check()

    from planner.importers.networks import import_network, network_path
    from planner.importers.sources import text_of
    from planner.report.machine import finite, json_text

    model = import_network(network_path(Path(given["source"])), assume_free=given.get("assume_free", ()))
    is_json = "json" in given or ("format" in given and where.format == "json")
    text = json_text(finite(model.content)) if is_json else text_of(model)
    for note in model.notes:
        remark(where, note)
    if where.path is None:
        sys.stdout.write(text)
        return
    write_atomically(where.path, text)
    remark(where, f"wrote {where.path}")


# Document -> the command or option that it belongs to, where its name does not say.
_OF = {
    "algorithms": "--paleo-algorithms",
    "result": "optimize",
    "breakdown": "estimate, explain",
    "validation": "validate",
}
_WHAT = f"{', '.join(name + (f' ({_OF[name]})' if name in _OF else '') for name in DOCUMENTS)}."


@command(
    {name: option for name, option in OUTPUT_OPTIONS.items() if name != "width"},
    document=argument(str, "WHAT", _WHAT, " ".join(DOCUMENTS)),
)
def schema(typed: Typed) -> None:
    """Print the JSON Schema of a file or of a result, for editors and programs."""
    from planner.core.blocks import Report

    given, values = typed.given, typed.values
    chosen = values.choice("WHAT", given["document"], tuple(DOCUMENTS))
    if "format" not in given:
        given["json"] = True  # a schema is JSON unless --format says yaml
    else:
        given.pop("json", None)
    where = output_of(typed)
    if where.format not in ("json", "yaml"):
        values.add(f"--format {where.format}: a schema is json or yaml")
    values.check()
    content: dict[str, Any] = json_schema(chosen)
    emit(Report(blocks=lambda: (), data=lambda: content, records=lambda: ()), where)

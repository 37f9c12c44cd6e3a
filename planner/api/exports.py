"""`planner.export`: what a trainer or server needs to start with a plan."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.api.calls import in_python_words
from planner.api.plans import Plan
from planner.api.requests import loaded_plan
from planner.api.shown import Answer, Reads
from planner.core.blocks import Block, Column, Report, Sentence, Table
from planner.exporters.check import Checked, check_exports
from planner.exporters.export import Export as Exported
from planner.exporters.export import check_folder, make_export, write_folder


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Export(Answer):
    """The files for a target, and where every setting of the plan went.

    Attributes
    ----------
    folder : Path or None
        Where they were written; None where they were not.
    warnings : tuple of str
        What no longer holds of a plan file.
    check : Checked or None
        What the target's own parser made of the files (``status``, ``message``, ``version``, ``read``), where it was asked.

    Examples
    --------
    >>> import planner
    >>> files = planner.optimize("alexnet", gpus=2).export("torch")
    >>> files.folder is None, len(files.files) > 1
    (True, True)
    """

    folder: Path | None
    warnings: tuple[str, ...]
    check: Checked | None
    raw: Any

    target = Reads[str]("raw.target", "Name of the trainer or server.")

    target_version = Reads[str]("raw.version", "Version that the files are written for.")

    files = Reads[dict[str, str]]("raw.files", "Name -> text.")

    cannot_express = Reads[dict[str, str]]("raw.account.cannot", "Settings that the target cannot express, and why.")

    left_to_user = Reads[dict[str, str]]("raw.account.by_hand", "Settings that are left to do, and what.")

    def __repr__(self) -> str:
        where = "not written" if self.folder is None else f"in {str(self.folder)!r}"
        return f"<planner.Export for {self.target}: {', '.join(self.files)}; {where}>"

    def _report(self) -> Report:
        return export_report(self.raw, self.folder, self.check)


def export(
    plan: Plan | str | os.PathLike[str],
    target: str,
    *,
    to: str | os.PathLike[str] | None = None,
    target_version: str | None = None,
    strict: bool = False,
    force: bool = False,
    check: bool = False,
) -> Export:
    """Write a plan for the program that runs it: arguments or configuration, environment, launch scripts, the prediction.

    Parameters
    ----------
    plan : Plan or path of a plan file
    target : str
        One of `planner.list_exporters`.
    to : path, optional
        Folder to write; it appears complete or not at all. Without it nothing is written, and ``.files`` holds the texts.
    target_version : str, optional
        The newest known unless given.
    strict : bool
        Refuse a plan with a setting that the target cannot express.
    force : bool
        Replace an earlier export in the folder.
    check : bool
        Let the target's own parser read the files, in the first Python on PATH: ``.check`` says whether it accepts them.

    Raises
    ------
    PlannerError

    Examples
    --------
    >>> import planner
    >>> plan = planner.estimate("llama3-8b", gpus=16, batch=32, tp=8).plan
    >>> written = planner.export(plan, "megatron")
    >>> "--tensor-model-parallel-size 8" in " ".join(written.files.values())
    True
    """
    from planner.exporters import exporter_of

    with in_python_words():
        exporter_of(target)
        folder = None if to is None else Path(to)
        if folder is not None:
            check_folder(folder, force=force)
        document = plan.to_dict() if isinstance(plan, Plan) else plan
        made, warnings = export_of_plan(document, target, target_version, strict=strict)
        if folder is not None:
            write_folder(folder, made.files, force=force)
        checked = None
        if check:
            with TemporaryDirectory() as elsewhere:
                read = folder or Path(elsewhere, "export")
                if folder is None:
                    write_folder(read, made.files, force=False)
                (checked,) = check_exports(target, [read])
        return Export(folder=folder, warnings=warnings, check=checked, raw=made)


def export_of_plan(plan: Any, target: str, version: str | None, *, strict: bool) -> tuple[Exported, tuple[str, ...]]:
    """What a target needs to start with a plan (a file, or what one would hold), and what no longer holds of its file."""
    from planner.exporters.plans import job_of_plan

    loaded, path = loaded_plan(plan)
    job, warnings = job_of_plan(loaded, path, target)
    return make_export(job, target, version, strict=strict), warnings


def export_report(exported: Exported, folder: Path | None, checked: Checked | None = None) -> Report:
    """What was written and what was not, and what the target's parser made of it, in every form."""
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
        **({} if checked is None else {"check": dataclasses.asdict(checked)}),
    }

    def blocks() -> list[Block]:
        names = Column(
            title="file", cells=tuple(str(row["file"]) for row in rows), is_text=True, flexible=False, priority=0
        )
        sizes = Column(
            title="bytes", cells=tuple(f"{row['bytes']:,}" for row in rows), is_text=False, flexible=False, priority=1
        )
        said = [] if checked is None else [Sentence(f"{exported.target}: {checked.sentence}", strong=True)]
        return [Table(columns=(names, sizes)), *said]

    return Report(blocks=blocks, data=lambda: data, records=lambda: rows)

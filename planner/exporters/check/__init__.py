"""`planner export --check`: what the target's own parser says of an export, on the machine that the export is made on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from planner.core.errors import UsageError
from planner.exporters import exporter_of

_PROGRAM = Path(__file__).with_name("parsers.py")
# Importing a trainer takes up to half a minute on a cold disk.
_LIMIT_S = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a parser made of an export.

    Attributes
    ----------
    status : str
        "accepted"; "refused", by the parser, or because it read another plan; "not installed".
    message : str
        The parser's words; empty where it accepted.
    version : str
        Package and version; empty where it is not installed.
    read : dict
        Setting of the plan -> number as the target has read it; what its file does not say is left out.
    """

    status: Literal["accepted", "refused", "not installed"]
    message: str
    version: str
    read: dict[str, int]

    @property
    def sentence(self) -> str:
        """For people."""
        return (
            f"{self.status}{f' by {self.version}' if self.version else ''}{f': {self.message}' if self.message else ''}"
        )


def check_exports(target: str, folders: Sequence[Path]) -> list[Checked]:
    """Let the target read exported folders.

    Parameters
    ----------
    target : str
        A name of `planner.exporters.EXPORTERS`.
    folders : sequence of Path
        As `planner.exporters.export.write_folder` writes them.

    Raises
    ------
    UsageError
        No Python, or one that ends without an answer.
    """
    # The first on PATH, as its launcher would take.
    program = shutil.which("python3") or shutil.which("python") or sys.executable
    command = [program, str(_PROGRAM), target, *map(str, folders)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--check: {error}") from None
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"status"')]
    if len(rows) != len(folders):
        raise UsageError(f"--check: {program} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return [_compared(folder, row) for folder, row in zip(folders, rows, strict=True)]


def _compared(folder: Path, row: dict[str, Any]) -> Checked:
    """Refuse what was read as another plan; what the target cannot express is known to differ."""
    manifest = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    planned, known = manifest["plan"], manifest["cannot_express"]
    other = [
        f"{name} {value}, the plan has {planned[name]}"
        for name, value in row["read"].items()
        if value != planned[name] and name not in known
    ]
    written_for = manifest["target_version"]
    if row["status"] == "accepted" and other:
        row |= {"status": "refused", "message": f"was read as {'; '.join(other)}"}
    elif row["status"] == "refused" and len(versions := exporter_of(manifest["target"]).VERSIONS) > 1:
        names = ", ".join(name for name in versions if name != written_for)
        row |= {
            "message": f"{row['message']} (the files are for {written_for}; other versions: {names}, by --target-version)"
        }
    return Checked(**row)

"""Runs the commands of README.md, docs/index.md and docs/tutorials/*.md, and keeps what they answer in the pages.

Usage: ``python docs/tutorials.py`` rewrites the answers; a test runs the same commands and compares. A page's blocks look like ::

    <!-- from "Layer by layer" to "total" -->
    ```console
    $ planner explain alexnet --gpus 8
    ...
    ```

Every line that begins with ``$ `` is a command, run in one empty folder per page: ``planner`` in this process, ``cat`` and ``head -n N`` as
they stand. What follows, up to the next command, is its answer, on a terminal 100 characters wide. The comment above a block, which may
be left out, says which lines are kept: ``from "A" to "B"`` those from the first that contains A to the next that begins with B and the
indented ones that continue it (an empty B: to the next empty line or the end; several ranges); ``from "A"`` to the end; ``quiet`` none.
``not run: why`` leaves the block to ``--slow``, which also gives its commands the published workloads of the reference data.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.cli import run as planner

__all__ = ["PAGES", "Block", "answered", "blocks", "run_page", "stable"]

FOLDER = Path(__file__).resolve().parent / "tutorials"
PAGES = (FOLDER.parents[1] / "README.md", FOLDER.parent / "index.md", *sorted(FOLDER.glob("*.md")))
WIDTH = 100
# Of tests (see tests/conftest.py), no part of the project.
REFERENCE = Path(os.environ.get("PLANNER_REFERENCE_DATA", FOLDER.parents[2] / "shared"))
PUBLISHED = ("placement/workloads/throughput/LayerGraphs/bert24_training.json",)
_WITHOUT_TABLES = ("import", "schema")  # these have no --width
_BLOCK = re.compile(r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?```console\n(?P<body>.*?)```\n", re.DOTALL)
_RANGE = re.compile(r'from "(?P<first>[^"]+)"(?: to "(?P<last>[^"]*)")?')
_WALL_TIME = re.compile(r"((?:searched in|Method: [^,]*,) )\d[\d.,]* (?:ns|us|ms|s|min)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Commands of one block of a page, and where its text begins and ends."""

    mark: str
    body: str
    start: int
    end: int

    @property
    def is_run(self) -> bool:
        """Whether the test runs it."""
        return not self.mark.startswith("not run")

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands, a continued line joined to its first."""
        return tuple(
            line.removeprefix("$ ") for line in self.body.replace("\\\n", "").splitlines() if line.startswith("$ ")
        )


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    for match in _BLOCK.finditer(text):
        yield Block(mark=match["mark"] or "", body=match["body"], start=match.start("body"), end=match.end("body"))


def run_page(page: Path, folder: Path, *, slow: bool = False) -> Iterator[tuple[Block, str]]:
    """Run the blocks of a page in a folder.

    Parameters
    ----------
    page : Path
    folder : Path
        Empty; the working directory of the commands.
    slow : bool
        Run also what the test leaves out.

    Yields
    ------
    tuple of (Block, str)
        A block that was run, and its body with the answers of this run.
    """
    if slow:
        for name in PUBLISHED:
            shutil.copy(REFERENCE / name, folder)
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.is_run or slow:
            written = [line for line in re.split(r"^(?=\$ )", block.body, flags=re.MULTILINE) if line.startswith("$ ")]
            parts = []
            for text, command in zip(written, block.commands, strict=True):
                shown = re.match(r"(?:[^\n]*\\\n)*[^\n]*\n", text)
                assert shown is not None
                parts.append(shown[0] + kept(answered(command, folder), block.mark))
            yield block, "".join(parts)


def answered(command: str, folder: Path) -> str:
    """What a command prints, remarks included.

    Raises
    ------
    RuntimeError
        If it fails; a tutorial has no failing commands.
    """
    name, *words = shlex.split(command)
    output, code = io.StringIO(), 0
    with contextlib.chdir(folder):
        if name == "planner":
            width = ["--width", str(WIDTH)] if words[0] not in _WITHOUT_TABLES else []
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                code = planner([*words, *width])
        elif name == "cat":
            output.write("".join(Path(word).read_text(encoding="utf-8") for word in words))
        elif name == "head" and words[0] == "-n":
            lines = Path(words[2]).read_text(encoding="utf-8").splitlines(keepends=True)
            output.write("".join(lines[: int(words[1])]))
        else:
            raise RuntimeError(f"{command}: not a command of tutorials")
    if code:
        raise RuntimeError(f"{command}: exit code {code}\n{output.getvalue()}")
    return output.getvalue()


def kept(output: str, mark: str) -> str:
    r"""The lines of an answer that the comment above its block asks for; ``...`` stands for the others.

    Examples
    --------
    >>> kept("a 1\nb 2\nc 3\n", 'from "b" to "b"')
    '...\nb 2\n...\n'
    >>> kept("a 1\nb 2\n", 'from "b"')
    '...\nb 2\n'
    """
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    if not lines or mark.startswith("quiet"):
        return ""
    ranges = list(_RANGE.finditer(mark))
    if not ranges:
        return "".join(f"{line}\n" for line in lines)
    shown: list[str] = []
    at = 0
    for wanted in ranges:
        first = next((n for n in range(at, len(lines)) if wanted["first"] in lines[n]), None)
        last: int | None = len(lines) - 1
        if first is not None and wanted["last"] is not None:
            otherwise = None if wanted["last"] else last
            last = next((n for n in range(first, len(lines)) if _ends(lines[n], wanted["last"])), otherwise)
        if first is None or last is None:
            raise RuntimeError(f"{wanted[0]}: no such lines in\n{output}")
        while wanted["last"] and last + 1 < len(lines) and lines[last + 1].startswith("   "):
            last += 1  # a wrapped line
        shown += ["..."] * (first > at) + lines[first : last + 1]
        at = last + 1
    return "".join(f"{line}\n" for line in [*shown, *["..."] * (at < len(lines))])


def _ends(line: str, word: str) -> bool:
    return line.startswith(word) if word else not line


def stable(text: str) -> str:
    """Blank what may differ from run to run: how long a search took.

    Examples
    --------
    >>> stable("12 solved; searched in 492 ms")
    '12 solved; searched in (time)'
    """
    return _WALL_TIME.sub(r"\1(time)", " ".join(text.split()))


def rewritten(page: Path, *, slow: bool = False) -> str:
    """The page with the answers of today."""
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for block, body in reversed(list(run_page(page, Path(folder), slow=slow))):
            if stable(body) != stable(block.body):  # times alone are no news
                text = text[: block.start] + body + text[block.end :]
    return text


def main(arguments: Sequence[str]) -> None:
    """Rewrite the pages (those named, or all)."""
    os.environ["NO_COLOR"] = "1"
    named = [word for word in arguments if not word.startswith("-")]
    for page in PAGES:
        if not named or page.stem in named:
            page.write_text(rewritten(page, slow="--slow" in arguments), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main(sys.argv[1:])

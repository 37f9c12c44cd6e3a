"""Measure the size and the shape of the code: statements, folders that import each other, modules per answer, times of commands.

Usage::

    python benchmarks/house.py                     # the table, about 20 s
    python benchmarks/house.py --quick             # without running the planner
    python benchmarks/house.py --against PATH      # also the CPU time of ten commands, paired with another tree
    python benchmarks/house.py --tree PATH         # measure another tree
    python benchmarks/house.py --tighten           # lower the limits of tests/house_limits.yaml to today's counts

Definitions
-----------
statement
    A node of class ``ast.stmt``, nested ones included. A docstring is one (an expression statement). An ``except`` or a ``case`` is not.
folder
    The first folder below a package, with all that lies in it: ``planner/report/figures/svg.py`` counts for ``planner/report``.
    ``planner/(top)`` holds the files that lie directly in the package.
folders that import each other
    Pairs of folders of ``planner/`` of which each imports the other. Imports inside functions and under ``TYPE_CHECKING`` count, and so
    do modules that a string names (``"planner.api.plans:Plan"``), except in the registry (`REGISTRY`). ``import planner``, through which
    all can be reached, is an import of ``planner/(top)``; the version alone is not.
    ``planner/__main__.py`` counts as a file of ``planner/(top)``; ``planner/__init__.py``, which names the public API, does not.
modules entered
    Modules of the three packages of which some function or class body runs (``sys.setprofile``) while the command line answers.
    Importing ``planner.cli`` comes first and does not count.
tests on the kind of space
    A comparison of something called ``space`` with anything not called so, or with the name of a space in quotes (``family == "mesh"``,
    ``"mixed" in document``); a question whether a plan file has the section of one space (``document.serving is None``); an
    ``isinstance`` or a ``case`` with the class of one space (`_CLASS_OF_A_SPACE`). All outside the folders of the spaces (`SPACE_FOLDERS`).
loose modules
    Files directly in a package, ``__init__.py`` and ``__main__.py`` aside.
words of docs written by hand
    Words of docs/, README.md and CONTRIBUTING.md without pages that say at their head that they are generated, blocks that a program
    writes (between ``<!-- name: program -->`` and ``<!-- end of the name -->``) and what is shown of files and terminals.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("costmodel", "strategies", "planner")
LIMITS = Path("tests", "house_limits.yaml")
SPACE_FOLDERS = {"layerwise", "per_layer", "pipeline", "mesh", "mixed", "serving", "placement"}
# Classes that belong to one space: its name stands in front, or it is one of the per-layer space's, which have no name in front.
_CLASS_OF_A_SPACE = re.compile(
    r"(Ranked)?(Layer|Layerwise|Mesh|Mixed|Serving|Placement)(Answer|Breakdown|Costs|Estimate|Job|Outcome|Plan|Problem|Request|Result|Space)"
    r"|Breakdown|Plan|PipelinePlan|RankedPlan|SearchResult"
)
# Names of spaces, which are also the sections of plan files; "layers" are the rows of networks, too.
_SPACE_NAMES = {"mesh", "mixed", "serving"}
# These have names of that form, and are the API's classes of every space.
_CLASSES_OF_EVERY_SPACE = ("planner.api",)
ONE_ESTIMATE = ("estimate", "llama3-70b", "--tp", "8", "--pp", "4", "--gpus", "64", "--batch", "64")
COMMANDS: dict[str, tuple[str, ...]] = {
    "per-layer, proven": ("optimize", "alexnet", "--gpus", "16"),
    "per-layer, large": ("optimize", "resnet152", "--gpus", "64"),
    "per-layer, paper's preset": (
        "optimize",
        "alexnet",
        "--cost-model",
        "paleo",
        "--cluster",
        "paleo-ethernet20",
        "--gpus",
        "8",
    ),
    "per-layer, one plan": ("estimate", "vgg16", "--gpus", "16", "--family", "data"),
    "mesh, search": ("optimize", "llama3-70b", "--gpus", "512"),
    "mesh, one plan": ONE_ESTIMATE,
    "mesh, explained": ("explain", "llama3-8b", "--gpus", "64"),
    "mixed GPUs": ("optimize", "llama3-8b", "--cluster", "a100-v100"),
    "serving": ("optimize", "llama3-70b", "--mode", "inference", "--gpus", "8"),
    "placement": ("place", "bert-large", "--cluster", "dgx1-v100", "--batch", "4"),
}


# --- Sources ----------------------------------------------------------------------------------------------------------------------------


def sources(tree: Path, package: str) -> list[Path]:
    return sorted(path for path in (tree / package).rglob("*.py"))


def count_statements(text: str) -> int:
    """Count the statements of a module, those inside others and docstrings included."""
    count = 0
    blocks = [ast.parse(text).body]
    while blocks:
        for node in blocks.pop():
            count += 1
            blocks.extend(getattr(node, name) for name in ("body", "orelse", "finalbody") if hasattr(node, name))
            parts = [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]
            blocks.extend(part.body for part in parts)
    return count


def folder_of(path: Path, tree: Path) -> str:
    """Name the folder that a file counts for: ``planner/mesh``, ``planner/(top)``."""
    parts = path.relative_to(tree).parts
    return f"{parts[0]}/{parts[1] if len(parts) > 2 else '(top)'}"


class Size(NamedTuple):
    """Size of some code."""

    files: int = 0
    lines: int = 0
    statements: int = 0

    def plus(self, other: Size) -> Size:
        """Add another."""
        return Size(*(a + b for a, b in zip(self, other, strict=True)))


def sizes(tree: Path, packages: tuple[str, ...] = PACKAGES) -> dict[str, Size]:
    """Measure each folder of the packages."""
    found: dict[str, Size] = {}
    for package in packages:
        for path in sources(tree, package):
            text = path.read_text(encoding="utf-8")
            name = folder_of(path, tree)
            found[name] = found.get(name, Size()).plus(Size(1, len(text.splitlines()), count_statements(text)))
    return found


def total(found: dict[str, Size], package: str = "") -> Size:
    """Add up the folders of a package, or of all."""
    result = Size()
    for name, size in found.items():
        if name.startswith(package):
            result = result.plus(size)
    return result


# --- Shape ------------------------------------------------------------------------------------------------------------------------------


# The kinds of spaces are named by their modules here: schemas, in a room below those of the spaces, read them.
REGISTRY = Path("planner", "core", "request.py")
_MODULE_IN_TEXT = re.compile(rf"((?:{'|'.join(PACKAGES)})(?:\.\w+)+)\.?(?::.*)?")


def module_in(node: ast.AST) -> str:
    """The module of this project that a string names, as in ``"planner.api.plans:Plan"``; else empty."""
    named = isinstance(node, ast.Constant) and isinstance(node.value, str) and _MODULE_IN_TEXT.fullmatch(node.value)
    return named[1] if named else ""


def _imported(tree: ast.Module, *, with_strings: bool) -> Iterator[str]:
    """Names of all imported modules, and of what is imported from one (which may be a module)."""
    for node in ast.walk(tree):
        if with_strings and module_in(node):
            yield module_in(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports_between_folders(tree: Path, package: str = "planner") -> dict[tuple[str, str], list[str]]:
    """List the imports that lead from one folder of a package to another: ``{(from, to): ["file.py -> module", ...]}``."""
    modules = {}
    for path in sources(tree, package):
        parts = path.relative_to(tree).with_suffix("").parts
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    arrows: dict[tuple[str, str], list[str]] = {}
    for module, path in modules.items():
        if module == package:
            continue
        start = folder_of(path, tree)
        parsed = ast.parse(path.read_text(encoding="utf-8"))
        for name in sorted(set(_imported(parsed, with_strings=path.relative_to(tree) != REGISTRY))):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and name != f"{package}.__version__":
                end = folder_of(modules[target], tree)
                if start != end:
                    arrows.setdefault((start, end), []).append(f"{path.relative_to(tree)} -> {target}")
    return arrows


def mutual_imports(tree: Path) -> list[tuple[str, str]]:
    """Pairs of folders of planner/ of which each imports the other."""
    arrows = imports_between_folders(tree)
    return sorted((a, b) for a, b in arrows if a < b and (b, a) in arrows)


def _is_called_space(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "space") or (
        isinstance(node, ast.Attribute) and node.attr == "space"
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _names_in(node: ast.AST) -> list[str]:
    return [
        n.id if isinstance(n, ast.Name) else n.attr for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))
    ]


def _asks_for_a_space(node: ast.AST, of_every_space: set[str]) -> bool:
    """Whether an expression tests which space something belongs to."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        if any(isinstance(operand, ast.Constant) and operand.value in _SPACE_NAMES for operand in operands):
            return True
        sections = [
            operand for operand in operands if isinstance(operand, ast.Attribute) and operand.attr in _SPACE_NAMES
        ]
        # The limits of a request (`Request.mesh`) are no plan.
        if (
            any("request" not in _names_in(section) for section in sections)
            and len(operands) == 2
            and _is_none(operands[1])
        ):
            return True
        called = [_is_called_space(operand) for operand in operands]
        # Two that are compared with each other are not asked which they are, and an importer's name spaces are other things.
        return any(called) and not all(called) and not any("NAMESPACES" in name for name in _names_in(node))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and len(node.args) == 2
    ):
        tested = _names_in(node.args[1])
    elif isinstance(node, ast.MatchClass):
        tested = _names_in(node.cls)
    else:
        return False
    return any(_CLASS_OF_A_SPACE.fullmatch(name) and name not in of_every_space for name in tested)


def tests_on_spaces(tree: Path) -> list[str]:
    """Find the tests on the kind of space or result outside the folders of the spaces, as ``file:line``."""
    found = []
    for package in PACKAGES:
        for path in sources(tree, package):
            relative = path.relative_to(tree)
            if SPACE_FOLDERS & set(relative.parts[:-1]):
                continue
            module = ast.parse(path.read_text(encoding="utf-8"))
            of_every_space = {
                alias.asname or alias.name
                for node in ast.walk(module)
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_CLASSES_OF_EVERY_SPACE)
                for alias in node.names
            }
            found += [
                f"{relative}:{node.lineno}" for node in ast.walk(module) if _asks_for_a_space(node, of_every_space)
            ]  # type: ignore[attr-defined]
    return found


def loose_modules(tree: Path, package: str) -> list[str]:
    """Files directly in a package."""
    return sorted(p.name for p in (tree / package).glob("*.py") if p.name not in {"__init__.py", "__main__.py"})


_WRITTEN_BY_A_PROGRAM = re.compile(r"<!-- [a-z ]+: (?:generated by )?python .*?-->.*?<!-- end.*?-->", re.DOTALL)
_SHOWN = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def hand_written_words(tree: Path) -> int:
    """Count the words of the documentation that people wrote."""
    pages = [path.read_text(encoding="utf-8") for path in (tree / "docs").rglob("*.md")]
    pages += [(tree / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")]
    by_hand = [page for page in pages if "Generated from" not in page[:100]]
    return sum(len(_SHOWN.sub("", _WRITTEN_BY_A_PROGRAM.sub("", page)).split()) for page in by_hand)


# --- Limits -----------------------------------------------------------------------------------------------------------------------------


def read_limits(tree: Path) -> dict[str, int]:
    """Read the limits: statements by folder, by package and ``total``; ``new folder`` is the limit of a folder that is not named."""
    limits: dict[str, int] = yaml.safe_load((tree / LIMITS).read_text(encoding="utf-8"))
    return limits


def counted(tree: Path) -> dict[str, int]:
    """Count the statements by folder, by package and in total."""
    found = sizes(tree)
    counts = {name: size.statements for name, size in sorted(found.items())}
    counts |= {package: total(found, f"{package}/").statements for package in PACKAGES}
    return counts | {"total": total(found).statements}


def excesses(counts: dict[str, int], limits: dict[str, int]) -> list[str]:
    """Say which limits are exceeded, where and by how much."""
    said = []
    for name, count in counts.items():
        limit = limits.get(name, limits["new folder"])
        if count > limit:
            which = f"limit {limit:,}" if name in limits else f"a folder without a limit may have {limit:,}"
            said.append(f"{name}: {count:,} statements, {count - limit:,} too many ({which})")
    return said


_HEAD = """\
# Most statements of source that each folder may have (counted as benchmarks/house.py says; tests/test_house.py checks).
# `python benchmarks/house.py --tighten` lowers the limits to today's counts. Raise one by hand, and give the reason in the commit.
"""


def tighten(tree: Path) -> list[str]:
    """Lower every limit to today's count; a new folder gets its count, and one that is gone loses its limit."""
    limits, counts = read_limits(tree), counted(tree)
    lowered = {name: min(count, limits.get(name, count)) for name, count in counts.items()} | {"new folder": 0}
    write_limits(tree, lowered)
    changed = sorted(limits.keys() | lowered.keys(), key=str)
    return [f"{n}: {limits.get(n, '-')} -> {lowered.get(n, '-')}" for n in changed if limits.get(n) != lowered.get(n)]


def write_limits(tree: Path, limits: dict[str, int]) -> None:
    lines = [f"{name}: {limit}\n" for name, limit in limits.items()]
    (tree / LIMITS).write_text(_HEAD + "".join(lines), encoding="utf-8")


# --- Runs -------------------------------------------------------------------------------------------------------------------------------

_ENTERED = """
import sys
seen = set()
def look(frame, event, argument):
    if event == "call" and frame.f_code.co_name != "<module>":
        seen.add(frame.f_code.co_filename)
from planner.cli import run
sys.setprofile(look)
try:
    run(sys.argv[1:])
finally:
    sys.setprofile(None)
    sys.stderr.write("\\n".join(["", "ENTERED", *seen]))
"""


def _environment() -> dict[str, str]:
    """A run writes byte code, as an installation has it, and takes the tree that it runs in."""
    kept = {
        name: value for name, value in os.environ.items() if name not in {"PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH"}
    }
    return kept | {"PYTHONPATH": ""}


def modules_entered(tree: Path, command: tuple[str, ...] = ONE_ESTIMATE) -> Counter[str]:
    """Count the modules that a command enters, by package."""
    done = subprocess.run(
        [sys.executable, "-c", _ENTERED, *command],
        cwd=tree,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    paths = [Path(line) for line in done.stderr.partition("ENTERED\n")[2].splitlines()]
    inside = [path.relative_to(tree) for path in paths if path.is_relative_to(tree)]
    return Counter(path.parts[0] for path in inside if path.parts[0] in PACKAGES)


def cpu_seconds(tree: Path, arguments: tuple[str, ...]) -> float:
    """User CPU time of one run of Python in a tree."""
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=tree, env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{' '.join(arguments)} in {tree}: exit code {process.returncode}"
    return usage.ru_utime


def least_cpu_seconds(tree: Path, arguments: tuple[str, ...], runs: int) -> float:
    """Shortest of several runs: what else the machine does only adds to it. The first run compiles and does not count."""
    return min([cpu_seconds(tree, arguments) for _ in range(runs + 1)][1:])


def paired(tree: Path, other: Path, command: tuple[str, ...], runs: int) -> tuple[float, float]:
    """User CPU times of a command in two trees, by turns; the shortest of each."""
    arguments = ("-m", "planner", *command)
    pairs = [(cpu_seconds(tree, arguments), cpu_seconds(other, arguments)) for _ in range(runs + 1)][1:]
    return min(a for a, _ in pairs), min(b for _, b in pairs)


# --- Table ------------------------------------------------------------------------------------------------------------------------------


def _row(what: str, now: object, goal: str = "") -> None:
    print(f"{what:66} {now!s:>24}  {goal}", flush=True)


def print_table(tree: Path, *, quick: bool, verbose: bool, runs: int) -> None:
    found, tests = sizes(tree), sizes(tree, ("tests",))
    whole = total(found)
    _row("", "now", "goal")
    _row("statements of source", f"{whole.statements:,}", "<= 38,000")
    _row("  lines", f"{whole.lines:,}")
    _row("  files", f"{whole.files:,}")
    for package in PACKAGES:
        _row(f"  {package}", f"{total(found, f'{package}/').statements:,}")
    mutual, asked = mutual_imports(tree), tests_on_spaces(tree)
    _row("folders of planner/ that import each other, all imports counted", len(mutual), "0")
    entered = Counter() if quick else modules_entered(tree)
    if not quick:
        _row("modules entered by one `estimate` of one mesh plan", sum(entered.values()), "<= 100")
    _row("tests on the kind of space or result outside its folders", len(asked), "0")
    loose = " / ".join(str(len(loose_modules(tree, package))) for package in PACKAGES)
    _row("loose modules at the top of costmodel / strategies / planner", loose, "<= 10 each")
    _row("statements of tests", f"{total(tests).statements:,}", "fewer")
    _row("words of docs written by hand", f"{hand_written_words(tree):,}", "<= 60,000")
    if not quick:
        _row("`planner --help`, s of CPU", f"{least_cpu_seconds(tree, ('-m', 'planner', '--help'), runs):.2f}", "< 0.3")
        _row("`import planner`, s of CPU", f"{least_cpu_seconds(tree, ('-c', 'import planner'), runs):.2f}", "< 0.15")
    if verbose:
        print("\nStatements by folder")
        for name, size in sorted(found.items()):
            _row(f"  {name}", f"{size.statements:,}", f"{size.files} files")
        print("\nFolders that import each other")
        print("".join(f"  {a} <-> {b}\n" for a, b in mutual))
        print("Tests on the kind of space or result")
        print("".join(f"  {place}\n" for place in asked))


def print_pairs(tree: Path, other: Path, runs: int) -> None:
    print(f"\n{'User CPU of commands, s':30} {'this tree':>10} {'other':>10} {'ratio':>7}", flush=True)
    ratios = []
    for name, command in COMMANDS.items():
        here, there = paired(tree, other, command, runs)
        ratios.append(here / there)
        print(f"  {name:28} {here:10.2f} {there:10.2f} {ratios[-1]:7.2f}", flush=True)
    print(f"  median {statistics.median(ratios):.2f} (goal <= 1.0), largest {max(ratios):.2f} (goal <= 1.15)")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="the tree to measure (default: this one)")
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="another tree, for the CPU time of ten commands in both"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each timed command (default: 3)")
    parser.add_argument("--quick", action="store_true", help="only what can be counted without running the planner")
    parser.add_argument("--verbose", "-v", action="store_true", help="also list folders, pairs and places")
    parser.add_argument("--tighten", action="store_true", help="lower the limits to today's counts")
    given = parser.parse_args()
    tree = given.tree.resolve()
    if given.tighten:
        print("\n".join(tighten(tree)) or "no limit is above today's count")
        return
    print_table(tree, quick=given.quick, verbose=given.verbose, runs=given.runs)
    if given.against:
        print_pairs(tree, given.against.resolve(), given.runs)


if __name__ == "__main__":
    main()

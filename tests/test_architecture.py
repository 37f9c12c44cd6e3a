"""The house rules that a machine can check: dependency direction, lazy imports, no evaluation of data."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks import house

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "costmodel": {"costmodel"},
    "strategies": {"strategies", "costmodel"},
    "planner": {"planner", "strategies", "costmodel"},
}
THIRD_PARTY = {
    "costmodel": {"numpy"},
    "strategies": {"numpy", "networkx", "ortools"},
    "planner": {
        "numpy",
        "pandas",
        "scipy",
        "typer",
        "click",
        "rich",
        "pydantic",
        "pydantic_core",
        "yaml",
        "typing_extensions",
        "google",
    },
}
# Written beside an exported plan, where torch is: of their own, and imported by nothing here.
COPIED = {"plan_layouts", "plan_moves"}
COPIED_IMPORT = {"torch", "plan_moves"}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Imports, calls, assignments and operations of a file, and strings that name a module."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call, ast.Assign, ast.BinOp)
    every = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in every if isinstance(node, kinds) or house.module_in(node)]


@pytest.fixture(scope="module", autouse=True)
def _parsed() -> None:
    """Parse every file once, for all tests."""
    for package in ALLOWED:
        for path in sources(package):
            nodes(path)


def imported_modules(path: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
        else:
            names.add(house.module_in(node))
    return names - {""}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_dependencies_point_one_way(package: str) -> None:
    for path in sources(package):
        for module in imported_modules(path):
            top = module.partition(".")[0]
            assert module.rpartition(".")[2] not in COPIED or path.stem in COPIED, (
                f"{path.relative_to(ROOT)} imports {module}"
            )
            if path.stem in COPIED:
                assert top in COPIED_IMPORT or top in sys.stdlib_module_names, (
                    f"{path.relative_to(ROOT)} imports {module}"
                )
            elif top in ALLOWED:
                assert top in ALLOWED[package], f"{path.relative_to(ROOT)} imports {module}"
            elif top not in sys.stdlib_module_names:
                assert top in THIRD_PARTY[package], f"{path.relative_to(ROOT)} imports {module}"


@pytest.mark.parametrize("package", ["costmodel", "strategies"])
def test_no_two_rooms_import_each_other(package: str) -> None:
    """A room is a folder or a file at the top of a package; imports inside functions and under TYPE_CHECKING count, too."""
    arrows = set()
    for path in sources(package):
        room = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        arrows |= {
            (room, module.split(".")[1])
            for module in imported_modules(path)
            if module.startswith(f"{package}.") and module.split(".")[1] != room
        }
    mutual = {(a, b) for a, b in arrows if a < b and (b, a) in arrows}
    # A framework changes the constants of the mesh model, and the mesh model cuts stages as the framework does.
    assert mutual <= {("framework", "mesh")}


# Folders of planner/ from the bottom up: each may import those before it. `(top)` is the command line, `planner/cli.py`.
LAYERS = (
    "core",
    "report",
    "schema",
    "files",
    "importers",
    "question",
    "uncertainty",
    "spaces",
    "exporters",
    "measurements",
    "calibration",
    "logs",
    "detect",
    "measure",
    "placement",
    "comparison",
    "sweeping",
    "sizing",
    "api",
    "commands",
    "(top)",
)


def upward_imports(tree: Path) -> list[str]:
    """Imports inside planner/ that do not point downwards, those inside functions, under TYPE_CHECKING and by name included."""
    ranks = {f"planner/{name}": rank for rank, name in enumerate(LAYERS)}
    found = []
    for (start, end), places in sorted(house.imports_between_folders(tree).items()):
        if start not in ranks or end not in ranks:
            found.append(f"{start} -> {end}: name both in LAYERS")
        elif ranks[start] < ranks[end]:
            found += places
    return found


def test_imports_inside_the_planner_point_downwards() -> None:
    assert not upward_imports(ROOT)


@pytest.mark.parametrize(
    "text",
    [
        "from planner.api.plans import Plan",
        "import planner.api.plans",
        "from planner.api import plans",
        "def f():\n    from planner.api.plans import Plan",
        "if TYPE_CHECKING:\n    from planner.api.plans import Plan",
        "from planner.nowhere.new import New",
        "import planner\nplanner.api.plans.Plan",
        "import planner as everything",
        "from planner import optimize",
        "from importlib import import_module\nimport_module('planner.api.plans')",
        "LAZY = {'Plan': 'planner.api.plans:Plan'}",
        "def f(name):\n    return import_module(f'planner.api.{name}')",
    ],
)
def test_an_import_that_points_upwards_is_found(tmp_path: Path, text: str) -> None:
    for name, content in {
        "core/errors.py": text,
        "api/plans.py": "from planner.core import errors",
        "nowhere/new.py": "",
        "__init__.py": "optimize = 1",
    }.items():
        file = tmp_path / "planner" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(content)
    (found,) = upward_imports(tmp_path)
    assert found.startswith("planner/core")


def test_no_code_asks_which_space_it_has() -> None:
    """What differs between spaces is a method or a declared property of theirs (`PlanSpace`, `Kind` of questions)."""
    assert not house.tests_on_spaces(ROOT)


# Words of this project alone -> what the field says. An underscore joins words to another one.
PRIVATE_WORDS = {
    "judge": "cost model, evaluate",
    "stem": "branch of the search",
    "thrift": "least memory, lowest energy",
    "dearest": "most expensive",
    "dearer": "more expensive",
    "handover": "point-to-point transfer",
    "remedies": "suggestions",
    "hinges": "sensitivity",
}


@pytest.mark.parametrize("package", ["costmodel", "strategies"])
def test_the_words_are_those_of_the_field(package: str) -> None:
    pattern = re.compile(rf"\b(?:{'|'.join(PRIVATE_WORDS)})[sd]?\b", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}; say {PRIVATE_WORDS.get(match.group().lower(), 'otherwise')}"
        for path in sources(package)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_nothing_evaluates_data(package: str) -> None:
    for path in sources(package):
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "__import__"}, f"{path.relative_to(ROOT)}:{node.lineno}"
        assert not imported_modules(path) & {"pickle", "shelve", "marshal", "dill"}, path


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_folders_of_tests_mirror_the_sources(package: str) -> None:
    """What a folder of a room holds is tested in the folder of the same name."""
    folders = {path.name for path in (ROOT / "tests" / package).iterdir() if list(path.glob("test_*.py"))}
    assert folders
    assert not {name for name in folders if not (ROOT / package / name / "__init__.py").is_file()}


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_array_types_and_tolerances_are_named_once(package: str) -> None:
    """`FloatArray = ...` and `1 + 1e-9` stand in `costmodel/arrays.py` and `costmodel/tolerances.py`, and nowhere else."""
    homes = {ROOT / "costmodel" / "arrays.py", ROOT / "costmodel" / "tolerances.py"}
    for path in set(sources(package)) - homes:
        for node in nodes(path):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assert node.targets[0].id not in {"FloatArray", "IntArray", "BoolArray"}, place
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
                one, small = node.left, node.right
                if isinstance(one, ast.Constant) and one.value == 1 and isinstance(small, ast.Constant):
                    assert not (isinstance(small.value, float) and 0 < small.value <= 1e-9), place


def test_solver_library_is_known_in_one_place() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for package in ALLOWED
        for path in sources(package)
        if any(module.startswith("ortools") for module in imported_modules(path))
    }
    assert users <= {"strategies/solvers.py"}


@pytest.mark.parametrize("words", [["--help"], ["optimize", "--help"], ["optimize", "alexnet", "--gpus", "0"]])
def test_parsing_imports_nothing_heavy(words: list[str]) -> None:
    """Help, and an error in an option, come before anything is computed: without numpy, pydantic or a reader of files."""
    installed = tuple(map(int, version("typer").split(".")[:2]))
    if installed >= (0, 29) and words != ["--help"]:
        pytest.skip("typer from 0.29 on imports pydantic to parse an option; pyproject.toml asks for an older one")
    code = (
        f"import sys; sys.argv = ['planner', *{words!r}]\n"
        "from planner.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'pydantic', 'yaml', 'networkx', 'ortools', 'pandas'} & set(sys.modules)\n"
        "sys.__stdout__.write('HEAVY ' + ','.join(sorted(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.rpartition("HEAVY ")[2] == "", done.stderr
    assert "HEAVY " in done.stdout

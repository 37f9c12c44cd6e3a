"""The size of the code: no folder grows past its limit, and what `benchmarks/house.py` counts is counted right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


FUNCTION = '''"""Doc."""
def f(x):
    """Doc."""
    try:
        return x
    except ValueError:
        raise
    finally:
        pass
'''
MATCH = """match 1:
    case 1:
        a = 1; b = 2
    case _:
        for c in ():
            pass
        else:
            pass
"""
# The third and the last ask nothing: two spaces are compared with each other, and the class is every space's.
TESTS = """if answer.space == MESH: pass
if space in a: pass
if a.space == b.space: pass
isinstance(x, (int, MixedAnswer))
isinstance(x, Result)
if document.serving is not None: pass
if request.mesh is None: pass
if family == "mesh" or "mixed" in document: pass
if "layers" in tables: pass
"""


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", ROOT / "benchmarks" / "house.py")
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module
    spec.loader.exec_module(module)
    return module


def test_no_folder_exceeds_its_limit(house: ModuleType) -> None:
    said = house.excesses(house.counted(ROOT), house.read_limits(ROOT))
    assert not said, "\n".join(["more code than tests/house_limits.yaml allows:", *said])


@pytest.mark.e2e
def test_one_estimate_enters_at_most_a_hundred_modules(house: ModuleType) -> None:
    # A command that loads the Python functions and their answers enters more: it shares with them what stands below.
    entered = house.modules_entered(ROOT)
    assert 50 < sum(entered.values()) <= 100, entered


def tree(folder: Path, files: dict[str, str]) -> Path:
    for package in ("costmodel", "strategies", "planner", "tests"):
        (folder / package).mkdir()
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_statements_are_counted_with_nested_ones_and_docstrings(house: ModuleType) -> None:
    assert house.count_statements(FUNCTION) == 7  # two docstrings, def, try, return, raise, pass
    assert house.count_statements(MATCH) == 6  # match, two assignments, for, two passes


def test_message_says_where_and_by_how_much(house: ModuleType, tmp_path: Path) -> None:
    made = tree(
        tmp_path, {"planner/core/a.py": "a = 1\nb = 2\n", "planner/new/b.py": "c = 3\n", "planner/c.py": "d = 4\n"}
    )
    limits = {
        "planner/core": 1,
        "planner/(top)": 1,
        "new folder": 0,
        "planner": 4,
        "costmodel": 0,
        "strategies": 0,
        "total": 9,
    }
    assert house.excesses(house.counted(made), limits) == [
        "planner/core: 2 statements, 1 too many (limit 1)",
        "planner/new: 1 statements, 1 too many (a folder without a limit may have 0)",
    ]


def test_tighten_lowers_and_never_raises(house: ModuleType, tmp_path: Path) -> None:
    made = tree(tmp_path, {"planner/core/a.py": "a = 1\nb = 2\n", "planner/new/b.py": "c = 3\n"})
    before = {
        "planner/core": 1,
        "planner/gone": 5,
        "planner": 9,
        "costmodel": 3,
        "strategies": 0,
        "total": 99,
        "new folder": 7,
    }
    house.write_limits(made, before)
    house.tighten(made)
    expected = {
        "planner/core": 1,
        "planner/new": 1,
        "planner": 3,
        "costmodel": 0,
        "strategies": 0,
        "total": 3,
        "new folder": 0,
    }
    assert house.read_limits(made) == expected


def test_mutual_imports_count_those_inside_functions(house: ModuleType, tmp_path: Path) -> None:
    files = {
        "planner/__init__.py": "from planner.a import x\n",
        "planner/a/__init__.py": "",
        "planner/a/x.py": "from planner.b import y\nfrom planner.c.z import q\n",
        "planner/b/__init__.py": "",
        "planner/b/y.py": "def f():\n    import planner.a.x\n",
        "planner/c/__init__.py": "",
        "planner/c/z.py": "import planner\nq = 1\n",
    }
    assert house.mutual_imports(tree(tmp_path, files)) == [("planner/a", "planner/b")]


def test_tests_on_spaces_are_found_outside_their_folders(house: ModuleType, tmp_path: Path) -> None:
    made = tree(
        tmp_path,
        {"planner/a/x.py": TESTS, "strategies/mesh/x.py": TESTS, "planner/a/mesh.py": "isinstance(x, ServingPlan)\n"},
    )
    assert house.tests_on_spaces(made) == [
        "planner/a/mesh.py:1",
        "planner/a/x.py:1",
        "planner/a/x.py:2",
        "planner/a/x.py:4",
        "planner/a/x.py:6",
        "planner/a/x.py:8",
        "planner/a/x.py:8",
    ]

"""The list of tests that need not run again where more libraries are installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent

FILES = {
    "test_plain.py": "def test_of_two():\n    pass\ndef test_that_fails():\n    assert False\n",
    "test_looks.py": "import importlib.util\nHERE = importlib.util.find_spec('of_an_extra')\ndef test_otherwise():\n    pass\n",
    "test_imports.py": """
def test_of_an_extra():
    try:
        import of_an_extra
    except ImportError:
        pass
def test_beside_it():
    pass
""",
    "test_starts.py": """
import subprocess, sys
def test_a_process():
    subprocess.run([sys.executable, "-c", "sum(range(3_000_000))"], check=True)
""",
    "test_table.py": "def test_measurements():\n    pass\n",
    "test_property.py": "from hypothesis import given, strategies as st\n@given(st.booleans())\ndef test_all(_):\n    pass\n",
    "asks/conftest.py": "import importlib.util\nHERE = importlib.util.find_spec('of_an_extra')\n",
    "asks/test_below.py": "def test_of_a_folder():\n    pass\n",
}  # fmt: skip


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the `conftest.py` of this one."""
    for name, text in FILES.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    shutil.copy(HERE / "conftest.py", tmp_path / "tests")
    shutil.copy(HERE.parent / "pyproject.toml", tmp_path)
    return tmp_path


def pytest_in(project: Path, *options: str) -> list[str]:
    """Run the tests of a project; those that ran."""
    command = [sys.executable, "-m", "pytest", "-v", *options]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=120)
    said = [line.split() for line in done.stdout.splitlines() if "::" in line]
    return sorted({word for words in said if {"PASSED", "FAILED"} & {*words} for word in words if "::" in word})


@pytest.mark.e2e
def test_what_may_do_something_else_with_more_libraries_runs_again(project: Path) -> None:
    passed = project / "passed"
    everything = pytest_in(project, "-n", "2", f"--write-passed={passed}")
    assert len(everything) == 9
    once = ["tests/test_plain.py::test_of_two", "tests/test_property.py::test_all"]
    assert passed.read_text(encoding="utf-8").splitlines() == once
    # A property has more examples under `fuzz`.
    again = pytest_in(project, "-n", "2", "-m", "fuzz or not fuzz", f"--skip-passed={passed}")
    assert again == [name for name in everything if name != once[0]]

"""Fixtures shared by all tests; what runs by default, and how long a default test may take."""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parent.parent

BUDGET_S = 1.0
"""CPU time that a default test may take, with the processes that it starts; its fixtures are not counted."""

SLACK = 5.0
"""A test fails from this many budgets on: CPU time is several times as much where the machine is loaded or modules are compiled first."""

# Where byte code is not to lie beside the sources, the many processes that tests start, those of xdist first, share a folder of it: each
# would compile all that it loads.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(REPOSITORY / ".pytest_cache" / "bytecode"))

# A job that a shell starts in the background ignores Ctrl-C, and so would all its children; tests of Ctrl-C need it heard.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# As the program itself (`planner.__main__`): looking for garbage among all collected tests, again and again, takes a tenth of the suite.
gc.set_threshold(50_000)

# Properties are tried with a few examples, the same in every run, or with many under `-m fuzz`.
hypothesis.settings.register_profile("quick", max_examples=15, deadline=None, derandomize=True, database=None)

_IS_DEFAULT = pytest.StashKey[bool]()
_IS_FUZZ = pytest.StashKey[bool]()
_CPU_S = pytest.StashKey[float]()
_times: dict[str, float] = {}
_passed: set[str] = set()
_again: set[str] = set()


class Missing:
    """Files of tests, and folders whose `conftest.py` is loaded, on whose behalf a library is looked for that is not installed.

    It is the last finder of modules: it is asked for what no other finds.
    """

    def __init__(self) -> None:
        self.path = Path()
        self.paths: set[Path] = set()

    def find_spec(self, *_: object) -> None:
        """Note who looks in vain."""
        frame = sys._getframe(1)
        while frame and not (frame.f_code.co_name == "<module>" and frame.f_code.co_filename.endswith("conftest.py")):
            frame = frame.f_back
        self.paths.add(Path(frame.f_code.co_filename).parent if frame else self.path)

    def concerns(self, path: Path) -> bool:
        """Whether that holds for a file of tests or for a folder that it lies in."""
        return not self.paths.isdisjoint((path, *path.parents))


_missing = Missing()
sys.meta_path.append(_missing)  # type: ignore[arg-type]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the list of tests by CPU time, their budget, and the list of those that need not run again."""
    parser.addoption(
        "--write-passed",
        type=Path,
        metavar="FILE",
        help="list the tests that passed and would do the same with more libraries (with =, or pytest takes the file for tests)",
    )
    parser.addoption("--skip-passed", type=Path, metavar="FILE", help="do not run the tests of that list again")
    parser.addoption(
        "--examples", type=int, default=200, metavar="N", help="examples of every property under -m fuzz (default: 200)"
    )
    parser.addoption("--cpu", type=int, default=0, metavar="N", help="list the N tests that took most CPU time")
    parser.addoption(
        "--budget", type=float, default=BUDGET_S, metavar="S", help="CPU time of a test without a marker (default: 1)"
    )


def _default_markers(config: pytest.Config) -> str:
    options = config.getini("addopts")
    return str(options[options.index("-m") + 1])


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose what runs.

    A test that is named (``file.py::test``) runs whatever its markers are. The properties have many examples where
    ``-m`` names ``fuzz``.
    """
    default = _default_markers(config)
    if config.option.markexpr == default and any("::" in argument for argument in config.args):
        config.option.markexpr = ""
    config.stash[_IS_DEFAULT] = config.option.markexpr == default
    config.stash[_IS_FUZZ] = "fuzz" in config.option.markexpr.replace("not fuzz", "")
    hypothesis.settings.register_profile("fuzz", max_examples=config.option.examples, deadline=None)
    hypothesis.settings.load_profile("fuzz" if config.stash[_IS_FUZZ] else "quick")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under ``-m fuzz``, every property is a fuzz test, too: it runs although it passed with few examples."""
    if config.stash[_IS_FUZZ]:
        for item in items:
            if hasattr(getattr(item, "obj", None), "hypothesis"):
                item.add_marker("fuzz")
    if config.option.skip_passed:
        passed = set(config.option.skip_passed.read_text(encoding="utf-8").splitlines())
        again = [item for item in items if item.nodeid not in passed or item.get_closest_marker("fuzz")]
        config.hook.pytest_deselected(items=[item for item in items if item not in set(again)])
        items[:] = again


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """Note on whose behalf libraries are looked for."""
    _missing.path = collector.path
    return (yield)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was made up to here lives until the end."""
    if len(session.items) > 1000:  # most of the suite: no test is charged for loading what all of them share
        load_program()
    gc.collect()
    gc.freeze()


def load_program() -> None:
    """Import what commands import when they first need it."""
    for name in ("planner.spaces.ask", "planner.cli", "ortools.math_opt.python.mathopt", "pydantic", "networkx"):
        importlib.import_module(name)


def _cpu_s() -> tuple[float, float]:
    """CPU time of this process, and of those that it started."""
    children = os.times()
    return time.process_time(), children.children_user + children.children_system


def _measured(item: pytest.Item) -> Generator[None, None, None]:
    own_s, others_s = _cpu_s()
    _missing.path = item.path
    try:
        yield
    finally:
        own_now_s, others_now_s = _cpu_s()
        item.stash[_CPU_S] = own_now_s - own_s + others_now_s - others_s
        if others_now_s > others_s:
            _missing.find_spec()  # who knows what the process looked for


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Measure the CPU time of the fixtures."""
    yield from _measured(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Measure the CPU time of the test itself."""
    yield from _measured(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Note the CPU time; a default test that takes too much of it fails."""
    report = yield
    report.again = _missing.concerns(item.path)
    if call.when != "teardown":
        report.cpu_s = item.stash.get(_CPU_S, 0.0)
        budget_s = item.config.option.budget
        if item.config.stash[_IS_DEFAULT] and call.when == "call" and report.passed and report.cpu_s > SLACK * budget_s:
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid} took {report.cpu_s:.1f} s of CPU time; a test without a marker has {budget_s:g} s. "
                "Make its case smaller, or mark it (exact, published, fuzz, e2e) and keep a small case without a marker "
                "(tests.cases.mostly)."
            )
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Gather CPU times, and which tests to run again, in the process that reports them."""
    _times[report.nodeid] = _times.get(report.nodeid, 0.0) + getattr(report, "cpu_s", 0.0)
    if report.when == "call" and report.passed:
        _passed.add(report.nodeid)
    if getattr(report, "again", True):
        _again.add(_file_of(report.nodeid))


def _file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _reads_tables(file: str) -> bool:
    """Whether a file of tests has to do with pandas, which looks for pyarrow once in a process: whoever reads tables later does not."""
    return re.search("pandas|measurements|validate", (REPOSITORY / file).read_text(encoding="utf-8")) is not None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the list of tests that need not run again, in the process that reports them."""
    path = session.config.option.write_passed
    if path and not hasattr(session.config, "workerinput"):
        again = _again | {file for file in {_file_of(name) for name in _passed} if _reads_tables(file)}
        once = sorted(name for name in _passed if _file_of(name) not in again)
        path.write_text("".join(f"{name}\n" for name in once), encoding="utf-8")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the tests that took most CPU time, fixtures included."""
    if config.option.cpu:
        terminalreporter.section("CPU time")
        terminalreporter.write_line(f"{sum(_times.values()):9.2f} s  all {len(_times)} tests")
        for name, spent in sorted(_times.items(), key=lambda entry: -entry[1])[: config.option.cpu]:
            terminalreporter.write_line(f"{spent:9.2f} s  {name}")


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Folder of published reference data; tests that need it skip where it is absent, and fail where it is named and not there."""
    named = os.environ.get("PLANNER_REFERENCE_DATA")
    folder = Path(named or REPOSITORY.parent / "shared")
    if not (folder / "paleo").is_dir():
        (pytest.fail if named else pytest.skip)(f"reference data not found at {folder} (set PLANNER_REFERENCE_DATA)")
    return folder


@pytest.fixture
def new_file(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file of a name and a text into the folder of the test."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write

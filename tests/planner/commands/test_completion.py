"""Completion of words by the shell, asked for as a shell asks: through the environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from planner.api.keywords import ExplainOptions, OptimizeOptions, ScaleOptions, SizeOptions, SweepOptions, options_of
from planner.api.pages import REPORT_OPTIONS
from planner.api.place_options import PlaceOptions
from planner.api.readers import Option, words_from
from planner.commands import files_commands, machine
from planner.commands.command import RUN_FROM
from planner.commands.output import OUTPUT_OPTIONS

BASH = "complete_bash"


def completed(line: str, shell: str = BASH) -> list[str]:
    """Words offered at the end of a line."""
    words = line.split(" ")
    variables = (
        {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        if shell == BASH
        else {
            "_TYPER_COMPLETE_ARGS": line,
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_TYPER_COMPLETE_WORD_TO_COMPLETE": words[-1],
        }
    )
    environment = {**os.environ, "_PLANNER_COMPLETE": shell, **variables}
    done = subprocess.run(
        [sys.executable, "-m", "planner"], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert "Traceback" not in done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("planner opt", {"optimize"}),
        ("planner optimize alex", {"alexnet", "alexnet-torchvision", "alexnet-cuda-convnet2"}),
        ("planner scale alex", {"alexnet"}),
        ("planner explain llama3-8", {"llama3-8b"}),
        ("planner optimize alexnet --cluster dgx-", {"dgx-h100", "dgx-a100", "dgx-b200"}),
        ("planner optimize alexnet --device h100", {"h100-sxm", "h100-pcie"}),
        ("planner optimize alexnet -d h100-s", {"h100-sxm"}),
        ("planner optimize alexnet --calibration def", {"default"}),
        ("planner optimize alexnet --precision bf", {"bf16"}),
        ("planner optimize x --mode inference --objective tt", {"ttft"}),
        ("planner optimize x --objective step", {"step_time"}),
        ("planner optimize x --objective ", {"money", "energy", "gpu_hours"}),
        ("planner optimize x --collective but", {"butterfly", "butterfly-mixing"}),
        ("planner optimize x --collective ", {"ring", "double-tree", "in-network", "one-to-all"}),
        ("planner sweep x --cluster dgx-a100,dgx-h", {"dgx-a100,dgx-h100"}),
        ("planner size x --cluster dgx-b", {"dgx-b200"}),
        ("planner place bert --method ", {"auto", "expert"}),
        ("planner place x --objective ", {"throughput", "latency"}),
        ("planner optimize x --schedule 1f1b,int", {"1f1b,interleaved"}),
        ("planner export plan.yaml --to meg", {"megatron", "megatron-bridge"}),
        ("planner estimate x --from deep", {"deepspeed"}),
        ("planner compare --from acc", {"accelerate"}),
        ("planner list imp", {"importers"}),
        ("planner schema comp", {"compare"}),
        ("planner optimize x --memory-l", {"--memory-limit"}),
    ],
)
def test_bash(line: str, wanted: set[str]) -> None:
    assert wanted <= set(completed(line))


@pytest.mark.parametrize("shell", ["complete_zsh", "complete_fish"])
def test_other_shells(shell: str) -> None:
    assert "alexnet-torchvision" in " ".join(completed("planner optimize alexnet-t", shell))


def test_nothing_is_offered_for_a_number_or_a_wrong_command() -> None:
    assert completed("planner optimize alexnet --gpus ") == []
    assert completed("planner nonsense al") == []


def test_the_script_is_shown_for_a_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planner", "--show-completion", "bash"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        # Which shell runs the tests, if any, does not matter.
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert "_PLANNER_COMPLETE=complete_bash" in done.stdout


def declared() -> dict[str, Option]:
    """Every option of the questions and of the commands, by its flags."""
    classes = (OptimizeOptions, ExplainOptions, ScaleOptions, SweepOptions, SizeOptions, PlaceOptions)
    tables = [
        *map(options_of, classes),
        RUN_FROM,
        OUTPUT_OPTIONS,
        REPORT_OPTIONS,
        files_commands._EXPORT,
        machine._MEASURE,
    ]
    return {option.flags: option for table in tables for option in table.values()}


@pytest.mark.parametrize("source", sorted({one.words for one in declared().values() if one.words}))
def test_every_source_has_words(source: str) -> None:
    words = words_from(source)
    assert words
    assert all(word and not word.isspace() for word in words)


def test_help_loads_no_command() -> None:
    code = (
        "import sys, contextlib, io\nfrom planner.cli import run\n"
        "with contextlib.redirect_stdout(io.StringIO()): run(['--help'])\n"
        "print([m for m in ('numpy', 'pydantic', 'rich', 'planner.commands.questions') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.strip() == "[]"


def test_every_collective_that_may_be_named_is_offered() -> None:
    from costmodel.hardware.collectives import names_of

    assert words_from(declared()["--collective"].words) == tuple(names_of("all_reduce"))

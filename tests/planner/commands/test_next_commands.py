"""What answers say to type next is typed."""

from __future__ import annotations

import shlex
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.core.typed import asked_again
from tests.cases import mostly

SERVED = ["llama3-8b", "--mode", "inference", "--gpus", "2", "--max-batch", "16,32,64", "--prefill-chunk", "0"]
QUESTIONS = [
    ("place alexnet --cluster dgx1-v100 --devices 2", 2),
    ("optimize alexnet --gpus 4", 2),
    ("optimize gpt2-124m --gpus 4 --framework megatron-lm", 2),
    (shlex.join(["optimize", *SERVED, "--framework", "vllm", "--max-tpot", "12ms"]), 3),
    (shlex.join(["optimize", *SERVED, "--framework", "vllm", "--rate", "4", "--max-tpot", "p90:14ms"]), 2),
    ("size gpt2-124m --tokens 1B --days 1 --cluster h100 --max-gpus 8 --batch 64", 2),
    ("size gpt2-124m --tokens 100T --days 1 --budget 10 --cluster h100 --max-gpus 8 --batch 64", 1),
    ("size llama3-8b --rate 4 --max-tpot p90:40ms --cluster h100 --max-gpus 2 --max-batch 16,32,64", 2),
    ("why-not gpt2-124m --gpus 4 --tp 2 --sequence-parallel", 2),
    ("why-not gpt2-124m --gpus 4 --tp 7", 0),
    ("place alexnet --cluster dgx1-v100 --devices 2 --export placement.yaml --batch 2", 2),
]  # fmt: skip


def typed_next(text: str) -> list[list[str]]:
    """Words of the commands of an answer's line "Next", as a shell reads them."""
    if "\nNext:" not in text:
        return []
    first, *more = text[text.index("\nNext:") + 6 :].splitlines()
    block = "\n".join([first, *takewhile(lambda line: line.startswith(" "), more)]).replace("\\\n", " ")
    return [words for line in block.splitlines() if (words := shlex.split(line, comments=True))]


@mostly("e2e", ("question", "count"), QUESTIONS, quick=2)
def test_what_comes_next_can_be_pasted(
    question: str, count: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*shlex.split(question), "--width", "100"]) in (0, 1)
    commands = typed_next(capsys.readouterr().out)
    assert len(commands) >= count
    for words in commands:
        assert words[0] == "planner"
        assert run(words[1:]) == 0, capsys.readouterr().err


def test_a_check_says_what_comes_next(answer: Any, said: Any, tmp_path: Path) -> None:
    plan, log = tmp_path / "plan.yaml", tmp_path / "run.log"
    answer("estimate", "gpt2-124m", "--gpus", "2", "--batch", "8", "--framework", "megatron-lm", "--export", plan)
    lines = [
        f" iteration {n}/ 100 | consumed samples: {8 * n} | elapsed time per iteration (ms): 25.0 |"
        for n in range(1, 21)
    ]
    log.write_text("\n".join(lines), encoding="utf-8")
    text = said("check", log, "--plan", plan, "--width", "400", code=1)[0]
    explained, kept = typed_next(text)
    assert explained == ["planner", "explain", "--plan", str(plan)]
    assert kept[-4:] == ["--row", "runs.csv", "--calibrate", "mine.yaml"]


@pytest.mark.e2e
def test_a_plan_file_that_is_asked_about_is_explained(answer: Any, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.yaml")
    answer("optimize", "gpt2-124m", "--gpus", "2", "--export", plan)
    (explained,) = typed_next(answer("why-not", "--plan", plan))
    assert explained == ["planner", "explain", "--plan", plan]
    answer(*explained[1:])


def test_short_options_and_values_with_equals_are_replaced() -> None:
    line = "planner size 'my net.yaml' -c h100 --gpus=8 --json -o out.json"
    assert asked_again(line, {"-c": None, "--gpus": "16"}) == "planner size 'my net.yaml' --gpus 16"

"""Several frameworks for one question: each as if it were asked alone, ranked, with reasons."""

from __future__ import annotations

import json
from typing import Any

import pytest

import planner
from planner.core.answer import Answer
from planner.core.errors import LimitReached, NoFeasiblePlan, SearchInterrupted, UnknownName, UsageError
from planner.core.request import Request
from planner.exporters import EXPORTERS, exporter_of
from planner.report.frameworks import frameworks_blocks
from planner.report.text import plain_text
from planner.schema import schema_of
from planner.spaces import ask

NETWORK = "gpt2-124m"
ASKED: dict[str, Any] = {"gpus": 1, "top": 1, "micro_batch": "1..8"}


def result_of(*frameworks: str, **options: Any) -> planner.SearchResult:
    return planner.optimize(NETWORK, framework=list(frameworks), **ASKED, **options)


@pytest.fixture(scope="module")
def three() -> planner.SearchResult:
    return result_of("deepspeed", "nanotron", "accelerate")


def test_each_framework_is_as_if_asked_alone(three: planner.SearchResult) -> None:
    alone = {name: planner.optimize(NETWORK, framework=name, **ASKED).best for name in ("deepspeed", "accelerate")}
    order = sorted(alone, key=lambda name: alone[name].step_time_s)
    assert list(three.frameworks) == [*order, "nanotron"]
    for name, plan in alone.items():
        found = three.frameworks[name]
        assert found is not None
        assert (found.step_time_s, found.settings) == (plan.step_time_s, plan.settings)
    assert three.best.settings == alone[order[0]].settings
    assert three.raw.setting.framework == order[0]
    behind = alone[order[1]].step_time_s / alone[order[0]].step_time_s - 1
    assert [row.behind for row in three.raw.frameworks[:2]] == pytest.approx([0.0, behind])


def test_a_framework_without_a_plan_is_a_line(three: planner.SearchResult) -> None:
    last = three.raw.frameworks[-1]
    assert (last.framework, last.answer, last.target) == ("nanotron", None, "")
    assert last.reason.startswith("a network that is a decoder with perceptrons without a gate")
    assert three.frameworks["nanotron"] is None


def test_why_names_both(three: planner.SearchResult) -> None:
    first, second, _ = three.raw.frameworks
    assert first.why == ""
    assert f"{second.framework} is" in second.why
    assert f"slower than {first.framework}" in second.why


def test_no_framework_is_named_in_words() -> None:
    found = result_of("deepspeed", "none").raw
    said = plain_text(frameworks_blocks(found), None)
    assert "no framework" not in said
    assert "a well-tuned implementation is" in said
    assert "none" not in said.replace("why there is none", "")
    assert {row.framework for row in found.frameworks} == {"deepspeed", "none"}
    (source,) = (one.source for one in found.assumptions if one.name == "framework")
    assert source == "given, the best of 2"


def test_one_framework_is_the_answer_that_it_was() -> None:
    named = planner.optimize(NETWORK, framework=["deepspeed"], **ASKED)
    assert named.frameworks == {}
    assert named.raw.setting.framework == "deepspeed"


def test_names_are_checked_before_anything_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "optimize", lambda *_: pytest.fail("searched"))
    with pytest.raises(UnknownName, match="'depspeed' is not known; did you mean 'deepspeed'"):
        result_of("torchtitan", "depspeed")
    with pytest.raises(UsageError, match=r"'depspeed' is not known(.|\n)*'foo' is not known"):
        result_of("depspeed", "foo")
    with pytest.raises(UsageError, match="is all of them; leave the others out"):
        result_of("auto", "deepspeed")


def test_what_is_wrong_under_all_is_said_once() -> None:
    with pytest.raises(UnknownName, match="'nosuch' is not known"):
        planner.optimize("nosuch", gpus=1, framework=["torchtitan", "deepspeed"])
    with pytest.raises(UsageError, match=r"nanotron: a network that(.|\n)*vllm: serves networks"):
        result_of("nanotron", "vllm")


def test_nothing_fits_under_any() -> None:
    with pytest.raises(
        NoFeasiblePlan, match=r"under no framework is there a plan\ndeepspeed: nothing fits(.|\n)*nanotron: "
    ):
        result_of("deepspeed", "nanotron", memory_limit="1 GiB")


def test_a_limit_is_said_as_one() -> None:
    with pytest.raises(LimitReached, match=r"deepspeed: the time limit ended(.|\n)*nanotron: a network"):
        result_of("deepspeed", "nanotron", time_limit="1us")


def test_ctrl_c_keeps_the_frameworks_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(request: Request, progress: Any = None) -> Answer:
        if request.framework == "accelerate":
            raise SearchInterrupted(None)
        return real(request, progress)

    real = ask.optimize
    monkeypatch.setattr(ask, "optimize", search)
    with pytest.raises(planner.Interrupted) as stopped:
        result_of("deepspeed", "accelerate", "torchtitan")
    assert list(stopped.value.result.frameworks) == ["deepspeed"]  # type: ignore[union-attr]


def test_the_command_and_its_json(answer: Any, fails: Any) -> None:
    words = ("optimize", NETWORK, "--gpus", "1", "--framework", "deepspeed,nanotron")
    text = answer(*words)
    assert "Frameworks: the best first, with its plan to run" in text
    assert "--to deepspeed" in text
    assert text.startswith("Best, under deepspeed: ")
    document = json.loads(answer(*words, "--json"))
    schema_of("result").model_validate(document)
    first, last = document["frameworks"]
    assert (first["framework"], first["reason"], first["target"]) == ("deepspeed", None, "deepspeed")
    assert first["step_time_s"] == document["plans"][0]["step_time_s"]
    assert first["plan"] == document["plans"][0]["plan"]
    assert (last["step_time_s"], last["plan"]) == (None, None)
    for command in ("estimate", "explain"):
        assert "are several; name one here" in fails(
            command, NETWORK, "--gpus", "1", "--framework", "deepspeed,nanotron"
        )
    assert "is the framework of the file that --from names" in fails(
        "estimate", NETWORK, "--gpus", "1", "--framework", "auto"
    )


ENGINES = {"vllm", "sglang", "tensorrt-llm"}


@pytest.mark.exact
@pytest.mark.parametrize(
    ("model", "mode"), [(NETWORK, "training"), ("llama3-8b", "inference"), ("resnet50", "training")]
)
def test_auto_is_all_that_are_exported(model: str, mode: str) -> None:
    found = planner.optimize(model, gpus=2, top=1, framework="auto", mode=mode)
    exporters = [exporter_of(target) for target in EXPORTERS]
    assert set(found.frameworks) == {
        e.FRAMEWORK for e in exporters if (e.FRAMEWORK in ENGINES) == (mode == "inference")
    }
    planned = [row for row in found.raw.frameworks if row.answer is not None]
    assert planned == sorted(planned, key=lambda row: row.behind)
    assert planned[0].behind == 0.0

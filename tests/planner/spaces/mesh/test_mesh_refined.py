"""Plans with stages of their own beside the uniform ones: in the table, as data, in plan files; only where they are better."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from costmodel.mesh.plan import LayerSplit, MeshPlan
from planner.cli import run
from planner.core.blocks import Sentence, Table
from planner.core.errors import SearchInterrupted
from planner.core.request import Request
from planner.files.plan_file import plan_document, plan_text
from planner.report.answer import search_report
from planner.report.text import plain_text
from planner.schema.answer import estimate_model, search_model
from planner.spaces.ask import optimize
from planner.spaces.mesh.plans import mesh_plan_in_words
from planner.spaces.mesh.report import split_text
from strategies import limits
from strategies.mesh.block_search import SplitCheck
from strategies.mesh.settings import Bounds, MeshRestriction
from tests.planner.mesh_answers import PLAN, make_ranked, make_result

# The head of a small network is worth some blocks, so stages of equal length are uneven.
UNEVEN = "gpt3-1.3b --gpus 8 --batch 64 --seq 512 --pp 8"


@pytest.fixture(scope="module")
def pipeline() -> Request:
    pp = MeshRestriction(degrees={"pp": Bounds(values=(8,))})
    return Request(model="gpt3-1.3b", gpus=8, batch=64, seq=512, mesh=pp)


@pytest.mark.e2e
def test_the_best_of_all_is_told_written_and_predicted_again(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    found = json.loads(answer("optimize", *UNEVEN.split(), "--export", str(path), "--json"))
    checked = search_model("mesh").model_validate(found)
    assert json.loads(checked.model_dump_json(exclude_unset=True)) == found
    refined, best = found["refined"], found["plans"][0]
    assert refined["step_time_s"] < best["step_time_s"] * (1 - 1e-4)
    assert [plan["rank"] for plan in (refined, *found["plans"])] == list(range(1, len(found["plans"]) + 2))
    assert not {1} & {*found["benchmark_list"], *found["near_list"]}  # the others are compared
    assert refined["gap"] == pytest.approx(refined["step_time_s"] / best["step_time_s"] - 1)
    assert refined["memory_bytes_per_gpu"] <= refined["memory_capacity_bytes"]
    stages = refined["plan"]["stage_blocks"]
    assert sum(stages) == 24
    assert len(set(stages)) > 1
    # Bound and proof are about the uniform plans.
    assert found["proven_optimal"]
    assert found["bound_s"] == best["step_time_s"]
    written = yaml.safe_load(path.read_text())
    assert written["mesh"]["stage_blocks"] == stages
    assert "proven_optimal" not in written["prediction"]
    assert "bound_s" not in written["prediction"]
    again = json.loads(answer("estimate", "--plan", str(path), "--json"))
    assert again["step_time_s"] == pytest.approx(refined["step_time_s"], rel=1e-9)


@pytest.mark.e2e
def test_recomputed_blocks_per_stage_are_written_and_predicted_again(answer: Any, tmp_path: Path) -> None:
    """Little memory: the first stages keep more activations and must recompute more blocks."""
    path = tmp_path / "plan.yaml"
    command = (
        "optimize gpt3-1.3b --gpus 4 --batch 32 --seq 2048 --pp 4 --schedule 1f1b --recompute full --memory-limit 12GiB"
    )
    found = json.loads(answer(*command.split(), "--export", str(path), "--json"))
    plan = found["refined"]["plan"]
    assert plan["stage_recompute"][0] > plan["stage_recompute"][-1]
    assert yaml.safe_load(path.read_text())["mesh"]["stage_recompute"] == plan["stage_recompute"]
    again = json.loads(answer("estimate", "--plan", str(path), "--json"))
    assert again["step_time_s"] == pytest.approx(found["refined"]["step_time_s"], rel=1e-9)


def test_without_it_nothing_is_said() -> None:
    sentences = [block.text for block in search_report(make_result()).blocks() if isinstance(block, Sentence)]
    assert len(sentences) == 1
    assert sentences[0].startswith("Best: ")
    assert search_report(make_result()).data()["refined"] is None


def test_other_objectives_say_what_is_better() -> None:
    uneven = make_ranked(dataclasses.replace(PLAN, stage_blocks=(19, 20, 21, 20)), 19.0, gap=-0.05)
    result = make_result(refined=uneven, objective="gpu_hours")
    result = dataclasses.replace(result, plans=tuple(dataclasses.replace(p, rank=p.rank + 1) for p in result.plans))
    said = [block.text for block in search_report(result).blocks() if isinstance(block, Sentence)]
    assert not any("5.0 %" in text for text in said)
    flat = " ".join(plain_text(search_report(result).blocks(), None).split())
    assert "is cheaper than plan 2 (20.0 s); plan 1 has stages of its own and is 5.0 % cheaper, but not proven" in flat
    assert result.best is uneven
    document = plan_document(result)
    assert document["mesh"]["stage_blocks"] == (19, 20, 21, 20)
    assert yaml.safe_load(plan_text(document))["mesh"]["stage_blocks"] == [19, 20, 21, 20]


def test_every_table_begins_with_it() -> None:
    uneven = make_ranked(dataclasses.replace(PLAN, stage_blocks=(19, 20, 21, 20)), 16.0, rank=1, gap=-0.2)
    result = make_result(refined=uneven)
    result = dataclasses.replace(result, plans=tuple(dataclasses.replace(p, rank=p.rank + 1) for p in result.plans))
    assert result.listed == (result.best, *result.plans)
    rows = search_report(result).records()
    assert [(row["rank"], row["step_time_s"]) for row in rows] == [(1, 16.0), (2, 20.0), (3, 21.0)]
    table = next(block for block in search_report(result).blocks() if isinstance(block, Table))
    assert table.columns[0].cells == ("1", "2", "3")
    assert table.columns[-1].cells == ("-", "+25 %", "+31 %")  # slower than the plan that is the best


def test_data_parallelism_is_compared_with_the_best_plan_of_all() -> None:
    uneven = make_ranked(dataclasses.replace(PLAN, stage_blocks=(19, 20, 21, 20)), 15.0, gap=-0.25)
    said = plain_text(search_report(make_result(refined=uneven)).blocks(), None)
    assert "Data parallelism: 2.0x slower (30.0 s, " in said  # 30 s against 15 s, not 20 s


def test_what_is_not_a_pipeline_is_not_refined(pipeline: Request) -> None:
    flat = dataclasses.replace(pipeline, mesh=MeshRestriction(degrees={"pp": Bounds(values=(1,))}))
    assert optimize(flat).refined is None


@pytest.mark.e2e
def test_what_the_user_fixed_stays(pipeline: Request) -> None:
    assert pipeline.mesh is not None
    fixed = dataclasses.replace(pipeline.mesh, names={"recompute": ("full",)})
    only_full = optimize(dataclasses.replace(pipeline, mesh=fixed)).refined
    assert only_full.plan.recompute == "full"
    blocks = dataclasses.replace(
        fixed, degrees={**fixed.degrees, "recompute_blocks": Bounds(values=(2,)), "vpp": Bounds(values=(1,))}
    )
    result = optimize(dataclasses.replace(pipeline, mesh=blocks))
    assert result.plans[0].plan.recompute_blocks == 2
    assert result.refined is None


def test_ctrl_c_while_refining_keeps_the_uniform_plans(pipeline: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("strategies.mesh.refine.refine_top", interrupt)
    with pytest.raises(SearchInterrupted) as caught:
        optimize(pipeline)
    assert caught.value.result.plans
    assert "interrupted: the best so far is shown" in caught.value.result.notes


@pytest.mark.exact
def test_the_answer_does_not_depend_on_the_clock(pipeline: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as fast or ten times as slow a machine: the count of plans tried ends the search."""
    plans = []
    for speed in (0.5, 1.0, 10.0):
        clock = iter(range(10**9))
        monkeypatch.setattr(limits.time, "monotonic", lambda clock=clock, speed=speed: next(clock) * 1e-3 * speed)
        result = optimize(pipeline)
        plans.append(result.refined.plan)
    assert len(set(plans)) == 1


# Splits inside the blocks: found beside the uniform plans, written, predicted again, explained, and refused where they are wrong


# Tensor parallelism over two nodes, memory to spare.
WIDE = "gpt3-1.3b --gpus 16 --tp 16 --batch 32 --seq 2048"
PROJ = (LayerSplit(layer="blocks.1.proj", role="whole", degree=1),)


@pytest.fixture(scope="module")
def file_of_wide(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("wide") / "plan.yaml"
    assert run(["optimize", *WIDE.split(), "--export", str(path), "-o", str(path.with_suffix(".txt")), "--quiet"]) == 0
    return path.read_text(encoding="utf-8")


@pytest.fixture
def written(file_of_wide: str, new_file: Any) -> Path:
    return new_file("plan.yaml", file_of_wide)


@pytest.mark.e2e
def test_what_is_better_is_told_written_and_predicted_again(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    found = json.loads(answer("optimize", *WIDE.split(), "--export", str(path), "--json"))
    checked = search_model("mesh").model_validate(found)
    assert json.loads(checked.model_dump_json(exclude_unset=True)) == found
    refined, best, check = found["refined"], found["plans"][0], found["splits"][0]
    splits = refined["plan"]["block_splits"]
    assert splits
    assert refined["step_time_s"] < 0.99 * best["step_time_s"]
    assert refined["memory_bytes_per_gpu"] <= refined["memory_capacity_bytes"]
    assert not check["is_confirmed"]
    assert check["bound_ratio"] <= check["best_ratio"] < 1.0
    # Bound and proof are about the uniform plans.
    assert found["bound_s"] == best["step_time_s"]
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert document["mesh"]["block_splits"] == splits
    assert "proven_optimal" not in document["prediction"]
    again = json.loads(answer("estimate", "--plan", str(path), "--json"))
    assert again["step_time_s"] == pytest.approx(refined["step_time_s"], rel=1e-9)
    assert again["plans"][0]["plan"]["block_splits"] == splits


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("question", "words"),
    [
        (
            UNEVEN,
            [
                "Best: pp 8",
                "plan 1 has stages of its own and is",
                "1 pp 8",
                "uniform plans that fits is faster than plan 2 (",
            ],
        ),
        (
            WIDE,
            [
                "Best: tp 16",
                "1 tp 16",
                "plan 1 has splits of its own inside the blocks and is",
                "the per-layer program finds a split that makes the step",
            ],
        ),
    ],
    ids=["stages", "splits"],
)
def test_the_verdict_and_the_table_begin_with_it(answer: Any, question: str, words: list[str]) -> None:
    flat = " ".join(answer("optimize", *question.split()).split())
    assert flat.startswith(words[0])
    for word in ("% faster, but not proven", *words):
        assert word in flat


@pytest.mark.e2e
def test_explained_layer_by_layer(answer: Any, written: Path) -> None:
    document = json.loads(answer("explain", "--plan", str(written), "--json"))
    estimate_model("mesh").model_validate(document)
    splits = yaml.safe_load(written.read_text(encoding="utf-8"))["mesh"]["block_splits"]
    rows = {f"{row['unit']}.{row['name']}": row for row in document["layers"]}
    for name, split in splits.items():
        assert (rows[name]["split"], rows[name]["degree"]) == (split["role"], split["degree"])
    assert any(row["degree"] == 16 for row in document["layers"])
    assert document["split"]["best_step_time_s"] <= document["step_time_s"] * (1 + 1e-9)
    assert "the per-layer program finds a split" in " ".join(answer("explain", "--plan", str(written)).split())


@pytest.mark.e2e
def test_the_standard_is_confirmed_where_it_is_best(answer: Any) -> None:
    command = "explain llama3-70b --gpus 64 --batch 64 --tp 8 --pp 4"
    document = json.loads(answer(*command.split(), "--json"))
    assert document["split"]["is_confirmed"]
    assert document["split"]["splits"] == {}
    assert document["split"]["bound_ratio"] > 0.999
    assert "confirms the standard split, columns then rows" in " ".join(answer(*command.split()).split())


def test_nothing_is_said_where_nothing_is_split(answer: Any) -> None:
    document = json.loads(answer("explain", "gpt3-1.3b", "--gpus", "2", "--batch", "4", "--tp", "1", "--json"))
    assert document["split"] is None


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"blocks.1.prj": {"role": "whole"}}, ["'blocks.1.prj'", "did you mean 'blocks.1.proj'"]),
        (
            {"blocks.1.proj": {"role": "row", "degree": 5}},
            ["row 5", "allowed: row 2, 4, 8, 16; column 2, 4, 8, 16; whole 1"],
        ),
        ({"blocks.1.proj": {"role": "diagonal"}}, ["block_splits", "'column'"]),
        ({"blocks.1.proj": {"role": "whole", "degree": 0}}, ["degree"]),
    ],
)
def test_a_wrong_split_is_refused_where_it_stands(
    written: Path, splits: dict[str, Any], words: list[str], fails: Any
) -> None:
    document = yaml.safe_load(written.read_text(encoding="utf-8"))
    document["mesh"]["block_splits"] = splits
    written.write_text(yaml.safe_dump(document), encoding="utf-8")
    err = "\n".join(fails(f"estimate --plan {written}"))
    assert str(written) in err
    for word in words:
        assert word in err


def test_words() -> None:
    plan = MeshPlan(tp=8, block_splits=(*PROJ, LayerSplit(layer="blocks.1.up", role="column", degree=4)))
    assert mesh_plan_in_words(plan) == "tp 8, micro-batch 1, layers proj whole, up column 4"
    check = SplitCheck(
        plan=MeshPlan(tp=8, sequence_parallel=True),
        step_time_s=2.0,
        best=MeshPlan(tp=8, sequence_parallel=True, block_splits=PROJ),
        best_step_time_s=1.9,
        best_ratio=0.94,
        bound_ratio=0.93,
        evaluated=3,
    )
    text = split_text(check)
    for words in (
        "tp 8 (sequence parallel)",
        "makes the step 5.0 % shorter",
        "proj whole",
        "of the time in the layers it saves 6.0 %, and none that fits more than 7.0 %",
    ):
        assert words in text

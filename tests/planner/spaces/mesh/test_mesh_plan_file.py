"""Plan files of mesh plans: they round-trip, and an edit that contradicts itself or the network is found with its place."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from costmodel.mesh.plan import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, LayerSplit, MeshPlan
from planner.core.errors import InputFileError
from planner.core.request import Request
from planner.files.plan_file import plan_document, plan_text, read_plan
from planner.question.resolve import resolve
from planner.schema.plan import MeshEntry, PlanDocument
from planner.spaces.mesh.plans import mesh_entry, plan_of_entry
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space
from planner.spaces.plan_question import request_from_document
from tests.planner.conftest import about, edited, problems_of_plan
from tests.planner.mesh_answers import REQUEST, SETTING, make_ranked, make_result

PLAN = MeshPlan(
    tp=8, sequence_parallel=True, pp=4, dp_replicate=2, dp_shard=4, zero_stage=1, micro_batch=2, num_micro_batches=64
)  # fmt: skip


@pytest.fixture(scope="module")
def space() -> MeshPlanSpace:
    return mesh_space(resolve(dataclasses.replace(REQUEST, cluster="dgx-h100")))


@pytest.fixture
def path(new_file: Any) -> Path:
    document = plan_document(make_result(), make_ranked(PLAN))
    return new_file("plan.yaml", plan_text(document))


degrees = st.integers(1, 4096)


@given(
    st.builds(
        MeshPlan,
        tp=degrees, sequence_parallel=st.booleans(), cp=degrees, cp_kind=st.sampled_from(CP_KINDS), ep=degrees, etp=degrees,
        pp=degrees, vpp=degrees, schedule=st.sampled_from(SCHEDULES), dp_replicate=degrees, dp_shard=degrees,
        zero_stage=st.integers(0, 3), micro_batch=degrees, num_micro_batches=degrees, recompute=st.sampled_from(RECOMPUTE),
        recompute_blocks=st.integers(0, 100), offload_optimizer=st.booleans(), offload_activations=st.booleans(),
        order=st.sampled_from(ORDERS), stage_blocks=st.lists(st.integers(1, 9), max_size=5).map(tuple),
        block_splits=st.dictionaries(
            st.from_regex(r"[a-z][a-z.0-9]{0,9}", fullmatch=True),
            st.tuples(st.sampled_from(["column", "row", "whole"]), degrees),
            max_size=4,
        ).map(lambda found: tuple(LayerSplit(layer=name, role=how[0], degree=how[1]) for name, how in found.items())),
    )
)  # fmt: skip
def test_every_plan_round_trips(plan: MeshPlan) -> None:
    entry = MeshEntry.model_validate(
        yaml.safe_load(plan_text({"prediction": {"summary": "x"}, "mesh": mesh_entry(plan)}))["mesh"]
    )
    assert plan_of_entry(entry) == plan


def test_a_file_round_trips(path: Path, space: MeshPlanSpace) -> None:
    loaded = read_plan(path)
    assert space.plan_of(loaded.content, loaded.document) == PLAN
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["mesh"] == mesh_entry(PLAN)


def test_the_question_round_trips(tmp_path: Path) -> None:
    request = Request(
        model="llama3-8b", cluster="dgx-a100", gpus=64, batch=256, seq=4096, lora_rank=8, precision="bf16", optimizer="adam",
        doc_lengths=(1024,), doc_cv=1.5, memory_limit="40 GiB", space="mesh", assume=(("dp_overlap", 0.5),),
    )  # fmt: skip
    setting = dataclasses.replace(SETTING, gpus=64, global_batch=256, seq=4096, cluster="dgx-a100")
    document = plan_document(about(make_result(setting=setting), request), make_ranked(PLAN), folder=tmp_path)
    assert request_from_document(PlanDocument.model_validate(document), tmp_path) == request


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("\nworkers: 256", "\nworkers: 128", "workers", "is 128, but the mesh has tp 8 x pp 4 x dp_replicate 2 x dp_shard 4 = 256"),
        ("\ngpus: 256", "\ngpus: 200", "workers", "is 256, more than the 200 gpus"),
        ("  pp: 4", "  pp: 5", "workers", "is 256, but the mesh has tp 8 x pp 5"),
        ("  micro_batch: 2", "  micro_batch: 3", "mesh.num_micro_batches", "= 1536 samples, but the global batch is 1024"),
        ("\nprediction:", "\n  stage_blocks: [1, 2]\nprediction:", "mesh.stage_blocks", "pp x vpp is 4"),
        ("\nprediction:", "\n  stage_blocks: [1, 2, 3, 4]\nprediction:", "mesh.stage_blocks", "the network has 80"),
        ("  vpp: 1", "  vpp: 2", "mesh.vpp", "vpp 2 is for schedule interleaved"),
        ("  zero_stage: 1", "  zero_stage: 0", "mesh", "contradict each other"),
        ("  recompute: none", "  recompute: full", "mesh.recompute_blocks", "expected 1 to 80 with full"),
        ("  ep: 1", "  ep: 2", "mesh.ep", "the network has none"),
        ("  schedule: ", "  shedule: ", "mesh", "did you mean 'schedule'?"),
        ('  schedule: "1f1b"', "  schedule: 1f1", "mesh.schedule", "did you mean '1f1b'?"),
        ("  tp: 8", "  tp: 0", "mesh.tp", "must be at least 1, got 0"),
        ("  tp: 8", "  tp: 8.5", "mesh.tp", "expected a whole number"),
        ("  zero_stage: 1", "  zero_stage: 4", "mesh.zero_stage", "must be at most 3, got 4"),
        ("  sequence_parallel: true", "  sequence_parallel: yes", "mesh.sequence_parallel", "write true"),
        ("\nworkers: 256", "\nnum_micro_batches: 4\nworkers: 256", "num_micro_batches", "stands under 'mesh'"),
        ("\nmesh:", "\nlayers: {a: {batch: 2}}\nmesh:", "layers", "either 'layers' or 'mesh'"),
        ("\nmesh:", "\nmash:", "mash", "did you mean 'mesh'?"),
    ],
)  # fmt: skip
def test_an_edit_that_contradicts_is_found(
    path: Path, space: MeshPlanSpace, old: str, new: str, where: str, message: str
) -> None:
    text = path.read_text(encoding="utf-8")
    found = problems_of_plan(edited(path, old, new), space.plan_of)
    line = text[: text.index(old) + old.count("\n")].count("\n") + 1
    matching = [problem for problem in found if message in problem]
    assert matching, found
    assert f": {where}" in matching[0]
    if where.rpartition(".")[2] in old:
        assert matching[0].startswith(f"{path}:{line}:"), (line, matching)


def test_all_contradictions_at_once(path: Path, space: MeshPlanSpace) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace("  tp: 8", "  tp: 4").replace("  micro_batch: 2", "  micro_batch: 1"), encoding="utf-8"
    )
    assert len(problems_of_plan(path, space.plan_of)) == 2


def test_a_plan_without_layers_and_mesh(path: Path) -> None:
    raw: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    del raw["mesh"]
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(InputFileError, match="a plan has either 'layers' or 'mesh'"):
        read_plan(path)

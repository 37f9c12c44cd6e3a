"""Plan files of mixed plans: they round-trip, and an edit that contradicts itself, the network or the cluster is found with its place."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from costmodel.mixed.plan import MIXED_ORDERS, MixedPipeline, MixedPlan, MixedStage
from planner.core.errors import InputFileError, UsageError
from planner.core.request import Request
from planner.files.plan_file import plan_document, plan_text, read_plan
from planner.question.resolve import resolve
from planner.schema.plan import MixedEntry, PlanDocument
from planner.spaces.ask import predicted
from planner.spaces.mixed.plans import mixed_entry
from planner.spaces.mixed.space import MixedPlanSpace, mixed_space
from planner.spaces.plan_question import plan_question
from tests.planner.conftest import edited, problems_of_plan

REQUEST = Request(
    model="gpt3-1.3b", cluster="a100-v100", gpus=48, batch=44, memory_limit="30 GiB", assume=(("dp_overlap", 0.5),)
)
PLAN = MixedPlan(
    pipelines=(
        MixedPipeline(
            stages=(
                MixedStage(group=0, tp=2, blocks=14, recompute="full", recompute_blocks=3),
                MixedStage(group=1, tp=4, blocks=10, recompute="selective"),
            ),
            replicas=3,
            num_micro_batches=9,
            longer=1,
        ),
        MixedPipeline(stages=(MixedStage(group=1, tp=8, blocks=24),), micro_batch=2, num_micro_batches=8),
    ),
    zero_stage=1,
    sequence_parallel=True,
    order="tp-cp-pp-dp",
)
NAMES = ("a100-80gb", "v100-32gb")


@pytest.fixture(scope="module")
def space() -> MixedPlanSpace:
    return mixed_space(resolve(REQUEST))


@pytest.fixture
def path(tmp_path: Path, space: MixedPlanSpace) -> Path:
    document = plan_document(predicted(space, PLAN))
    file = tmp_path / "plan.yaml"
    file.write_text(plan_text(document), encoding="utf-8")
    return file


STAGES = st.builds(
    MixedStage,
    group=st.integers(0, 1),
    blocks=st.integers(1, 500),
    tp=st.integers(1, 64),
    recompute=st.sampled_from(("none", "selective", "full")),
    recompute_blocks=st.integers(0, 500),
)
PIPELINES = st.builds(
    MixedPipeline,
    stages=st.lists(STAGES, min_size=1, max_size=4).map(tuple),
    replicas=st.integers(1, 999),
    micro_batch=st.integers(1, 99),
    num_micro_batches=st.integers(1, 10**6),
    longer=st.integers(0, 998),
)


@given(
    st.builds(
        MixedPlan,
        pipelines=st.lists(PIPELINES, min_size=1, max_size=3).map(tuple),
        zero_stage=st.integers(0, 1),
        sequence_parallel=st.booleans(),
        order=st.sampled_from(MIXED_ORDERS),
    )
)
def test_every_plan_round_trips(plan: MixedPlan) -> None:
    text = plan_text({"prediction": {"summary": "x"}, "mixed": mixed_entry(plan, NAMES)})
    entry = MixedEntry.model_validate(yaml.safe_load(text)["mixed"])
    assert mixed_entry(plan, NAMES) == {
        **entry.model_dump(exclude={"pipelines"}),
        "pipelines": [
            {**p.model_dump(exclude={"stages"}), "stages": [s.model_dump() for s in p.stages]} for p in entry.pipelines
        ],
    }


def test_a_file_round_trips(path: Path, space: MixedPlanSpace) -> None:
    loaded = read_plan(path)
    assert space.plan_of(loaded.content, loaded.document) == PLAN
    _, request, plan = plan_question(loaded, path, {})
    asked = dataclasses.replace(REQUEST, seq=2048, precision="fp16", optimizer="adam", changed=())
    assert request == asked
    again = predicted(mixed_space(resolve(request)), plan)
    assert again.ranked.step_time_s == pytest.approx(space.rank([PLAN])[0].step_time_s, rel=1e-12)
    assert sum(again.ranked.time_parts.values()) == pytest.approx(again.ranked.step_time_s, rel=1e-9)


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("group: v100-32gb, tp: 8", "group: v100-32g, tp: 8", "mixed.pipelines[1].stages[0].group", "did you mean 'v100-32gb'?"),
        ("tp: 8, blocks: 24", "tp: 8, blocks: 23", "mixed.pipelines[1].stages", "hold 23 blocks, the network has 24"),
        ("recompute_blocks: 3", "recompute_blocks: 15", "mixed.pipelines[0].stages[0].recompute_blocks", "1 to 14 blocks"),
        ("recompute: selective, recompute_blocks: 0", "recompute: selective, recompute_blocks: 1",
         "mixed.pipelines[0].stages[1].recompute_blocks", "belongs to 'recompute: full', and this is selective"),
        ("longer: 1", "longer: 3", "mixed.pipelines[0].longer", "is 3, not less than the 3 replicas"),
        ("workers: 26", "workers: 27", "workers", "is 27, but the stages use 6 of a100-80gb + 20 of v100-32gb = 26"),
        ("num_micro_batches: 8", "num_micro_batches: 9", "mixed.pipelines", "28 + 18 samples, but the global batch is 44"),
        ("group: a100-80gb, tp: 2", "group: a100-80gb, tp: 3", "workers", "is 26, but the stages use 9 of"),
        ("zero_stage: 1", "zero_stage: 3", "mixed.zero_stage", ""),
        ("order: tp-cp-pp-dp", "order: dp-tp", "mixed.order", ""),
        ("micro_batch: 2", "micro_batch: 0", "mixed.pipelines[1].micro_batch", "at least 1"),
        ("blocks: 14", "block: 14", "mixed.pipelines[0].stages[0].block", "did you mean 'blocks'?"),
        ("\nmixed:", "\nmesh: {tp: 2}\nmixed:", "mixed", "either 'mesh' or 'mixed'"),
        ("\nmixed:", "\nlayers: {a: {batch: 2}}\nmixed:", "layers", "either 'layers' or 'mixed'"),
        ("\nmixed:", "\nnum_micro_batches: 4\nmixed:", "num_micro_batches", "stands under 'mixed'"),
        ("\nmixed:", "\ndevice: a100-80gb\nmixed:", "device", "a plan with 'mixed' has several"),
    ],
)  # fmt: skip
def test_contradictions_have_a_place(
    path: Path, space: MixedPlanSpace, old: str, new: str, where: str, message: str
) -> None:
    found = problems_of_plan(edited(path, old, new), space.plan_of)
    assert any(f": {where}: " in line and message in line for line in found), found
    assert all(line.startswith(f"{path}:") and line.removeprefix(f"{path}:")[0].isdigit() for line in found)


def test_rules_of_the_space_have_a_place(path: Path, space: MixedPlanSpace) -> None:
    """tp 5 divides neither the heads nor anything else; the samples and devices agree."""
    text = path.read_text(encoding="utf-8").replace("group: a100-80gb, tp: 2", "group: a100-80gb, tp: 5")
    path.write_text(text.replace("workers: 26", "workers: 35"), encoding="utf-8")
    found = problems_of_plan(path, space.plan_of)
    assert any(
        ": mixed.pipelines[0].stages[0].tp: tp 5 does not divide the 16 attention heads" in line for line in found
    )


def test_more_devices_than_there_are(path: Path, space: MixedPlanSpace) -> None:
    text = path.read_text(encoding="utf-8").replace("replicas: 3", "replicas: 9").replace("workers: 26", "workers: 62")
    path.write_text(text.replace("num_micro_batches: 9", "num_micro_batches: 3"), encoding="utf-8")
    assert any("workers: is 62, more than the 48 gpus" in line for line in problems_of_plan(path, space.plan_of))


def test_gpus_that_are_left_out_cannot_be_used(space: MixedPlanSpace) -> None:
    fewer = mixed_space(resolve(dataclasses.replace(REQUEST, gpus=30)))
    assert fewer.devices == (16, 14)
    assert not space.broken(PLAN)
    assert fewer.broken(PLAN) == ["the plan uses 20 devices of group 'v100-32gb', and --gpus 30 leaves 14"]


def test_a_cluster_of_one_kind_is_refused(path: Path) -> None:
    loaded = read_plan(path)
    with pytest.raises(UsageError, match="the plan is for several groups of devices, and cluster 'dgx-h100' has one"):
        plan_question(loaded, path, {"cluster": "dgx-h100"})


def test_a_document_needs_no_file(space: MixedPlanSpace, path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["mixed"]["pipelines"][0]["longer"] = 7
    with pytest.raises(InputFileError, match=r"plan: mixed\.pipelines\.0\.longer: is 7"):
        space.plan_of(PlanDocument.model_validate(content), None)

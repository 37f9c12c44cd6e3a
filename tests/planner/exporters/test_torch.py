"""What the torch exporter refuses and says, without torch; test_torch_runs.py runs what it writes."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layerwise.plan import Split, Stage, factorisations
from costmodel.mesh.plan import MeshPlan
from planner.core.errors import UsageError
from planner.exporters.export import make_export
from planner.exporters.torch_dtensor.layers import mesh_shape
from tests.planner.exporters.jobs import MIXTRAL, job_of, origin
from tests.planner.exporters.layer_jobs import CASES, job_of_case, layer_job, plan_of

_B4 = Split(batch=4)


@given(data=st.data(), workers=st.sampled_from([1, 2, 4, 6, 8, 12, 36]))
def test_the_mesh_has_every_split(data: st.DataObject, workers: int) -> None:
    degrees = data.draw(st.lists(st.sampled_from(factorisations(workers, 3)), min_size=1, max_size=4))
    splits = [Split(batch=b, in_channels=i, out_channels=o) for b, i, o in degrees]
    mesh = mesh_shape(workers, splits)
    wanted = {c for split in degrees for c in itertools.accumulate(split, lambda a, b: a * b)} | {1, workers}
    if mesh is None:
        # Some two cuts do not divide one another, so no mesh has both.
        assert any(max(a, b) % min(a, b) for a, b in itertools.combinations(wanted, 2))
        return
    assert math.prod(mesh) == workers
    assert set(itertools.accumulate(mesh, lambda a, b: a * b)) | {1} == wanted


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        ({"conv1": Split(height=4)}, "layer 'conv1': height 4"),
        ({"fc7": Split(in_channels=2, out_channels=2), "fc8": Split(in_channels=2, out_channels=2)}, None),
        ({"fc8": Split(in_channels=2, out_channels=4)}, "12 outputs do not divide by out_channels x in_channels = 8"),
    ],
)
def test_splits_of_layers(splits: dict[str, Split], words: str | None) -> None:
    default = Split(batch=max(split.workers for split in splits.values()))
    job = layer_job("convnet", plan_of("convnet", default, splits))
    if words is None:
        make_export(job, "torch", strict=True)
        return
    with pytest.raises(UsageError, match=f"torch cannot run this plan: .*{words}"):
        make_export(job, "torch")


def test_refusals_of_whole_plans() -> None:
    plan = plan_of("convnet", _B4)
    staged = dataclasses.replace(plan, stages=(Stage(first=0, last=3, replicas=2), Stage(first=4, last=8, replicas=2)))
    cases = {
        "2 stages: a pipeline is a program": layer_job("convnet", staged),
        "it is for inference": layer_job("convnet", plan, training=False),
        "global_batch 9 does not divide over 2 micro-batches": layer_job(
            "convnet", dataclasses.replace(plan, num_micro_batches=2), global_batch=9
        ),
        "type 'local_response_norm' split by channels": layer_job(
            "normalised", plan_of("normalised", _B4, {"lrn": Split(out_channels=4)})
        ),
        "4 groups do not divide by out_channels 3": layer_job(
            "normalised", plan_of("normalised", Split(batch=3), {"conv2": Split(out_channels=3)})
        ),
        "no device mesh has all these splits": layer_job(
            "convnet",
            plan_of("convnet", Split(batch=2, out_channels=3), {"fc6": Split(batch=3, out_channels=2)}),
        ),
        "layer 'fc7': in_channels 2 beside out_channels 4, which the splits of other layers cut in 2": layer_job(
            "convnet",
            plan_of(
                "convnet",
                Split(batch=8),
                {"fc6": Split(batch=4, out_channels=2), "fc7": Split(in_channels=2, out_channels=4)},
            ),
        ),
    }
    for words, job in cases.items():
        with pytest.raises(UsageError, match=words):
            make_export(job, "torch")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (MeshPlan(pp=2), "pp 2"),
        (MeshPlan(cp=2), "cp 2"),
        (MeshPlan(ep=2, dp_shard=2, zero_stage=1), "ep 2"),
        (MeshPlan(tp=16), "tp 16 with 8 heads"),
    ],
)
def test_refusals_of_meshes(plan: MeshPlan, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_export(job_of(plan), "torch")
    with pytest.raises(UsageError, match="tensor parallelism inside experts|identical blocks only|" + words):
        make_export(job_of(dataclasses.replace(plan, tp=2), network=MIXTRAL), "torch")


def test_files_are_python_and_nothing_in_a_name_runs() -> None:
    nasty = 'a"""\nraise SystemExit("pwned")\n\\'
    for name in CASES:
        job = dataclasses.replace(job_of_case(name), origin=origin(nasty, summary=nasty))
        for file, text in make_export(job, "torch").files.items():
            if file.endswith(".py"):
                calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
                assert "SystemExit" not in {node.id for node in calls}, (name, file)


def test_what_is_left_to_the_user() -> None:
    export = make_export(layer_job("convnet", plan_of("convnet", _B4, num_micro_batches=2), precision="tf32"), "torch")
    assert set(export.account.by_hand) == {"num_micro_batches", "precision", "optimizer"}
    assert "float32_matmul_precision" in export.account.by_hand["precision"]
    assert "no_exchange()" in export.files["plan.py"]
    named = dataclasses.replace(plan_of("convnet", _B4), collectives=("ring", *[None] * 8))
    with pytest.raises(UsageError, match="--strict: torch cannot express collective"):
        make_export(layer_job("convnet", named), "torch", strict=True)

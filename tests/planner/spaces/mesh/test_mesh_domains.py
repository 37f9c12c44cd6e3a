"""Racks used in part, from the option to the answer: how many GPUs of each, what stays idle, which groups lie across an end."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import planner
from costmodel.mesh.plan import ORDERS, MeshPlan
from planner.core.errors import UsageError
from planner.files.loading import load_cluster
from tests.costmodel.mesh import plans as make

MIXTURE = {"cluster": "gb200-nvl72", "gpus": 512, "batch": 4096, "seq": 4096, "tp": 2, "ep": 64, "pp": 2, "zero": 1}


def codes(answer: object) -> dict[str, dict[str, object]]:
    return {note.code: dict(note.values) for note in answer.notes if hasattr(note, "code")}  # type: ignore[attr-defined]


def test_expert_groups_of_64_want_64_of_72_gpus() -> None:
    part = planner.estimate("deepseek-v3", **MIXTURE, recompute="selective")
    full = planner.estimate("deepseek-v3", **MIXTURE, recompute="selective", domain_gpus=72)
    # 0 is 64, which shares 512 GPUs out evenly; on full racks most expert groups lie in two, with 8 and 56 ranks.
    assert (part.plan.ranked["gpus_per_domain"], part.plan.ranked["domains"]) == (64, 8)
    assert full.plan.ranked.step_time_s > 1.25 * part.plan.ranked.step_time_s
    stated = planner.estimate("deepseek-v3", **MIXTURE, recompute="selective", domain_gpus=64)
    assert stated.plan.ranked.step_time_s == part.plan.ranked.step_time_s
    assert codes(part)["domains_in_part"] == {"domain": "nvlink", "size": 72, "used": 64, "domains": 8, "idle": 64}
    said = codes(full)["groups_straddle"]
    assert (said["traffic"], said["touched"], said["fewest"], said["most"], said["other"]) == (
        "expert parallel",
        2,
        8,
        56,
        64,
    )


def test_more_racks_than_needed_are_said() -> None:
    found = planner.estimate("llama3-70b", cluster="gb200-nvl72", gpus=576, batch=576, tp=8, zero=3, domain_gpus=64)
    assert codes(found)["more_domains"] == {"domain": "nvlink", "size": 72, "domains": 9, "least": 8}


def test_nodes_used_in_part_are_said() -> None:
    question = {"cluster": "dgx-h100", "gpus": 16, "batch": 64, "zero": 3}
    found = codes(planner.estimate("llama3-8b", **question, domain_gpus=4))
    what = {"domain": "nvlink", "size": 8, "domains": 4}
    assert found["nodes_in_part"] == {**what, "used": 4, "idle": 16}
    assert found["more_domains"] == {**what, "least": 2}
    assert not {"nodes_in_part", "more_domains"} & set(codes(planner.estimate("llama3-8b", **question)))


def test_tensor_parallel_ranks_across_two_nodes_are_said() -> None:
    found = planner.estimate("gpt3-175b", cluster="dgx-h100", gpus=96, batch=96, tp=6, pp=16)
    said = codes(found)["groups_straddle"]
    assert (said["group"], said["touched"], said["fewest"], said["most"], said["other"]) == (6, 2, 2, 4, None)
    assert "domains_in_part" not in codes(found)


def test_the_search_takes_the_share_and_says_so_in_json() -> None:
    answer = planner.optimize(
        "deepseek-v3", cluster="gb200-nvl72", gpus=128, batch=512, seq=4096, pp=1, tp=1, ep=64, top=1
    )
    entry = answer.to_dict()["plans"][0]
    assert (entry["plan"]["domain_gpus"], entry["gpus_per_domain"], entry["domains"]) == (64, 64, 2)
    assert "64 GPUs per domain" in entry["summary"]


@pytest.mark.parametrize(
    ("cluster", "domain_gpus", "words"),
    [
        (
            "gb200-nvl72",
            70,
            "70 is no whole number of nodes: jobs get nodes of 4 GPUs, of an nvlink domain up to 18 of them; use 68 or 72",
        ),
        ("gb200-nvl72", 80, "80 is more than the 72 GPUs of an nvlink domain"),
        ("ethernet-10g", 4, "has no domains of fast links"),
    ],
)
def test_a_share_that_a_domain_does_not_have(cluster: str, domain_gpus: int, words: str) -> None:
    question = {"cluster": cluster, "gpus": 144, "batch": 144, "device": "gb200"}
    with pytest.raises(UsageError, match=words):
        planner.estimate("llama3-8b", **question, domain_gpus=domain_gpus)
    with pytest.raises(UsageError, match=words):
        planner.optimize("llama3-8b", **question, domain_gpus=domain_gpus)


def test_64_of_72_is_a_rack_of_64() -> None:
    """To the last bit, where degrees are powers of two; and so is twice 64 of 128."""
    loaded = load_cluster("gb200-nvl72").cluster
    plans = [
        MeshPlan(tp=8, pp=4, dp_shard=8, zero_stage=zero, num_micro_batches=16, order=order)
        for zero, order in itertools.product((1, 3), ORDERS)
    ]
    plans += [MeshPlan(cp=4, dp_shard=64, zero_stage=1, num_micro_batches=2), MeshPlan(dp_replicate=128)]
    racks = {
        size: replace(loaded, levels=(replace(loaded.levels[0], size=size), loaded.levels[1])) for size in (64, 72, 128)
    }
    graph = make.gpt(blocks=8, tied=False)
    found = {}
    for size, cluster in racks.items():
        model = make.model_of(graph, 128, cluster)
        found[size] = model.evaluate_plans([replace(plan, domain_gpus=64) for plan in plans])
    for size in (72, 128):
        for name in ("step_time_s", "dp_exposed_s", "tp_exposed_s", "cp_exposed_s", "pp_exposed_s"):
            assert getattr(found[size], name).tolist() == getattr(found[64], name).tolist(), (size, name)

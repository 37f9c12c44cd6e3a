"""What goes to the host must fit there: counted by hand, split up as the search does, and seen through to the answer."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from costmodel.hardware.host import USABLE_SHARE, Host
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from planner.core.answer import Answer
from planner.core.errors import NoFeasiblePlan
from planner.core.request import Request
from planner.question.resolve import Resolved, resolve
from planner.spaces.ask import searched
from planner.spaces.mesh.space import mesh_space
from tests.cases import mostly


@pytest.fixture(scope="module")
def question() -> Resolved:
    return resolve(Request(model="gpt3-1.3b", gpus=8, batch=16, seq=1024, cluster="hgx-a800"))


def with_host(question: Resolved, memory_bytes: float | None) -> Resolved:
    host = None if memory_bytes is None else Host(devices=8, memory_bytes=memory_bytes)
    return dataclasses.replace(question, cluster=dataclasses.replace(question.cluster, host=host))


def answer_of(question: Resolved) -> Answer:
    return searched(mesh_space(question), question.request.top)


def model(question: Resolved, memory_bytes: float | None) -> MeshModel:
    found = with_host(question, memory_bytes)
    return MeshModel.build(found.workload, found.cluster)


PLAN = MeshPlan(dp_shard=8, zero_stage=1, micro_batch=2, offload_optimizer=True, offload_activations=True)


def test_what_the_host_has_no_room_for_stays_on_the_device(question: Resolved) -> None:
    """State comes back first, then activations, which the allocator's slack is about."""
    free = model(question, None).evaluate_plans([PLAN])
    state = 12 * question.workload.graph.weight_count / 8
    hosted = float(free.host_bytes[0])
    away = hosted - state
    for room in (hosted, hosted - 0.5 * state, away, 0.5 * away, 1.0):
        costs = model(question, room * 8 / USABLE_SHARE).evaluate_plans([PLAN])
        over = hosted - room
        assert float(costs.host_bytes[0]) == pytest.approx(room)
        assert float(costs.optimizer_bytes[0]) == pytest.approx(min(over, state), rel=1e-6, abs=10)
        more = float(costs.activation_bytes[0] - free.activation_bytes[0])
        assert more == pytest.approx(max(over - state, 0.0), rel=1e-6, abs=10)
        slack = 1.0 + model(question, None).assumptions.allocator_slack
        assert float(costs.memory_bytes[0] - free.memory_bytes[0]) == pytest.approx(
            min(over, state) + slack * more, rel=1e-6, abs=10
        )


def test_few_workers_have_the_host_to_themselves(question: Resolved) -> None:
    alone = MeshPlan(micro_batch=16, offload_optimizer=True)
    room = 12 * question.workload.graph.weight_count / USABLE_SHARE
    assert float(model(question, room).evaluate_plans([alone]).optimizer_bytes[0]) == pytest.approx(0, abs=10)
    pair = dataclasses.replace(alone, dp_replicate=2, micro_batch=8)
    half = float(model(question, room).evaluate_plans([pair]).optimizer_bytes[0])
    assert half == pytest.approx(6 * question.workload.graph.weight_count, rel=1e-6)


def test_the_host_is_said_to_need_what_most_of_it_is_used_for(answer: Any) -> None:
    """The fullest device of this plan, in the last stage, sends nothing to its host; those of the first stage do."""
    options = (
        "optimize llama3-70b --gpus 64 --cluster ethernet-10g --batch 256 --framework deepspeed --lora-rank 16 --pp 8"
    )
    document = json.loads(answer(*options.split(), "--offload", "optimizer,activations", "--fastest", "--json"))
    (note,) = (note for note in document["note_codes"] if note["code"] == "host_not_described")
    assert note["values"]["host_bytes"] == document["refined"]["host_bytes_per_gpu"] > 30 * 2**30
    assert document["refined"]["summary"] not in "".join(document["notes"])


@pytest.mark.exact
@mostly("exact", "memory_bytes", [2e9, 8e9, 20e9, 1e12], quick=1)
def test_the_best_plan_fits_on_the_host(question: Resolved, memory_bytes: float) -> None:
    """With little memory on the devices: the plan found fits on both, and more on the host is never worse."""
    tight = with_host(
        dataclasses.replace(question, setting=dataclasses.replace(question.setting, memory_capacity_bytes=7e9)),
        memory_bytes,
    )
    best = answer_of(tight).best
    assert best["host_bytes_per_gpu"] <= USABLE_SHARE * memory_bytes / min(best.workers, 8) * (1 + 1e-9)
    assert best.memory_bytes_per_gpu <= 7e9
    more = answer_of(with_host(tight, 2 * memory_bytes)).best
    assert more.step_time_s <= best.step_time_s * (1 + 1e-9)


@pytest.mark.e2e
def test_nothing_fits_names_the_host() -> None:
    """The miss needs more on the host than there is, and that much is enough: on a host with it, the plan named fits."""
    question = resolve(Request(model="llama3-8b", gpus=1, batch=4, cluster="dgx-a100"))
    tight = with_host(question, 60e9)
    with pytest.raises(NoFeasiblePlan) as caught:
        answer_of(tight)
    text = str(caught.value)
    found = re.search(r"nearest miss \((.*?)\) needs ([0-9.]+) GiB on the host for each GPU", text)
    assert found is not None, text
    assert "44.7 GiB (55.9 GiB per 8 GPUs, of which 80.0 % for tensors)" in text
    assert "optimizer state and master weights (" in text
    assert re.search(
        r"on the GPU it needs [0-9.]+ GiB of 67.0 GiB of 80.0 GiB to plan with, where the largest part is ", text
    )
    assert "it fits" in text  # the way out
    needed = float(found[2]) * 2**30
    assert needed > USABLE_SHARE * 60e9
    enough = answer_of(with_host(question, 1.001 * needed / USABLE_SHARE)).plans
    assert found[1] in [plan.summary for plan in enough]
    with pytest.raises(NoFeasiblePlan):
        answer_of(with_host(question, 0.95 * needed / USABLE_SHARE))


@pytest.mark.e2e
def test_nothing_fits_on_devices_nor_hosts(fails: Any) -> None:
    """Where even an endless host would not do, the miss is named with what it needs in truth and with such a host."""
    (text,) = fails("optimize llama3-405b --gpus 16 --batch 64 -q", code=1)
    found = re.search(r"nearest miss \(tp 8.*?\) needs (\d+) GiB per GPU \((\d+) GiB if its host had room", text)
    assert found is not None, text
    # Weights and 32-bit gradients of 405 billion weights on 16 devices at least, without the optimizer state.
    assert float(found[1]) > float(found[2]) > 405.8e9 * 6 / 16 / 2**30
    for words in (
        "there are 66.7 GiB of 79.6 GiB to plan with",
        "the largest part is optimizer state and master weights",
        "the host is full",
        "with --gpus 64 it fits: tp 4",
    ):
        assert words in text


def test_an_estimate_says_that_the_host_is_full(answer: Any) -> None:
    asked = "estimate llama3-70b --gpus 8 --batch 8 --cluster dgx1-v100 --offload optimizer,activations --tp 8"
    assert "the host is full: it has room for 47.7 GiB per GPU" in " ".join(answer(*asked.split()).split())

"""Options that exclude each other: every pair of values against a list of all plans, and one sentence per contradiction."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from costmodel.mesh.plan import CP_KINDS, MESH_COLUMNS, SCHEDULES, MeshBatch, MeshPlan
from costmodel.mesh.rules import RULES, columns_of
from costmodel.mesh.schedule import schedule_is_legal
from planner.api.keywords import OptimizeOptions, options_of
from planner.api.requests import request_of
from planner.api.values import Values
from planner.core.errors import UsageError
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.spaces.diagnose import smallest_set
from planner.spaces.mesh.diagnose import MeshDiagnosis
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space
from strategies.mesh.settings import Bounds, MeshRestriction

GPUS, BATCH, BLOCKS = 4, 4, 24
# Values of every option that fixes something, legal alone or not.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "tp": ("1", "2", "3"),
    "cp": ("1", "2"),
    "ep": ("1", "2"),
    "etp": ("1", "2"),
    "pp": ("1", "2..4", "4"),
    "vpp": ("1", "2", "20"),
    "dp": ("1", "2", "3"),
    "dp_replicate": ("1", "2"),
    "dp_shard": ("1", "2"),
    "zero": ("0", "1"),
    "micro_batch": ("1", "4"),
    "schedule": ("gpipe", "1f1b", "interleaved", "gpipe,interleaved"),
    "recompute": ("none", "full"),
    "recompute_blocks": ("1", "24"),
    "sequence_parallel": (True, False),
    "cp_kind": ("ring", "all_to_all"),
    "num_micro_batches": ("1", "2"),
}


def space_of(model: str) -> MeshPlanSpace:
    return mesh_space(resolve(Request(model=model, gpus=GPUS, batch=BATCH, seq=512, cluster="dgx-h100")))


@pytest.fixture(scope="module", params=["gpt3-1.3b", "mixtral-8x7b"])
def space(request: pytest.FixtureRequest) -> MeshPlanSpace:
    return space_of(request.param)


@pytest.fixture(scope="module")
def dense() -> MeshPlanSpace:
    return space_of("gpt3-1.3b")


def every_plan(space: MeshPlanSpace) -> MeshBatch:
    """All legal plans by trying every combination of values, without the code that builds the space."""
    ones = range(1, GPUS + 1)
    plans = []
    for tp, cp, pp, replicate, shard in itertools.product(ones, repeat=5):
        if tp * cp * pp * replicate * shard > GPUS or BATCH % (replicate * shard):
            continue
        for size in ones:
            if BATCH % (replicate * shard * size):
                continue
            base = {"tp": tp, "cp": cp, "pp": pp, "dp_replicate": replicate, "dp_shard": shard, "micro_batch": size}
            base["num_micro_batches"] = BATCH // (replicate * shard * size)
            for kind, sp, zero, ep, etp in itertools.product(CP_KINDS, (False, True), range(4), (1, 2, 4), (1, 2, 4)):
                plans.append(MeshPlan(**base, cp_kind=kind, sequence_parallel=sp, zero_stage=zero, ep=ep, etp=etp))  # type: ignore[arg-type]
    batch = MeshBatch.from_plans(plans)
    columns = columns_of(batch)
    inner = [rule for rule in RULES if not {"schedule", "vpp", "recompute"} & set(rule.fields) and rule.fields]
    batch = batch.take(np.logical_and.reduce([np.asarray(rule.test(space.shape, columns)) for rule in inner]))
    # Schedules and chunks, by the scheduler's own account of what it can run.
    chunks = np.array(list(itertools.product(range(4), range(1, BLOCKS + 1))))
    rows, several = np.arange(len(batch)).repeat(len(chunks)), np.tile(chunks, (len(batch), 1))
    batch = batch.take(rows)
    schedule, vpp = several.T
    legal = schedule_is_legal(schedule, batch.num_micro_batches, batch.pp, vpp) & (
        batch.pp * vpp <= space.shape.num_blocks
    )
    legal &= (batch.pp > 1) | (schedule == SCHEDULES.index("1f1b"))
    values = {name: getattr(batch, name)[legal] for name in MESH_COLUMNS}
    return MeshBatch(**{**values, "schedule": schedule[legal], "vpp": vpp[legal]})


@pytest.fixture(scope="module")
def plans(space: MeshPlanSpace) -> MeshBatch:
    return every_plan(space)


def exists(plans: MeshBatch, restriction: MeshRestriction, space: MeshPlanSpace) -> bool:
    """Whether a plan of the list has the values."""
    columns = columns_of(plans)
    kept = np.ones(len(plans), dtype=np.bool_)
    for field, bounds in restriction.degrees.items():
        if field == "recompute_blocks":
            # Every chunk has at most the blocks of the longest one.
            longest = np.array([max(space.model.blocks_of(int(n))) for n in plans.pp * plans.vpp])
            least = next(n for n in range(100) if bounds.allows(n))
            if restriction.names.get("recompute") == ("full",):
                kept &= longest >= least
            continue
        kept &= np.isin(columns[field], [v for v in range(100) if bounds.allows(v)])
    for field, known in (("schedule", SCHEDULES), ("cp_kind", CP_KINDS)):
        if field in restriction.names:
            kept &= np.isin(columns[field], [known.index(name) for name in restriction.names[field]])
    if "sequence_parallel" in restriction.flags:
        kept &= columns["sequence_parallel"] == restriction.flags["sequence_parallel"]
    return bool(kept.any())


def read(given: Mapping[str, Any]) -> MeshRestriction:
    values = Values()
    request = request_of(options_of(OptimizeOptions), given, values, "")
    values.check()
    restriction = request.mesh or MeshRestriction()
    if request.micro_batches is None:
        return restriction
    single = {"num_micro_batches": Bounds(values=(request.micro_batches,))}
    return dataclasses.replace(restriction, degrees={**restriction.degrees, **single})


def is_refused(space: MeshPlanSpace, restriction: MeshRestriction) -> str:
    settings = space.settings()
    try:
        MeshDiagnosis(space, dataclasses.replace(settings, restriction=restriction)).refuse_contradiction()
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.exact
def test_every_pair_of_values_is_refused_exactly_where_no_plan_has_both(space: MeshPlanSpace, plans: MeshBatch) -> None:
    """Against the list of all plans; what is refused names an option that was given, and a rule or a number that it breaks."""
    single = [(name, value) for name, choices in OPTIONS.items() for value in choices]
    checked = refused = 0
    meaningless: list[str] = []
    for first, second in itertools.combinations(single, 2):
        if first[0] == second[0]:
            continue
        try:
            restriction = read(dict((first, second)))
        except UsageError as error:
            meaningless.append(str(error))  # one leaves the other without a meaning
            continue
        message = is_refused(space, restriction)
        assert bool(message) != exists(plans, restriction, space), (first, second, message)
        checked += 1
        if message:
            refused += 1
            assert "(rule " in message or re.search(r"more than --gpus|does not divide|is not", message), message
            assert any(f"--{name.replace('_', '-')}" in message.replace("--no-", "--") for name, _ in (first, second))
            assert "no value of the others" not in message
    assert meaningless
    reasons = ("(rule ", "dp is dp-replicate x dp-shard")
    assert all("exclude each other" in text and any(reason in text for reason in reasons) for text in meaningless)
    assert checked > 600
    assert refused > 100


@pytest.mark.parametrize(("kind", "code"), [("ring", 2), ("all_gather", 0)])
def test_an_indexer_needs_all_positions_at_a_time(kind: str, code: int, said: Any) -> None:
    options = ("--gpus", "2", "--batch", "2", "--seq", "8192", "--cp", "2", "--cp-kind", kind)
    _, err = said("estimate", "deepseek-v3.2", *options, code=code)
    assert ("picks among all positions" in err) == (code == 2)


@pytest.mark.parametrize(
    ("options", "named", "reason"),
    [
        ("--schedule interleaved --pp 1", ["--schedule interleaved", "--pp 1"], "rule schedule-pipeline"),
        ("--schedule gpipe --pp 1", ["--schedule gpipe", "--pp 1"], "rule schedule-pipeline"),
        ("--vpp 2 --schedule 1f1b", ["--vpp 2", "--schedule 1f1b"], "rule schedule-chunks"),
        ("--vpp 1 --schedule interleaved", ["--vpp 1", "--schedule interleaved"], "rule schedule-chunks"),
        ("--vpp 2 --pp 1", ["--vpp 2", "--pp 1"], "rule schedule-pipeline"),
        ("--cp-kind ring --cp 1", ["--cp-kind ring", "--cp 1"], "rule cp-kind"),
        ("--cp-kind all-to-all --cp 1", ["--cp-kind all_to_all", "--cp 1"], "rule cp-kind"),
        ("--sequence-parallel --tp 1", ["--sequence-parallel", "--tp 1"], "rule sequence-parallel"),
        ("--zero 0 --dp-shard 2", ["--zero 0", "--dp-shard 2"], "rule zero"),
        ("--zero 1 --dp 1 --cp 1", ["--zero 1", "--dp 1", "--cp 1"], "rule zero"),
        ("--dp 4 --dp-replicate 8", ["--dp 4", "--dp-replicate 8"], "dp-replicate 8 does not divide 4"),
        ("--recompute none --recompute-blocks 3", ["--recompute none", "--recompute-blocks 3"], "rule recompute"),
        ("--recompute full --recompute-blocks 0", ["--recompute full", "--recompute-blocks 0"], "rule recompute"),
        ("--dp 2 --micro-batch 2 --num-micro-batches 2", ["--dp 2", "--micro-batch 2", "--num-micro-batches 2"], "is not --batch 16"),
        ("--micro-batch 1 --num-micro-batches 1", ["--micro-batch 1", "--num-micro-batches 1"], "leaves a dp of 16"),
    ],
)  # fmt: skip
def test_contradictory_options_are_bad_usage_with_one_sentence(
    fails: Any, options: str, named: list[str], reason: str
) -> None:
    """All of the options that exclude each other are named, none of those that are not to blame."""
    innocent = "--offload none --order tp-cp-dp-pp"
    (line,) = fails(f"optimize gpt3-1.3b --gpus 8 --batch 16 --seq 512 {innocent} {options}")
    assert reason in line
    assert "exclude each other" in line
    for words in named:
        assert words in line
    assert "--offload" not in line
    assert "--order" not in line


def test_experts_over_split_matrices_need_sequence_parallelism() -> None:
    message = is_refused(space_of("mixtral-8x7b"), read({"tp": "2", "sequence_parallel": False}))
    assert message.startswith("--tp 2 --no-sequence-parallel exclude each other: ")
    assert "rule experts-sequence" in message


def test_options_that_leave_a_plan_are_not_refused(dense: MeshPlanSpace) -> None:
    for given in (
        {"tp": "2"},
        {"vpp": "2"},
        {"schedule": "interleaved"},
        {"recompute_blocks": "3"},
        {"zero": "3", "dp": "2"},
    ):
        assert is_refused(dense, read(given)) == ""


def test_a_number_of_recomputed_blocks_asks_for_full_recomputation() -> None:
    assert read({"recompute_blocks": "3"}).names == {"recompute": ("full",)}
    assert read({"recompute_blocks": "0"}).names == {}


def test_the_fewest_options_are_found_whatever_their_order() -> None:
    def is_empty(chosen: frozenset[str]) -> bool:
        return {"b", "d"} <= chosen or {"a", "c", "e"} <= chosen

    for order in itertools.permutations("abcd"):
        assert sorted(smallest_set(order, is_empty)) == ["b", "d"]


def test_the_sentence_has_the_question(dense: MeshPlanSpace) -> None:
    assert is_refused(dense, read({"tp": "3"})) == (
        "--tp 3: tp 3 does not divide the 16 attention heads; allowed: 1, 2, 4, 8, 16 (rule heads); "
        "no legal plan of 'gpt3-1.3b' at global batch 4 on up to 4 GPUs has it"
    )

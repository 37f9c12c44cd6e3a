"""Reports about mesh plans: what they say, that parts add up, that JSON is what the schema says."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import pytest

from costmodel.fields import labels_of
from costmodel.mesh.detail import LayerRow, StageRow
from costmodel.mesh.plan import MEMORY_PARTS, MESH_FIGURES, TIME_PARTS, MeshPlan
from planner.core.answer import Estimate
from planner.core.blocks import Report
from planner.core.request import Request
from planner.exporters import exporter_of, targets_that_take
from planner.question.resolve import resolve
from planner.report.answer import estimate_report, search_report
from planner.report.machine import csv_text, json_text
from planner.report.tables import rows_table
from planner.report.text import markdown_text, plain_text
from planner.schema import json_schema, schema_of
from planner.schema.answer import MeshLayerEntry, MeshStageEntry, estimate_model, search_model
from planner.spaces.ask import estimate, optimize
from planner.spaces.mesh.plans import family_of_mesh_plan, mesh_plan_in_words
from planner.spaces.mesh.space import mesh_space
from strategies.mesh.settings import Bounds, MeshRestriction
from tests.planner.mesh_answers import GIB, PLAN, make_breakdown, make_ranked, make_result


def text_of(result: Any, width: int = 200) -> str:
    report = search_report(result)
    return plain_text([*report.blocks(), *report.details()], width)


def explain_report(estimate: Estimate, warnings: Sequence[str] = ()) -> Report:
    return estimate_report(estimate, warnings, "explain")


# --- words


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (MeshPlan(), "one GPU, micro-batch 1"),
        (PLAN, "tp 8 (sequence parallel), pp 4 (1f1b), dp 8 (zero 1), micro-batch 2 x 64, recompute selective"),
        (MeshPlan(dp_replicate=4, dp_shard=8, zero_stage=3), "dp 32 (zero 3 over 8), micro-batch 1"),
        (MeshPlan(dp_replicate=4), "dp 4, micro-batch 1"),
        (MeshPlan(tp=2, cp=4, cp_kind="all_gather"), "tp 2, cp 4 (all-gather), micro-batch 1"),
        (MeshPlan(tp=8, ep=8, etp=2, dp_shard=4, zero_stage=2), "tp 8, ep 8 (etp 2), dp 4 (zero 2), micro-batch 1"),
        (
            MeshPlan(pp=4, vpp=2, schedule="interleaved", num_micro_batches=8, order="tp-cp-pp-dp"),
            "pp 4 (interleaved, vpp 2), micro-batch 1 x 8, order tp-cp-pp-dp",
        ),
        (
            MeshPlan(offload_optimizer=True, offload_activations=True, recompute="full", recompute_blocks=1),
            "one GPU, micro-batch 1, recompute full (1 block), offload optimizer and activations",
        ),
        (MeshPlan(pp=2, stage_blocks=(3, 5)), "pp 2 (1f1b), micro-batch 1, blocks per chunk (3, 5)"),
        (
            MeshPlan(pp=8, recompute="full", stage_recompute=(2,) * 7 + (0,), stage_blocks=(1, *(3,) * 6, 1)),
            "pp 8 (1f1b), micro-batch 1, recompute full (2 blocks in each of chunks 1-7), blocks per chunk (1, 3 x6, 1)",
        ),
    ],
)
def test_a_plan_in_words_leaves_out_what_is_neutral(plan: MeshPlan, words: str) -> None:
    assert mesh_plan_in_words(plan) == words


@pytest.mark.parametrize(
    ("plan", "family"),
    [
        (MeshPlan(), "one-device"),
        (MeshPlan(dp_replicate=2), "data"),
        (MeshPlan(dp_shard=2, zero_stage=1), "zero-1"),
        (MeshPlan(dp_shard=2, zero_stage=3), "fsdp"),
        (MeshPlan(dp_replicate=2, dp_shard=2, zero_stage=3), "hsdp"),
        (MeshPlan(tp=2, cp=2, ep=2, pp=2, dp_replicate=2), "tensor+context+expert+pipeline+data"),
    ],
)
def test_a_family_names_the_dimensions_in_use(plan: MeshPlan, family: str) -> None:
    assert family_of_mesh_plan(plan) == family


def test_every_part_has_a_word() -> None:
    for total, parts in (("step_time_s", TIME_PARTS), ("memory_bytes_per_gpu", MEMORY_PARTS)):
        labels = labels_of(MESH_FIGURES.values(), total)
        assert tuple(labels) == parts
        assert all(labels.values())


# --- optimize


def test_the_table_shows_what_decides() -> None:
    lines = text_of(make_result()).splitlines()
    first = next(line for line in lines if line.startswith("1 "))
    for cell in (
        "tp 8 (sequence parallel)",
        "256",
        "20.0",
        "1,640",
        "45.0 %",
        "56.0 / 80 GiB",
        "18.0 %",
        "10.0 %",
        "compute",
    ):
        assert cell in first
    assert "+5.0 %" in next(line for line in lines if line.startswith("2 "))


def test_the_facts_under_the_table() -> None:
    text = " ".join(text_of(make_result()).split())
    for words in (
        "Proof: by the model, none of all 123,456 plans that fits is faster than the first",
        "123,456 distinct plans (10^5.1); 100,000 enumerated; 23,456 excluded by their bounds; searched in 800 ms",
        " on 256 GPUs, ",
        "Data parallelism: 50 % slower (30.0 s, 56.0 GiB): plan 2",
        "Of the cost model: dp_overlap 0.8 (given), allocator_slack 0.08, and 0 for tp_overlap",
        "Note: a note",
    ):
        assert words in text


def test_an_unproven_answer_says_how_far_it_may_be_off() -> None:
    text = text_of(make_result(proven_optimal=False, bound_s=18.0, gap=0.1))
    assert "not proven: a plan could be up to 10 % faster" in text
    assert "before it had a bound" in text_of(make_result(proven_optimal=False, bound_s=0.0, gap=1.0))


def test_plain_alternatives() -> None:
    assert "no plan with data parallelism (ZeRO, FSDP) only fits" in text_of(make_result(data_parallel=None))
    said = text_of(make_result(data_parallel=make_ranked()))
    assert "Plan 1 is: the fastest; data parallelism (ZeRO, FSDP) only" in " ".join(said.split())


@pytest.mark.parametrize(
    ("objective", "words"),
    [("gpu_hours", ("GPU hours", "cheaper")), ("money", ("USD", "cheaper")), ("mfu", ("more efficient",))],
)
def test_other_objectives_speak_of_what_they_compare(objective: str, words: tuple[str, ...]) -> None:
    plans = tuple(make_ranked(money_per_million_tokens=0.12) for _ in range(2))
    text = text_of(make_result(objective=objective, plans=plans))
    assert all(word in text for word in words)


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for report in (search_report(make_result()), explain_report(make_breakdown())):
        lines = plain_text(report.blocks(), width).splitlines()
        assert max(map(len, lines)) <= max(width, 60)
        assert all(line.isascii() for line in lines)


# --- estimate and explain


def test_the_parts_add_up_to_the_step_and_to_the_memory() -> None:
    text = plain_text(estimate_report(make_breakdown()).blocks(), 160)
    step, memory = text.split("What fills the memory")
    assert [line.split()[-2] for line in step.splitlines() if line.startswith("compute ")] == ["%"]
    shares = [line.split(" %")[0].split()[-1] for line in memory.splitlines() if " %" in line and "memory" not in line]
    assert sum(float(share) for share in shares if "<" not in share) == pytest.approx(100.0, abs=0.3)
    assert "offload" not in step  # what costs nothing has no row


def test_explain_compares_with_the_best() -> None:
    text = plain_text(explain_report(make_breakdown()).blocks(), 160)
    assert "Against the best plan: 25 % slower than 20.0 s on 256 of 256 GPUs: tp 8" in text
    assert "Layer by layer (of one rank, one micro-batch)" in text
    assert any(line.split() == ["compute", "17.5", "14.0", "+3.50"] for line in text.splitlines())
    best = make_breakdown(ranked=make_ranked())
    assert "No plan that 'planner optimize' searches is faster." in plain_text(explain_report(best).blocks(), 160)
    too_large = make_breakdown(ranked=make_ranked(memory_bytes_per_gpu=90.0 * GIB))
    assert "is faster" not in plain_text(explain_report(too_large).blocks(), 160)


def test_rows_share_units_and_leave_out_what_is_empty() -> None:
    @dataclass
    class Line:
        name: str
        forward_s: float
        backward_s: float
        offload_s: float
        size_bytes: float
        is_frozen: bool
        flop: float

    table = rows_table([Line("a", 0.002, 2.0, 0.0, 2**31, True, 1.5), Line("b", 0.0, 0.004, 0.0, 2**20, False, 0.0)])
    shown = {(column.title, column.unit): column.cells for column in table.columns}
    assert shown == {
        ("name", ""): ("a", "b"),
        ("forward", "s"): ("0.00200", ""),
        ("backward", "s"): ("2.00", "0.00400"),
        ("size", "GiB"): ("2.00", "0.000977"),
        ("is frozen", ""): ("yes", ""),
        ("flop", ""): ("1.50", "0"),
    }


# --- JSON, CSV, Markdown


def test_json_is_what_the_schema_says() -> None:
    document = json.loads(json_text(search_report(make_result()).data()))
    checked = search_model("mesh").model_validate(document)
    assert json.loads(checked.model_dump_json(exclude_unset=True)) == document
    assert set(document) == set(search_model("mesh").model_fields)
    (plan,) = get_args(search_model("mesh").model_fields["plans"].annotation)
    assert set(document["plans"][0]) == set(plan.model_fields)
    assert type(schema_of("result").model_validate(document).root) is search_model("mesh")  # type: ignore[attr-defined]


def test_explain_json_is_what_the_schema_says() -> None:
    for report, has_layers in ((explain_report, True), (estimate_report, False)):
        document = json.loads(json_text(report(make_breakdown(), ["careful"]).data()))
        checked = estimate_model("mesh").model_validate(document)
        assert json.loads(checked.model_dump_json(exclude_unset=True)) == document
        assert ("layers" in document) is has_layers
        assert document["notes"] == ["careful"]
        assert type(schema_of("breakdown").model_validate(document).root) is estimate_model("mesh")  # type: ignore[attr-defined]


def test_json_has_the_promised_keys() -> None:
    document = search_report(make_result()).data()
    promised = (
        "schema_version model cluster gpus global_batch cost_model plans proven_optimal bound_s gap space_size wall_s"
    )
    assert set(promised.split()) <= set(document)
    plan = document["plans"][0]
    promised = "rank step_time_s throughput_samples_per_s memory_bytes_per_gpu exposed_communication_s workers family summary plan"
    assert set(promised.split()) <= set(plan)
    assert {"seq", "tokens_per_s", "tokens_per_s_per_gpu", "mfu"} <= {*document, *plan}
    assert MeshPlan(**plan["plan"]) == PLAN


def test_the_rows_have_the_keys_of_the_schema() -> None:
    for row, entry in ((LayerRow, MeshLayerEntry), (StageRow, MeshStageEntry)):
        assert [field.name for field in fields(row)] == list(entry.model_fields)


def test_rounding_errors_are_not_shown() -> None:
    ranked = make_ranked(offload_s=-1e-17, recompute_s=1e-16)
    comparison = (("recomputation", 1e-16, 0.0), ("compute", 14.0, 13.0))
    found = make_breakdown(ranked=ranked, comparison=comparison, best=make_ranked(step=19.0))
    text = plain_text(explain_report(found).blocks(), 160)
    assert "recomputation" not in text
    assert "offload" not in text


def test_the_published_schema_covers_every_space() -> None:
    for document in ("result", "breakdown"):
        schema = json_schema(document)
        members = {entry["$ref"].rpartition("/")[2] for entry in schema["anyOf"]}
        spaces = ("Layerwise", "Mesh", "Mixed", "Serving")
        assert members == {f"{space}{document.title()}Document" for space in spaces}
        assert {f"{space}PlanCost" for space in spaces} <= set(schema["$defs"])


def test_csv_has_a_line_per_plan() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(search_report(make_result()).records()))))
    assert [row["rank"] for row in rows] == ["1", "2"]
    assert float(rows[0]["compute_s"]) == 14.0
    assert rows[0]["money_per_million_tokens"] == ""


def test_markdown_has_every_column() -> None:
    text = markdown_text(search_report(make_result()).blocks())
    assert text.startswith("**Best: tp 8 (sequence parallel)")
    assert "\n| # | plan | GPUs | step time (s) | tokens/s (per GPU) | MFU |" in text


# --- What answers say before a plan is run: what few trainers do, hosts that nobody described, the assumption that decides ----------------


def notes_with(found: tuple[str, ...], word: str) -> list[str]:
    return [note for note in found if word in note]


@pytest.mark.parametrize(("offloaded", "is_said"), [("activations", True), ("optimizer", False)])
def test_what_few_trainers_do_is_said(offloaded: str, is_said: bool) -> None:
    flags = {f"offload_{what}": what == offloaded for what in ("optimizer", "activations")}
    request = Request(model="bert-large", gpus=1, batch=8, mesh=MeshRestriction(flags=flags))
    assert len(notes_with(estimate(request).notes, "few trainers have a setting for")) == is_said


def test_no_trainer_takes_offloaded_activations_as_they_are() -> None:
    for target in targets_that_take("mesh"):
        field = exporter_of(target).FIELDS["offload_activations"]
        assert "-:" in field or "by hand" in field, target


@pytest.mark.parametrize(
    ("cluster", "offload", "is_said"),
    [("aws-trn1", True, True), ("aws-trn1", False, False), ("pcie4-node", True, False)],
)
def test_a_host_that_nobody_described(cluster: str, offload: bool, is_said: bool) -> None:
    restriction = MeshRestriction(flags={"offload_optimizer": offload, "offload_activations": False})
    request = Request(model="gpt3-1.3b", gpus=8, batch=16, cluster=cluster, mesh=restriction)
    found = notes_with(estimate(request).notes, "does not describe its hosts")
    assert len(found) == is_said
    if is_said:
        assert f"cluster '{cluster}'" in found[0]


@pytest.fixture(scope="module")
def depending_on_overlap() -> Request:
    # ZeRO-3 is the best of this question where compute loses nothing beside it.
    assumed = (("interference", 0.0),)
    return Request(model="gpt3-175b", gpus=512, batch=1536, cluster="dgx-a100", assume=assumed)


@pytest.mark.exact
def test_the_best_plan_depends_on_an_assumption(depending_on_overlap: Request) -> None:
    """ZeRO-3 at scale: what is named as better under the pessimistic assumption is, by the model asked anew."""
    result = optimize(depending_on_overlap)
    best = result.plans[0]
    assert best.plan.zero_stage == 3
    (note,) = notes_with(result.notes, "depends on dp_overlap 0.9: with 0.5")
    space = mesh_space(resolve(depending_on_overlap))
    doubtful = dataclasses.replace(depending_on_overlap, assume=(*depending_on_overlap.assume, ("dp_overlap", 0.5)))
    pessimistic = mesh_space(resolve(doubtful))
    first_s = float(pessimistic.model.evaluate_plans([best.plan]).step_time_s[0])
    times = [float(text) for text in re.findall(r"takes ([0-9.]+) s", note)]
    assert times[0] == pytest.approx(first_s, rel=0.01)
    assert times[1] < 0.99 * times[0]
    # The whole search under that assumption does at least as well as what is named, and not as ZeRO-3 of the first.
    searched = pessimistic.outcome(pessimistic.settings()).candidates[0]
    assert searched.step_time_s <= times[1] * 1.01
    assert searched.plan.zero_stage != 3
    assert float(space.model.evaluate_plans([searched.plan]).step_time_s[0]) > best.step_time_s


@pytest.mark.e2e
@pytest.mark.parametrize("value", [0.5, 0.95])
def test_an_assumption_that_was_given_is_not_doubted(depending_on_overlap: Request, value: float) -> None:
    asked = dataclasses.replace(depending_on_overlap, assume=(("dp_overlap", value),), top=1)
    assert not notes_with(optimize(asked).notes, "depends on")


@pytest.mark.e2e
def test_no_doubt_where_it_does_not_matter() -> None:
    fixed = MeshRestriction(degrees={"zero_stage": Bounds(values=(0, 1))})
    found = optimize(Request(model="bert-large", gpus=8, batch=64, mesh=fixed))
    assert not notes_with(found.notes, "depends on")


@pytest.mark.e2e
def test_the_list_says_what_its_plans_differ_in() -> None:
    for diverse, count in ((None, 1), (False, 0)):
        found = optimize(Request(model="bert-large", gpus=8, batch=64, diverse=diverse))
        assert len(notes_with(found.notes, "--no-diverse shows")) == count


@pytest.mark.parametrize(
    ("options", "is_said"),
    [
        ("--device b200 --gpus 8 --tp 1 --batch 64", True),
        ("--device a100-80gb --gpus 8 --tp 1 --batch 8", False),  # states no sustained rate
        ("--device b200 --gpus 128 --tp 8 --batch 16", False),  # computes for less than half of the step
    ],
)
def test_a_power_limit_is_said_where_it_decides(options: str, is_said: bool, answer: Any) -> None:
    """1,439 of 1,737 TFLOP/s, at 1000 W: S. Bekman, ml-engineering, MSMF and MAMF of the B200."""
    notes = json.loads(answer("estimate", "llama3-8b", "--zero", "1", *options.split(), "--json"))["note_codes"]
    said = [note for note in notes if note["code"] == "power_limited"]
    assert bool(said) == is_said
    for note in said:
        assert note["values"]["share"] == pytest.approx(1439 / 1737)
        assert "b200 is at its power limit of 1000 W in large products: in bf16 they run at 82.8 %" in note["text"]


def test_a_bubble_of_unequal_chunks_is_explained() -> None:
    """80 blocks in 28 chunks: of 3 blocks each, the first has 2, and the last 1 with the head."""
    question = Request(
        model="llama3-70b", gpus=8, batch=4, cluster="dgx-h100", mesh=_fixed(cp=2, pp=2, vpp=14, micro_batch=1)
    )
    found = estimate(question)
    said = " ".join(plain_text(estimate_report(found).blocks(), None).split())
    assert "(pp - 1) / (vpp x micro-batches) = 3.6 % is that of chunks of equal length; here they differ" in said
    # What is predicted is what a simulation of every pass finds.
    assert found.space.tracks(found.ranked.plan).end_s == pytest.approx(found.ranked.step_time_s, rel=1e-9)
    whole = estimate(dataclasses.replace(question, mesh=_fixed(cp=2, pp=1, micro_batch=1)))
    assert "The bubble" not in plain_text(estimate_report(whole).blocks(), None)


def _fixed(**degrees: int) -> MeshRestriction:
    return MeshRestriction(degrees={name: Bounds(values=(value,)) for name, value in degrees.items()})

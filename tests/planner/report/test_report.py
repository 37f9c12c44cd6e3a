"""Reports: what fits on a line, what numbers look like, and JSON that its published schema describes exactly."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import math
import re
import shlex
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.layerwise.plan import Plan
from planner.core.answer import Answer, Assumption, Estimate, RankedPlan, ScalePoint, Scaling, Setting
from planner.core.blocks import Block, Column, Commands, Facts, Heading, Report, Sentence, Table
from planner.core.numbers import big_count, duration_text, percent, percents, significant, used_of_total
from planner.core.objectives import change_text
from planner.report.answer import bottleneck_columns, estimate_report, scale_report, search_report
from planner.report.documents import estimate_document, search_document
from planner.report.machine import csv_text, finite, json_text
from planner.report.text import fit, markdown_text, plain_text, rich_text, wrap_words
from planner.schema.answer import ScaleDocument, estimate_model, search_model
from planner.spaces.layers.report import REPORT
from planner.sweeping.answer import COLUMNS
from planner.sweeping.report import sweep_report
from planner.sweeping.run import Swept

MakeResult = Callable[..., Answer]
MakeRanked = Callable[..., RankedPlan]


def search_blocks(result: Answer) -> list[Block]:
    """What is shown with -v."""
    report = search_report(result)
    return [*report.blocks(), *report.details()]


def explained(estimate: Estimate, width: int = 120) -> str:
    return plain_text(estimate_report(estimate, command="explain").blocks(), width)


# --- numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (9.996, "10.0"),
        (999.6, "1,000"),
        (0.0004237, "0.000424"),
        (60512.0, "60,500"),
        (-1.2345, "-1.23"),
        (math.inf, "n/a"),
        (math.nan, "n/a"),
        (None, "n/a"),
    ],
)
def test_three_significant_digits(value: float | None, text: str) -> None:
    assert significant(value) == text


@given(st.floats(min_value=1e-9, max_value=1e12))
def test_rounding_is_within_half_a_digit(value: float) -> None:
    shown = float(significant(value).replace(",", ""))
    assert shown == pytest.approx(value, rel=0.00501)
    assert "e" not in significant(value)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (duration_text(0.00423), "4.23 ms"),
        (duration_text(7200.0), "2.00 h"),
        (duration_text(0.0), "0 s"),
        (duration_text(3.2e-7), "320 ns"),
        (used_of_total(9.1 * 2**30, 80 * 2**30), "9.10 / 80 GiB"),
        (used_of_total(2**20, math.inf), "1.00 MiB"),
        (percent(0.12345), "12.3 %"),
        (percent(None), "n/a"),
        (change_text(1.0, "step_time"), "0 %"),
        (change_text(1.00312, "step_time"), "+0.31 %"),
    ],
)
def test_units(shown: str, text: str) -> None:
    assert shown == text


def test_an_interval_is_in_the_unit_of_its_time(make_ranked: MakeRanked) -> None:
    plan = make_ranked(step_time_s=78.3, step_time_low_s=58.1, step_time_high_s=112.0)
    assert REPORT.speed_facts(plan, "step_time")[0] == (
        "Step",
        "1.30 min (80 % interval 0.968-1.87 min); 32,000 samples/s on 16 GPUs, 2,000 on each",
    )
    times = {"step_time_s": 78.3, "step_time_low_s": 58.1, "step_time_high_s": 112.0}
    row = {**dict.fromkeys(COLUMNS), "status": "refused", **times}
    table = sweep_report(Swept(rows=(row,), total=1, taken=0), "").blocks()[0]
    assert isinstance(table, Table)
    assert {c.title: c.cells for c in table.columns}["80 % interval"] == ("0.968-1.87 min",)


@pytest.mark.parametrize("count", [10**15 - 1, 10**15, 999_999 * 10**40, 10**400 + 1, 3**5000])
def test_huge_counts_have_the_right_decade(count: int) -> None:
    text = big_count(count)
    if "e" not in text:
        assert text == f"{count:,}"
        return
    leading, exponent = text.split("e+")
    assert 1.0 <= float(leading) <= 10.0
    assert abs(int(float(leading) * 100) * 10 ** int(exponent) - count * 100) <= count  # 1 % of it


# --- layout


@pytest.mark.parametrize("width", range(60, 220, 7))
def test_no_line_is_wider_than_the_terminal(make_result: MakeResult, breakdown: Estimate, width: int) -> None:
    for blocks in (search_blocks(make_result()), estimate_report(breakdown).blocks()):
        text = plain_text(blocks, width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert text.isascii()


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_numbers_are_never_cut(make_result: MakeResult, width: int) -> None:
    """Every cell of a number column stands whole on one line."""
    table = REPORT.plans_table(make_result().plans, "step_time")
    for column in fit(table, width):
        if not column.column.flexible:
            assert all(len(lines) == 1 and len(lines[0]) <= column.width for lines in column.cells)


def test_columns_go_by_priority(make_result: MakeResult) -> None:
    table = REPORT.plans_table(make_result().plans, "step_time")
    everything = [column.title for column in table.columns]
    shown = {w: [c.column.title for c in fit(table, w)] for w in range(400, 39, -1)}
    assert shown[400] == everything
    for wide, narrow in itertools.pairwise(range(400, 39, -1)):
        assert set(shown[narrow]) <= set(shown[wide])
    assert {"#", "plan", "step time"} <= set(shown[40])
    assert {"memory", "throughput"} <= set(shown[90])


def test_does_not_fit_is_said_in_full_where_there_is_room(make_result: MakeResult) -> None:
    table = REPORT.plans_table(make_result().plans, "step_time")
    assert "n/a: does not fit" in plain_text([table], 400)
    assert "does not fit" not in plain_text([table], 80)


def test_numbers_are_right_aligned(make_result: MakeResult) -> None:
    lines = plain_text([REPORT.plans_table(make_result().plans, "step_time")], 200).splitlines()
    rule = next(line for line in lines if set(line) == {"-", " "})
    ends = [match.end() for match in re.finditer("-+", rule)]
    for row in (line for line in lines[3:] if re.match(r"\d", line)):
        assert len(row) == ends[-1]  # the gap, the last column, ends where its rule ends


@given(
    cells=st.lists(
        st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=60), min_size=1, max_size=4
    ),
    width=st.integers(40, 100),
)
def test_any_words_fit(cells: list[str], width: int) -> None:
    table = Table(
        columns=(
            Column(title="name", cells=tuple(cells), is_text=True, flexible=True),
            Column(title="value", cells=("1.23",) * len(cells)),
            Column(title="more", cells=("x" * 30,) * len(cells), priority=1),
        )
    )
    lines = plain_text([table], width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert sum("1.23" in line for line in lines) >= len(cells)


def test_words_wrap_at_groups_and_nothing_is_cut() -> None:
    words = "conv1: data x8, conv2: data x4 channels x2, fc6: channels x8"
    assert wrap_words(words, 27) == ["conv1: data x8,", "conv2: data x4 channels x2,", "fc6: channels x8"]
    many = ", ".join(f"layer{i}" for i in range(50))
    assert " ".join(wrap_words(many, 20)) == many


def test_only_plans_break_behind_every_comma() -> None:
    words = "Baichuan 2, 40 layers of 5120"
    of_plans, of_words = (Column("a", (words,), is_text=True, flexible=True, plans=plans) for plans in (True, False))
    assert fit(Table(columns=(of_plans,)), 24)[0].cells == (("Baichuan 2,", "40 layers of 5120"),)
    assert fit(Table(columns=(of_words,)), 24)[0].cells == (("Baichuan 2, 40 layers of", "5120"),)


def test_paths_and_names_of_code_break_between_their_parts() -> None:
    words = wrap_words("megatron/core/tensor_parallel/LinearWithAsyncCommunication.py works in place", 24)
    assert words == ["megatron/core/tensor_", "parallel/LinearWithAsync", "Communication.py works", "in place"]


def test_words_break_only_where_no_other_column_can_give() -> None:
    name, plan = "a.name_without_any_blank", "data x4, channels x2, " * 3
    columns = [Column(title, (text,), is_text=True, flexible=True) for title, text in (("name", name), ("plan", plan))]
    assert name in plain_text([Table(columns=(columns[0], columns[1], columns[1]))], 72)


def test_rich_shows_the_same_text(make_result: MakeResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    blocks = search_blocks(make_result())
    coloured = rich_text(blocks, 100, unicode=False)
    assert "\x1b[" in coloured
    without = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert without.split() == plain_text(blocks, 100).split()


def test_rich_takes_names_for_text() -> None:
    text = rich_text([Sentence("layer [bold]x[/bold] :smile: <b>"), Heading("[red]h")], 80)
    assert "[bold]x[/bold] :smile: <b>" in text
    assert "[red]h" in text


def test_markdown_escapes_and_aligns() -> None:
    table = Table(
        columns=(Column(title="n", cells=("a|b_c",), is_text=True), Column(title="t", cells=("1",), unit="ms"))
    )
    text = markdown_text([table, Facts((("k", "v*"),))])
    assert text.splitlines()[:3] == ["| n | t (ms) |", "| :-- | --: |", r"| a\|b\_c | 1 |"]
    assert r"- **k**: v\*" in text


# --- sentences


def sentences(result: Answer) -> str:
    return plain_text(search_blocks(result), 1000)


def test_the_answer_says_what_was_proved(make_result: MakeResult) -> None:
    proven = sentences(make_result())
    assert (
        "by the model, none of all 1.23e+22 plans that fits is faster than the first, and these are its 4 best"
        in proven
    )
    assert "1.23e+22 distinct plans (10^22.1)" in proven
    open_ = sentences(make_result(proven_optimal=False, proven_top=False, bound_s=0.0039, gap=0.025))
    assert "not proven: a plan could be up to 2.5 % faster (no plan takes less than 3.90 ms)" in open_
    early = make_result(proven_optimal=False, proven_top=False, bound_s=0.0, gap=1.0)
    assert "not proven: the search stopped before it had a bound" in sentences(early)
    assert "its 4 best" not in sentences(make_result(proven_top=False))


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6).filter(lambda shares: sum(shares) > 0.1))
def test_what_is_written_of_a_whole_adds_up(shares: list[float]) -> None:
    whole = sum(shares)
    texts = percents({str(n): share / whole for n, share in enumerate(shares)})
    assert sum(round(10 * float(text.removesuffix(" %").removeprefix("<"))) for text in texts.values()) == 1000


def test_what_limits_all_plans_alike_is_no_column(make_ranked: MakeRanked) -> None:
    first, other = make_ranked(), make_ranked(bottleneck="transfers")
    assert [column.cells for column in bottleneck_columns([first, other], 9)] == [(first.bottleneck, "transfers")]
    assert bottleneck_columns([first, first], 9) == []
    assert len(bottleneck_columns([first], 9)) == 1


def test_the_parts_of_the_time_add_up(make_result: MakeResult) -> None:
    said = sentences(make_result()).partition("Limited by: ")[2].partition(")")[0]
    assert " % of time" in said
    assert round(sum(10 * float(share) for share in re.findall(r"([0-9.]+) %", said))) == 1000


def test_the_answer_compares_with_data_parallelism(make_result: MakeResult, make_ranked: MakeRanked) -> None:
    fewer = Plan(workers=8, num_micro_batches=1, splits=(), collectives=())
    every = Plan(workers=16, num_micro_batches=1, splits=(), collectives=())
    some = make_ranked(workers=8, step_time_s=0.005, family="data", summary="data x8, ring", plan=fewer)
    most = make_ranked(step_time_s=0.006, family="data", summary="data x16, ring", plan=every)

    def lines(**baselines: RankedPlan | None) -> str:
        text = sentences(make_result(**baselines))
        return " ".join(text[text.index("Roles") :].split())

    text = lines(data_parallel=some, data_parallel_all=most)
    assert "Plan 1 is: the fastest Data parallelism: 25 % slower (5.00 ms, " in text
    assert ": data x8, ring The same on all GPUs: 50 % slower (6.00 ms, " in text
    assert "on 16 GPUs: data x16, ring" in text
    assert "The same on all GPUs: does not fit" in lines(data_parallel=some, data_parallel_all=None)
    assert "no plan with plain data parallelism fits" in lines(data_parallel=None, data_parallel_all=None)
    same = make_ranked(family="data")
    assert "Plan 1 is: the fastest; plain data parallelism" in lines(data_parallel=same, data_parallel_all=same)


def test_fewer_workers_are_pointed_out(make_result: MakeResult, make_ranked: MakeRanked) -> None:
    assert "GPUs are used" not in sentences(make_result())
    assert "8 of 16 GPUs are used" in sentences(make_result(plans=(make_ranked(workers=8),)))


def test_free_layers_and_assumptions_are_listed(make_result: MakeResult) -> None:
    text = sentences(make_result())
    for words in (
        "cluster dgx-h100 (default), global batch 128 (model file)",
        "Layers that cost nothing: ",
        "data, dropout6",
    ):
        assert words in text
    many = sentences(make_result(free_layers=tuple(f"l{i}" for i in range(40))))
    assert all(f"l{i}" in many for i in range(40))


def test_a_plan_that_is_the_best_says_so(breakdown: Estimate) -> None:
    text = explained(breakdown)
    assert "Against the best plan: 25 % slower than 4.00 ms" in text
    assert "+1.00" in text
    first = dataclasses.replace(breakdown.ranked, gap=0.0)
    best = dataclasses.replace(breakdown, ranked=first, best=first)
    assert "No plan that 'planner optimize' searches is faster." in explained(best)
    # One that does not fit may well be faster.
    more = {"memory_bytes_per_gpu": 2 * first.memory_capacity_bytes}
    full = dataclasses.replace(first, figures={**first.figures, **more}, gap=-0.1)
    assert "is faster" not in explained(dataclasses.replace(best, ranked=full))


# --- data


def test_json_is_what_the_schema_says(make_result: MakeResult) -> None:
    document = json.loads(json_text(search_document(make_result())))
    checked = search_model("layers").model_validate(document)
    assert json.loads(checked.model_dump_json(exclude_unset=True)) == document
    assert set(document) == set(search_model("layers").model_fields)
    assert document["space_size"] == 12345678901234567890123
    assert document["space_size_log10"] == pytest.approx(22.0915, abs=1e-4)
    assert [plan["rank"] for plan in document["plans"]] == [1, 2, 3, 4]
    assert document["plans"][0]["plan"]["layers"]["fc6"] == {"out_channels": 16}


def test_json_has_the_promised_keys(make_result: MakeResult) -> None:
    document = search_document(make_result())
    promised = (
        "schema_version model cluster gpus global_batch cost_model plans proven_optimal bound_s gap space_size wall_s"
    )
    assert set(promised.split()) <= set(document)
    plan = "rank step_time_s throughput_samples_per_s memory_bytes_per_gpu exposed_communication_s workers family summary plan"
    assert set(plan.split()) <= set(document["plans"][0])


def test_explain_json_has_layers_and_totals(breakdown: Estimate) -> None:
    schema = estimate_model("layers")
    document = json.loads(json_text(estimate_document(breakdown, is_explained=True)))
    checked = schema.model_validate(document)
    assert json.loads(checked.model_dump_json(exclude_unset=True)) == document
    assert set(document["totals"]) == set(document["layers"][0])
    keys = "name forward_s backward_input_s backward_weight_s flops weight_bytes output_shape"
    assert set(keys.split()) <= set(document["totals"])
    for key in ("forward_s", "backward_input_s", "backward_weight_s", "flops", "weight_bytes"):
        assert document["totals"][key] == pytest.approx(sum(layer[key] for layer in document["layers"]), rel=1e-15)
    short = json.loads(json_text(estimate_document(breakdown, is_explained=False)))
    assert "layers" not in short
    schema.model_validate(short)


def test_nothing_in_json_is_not_a_number(make_result: MakeResult, make_ranked: MakeRanked) -> None:
    result = make_result(plans=(make_ranked(speedup=math.nan, efficiency=math.inf, memory_capacity_bytes=math.inf),))
    text = json_text(search_document(result))
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["plans"][0]["speedup"] is None


@pytest.mark.fuzz
@given(st.recursive(st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=20))
def test_any_numbers_become_json(value: object) -> None:
    json.dumps(finite(value), allow_nan=False)


def test_csv_reads_back(make_result: MakeResult) -> None:
    report = search_report(make_result())
    rows = list(csv.DictReader(io.StringIO(csv_text(report.records()))))
    assert [float(row["step_time_s"]) for row in rows] == [plan.step_time_s for plan in make_result().plans]
    assert rows[1]["summary"] == make_result().plans[1].summary
    assert rows[2]["speedup"] == ""


def test_scaling_curve(setting: Setting) -> None:
    points = [
        ScalePoint(
            workers=n,
            global_batch=128 * n,
            batch_per_worker=128,
            step_time_s=0.1,
            compute_s=0.09,
            exposed_communication_s=0.01,
            throughput_samples_per_s=1280.0 * n,
            speedup=float(n),
            efficiency=1.0,
            hours=96.31 / n,
            summary=f"data x{n}",
            fits=n > 1,
        )
        for n in (1, 2, 4)
    ]
    curve = Scaling(
        setting=setting,
        assumptions=(Assumption(name="global batch", value="128"),),
        free_layers=("data",),
        points=tuple(points),
        weak=True,
        family="data",
        epochs=90.0,
        samples=1.2e6,
    )
    report: Report = scale_report(curve)
    document = json.loads(json_text(report.data()))
    assert json.loads(ScaleDocument.model_validate(document).model_dump_json()) == document
    text = plain_text(report.blocks(), 140)
    assert "96.31" in text
    assert "too much" in text
    for width in (60, 80, 120):
        assert max(map(len, plain_text(report.blocks(), width).splitlines())) <= width


# --- Markdown keeps what a table in a terminal shows --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (
            (Column(title="part", cells=("a", "b")), Column(title="", cells=("##", "  |"), is_text=True)),
            ["| a | ## |", "| b | &nbsp;&nbsp;\\| |"],
        ),
        ((Column(title="x", cells=("", "  ")),), ["|  |", "|  |"]),
    ],
    ids=["bars begin where the part before ends", "empty cells stay empty"],
)
def test_cells_in_markdown(columns: tuple[Column, ...], lines: list[str]) -> None:
    assert markdown_text([Table(columns=columns)]).splitlines()[2:] == lines


def test_commands_can_be_pasted_at_any_width() -> None:
    typed = "planner optimize 'my net.yaml' --gpus 16 --batch 2048 --export plan.yaml"
    block = Facts(
        (
            (
                "Next",
                Commands([typed, "planner export plan.yaml --to torch -o run"], "or something else, which is longer"),
            ),
        )
    )
    lines = plain_text([block], 44).splitlines()
    assert max(map(len, lines)) <= 44
    shell = "\n".join(line[6:] for line in lines).replace("\\\n", " ")
    assert "\n# or something else" in shell
    assert plain_text([block], 120).endswith(" --to torch -o run # or something else, which is longer\n")
    assert [words for line in shell.splitlines() if (words := shlex.split(line, comments=True))] == [
        shlex.split(typed),
        ["planner", "export", "plan.yaml", "--to", "torch", "-o", "run"],
    ]
    assert (
        f"`{typed}`; `planner export plan.yaml --to torch -o run`; or something else, which is longer"
        in markdown_text([block])
    )

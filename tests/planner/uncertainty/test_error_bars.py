"""Error bars and sensitivity through the command line, and what a calibration changes in them."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.layerwise.plan import Plan, Split
from costmodel.layerwise.tables import CostCache
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS
from costmodel.mesh.plan import MeshPlan
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import PARTS, Candidates, ErrorModel, similarity
from planner.core.answer import Answer
from planner.core.request import Request
from planner.files.loading import load_calibration
from planner.question.resolve import resolve
from planner.spaces.ask import optimize
from planner.spaces.layers.bars import layer_mixture
from planner.spaces.mesh.bars import mesh_coordinates
from planner.spaces.mesh.space import mesh_space
from planner.uncertainty.bars import (
    NEAR_PLANS,
    SAME_WITHIN,
    Knowledge,
    error_model,
    knowledge_of,
    knowledge_with,
    near_list,
    node_size,
)
from planner.uncertainty.sensitivity import sensitivity_of

MESH = "gpt3-1.3b --gpus 4 --batch 16 --seq 512"
LAYERS = "alexnet --gpus 4"


@pytest.mark.parametrize("question", [MESH, LAYERS])
def test_every_plan_has_an_interval_and_a_chance(document: Any, question: str) -> None:
    found = document(f"optimize {question}")
    plans = found["plans"]
    for plan in plans:
        assert plan["step_time_low_s"] < plan["step_time_s"] < plan["step_time_high_s"]
    assert (found["benchmark_compared"], len(plans)) == (8, 5)
    shown = sum(plan["probability_best"] for plan in plans)
    assert shown + found["probability_others"] == pytest.approx(1.0)
    assert found["benchmark_list"] == sorted(set(found["benchmark_list"]))
    assert max(found["benchmark_list"]) <= found["benchmark_compared"]
    assert found["benchmark_probability"] >= 0.9
    assert found["near_probability"] >= 0.9
    assert found["error_bars"]["calibration"] == "default"
    assert found["error_bars"]["kind"] == ("transformers" if question == MESH else "images")


@pytest.mark.parametrize("question", [MESH, LAYERS])
def test_the_table_shows_them(answer: Any, question: str) -> None:
    text = answer("optimize", *question.split(), "--width", "400")
    assert "80 % interval" in text
    assert "P(best)" in text
    assert "apart: benchmark plans 1" in text[text.index("The model cannot tell") :]


@pytest.mark.e2e
@pytest.mark.parametrize(
    "question", ["llama3-8b --gpus 8 --cluster dgx-h100", "alexnet --gpus 3"]
)  # of plans that tie for the eighth place, any may take it
def test_chances_and_lists_do_not_depend_on_how_many_plans_are_shown(document: Any, question: str) -> None:
    whole = document(f"optimize {question} --top 24")
    chances = [plan["probability_best"] for plan in whole["plans"]]
    compared = whole["benchmark_compared"]
    assert compared == 8 < len(chances)
    assert sum(chances[:compared]) == pytest.approx(1.0)
    assert set(chances[compared:]) == {None}
    assert whole["probability_others"] == 0.0
    for top in (1, 5):
        few = document(f"optimize {question} --top {top}")
        assert [plan["probability_best"] for plan in few["plans"]] == chances[:top]
        assert few["probability_others"] == pytest.approx(1.0 - sum(chances[:top]))
        for key in ("benchmark_list", "benchmark_probability", "benchmark_compared", "near_list", "near_within"):
            assert few[key] == whole[key], key


@pytest.mark.e2e
@pytest.mark.parametrize("question", [MESH, LAYERS])
def test_the_list_is_the_shortest(document: Any, question: str) -> None:
    """The chances of the listed plans add up to 90 %; with one plan less they do not, unless it takes as long as another."""
    found = document(f"optimize {question} --top 8")
    plans = {plan["rank"]: plan for plan in found["plans"]}
    chance = {rank: plan["probability_best"] for rank, plan in plans.items()}
    assert sum(chance.values()) == pytest.approx(1.0)
    listed = found["benchmark_list"]
    assert sum(chance[rank] for rank in listed) == pytest.approx(found["benchmark_probability"])
    assert found["benchmark_probability"] >= 0.9
    times = sorted(plans[rank]["step_time_s"] for rank in listed)
    if all(later / earlier > 1.0001 for earlier, later in itertools.pairwise(times)):  # no equals were added
        share = load_calibration().calibration.error_models[found["error_bars"]["kind"]].listed_share
        assert sum(chance[rank] for rank in listed) - min(chance[rank] for rank in listed if rank > 1) < share
    assert listed[0] == 1
    for rank, plan in plans.items():  # what takes as long as a plan of the list is on it
        if any(abs(plan["step_time_s"] / plans[other]["step_time_s"] - 1) < 0.9e-4 for other in listed):
            assert rank in listed


@pytest.mark.e2e
@pytest.mark.parametrize("question", [MESH, LAYERS])
def test_at_most_four_plans_are_to_be_run(document: Any, answer: Any, question: str) -> None:
    found = document(f"optimize {question}")
    assert len(found["near_list"]) <= NEAR_PLANS == 4 < len(found["benchmark_list"])
    assert found["near_list"][0] == 1
    assert found["near_within"] >= SAME_WITHIN
    assert found["near_probability"] >= 0.9
    assert f"within {100 * found['near_within']:.0f} % of the best" in answer("optimize", *question.split())


def test_four_plans_are_chosen_for_the_least_regret() -> None:
    """Independent of the lists: of all sets of four, none is within a smaller step of the tolerances as often as is asked."""
    draws = np.random.default_rng(3).normal(scale=0.1, size=(400, 7))
    chosen, within = near_list(draws, 0.9)
    least = draws.min(axis=1)

    def share(some: tuple[int, ...], tolerance: float) -> float:
        return float((draws[:, list(some)].min(axis=1) <= least + math.log1p(tolerance)).mean())

    assert len(chosen) <= NEAR_PLANS
    assert share(tuple(chosen), within) >= 0.9
    smaller = [tolerance for tolerance in (0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15) if tolerance < within]
    assert smaller  # the case is not trivial
    best = max(share(some, smaller[-1]) for some in itertools.combinations(range(7), NEAR_PLANS))
    assert best < 0.93  # greedy lists are as good as the best, but for chance


def test_the_recommended_plan_is_run_whatever_others_promise() -> None:
    """Two plans that are the best in turn, and a first one that never is but is recommended."""
    times = np.log(np.array([[1.5, 1.0, 2.0], [1.5, 2.0, 1.0]] * 50))
    chosen, within = near_list(times, 0.9)
    assert (chosen.tolist(), within) == ([0, 1, 2], SAME_WITHIN)


@pytest.mark.e2e
def test_the_same_seed_gives_the_same_chances(document: Any) -> None:
    first, again = document(f"optimize {MESH} --seed 5"), document(f"optimize {MESH} --seed 5")
    other = document(f"optimize {MESH} --seed 6")
    chances = [[plan["probability_best"] for plan in found["plans"]] for found in (first, again, other)]
    assert chances[0] == chances[1]
    assert chances[0] != chances[2]
    assert chances[0] == pytest.approx(chances[2], abs=0.05)


def test_one_plan_has_an_interval_and_nothing_to_compare(document: Any) -> None:
    found = document(f"estimate {MESH} --tp 2")
    plan = found["plans"][0]
    assert plan["step_time_low_s"] < plan["step_time_s"] < plan["step_time_high_s"]
    assert plan["probability_best"] is None
    assert "benchmark_list" not in found


def test_paleo_has_no_error_bars_and_says_so(document: Any, answer: Any) -> None:
    found = document("optimize alexnet --gpus 2 --cost-model paleo")
    assert {plan["step_time_low_s"] for plan in found["plans"]} == {None}
    assert found["benchmark_list"] == []
    assert "paleo" in found["error_bars"]["note"]
    assert "no error bars" in answer("optimize", "alexnet", "--gpus", "2", "--cost-model", "paleo", "-v")


@pytest.mark.e2e
def test_a_surer_calibration_gives_narrower_intervals(document: Any, new_file: Any) -> None:
    entries = "\n".join(f"  {name}: {{log_sd: 0.001, prior_log_sd: {c.prior_log_sd}}}" for name, c in CONSTANTS.items())
    file = new_file("mine.yaml", f"schema_version: 1\nname: mine\nconstants:\n{entries}\nresidual: {{log_sd: 0.01}}\n")
    usual, own = document(f"optimize {MESH}"), document(f"optimize {MESH} --calibration {file}")

    def width(found: dict[str, Any]) -> float:
        best = found["plans"][0]
        return math.log(best["step_time_high_s"] / best["step_time_low_s"])

    assert own["plans"][0]["step_time_s"] == usual["plans"][0]["step_time_s"]
    assert width(own) < 0.3 * width(usual)
    assert own["error_bars"]["calibration"] == "mine"
    assert len(own["benchmark_list"]) <= len(usual["benchmark_list"])


def test_a_calibration_narrows_by_how_many_networks_it_saw(document: Any, tmp_path: Path) -> None:
    """None says nothing about steps (kernels alone), one says little, thirty nearly all; more error than usual widens."""
    widths, file = [], tmp_path / "mine.yaml"
    for residual, groups in ((0.02, 0), (0.02, 1), (0.02, 30), (0.5, 30)):
        file.write_text(
            "schema_version: 1\nname: mine\nconstants: {host_launch: {value: 1.0}}\n"
            f"residual: {{log_sd: {residual}, groups: {groups}}}\n",
            encoding="utf-8",
        )
        found = document(f"estimate {MESH} --tp 2 --calibration {file}")
        plan = found["plans"][0]
        widths.append(math.log(plan["step_time_high_s"] / plan["step_time_low_s"]))
        assert found["error_bars"]["calibration"] == ("mine" if groups else "default")
    plan = document(f"estimate {MESH} --tp 2")["plans"][0]
    usual = math.log(plan["step_time_high_s"] / plan["step_time_low_s"])
    assert widths[0] == pytest.approx(usual)
    assert usual > widths[1] > 0.8 * usual
    assert 2 * 1.2816 * 0.02 < widths[2] < 0.4 * usual
    assert widths[3] > usual


def test_intervals_of_an_unknown_framework_hold_what_no_fit_saw() -> None:
    """The bundled width against Student's t of its own scale: 80 % or more; sources in no file were further off than files say."""
    for kind in ("transformers", "images"):
        model = load_calibration().calibration.error_models[kind]
        scale = math.hypot(model.shared_log_sd, model.plan_log_sd, *[model.by_part["compute"]])
        rng = np.random.default_rng(2)
        error = scale * rng.standard_t(3, 20_000)
        inside = (model.low * model.typical_log_sd <= error) & (error <= model.high * model.typical_log_sd)
        assert 0.8 <= inside.mean() <= 0.998, kind


def test_error_models_of_a_calibration_are_used_before_the_bundled_ones() -> None:
    bundled = load_calibration().calibration
    assert {"transformers", "images", "nanotron"} <= set(bundled.error_models)
    assert error_model(bundled, bundled, "nanotron", is_transformer=True) == bundled.error_models["nanotron"]
    # A framework without rows of its own has the errors of any.
    assert error_model(bundled, bundled, "new", is_transformer=False) == bundled.error_models["images"]


@pytest.mark.parametrize(
    ("framework", "said"),
    [
        ("easylm", "too few runs of easylm are known for errors of its own"),
        ("megatron-bridge", ""),
        ("megatron-lm", ""),
        ("", ""),
    ],
)
def test_a_framework_without_runs_says_so(framework: str, said: str) -> None:
    """Megatron Core has the errors of Megatron-Bridge (`errors_of`); where no framework is named, none is missed."""
    assert knowledge_with(None, framework, is_transformer=True).model.basis == said


def test_a_framework_on_a_device_without_rows_is_as_unsure_as_any() -> None:
    """By the names of the cluster's devices, in answers; a calibration of one's own runs there counts against that."""
    kinds = {
        "transformers": ErrorModel(shared_log_sd=0.1, plan_log_sd=0.1, typical_log_sd=0.2, low=-2.0, high=2.0),
        "megatron-bridge": ErrorModel(shared_log_sd=0.1, plan_log_sd=0.1, low=-1.0, high=1.0, devices=("h100-sxm",)),
    }
    given = replace(load_calibration().calibration, error_models=kinds)
    asked = [(), ("h100-sxm",), ("b200",), ("h100-sxm", "b200")]
    known = [knowledge_with(given, "nemo", is_transformer=True, devices=devices).model for devices in asked]
    assert [model.high * model.typical_log_sd for model in known] == pytest.approx([0.1, 0.1, 0.4, 0.4])
    own = replace(given, error_models={}, residual_log_sd=0.05, residual_groups=3)
    moved = error_model(own, given, "megatron-bridge", is_transformer=True, devices=("b200",))
    assert moved.high * moved.typical_log_sd == pytest.approx(math.sqrt(0.5 * 0.4**2 + 0.5 * (1.2816 * 0.05) ** 2))


def test_constants_that_a_calibration_says_nothing_about_are_as_sure_as_without_it(tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    prior = CONSTANTS["host_launch"].prior_log_sd
    file.write_text(
        "schema_version: 1\nname: one\nresidual: {log_sd: 0.1}\nconstants:\n"
        "  matmul_rate: {value: 0.9, log_sd: 0.02, prior_log_sd: 0.17}\n"
        f"  host_launch: {{value: 1.0, log_sd: {prior}, prior_log_sd: {prior}}}\n"  # no row depends on it
        "  memory_rate: {value: 1.0, log_sd: 0.3, prior_log_sd: 0.15}\n"  # stated to be less sure
        f"  host_collective: {{value: 2.0, log_sd: {0.6 * prior}, prior_log_sd: {prior}, determined: true}}\n",
        encoding="utf-8",
    )
    names = ("matmul_rate", "host_launch", "memory_rate", "host_collective", "link_latency")
    known = knowledge_of(Request(model="", calibration=str(file)), is_transformer=True, names=names)
    published = load_calibration().calibration.constants
    assert published["link_latency"].log_sd != CONSTANTS["link_latency"].prior_log_sd
    expected = [0.02, published["host_launch"].log_sd, 0.3, 0.6 * prior, published["link_latency"].log_sd]
    assert np.sqrt(np.diag(known.covariance)) == pytest.approx(expected)


@pytest.mark.exact
@pytest.mark.parametrize("question", ["gpt3-1.3b --gpus 4 --batch 16 --seq 512", "alexnet --gpus 4"])
def test_sensitivity_lists_the_constants(document: Any, answer: Any, known_answer: Any, question: str) -> None:
    rows = json.loads(known_answer("explain", *question.split(), "--sensitivity", "--json"))["sensitivity"]
    assert {row["constant"] for row in rows} <= set(CONSTANTS)
    needed = [row["standard_deviations"] for row in rows if row["standard_deviations"] is not None]
    assert needed == sorted(needed)
    for row in rows:
        assert (row["factor"] is None) == (row["winner"] is None)
        if row["factor"] is not None:
            assert row["winner"] > 1
            assert row["standard_deviations"] == pytest.approx(abs(math.log(row["factor"])) / row["log_sd"])
    assert "sensitivity" not in document(f"explain {question}")
    said, more = (answer("explain", *question.split(), "--sensitivity", *v) for v in ((), ("-v",)))
    _, heading, table = said.partition("another of the best plans")
    assert heading
    names = {name for row in rows for name in (row["constant"], *row["now"])}
    assert not [name for name in names if "_" in name and name in table]
    in_one_line = " ".join(more.split())
    assert all(name in in_one_line for name in names)


@pytest.mark.exact
@pytest.mark.parametrize("question", ["llama2-7b --gpus 16 --batch 64", LAYERS])
def test_a_stated_change_makes_another_plan_win(document: Any, new_file: Any, question: str) -> None:
    """Searched again with the constant as stated, and with nine tenths of the change: nothing else was told to the search."""
    base = document(f"optimize {question} --top 10 --fastest --memory-reserve 5%")["plans"]
    row = next(
        row
        for row in document(f"explain {question} --sensitivity --memory-reserve 5%")["sensitivity"]
        if row["factor"] is not None
    )

    def best(share: float) -> str:
        factor = math.exp(share * math.log(row["factor"]))
        prior = CONSTANTS[row["constant"]].prior_log_sd
        entry = f"{{value: {factor!r}, log_sd: {prior}, prior_log_sd: {prior}}}"
        file = new_file(
            "changed.yaml",
            f"schema_version: 1\nname: c\nconstants:\n  {row['constant']}: {entry}\nresidual: {{log_sd: 0.1}}\n",
        )
        return str(
            document(f"optimize {question} --top 1 --fastest --memory-reserve 5% --calibration {file}")["plans"][0][
                "summary"
            ]
        )

    assert row["winner_summary"] == base[row["winner"] - 1]["summary"]
    assert best(0.9) == base[0]["summary"]
    assert best(1.1) != base[0]["summary"]


@pytest.mark.exact
def test_sensitivity_beside_a_plan_file(document: Any, known_answer: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    document(f"estimate gpt3-1.3b --gpus 4 --batch 16 --seq 512 --tp 4 --export {file}")
    beside = document(f"explain --plan {file} --sensitivity")["sensitivity"]
    alone = known_answer("explain", *MESH.split(), "--sensitivity", "--json")
    assert beside == json.loads(alone)["sensitivity"]


# -- constructed cases ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Cluster:
    device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    fabric = Level(name="fabric", size=4, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
    return Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, fabric))


@pytest.mark.exact
def test_sensitivity_compares_energies_where_they_are_asked_for() -> None:
    """A later plan has fewer GPU-seconds than the one of least energy; by those it would win whatever changes, at once."""
    request = Request(model="llama2-13b", gpus=64, cluster="dgx-a100", objective="energy", top=5, memory_reserve="5%")
    result = optimize(request)
    assert isinstance(result, Answer)
    first, *others = (plan.workers * plan.step_time_s for plan in result.plans)
    assert min(others) < first
    space = mesh_space(resolve(request))
    rows = space.sensitivity(result.plans)
    factors = [row.factor for row in rows or ()]
    assert all(factor is None or abs(math.log(factor)) > 0.02 for factor in factors)
    assert any(factor is not None for factor in factors)


def test_sensitivity_of_a_case_known_by_algebra(cluster: Cluster) -> None:
    """Step times 1 + 1/b and 1.5 + 0.75/b with the bandwidth times b: equal at b = 1/2. Compute rates change both alike."""

    def times(name: str, factor: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        base = np.array([1 + 1 / factor, 1.5 + 0.75 / factor])
        return base if name == "inter_node_bandwidth" else np.array([2.0, 2.25]) / factor

    log_sd = {"matmul_rate": 0.1, "inter_node_bandwidth": 0.2}
    knowledge = Knowledge(
        calibration="c",
        kind="k",
        model=ErrorModel(shared_log_sd=0.1, plan_log_sd=0.1),
        log_sd=log_sd,
        covariance=np.diag([0.01, 0.04]),
    )
    first, second = sensitivity_of(times, knowledge, {1: "a", 2: "b"}, cluster, DEFAULT_ASSUMPTIONS)
    assert (first.constant, first.winner, first.winner_summary) == ("inter_node_bandwidth", 2, "b")
    assert first.factor == pytest.approx(0.5, rel=0.01)
    assert first.standard_deviations == pytest.approx(math.log(2) / 0.2, rel=0.01)
    assert dict(first.now) == {"fabric.bandwidth_bytes_per_s": 10e9}
    assert (second.constant, second.factor, second.winner) == ("matmul_rate", None, None)


def test_plans_that_differ_only_in_how_memory_is_saved_lie_close(cluster: Cluster) -> None:
    plain, offloaded, wider = mesh_coordinates(
        [MeshPlan(tp=2), MeshPlan(tp=2, offload_optimizer=True), MeshPlan(tp=4, dp_shard=1)]
    )
    assert np.abs(plain - offloaded).sum() < np.abs(plain - wider).sum()
    assert node_size(cluster) == 8


def test_plans_that_differ_in_one_small_layer_are_nearly_perfectly_correlated() -> None:
    """pool2 of AlexNet takes under 3 % of a step; what the plans do with all others is the same."""
    found = resolve(Request(model="alexnet", gpus=4))
    workload, cluster = found.workload, found.cluster
    layers = workload.graph.layers
    data, channels = Split(batch=4), Split(out_channels=4)
    plans = [
        Plan(
            workers=4,
            num_micro_batches=1,
            splits=tuple(channels if layer.name in names else data for layer in layers),
            collectives=(None,) * len(layers),
        )
        for names in ((), ("pool2",), ("conv1", "conv2", "conv3", "conv4", "conv5", "fc6", "fc7", "fc8"))
    ]
    known = CostCache(workload, cluster)
    coordinates, mixture = layer_mixture(known, plans)
    assert mixture.sum(axis=1) == pytest.approx(1.0)
    assert mixture[0] == pytest.approx([1.0, 0.0])
    assert 0.0 < mixture[1][1] < 0.03  # pool2 alone
    plain = np.zeros((3, 0))
    same, small, other = similarity(
        Candidates(
            step_time_s=np.ones(3),
            shares=np.zeros((3, len(PARTS))),
            effects=plain,
            covariance=np.zeros((0, 0)),
            coordinates=coordinates,
            mixture=mixture,
        )
    )[0]
    assert same == pytest.approx(1.0)
    assert small > 0.998
    assert other < 0.6


@pytest.mark.e2e
def test_assumptions_given_stay_given(document: Any) -> None:
    """The bars vary the constants around what was asked for, not around the defaults."""
    slow = document(f"optimize {MESH} --assume host_launch_s=0.001")["plans"][0]
    assert slow["step_time_low_s"] < slow["step_time_s"] < slow["step_time_high_s"]
    assert slow["step_time_s"] > document(f"optimize {MESH}")["plans"][0]["step_time_s"]


@pytest.mark.e2e
def test_a_calibration_of_ones_own_needs_a_name_and_a_value(document: Any, new_file: Any) -> None:
    """What is not stated is as bundled: the errors of the others, the prior of the constant."""
    file = new_file("mine.yaml", "schema_version: 1\nname: mine\nconstants:\n  host_launch: {value: 1.0}\n")
    loaded = load_calibration(str(file)).calibration
    assert loaded.constants["host_launch"].log_sd == CONSTANTS["host_launch"].prior_log_sd
    bundled = load_calibration().calibration
    assert error_model(loaded, bundled, "transformers", is_transformer=True) == bundled.error_models["transformers"]
    own = document(f"optimize {MESH} --calibration {file}")
    assert own["plans"][0]["step_time_s"] == document(f"optimize {MESH}")["plans"][0]["step_time_s"]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("question", "same"),
    [
        ("gpt3-1.3b --batch 16 --seq 512 --workers 2,4", "optimize gpt3-1.3b --batch 16 --seq 512 --top 1 --gpus"),
        ("alexnet --family best --workers 2,4", "optimize alexnet --top 1 --fastest --gpus"),
    ],
)
def test_every_point_of_a_scaling_curve_has_the_interval_of_its_plan(
    document: Any, answer: Any, question: str, same: str
) -> None:
    curve = document(f"scale {question}")
    assert curve["error_bars"]["calibration"] == "default"
    for point in curve["points"]:
        plan = document(f"{same} {point['workers']}")["plans"][0]
        for key in ("step_time_s", "step_time_low_s", "step_time_high_s"):
            assert point[key] == pytest.approx(plan[key], rel=1e-9), key
    assert "80 % interval" in answer("scale", *question.split())


def test_a_curve_of_the_paper_has_no_intervals_and_says_so(document: Any, answer: Any) -> None:
    curve = document("scale alexnet --workers 1,2 --cost-model paleo --family hybrid --cluster paleo-pcie2")
    assert {point["step_time_low_s"] for point in curve["points"]} == {None}
    assert "paleo" in curve["error_bars"]["note"]
    assert "80 % interval" not in answer("scale", "alexnet", "--workers", "1,2", "--cost-model", "paleo")


def test_a_wide_interval_says_why_and_what_narrows_it() -> None:
    """A tenth of nanotron's runs stalled, and none was on A100; what is usual needs no words."""

    def said(**more: str) -> list[str]:
        found = planner.estimate("llama-7b", gpus=8, batch=8, tp=8, **more)  # type: ignore[arg-type]
        low, high = found.plan.step_time_interval_s or (1.0, 1.0)
        notes = [str(note) for note in found.notes if "% interval is" in str(note)]
        assert bool(notes) is (high > 3 * low)
        return notes

    (wide,) = said(framework="nanotron")
    assert "a tenth of the 1,017 measured runs of nanotron took longer than its upper end" in wide
    assert "planner calibrate" in wide
    (strange,) = said(framework="nanotron", cluster="dgx-a100")
    assert "no measured run of nanotron was on a100-80gb, and a tenth" in strange
    assert said(framework="megatron-lm") == []

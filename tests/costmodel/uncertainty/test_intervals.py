"""The error model by hand-checkable numbers, synthetic data and properties."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.arrays import FloatArray
from costmodel.uncertainty.intervals import (
    PARTS,
    Candidates,
    ErrorModel,
    interval_score,
    intervals,
    part_shares,
    sampled_log_errors,
    similarity,
    standard_deviations,
)
from costmodel.uncertainty.rankings import probability_best, shortest_list

NOTHING = ErrorModel(shared_log_sd=0.0, plan_log_sd=0.0)


def candidates(
    steps: list[float],
    *,
    effects: list[list[float]] | None = None,
    covariance: list[list[float]] | None = None,
    coordinates: list[float] | None = None,
    bubble: list[float] | None = None,
) -> Candidates:
    n = len(steps)
    step = np.array(steps)
    return Candidates(
        step_time_s=step,
        shares=part_shares(step, {"bubble": step * np.array(bubble)} if bubble else {}),
        effects=np.array(effects) if effects else np.zeros((n, 0)),
        covariance=np.array(covariance) if covariance else np.zeros((0, 0)),
        coordinates=np.array(coordinates if coordinates else [100.0 * i for i in range(n)])[:, None],
    )


def t_cdf(x: float) -> float:
    """Of Student's t with three degrees of freedom, in closed form."""
    y = x / math.sqrt(3)
    return 0.5 + (y / (1 + y * y) + math.atan(y)) / math.pi


def test_two_equal_plans_have_an_even_chance() -> None:
    model = ErrorModel(shared_log_sd=0.3, plan_log_sd=0.1)
    errors = sampled_log_errors(candidates([1.0, 1.0]), model)
    assert probability_best(errors).tolist() == pytest.approx([0.5, 0.5], abs=1e-9)  # exactly, by the mirrored draws


def test_chance_of_two_independent_plans_is_that_of_students_t() -> None:
    """Plan 2 is 5 % slower, each with its own error of 10 %: P = F(log(1.05) / (0.1 sqrt 2)); twice the scale, half the argument."""
    two = candidates([1.0, 1.05])
    model = ErrorModel(shared_log_sd=0.0, plan_log_sd=0.1)
    argument = math.log(1.05) / (0.1 * math.sqrt(2))
    for scale in (1.0, 2.0):
        scaled = replace(model, ranking_scale=scale)
        log_times = np.log(two.step_time_s) + sampled_log_errors(two, scaled, draws=40_000)
        assert probability_best(log_times)[0] == pytest.approx(t_cdf(argument / scale), abs=0.01)


@pytest.mark.parametrize(
    "model",
    [
        ErrorModel(shared_log_sd=0.5, plan_log_sd=0.0),
        ErrorModel(shared_log_sd=0.0, plan_log_sd=0.0, by_part={"compute": 0.5}),
    ],
)
def test_errors_that_plans_share_cancel_in_the_ranking(model: ErrorModel) -> None:
    two = candidates([1.0, 1.001])
    log_times = np.log(two.step_time_s) + sampled_log_errors(two, model)
    assert probability_best(log_times).tolist() == [1.0, 0.0]
    assert standard_deviations(two, model) == pytest.approx([0.5, 0.5])  # and widen the intervals


def test_a_constant_that_acts_on_both_plans_alike_cancels_and_one_that_does_not_decides() -> None:
    alike = candidates([1.0, 1.05], effects=[[0.5], [0.5]], covariance=[[0.04]])
    assert probability_best(np.log(alike.step_time_s) + sampled_log_errors(alike, NOTHING)).tolist() == [1.0, 0.0]
    # One plan gains 0.5 d, the other nothing: the second is better where 0.5 d > log 1.05, d of 20 %.
    unlike = candidates([1.0, 1.05], effects=[[0.5], [0.0]], covariance=[[0.04]])
    chance = probability_best(np.log(unlike.step_time_s) + sampled_log_errors(unlike, NOTHING, draws=40_000))[0]
    assert chance == pytest.approx(t_cdf(math.log(1.05) / 0.1), abs=0.01)


def test_expected_regrets_differ_by_as_much_as_predictions() -> None:
    """Whatever plans have in common, so that a limit on the prediction is one on the expected regret (`strategies.mesh.simplest`)."""
    three = candidates([1.0, 1.004, 1.03], effects=[[0.5], [0.1], [0.0]], covariance=[[0.04]])
    log_times = np.log(three.step_time_s) + sampled_log_errors(three, ErrorModel(shared_log_sd=0.3, plan_log_sd=0.1))
    regrets = (log_times - log_times.min(axis=1, keepdims=True)).mean(axis=0)
    assert regrets[0] > 0.02  # of any plan, since nobody knows which is the best
    assert (regrets - regrets[0]).tolist() == pytest.approx(np.log(three.step_time_s).tolist(), abs=1e-12)


def agreement(errors: FloatArray) -> float:
    """Correlation of two columns by how often they are of one sign: sin(pi (P - 1/2)), whatever the scales of the draws."""
    return math.sin(math.pi * (float((errors[:, 0] * errors[:, 1] > 0).mean()) - 0.5))


def test_plans_at_the_same_place_have_the_same_error_of_their_own() -> None:
    near = candidates([1.0, 1.001], coordinates=[0.0, 0.0])
    model = ErrorModel(shared_log_sd=0.0, plan_log_sd=0.2)
    errors = sampled_log_errors(near, model)
    assert np.abs(errors[:, 0] - errors[:, 1]).max() < 1e-12
    apart = candidates([1.0, 1.001], coordinates=[0.0, 1.0])  # one step: they agree by 1/e
    errors = sampled_log_errors(apart, model, draws=40_000)
    assert agreement(errors) == pytest.approx(math.exp(-1), abs=0.02)


def mixed(mixture: list[list[float]], coordinates: list[float]) -> Candidates:
    n = len(mixture)
    return Candidates(
        step_time_s=np.ones(n),
        shares=part_shares(np.ones(n), {}),
        effects=np.zeros((n, 0)),
        covariance=np.zeros((0, 0)),
        coordinates=np.array(coordinates)[:, None],
        mixture=np.array(mixture),
    )


def test_plans_that_run_most_of_their_step_alike_share_most_of_their_error() -> None:
    """Two ways, one step apart (they agree by 1/e). Worked out: with 10 % the other way, (0.9 + 0.1/e) / sqrt(0.81 + 0.01 + 0.18/e)."""
    two = mixed([[1.0, 0.0], [0.9, 0.1]], [0.0, 1.0])
    expected = (0.9 + 0.1 / math.e) / math.sqrt(0.82 + 0.18 / math.e)
    assert similarity(two)[0, 1] == pytest.approx(expected)
    model = ErrorModel(shared_log_sd=0.0, plan_log_sd=0.2)
    errors = sampled_log_errors(two, model, draws=40_000)
    assert agreement(errors) == pytest.approx(expected, abs=0.001)
    quartile = 0.2 * 0.7649  # of Student's t with three degrees of freedom
    assert np.quantile(errors, 0.75, axis=0) == pytest.approx([quartile] * 2, rel=0.03)  # as large as ever


def test_plans_of_one_way_each_are_as_alike_as_their_ways() -> None:
    ways = [0.0, 1.0, 3.0]
    alone = candidates([1.0, 1.0, 1.0], coordinates=ways)
    assert similarity(mixed(np.eye(3).tolist(), ways), 2.0) == pytest.approx(similarity(alone, 2.0))


@given(st.lists(st.tuples(*[st.floats(0.01, 1.0)] * 4), min_size=2, max_size=6), st.floats(0.2, 5.0))
def test_similarity_is_a_correlation(weights: list[tuple[float, ...]], steps: float) -> None:
    shares = np.array(weights) / np.sum(weights, axis=1, keepdims=True)
    found = similarity(mixed(shares.tolist(), [0.0, 0.3, 1.0, 4.0]), steps)
    assert np.diag(found) == pytest.approx(1.0)
    assert found == pytest.approx(found.T)
    assert np.linalg.eigvalsh(found).min() > -1e-9


def test_standard_deviation_adds_squares() -> None:
    """Constants 0.5 x 0.2 = 0.1 and 1 x 0.1, correlated by 0.5; half the step is bubble of 20 %; shared 0.1; own 0.05."""
    one = candidates([2.0], effects=[[0.5, 1.0]], covariance=[[0.04, 0.01], [0.01, 0.01]], bubble=[0.5])
    model = ErrorModel(shared_log_sd=0.1, plan_log_sd=0.05, by_part={"bubble": 0.2})
    constants = 0.01 + 0.01 + 2 * 0.5 * 0.01
    assert standard_deviations(one, model)[0] == pytest.approx(math.sqrt(constants + 0.01 + 0.01 + 0.0025))


def test_intervals_hold_their_share_of_synthetic_measurements() -> None:
    rng = np.random.default_rng(1)
    n = 20_000
    bubble = rng.uniform(0, 0.6, n)
    many = candidates(rng.uniform(1, 9, n).tolist(), bubble=bubble.tolist())
    model = ErrorModel(shared_log_sd=0.05, plan_log_sd=0.05, by_part={"compute": 0.1, "bubble": 0.4})
    sd = np.sqrt(0.05**2 + 0.05**2 + (0.1 * (1 - bubble)) ** 2 + (0.4 * bubble) ** 2)
    measured = many.step_time_s * np.exp(rng.standard_normal(n) * sd)
    low, high = intervals(many, model)
    inside = (low <= measured) & (measured <= high)
    assert inside.mean() == pytest.approx(0.8, abs=0.01)
    assert inside[bubble > 0.4].mean() == pytest.approx(0.8, abs=0.02)  # of the uncertain ones, too
    # One width for all holds as many and scores worse.
    ends = np.quantile(np.log(measured / many.step_time_s), [0.1, 0.9])
    shared = [np.full(n, end) for end in ends]
    residual = np.log(measured / many.step_time_s)
    own = interval_score(np.log(low / many.step_time_s), np.log(high / many.step_time_s), residual)
    assert own.mean() < interval_score(shared[0], shared[1], residual).mean()


def test_sharpness_0_gives_every_plan_the_same_interval() -> None:
    two = candidates([1.0, 1.0], bubble=[0.0, 0.9])
    model = ErrorModel(
        shared_log_sd=0.1,
        plan_log_sd=0.0,
        by_part={"bubble": 1.0},
        sharpness=0.0,
        typical_log_sd=0.2,
        low=-1.0,
        high=2.0,
    )
    low, high = intervals(two, model)
    assert low == pytest.approx([math.exp(-0.2)] * 2)
    assert high == pytest.approx([math.exp(0.4)] * 2)
    wider = intervals(two, model.scaled(2.0))
    assert wider[0] == pytest.approx([math.exp(-0.4)] * 2)


@pytest.mark.parametrize("sharpness", [0.0, 0.5, 1.0])
def test_runs_of_ones_own_move_the_ends_by_how_many_networks_ran(sharpness: float) -> None:
    """Squares of the ends are averaged, three groups of others against those of one's own: (3 x 0.3^2 + 3 x 0.128^2) / 6, and so on."""
    two = candidates([1.0, 1.0], bubble=[0.0, 0.9])
    others = ErrorModel(
        shared_log_sd=0.1,
        plan_log_sd=0.0,
        by_part={"bubble": 1.0},
        sharpness=sharpness,
        typical_log_sd=0.1,
        low=-1.0,
        high=3.0,
    )
    before = np.log(intervals(two, others))
    assert np.log(intervals(two, others.updated(0.01, groups=0))) == pytest.approx(before)
    widths = []
    for groups in (1, 3, 12, math.inf):
        own = others.updated(0.1, groups)
        share = 1.0 if math.isinf(groups) else groups / (groups + 3)
        for end, first in ((own.low, -1.0), (own.high, 3.0)):
            expected = math.copysign(math.sqrt((1 - share) * (0.1 * first) ** 2 + share * 0.12816**2), first)
            assert end * own.typical_log_sd == pytest.approx(expected)
        low, high = np.log(intervals(two, own))
        assert (high - low)[1] / (high - low)[0] == pytest.approx(  # sharp as before
            (before[1] - before[0])[1] / (before[1] - before[0])[0]
        )
        widths.append((high - low)[0])
    assert widths == sorted(widths, reverse=True)
    # Ranks are told apart as much better.
    assert own.plan_log_sd == pytest.approx(0.0)
    assert own.by_part["bubble"] == pytest.approx(2 * 0.12816 / 0.4)


def test_intervals_and_lists_hold_what_is_drawn_from_the_model() -> None:
    """Truths drawn by other means than the library's: questions of five plans whose errors follow the model."""
    rng = np.random.default_rng(7)
    model = ErrorModel(
        shared_log_sd=0.05, plan_log_sd=0.06, by_part={"bubble": 0.3}, low=-1.6377, high=1.6377, typical_log_sd=0.1
    )  # the tenth of Student's t with three degrees of freedom
    inside, held, chances, first = [], [], [], []
    for question in range(400):
        bubble = rng.uniform(0, 0.4, 5)
        steps = np.sort(rng.uniform(1.0, 1.4, 5))
        plans = candidates(steps.tolist(), bubble=bubble.tolist())
        scale = 1 / math.sqrt(rng.chisquare(3) / 3)
        error = 0.05 * rng.standard_normal() + 0.06 * rng.standard_normal(5) + 0.3 * bubble * rng.standard_normal()
        measured = steps * np.exp(scale * error)
        low, high = intervals(plans, model)
        inside.append((low <= measured) & (measured <= high))
        log_times = np.log(steps) + sampled_log_errors(plans, model, draws=1000, seed=question)
        held.append(int(np.argmin(measured)) in shortest_list(log_times, 0.9))
        chances.append(probability_best(log_times)[0])
        first.append(np.argmin(measured) == 0)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.04)
    assert 0.88 <= np.mean(held) <= 0.97
    assert np.mean(chances) == pytest.approx(np.mean(first), abs=0.05)


def test_plans_alike_share_their_chance_whatever_else_is_compared() -> None:
    """Two that are one, among three others: draws that they win are halved, and one of them is enough on a list."""
    model = ErrorModel(shared_log_sd=0.1, plan_log_sd=0.1)
    plans = candidates([1.0, 1.0, 1.02, 1.03, 1.5], coordinates=[0.0, 0.0, 1.0, 2.0, 9.0])
    log_times = np.log(plans.step_time_s) + sampled_log_errors(plans, model)
    chances = probability_best(log_times)
    assert chances[0] == chances[1]
    assert chances[0] + chances[1] > chances[2]
    assert 1 not in shortest_list(log_times, 0.95)


def test_the_same_seed_gives_the_same_draws() -> None:
    two = candidates([1.0, 1.1])
    model = ErrorModel(shared_log_sd=0.0, plan_log_sd=0.1)
    assert np.array_equal(sampled_log_errors(two, model, seed=3), sampled_log_errors(two, model, seed=3))
    assert not np.array_equal(sampled_log_errors(two, model, seed=3), sampled_log_errors(two, model, seed=4))


def test_more_uncertainty_makes_the_list_longer() -> None:
    plans = candidates([1.0, 1.02, 1.05, 1.1, 1.2])
    lengths = []
    for sd in (0.001, 0.02, 0.05, 0.2):
        errors = sampled_log_errors(plans, ErrorModel(shared_log_sd=0.0, plan_log_sd=sd))
        lengths.append(len(shortest_list(np.log(plans.step_time_s) + errors, 0.9)))
    assert lengths[0] == 1
    assert lengths == sorted(lengths)
    assert lengths[-1] >= 4


def test_shares_add_up_to_one() -> None:
    shares = part_shares([4.0, 2.0], {"bubble": [1.0, -1e-18], "stage_transfer": [1.0, 0.0]}, nodes=[8, 0.5])
    assert shares[:, :5].sum(axis=1) == pytest.approx([1.0, 1.0])
    assert shares[0].tolist() == pytest.approx([0.5, 0.0, 0.25, 0.0, 0.25, 1.5])  # 3 doublings x half the step
    assert shares[1].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_parts_of_the_schema_are_those_of_the_model() -> None:
    from typing import get_args

    from planner.schema.calibration import Part

    assert get_args(Part) == PARTS

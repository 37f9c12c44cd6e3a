"""Closed forms of the schedules against the event-by-event timeline, textbook formulas and small cases by hand."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from costmodel.arrays import FloatArray, IntArray
from costmodel.mesh import passes
from costmodel.mesh import schedule as schedule_module
from costmodel.mesh.passes import pipeline_s, rank_slack_s
from costmodel.mesh.plan import SCHEDULES, MeshBatch, MeshPlan
from costmodel.mesh.schedule import ChunkRuns, in_flight, least_in_flight, makespan_s, schedule_is_legal
from costmodel.schedules import (
    PIPELINE_SCHEDULES,
    VPP,
    Schedule,
    group_size,
    instruction_orders,
    ranks_of_chunks,
    schedule_of,
    together,
)
from costmodel.timeline import Timeline, TimelineInput, simulate

# Worst relative error against the timeline of schedules whose formula is a lower bound; the others are exact but for rounding.
EXACT, TOLERANCE = 1e-12, {"interleaved": 0.01, "combined_1f1b": 0.01, "interleaved_zb": 0.01}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan: times of its runs of chunks; `send_s` is the part of them that is a transfer."""

    schedule: str
    pp: int
    vpp: int
    m: int
    count: tuple[int, ...]
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    weight_s: tuple[float, ...]

    def timeline(self) -> Timeline:
        def spread(values: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(np.repeat(values, self.count).tolist())

        return simulate(
            TimelineInput(
                schedule=self.schedule,
                pp=self.pp,
                vpp=self.vpp,
                num_micro_batches=self.m,
                forward_s=spread(self.forward_s),
                backward_s=spread(self.backward_s),
                weight_s=spread(self.weight_s),
            )
        )


def makespans(cases: list[Case]) -> FloatArray:
    """All in one batch, padded with empty runs."""
    width = max(len(case.count) for case in cases)

    def table(name: str) -> FloatArray:
        return np.array([list(getattr(case, name)) + [0] * (width - len(case.count)) for case in cases])

    def column(name: str) -> IntArray:
        return np.array([getattr(case, name) for case in cases])

    codes = np.array([SCHEDULES.index(case.schedule) for case in cases])
    runs = ChunkRuns(count=table("count"), forward_s=table("forward_s"), backward_s=table("backward_s"))
    return makespan_s(codes, column("m"), column("pp"), column("vpp"), runs, table("weight_s"))


def random_case(rng: np.random.Generator, schedule: str, most_pp: int = 10, most_m: int = 40) -> Case:
    """Uneven blocks per chunk (some recomputed), an embedding before, a head behind, transfers."""
    rules = schedule_of(schedule)
    pp = int(rng.integers(2 if rules.is_chunked else 1, most_pp + 1))
    vpp = rules.vpp or int(rng.integers(2, 5))
    m = max(int(rng.integers(1, most_m + 1)), rules.fewest * pp)
    if rules.in_groups and rng.random() < 0.5:
        m -= m % pp  # groups of pp, which have a formula
    chunks, runs = pp * vpp, int(rng.integers(1, 4))
    cuts = np.sort(rng.integers(0, chunks + 1, size=runs - 1))
    blocks = np.repeat(
        int(rng.integers(1, 7)) + rng.integers(0, 3, size=runs), np.diff([0, *cuts.tolist(), chunks])
    ).astype(float)
    recompute = np.repeat(rng.random(runs) < 0.3, np.diff([0, *cuts.tolist(), chunks]))
    block_f = rng.uniform(0.5, 2.0)
    block_b = block_f * rng.uniform(1.0, 3.0)
    blocks[0] += rng.uniform(0.0, 0.5)
    blocks[-1] += rng.uniform(0.2, 3.0)
    transfer = rng.uniform(0.0, 0.25) * block_f
    forward, backward = blocks * block_f, blocks * (block_b + recompute * block_f)
    weight = blocks * block_b * rng.uniform(0.3, 0.6)
    forward[1:] += transfer
    backward[:-1] += transfer
    rows = np.stack([forward, backward, weight])
    first = np.flatnonzero(np.r_[True, np.any(np.diff(rows, axis=1) != 0.0, axis=0)])
    return Case(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        m=m,
        count=tuple(np.diff([*first.tolist(), chunks]).tolist()),
        forward_s=tuple(forward[first].tolist()),
        backward_s=tuple(backward[first].tolist()),
        weight_s=tuple(weight[first].tolist()),
    )


def even(schedule: str, pp: int, m: int, vpp: int = 1) -> Case:
    """Forward 1 s, backward 2 s, of which 1 s for weight gradients."""
    return Case(
        schedule=schedule, pp=pp, vpp=vpp, m=m, count=(pp * vpp,), forward_s=(1.0,), backward_s=(2.0,), weight_s=(1.0,)
    )


@st.composite
def any_cases(draw: st.DrawFn) -> Case:
    """Anything, however unbalanced."""
    schedule = draw(st.sampled_from(SCHEDULES))
    rules = schedule_of(schedule)
    pp = draw(st.integers(2 if rules.is_chunked else 1, 7))
    vpp = rules.vpp or draw(st.integers(2, 3))
    least = max(rules.fewest * pp, 1)
    m = draw(st.integers(least, least + 11))
    left, count = pp * vpp, []
    while left:
        count.append(draw(st.integers(1, left)))
        left -= count[-1]
    backward = [draw(st.floats(0.1, 5.0)) for _ in count]
    return Case(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        m=m,
        count=tuple(count),
        forward_s=tuple(draw(st.floats(0.1, 5.0)) for _ in count),
        backward_s=tuple(backward),
        weight_s=tuple(b * draw(st.floats(0.0, 1.0)) for b in backward),
    )


@pytest.mark.exact
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_random_uneven_plans_agree_with_the_timeline(schedule: str) -> None:
    rng = np.random.default_rng(20240)
    cases = [random_case(rng, schedule) for _ in range(220)]
    cases += [random_case(rng, schedule, most_m=6) for _ in range(60)]  # fewer micro-batches than stages
    happened = np.array([case.timeline().makespan_s for case in cases])
    error = makespans(cases) / happened - 1.0
    assert np.abs(error).max() <= TOLERANCE.get(schedule, EXACT)
    assert error.max() <= 1e-12  # nothing is estimated too long
    assert np.mean(np.abs(error) < 1e-9) > 0.95


@given(any_cases())
def test_any_plan_agrees_with_the_timeline(case: Case) -> None:
    """Also with runs that differ by a factor of 50, where interleaved's paths may turn elsewhere: still a lower bound."""
    happened = case.timeline().makespan_s
    value = float(makespans([case])[0])
    assert value <= happened * (1 + 1e-12)
    assert value >= happened * (0.85 if case.schedule in TOLERANCE else 1 - 1e-12)


@pytest.mark.exact
def test_long_interleaved_steps_that_cycle_between_ranks() -> None:
    """40 groups, of which few are followed one by one; cycles over several ranks are slower than the slowest rank alone."""
    rng = np.random.default_rng(7)
    cases = [random_case(rng, "interleaved", most_pp=4, most_m=8) for _ in range(150)]
    rest = rng.integers(0, 4, len(cases)).tolist()
    cases = [
        Case(**{**{name: getattr(c, name) for name in c.__slots__}, "m": 40 * c.pp + r})
        for c, r in zip(cases, rest, strict=True)
    ]
    happened = np.array([case.timeline().makespan_s for case in cases])
    error = makespans(cases) / happened - 1.0
    assert np.abs(error).max() <= 0.01
    assert error.max() <= 1e-12
    slowest = []
    for case in cases:
        times = np.repeat(np.add(case.forward_s, case.backward_s), case.count).reshape(case.vpp, case.pp)
        slowest.append(case.m * times.sum(axis=0).max())
    assert np.any(happened > 1.05 * np.array(slowest))  # such plans are among them


def test_two_uneven_stages_by_hand() -> None:
    """Forward 1 and 2, backward 2 and 4, two micro-batches.

    GPipe: 1 + 2 x 2 forward, 2 x 4 + 2 backward. 1F1B: the second stage starts after 1, works 2 x 6, and the first ends 2 later.
    Zero bubble with half of each backward for weights: 1, then F 2, B 2, F 2, B 2 and both W of 2 each: 13 on the second
    stage; the first ends earlier.
    """
    cases = [
        Case(
            schedule=schedule,
            pp=2,
            vpp=1,
            m=2,
            count=(1, 1),
            forward_s=(1.0, 2.0),
            backward_s=(2.0, 4.0),
            weight_s=(1.0, 2.0),
        )
        for schedule in ("gpipe", "1f1b", "zero_bubble")
    ]
    assert makespans(cases).tolist() == [15.0, 15.0, 13.0]


@pytest.mark.parametrize(("pp", "m"), [(1, 5), (2, 2), (4, 1), (4, 4), (8, 64)])
def test_equal_stages_take_what_textbooks_say(pp: int, m: int) -> None:
    assert makespans([even("gpipe", pp, m), even("1f1b", pp, m)]).tolist() == [(m + pp - 1) * 3.0] * 2
    if m >= pp:  # Qi et al. 2024, table 2: (pp - 1) (F + B - W)
        assert makespans([even("zero_bubble", pp, m)])[0] == m * 3 + (pp - 1) * (1 + 1 - 1)
    if (
        pp > 1 and m >= pp
    ):  # Narayanan et al. 2021, section 2.2.2: (pp - 1) t of a chunk; other groups than of pp have no more
        for vpp in (2, 3, 8):
            cases = [even("interleaved", pp, m + more, vpp) for more in range(pp)]
            assert makespans(cases) == pytest.approx([(case.m * vpp + pp - 1) * 3 for case in cases], rel=1e-12)


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (4, 8), (4, 30), (6, 13), (16, 200)])
def test_bubbles_of_equal_chunks_are_the_published_ones(pp: int, m: int) -> None:
    """Chunks of F = B = W = 1 s.

    ZB-H2 and ZB-V have no bubble (Qi et al. 2024, table 2 and section 6): every rank works without a pause, and the last begins pp - 1
    forward passes after the first. DualPipeV has (PP / 2 - 1) (F&B + B - 3 W) with PP chunks and a whole B: 3 + 2 - 3
    (github.com/deepseek-ai/DualPipe, README).
    """
    for vpp in (2, 3) if m >= pp else ():  # (pp - 1) (F + B - W) of a chunk, as ZB-H1
        assert makespans([even("interleaved_zb", pp, m, vpp)]) == [3 * m * vpp + (pp - 1)]
    found = makespans([even("zb_h2", pp, m), even("zb_v", pp, m, 2), even("dualpipe_v", pp, max(m, 2 * pp), 2)])
    assert found.tolist() == [3 * m + (pp - 1), 6 * m + (pp - 1), 6 * max(m, 2 * pp) + (pp - 1) * (3 + 2 - 3)]


@pytest.mark.parametrize("schedule", PIPELINE_SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("pp", [2, 4, 6])
def test_bubble_and_memory_are_what_the_list_of_schedules_says(schedule: Schedule, pp: int) -> None:
    vpp, m = schedule.vpp or 3, 5 * pp
    names = {"pp": pp, "vpp": vpp, "m": m, "F": vpp * 1.0, "B": vpp * 2.0, "W": vpp * 1.0, "min": min}
    bubble, kept = (
        eval(re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", text), {}, names)  # noqa: S307 - formulas of the declaration
        for text in (schedule.bubble, schedule.kept)
    )
    happened = even(schedule.name, pp, m, vpp).timeline().makespan_s
    assert happened - m * 3.0 * vpp == pytest.approx(bubble)
    assert max(schedule.in_flight(*map(np.array, (m, pp, vpp, rank))) for rank in range(pp)) / vpp == pytest.approx(
        kept
    )


@pytest.mark.parametrize("pp", [4, 8])
@pytest.mark.parametrize("times", [(1.0, 2.0, 1.0), (1.0, 2.1, 0.95), (1.0, 2.0, 0.7), (1.0, 2.0, 1.2)])
def test_more_memory_makes_zero_bubble_no_slower(pp: int, times: tuple[float, float, float]) -> None:
    """ZB-H1 is an order that ZB-H2 has the memory for, whatever the number of micro-batches."""
    for m in range(1, 3 * pp):
        first, second = (
            replace(
                even(name, pp, m),
                **{key: (time,) for key, time in zip(("forward_s", "backward_s", "weight_s"), times, strict=True)},
            )
            for name in ("zero_bubble", "zb_h2")
        )
        assert second.timeline().makespan_s <= first.timeline().makespan_s * (1 + EXACT)


@pytest.mark.parametrize("schedule", ["zb_h2", "zb_v", "dualpipe_v"])
def test_long_steps_that_differ_by_a_factor_of_fifty(schedule: str) -> None:
    """Of whose micro-batches few are followed: as the timeline, all the same."""
    rng = np.random.default_rng(3)
    for _ in range(25):
        vpp = schedule_of(schedule).vpp
        pp = int(rng.integers(2, 4))
        times = rng.uniform(0.1, 5.0, (2, pp * vpp))
        case = Case(
            schedule=schedule,
            pp=pp,
            vpp=vpp,
            m=int(rng.integers(4 * pp + 3, 40)),
            count=(1,) * (pp * vpp),
            forward_s=tuple(times[0].tolist()),
            backward_s=tuple(times[1].tolist()),
            weight_s=tuple((times[1] * rng.uniform(0.0, 1.0, pp * vpp)).tolist()),
        )
        assert makespans([case])[0] == pytest.approx(case.timeline().makespan_s, rel=1e-12)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("schedule", "name", "vpp"),
    [
        ("zb_v", "ScheduleZBVZeroBubble", 2),
        ("dualpipe_v", "ScheduleDualPipeV", 2),
        *(("interleaved", "ScheduleInterleaved1F1B", vpp) for vpp in (2, 3)),
        *(("interleaved_zb", "ScheduleInterleavedZeroBubble", vpp) for vpp in (2, 3)),
    ],
)
def test_orders_are_those_of_pytorch(schedule: str, name: str, vpp: int) -> None:
    """Rank for rank what `torch.distributed.pipelining` makes: what runs together, and what is put off."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    rules = schedule_of(schedule)
    words = {"FORWARD": "F", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}
    words["FULL_BACKWARD"] = "BW" if rules.delays_weights else "B"
    for pp, m in itertools.product(range(1, 7), range(1, 20)):
        rounds = max(1, m // pp)
        if m < rules.fewest * pp or (rules.in_groups and m % rounds):
            continue
        whole = SimpleNamespace(
            pp_group_size=pp,
            _n_microbatches=m,
            num_stages=vpp * pp,
            n_local_stages=vpp,
            microbatches_per_round=m // rounds,
        )
        for rank, order in enumerate(instruction_orders(schedule, pp, vpp, m)):
            theirs = [
                [
                    (kind, part.stage_index, part.microbatch_index)
                    for part in parts
                    for kind in words[part.computation_type.name]
                ]
                for item in getattr(schedules, name)._calculate_single_rank_operations(whole, rank)
                if item is not None
                for parts in [item.sub_actions or (item,)]
            ]
            ours = [[(item.kind, item.chunk, item.micro_batch) for item in items] for items in together(order)]
            assert ours == theirs


@pytest.mark.parametrize(("pp", "m"), [(2, 4), (3, 9), (4, 8)])
def test_dualpipe_takes_as_long_as_dualpipe_v_on_half_the_ranks(pp: int, m: int) -> None:
    """Of 2 pp ranks, rank r has stages r and 2 pp - 1 - r; m micro-batches enter at either end, each through all stages in turn.

    The lower half of the ranks runs what the upper half does, for micro-batches of the other direction (github.com/deepseek-ai/DualPipe,
    dualpipe/dualpipe.py). Run here with nothing but what waits for what.
    """
    rng = np.random.default_rng(pp)
    times = {kind: rng.uniform(0.5, 2.0, 2 * pp) for kind in "FBW"}
    todo = {}
    for rank, order in enumerate(instruction_orders("dualpipe_v", pp, 2, m)):
        for mirrored, place in ((0, rank), (1, 2 * pp - 1 - rank)):
            todo[place] = [
                [(i.kind, mirrored ^ int(i.chunk >= pp), i.chunk, i.micro_batch) for i in items]
                for items in together(order)
            ]
    end: dict[tuple[str, int, int, int], float] = {}
    free = dict.fromkeys(todo, 0.0)
    while any(todo.values()):
        for place, left in todo.items():
            while left:
                sources = [
                    (kind, way, stage + step, n)
                    for kind, way, stage, n in left[0]
                    if (step := {"F": -1, "B": 1, "W": 2 * pp}[kind]) + stage in range(2 * pp)
                ]
                if any(source not in end and source not in left[0] for source in sources):
                    break
                items = left.pop(0)
                begin = max([free[place], *(end[source] for source in sources if source not in items)])
                free[place] = begin + sum(times[kind][stage] for kind, _, stage, _ in items)
                end |= dict.fromkeys(items, free[place])
    assert len(end) == 2 * 3 * 2 * pp * m  # directions, kinds, stages, micro-batches
    case = Case(
        schedule="dualpipe_v",
        pp=pp,
        vpp=2,
        m=m,
        count=(1,) * (2 * pp),
        forward_s=tuple(times["F"].tolist()),
        backward_s=tuple((times["B"] + times["W"]).tolist()),
        weight_s=tuple(times["W"].tolist()),
    )
    assert makespans([case])[0] == pytest.approx(max(end.values()), rel=1e-12)


@given(any_cases())
def test_one_stage_only_works(case: Case) -> None:
    assume(not schedule_of(case.schedule).is_chunked)
    one = Case(
        schedule=case.schedule,
        pp=1,
        vpp=1,
        m=case.m,
        count=(1,),
        forward_s=case.forward_s[:1],
        backward_s=case.backward_s[:1],
        weight_s=case.weight_s[:1],
    )
    assert makespans([one])[0] == pytest.approx(case.m * (case.forward_s[0] + case.backward_s[0]), rel=1e-12)


@given(any_cases(), st.sampled_from(["forward_s", "backward_s", "weight_s"]), st.integers(0, 20), st.floats(1.0, 2.0))
def test_longer_times_never_make_a_step_shorter(case: Case, name: str, which: int, factor: float) -> None:
    fields = {item: getattr(case, item) for item in case.__slots__}
    q = which % len(case.count)
    longer = [t * factor if i == q else t for i, t in enumerate(fields[name])]
    if name == "weight_s":  # with its backward: the input gradient stays
        added = fields["weight_s"][q] * (factor - 1)
        fields["backward_s"] = tuple(b + added * (i == q) for i, b in enumerate(fields["backward_s"]))
    before, after = makespans([case, Case(**(fields | {name: tuple(longer)}))])
    assert after >= before * (1 - 1e-9)


@given(any_cases())
def test_more_micro_batches_never_make_a_step_shorter(case: Case) -> None:
    fields = {item: getattr(case, item) for item in case.__slots__}
    # Groups of another size may turn elsewhere.
    more = case.m + int(group_size(case.m, case.pp)) if schedule_of(case.schedule).in_groups else case.m + 1
    before, after = makespans([case, Case(**(fields | {"m": more}))])
    of_chunks = np.repeat(np.add(case.forward_s, case.backward_s), case.count)
    busiest = np.bincount(ranks_of_chunks(case.schedule, case.pp, case.vpp), weights=of_chunks).max()
    assert after >= before * (1 - 1e-9)
    assert before >= case.m * busiest * (1 - 1e-12)  # the busiest rank has to do its work


def test_batches_may_mix_schedules_and_hold_empty_runs() -> None:
    rng = np.random.default_rng(5)
    cases = [random_case(rng, SCHEDULES[i % len(SCHEDULES)]) for i in range(40)]
    alone = [float(makespans([case])[0]) for case in cases]
    np.testing.assert_allclose(makespans(cases), alone, rtol=1e-12)
    holes = [
        Case(
            schedule=c.schedule,
            pp=c.pp,
            vpp=c.vpp,
            m=c.m,
            count=tuple(x for n in c.count for x in (0, n)),
            forward_s=tuple(x for t in c.forward_s for x in (99.0, t)),
            backward_s=tuple(x for t in c.backward_s for x in (99.0, t)),
            weight_s=tuple(x for t in c.weight_s for x in (9.0, t)),
        )
        for c in cases
    ]
    np.testing.assert_allclose(makespans(holes), alone, rtol=1e-12)


def test_many_plans_are_many_single_plans() -> None:
    """More plans than the formulas handle at a time."""
    rng = np.random.default_rng(6)
    cases = [random_case(rng, schedule) for schedule in SCHEDULES for _ in range(10)]
    np.testing.assert_array_equal(makespans(cases * 250), np.tile(makespans(cases), 250))


@pytest.mark.parametrize("m", [8, 40])
def test_interleaved_layouts_that_differ_by_a_block_are_many_single_plans(m: int) -> None:
    """Whose runs of chunks differ, so that few have the same, and other numbers of plans have the same events."""
    rng = np.random.default_rng(7)
    cases = []
    for _ in range(120):
        first, last = np.sort(rng.choice(np.arange(1, 16), 2, replace=False)).tolist()
        times = [tuple(rng.uniform(0.5, 2.0, 3).tolist()) for _ in range(3)]
        cases.append(
            Case(
                schedule="interleaved",
                pp=8,
                vpp=2,
                m=m,
                count=(first, last - first, 16 - last),
                forward_s=times[0],
                backward_s=times[1],
                weight_s=times[2],
            )
        )
    alone = [float(makespans([case])[0]) for case in cases]
    assert len(set(alone)) == len(cases)
    np.testing.assert_array_equal(makespans(cases), alone)


def test_illegal_schedules_take_for_ever() -> None:
    cases = [even("interleaved", 4, 3, 2), even("1f1b", 2, 4, 2), even("interleaved", 1, 4, 2), even("1f1b", 2, 4)]
    assert np.isinf(makespans(cases)).tolist() == [True, True, True, False]
    codes, m, pp, vpp = (np.array(x) for x in ([2, 1, 2, 1, 2], [3, 4, 4, 4, 9], [4, 2, 1, 2, 4], [2, 2, 2, 1, 2]))
    assert schedule_is_legal(codes, m, pp, vpp).tolist() == [False, False, False, True, True]


def test_zero_bubble_needs_weight_times() -> None:
    one = np.array([1])
    runs = ChunkRuns(count=one[:, None], forward_s=np.ones((1, 1)), backward_s=np.ones((1, 1)))
    with pytest.raises(ValueError, match="weight_s"):
        makespan_s(np.array([SCHEDULES.index("zero_bubble")]), one, one, one, runs)


def peaks(schedule: str, pp: int, m: int, vpp: int, last_use: str) -> tuple[int, ...]:
    """Most activations alive at once on every rank, from their forward until the instruction that uses them last."""
    steps = [
        [(i.kind == "F") - (i.kind == last_use) for i in order] for order in instruction_orders(schedule, pp, vpp, m)
    ]
    return tuple(int(np.cumsum(order).max()) for order in steps)


@pytest.mark.parametrize(
    ("schedule", "pp", "m", "vpp", "last_use", "found"),
    [
        ("gpipe", 3, 5, 1, "B", (5, 5, 5)),
        ("1f1b", 3, 5, 1, "B", (3, 2, 1)),
        ("1f1b", 3, 2, 1, "B", (2, 2, 1)),
        ("zero_bubble", 3, 5, 1, "W", (3, 3, 3)),
        ("zero_bubble", 3, 5, 1, "B", (3, 2, 1)),
        ("interleaved", 2, 4, 2, "B", (5, 3)),
        ("combined_1f1b", 2, 4, 2, "B", (6, 4)),
        ("zb_h2", 3, 9, 1, "W", (5, 5, 5)),
        ("interleaved_zb", 3, 9, 2, "W", (6, 6, 6)),
        ("zb_v", 3, 9, 2, "W", (6, 6, 6)),
        ("dualpipe_v", 3, 9, 2, "W", (7, 7, 7)),
    ],
)
def test_peak_activations_by_hand(
    schedule: str, pp: int, m: int, vpp: int, last_use: str, found: tuple[int, ...]
) -> None:
    assert peaks(schedule, pp, m, vpp, last_use) == found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_activations_in_flight_are_the_peaks_of_the_timeline(schedule: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        case = random_case(rng, schedule, most_m=20)
        positions = np.arange(case.pp)
        code = np.full(case.pp, SCHEDULES.index(schedule))
        m, pp, vpp = (np.full(case.pp, value) for value in (case.m, case.pp, case.vpp))
        held = in_flight(code, m, pp, vpp, positions)
        assert tuple(held.tolist()) == peaks(
            schedule, case.pp, case.m, case.vpp, "W" if schedule_of(schedule).delays_weights else "B"
        )
        # ZB-H1 runs weight gradients of rank i up to i micro-batches late (Qi et al. 2024, arXiv:2401.10241, section 2.3), ZB-H2 up to 2 i.
        late = {"zero_bubble": positions, "interleaved_zb": positions, "zb_h2": 2 * positions}.get(
            schedule, 0 * positions
        )
        whole = held - late if np.all(held < case.m * case.vpp) else peaks(schedule, case.pp, case.m, case.vpp, "B")
        assert tuple(whole) == peaks(schedule, case.pp, case.m, case.vpp, "B")


def test_groups_are_the_smallest_that_megatron_takes() -> None:
    """Its check, and the table of its comments: PP2 N3M5 with VP2 (megatron/core/pipeline_parallel/schedules.py)."""
    for pp, m in itertools.product(range(1, 9), range(1, 90)):
        taken = [n for n in range(pp, m + 1) if m % n == 0 or m % n >= pp]
        assert group_size(m, pp) == (taken[0] if taken else pp)
    forwards = [item for item in instruction_orders("interleaved", 2, 2, 5, 3)[0] if item.kind == "F"]
    assert [item.micro_batch for item in forwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [item.chunk // 2 for item in forwards] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_activations_in_flight_grow_with_micro_batches_and_rise_or_fall_along_the_ranks(schedule: str) -> None:
    """What bounds of the memory take for granted of every schedule, of those in groups with as many whole groups of pp."""
    code = SCHEDULES.index(schedule)
    for pp, vpp in itertools.product(
        range(2, 12), [schedule_of(schedule).vpp] if schedule_of(schedule).vpp else [2, 3, 7]
    ):
        rank, m = (x.ravel() for x in np.mgrid[0:pp, 1:80])
        same = np.ones_like(m)
        held, least = (
            in_flight(which * same, m, pp * same, vpp * same, rank).reshape(pp, -1)
            for which in (code, least_in_flight()[code])
        )
        if schedule_of(schedule).in_groups:
            most = np.minimum.accumulate(held[:, ::-1], axis=1)[:, ::-1]  # the least of so many micro-batches or more
            whole = m[:79] // pp * pp
            assert np.all(held[:, whole[pp - 1 :] - 1] <= most[:, pp - 1 :])
        else:
            assert np.all(np.diff(held, axis=1) >= 0)
        along = np.diff(held, axis=0)
        assert np.all(np.all(along >= 0, axis=0) | np.all(along <= 0, axis=0))
        assert np.all(least <= held)


def test_no_schedule_stands_for_one_that_keeps_less_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks per rank in a V keep less than interleaved ones on the first rank, and more on the last: both are tried."""
    v_shaped = Schedule(
        name="v",
        order=schedule_of("interleaved").order,
        in_flight=lambda m, pp, vpp, rank: np.minimum(np.minimum(2 * m, 2 * pp), m + rank + 1),
        vpp=2,
    )
    known = least_in_flight()
    monkeypatch.setattr(schedule_module, "PIPELINE_SCHEDULES", (*PIPELINE_SCHEDULES, v_shaped))
    monkeypatch.setattr(schedule_module, "VPP", np.array([*VPP, 2]))
    assert least_in_flight.__wrapped__() == (*known, len(PIPELINE_SCHEDULES))


# --- How long ranks are done before the first one, against the event-by-event timeline ----------------------------------------------------


def last_s(case: TimelineInput) -> list[float]:
    """End of the last pass of every rank."""
    spans = simulate(case).spans
    return [
        max(span.start_s + span.duration_s for span in spans if span.rank == rank and span.stream == "compute")
        for rank in range(case.pp)
    ]


def random_ranks(rng: random.Random, schedule: str, *, equal: bool) -> tuple[TimelineInput, np.ndarray, np.ndarray]:
    rules = schedule_of(schedule)
    pp, vpp = rng.randint(2 if rules.is_chunked else 1, 5), rules.vpp or 2
    m, chunks = rng.randint(max(rules.fewest * pp, 1), 9), pp * vpp
    weight = [rng.uniform(0.5, 2.0) for _ in range(chunks)] if not equal else [1.0] * chunks
    backward = [w + (1.0 if equal else rng.uniform(0.5, 2.0)) for w in weight]
    case = TimelineInput(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        num_micro_batches=m,
        forward_s=tuple(1.0 if equal else rng.uniform(0.5, 2.0) for _ in range(chunks)),
        backward_s=tuple(backward),
        weight_s=tuple(weight) if rules.delays_weights else (),
    )
    return case, np.array([backward]), np.array([weight])


def slack_of(case: TimelineInput, backward: np.ndarray, weight: np.ndarray) -> np.ndarray:
    ranks = np.arange(case.pp)[None, :]
    schedule, m = np.array([SCHEDULES.index(case.schedule)]), np.array([case.num_micro_batches])
    return rank_slack_s(schedule, m, ranks, ranks, np.ones_like(backward, dtype=int), backward, weight)[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weight_gradients_trail_where_it_is_declared(schedule: str) -> None:
    rules = schedule_of(schedule)
    for pp, m in itertools.product(range(1, 6), range(1, 9)) if rules.trails else ():
        if m < rules.fewest * pp:
            continue
        for rank, order in enumerate(instruction_orders(schedule, pp, rules.vpp or 2, m)):
            kinds = "".join(item.kind for item in order)
            more = (rules.trails - 1) * min(rank, max(m - pp, 0))
            assert kinds.rpartition("B")[2] == "W" * min(rank + more + 1, m)
            assert {item.chunk for item in order[kinds.rindex("B") :]} == {rank}


def test_nothing_is_known_of_chunks_whose_weight_gradients_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of a schedule with several chunks per rank that delays weight gradients without saying how: all work of a rank, no slack."""
    code = SCHEDULES.index("interleaved")
    monkeypatch.setattr(passes, "DELAYS_WEIGHTS", np.arange(len(SCHEDULES)) == code)
    one, ranks = np.ones((1, 4)), np.arange(2)[None, :]
    slack = rank_slack_s(np.array([code]), np.array([4]), ranks, ranks, one.astype(int), 2 * one, one)
    assert slack.tolist() == [[0.0, 0.0]]
    runs = ChunkRuns(count=one.astype(np.int64), forward_s=one, backward_s=2 * one)
    plan = MeshPlan(pp=2, vpp=2, num_micro_batches=4, schedule="interleaved")
    bound = pipeline_s(MeshBatch.from_plans([plan]), ranks, runs, one, np.full((1, 2), 6.0), exact=False)
    assert bound == pytest.approx([1.0 + 4 * 6.0])  # the second rank waits for one forward pass


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble", "zb_h2", "interleaved_zb"])
def test_ranks_are_done_at_least_so_long_before_the_pipeline(schedule: str) -> None:
    rng = random.Random(schedule)
    exact = 0
    for _ in range(300):
        case, backward, weight = random_ranks(rng, schedule, equal=False)
        ends = np.array(last_s(case))
        early = ends.max() - ends - slack_of(case, backward, weight)
        assert early.min() >= -1e-9
        exact += int(early.max() <= 1e-9)
    assert exact > (5 if schedule_of(schedule).is_chunked else 50)


def test_equal_ranks_of_a_zero_bubble_schedule_are_done_at_once() -> None:
    rng = random.Random(0)
    for _ in range(30):
        case, backward, weight = random_ranks(rng, "zero_bubble", equal=True)
        ends = np.array(last_s(case))
        assert ends.max() - ends == pytest.approx(slack_of(case, backward, weight))


def test_a_kind_of_rank_is_as_late_as_its_latest() -> None:
    """Runs of equal ranks, and kinds that other kinds interrupt: never more than the least of what the ranks have alone."""
    rng = random.Random(1)
    for _ in range(200):
        lengths = [rng.randint(1, 3) for _ in range(rng.randint(1, 4))]
        kinds = [rng.randrange(2) for _ in lengths]
        times = [(rng.uniform(1, 2), rng.uniform(0.2, 1)) for _ in range(2)]
        of_rank = [kind for kind, length in zip(kinds, lengths, strict=True) for _ in range(length)]
        pp, present = len(of_rank), sorted(set(of_rank))
        name = rng.choice(["zero_bubble", "zb_h2"])
        schedule, m = np.array([SCHEDULES.index(name)]), np.array([rng.randint(1, 8)])
        single = np.arange(pp)[None, :]
        table = np.array(times)[of_rank].T
        alone = rank_slack_s(schedule, m, single, single, np.ones_like(single), table[:1], table[1:])[0]
        first = np.array([[of_rank.index(kind) for kind in present]])
        last = np.array([[pp - 1 - of_rank[::-1].index(kind) for kind in present]])
        runs = np.array(times)[kinds].T
        found = rank_slack_s(schedule, m, first, last, np.array([lengths]), runs[:1], runs[1:])[0]
        least = [min(alone[r] for r in range(pp) if of_rank[r] == kind) for kind in present]
        assert np.all(found <= np.array(least) + 1e-9)
        if len(set(kinds)) == len(kinds):
            assert found == pytest.approx(np.array(least))

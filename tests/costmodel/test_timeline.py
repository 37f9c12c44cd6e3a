"""The timeline: work done once, nothing at the same time on a stream, orders and small cases checked by hand."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.schedules import SCHEDULES, chunks_of_ranks, instruction_orders, ranks_of_chunks, schedule_of
from costmodel.timeline import STREAMS, Span, Timeline, TimelineInput, simulate


@st.composite
def cases(draw: st.DrawFn, schedule: str | None = None) -> TimelineInput:
    name = schedule or draw(st.sampled_from(SCHEDULES))
    rules = schedule_of(name)
    pp = draw(st.integers(2 if rules.is_chunked else 1, 5))
    vpp = rules.vpp or draw(st.integers(2, 3))
    m = draw(st.integers(max(rules.fewest * pp, 1), 3 * pp if rules.in_groups else 9 + rules.fewest * pp))
    chunks = pp * vpp

    def times(count: int, least: float = 0.0) -> tuple[float, ...]:
        return tuple(draw(st.lists(st.floats(least, 5.0), min_size=count, max_size=count)))

    def sends() -> tuple[float, ...]:
        ranks = ranks_of_chunks(name, pp, vpp)
        return tuple(t * bool(a != b) for t, a, b in zip(times(chunks - 1), ranks, ranks[1:], strict=False))

    backward = times(chunks, 0.1)
    share = draw(st.floats(0.0, 1.0))
    return TimelineInput(
        schedule=name,
        pp=pp,
        vpp=vpp,
        num_micro_batches=m,
        forward_s=times(chunks, 0.1),
        backward_s=backward,
        weight_s=tuple(share * b for b in backward),
        send_forward_s=sends(),
        send_backward_s=sends(),
        exchange_s=times(pp),
        optimizer_s=times(pp),
    )


def compute(timeline: Timeline) -> list[Span]:
    return [span for span in timeline.spans if span.stream == "compute"]


def even(schedule: str, pp: int, m: int, vpp: int = 1) -> TimelineInput:
    """Forward 1 s, input gradient 1 s, weight gradient 1 s per chunk."""
    chunks = pp * vpp
    return TimelineInput(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        num_micro_batches=m,
        forward_s=(1.0,) * chunks,
        backward_s=(2.0,) * chunks,
        weight_s=(1.0,) * chunks,
    )


@given(cases())
def test_streams_do_one_thing_at_a_time(case: TimelineInput) -> None:
    timeline = simulate(case)
    assert {span.stream for span in timeline.spans} <= set(STREAMS)
    for rank in range(case.pp):
        for stream in STREAMS:
            spans = sorted(
                (span for span in timeline.spans if (span.rank, span.stream) == (rank, stream)), key=lambda s: s.start_s
            )
            for a, b in pairwise(spans):
                assert a.start_s + a.duration_s <= b.start_s + 1e-9, (a, b)


@given(cases())
def test_all_work_is_there_exactly_once(case: TimelineInput) -> None:
    timeline = simulate(case)
    split = schedule_of(case.schedule).delays_weights
    chunks, micro_batches = range(case.pp * case.vpp), range(case.num_micro_batches)
    expected = Counter(f"{k} c{c} m{i}" for k in ("FBW" if split else "FB") for c in chunks for i in micro_batches)
    assert Counter(span.name for span in compute(timeline)) == expected
    for rank in range(case.pp):
        own = chunks_of_ranks(case.schedule, case.pp, case.vpp)[rank]
        work = case.num_micro_batches * sum(case.forward_s[c] + case.backward_s[c] for c in own)
        assert sum(span.duration_s for span in compute(timeline) if span.rank == rank) == pytest.approx(work)
    moved = case.num_micro_batches * (sum(case.send_forward_s) + sum(case.send_backward_s))
    for streams in (("receive",), ("send_forward", "send_backward")):
        total = sum(span.duration_s for span in timeline.spans if span.stream in streams)
        assert total == pytest.approx(moved)


@given(cases())
def test_nothing_starts_before_what_it_needs(case: TimelineInput) -> None:
    timeline = simulate(case)
    spans = {span.name: span for span in compute(timeline)}

    def end(name: str) -> float:
        return spans[name].start_s + spans[name].duration_s

    last = case.pp * case.vpp - 1
    for i in range(case.num_micro_batches):
        for c in range(last + 1):
            assert spans[f"B c{c} m{i}"].start_s >= end(f"F c{c} m{i}") - 1e-9
            if schedule_of(case.schedule).delays_weights:
                assert spans[f"W c{c} m{i}"].start_s >= end(f"B c{c} m{i}") - 1e-9
            if c < last:
                assert spans[f"F c{c + 1} m{i}"].start_s >= end(f"F c{c} m{i}") + case.send_forward_s[c] - 1e-9
                assert spans[f"B c{c} m{i}"].start_s >= end(f"B c{c + 1} m{i}") + case.send_backward_s[c] - 1e-9


def test_gpipe_by_hand() -> None:
    """Two stages, forward 1 and 3, backward 2 and 4, two micro-batches: 1 + 2 x 3 forward, 2 x 4 + 2 backward."""
    case = TimelineInput(schedule="gpipe", pp=2, num_micro_batches=2, forward_s=(1.0, 3.0), backward_s=(2.0, 4.0))
    starts = {span.name: span.start_s for span in compute(simulate(case))}
    assert starts == {
        "F c0 m0": 0.0,
        "F c0 m1": 1.0,
        "F c1 m0": 1.0,
        "F c1 m1": 4.0,
        "B c1 m1": 7.0,
        "B c1 m0": 11.0,
        "B c0 m1": 11.0,
        "B c0 m0": 15.0,
    }
    assert simulate(case).makespan_s == 17.0


def test_the_receiver_waits_for_a_transfer() -> None:
    """One micro-batch over two stages: F 1, transfer 2, F 1, B 1, transfer 3, B 1; then 4 for the exchange and 5 for the update."""
    case = TimelineInput(
        schedule="1f1b",
        pp=2,
        num_micro_batches=1,
        forward_s=(1.0, 1.0),
        backward_s=(1.0, 1.0),
        send_forward_s=(2.0,),
        send_backward_s=(3.0,),
        exchange_s=(4.0, 0.0),
        optimizer_s=(5.0, 0.0),
    )
    timeline = simulate(case)
    assert timeline.makespan_s == 9.0
    assert timeline.step_s == 18.0
    received = [(span.rank, span.start_s, span.duration_s) for span in timeline.spans if span.stream == "receive"]
    sent = [(span.rank, span.stream, span.start_s) for span in timeline.spans if span.stream.startswith("send")]
    assert received == [(1, 1.0, 2.0), (0, 5.0, 3.0)]
    assert sent == [(0, "send_forward", 1.0), (1, "send_backward", 5.0)]


@pytest.mark.parametrize(
    ("schedule", "rank", "pp", "vpp", "m", "order"),
    [
        # PipeDream-Flush, arXiv:2104.04473, figure 4 top: second of four devices.
        ("1f1b", 1, 4, 1, 5, "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4"),
        # Its interleaved form for two devices with two chunks: warm-up of 2 (pp - 1 - rank) + (vpp - 1) pp forwards.
        ("interleaved", 0, 2, 2, 4, "F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0 F1.3 B0.1 B1.2 B1.3 B0.2 B0.3"),
        ("interleaved", 1, 2, 2, 2, "F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 B0.0 B0.1"),
        # ZB-H1, arXiv:2401.10241, figure 2 top: first and last of four devices.
        ("zero_bubble", 0, 4, 1, 5, "F0 F1 F2 F3 B0 W0 F4 B1 W1 B2 W2 B3 W3 B4 W4"),
        ("zero_bubble", 3, 4, 1, 5, "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 W2 W3 W4"),
    ],
)
def test_orders_of_the_publications(schedule: str, rank: int, pp: int, vpp: int, m: int, order: str) -> None:
    assert order == " ".join(
        f"{i.kind}{i.micro_batch}" if vpp == 1 else f"{i.kind}{i.chunk // pp}.{i.micro_batch}"
        for i in instruction_orders(schedule, pp, vpp, m)[rank]
    )


@pytest.mark.parametrize(("pp", "m"), [(1, 3), (2, 2), (4, 4), (4, 12), (8, 32)])
def test_textbook_step_times(pp: int, m: int) -> None:
    """Bubbles of arXiv:2104.04473 (pp - 1) t, of its interleaved form (pp - 1) t / vpp and of ZB-H1 (pp - 1) (F + B - W)."""
    assert simulate(even("gpipe", pp, m)).makespan_s == (m + pp - 1) * 3
    assert simulate(even("1f1b", pp, m)).makespan_s == (m + pp - 1) * 3
    assert simulate(even("zero_bubble", pp, m)).makespan_s == m * 3 + (pp - 1) * (1 + 1 - 1)
    if pp > 1:
        for vpp in (2, 4):
            assert simulate(even("interleaved", pp, m, vpp)).makespan_s == (m * vpp + pp - 1) * 3

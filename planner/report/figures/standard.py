"""The standard figures of an answer: where time and memory go, plans between their costs, scaling, the timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from costmodel.timeline import Tracks
from costmodel.tolerances import EQUAL
from planner.core.answer import Curve
from planner.core.numbers import (
    Unit,
    byte_text,
    byte_unit,
    duration_text,
    energy_text,
    percent,
    significant,
    time_unit,
)
from planner.report.figures.kinds import Bars, Dot, Interval, Line, Lines, Points, Series, Swim, SwimSpan
from planner.report.figures.views import AnswerView, PlanView

__all__ = ["FIGURES", "breakdown", "front", "memory", "pareto", "scaling", "timeline"]

# Names of --figure, and what they show.
FIGURES: dict[str, str] = {
    "breakdown": "what the step of each plan is made of, with error bars",
    "memory": "what fills the memory of each plan",
    "pareto": "plans between step time, memory, GPUs, money and energy",
    "scaling": "throughput over GPUs, strong and weak",
    "timeline": "what every rank of the best plan does when",
}
# More spans than these make a picture heavy and show nothing more.
_MOST_SPANS = 2500
# Share of the step for which the streams of a kind must be busy to be in the picture.
_LEAST_BUSY = 0.002


def breakdown(view: AnswerView) -> Bars:
    """Stacked parts of the step."""
    plans = view.shown
    unit = time_unit(min(plan.step_time_s for plan in plans))
    words = [word for word, _ in plans[0].time_parts]
    series = tuple(
        _series(
            word,
            [dict(plan.time_parts).get(word, 0.0) for plan in plans],
            plans,
            unit,
            lambda p: p.step_time_s,
            duration_text,
        )
        for word in words
    )
    intervals = tuple(
        None
        if plan.low_s is None or plan.high_s is None
        else Interval(low=plan.low_s / unit.size, high=plan.high_s / unit.size)
        for plan in plans
    )
    known = any(interval is not None for interval in intervals)
    tail = "; the whisker holds 80 % of measurements" if known else ""
    return Bars(
        name="breakdown",
        caption=f"What the step of each plan is made of{tail}.",
        axis=f"step time ({unit.name})",
        rows=tuple(_row(plan) for plan in plans),
        series=tuple(item for item in series if any(item.values)),
        intervals=intervals if known else (),
    )


def memory(view: AnswerView) -> Bars:
    """Stacked parts of the memory of the fullest device."""
    plans = view.shown
    capacity = max(plan.memory_capacity_bytes for plan in plans)
    unit = byte_unit(max(plan.memory_bytes for plan in plans))
    words = list(dict.fromkeys(word for plan in plans for word, _ in plan.memory_parts))
    columns: list[tuple[str, list[float]]] = [
        (word, [dict(plan.memory_parts).get(word, 0.0) for plan in plans]) for word in words
    ]
    whole = [0.0 if plan.memory_parts else plan.memory_bytes for plan in plans]
    if any(whole):
        columns.append(("all of it", whole))
    series = tuple(_series(word, values, plans, unit, lambda p: p.memory_bytes, byte_text) for word, values in columns)
    least = min(plan.memory_capacity_bytes for plan in plans)
    # A limit that is far away would press the bars to the left; of several kinds of GPUs there is more than one.
    near = least == capacity < 4.0 * max(plan.memory_bytes for plan in plans)
    if least < capacity:
        about = ", of the kind that is fullest for its size"
    else:
        about = f"; the dashed line is its capacity, {byte_text(capacity)}" if near else f", of {byte_text(capacity)}"
    return Bars(
        name="memory",
        caption=f"What fills the memory of the fullest GPU of each plan{about}.",
        axis=f"memory per GPU ({unit.name})",
        rows=tuple(
            _row(plan) if least == capacity else f"{plan.label} (a GPU of {byte_text(plan.memory_capacity_bytes)})"
            for plan in plans
        ),
        series=tuple(item for item in series if any(item.values)),
        limit=capacity / unit.size if near else None,
        limit_name=f"capacity: {byte_text(capacity)}",
    )


def _row(plan: PlanView) -> str:
    return f"{plan.label} ({plan.workers} GPU{'s' if plan.workers != 1 else ''})"


def _series(
    word: str,
    values: Sequence[float],
    plans: Sequence[PlanView],
    unit: Unit,
    total: Callable[[PlanView], float],
    text: Callable[[float], str],
) -> Series:
    titles = tuple(
        f"{plan.label}: {word} {text(value)}, {percent(value / total(plan))} of {text(total(plan))}\n{plan.summary}"
        for value, plan in zip(values, plans, strict=True)
    )
    return Series(name=word, values=tuple(value / unit.size for value in values), titles=titles)


# -- plans between their costs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Axis:
    """Something that plans cost: its title with the unit, and how to get it in that unit."""

    title: str
    value: Callable[[PlanView], float | None]
    is_log: bool = False


def front(points: Sequence[Sequence[float]]) -> list[bool]:
    """Which points no other is at least as good as on every axis and better on one; of equal points all.

    >>> front([(1, 3), (2, 2), (3, 3), (2, 2)])
    [True, True, False, True]
    """
    return [
        not any(
            all(b <= a for a, b in zip(mine, other, strict=True))
            and any(b < a for a, b in zip(mine, other, strict=True))
            for other in points
        )
        for mine in points
    ]


def pareto(plans: Sequence[PlanView]) -> list[Points]:
    """Step time against everything else that plans cost and that is known of all of them; axes on which all are equal are left out."""
    if len(plans) < 2:
        return []
    unit = time_unit(min(plan.step_time_s for plan in plans))
    time = _Axis(f"step time ({unit.name})", lambda p: p.step_time_s / unit.size, is_log=True)
    size = byte_unit(max(plan.memory_bytes for plan in plans))
    joules = 1e6 if max(plan.energy_j_per_step or 0.0 for plan in plans) >= 1e6 else 1e3
    others = {
        "memory": _Axis(f"memory per GPU ({size.name})", lambda p: p.memory_bytes / size.size),
        "GPUs": _Axis("GPUs", lambda p: float(p.workers), is_log=True),
        "GPU time": _Axis("GPU-seconds per step", lambda p: p.gpu_s, is_log=True),
        "money": _Axis(
            "USD per 1000 steps", lambda p: None if p.usd_per_step is None else 1e3 * p.usd_per_step, is_log=True
        ),
        "energy": _Axis(
            f"energy per step ({'MJ' if joules == 1e6 else 'kJ'})",
            lambda p: None if p.energy_j_per_step is None else p.energy_j_per_step / joules,
            is_log=True,
        ),
    }
    if all(plan.usd_per_step is not None for plan in plans):
        del others["GPU time"]  # of one kind of GPU, the same picture
    result = []
    for name, axis in others.items():
        values = [axis.value(plan) for plan in plans]
        known = [value for value in values if value is not None]
        if len(known) == len(plans) and max(known) > min(known) * (1 + EQUAL):
            result.append(_points(f"pareto {name}", f"Step time against {name}", plans, (time, axis), known))
    return result


def _points(
    name: str, caption: str, plans: Sequence[PlanView], axes: tuple[_Axis, _Axis], ys: Sequence[float]
) -> Points:
    xs = [axes[0].value(plan) or 0.0 for plan in plans]
    on_front = front(list(zip(xs, ys, strict=True)))
    order = sorted(range(len(plans)), key=lambda n: plans[n].workers)
    dots = tuple(
        Dot(x=x, y=y, title=_plan_title(plan), group=_family_group(plan), on_front=best)
        for x, y, best, plan in ((xs[n], ys[n], on_front[n], plans[n]) for n in order)
    )
    return Points(
        name=name,
        caption=f"{caption}; the line joins plans that none beats on both.",
        x_axis=axes[0].title,
        y_axis=axes[1].title,
        dots=dots,
        log_x=_is_wide(xs),
        log_y=axes[1].is_log and _is_wide(ys),
    )


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > 4 * min(values)


def _family_group(plan: PlanView) -> str:
    return f"{plan.workers} GPU{'s' if plan.workers != 1 else ''}"


def _plan_title(plan: PlanView) -> str:
    lines = [
        plan.summary,
        f"{duration_text(plan.step_time_s)} per step on {plan.workers} GPUs, {byte_text(plan.memory_bytes)} per GPU",
    ]
    if plan.usd_per_step is not None:
        lines.append(f"{significant(1e3 * plan.usd_per_step)} USD per 1000 steps")
    if plan.energy_j_per_step is not None:
        lines.append(f"{energy_text(plan.energy_j_per_step)} per step")
    return "\n".join(lines)


# -- scaling ----------------------------------------------------------------------------------------------------------------------


def scaling(curves: Sequence[Curve]) -> list[Lines]:
    """Throughput over GPUs, strong curves and weak ones apart."""
    result = []
    for weak in (False, True):
        chosen = [curve for curve in curves if curve.weak is weak and curve.points]
        if not chosen:
            continue
        lines = []
        for curve in chosen:
            rates = [batch / step for _, batch, step, _ in curve.points]
            titles = tuple(
                f"{curve.name}, {gpus} GPUs, batch {batch:,}: {duration_text(step)} per step, {significant(batch / step)} samples/s"
                f"\n{words}"
                for gpus, batch, step, words in curve.points
            )
            lines.append(
                Line(name=curve.name, xs=tuple(float(p[0]) for p in curve.points), ys=tuple(rates), titles=titles)
            )
        first = max(lines, key=lambda line: line.ys[0] / line.xs[0])
        ends = (min(line.xs[0] for line in lines), max(line.xs[-1] for line in lines))
        ideal = first.ys[0] / first.xs[0]
        lines.append(Line(name="in proportion to the GPUs", xs=ends, ys=tuple(ideal * x for x in ends), reference=True))
        what = "Weak scaling: the batch grows with the GPUs" if weak else "Strong scaling: one global batch"
        result.append(
            Lines(
                name="scaling weak" if weak else "scaling strong",
                caption=f"{what}.",
                x_axis="GPUs at most",
                y_axis="samples per second",
                lines=tuple(lines),
                log_y=True,
            )
        )
    return result


# -- timeline ---------------------------------------------------------------------------------------------------------------------


def timeline(tracks: Tracks, summary: str) -> Swim:
    """What every stream of every rank does when.

    A trace has everything; a picture leaves out what is sent, which is what another rank receives, and streams that are hardly ever busy.
    """
    spans = [span for span in tracks.spans if span.depth == 0 and not span.stream.startswith("send")]
    busy = dict.fromkeys(tracks.streams, 0.0)
    for span in spans:
        busy[span.stream] += span.duration_s
    least = _LEAST_BUSY * tracks.end_s * len(tracks.names)
    spans = [span for span in spans if busy[span.stream] >= least or span.stream == "compute"]
    shown = spans[:_MOST_SPANS]
    end = tracks.end_s
    more = ""
    if len(shown) < len(spans):
        end = shown[-1].start_s
        more = f" The first {percent(end / tracks.end_s)} of the step."
    unit = time_unit(end)
    used = [
        (track, stream)
        for track in range(len(tracks.names))
        for stream in tracks.streams
        if any(span.track == track and span.stream == stream for span in shown)
    ]
    if len(used) > 24:  # many ranks: what they compute tells the story
        used = [(track, stream) for track, stream in used if stream == "compute"]
    lanes = {lane: n for n, lane in enumerate(used)}
    one = len(tracks.names) == 1
    names = tuple(stream if one else f"{_short(tracks.names[track])} {_stream(stream)}" for track, stream in used)
    return Swim(
        name="timeline",
        caption=f"One step of {summary}, by rank and stream.{more}",
        axis=f"time ({unit.name})",
        lanes=names,
        spans=tuple(
            SwimSpan(
                lane=lanes[span.track, span.stream],
                start=span.start_s / unit.size,
                end=min(span.end_s, end) / unit.size,
                kind=span.kind,
                title=f"{span.name}: {duration_text(span.duration_s)}, from {duration_text(span.start_s)}",
            )
            for span in shown
            if (span.track, span.stream) in lanes
        ),
        end=end / unit.size,
    )


def _short(name: str) -> str:
    return name.partition(" (")[0].partition(":")[0].replace("pipeline rank", "rank")


def _stream(stream: str) -> str:
    return stream.replace("_", " ")

"""The standard figures of an answer: where time and memory go, plans between their costs, scaling, the timeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from costmodel.timeline import Tracks
from costmodel.tolerances import EQUAL, ROUNDING
from planner.core.answer import Answer, AnswerSpace, Curve, Estimate, RankedPlan, Scaling
from planner.core.numbers import (
    Unit,
    byte_text,
    byte_unit,
    duration_text,
    percent,
    significant,
    time_unit,
)
from planner.core.objectives import StepCost, shown_costs, with_unit
from planner.report.figures.kinds import Box, Dot, Line, Plot, Rows
from planner.report.roles import numbered
from strategies.limits import Progress

# Names of --figure, and what they show.
FIGURES: dict[str, str] = {
    "breakdown": "what the step of each plan is made of, with error bars",
    "memory": "what fills the memory of each plan",
    "pareto": "plans between step time, memory, GPUs, money and energy; to serve, between the tokens/s of a user and of a GPU",
    "scaling": "throughput over GPUs, strong and weak",
    "timeline": "what every rank of the best plan does when",
}
# More spans than these make a picture heavy and show nothing more.
_MOST_SPANS = 800
# Numbers of GPUs on a scaling curve, halved from the most.
_COUNTS = 5
# A point that is higher than a line by this factor is seen above it.
_VISIBLE = 1.01
# Share of the step for which the streams of a kind must be busy to be in the picture.
_LEAST_BUSY = 0.002


def shown_plans(answer: Answer | Estimate) -> dict[str, RankedPlan]:
    """Plans of an answer by what each is shown for: those of its table as "#1", "#2", ..., then what they are compared with."""
    if isinstance(answer, Estimate):
        best = answer.best
        is_best = best is None or best.plan == answer.ranked.plan
        return {"this plan": answer.ranked} | ({} if is_best or best is None else {"the best": best})
    ranked = [plan.plan for plan in answer.plans]
    return {
        **{f"#{number}": plan for number, plan in numbered(answer).items()},
        **{
            label: plan
            for label, plan in answer.space.report.compared(answer)
            if plan is not None and plan.plan not in ranked
        },
    }


def breakdown(plans: Mapping[str, RankedPlan]) -> Rows:
    """Stacked parts of the step."""
    unit = time_unit(min(plan.step_time_s for plan in plans.values()))
    whiskers = tuple(
        (n, plan.step_time_low_s / unit.size, plan.step_time_high_s / unit.size)
        for n, plan in enumerate(plans.values())
        if plan.step_time_low_s is not None and plan.step_time_high_s is not None
    )
    tail = "; the whisker holds 80 % of measurements" if whiskers else ""
    return Rows(
        name="breakdown",
        caption=f"What the step of each plan is made of{tail}.",
        axis=f"step time ({unit.name})",
        rows=tuple(_row(label, plan) for label, plan in plans.items()),
        boxes=_stacked(plans, [_worded(plan, plan.main) for plan in plans.values()], unit, duration_text),
        whiskers=whiskers,
    )


def time_parts(name: str, caption: str, plans: Mapping[str, RankedPlan], figure: str) -> Rows:
    """Stacked parts of any time of the plans."""
    parts = [_worded(plan, figure) for plan in plans.values()]
    unit = time_unit(max(sum(part.values()) for part in parts))
    return Rows(
        name=name,
        caption=caption,
        axis=f"time ({unit.name})",
        rows=tuple(_row(label, plan) for label, plan in plans.items()),
        boxes=_stacked(plans, parts, unit, duration_text),
    )


def serving_times(plans: Mapping[str, RankedPlan]) -> list[Rows]:
    """What the time per token and that to the first one are made of."""
    return [
        time_parts("tpot", "What the time per token after the first is made of.", plans, "tpot_s"),
        time_parts("ttft", "What the time to the first token is made of.", plans, "ttft_s"),
    ]


def memory(plans: Mapping[str, RankedPlan], space: AnswerSpace) -> Rows:
    """Stacked parts of the memory of the fullest device."""
    capacities = [plan.memory_there_bytes for plan in plans.values()]
    least, capacity = min(capacities), max(capacities)
    most = max(plan.memory_bytes_per_gpu for plan in plans.values())
    unit = byte_unit(most)
    parts = [
        _worded(plan, "memory_bytes_per_gpu")
        or dict(space.memory_parts(plan.plan, plan.memory_bytes_per_gpu))
        or {"all of it": plan.memory_bytes_per_gpu}
        for plan in plans.values()
    ]
    # A limit that is far away would press the bars to the left; of several kinds of GPUs there is more than one.
    near = least == capacity < 4.0 * most
    if least < capacity:
        about = ", of the kind that is fullest for its size"
    else:
        about = f"; the dashed line is its capacity, {byte_text(capacity)}" if near else f", of {byte_text(capacity)}"
    return Rows(
        name="memory",
        caption=f"What fills the memory of the fullest GPU of each plan{about}.",
        axis=f"memory per GPU ({unit.name})",
        rows=tuple(
            _row(label, plan) if least == capacity else f"{label} (a GPU of {byte_text(plan.memory_there_bytes)})"
            for label, plan in plans.items()
        ),
        boxes=_stacked(plans, parts, unit, byte_text),
        limit=capacity / unit.size if near else None,
        limit_name=f"capacity: {byte_text(capacity)}",
    )


def _row(label: str, plan: RankedPlan) -> str:
    return f"{label} ({_gpus(plan)})"


def _gpus(plan: RankedPlan) -> str:
    return f"{plan.workers} GPU{'s' if plan.workers != 1 else ''}"


def _worded(plan: RankedPlan, total: str) -> dict[str, float]:
    """Parts of a figure of a plan by what people call them, without rounding errors; empty where it is known as a whole only."""
    parts = plan.labelled_parts(total)
    least = ROUNDING * sum(parts.values())
    return {word: value if value > least else 0.0 for word, value in parts.items()}


def _stacked(
    plans: Mapping[str, RankedPlan], parts: Sequence[Mapping[str, float]], unit: Unit, text: Callable[[float], str]
) -> tuple[Box, ...]:
    """Boxes one after the other, word by word; what is nothing has none."""
    boxes = []
    totals = [sum(part.values()) for part in parts]
    ends = [0.0] * len(parts)
    for word in dict.fromkeys(word for part in parts for word in part):
        for row, (label, plan) in enumerate(plans.items()):
            value = parts[row].get(word, 0.0)
            start, ends[row] = ends[row], ends[row] + value
            title = (
                f"{label}: {word} {text(value)}, {percent(value / totals[row])} of {text(totals[row])}\n{plan.summary}"
            )
            if value > 0:
                boxes.append(Box(row=row, start=start / unit.size, end=ends[row] / unit.size, kind=word, title=title))
    return tuple(boxes)


# -- plans between their costs ----------------------------------------------------------------------------------------------------


# Title with the unit, the value of each plan in it, and whether the axis may be logarithmic.
_Axis = tuple[str, Sequence[float | None], bool]


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


def pareto(plans: Sequence[RankedPlan]) -> list[Plot]:
    """Step time against everything else that plans cost and that is known of all of them; axes on which all are equal are left out."""
    if len(plans) < 2:
        return []
    plans = sorted(plans, key=lambda plan: plan.workers)
    unit = time_unit(min(plan.step_time_s for plan in plans))
    size = byte_unit(max(plan.memory_bytes_per_gpu for plan in plans))
    time: _Axis = (f"step time ({unit.name})", [p.step_time_s / unit.size for p in plans], True)
    others: dict[str, _Axis] = {
        "memory": (f"memory per GPU ({size.name})", [p.memory_bytes_per_gpu / size.size for p in plans], False),
        "GPUs": ("GPUs", [float(p.workers) for p in plans], True),
        "GPU time": ("GPU-seconds per step", [p.workers * p.step_time_s for p in plans], True),
        **{cost.name: _cost_axis(cost, plans) for cost in shown_costs()},
    }
    if None not in others["money"][1]:
        del others["GPU time"]  # of one kind of GPU, the same picture
    titles = [_plan_title(plan) for plan in plans]
    fronts = [
        _between(f"pareto {name}", f"Step time against {name}", plans, time, axis, titles)
        for name, axis in others.items()
    ]
    return [figure for figure in fronts if figure is not None]


def _cost_axis(cost: StepCost, plans: Sequence[RankedPlan]) -> _Axis:
    values = [cost.of(plan)[0] for plan in plans]
    words = cost.of(plans[0])[1]
    size, unit = 1.0, "" if cost.is_small else f" ({cost.unit})"
    if cost.unit == "J":
        size, unit = (1e6, " (MJ)") if max(value or 0.0 for value in values) >= 1e6 else (1e3, " (kJ)")
    shown = [None if value is None else value / size for value in values]
    return f"{cost.title} per {words}{unit}", shown, True


def serving_pareto(plans: Sequence[RankedPlan]) -> list[Plot]:
    """Tokens per second of a GPU against those that a user sees, and GPU time per token against the time to the first one."""
    plans = sorted(plans, key=lambda plan: plan.workers)
    rates = [float(plan["output_tokens_per_s_per_gpu"]) for plan in plans]
    firsts = [float(plan["ttft_s"]) for plan in plans]
    unit = time_unit(min(firsts))
    titles = [
        f"{plan.summary}\nfirst token after {duration_text(first)}, then one every {duration_text(plan['tpot_s'])}, "
        f"{significant(rate)} output tokens/s per GPU"
        for plan, first, rate in zip(plans, firsts, rates, strict=True)
    ]
    fronts = []
    if all(plan["tpot_s"] for plan in plans):
        users: _Axis = ("output tokens/s per user", [1.0 / plan["tpot_s"] for plan in plans], True)
        gpus: _Axis = ("output tokens/s per GPU", rates, False)
        caption = "What a GPU makes against what a user sees"
        fronts.append(_between("pareto speed", caption, plans, users, gpus, titles, larger=True))
    hours = [1e6 / rate / 3600.0 for rate in rates]
    if max(firsts) > min(firsts) * (1 + EQUAL):
        caption, cost = "Time to the first token against GPU time per token", "GPU hours per million output tokens"
        x: _Axis = (f"time to the first token ({unit.name})", [first / unit.size for first in firsts], False)
        fronts.append(_between("pareto ttft", caption, plans, x, (cost, hours, False), titles))
    return [figure for figure in fronts if figure is not None]


def _between(
    name: str,
    caption: str,
    plans: Sequence[RankedPlan],
    x: _Axis,
    y: _Axis,
    titles: Sequence[str],
    *,
    larger: bool = False,
) -> Plot | None:
    """Plans between two axes; None where one of these is not known of all of them, or the second is the same for all."""
    points = [(a, b) for a, b in zip(x[1], y[1], strict=True) if a is not None and b is not None]
    xs, ys = [a for a, _ in points], [b for _, b in points]
    if len(points) < len(plans) or max(ys) <= min(ys) * (1 + EQUAL):
        return None
    best = front([(-a, -b) for a, b in points] if larger else points)
    dots = tuple(
        Dot(x=a, y=b, title=title, group=_gpus(plan), on_front=is_best)
        for plan, (a, b), title, is_best in zip(plans, points, titles, best, strict=True)
    )
    said = "the line joins plans that none beats on both" if sum(best) > 1 else "one plan is the best on both"
    return Plot(
        name=name,
        caption=f"{caption}; {said}.",
        x_axis=x[0],
        y_axis=y[0],
        dots=dots,
        larger=larger,
        log_x=x[2] and _is_wide(xs),
        log_y=y[2] and _is_wide(ys),
    )


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > 4 * min(values)


def _plan_title(plan: RankedPlan) -> str:
    lines = [
        plan.summary,
        f"{duration_text(plan.step_time_s)} per step on {plan.workers} GPUs, {byte_text(plan.memory_bytes_per_gpu)} per GPU",
    ]
    for cost in shown_costs():
        paid, words = cost.of(plan)
        if paid is not None:
            lines.append(f"{with_unit(paid, cost.unit)} per {words}")
    return "\n".join(lines)


# -- more searches ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """More plans and curves than the answer has; counted, not timed: the same question gives the same page."""

    candidates: tuple[RankedPlan, ...]  # for fronts; the answer's plans among them
    curves: tuple[Curve, ...] = ()
    note: str = ""


def study_of(answer: Answer, shown: Sequence[RankedPlan], progress: Progress | None = None) -> Study:
    """Search with the same cost model at fewer GPUs, with less memory, and at batches that grow with the GPUs; to serve, for other speeds.

    Parameters
    ----------
    answer : Answer
    shown : sequence of RankedPlan
        Plans of the answer.
    progress : function of (message, share done), optional
    """
    plans, curves, note = answer.space.study(answer, progress or (lambda _message, _share: None))
    seen = {plan.plan for plan in shown}
    fresh = {plan.plan: plan for plan in plans if plan.plan not in seen}
    fitting = tuple(plan for plan in (*shown, *fresh.values()) if plan.fits)
    return Study(
        candidates=fitting if curves or not answer.space.has_figures else tuple(shown), curves=tuple(curves), note=note
    )


def halved_counts(most: int) -> list[int]:
    """Halves of a number: 256, 128, 64, 32, 16.

    >>> halved_counts(48)
    [3, 6, 12, 24, 48]
    """
    counts = [most]
    while len(counts) < _COUNTS and counts[-1] % 2 == 0:
        counts.append(counts[-1] // 2)
    return counts[::-1]


# -- scaling ----------------------------------------------------------------------------------------------------------------------


def scaling(curves: Sequence[Curve]) -> list[Plot]:
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
        if any(y > _VISIBLE * ideal * x for line in lines for x, y in zip(line.xs, line.ys, strict=True)):
            what += (
                ". The dashed line continues the rate of the fewest GPUs. A plan lies above it where, on more of them, each keeps and "
                "updates less of the network or has room for a faster plan"
            )
        result.append(
            Plot(
                name="scaling weak" if weak else "scaling strong",
                caption=f"{what}.",
                x_axis="GPUs at most",
                y_axis="samples per second",
                lines=tuple(lines),
                log_x=True,
                log_y=True,
            )
        )
    return result


def curve_figure(curve: Scaling) -> Plot:
    """Throughput over the workers of a scaling curve."""
    points = tuple((p.workers, p.global_batch, p.step_time_s, p.summary) for p in curve.points)
    [plot] = scaling([Curve(name=curve.family, weak=curve.weak, points=points)])
    return plot


# -- timeline ---------------------------------------------------------------------------------------------------------------------


def timeline(tracks: Tracks, summary: str) -> Rows:
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
    names = tuple(
        stream if one else f"{_short(tracks.names[track])} {stream.replace('_', ' ')}" for track, stream in used
    )
    return Rows(
        name="timeline",
        caption=f"One step of {summary}, by rank and stream.{more}",
        axis=f"time ({unit.name})",
        rows=names,
        boxes=tuple(
            Box(
                row=lanes[span.track, span.stream],
                start=span.start_s / unit.size,
                end=min(span.end_s, end) / unit.size,
                kind=span.kind,
                title=f"{span.name}: {duration_text(span.duration_s)}, from {duration_text(span.start_s)}",
            )
            for span in shown
            if (span.track, span.stream) in lanes
        ),
        is_timeline=True,
    )


def _short(name: str) -> str:
    return name.partition(" (")[0].partition(":")[0].replace("pipeline rank", "rank")

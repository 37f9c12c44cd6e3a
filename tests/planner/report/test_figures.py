"""Figures: what is drawn is what is known, in every form, whatever the words are."""

from __future__ import annotations

import importlib.util
import random
import struct
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import planner
from costmodel.fields import Figure as Declared
from costmodel.fields import labels_of
from costmodel.layerwise.plan import LAYERWISE_FIGURES
from costmodel.mesh.plan import MESH_FIGURES
from costmodel.mixed.plan import MIXED_FIGURES
from costmodel.serving.plan import SERVING_FIGURES
from costmodel.timeline import Tracks, TrackSpan
from planner.core.request import Request
from planner.report.figures.interactive import PALETTES, plotly_figure, plotly_script
from planner.report.figures.kinds import COLOURS, Box, Dot, Figure, Line, Plot, Rows, colour_of
from planner.report.figures.standard import curve_figure, front, memory, pareto, shown_plans, timeline
from planner.report.figures.svg import NARROW, WIDE, draw, linear_ticks, log_ticks, number_text, svg_file
from planner.report.page import json_text_for_script
from planner.report.tables import waterfall
from planner.spaces.ask import optimize

NASTY = "<script>alert(1)</script> & \"x\" 'y' \x1b[31m"
HAS_PLOTLY = importlib.util.find_spec("plotly") is not None
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def bars(word: str = "compute") -> Rows:
    return Rows(
        name="breakdown",
        caption=f"What {word} takes.",
        axis="step time (ms)",
        rows=("#1", word),
        boxes=(
            Box(row=0, start=0.0, end=6.0, kind=word, title="six"),
            Box(row=1, start=0.0, end=2.0, kind=word, title=word),
            Box(row=0, start=6.0, end=8.0, kind="optimizer", title="two"),
        ),
        whiskers=((0, 7.0, 9.0),),
        limit=10.0,
        limit_name=word,
    )


def points(word: str = "8 GPUs") -> Plot:
    dots = tuple(
        Dot(x=x, y=y, title=word, group=word, on_front=best)
        for x, y, best in ((1, 9, True), (10, 3, True), (10, 9, False))
    )
    return Plot(name="pareto memory", caption=word, x_axis="time (s)", y_axis="memory", dots=dots, log_x=True)


def lines(word: str = "the best plan") -> Plot:
    curve = Line(name=word, xs=(1, 2, 4), ys=(10.0, 19.0, 30.0), titles=("a", "b", word))
    ideal = Line(name="in proportion", xs=(1, 4), ys=(10.0, 40.0), reference=True)
    both = (curve, ideal)
    return Plot(
        name="scaling strong", caption=word, x_axis="GPUs", y_axis="samples/s", lines=both, log_x=True, log_y=True
    )


def swim(word: str = "forward") -> Rows:
    boxes = (
        Box(row=0, start=0.0, end=4.0, kind="forward", title=word),
        Box(row=1, start=4.0, end=8.0, kind="backward", title="b"),
    )
    return Rows(name="timeline", caption=word, axis="time (s)", rows=(word, "rank 1"), boxes=boxes, is_timeline=True)


ALL: list[Callable[..., Figure]] = [bars, points, lines, swim]


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - of our own making


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_words_of_users_stay_words(make: Callable[..., Figure], width: int) -> None:
    text = draw(make(NASTY), width)
    root = parsed(text)
    assert "\x1b" not in text
    assert not list(root.iter("script"))
    assert "".join(root.attrib["aria-label"]).find("<script>") >= 0


@pytest.mark.parametrize("make", ALL)
def test_a_file_is_a_whole_picture(make: Callable[..., Figure]) -> None:
    root = parsed(svg_file(make()))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root[0].tag.endswith("title")
    assert "prefers-color-scheme:dark" in (root[1].text or "")


def test_bars_are_as_long_as_their_values() -> None:
    root = parsed(draw(bars()))
    found = {"".join(rect.itertext()): rect for rect in root.iter("rect") if len(rect)}
    six, two, other = (found[title] for title in ("six", "two", "compute"))
    length = [float(rect.attrib["width"]) for rect in (six, two, other)]
    assert length[0] == pytest.approx(3 * length[1], abs=0.2)
    assert length[1] == pytest.approx(length[2], abs=0.2)
    assert float(two.attrib["x"]) == pytest.approx(float(six.attrib["x"]) + length[0], abs=0.2)
    whisker = next(path for path in root.iter("path") if path.attrib["class"] == "axis")
    low = float(whisker.attrib["d"].split("H")[0].split(" ")[0][1:])
    assert low == pytest.approx(float(six.attrib["x"]) + length[0] * 7 / 6, abs=0.3)


def test_spans_lie_where_their_times_are() -> None:
    root = parsed(draw(swim()))
    a, b = (rect for rect in root.iter("rect") if len(rect))
    assert float(b.attrib["x"]) - float(a.attrib["x"]) == pytest.approx(float(a.attrib["width"]), abs=0.5)
    assert float(b.attrib["y"]) > float(a.attrib["y"])
    assert a.attrib["class"] == "blue"


def test_everything_stays_inside_the_picture() -> None:
    for make in ALL:
        for width in (WIDE, NARROW):
            for rect in parsed(draw(make(), width)).iter("rect"):
                assert float(rect.attrib["x"]) >= 0
                assert float(rect.attrib["x"]) + float(rect.attrib["width"]) <= width + 0.5


def test_the_front_against_brute_force() -> None:
    rng = random.Random(1)
    for _ in range(50):
        plans = [(rng.randint(0, 6), rng.randint(0, 6), rng.randint(0, 3)) for _ in range(rng.randint(1, 30))]
        for plan, best in zip(plans, front(plans), strict=True):
            dominated = [
                other for other in plans if other != plan and all(b <= a for a, b in zip(plan, other, strict=True))
            ]
            assert best is not bool(dominated)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 9999.0), (0.0, 3e-7), (12.0, 13.0), (5.0, 5.0)])
def test_linear_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = linear_ticks(low, high)
    assert 1 <= len(ticks) <= 9
    assert all(low - 1e-12 <= tick <= high * (1 + 1e-9) for tick in ticks)
    assert len({number_text(tick) for tick in ticks}) == len(ticks)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.1), (0.5, 80.0), (1e-6, 1e9), (16.0, 256.0)])
def test_logarithmic_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 9
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)


def test_words_have_one_colour_everywhere() -> None:
    assert colour_of("compute", 0) == colour_of("forward", 5)
    assert all(name in COLOURS for word in ("weights", "exchange", "never heard of") for name in [colour_of(word, 3)])


@pytest.mark.parametrize("figures", [LAYERWISE_FIGURES, MESH_FIGURES, MIXED_FIGURES, SERVING_FIGURES])
def test_parts_of_one_figure_have_different_colours(figures: Mapping[str, Declared]) -> None:
    totals = {figure.part_of for figure in figures.values() if figure.part_of}
    assert totals
    for total in totals:
        labels = labels_of(figures.values(), total).values()
        assert len(labels) > 3
        assert len({colour_of(label, n) for n, label in enumerate(labels)}) == len(labels)


def contrast(colour: str, page: str) -> float:
    """Ratio of relative luminances (WCAG 2.1)."""

    def luminance(text: str) -> float:
        channels = [int(text[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    a, b = sorted((luminance(colour), luminance(page)))
    return (b + 0.05) / (a + 0.05)


def test_colours_stand_out_from_both_pages() -> None:
    for palette in PALETTES.values():
        for name in COLOURS:
            assert contrast(palette[name], palette["back"]) > 1.9, name
        assert contrast(palette["text"], palette["back"]) > 4.5
        assert contrast(palette["strong"], palette["back"]) > 7


# --- plotly


def names_of_colours(value: object) -> set[str]:
    if isinstance(value, str):
        return {value[1:]} if value.startswith("@") else set()
    if isinstance(value, dict):
        return set().union(*(names_of_colours(item) for item in value.values()), set())
    return set().union(*map(names_of_colours, value), set()) if isinstance(value, list) else set()


def coloured(value: object) -> object:
    if isinstance(value, str):
        return PALETTES["dark"][value[1:]] if value.startswith("@") else value
    if isinstance(value, dict):
        return {key: coloured(item) for key, item in value.items()}
    return [coloured(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("make", ALL)
def test_plots_name_known_colours_and_no_html(make: Callable[..., Figure]) -> None:
    made = plotly_figure(make(NASTY))
    for palette in PALETTES.values():
        assert names_of_colours(made) <= set(palette)
    text = json_text_for_script(made)
    assert "<" not in text
    assert "u003cscript" not in text  # plotly reads HTML: escaped before it is JSON


@pytest.mark.skipif(not HAS_PLOTLY, reason="needs plotly")
@pytest.mark.parametrize("make", ALL)
def test_plotly_knows_every_property(make: Callable[..., Figure]) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    checked = graph_objects.Figure(coloured(plotly_figure(make())))
    assert len(checked.data) >= 1


@pytest.mark.skipif(not HAS_PLOTLY, reason="needs plotly")
def test_the_library_may_stand_in_a_script() -> None:
    text = plotly_script()
    assert len(text) > 1_000_000
    for end in ("</script", "]]>", "<!--"):
        assert end not in text


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="needs matplotlib")
@pytest.mark.parametrize("make", ALL)
def test_png(make: Callable[..., Figure]) -> None:
    from planner.report.figures.svg import png_bytes

    data = png_bytes(make())
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    assert width == 1280
    assert 200 < height < 2000
    assert png_bytes(make()) == data


# --- terminals


def test_parts_of_a_waterfall_follow_each_other() -> None:
    rng = random.Random(2)
    for _ in range(100):
        values = [rng.choice([0.0, 1e-9, rng.random()]) for _ in range(rng.randint(1, 9))]
        total = sum(values)
        *shown, last = waterfall(values, total)
        assert last == "=" * 30
        at = 0
        for value, bar in zip(values, shown, strict=True):
            if bar.endswith("#"):
                assert bar.index("#") == at
                at = len(bar)
            assert bool(bar) == (value > 0)
            assert len(bar) <= 30
        assert at == 30 or total == 0 or max(values) < 1e-6


def test_a_timeline_shows_what_matters() -> None:
    def span(track: int, stream: str, start: float, duration: float, depth: int = 0) -> TrackSpan:
        name = f"{stream} {start}"
        return TrackSpan(
            track=track, stream=stream, name=name, kind=stream, start_s=start, duration_s=duration, depth=depth
        )

    spans = [span(0, "compute", 0.0, 4.0), span(0, "compute", 0.0, 2.0, 1), span(1, "compute", 5.0, 5.0)]
    spans += [span(0, "send_forward", 4.0, 1.0), span(1, "receive", 4.0, 1.0), span(1, "optimizer", 9.999, 0.001)]
    streams = ("compute", "receive", "send_forward", "optimizer")
    figure = timeline(Tracks.of(("pipeline rank 0 (8 GPUs)", "pipeline rank 1 (8 GPUs)"), streams, spans), "a plan")
    assert figure.rows == ("rank 0 compute", "rank 1 compute", "rank 1 receive")
    found = {(item.row, item.start, item.end) for item in figure.boxes}
    assert found == {(0, 0.0, 4.0), (1, 5.0, 10.0), (2, 4.0, 5.0)}
    many = [span(0, "compute", float(n), 0.5) for n in range(10_000)]
    figure = timeline(Tracks.of(("rank 0",), ("compute",), many), "a plan")
    assert len(figure.boxes) < 3000
    assert "The first 8.0 % of the step." in figure.caption
    assert max(item.end for item in figure.boxes) == 799.0


@pytest.mark.e2e
def test_several_kinds_of_gpus_have_no_single_capacity() -> None:
    answer = optimize(Request(model="alexnet", gpus=2, top=2))
    shown = shown_plans(answer)
    figure = memory(shown, answer.space)
    assert figure.limit is None or "its capacity" in figure.caption
    less = {"gpu_memory_bytes": shown["#1"].memory_there_bytes / 2}
    half = replace(shown["#2"], figures={**shown["#2"].figures, **less})
    mixed = memory({**shown, "#2": half}, answer.space)
    assert mixed.limit is None
    assert "capacity" not in mixed.caption
    assert mixed.rows[:2] == ("#1 (a GPU of 79.6 GiB)", "#2 (a GPU of 39.8 GiB)")


def test_a_caption_promises_a_line_only_where_there_is_one() -> None:
    answer = optimize(Request(model="alexnet", gpus=4, top=3))
    figures = pareto(list(shown_plans(answer).values()))
    assert figures
    for figure in figures:
        assert ("the line joins" in figure.caption) is bool(figure.front), figure.name
    first, *others = answer.plans
    worse = {"step_time_s": 2 * first.step_time_s, "memory_bytes_per_gpu": 2e12}
    beaten = [replace(plan, figures={**plan.figures, **worse}) for plan in others]
    (only,) = (figure for figure in pareto([first, *beaten]) if figure.name == "pareto memory")
    assert only.caption.endswith("; one plan is the best on both.")
    assert not only.front


def test_a_scaling_curve_is_drawn_as_it_is(tmp_path: Path) -> None:
    curve = planner.scale("alexnet", workers=[1, 2, 4])
    drawn = curve_figure(curve.raw)
    assert drawn.lines[0].xs == (1.0, 2.0, 4.0)
    rates = [point.global_batch / point.step_time_s for point in curve.points]
    assert drawn.lines[0].ys == pytest.approx(rates)
    path = curve.write_plot(tmp_path / "folder" / "scale.svg")
    assert path.read_text(encoding="utf-8").startswith("<svg")
    with pytest.raises(planner.UsageError, match=r"a figure ends in \.svg or \.png"):
        curve.write_plot(tmp_path / "scale.pdf")

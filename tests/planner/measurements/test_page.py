"""The page of `planner validate --html`: well-formed, self-contained, complete, safe with any text, and written whole or not at all."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from planner.measurements.page import ratio_bins, ratio_histogram, scatter, validation_page
from planner.measurements.scores import ComparedRow, validate_files
from planner.report.figures.svg import draw
from planner.report.page import Cell, page, table
from tests.planner.report.conftest import texts

HEADER = "model,style,hidden,layers,heads,device,gpus,global_batch,micro_batch,tp,pp,dp,precision,seq,step_time_ms,oom,dataset_group"
NASTY = "GPT <script>alert(1)</script> & \"x\" 'y' \x1b[31m"


def row(tp: int, time_ms: str, *, oom: str = "", model: str = "GPT", group: str = "g") -> str:
    quoted = '"' + model.replace('"', '""') + '"'
    return f"{quoted},gpt,2048,24,16,a100-80gb,8,64,1,{tp},1,{8 // tp},bf16,2048,{time_ms},{oom},{group}"


@pytest.fixture
def runs(tmp_path: Path) -> str:
    path = tmp_path / "runs.csv"
    lines = [row(1, "1000"), row(2, "1200"), row(4, "1500"), row(8, "2400"), row(1, ""), row(8, "", oom="yes")]
    path.write_text("\n".join([HEADER, *lines, row(2, "1300", model=NASTY)]) + "\n")
    return str(path)


def parsed(text: str) -> ET.Element:
    """The page as XML: every element closed, every attribute quoted, nothing left unescaped."""
    first, rest = text.split("\n", 1)
    assert first == "<!DOCTYPE html>"
    return ET.fromstring(rest)  # noqa: S314 - of our own making


def made(runs: str, by: str | None = None) -> tuple[str, ET.Element]:
    text = validation_page(validate_files([runs], by), by)
    return text, parsed(text)


@pytest.mark.e2e
def test_everything_is_on_the_page(runs: str) -> None:
    text, root = made(runs, "tp")
    heads = texts(root, "h3")
    assert heads == [
        "By tp", "The largest ratios", "Skipped", "Failures that memory does not explain", "Taken by default",
        "Constants that were fitted to measurements",
    ]  # fmt: skip
    titles = set(texts(root, "th"))
    assert {"file", "tp", "MAPE", "tau", "regret", "OOM recall", "paleo MAPE", "paleo median", "paleo tau"} <= titles
    cells = texts(root, "td")
    for words in ("no measured time", "predicted under half of the memory", "vocab"):
        assert words in cells
    (score,) = validate_files([runs])
    for figure in (score.score["mape"], score.paleo["mape"]):
        assert any(f'data-v="{figure}"' in line for line in text.splitlines())


def test_it_needs_no_network_and_prints_in_both_colours(runs: str) -> None:
    text, root = made(runs)
    assert not re.search(r"https?:|src=|@import|url\(|href=", text)
    assert {element.tag for element in root.iter()} & {"link", "img", "iframe", "object"} == set()
    for rule in ("prefers-color-scheme:dark", "@media print", "max-width:560px", "overflow-x:auto"):
        assert rule in text
    assert root.find("head/meta[@name='viewport']") is not None
    assert root.attrib["lang"] == "en"


def test_texts_of_a_table_stay_texts(runs: str) -> None:
    text, root = made(runs, "model")
    assert len(list(root.iter("script"))) == 1  # the page's own
    assert "\x1b" not in text
    assert any("<script>alert(1)</script> & \"x\" 'y'" in cell for cell in texts(root, "td"))


def test_every_time_is_a_point_with_a_title(runs: str) -> None:
    _, root = made(runs)
    circles = list(next(root.iter("svg")).iter("circle"))
    assert len(circles) == 5
    titles = ["".join(circle.itertext()) for circle in circles]
    assert any(title.startswith("line 2, step: predicted ") and "measured 1.00 s" in title for title in titles)


def test_a_file_of_failures_has_no_charts(new_file: Any) -> None:
    text, root = made(str(new_file("failed.csv", f"{HEADER}\n{row(8, '', oom='yes')}\n")))
    assert "There is no time to compare." in text
    assert list(root.iter("svg")) == []


# --- charts


def compared(measured_s: float, predicted_s: float, line: int = 1) -> ComparedRow:
    return ComparedRow(line=line, what="step", label="a run", measured_s=measured_s, predicted_s=predicted_s)


def numbers(element: ET.Element, *names: str) -> list[float]:
    return [float(element.attrib[name]) for name in names]


def test_right_predictions_lie_on_the_line_and_the_others_on_their_side() -> None:
    rows = [compared(m, p) for m, p in ((1, 1), (100, 100), (1, 1.2), (1, 0.8), (10, 1))]
    root = ET.fromstring(draw(scatter(rows), 480))  # noqa: S314 - of our own making
    guides = [path.attrib["d"][1:].split("L") for path in root.iter("path") if path.attrib["class"] == "axis"]
    (x1, y1, x2, y2), *near = [[float(word) for end in ends for word in end.split()] for ends in guides]

    def above(circle: ET.Element) -> float:
        x, y = numbers(circle, "cx", "cy")
        return y1 + (x - x1) / (x2 - x1) * (y2 - y1) - y  # SVG counts downwards

    heights = [above(circle) for circle in root.iter("circle")]
    assert heights[:2] == pytest.approx([0, 0], abs=0.2)
    assert heights[2] > 5 > -5 > heights[3] > heights[4]
    slopes = [(b - d) / (c - a) for a, b, c, d in near]
    assert slopes == pytest.approx([(y1 - y2) / (x2 - x1)] * 2, abs=0.01)  # parallel
    offsets = [y1 - (b + (x1 - a) * (d - b) / (c - a)) for a, b, c, d in near]
    assert offsets == pytest.approx(heights[2:4], abs=0.3)


def test_the_largest_ratios_stand_out() -> None:
    figure = scatter([compared(1, 5, line=2), compared(1, 1, line=3)], {(2, "step")})
    assert [(dot.group, dot.y) for dot in figure.dots] == [("times", 1.0), ("largest ratios", 5.0)]


@pytest.mark.parametrize("times", [[1.0], [1e-9, 1e5], [3.0, 3.0001], [5e-324, 1e308]])
def test_any_range_of_times_can_be_drawn(times: list[float]) -> None:
    root = ET.fromstring(draw(scatter([compared(time, time) for time in times]), 480))  # noqa: S314 - of our own making
    for circle in root.iter("circle"):
        x, y = numbers(circle, "cx", "cy")
        assert 0 < x < 480
        assert 0 < y < 420
    assert 4 <= len(list(root.iter("text"))) <= 2 * 9 + 4


def test_the_histogram_counts_every_ratio_once() -> None:
    ratios = [0.01, 0.5, 0.9, 1.0, 1.0, 1.1, 2.0, 50.0]
    mine, paleo, middle = ratio_histogram(ratios, [0.1, 0.2]).lines
    assert sum(mine.ys) == len(ratios)
    assert (
        mine.titles[15] == "4 of 8 between 0.862 and 1.16 times the measured time"
    )  # 31 bins to 100 times: e^(4.605 / 31)
    assert mine.titles[0] == "1 of 8 between 0 and 0.0135 times the measured time"
    assert mine.titles[30].endswith("and any times the measured time")
    assert mine.xs[15] == 1.0
    assert sum(paleo.ys) == pytest.approx(len(ratios))  # the same area
    assert (middle.xs, middle.ys) == ((1.0, 1.0), (0.0, 4.0))
    assert len(ratio_histogram(ratios).lines) == 2
    assert sum(ratio_bins(ratios)[1][0]) == len(ratios)


# --- sorting


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_click_sorts_and_a_second_one_turns_round(new_file: Any) -> None:
    """The page's own script, on a table made of plain objects."""
    rows = [[Cell("b", "b"), Cell("n/a")], [Cell("a", "a"), Cell("10 %", 0.1)], [Cell("c", "c"), Cell("9 %", 0.09)]]
    text = page("x", [table([("name", ""), ("error", "")], rows)])
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script is not None
    stage = """
function el(o){o.attrs=o.attrs||{};o.getAttribute=k=>o.attrs[k]===undefined?null:o.attrs[k];o.setAttribute=(k,v)=>o.attrs[k]=v;
o.removeAttribute=k=>delete o.attrs[k];return o}
const data=[["b",undefined],["a","0.1"],["c","0.09"]];
const body={rows:data.map(d=>({name:d[0],cells:d.map(v=>({dataset:v===undefined?{}:{v:v}}))})),
 appendChild(r){this.rows.splice(this.rows.indexOf(r),1);this.rows.push(r)}};
const ths=["text","number"].map((c,i)=>el({className:c,cellIndex:i}));
const t={tBodies:[body],querySelectorAll:()=>ths};
const spans=ths.map(h=>{h.closest=()=>t;return {parentNode:h}});
const document={querySelectorAll:()=>spans};
"""
    play = """
const order=()=>body.rows.map(r=>r.name).join("");const seen=[];
spans[1].onclick();seen.push(order(),ths[1].attrs["aria-sort"]);spans[1].onclick();seen.push(order(),ths[1].attrs["aria-sort"]);
let stopped=false;spans[0].onkeydown({key:"Enter",preventDefault(){stopped=true}});seen.push(order(),ths[0].attrs["aria-sort"],stopped,
 ths[1].attrs["aria-sort"]===undefined);console.log(JSON.stringify(seen));
"""
    path = new_file("play.js", stage + script[1] + play)
    out = subprocess.run(["node", str(path)], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.strip() == '["cab","ascending","acb","descending","abc","ascending",true,true]'


# --- the command


@pytest.mark.e2e
def test_the_command_writes_the_page_beside_its_answer(runs: str, tmp_path: Path, said: Any) -> None:
    target = tmp_path / "report.html"
    out, err = said("validate", runs, "--html", target, "--by", "tp", "--json")
    assert out.startswith("{")
    assert f"wrote {target}" in err
    first = target.read_text()
    parsed(first)
    said("validate", runs, "--html", target, "--by", "tp", "--quiet")
    assert target.read_text() == first  # the same question, the same page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs.csv"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "runs.csv/report.html",
            "error: --html {0}/runs.csv/report.html: cannot be written: {0}/runs.csv is a file, not a folder",
        ),
        ("folder.html", "error: --html {0}/folder.html: cannot be written: is a folder"),
        ("runs.csv", "error: --html {0}/runs.csv: a page ends in .html"),
        ("report", "error: --html {0}/report: a page ends in .html"),
        ("table.html", "error: --html {0}/table.html: is an input of this command"),
    ],
)
def test_a_page_that_cannot_be_written(runs: str, tmp_path: Path, name: str, message: str, fails: Any) -> None:
    (tmp_path / "folder.html").mkdir()
    shutil.copy(runs, tmp_path / "table.html")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    err = fails("validate", runs, tmp_path / "table.html", "--html", tmp_path / name)
    assert err.startswith(message.format(tmp_path))
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_no_answer_goes_over_a_table(runs: str, tmp_path: Path, fails: Any) -> None:
    before = Path(runs).read_bytes()
    assert (
        fails("validate", runs, "-o", runs)
        == f"error: --output {runs}: is an input of this command; choose another file\n"
    )
    both: list[Any] = ["validate", runs, "--html", str(tmp_path / "a.html"), "-o", str(tmp_path / "a.html")]
    assert "both name" in fails(*both)
    assert Path(runs).read_bytes() == before


def test_nothing_is_written_when_a_table_is_bad(tmp_path: Path, new_file: Any, fails: Any) -> None:
    bad = new_file("bad.csv", "a,b\n1,2\n")
    fails("validate", bad, "--html", tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == [bad]

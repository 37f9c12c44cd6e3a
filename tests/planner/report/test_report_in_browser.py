"""The pages in a real browser: clicks, keys, hovers, a narrow window, a dark one and paper, and a console without complaints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.core.numbers import duration_text, percent, significant
from planner.report.answer import memory_text
from tests.planner.report.browser import Browser, missing
from tests.planner.report.conftest import HAS_PLOTLY

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "has a browser")
live_only = pytest.mark.skipif(not HAS_PLOTLY, reason="needs plotly")
KINDS = ["static", pytest.param("live", marks=live_only)]
NAMES = ["mesh", "layers", "explained"]

COLUMN = """
const t=document.querySelector("table"),h=[...t.tHead.rows[0].cells].findIndex(c=>c.textContent===arguments[0]);
return [...t.tBodies[0].rows].map(r=>{const v=r.cells[h].dataset.v;return v===undefined?null:isNaN(v)?v:+v});
"""
MARK = """
const t=document.querySelector("table"),h=[...t.tHead.rows[0].cells].find(c=>c.textContent===arguments[0]);
h.firstChild.id="head";return h.getAttribute("aria-sort");
"""
# Elements that stick out of the window and are in no box that scrolls.
STICKS_OUT = """
const w=document.documentElement.clientWidth,out=[];
document.querySelectorAll("body *").forEach(e=>{if(e.closest(".wide,svg,script,.js-plotly-plot"))return;
const r=e.getBoundingClientRect();if(r.width&&(r.right>w+1||r.left<-1))out.push(e.tagName+"."+e.className)});
return [document.documentElement.scrollWidth,w,out];
"""
IS_DRAWN = 'return document.querySelectorAll("figure.is-live").length===document.querySelectorAll("figure").length'
# Middle of something that can be hovered over.
PLACE = """
const e=document.querySelector(arguments[0]);e.scrollIntoView({block:"center"});
const r=e.getBoundingClientRect();return [r.left+r.width/2,r.top+r.height/2];
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("browser"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def quiet_console(browser: Browser) -> Iterator[None]:
    """No test leaves a complaint behind, and no page asks for anything from elsewhere."""
    browser.console()
    yield
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    assert browser.console() == []


def opened(browser: Browser, page: Path, **how: object) -> None:
    browser.open(page, **how)  # type: ignore[arg-type]
    if "live" in page.stem:
        browser.until(IS_DRAWN)


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mesh", "layers"])
def test_clicks_and_keys_sort_the_plans(browser: Browser, pages: dict[str, Path], name: str, kind: str) -> None:
    opened(browser, pages[f"{name}-{kind}"])
    for title in ("memory", "step"):
        before = browser.run(COLUMN, title)
        browser.run(MARK, title)
        browser.click("#head")
        assert browser.run(COLUMN, title) == sorted(before)
        assert browser.run(MARK, title) == "ascending"
        browser.keys("#head", "\ue007")  # Enter
        assert browser.run(COLUMN, title) == sorted(before, reverse=True)
        assert browser.run(MARK, title) == "descending"
        browser.run('document.getElementById("head").id=""')
    browser.run(MARK, "P(best)")
    browser.click("#head")
    assert browser.run(COLUMN, "P(best)")[-1] is None or None not in browser.run(COLUMN, "P(best)")  # unknown ones last
    browser.run('document.getElementById("head").id=""')


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_titles_are_reached_by_the_tab_key(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    opened(browser, pages[f"mesh-{kind}"])
    found = browser.run(
        'return [...document.querySelectorAll("th span")].every(s=>s.tabIndex===0&&s.getAttribute("role")==="button")'
    )
    assert found is True


@live_only
@pytest.mark.parametrize(
    ("name", "selector", "expected"),
    [
        ("mesh", "#breakdown .bars .point path", "per"),
        ("mesh", "#timeline .bars .point path", ", from "),
        ("layers", "#scaling-strong .scatterlayer .points path", "samples/s"),
        ("layers", "#pareto-memory .scatterlayer .points path", "per step"),
    ],
)
def test_hovering_tells_the_plan(
    browser: Browser, pages: dict[str, Path], name: str, selector: str, expected: str
) -> None:
    opened(browser, pages[f"{name}-live"])
    x, y = browser.run(PLACE, selector)
    browser.hover(x, y)
    text = browser.until('const h=document.querySelector(".hoverlayer .hovertext");return h&&h.textContent')
    if name == "mesh" and "breakdown" in selector:
        assert "of " in text
        assert "tp 2" in text
    else:
        assert expected in text


def test_pictures_tell_the_plan_as_well(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["mesh-static"])
    x, y = browser.run(PLACE, "#breakdown .wide-still rect:has(title)")
    title = browser.run("return document.elementFromPoint(arguments[0],arguments[1]).textContent", x, y)
    assert title.startswith("#1: compute ")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [400, 1200])
def test_nothing_sticks_out(browser: Browser, pages: dict[str, Path], name: str, kind: str, width: int) -> None:
    opened(browser, pages[f"{name}-{kind}"], width=width)
    scrolled, window, out = browser.run(STICKS_OUT)
    assert scrolled <= window
    assert out == []


@pytest.mark.parametrize("name", ["mesh", "layers"])
@pytest.mark.parametrize("width", [400, 800, 1300])
def test_every_number_of_every_plan_is_seen_without_scrolling(
    browser: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    opened(browser, pages[f"{name}-static"], width=width)
    hidden = browser.run(
        'const b=document.querySelector(".wide").getBoundingClientRect();return [...document.querySelectorAll(".cards td")].filter(c=>'
        "{const r=c.getBoundingClientRect();return c.textContent&&(!r.width||r.right>b.right+1||r.left<b.left-1)}).map(c=>c.dataset.t)"
    )
    assert hidden == []
    titled = browser.run(
        'const c=document.querySelector(".cards td[data-t=step]");return getComputedStyle(c,"::before").content'
    )
    assert titled == ('"step"' if width < 900 else "none")


@pytest.mark.parametrize("width", [400, 1200])
def test_cards_sort_as_tables_do(browser: Browser, pages: dict[str, Path], width: int) -> None:
    opened(browser, pages["mesh-static"], width=width)
    before = browser.run(COLUMN, "memory")
    browser.run(MARK, "memory")
    browser.click("#head")
    assert browser.run(COLUMN, "memory") == sorted(before)


@pytest.mark.parametrize("width", [400, 1200])
def test_letters_of_pictures_can_be_read(browser: Browser, pages: dict[str, Path], width: int) -> None:
    """12 px in its own coordinates, and hardly less on the page."""
    opened(browser, pages["mesh-static"], width=width)
    sizes = browser.run(
        'return [...document.querySelectorAll("svg[role=img]")].filter(s=>s.getBoundingClientRect().width).map(s=>'
        "12*s.getBoundingClientRect().width/s.viewBox.baseVal.width)"
    )
    assert len(sizes) >= 8
    assert min(sizes) >= 10


@live_only
def test_a_window_that_changes_takes_its_plots_along(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["mesh-live"], width=1200)
    metrics = {"width": 420, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.chromium("Emulation.setDeviceMetricsOverride", metrics)
    browser.until('return document.querySelector("#breakdown .main-svg").getBoundingClientRect().width<421')
    scrolled, window, _ = browser.run(STICKS_OUT)
    assert scrolled <= window


COLOURS = """
const bar=document.querySelector(arguments[0]);
return [getComputedStyle(document.body).backgroundColor,getComputedStyle(document.body).color,getComputedStyle(bar).fill];
"""


@pytest.mark.parametrize("kind", KINDS)
def test_light_and_dark(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    bar = "#breakdown .bars .point path" if kind == "live" else "#breakdown .wide-still rect.blue"
    opened(browser, pages[f"mesh-{kind}"])
    light = browser.run(COLOURS, bar)
    assert light == ["rgb(255, 255, 255)", "rgb(27, 31, 36)", "rgb(0, 114, 178)"]
    browser.scheme(dark=True)  # while the page is open
    browser.until("return getComputedStyle(document.body).backgroundColor==='rgb(13, 17, 23)'")
    script = COLOURS.replace("arguments[0]", repr(bar))
    browser.until(f"return (function(){{{script}}})()[2]==='rgb(75, 163, 221)'")


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_paper_shows_the_pictures_in_light_colours(browser: Browser, pages: dict[str, Path], kind: str) -> None:
    opened(browser, pages[f"mesh-{kind}"], dark=True)
    browser.scheme(dark=True, paper=True)
    shown = browser.run(
        "const on=s=>[...document.querySelectorAll(s)].filter(e=>e.getBoundingClientRect().width>0).length;"
        'return [on("figure"),on(".wide-still svg"),on(".live"),on(".narrow svg"),on("nav"),'
        "getComputedStyle(document.body).backgroundColor]"
    )
    figures, pictures, plots, narrow, contents, background = shown
    assert figures == pictures > 5
    assert plots == narrow == contents == 0
    assert background == "rgb(255, 255, 255)"
    paper = browser.chromium("Page.printToPDF", {"preferCSSPageSize": True})
    assert paper["data"].startswith("JVBERi0")  # %PDF-


@pytest.mark.e2e
def test_links_of_the_contents_lead_somewhere(browser: Browser, pages: dict[str, Path]) -> None:
    for name in NAMES:
        opened(browser, pages[f"{name}-static"])
        lost = browser.run(
            'return [...document.querySelectorAll("nav a")].filter(a=>!document.querySelector(a.getAttribute("href"))).map(a=>a.href)'
        )
        assert lost == []
        ids = browser.run('return [...document.querySelectorAll("[id]")].map(e=>e.id)')
        assert len(ids) == len(set(ids))


# Height of every legend, and that of its scroll bar; and of the room for the bars or curves.
LEGENDS = """
return [...document.querySelectorAll(".live")].map(e=>{const l=e.querySelector(".legend"),b=l&&l.querySelector(".scrollbar");
return [e.dataset.figure,b?+b.getAttribute("height"):0,l?l.getBoundingClientRect().height:0,e._fullLayout._size.h]});
"""


@pytest.mark.e2e
@live_only
@pytest.mark.parametrize("name", NAMES)
def test_no_legend_is_cut_on_a_telephone(browser: Browser, pages: dict[str, Path], name: str) -> None:
    opened(browser, pages[f"{name}-live"], width=1200)
    browser.until(IS_DRAWN)
    wide = {figure: room for figure, *_, room in browser.run(LEGENDS)}
    opened(browser, pages[f"{name}-live"], width=390)
    browser.until(IS_DRAWN)
    for figure, bar, _, room in browser.until(LEGENDS):
        assert bar == 0, figure
        assert room >= 0.6 * wide[figure], figure  # the legend takes none of the bars' room


# The sliders: their axes and texts, and what is said now.
SLIDERS = """
const part=n=>document.querySelector(`#what-if [data-part=${n}]`),found={};
for(const n of ["time","change","rate","memory","problem"])found[n]=part(n).textContent;
for(const n of ["used","over"])found[n]=part(n).style.width;
found.values=[...document.querySelectorAll("#what-if output")].map(o=>o.textContent);return found;
"""
MOVE = """
const s=document.querySelector(`#what-if input[data-axis=${arguments[0]}]`);
s.value=+s.value+arguments[1];s.dispatchEvent(new Event("input"));
"""


@pytest.mark.e2e
def test_sliders_show_what_estimate_predicts(browser: Browser, tmp_path: Path) -> None:
    degrees: dict[str, Any] = {"tp": 2, "pp": 2, "micro_batch": 4, "memory_limit": "12GiB"}
    page = tmp_path / "page.html"
    planner.estimate("gpt3-1.3b", gpus=8, batch=32, **degrees).write_html(page, static=True)
    opened(browser, page)
    assert browser.run(SLIDERS)["values"] == ["8", "32", "2,048", "none"]
    browser.keys("#what-if input[data-axis=gpus]", "\ue014")  # one to the right
    browser.run(MOVE, "batch", 1)
    browser.run(MOVE, "recompute", 2)
    seen = browser.run(SLIDERS)
    assert seen["values"] == ["16", "64", "2,048", "full"]
    found = planner.estimate("gpt3-1.3b", gpus=16, batch=64, recompute="full", **degrees)
    plan, ranked = found.plan, found.raw.ranked
    assert seen["time"] == f"{duration_text(plan.step_time_s)} per step"
    assert seen["memory"] == memory_text(
        ranked.memory_bytes_per_gpu, ranked.memory_there_bytes, "per GPU", ranked.fits_text
    )
    assert seen["rate"] == f"{significant(plan.tokens_per_s)} tokens/s, MFU {percent(plan.mfu)}"
    assert seen["problem"] == ""
    filled = 100 * ranked.memory_bytes_per_gpu / ranked.memory_there_bytes
    assert float(seen["used"].rstrip("%")) == pytest.approx(filled, rel=1e-3)
    browser.run(MOVE, "recompute", -2)
    seen = browser.run(SLIDERS)
    assert (seen["problem"], seen["values"][3]) == ("Does not fit.", "none")
    assert float(seen["over"].rstrip("%")) > 0
    browser.run(MOVE, "batch", -3)
    seen = browser.run(SLIDERS)
    assert seen["problem"] == ""
    assert seen["change"].endswith(" than the plan, with micro-batch 2")
    browser.run(MOVE, "seq", 1)
    seen = browser.run(SLIDERS)
    assert seen["problem"].startswith("No such plan: --seq 4096: network 'gpt3-1.3b' cannot be that long")
    assert seen["time"] == seen["memory"] == ""


@pytest.mark.e2e
def test_without_a_script_a_table_says_what_sliders_do(browser: Browser, pages: dict[str, Path]) -> None:
    browser.chromium("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(pages["mesh-static"])
        shown = browser.run('return document.getElementById("what-if").getBoundingClientRect().height')
        rows = browser.run(
            'return document.getElementById("what-if").parentNode.textContent.includes("global batch 64")'
        )
    finally:
        browser.chromium("Emulation.setScriptExecutionDisabled", {"value": False})
    assert (shown, rows) == (0, True)

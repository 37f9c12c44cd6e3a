"""Figures in a page: SVG that needs no script, and over it, where plotly is there, plots to hover over and zoom into."""

from __future__ import annotations

from collections.abc import Sequence

from planner.report.figures.interactive import PALETTES, plotly_figure, plotly_script
from planner.report.figures.kinds import Bars, Figure, Swim
from planner.report.figures.svg import COLOUR_RULES, NARROW, WIDE, draw
from planner.report.page import escaped, json_text_for_script

__all__ = ["PLOT_STYLE", "figure_html", "figures_html", "plot_scripts"]

PLOT_STYLE = (
    COLOUR_RULES
    + """\
svg[role=img] text{font-size:12px}svg .axis{stroke:var(--ink)}figure{margin:0 0 12px;min-width:0}figure svg[role=img]{max-width:760px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px}
.narrow{display:none}.live{width:100%;min-width:0}
@media screen{figure.is-live .still{display:none}}
@media screen and (max-width:560px){.wide-still{display:none}.narrow{display:block}}
@media print{.live{display:none!important}.pair{grid-template-columns:1fr 1fr}
figure svg[role=img]{max-width:150mm}.pair svg[role=img]{max-width:125mm}}
"""
)

# Draws every figure of the page, in the colours of the page, again when these change; the SVG stays where a plot cannot be drawn.
_SCRIPT = """\
(function(){
var all=JSON.parse(document.getElementById("figures").textContent),dark=matchMedia("(prefers-color-scheme:dark)");
function coloured(v,p){if(typeof v==="string")return v.charAt(0)==="@"?p[v.slice(1)]:v;if(Array.isArray(v))return v.map(function(x){
return typeof x==="number"?x:coloured(x,p)});if(v&&typeof v==="object"){var o={};for(var k in v)o[k]=coloured(v[k],p);return o}return v}
function show(){document.querySelectorAll(".live").forEach(function(box){var f=all.figures[box.dataset.figure],
p=all.palettes[dark.matches?"dark":"light"];
Plotly.react(box,coloured(f.data,p),coloured(f.layout,p),{responsive:true,displaylogo:false,showTips:false,
modeBarButtons:[["toImage","zoom2d","pan2d","resetScale2d"]]}).then(function(){box.parentNode.classList.add("is-live")})})}
show();dark.addEventListener("change",show)})();"""


def figure_html(figure: Figure, *, live: bool) -> str:
    """One figure with its caption."""
    box = f'<div class="live" data-figure="{escaped(figure.name)}"></div>' if live else ""
    still = f'<div class="still"><div class="wide-still">{draw(figure, WIDE)}</div><div class="narrow">{draw(figure, NARROW)}</div></div>'
    name = figure.name.replace(" ", "-")
    return f'<figure id="{escaped(name)}">{box}{still}<figcaption>{escaped(figure.caption)}</figcaption></figure>'


def figures_html(figures: Sequence[Figure], *, live: bool) -> str:
    """Figures beside each other where there is room; bars and timelines take the width of the page."""
    broad = [figure for figure in figures if isinstance(figure, (Bars, Swim))]
    pairs = [figure for figure in figures if not isinstance(figure, (Bars, Swim))]
    parts = [figure_html(figure, live=live) for figure in broad]
    if pairs:
        parts.append('<div class="pair">' + "".join(figure_html(figure, live=live) for figure in pairs) + "</div>")
    return "\n".join(parts)


def plot_scripts(figures: Sequence[Figure]) -> tuple[str, list[str]]:
    """What makes the figures of a page live: their data as an element of the body, and the scripts.

    Raises
    ------
    MissingExtra
        plotly is not installed.
    """
    data = {"figures": {figure.name: plotly_figure(figure) for figure in figures}, "palettes": PALETTES}
    element = f'<script type="application/json" id="figures">{json_text_for_script(data)}</script>'
    return element, [plotly_script(), _SCRIPT]

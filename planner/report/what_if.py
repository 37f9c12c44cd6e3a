"""What a plan would cost at other settings: sliders that read answers worked out beforehand, and a table for readers without a script."""

from __future__ import annotations

from planner.core.answer import Curve
from planner.core.numbers import chance_text, duration_text, percent, significant, surest_there
from planner.core.objectives import compared_words
from planner.core.what_if import WhatIf, WhatIfPoint
from planner.report.answer import memory_text
from planner.report.page import Cell, escaped, json_text_for_script, table

WHAT_IF_STYLE = """\
#what-if{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,24em),1fr));gap:.6em 2em;max-width:1000px}
#what-if[hidden]{display:none}#what-if label{display:grid;grid-template-columns:9em 1fr 8.5em;gap:.6em;align-items:center;padding:.15em 0}
#what-if input{width:100%;margin:0}#what-if output{font-weight:600}#what-if p{margin:.2em 0}#what-if .value{font-size:1.2em;font-weight:600}
#what-if .wrong{color:#c62828;font-weight:600}
@media (max-width:560px){#what-if label{grid-template-columns:7em 1fr 7em}}
@media print{#what-if{display:none}}
"""
# Shows the answer at the places of the sliders.
WHAT_IF_SCRIPT = """\
(function(){
var box=document.getElementById("what-if"),data=JSON.parse(document.getElementById("what-if-data").textContent);
var sliders=Array.from(box.querySelectorAll("input")),part=function(name){return box.querySelector("[data-part="+name+"]")};
function show(){
var place=sliders.reduce(function(n,s,k){var values=data.axes[k].values;s.nextElementSibling.textContent=values[+s.value];
return n*values.length+ +s.value},0),point=data.points[place];
data.texts.forEach(function(name,k){part(name).textContent=point.texts[k]});
var memory=point.figures.length?point.figures[data.figures.indexOf("memory_bytes_per_gpu")]:0,end=Math.max(data.there,memory);
part("limit").style.left=data.capacity<data.there?100*data.capacity/end+"%":"100%";
part("used").style.width=100*Math.min(memory,data.capacity)/end+"%";part("over").style.width=100*Math.max(memory-data.capacity,0)/end+"%"}
sliders.forEach(function(s){s.addEventListener("input",show)});show();box.hidden=false})();"""
# What is said of a point, in this order.
_TEXTS = ("time", "change", "rate", "memory", "problem")


def what_if_html(found: WhatIf) -> list[str]:
    """Sliders with their answers, and a table of single changes."""
    return [
        f"<p>{escaped(found.kept)} Each answer is what <code>planner estimate</code> predicts of that plan.</p>",
        _sliders(found),
        _data(found),
        '<p class="soft">One change at a time:</p>',
        _table(found),
    ]


def _sliders(found: WhatIf) -> str:
    controls = "".join(
        f'<label>{escaped(axis.title)}<input type="range" min="0" max="{len(axis.values) - 1}" step="1" value="{axis.at}" '
        f'data-axis="{axis.name}"/><output>{escaped(_word(axis.values[axis.at]))}</output></label>'
        for axis in found.axes
    )
    time, change, rate, memory, problem = (f'data-part="{name}"' for name in _TEXTS)
    bar = '<div class="bar"><i class="blue" data-part="used"></i><i class="over" data-part="over"></i>'
    bar += '<i class="at" data-part="limit"></i></div>'
    said = f'<p class="value" {time}></p><p {change}></p><p {rate}></p>{bar}<p {memory}></p><p class="wrong" {problem}></p>'
    return f'<div id="what-if" hidden="hidden"><div>{controls}</div><div aria-live="polite">{said}</div></div>'


def _data(found: WhatIf) -> str:
    """The answers as JSON: figures in SI units, none where there is no such plan, and what is said of them."""
    figures = list(found.point().figures)
    document = {
        "axes": [{"name": a.name, "values": [_word(v) for v in a.values], "at": a.at} for a in found.axes],
        "figures": figures,
        "texts": _TEXTS,
        "points": [
            {"figures": [point.figures[name] for name in figures if point.figures], "texts": _texts(found, point)}
            for point in found.points
        ],
        "capacity": found.capacity_bytes,
        "there": found.there_bytes,
    }
    return f'<script type="application/json" id="what-if-data">{json_text_for_script(document)}</script>'


def _word(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def _texts(found: WhatIf, point: WhatIfPoint) -> tuple[str, ...]:
    """`_TEXTS` of a point."""
    figures = point.figures
    if not figures:
        return ("", "", "", "", f"No such plan: {point.note}")
    step, used = figures["step_time_s"], figures["memory_bytes_per_gpu"]
    ratio = step / found.point().figures["step_time_s"]
    said = compared_words(ratio, "step_time", "the plan") if ratio != 1.0 else "as planned"
    chance, surest = figures.get("fits_probability"), surest_there(found.fits_surest, used, found.there_bytes)
    rate = f"{significant(figures['throughput_samples_per_s'])} samples/s"
    if "tokens_per_s" in figures:
        rate = f"{significant(figures['tokens_per_s'])} tokens/s, MFU {percent(figures['mfu'])}"
    return (
        f"{duration_text(step)} per step",
        f"{said}, {point.note}" if point.note else said,
        rate,
        memory_text(used, found.there_bytes, chance="" if chance is None else chance_text(chance, surest)),
        "Does not fit." if used > found.capacity_bytes else "",
    )


def _table(found: WhatIf) -> str:
    rows = []
    for axis, place in found.single_changes():
        point = found.point(**{axis.name: place})
        words = "as planned" if place == axis.at else f"{axis.title} {_word(axis.values[place])}"
        time, change, rate, memory, problem = _texts(found, point)
        step, used = (point.figures.get(name) for name in ("step_time_s", "memory_bytes_per_gpu"))
        cells = [Cell(words, words), Cell(time, step), Cell(change.replace(" than the plan", ""), step), Cell(rate)]
        rows.append([*cells, Cell(memory or problem, used), Cell("no" if problem else "yes")])
    titles = ["change", "time", "against the plan", "rate", "memory", "fits"]
    return table([(title, "") for title in titles], rows, text=(0, 4, 5), broad=0)


def plan_curves(found: WhatIf, summary: str) -> list[Curve]:
    """Strong and weak scaling of the plan itself, where it is legal and fits."""
    axes = {axis.name: axis for axis in found.axes}
    if not {"gpus", "batch"} <= axes.keys():
        return []
    gpus, batch = axes["gpus"], axes["batch"]
    now = int(batch.values[batch.at])
    curves = []
    for weak in (False, True):
        points = []
        for n, count in enumerate(map(int, gpus.values)):
            samples = now * count // int(gpus.values[gpus.at]) if weak else now
            place = batch.values.index(samples) if samples in batch.values else None
            figures = {} if place is None else found.point(gpus=n, batch=place).figures
            if figures and figures["memory_bytes_per_gpu"] <= found.capacity_bytes:
                points.append((count, samples, figures["step_time_s"], summary))
        if len(points) > 1:
            curves.append(Curve(name="this plan", weak=weak, points=tuple(points)))
    return curves

"""Answers as HTML files that need no network: of `planner optimize`, `estimate` and `explain`, training and serving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.core.answer import Answer, Assumption, ErrorBars, Estimate, RankedPlan, Sensitivity, Setting
from planner.core.blocks import Block, Facts, Heading, Table
from planner.core.numbers import percent, significant, time_unit, used_of_total
from planner.core.objectives import change_column, change_text, shown_costs
from planner.report.figures.interactive import PALETTES, plotly_figure, plotly_script
from planner.report.figures.kinds import Figure, Rows
from planner.report.figures.standard import memory, serving_times, shown_plans
from planner.report.figures.svg import COLOUR_RULES, NARROW, WIDE, draw
from planner.report.first_screen import FIRST_STYLE, Launch, first_facts, first_screen
from planner.report.frameworks import frameworks_blocks
from planner.report.page import (
    Cell,
    block_html,
    caption_html,
    escaped,
    facts,
    json_text_for_script,
    page,
    table,
    table_html,
)
from planner.report.uncertainty import interval_text, sensitivity_blocks, sensitivity_facts
from planner.report.what_if import WHAT_IF_STYLE

PLOT_STYLE = (
    COLOUR_RULES
    + """\
svg[role=img] text{font-size:12px}figure{margin:0 0 12px;min-width:0}figure svg[role=img]{max-width:760px}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:16px}
.narrow{display:none}.live{width:100%;min-width:0}
@media screen{figure.is-live .still{display:none}}
@media screen and (max-width:560px){.wide-still{display:none}.narrow{display:block}}
@media print{.live{display:none!important}.pair{grid-template-columns:1fr 1fr}
figure svg[role=img]{max-width:150mm}.pair svg[role=img]{max-width:125mm}}
"""
)

# Draws every figure of the page, in the colours of the page, again when these change, and higher where a narrow screen breaks its legend;
# the SVG stays where a plot cannot be drawn.
_SCRIPT = """\
(function(){
var all=JSON.parse(document.getElementById("figures").textContent),dark=matchMedia("(prefers-color-scheme:dark)");
function coloured(v,p){if(typeof v==="string")return v.charAt(0)==="@"?p[v.slice(1)]:v;if(Array.isArray(v))return v.map(function(x){
return typeof x==="number"?x:coloured(x,p)});if(v&&typeof v==="object"){var o={};for(var k in v)o[k]=coloured(v[k],p);return o}return v}
function show(){document.querySelectorAll(".live").forEach(function(box){var f=all.figures[box.dataset.figure],
p=all.palettes[dark.matches?"dark":"light"];
Plotly.newPlot(box,coloured(f.data,p),coloured(f.layout,p),{responsive:true,displaylogo:false,showTips:false,
modeBarButtons:[["toImage","zoom2d","pan2d","resetScale2d"]]}).then(function(){box.parentNode.classList.add("is-live");
var l=box.querySelector(".legend"),more=l?Math.ceil(l.querySelector(".scrollbox").getBoundingClientRect().height)+9-f.layout.meta.legend:0;
if(more>0)Plotly.relayout(box,{height:f.layout.height+more,"legend.maxheight":1})})})}
show();[dark,matchMedia("(max-width:560px)")].forEach(function(m){m.addEventListener("change",show)})})();"""


def figure_html(figure: Figure, *, live: bool) -> str:
    """One figure with its caption."""
    box = f'<div class="live" data-figure="{escaped(figure.name)}"></div>' if live else ""
    still = f'<div class="still"><div class="wide-still">{draw(figure, WIDE)}</div><div class="narrow">{draw(figure, NARROW)}</div></div>'
    name = figure.name.replace(" ", "-")
    return f'<figure id="{escaped(name)}">{box}{still}<figcaption>{escaped(figure.caption)}</figcaption></figure>'


def figures_html(figures: Sequence[Figure], *, live: bool) -> str:
    """Figures beside each other where there is room; bars and timelines take the width of the page."""
    broad = [figure for figure in figures if isinstance(figure, Rows)]
    pairs = [figure for figure in figures if not isinstance(figure, Rows)]
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


_STYLE = (
    FIRST_STYLE
    + WHAT_IF_STYLE
    + """\
.answer{font-size:1.1em;border-left:4px solid var(--mark);padding:.3em .8em;background:var(--band);max-width:none;overflow-wrap:anywhere}
th:first-child,td:first-child{text-align:left}nav{font-size:.9em;margin:.6em 0}nav a{color:var(--mark);margin-right:1em;white-space:nowrap}
table:not(.cards) td.text:nth-child(2){min-width:18em}
@media (max-width:560px){h1{font-size:1.25em}table:not(.cards) td.text:nth-child(2),table:not(.cards) td.text:last-child{min-width:13em}}
@media print{nav{display:none}}
"""
)
# Facts that stand in tables of their own.
_ELSEWHERE = ("Assumed", "Of the cost model")
# Headings of what the page shows in another form, and whether their facts are kept.
_SKIPPED = {"What would have to change": True, "Roles": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading with figures, tables and sentences below it."""

    title: str
    figures: tuple[Figure, ...] = ()
    parts: tuple[str, ...] = ()
    note: str = ""
    scripts: tuple[str, ...] = ()


def answer_page(
    answer: Answer | Estimate,
    blocks: Sequence[Block],
    sections: Sequence[Section],
    launch: Launch,
    *,
    live: bool,
    version: str,
) -> str:
    """Write the page.

    Parameters
    ----------
    answer : Answer or Estimate
    blocks : sequence of Block
        What the terminal shows: the answer in words, its facts, and tables beside that of the plans.
    sections : sequence of Section
        Figures and what belongs to them.
    launch : Launch
        What to type to run the plan.
    live : bool
        Whether plots are interactive, which needs plotly; without, they are SVG.
    version : str
        Of the planner.

    Raises
    ------
    MissingExtra
        ``live`` without plotly.
    """
    setting = answer.setting
    title = f"{setting.model} on {setting.cluster}"
    compared, others = _of_frameworks(answer, blocks)
    rest = _after_ranking(others)
    known = [block for block in rest if isinstance(block, Facts)]
    tables = _by_heading(rest)
    every = [
        *compared,
        *sections,
        *_sensitivity(answer.sensitivity if isinstance(answer, Estimate) else None),
        Section(title="Assumptions", parts=(assumptions_table(answer.assumptions, answer.model_assumptions),)),
        Section(title="Provenance", parts=(facts(provenance(setting, version, answer.error_bars)),)),
    ]
    ranked = isinstance(answer, Answer)
    first = "Plans" if ranked else "The plan"
    seq = f", sequence length {setting.seq:,}" if setting.seq else ""
    question = (
        f"{setting.mode} of {setting.model} at global batch {setting.global_batch:,}{seq}, {setting.precision}, {setting.optimizer}; "
        f"up to {setting.gpus:,} x {setting.device}; cost model {setting.cost_model}; best by {answer.objective.replace('_', ' ')}"
    )
    head = [f'<p class="soft question">{escaped(question)}</p>', *first_screen(answer, blocks, launch)]
    plans = [
        *([] if not ranked else ['<p class="soft">Click on a title, or press Enter on it, to sort by it.</p>']),
        _plans_table(shown_plans(answer), answer.objective),
        *(caption_html(block) for block in [block for block in others if isinstance(block, Table)][:1]),
        *(block_html(block, without=(*_ELSEWHERE, *first_facts(answer))) for block in known),
    ]
    titles = [section.title for section in every]
    for heading in [heading for heading in tables if not any(heading.startswith(title) for title in titles)]:
        plans += [block_html(Heading(heading)), *(block_html(block) for block in tables[heading])]
    for n, section in enumerate(every):
        # A figure and the table of its numbers belong together.
        own = [block_html(b) for heading in tables if heading.startswith(section.title) for b in tables[heading]]
        every[n] = replace(section, parts=(*own, *section.parts))
    return assembled(title, head, first, plans, every, live=live)


def assembled(
    title: str, head: Sequence[str], first: str, plans: Sequence[str], sections: Sequence[Section], *, live: bool
) -> str:
    """Put a page together.

    Parameters
    ----------
    title : str
    head : sequence of str
        HTML above the contents.
    first : str
        Title of the first section.
    plans : sequence of str
        HTML of the first section.
    sections : sequence of Section
    live : bool
        Whether plots are interactive, which needs plotly.

    Raises
    ------
    MissingExtra
        ``live`` without plotly.
    """
    titles = [first, *(section.title for section in sections)]
    links = " ".join(f'<a href="#{_anchor(one)}">{escaped(one)}</a>' for one in titles)
    body = [
        f"<h1>{escaped(title)}</h1>",
        *head,
        f'<nav aria-label="contents">{links}</nav>',
        f'<h2 id="{_anchor(first)}">{escaped(first)}</h2>',
        *plans,
    ]
    for section in sections:
        body.append(f'<h2 id="{_anchor(section.title)}">{escaped(section.title)}</h2>')
        if section.figures:
            body.append(figures_html(section.figures, live=live))
        body += section.parts
        if section.note:
            body.append(f'<p class="soft">{escaped(section.note)}</p>')
    figures = [figure for section in sections for figure in section.figures]
    scripts = [script for section in sections for script in section.scripts]
    if live and figures:
        data, plots = plot_scripts(figures)
        body.append(data)
        scripts += plots
    return page(title, body, style=PLOT_STYLE + _STYLE, scripts=scripts)


def _of_frameworks(answer: Answer | Estimate, blocks: Sequence[Block]) -> tuple[list[Section], list[Block]]:
    """What compares several frameworks or engines as a section of its own, and the other blocks."""
    compared = frameworks_blocks(answer) if isinstance(answer, Answer) else []
    parts = tuple(block_html(block) for block in compared if not isinstance(block, Heading))
    return [Section(title="Frameworks", parts=parts)] if parts else [], [b for b in blocks if b not in compared]


def _after_ranking(blocks: Sequence[Block]) -> list[Block]:
    """Everything but the first table, which the page has in its own form, and what terminals show in place of figures and tables here."""
    rest: list[Block] = []
    seen_table, skipping = False, ""
    for block in blocks:
        if isinstance(block, Table) and not seen_table:
            seen_table, skipping = True, ""
            continue
        if isinstance(block, Heading):
            skipping = next((title for title in _SKIPPED if block.text.startswith(title)), "")
        if not skipping or (isinstance(block, Facts) and _SKIPPED[skipping]):
            rest.append(block)
    return rest


def _by_heading(blocks: Sequence[Block]) -> dict[str, list[Table]]:
    """Tables by the heading that they stand under."""
    found: dict[str, list[Table]] = {}
    heading = ""
    for block in blocks:
        if isinstance(block, Heading):
            heading = block.text
        elif isinstance(block, Table):
            found.setdefault(heading, []).append(block)
    return found


def _anchor(title: str) -> str:
    return "section-" + "".join(c if c.isalnum() else "-" for c in title.lower())


# -- tables ---------------------------------------------------------------------------------------------------------------------


def _plans_table(shown: Mapping[str, RankedPlan], objective: str) -> str:
    """Every plan with everything that is known of all of them."""
    plans = list(shown.values())
    has_tokens = all(plan.get("tokens_per_s_per_gpu") is not None for plan in plans)
    unit = time_unit(min(plan.step_time_s for plan in plans))
    ranked = [label.startswith("#") for label in shown]

    change = change_column((), objective, 0)

    def time_text(seconds: float) -> str:
        return f"{significant(seconds / unit.size)} {unit.name}"

    def numbers(
        title: str, meaning: str, values: Iterable[float | None], text: Callable[[float], str]
    ) -> tuple[str, str, list[Cell]]:
        return title, meaning, [Cell("" if value is None else text(value), value) for value in values]

    def of_ranked(values: Iterable[float | None]) -> list[float | None]:
        return [value if known else None for value, known in zip(values, ranked, strict=True)]

    def figures(name: str) -> list[float | None]:
        return [plan.get(name) for plan in plans]

    costs = [(cost, [cost.of(plan) for plan in plans]) for cost in shown_costs()]
    columns: list[tuple[str, str, list[Cell]]] = [
        (
            "plan",
            "number, or what the plan is compared for",
            [Cell(label, int(label[1:]) if known else 1e9) for label, known in zip(shown, ranked, strict=True)],
        ),
        ("what it is", "", [Cell(plan.summary, plan.summary) for plan in plans]),
        numbers("step", "predicted time of a step", (plan.step_time_s for plan in plans), time_text),
        (
            "80 % interval",
            "a measurement lies in it with a chance of 80 %",
            [Cell(interval_text((p.step_time_low_s, p.step_time_high_s), unit), p.step_time_low_s) for p in plans],
        ),
        numbers(
            "P(best)",
            "of the plans compared, to be the best when measured",
            of_ranked(plan.probability_best for plan in plans),
            percent,
        ),
        numbers(
            f"{change.title} vs first",
            "of the figure that plans are ranked by",
            of_ranked(plan.gap for plan in plans),
            lambda gap: change_text(1.0 + gap, objective),
        ),
        numbers("GPUs", "in use", (plan.workers for plan in plans), lambda v: f"{v:,.0f}"),
        *([] if has_tokens else [numbers("samples/s", "", figures("throughput_samples_per_s"), significant)]),
        numbers("tokens/s per GPU", "", figures("tokens_per_s_per_gpu"), significant),
        numbers("MFU", "model FLOP over what the GPUs in use could do", figures("mfu"), percent),
        numbers("speed-up", "over one worker", figures("speedup"), significant),
        (
            "memory",
            "of the fullest GPU, and what it has",
            [
                Cell(used_of_total(plan.memory_bytes_per_gpu, plan.memory_there_bytes), plan.memory_bytes_per_gpu)
                for plan in plans
            ],
        ),
        ("P(fits)", "chance that it fits", [Cell(plan.fits_text, plan.fits_probability) for plan in plans]),
        numbers(
            "exposed comm.",
            "share of the step that waits for the network",
            (plan.exposed_communication_share for plan in plans),
            percent,
        ),
        *(
            numbers(f"{cost.title} per {paid[0][1]}", "of the GPUs in use", (each for each, _ in paid), cost.text)
            for cost, paid in costs
        ),
        ("bottleneck", "largest part of the step", [Cell(plan.bottleneck, plan.bottleneck) for plan in plans]),
    ]
    kept = [column for column in columns if any(cell.value is not None for cell in column[2])]
    rows = [[column[2][n] for column in kept] for n in range(len(plans))]
    text = [n for n, column in enumerate(kept) if column[0] in ("what it is", "bottleneck")]
    return table([(title, meaning) for title, meaning, _ in kept], rows, text=text, broad=1)


def _sensitivity(rows: Sequence[Sensitivity] | None) -> list[Section]:
    if rows is None:
        return []
    _, *blocks = sensitivity_blocks(rows)
    return [
        Section(
            title="Sensitivity",
            parts=tuple(block_html(block) for block in (*blocks, Facts(tuple(sensitivity_facts(rows))))),
            note="By what factor a constant of the cost model would have to change for another of the plans shown to be the best, and "
            "how many standard deviations of what is known of the constant that is.",
        )
    ]


def assumptions_table(given: Sequence[Assumption], of_model: Sequence[Assumption]) -> str:
    """Everything that was taken for granted."""
    rows = [
        [
            Cell(a.name, a.name),
            Cell(a.value, a.value),
            Cell(f"{prefix}{a.source}", a.source),
            Cell(a.meaning, a.meaning),
        ]
        for prefix, assumptions in (("", given), ("cost model, ", of_model))
        for a in assumptions
    ]
    titles = ["what", "taken as", "from", *(["what it means"] if of_model else [])]
    return table([(title, "") for title in titles], [row[: len(titles)] for row in rows], text=range(len(titles)))


def provenance(setting: Setting, version: str, bars: ErrorBars | None = None) -> list[tuple[str, str]]:
    """Where an answer comes from."""
    pairs = [("planner", version)]
    if setting.command_line:
        pairs.append(("command line", setting.command_line))
    pairs += [(f"{role} file, sha256", digest) for role, digest in setting.inputs.items()]
    pairs += [(name, str(value)) for name, value in setting.cost_model_options.items()]
    if bars is not None:
        pairs.append(("error bars", bars.note or f"calibration '{bars.calibration}' ({bars.kind})"))
    return pairs


def serving_page(
    answer: Answer, blocks: Sequence[Block], launch: Launch, fronts: Sequence[Section], *, live: bool, version: str
) -> str:
    """Write the page.

    Parameters
    ----------
    answer : Answer
    blocks : sequence of Block
        What the terminal shows.
    launch : Launch
        What to type to run the plan.
    fronts : sequence of Section
        Plans between speed and cost, where there are several.
    live : bool
        Whether plots are interactive, which needs plotly.
    version : str
        Of the planner.
    """
    setting, load = answer.setting, answer.setting.load
    assert load is not None
    shown = {f"#{plan.rank}": plan for plan in answer.plans}
    tpot, ttft = serving_times(shown)
    compared, others = _of_frameworks(answer, blocks)
    sections = [
        *compared,
        Section(title="Time per token", figures=(tpot,)),
        Section(title="Time to the first token", figures=(ttft,)),
        Section(title="What fills the memory", figures=(memory(shown, answer.space),)),
        *fronts,
        Section(title="Assumptions", parts=(assumptions_table(answer.assumptions, answer.model_assumptions),)),
        Section(title="Provenance", parts=(facts(provenance(setting, version)),)),
    ]
    question = (
        f"serving {setting.model}: prompts of {load.prompt_tokens:,} and answers of {load.output_tokens:,} tokens on average, "
        f"{setting.precision}, cache in {load.kv_precision}; up to {setting.gpus:,} x {setting.device}; best by {answer.objective}"
    )
    tables = [block for block in others if isinstance(block, Table)]
    known = [block for block in others if isinstance(block, Facts)]
    head = [f'<p class="soft question">{escaped(question)}</p>', *first_screen(answer, blocks, launch)]
    first = [
        '<p class="soft">Click on a title, or press Enter on it, to sort by it.</p>',
        *(table_html(block, cards=True) for block in tables),
        *(block_html(block, without=(*_ELSEWHERE, *first_facts(answer))) for block in known),
    ]
    return assembled(f"{setting.model} on {setting.cluster}", head, "Plans", first, sections, live=live)

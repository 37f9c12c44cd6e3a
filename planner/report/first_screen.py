"""The top of a page: the plan, its speed, whether it fits, what limits it, how sure that is, what else there is, what to type next."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from planner.core.answer import Answer, Estimate, RankedPlan
from planner.core.blocks import Block, Facts, Heading, Sentence
from planner.core.numbers import byte_text, duration_text, joined_words, percents, significant
from planner.core.objectives import compared_words, shown_costs, with_unit
from planner.report.answer import bottleneck_text
from planner.report.figures.kinds import COLOURS, colour_of
from planner.report.frameworks import is_of_frameworks
from planner.report.page import escaped, facts
from planner.report.roles import is_roles, role_line, roles_of
from planner.report.tables import largest_parts, paid_text


def _rules(shade: int) -> str:
    return "".join(f".bar .{name},.key .{name}{{background:{pair[shade]}}}" for name, pair in COLOURS.items())


FIRST_STYLE = (
    _rules(0)
    + f"\n@media screen and (prefers-color-scheme:dark){{{_rules(1)}}}\n"
    + """\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,14em),1fr));gap:8px;margin:8px 0}
.tile{border:1px solid var(--line);border-radius:6px;padding:.45em .8em;min-width:0;overflow-wrap:anywhere}
.tile h2{all:unset;display:block;color:var(--soft);font-size:.85em}
.tile p{margin:.15em 0;max-width:none;font-size:.88em}.tile .value{font-size:1.2em;font-weight:600}
.tile .value span{font-size:.72em;font-weight:400;color:var(--soft)}
.tile dl{font-size:.88em;margin:.2em 0;gap:.1em .8em}.half{grid-template-columns:repeat(auto-fit,minmax(min(100%,30em),1fr))}
.bar{position:relative;display:flex;height:10px;margin:.35em 0;background:var(--line);border-radius:3px;overflow:hidden}
.bar i{display:block;height:100%}.bar .at{position:absolute;width:3px;background:var(--ink)}.bar .over{background:#c62828}
.key b{display:inline-block;width:.7em;height:.7em;margin-right:.3em}.key span{margin-right:.9em;display:inline-block}
.tile pre{margin:.2em 0;white-space:pre-wrap;font-size:.86em;background:var(--band);padding:.3em .6em}
pre>code{display:block;padding-left:2em;text-indent:-2em}
pre span{display:inline-block;max-width:100%;text-indent:0;overflow-wrap:break-word}.question{max-width:none}
.tile details pre{max-height:22em;overflow:auto;white-space:pre}.tile summary{cursor:pointer;font-size:.88em}
@media (max-width:560px){.answer{font-size:1em}}
@media (max-width:560px){.tiles{gap:5px;margin:5px 0}.tile{padding:.3em .6em}.tile dl{grid-template-columns:max-content 1fr}}
"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to type to run a plan.

    Attributes
    ----------
    commands : tuple of str
        One after the other.
    title : str
        The program that they start; empty where no target writes such plans.
    target : str
        Its name for ``planner export --to``.
    otherwise : (where, command) or None
        Another way to start it than the last command.
    cannot : tuple of (setting, why)
        Settings of the plan that the program cannot express.
    script : (name, text) or None
        What that starts.
    """

    commands: tuple[str, ...]
    title: str = ""
    target: str = ""
    otherwise: tuple[str, str] | None = None
    cannot: tuple[tuple[str, str], ...] = ()
    script: tuple[str, str] | None = None


def first_facts(answer: Answer | Estimate) -> tuple[str, ...]:
    """Names of the facts of an answer that stand at the top, or that its commands say."""
    best = answer.best if isinstance(answer, Answer) else answer.ranked
    speed = answer.space.report.speed_facts(best, answer.objective)
    return (*(name for name, _ in speed), "Memory", "Limited by", "Proof", "Workers", "Next")


def first_screen(answer: Answer | Estimate, blocks: Sequence[Block], launch: Launch) -> list[str]:
    """HTML of what a reader sees first.

    Parameters
    ----------
    answer : Answer or Estimate
    blocks : sequence of Block
        What the terminal shows.
    launch : Launch
    """
    best = answer.best if isinstance(answer, Answer) else answer.ranked
    first = next(block for block in blocks if isinstance(block, Facts)).pairs
    verdict = dict(first)
    headings = [(n, block) for n, block in enumerate(blocks) if isinstance(block, Heading)]
    heading = min((n for n, one in headings if not is_roles(one) and not is_of_frameworks(one)), default=len(blocks))
    sentences = [b for n, b in enumerate(blocks) if isinstance(b, Sentence) and (b.strong or n < heading)]
    words = next(block for block in sentences if block.strong)
    speed = [name for name, _ in answer.space.report.speed_facts(best, answer.objective)]
    more = [f"{name}: {verdict[name]}" for name in (*speed[1:], "Workers") if name in verdict]
    help_it_fit = [] if best.fits else [text for name, text in first if name == "Note"]
    tiles = [
        _tile(speed[0], verdict[speed[0]], _interval(best), *more),
        _tile("Memory" if best.fits else "Memory: it does not fit", verdict["Memory"], _filled(best), *help_it_fit),
        _tile("What limits it", bottleneck_text(best), _parts(best)),
    ]
    proof = [f"{verdict['Proof'][:1].upper()}{verdict['Proof'][1:]}."] if "Proof" in verdict else []
    sure = (*proof, *(sentence.text for sentence in sentences if sentence is not words))
    if sure:
        tiles.append(_tile("How sure this is", "", "", *sure))
    tiles += [_costs(best)] if answer.setting.mode == "training" else []
    others = _others(answer)
    return [
        f'<p class="answer"><strong>{escaped(words.text)}</strong></p>',
        f'<div class="tiles">{"".join(tiles)}</div>',
        '<div class="tiles half">',
        *([_commands(launch)] if best.fits else []),
        *([f'<div class="tile"><h2>What else there is</h2>{facts(others)}</div>'] if others else []),
        "</div>",
    ]


def _tile(title: str, value: str, bar: str, *more: str) -> str:
    """A box: what it is about, the figure, its bar, and what else there is to say; a figure ends at its first comma or bracket."""
    found = re.fullmatch(r"(.+?)((?:, | \().*)?", value)
    head, note = found.groups("") if found else ("", "")
    said = f'<p class="value">{escaped(head)}<span>{escaped(note)}</span></p>' if head else ""
    rest = "".join(f"<p>{escaped(text)}</p>" for text in more)
    return f'<div class="tile"><h2>{escaped(title)}</h2>{said}{bar}{rest}</div>'


# Tokens, or samples, that the cost of a training is told for, and what they are called; then a whole training of a language model.
_MANY = {"tokens": (10**9, "billion tokens"), "samples": (10**6, "million samples")}
_WHOLE_TOKENS, _WHOLE = 10**12, "trillion tokens"


def _costs(plan: RankedPlan) -> str:
    """What training costs: GPU hours, and money and energy where a price and a power are stated."""
    tokens_per_s = plan.get("tokens_per_s")
    per_s = tokens_per_s or plan.throughput_samples_per_s
    many, words = _MANY["samples" if tokens_per_s is None else "tokens"]

    def costs(number: int) -> list[str]:
        steps = number / per_s / plan.step_time_s
        known = [(one, plan.get(one.figure)) for one in shown_costs()]
        hours = plan.workers * number / per_s / 3600.0
        shown = [with_unit(each * steps, one.unit) for one, each in known if each is not None]
        return [f"{significant(hours)} GPU hours", *shown]

    hours, *more = costs(many)
    said = [f"{joined_words(more)} per {words}." if more else "No price or power is stated: give --price or --power."]
    if tokens_per_s is not None:
        said.append(f"A {_WHOLE}: {duration_text(_WHOLE_TOKENS / per_s)}, {joined_words(costs(_WHOLE_TOKENS))}.")
    return _tile("What training costs", f"{hours} (per {words})", "", *said)


def _share(value: float) -> str:
    return f"{100.0 * value:.2f}%"


def _interval(plan: RankedPlan) -> str:
    """The time and its interval on a line that starts at zero; nothing where there is no interval."""
    low, high = plan.step_time_low_s, plan.step_time_high_s
    if low is None or high is None:
        return ""
    time = plan.step_time_s if plan.main == "step_time_s" else float(plan[plan.main])
    end = 1.1 * max(high, time)
    inside = f'<i style="width:{_share(low / end)}"></i><i class="sky" style="width:{_share((high - low) / end)}"></i>'
    return f'<div class="bar" title="80 % interval">{inside}<i class="at" style="left:{_share(time / end)}"></i></div>'


def _filled(plan: RankedPlan) -> str:
    """How full the memory is: what is planned with is a mark where it is not all, and what is more than that is red."""
    used, limit, there = plan.memory_bytes_per_gpu, plan.memory_capacity_bytes, plan.memory_there_bytes
    end = max(used, there)
    if not 0.0 < end < float("inf"):
        return ""
    over = f'<i class="over" style="width:{_share((used - limit) / end)}"></i>' if used > limit else ""
    mark = f'<i class="at" style="left:{_share(limit / end)}"></i>' if limit < there else ""
    words = f"{byte_text(used)} of {byte_text(there)}" + (f"; up to {byte_text(limit)} is planned with" if mark else "")
    inside = f'<i class="blue" style="width:{_share(min(used, limit) / end)}"></i>{over}{mark}'
    return f'<div class="bar" title="{escaped(words)}">{inside}</div>'


def _parts(plan: RankedPlan) -> str:
    """What the time is made of: the bar, and the largest parts in words."""
    numbers = {word: n for n, word in enumerate(plan.labelled_parts(plan.main))}
    parts = largest_parts(plan)
    texts = percents(parts)
    shown = [
        (word, share, colour_of(word, numbers[word]) if word in numbers else "ink") for word, share in parts.items()
    ]
    bar = "".join(f'<i class="{colour}" style="width:{_share(share)}"></i>' for _, share, colour in shown)
    key = "".join(f'<span><b class="{colour}"></b>{escaped(word)} {texts[word]}</span>' for word, _, colour in shown)
    return f'<div class="bar">{bar}</div><p class="key">{key}</p>' if shown else ""


def _others(answer: Answer | Estimate) -> list[tuple[str, str]]:
    """The next best plan, and plans for other wishes."""
    if isinstance(answer, Estimate):
        best = answer.best
        if best is None or best.plan == answer.ranked.plan:
            return []
        ahead = compared_words(best.score / answer.ranked.score, answer.objective)
        return [("The best plan", f"{ahead} ({paid_text(best, answer.objective, answer.ranked)}): {best.summary}")]
    found = []
    if len(answer.listed) > 1:
        second = answer.listed[1]
        paid = paid_text(second, answer.objective, answer.best)
        text = f"{compared_words(1.0 + second.gap, answer.objective)} ({paid}): {second.summary}"
        found.append((f"Next best: plan {second.rank}", text))
    return [*found, *(role_line(answer, roles, plan) for roles, plan in roles_of(answer))]


def _unbroken(command: str) -> str:
    """A command whose options are not broken at their hyphens."""
    return " ".join(f"<span>{escaped(word)}</span>" for word in command.split(" "))


def _commands(launch: Launch) -> str:
    title = f"Type next, to run it with {launch.title}" if launch.title else "Type next"
    lines = ["<pre>" + "".join(f"<code>{_unbroken(command)}</code>" for command in launch.commands) + "</pre>"]
    if launch.otherwise is not None:
        where, command = launch.otherwise
        lines.append(f"<p>Without Slurm, {escaped(where[0].lower() + where[1:])}: <code>{escaped(command)}</code></p>")
    if launch.cannot:
        names = ", ".join(f"{name} ({why})" for name, why in launch.cannot)
        lines.append(f"<p>{escaped(launch.title)} cannot express: {escaped(names)}</p>")
    if launch.script is not None:
        lines.append(
            f"<details><summary>{escaped(launch.script[0])}</summary><pre>{escaped(launch.script[1])}</pre></details>"
        )
    return f'<div class="tile"><h2>{escaped(title)}</h2>{"".join(lines)}</div>'

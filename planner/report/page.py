"""A self-contained HTML page with blocks of a report: one file without network or library, light and dark, for narrow screens and paper.

Whatever stands in a page goes through `escaped`: tables of users may hold any text. Notebooks have styles of their
own: for them `html_of` writes the same blocks as a fragment.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from planner.core.blocks import Block, Facts, Heading, Sentence, Table

_STYLE = """\
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--line:#d1d9e0;--back:#fff;--band:#f6f8fa;--mark:#0b62c4}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--back:#0d1117;--band:#161b22;
--mark:#6cb0ff}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1320px;padding:16px;font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--back)}
h1{font-size:1.5em;margin:.2em 0}
h2{font-size:1.2em;margin:1.8em 0 .4em;padding-top:.8em;border-top:1px solid var(--line);overflow-wrap:anywhere}
h3{font-size:1em;margin:1.4em 0 .4em}
p{margin:.5em 0;max-width:75ch}.soft,figcaption{color:var(--soft);font-size:.9em}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9em}
th,td{padding:.3em .6em;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;white-space:nowrap}
th.text,td.text{text-align:left;white-space:normal;min-width:9em;overflow-wrap:anywhere}td.text:first-child{overflow-wrap:normal}
td.text:last-child{min-width:22em}
thead th{vertical-align:bottom;border-bottom:2px solid var(--line);white-space:normal}
tbody tr:nth-child(even){background:var(--band)}
th span{cursor:pointer;font-weight:600}th span:hover,th span:focus-visible{text-decoration:underline}
th[aria-sort=ascending] span::after{content:" \\25B2"}th[aria-sort=descending] span::after{content:" \\25BC"}
th:first-child,td:first-child{position:sticky;left:0;background:var(--back)}tbody tr:nth-child(even) td:first-child{background:var(--band)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2em 1em;margin:.5em 0}dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:16px}
figure{margin:0}svg[role=img]{display:block;width:100%;height:auto;max-width:620px}
svg[role=img] text{fill:var(--soft);font:13px system-ui,sans-serif}svg .grid{stroke:var(--line)}
svg .axis{stroke:var(--ink)}
.cards th,.cards td{padding:.3em .5em}.cards td.text,.cards td.text:last-child{min-width:0}.cards td:first-child{white-space:normal}
.cards th{overflow-wrap:normal}.cards td:nth-child(2){min-width:15em}
@media screen and (max-width:1400px){.cards{font-size:.84em}.cards td:nth-child(2){min-width:12em}}
@media screen and (max-width:900px){.cards{font-size:.9em}}
@media screen and (max-width:900px){.cards,.cards thead,.cards tbody,.cards tr,.cards td{display:block}
.cards thead tr{display:flex;flex-wrap:wrap;gap:.1em 1em}.cards thead th{position:static;border:0;padding:.1em 0}
.cards thead th{text-align:left;min-width:0}.cards thead span{text-decoration:underline dotted}
.cards tbody tr{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,11.5em),1fr));gap:.1em 1.2em;padding:.5em}
.cards tbody tr{border-bottom:1px solid var(--line)}
.cards tbody td{display:flex;justify-content:space-between;gap:.6em;border:0;padding:0;position:static;background:none}
.cards tbody td{white-space:normal;overflow-wrap:normal}
.cards tbody td::before{content:attr(data-t);color:var(--soft);text-align:left;overflow-wrap:normal}
.cards tbody td:first-child{font-weight:600}.cards tbody td:first-child::before,.cards tbody td.broad::before{content:none}
.cards tbody td.broad{grid-column:1/-1;order:-1}.cards tbody td:first-child{grid-column:1/-1;order:-2}.cards tbody td:empty{display:none}}
@media (max-width:560px){body{padding:10px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:.5em}}
@page{size:landscape;margin:12mm}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--line:#bbb;--back:#fff;--band:#f4f4f4;--mark:#0b62c4}
body{max-width:none;padding:0;font-size:9pt}.wide{overflow:visible}table{font-size:7pt}th,td{padding:.15em .35em}
th.text,td.text{min-width:6em}tr,figure{break-inside:avoid}
h2,h3{break-after:avoid}thead{display:table-header-group}svg[role=img]{max-width:110mm}.charts{grid-template-columns:1fr 1fr}}
"""
# A click on the head of a column sorts by it, a second one the other way; cells without a number (data-v) come last.
_SCRIPT = """\
document.querySelectorAll("th span").forEach(function(b){
function sort(){var h=b.parentNode,t=h.closest("table"),i=h.cellIndex,up=h.getAttribute("aria-sort")!=="ascending",body=t.tBodies[0];
t.querySelectorAll("th").forEach(function(o){o.removeAttribute("aria-sort")});h.setAttribute("aria-sort",up?"ascending":"descending");
Array.from(body.rows).map(function(r,n){var v=r.cells[i].dataset.v;return{r:r,n:n,k:v===undefined?null:h.className==="text"?v:+v}})
.sort(function(a,b){if(a.k===null||b.k===null)return(a.k===null)-(b.k===null)||a.n-b.n;
return(a.k<b.k?-1:a.k>b.k?1:0)*(up?1:-1)||a.n-b.n}).forEach(function(x){body.appendChild(x.r)})}
b.onclick=sort;b.onkeydown=function(e){if(e.key==="Enter"||e.key===" "){e.preventDefault();sort()}}});
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a table shows, and what it is sorted by; None where there is nothing to sort by."""

    text: str
    value: float | str | None = None


def escaped(text: str) -> str:
    """Text as it may stand anywhere in a page, attributes included; what XML cannot hold is dropped.

    >>> escaped('<b> & "x"')
    '&lt;b&gt; &amp; &quot;x&quot;'
    """
    return html.escape("".join(c for c in text if c in "\n\t" or (c >= " " and not "\ud800" <= c <= "\udfff")))


def table(
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[Cell]],
    *,
    text: Sequence[int] = (0,),
    broad: int | None = None,
) -> str:
    """A table that can be sorted.

    Parameters
    ----------
    columns : sequence of (str, str)
        Title, and what it means (shown on hovering); empty where the title says it.
    rows : sequence of sequences of Cell
        As many in each as there are columns.
    text : sequence of int
        Columns of words; the others are numbers.
    broad : int, optional
        The column that says what a row is. With one, rows become cards on narrow screens, where every number keeps its title.
    """
    assert all(len(row) == len(columns) for row in rows)
    kind = ["text" if n in text else "number" for n in range(len(columns))]
    head = "".join(
        f'<th scope="col" class="{name}"{_title(meaning)}><span role="button" tabindex="0">{escaped(title)}</span></th>'
        for (title, meaning), name in zip(columns, kind, strict=True)
    )
    titles = ["" if broad is None else title for title, _ in columns]
    if broad is not None:
        kind[broad] += " broad"
    body = "\n".join(
        "<tr>" + "".join(_cell(*one) for one in zip(row, kind, titles, strict=True)) + "</tr>" for row in rows
    )
    cards = "" if broad is None else ' class="cards"'
    return f'<div class="wide"><table{cards}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def _title(meaning: str) -> str:
    return f' title="{escaped(meaning)}"' if meaning else ""


def _cell(cell: Cell, kind: str, title: str) -> str:
    value = "" if cell.value is None else f' data-v="{escaped(str(cell.value))}"'
    value += f' data-t="{escaped(title)}"' if title else ""
    return f'<td class="{kind}"{value}>{escaped(cell.text)}</td>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values."""
    return "<dl>" + "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in pairs) + "</dl>"


def json_text_for_script(value: object) -> str:
    r"""JSON that may stand inside a script element: no text of a user can end it.

    >>> json_text_for_script({"name": "</script><b>"})
    '{"name":"\\u003c/script\\u003e\\u003cb\\u003e"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page(title: str, parts: Sequence[str], *, style: str = "", scripts: Sequence[str] = ()) -> str:
    """The whole file: HTML that is well-formed XML, too.

    Parameters
    ----------
    title : str
    parts : sequence of str
        HTML of the body.
    style : str
        Rules beside those of every page.
    scripts : sequence of str
        Programs that run after that of every page; none may hold what ends a script element or a CDATA section.
    """
    body = "\n".join(parts)
    more = "".join(f"<script>\n//<![CDATA[\n{script}\n//]]>\n</script>\n" for script in scripts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{escaped(title)}</title>\n<style>\n{_STYLE}{style}</style>\n</head>\n<body>\n{body}\n"
        f"<script>\n//<![CDATA[\n{_SCRIPT}//]]>\n</script>\n{more}</body>\n</html>\n"
    )


_NUMBER = re.compile(r"[-+<x]?([\d,]*\.?\d+(?:e[-+]?\d+)?)")


def block_html(block: Block, *, without: Sequence[str] = ()) -> str:
    """One block.

    Parameters
    ----------
    block : Block
    without : sequence of str
        Facts that a page shows in another form.
    """
    if isinstance(block, Heading):
        return f"<h2>{escaped(block.text)}</h2>"
    if isinstance(block, Sentence):
        text = escaped(block.text)
        return f'<p class="answer"><strong>{text}</strong></p>' if block.strong else f"<p>{text}</p>"
    if isinstance(block, Facts):
        kept = [pair for pair in block.pairs if pair[0] not in without]
        return facts(kept) if kept else ""
    return table_html(block)


def table_html(block: Table, *, cards: bool = False) -> str:
    """A table that can be sorted, whatever its columns hold; the sum stays at the end.

    Parameters
    ----------
    block : Table
    cards : bool
        Whether rows become cards on narrow screens, under the words of the flexible column.
    """
    columns = [(_column_title(column.title, column.unit), "") for column in block.columns]
    text = [n for n, column in enumerate(block.columns) if column.is_text]
    rows = []
    for r in range(block.num_rows):
        is_total = block.total and r == block.num_rows - 1
        rows.append(
            [
                Cell(column.cells[r].strip(), None if is_total else _value(column.cells[r], is_text=column.is_text))
                for column in block.columns
            ]
        )
    bars = [n for n, column in enumerate(block.columns) if not column.title]  # of letters, for terminals
    keep = [n for n in range(len(block.columns)) if n not in bars]
    return table(
        [columns[n] for n in keep],
        [[row[n] for n in keep] for row in rows],
        text=[keep.index(n) for n in text if n in keep],
        broad=next((keep.index(n) for n in keep if cards and block.columns[n].flexible), None),
    ) + caption_html(block)


def caption_html(block: Table) -> str:
    """The sentences below a table."""
    return "".join(f"\n<p>{escaped(text)}</p>" for text in block.caption)


def _column_title(title: str, unit: str) -> str:
    words = title.replace("\n", " ")
    if unit.startswith("vs "):  # "step time vs first"
        return f"{words} {unit}"
    return f"{words} ({unit})" if unit else words


def _value(text: str, *, is_text: bool) -> float | str | None:
    """What a cell is sorted by.

    >>> _value("1,234", is_text=False), _value("76.5 / 80 GiB", is_text=False), _value("-", is_text=False), _value("", is_text=False)
    (1234.0, 76.5, None, None)
    >>> _value("-3.5 %", is_text=False), _value("+0.061 %", is_text=False)
    (-3.5, 0.061)
    """
    if is_text:
        return text
    found = _NUMBER.match(text.strip())
    if not found:
        return None
    number = float(found[1].replace(",", ""))
    return -number if text.strip().startswith("-") else number


_MOST_ROWS = 60  # of a table in a notebook; the rest is counted
# A number with its unit stays on one line.
_LEFT, _RIGHT = 'style="text-align: left"', 'style="text-align: right; white-space: nowrap"'


def html_of(blocks: Sequence[Block]) -> str:
    """Write a report as a fragment of HTML without styles or scripts of its own: a notebook has its own.

    Every text is escaped, and a long table ends in the number of rows left out.
    """
    parts = []
    for block in blocks:
        if isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Facts):
            rows = "".join(
                f'<tr><th style="text-align: left; vertical-align: top">{escape(name)}</th>'
                f'<td style="text-align: left">{escape(value)}</td></tr>'
                for name, value in block.pairs
            )
            parts.append(f"<details><summary>Details</summary><table>{rows}</table></details>")
        elif isinstance(block, Heading):
            parts.append(f"<h4>{escape(block.text)}</h4>")
        else:
            text = escape(block.text)
            parts.append(f"<p><strong>{text}</strong></p>" if block.strong else f"<p>{text}</p>")
    return f"<div>{''.join(parts)}</div>"


def _table(table: Table) -> str:
    def titled(title: str, unit: str) -> str:
        return "<br>".join(escape(text) for text in (*title.split("\n"), *([unit] if unit else [])))

    head = "".join(f"<th>{titled(column.title, column.unit)}</th>" for column in table.columns)
    rows = []
    for row in range(min(table.num_rows, _MOST_ROWS)):
        cells = "".join(
            f"<td {_LEFT if column.is_text else _RIGHT}>{escape(column.cells[row])}</td>" for column in table.columns
        )
        rows.append(f"<tr>{cells}</tr>")
    left = table.num_rows - _MOST_ROWS
    more = f"<p>and {left} more rows</p>" if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"

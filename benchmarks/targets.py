"""The targets for rows left out beside what was reached: read from the tables of docs/accuracy.md, which the other benchmarks write.

    python benchmarks/targets.py            # print the table; every miss is listed again below it
    python benchmarks/targets.py --write    # into docs/accuracy.md, after benchmarks/accuracy.py, accuracy_kernels.py and intervals.py

Of several folds the worst figure counts.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pages import put

DOCUMENT = Path(__file__).parents[1] / "docs" / "accuracy.md"
START, END = "<!-- targets: python benchmarks/targets.py --write -->", "<!-- end of the targets -->"
Tables = dict[tuple[str, str, str], dict[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a figure of some rows of a part should be.

    Attributes
    ----------
    part : str
        Beginning of the bold name of the part.
    rows : str
        Pattern of the names of its rows.
    column : str
        Of the table.
    most, least : float or None
        The limits, in the unit of the table (per cent where it has them).
    title : str
        What the part is called here, where its own name needs the heading above it.
    section : str
        Beginning of the heading of the table, where several tables have such a part; else any.
    """

    part: str
    rows: str
    column: str
    most: float | None = None
    least: float | None = None
    title: str = ""
    section: str = ""

    @property
    def name(self) -> str:
        """Of the rows, for people."""
        return self.title or self.part

    def worst(self, tables: Tables) -> float | None:
        """The figure of the rows that is farthest beyond a limit, or nearest to it; None where the document has none."""
        found = [
            cells[self.column]
            for (section, part, row), cells in tables.items()
            if section.startswith(self.section)
            and part.startswith(self.part)
            and re.match(self.rows, row)
            and self.column in cells
        ]
        return max(found, key=self._beyond, default=None)

    def _beyond(self, value: float) -> float:
        """How far a figure is beyond a limit; below 0 where it meets both."""
        above = -math.inf if self.most is None else value - self.most
        below = -math.inf if self.least is None else self.least - value
        return max(above, below)

    def is_met(self, value: float | None) -> bool:
        """Whether a figure reaches it."""
        return value is not None and self._beyond(value) <= 0.0

    @property
    def limit(self) -> str:
        """In words."""
        if self.most is not None and self.least is not None:
            return f"{self.least:g} to {self.most:g}{self.unit}"
        return f"<= {self.most:g}{self.unit}" if self.most is not None else f">= {self.least:g}{self.unit}"

    @property
    def unit(self) -> str:
        """Per cent, or nothing."""
        return "" if self.column in _PLAIN else "%"


_PLAIN = frozenset({"tau", "regret", "top 3", "share of an unknown one's", "deviations from 80 %"})
LEFT_OUT = r"left out by "
CALM = r"not disturbed"
ALL = r""
SINCE_2020 = r"(?!m40|p100|titan|v100|t4\b|rtx-20).+"  # devices of that year or later
# Of the issue on accuracy at scale, then those of earlier versions.
TARGETS: tuple[Target, ...] = (
    Target(part="large dense training", rows=LEFT_OUT, column="MAPE", most=8),
    *(
        Target(part=f"Blackwell, dense, {name}", rows=r"$", column="MAPE", most=8)
        for name in ("bf16", "fp8", "mxfp8", "nvfp4")
    ),
    Target(part="Blackwell, mixtures", rows=r"$", column="MAPE", most=12),
    Target(part="Megatron-LM", rows=LEFT_OUT, column="MAPE", most=8),
    Target(
        part="files alike",
        rows=r"megatron_lm",
        column="coverage",
        least=75,
        most=85,
        title="Megatron-LM, 80 % intervals",
        section="Intervals: models",
    ),
    Target(part="nanotron", rows=CALM, column="regret", most=1.2, title="nanotron, runs not disturbed"),
    Target(part="measured memory, dense", rows=rf"$|{LEFT_OUT}", column="memory", most=3, title="memory, dense"),
    Target(part="nanotron", rows=LEFT_OUT, column="memory", most=3, title="memory, dense, nanotron"),
    Target(part="measured memory, mixtures", rows=r"$", column="memory", most=8, title="memory, mixtures"),
    Target(part="nanotron", rows=LEFT_OUT, column="recall", least=95, title="out of memory, nanotron"),
    Target(part="nanotron", rows=LEFT_OUT, column="false alarms", most=5, title="out of memory, nanotron"),
    *(
        Target(
            part=part, rows=r"$", column=column, title=f"P(fits) of 95 %, {title}", section=f"Memory: {left}", **limit
        )
        for left, part, title in (
            ("networks", "all frameworks", "networks left out"),
            ("networks", "nanotron", "networks left out, nanotron"),
            ("frameworks", "all frameworks", "frameworks left out"),
        )
        for column, limit in (("ran", {"least": 95.0}), ("unused", {"most": 10.0}))
    ),
    Target(
        part="products of 1e11 FLOP", rows=SINCE_2020, column="MAPE", most=8, title="large products, the worst device"
    ),
    Target(part="all products", rows=r"$", column="median", most=18),
    Target(part="across nodes", rows=r"$", column="median", most=15, title="collectives of 1 MB and more across nodes"),
    Target(
        part="named frameworks",
        rows=ALL,
        column="share of an unknown one's",
        most=1,
        title="interval scores of named frameworks",
        section="Intervals: named",
    ),
    Target(
        part="named frameworks",
        rows=ALL,
        column="deviations from 80 %",
        most=1.96,
        title="coverages of named frameworks",
        section="Intervals: named",
    ),
    Target(part="vTrain, single node", rows=LEFT_OUT, column="MAPE", most=12),
    Target(part="vTrain, single node", rows=LEFT_OUT, column="tau", least=0.85),
    Target(part="vTrain, single node", rows=LEFT_OUT, column="regret", most=1.04),
    Target(part="vTrain, several nodes", rows=LEFT_OUT, column="MAPE", most=10),
    Target(part="vTrain, several nodes", rows=LEFT_OUT, column="regret", most=1.02),
    Target(part="nanotron", rows=LEFT_OUT, column="median", most=15),
    Target(part="nanotron", rows=CALM, column="top 3", most=1.04, title="nanotron, runs not disturbed"),
    Target(part="llm-foundry", rows=LEFT_OUT, column="MAPE", most=8),
    Target(part="NeMo", rows=LEFT_OUT, column="MAPE", most=8),
    Target(part="BERT-Large", rows=LEFT_OUT, column="MAPE", most=12),
    Target(part="ResNet-50 on V100 and A100", rows=r"ResNet-50, nothing fitted", column="MAPE", most=12),
    Target(part="K80", title="networks for images on K80s", rows=LEFT_OUT, column="MAPE", most=12),
    Target(part="GEMM", rows=LEFT_OUT, column="median", most=20, title="products (DeepBench)"),
    Target(part="convolution", rows=LEFT_OUT, column="median", most=25, title="convolutions (DeepBench)"),
    Target(part="RNN", rows=LEFT_OUT, column="median", most=30, title="recurrent layers (DeepBench)"),
    Target(part="all, left out by machine", rows=r"$", column="median", most=20, title="collectives of 1 MB and more"),
    Target(
        part="Titan X, best library",
        title="networks for images on a Titan X",
        rows=r"(AlexNet|Overfeat|OxfordNet|GoogleNet)",
        column="MAPE",
        most=15,
    ),
)


def tables_of(text: str) -> Tables:
    r"""Heading, part and row -> column -> number, of all tables of a document; the first row of a part has no name of its own.

    >>> tables_of("### H\n| x | MAPE |\n| --- | ---: |\n| **A** (3), bundled | 5.0% |\n| left out by b | 6.5% |\n")
    {('H', 'A', ''): {'MAPE': 5.0}, ('H', 'A', 'left out by b'): {'MAPE': 6.5}}
    """
    found: Tables = {}
    columns: list[str] = []
    section = part = ""
    for line in text.splitlines():
        if not line.startswith("|"):
            section = line.lstrip("# ") if line.startswith("#") else section
            columns = []
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not columns:
            columns, part = cells, ""
            continue
        bold = re.match(r"\*\*(.+?)\*\*", cells[0])
        part = bold[1] if bold else part
        numbers: dict[str, float] = {}
        for name, cell in zip(columns[1:], cells[1:], strict=False):
            if re.fullmatch(r"[+-]?[0-9.]+%?", cell):
                numbers.setdefault(name, float(cell.rstrip("%")))
        if numbers:  # the first table of a section that has a row counts: ablations repeat the names
            found.setdefault((section, part, "" if bold else cells[0]), numbers)
    return found


def lines(text: str) -> list[str]:
    """The table of the targets, and the misses."""
    tables = tables_of(text)
    table = ["| rows left out | figure | target | reached | |", "| --- | --- | ---: | ---: | --- |"]
    missed = []
    for target in TARGETS:
        value = target.worst(tables)
        reached = "not found" if value is None else f"{value:g}{target.unit}"
        word = "met" if target.is_met(value) else "**missed**"
        table.append(f"| {target.name} | {target.column} | {target.limit} | {reached} | {word} |")
        if not target.is_met(value):
            missed.append(f"- {target.name}: {target.column} {reached}, target {target.limit}.")
    return [
        *table,
        "",
        f"Missed: {len(missed)} of {len(TARGETS)} (the reasons that are known: [What falls short](#what-falls-short)).",
        "",
        *missed,
    ]


def main(arguments: Sequence[str]) -> None:
    """Print the table, or write it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    made = "\n".join(lines(text.split(START, maxsplit=1)[0] + text.partition(END)[2]))
    if "--write" in arguments:
        put(DOCUMENT, START, made, END)
    else:
        print(made)


if __name__ == "__main__":
    main(sys.argv[1:])

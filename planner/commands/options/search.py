"""The options that say how long and how hard to search."""

from __future__ import annotations

from typing import Annotated

from planner.commands.options.panels import SEARCH, option

__all__ = [
    "Diverse",
    "Gap",
    "Seed",
    "Sensitivity",
    "Solver",
    "TimeLimit",
    "Top",
]

Top = Annotated[str, option("--top", "-k", metavar="K", help="Show the K best plans. Default: 5.", group=SEARCH)]
Sensitivity = Annotated[
    bool,
    option(
        "--sensitivity",
        metavar=None,
        help="Which constant (a bandwidth, an efficiency, ...) would have to change by how much for another plan to win.",
        group=SEARCH,
    ),
]
Diverse = Annotated[
    bool | None,
    option(
        "--diverse/--no-diverse",
        metavar=None,
        help=(
            "List plans that really differ: over a device mesh the best of each tp, cp, ep, pp, ZeRO stage, micro-batch and schedule (the "
            "default there); with a split per layer the best of each family."
        ),
        group=SEARCH,
    ),
]
TimeLimit = Annotated[
    str | None,
    option(
        "--time-limit",
        metavar="TIME",
        help="Stop after 30s, 2min, ... with the best so far. Default: 60s.",
        group=SEARCH,
    ),
]
Gap = Annotated[
    str,
    option(
        "--gap", metavar="X", help="Stop when no plan can be better by more than X, as in 1%. Default: 0.", group=SEARCH
    ),
]
Solver = Annotated[
    str | None,
    option(
        "--solver",
        metavar="NAME",
        help="Exact method: auto, program (integer program) or elimination. Default: auto.",
        group=SEARCH,
    ),
]
Seed = Annotated[
    str,
    option(
        "--seed", metavar="N", help="Seed of the solvers; the answer does not depend on it. Default: 0.", group=SEARCH
    ),
]

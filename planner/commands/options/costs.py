"""The options that say how plans are costed."""

from __future__ import annotations

from typing import Annotated

from planner.commands.options.panels import COSTS, option

__all__ = [
    "Algorithms",
    "Assume",
    "Calibration",
    "CostModel",
    "Extensions",
    "Framework",
    "Pipeline",
    "Power",
    "PppComm",
    "PppComp",
    "Price",
]

Price = Annotated[
    str | None,
    option(
        "--price", metavar="USD", help="Of one GPU for an hour, in place of the cluster or device file's.", group=COSTS
    ),
]
Power = Annotated[
    str | None,
    option(
        "--power",
        metavar="BUSY[,IDLE]",
        help="Of one GPU, in place of the device file's: '700 W' or '700 W,100 W'.",
        group=COSTS,
    ),
]
Assume = Annotated[
    list[str] | None,
    option(
        "--assume",
        metavar="NAME=VALUE",
        help="Change a named assumption of the cost model, as in dp_overlap=0.8. Repeatable.",
        group=COSTS,
    ),
]
CostModel = Annotated[
    str | None,
    option(
        "--cost-model",
        metavar="NAME",
        help="roofline, or paleo (the program of the paper). Default: roofline.",
        group=COSTS,
    ),
]
Calibration = Annotated[
    str | None,
    option(
        "--calibration",
        metavar="NAME|FILE",
        help="Constants fitted by 'planner calibrate' ('planner list calibrations'). Default: the bundled ones.",
        group=COSTS,
    ),
]
Framework = Annotated[
    str | None,
    option(
        "--framework",
        metavar="NAME|FILE",
        help="What runs the plan, with its costs and defaults ('planner list frameworks'). Default: a well-tuned implementation.",
        group=COSTS,
    ),
]
PppComp = Annotated[
    str | None,
    option(
        "--ppp-comp", metavar="X", help="paleo: share of the peak that computation reaches. Default: 1.0.", group=COSTS
    ),
]
PppComm = Annotated[
    str | None,
    option(
        "--ppp-comm", metavar="X", help="paleo: share of the bandwidth that messages reach. Default: 1.0.", group=COSTS
    ),
]
Pipeline = Annotated[
    bool,
    option("--paleo-pipeline", metavar=None, help="paleo: memory and computation overlap in a layer.", group=COSTS),
]
Algorithms = Annotated[
    str | None,
    option(
        "--paleo-algorithms",
        metavar="FILE",
        help="paleo: algorithm of each convolution and pass. Default: gemm.",
        group=COSTS,
    ),
]
Extensions = Annotated[
    bool,
    option(
        "--paleo-extensions",
        metavar=None,
        help="paleo: cost what PALEO cannot evaluate by the roofline instead of refusing it.",
        group=COSTS,
    ),
]

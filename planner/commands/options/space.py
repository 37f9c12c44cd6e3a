"""The options that say which plans are looked at, and which with a split per layer."""

from __future__ import annotations

from typing import Annotated

from planner.commands.options.panels import LAYERS, SPACE, option

__all__ = [
    "SCALE_FAMILIES",
    "Collective",
    "Family",
    "Fix",
    "MicroBatches",
    "ScaleFamily",
    "Space",
]

Space = Annotated[
    str | None,
    option(
        "--space",
        metavar="NAME",
        help=(
            "mesh: one degree per parallel dimension for the whole network; layers: a split per layer; auto: mesh for "
            "transformers unless an option of the other is given. Default: auto."
        ),
        group=SPACE,
    ),
]
Family = Annotated[
    str | None,
    option(
        "--family",
        metavar="NAME",
        help="Only plans of a family: one-device, data, model, hybrid, pipeline, spatial or mixed. Default: all.",
        group=LAYERS,
    ),
]
Fix = Annotated[
    list[str] | None,
    option(
        "--fix",
        metavar="LAYERS:SPLIT",
        help="Fix how layers are split: 'conv*:batch', 'fc*:out_channels', 'fc6:batch=4,out_channels=2'. Repeatable.",
        group=LAYERS,
    ),
]
Collective = Annotated[
    str | None,
    option(
        "--collective",
        metavar="NAME",
        help="Fix the all-reduce ('planner list collectives'). Default: the cheapest per message.",
        group=LAYERS,
    ),
]
MicroBatches = Annotated[
    str | None,
    option(
        "--num-micro-batches",
        "--micro-batches",
        metavar="N",
        help="Cut every step into N micro-batches, one after the other (accumulation). Default: the best number.",
        group=SPACE,
    ),
]

# --- scaling curves
SCALE_FAMILIES = ("mesh", "data", "model", "hybrid", "pipeline", "spatial", "mixed", "best")
ScaleFamily = Annotated[
    str | None,
    option(
        "--family",
        metavar="NAME",
        help=(
            "mesh (the best plan over a device mesh: transformers), data, model, hybrid (the paper's formula under paleo), pipeline, "
            "spatial, mixed or best (of a split per layer). Default: mesh for transformers, else data."
        ),
        group=SPACE,
    ),
]

"""What a figure shows, before anything draws it: numbers in the units of its axes, and the words for them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "COLOURS",
    "Bars",
    "Dot",
    "Figure",
    "Interval",
    "Line",
    "Lines",
    "Points",
    "Series",
    "Swim",
    "SwimSpan",
    "colour_of",
]

# Colours of what figures distinguish, by name, for light and for dark pages: Okabe and Ito's palette (Color Universal Design, 2008),
# lightened for dark pages. The same word has the same colour in every figure.
COLOURS: dict[str, tuple[str, str]] = {
    "blue": ("#0072b2", "#4ba3dd"),
    "sky": ("#56b4e9", "#8fd0f5"),
    "orange": ("#e69f00", "#f0b429"),
    "vermilion": ("#d55e00", "#ff8a3d"),
    "green": ("#009e73", "#3fc79e"),
    "purple": ("#cc79a7", "#e3a1c6"),
    "yellow": ("#c9b800", "#f0e442"),
    "grey": ("#8a8f98", "#9aa1ab"),
    "ink": ("#3b4048", "#c8ced6"),
    "rose": ("#a34a6b", "#d98aa7"),
}
_BY_WORD = {
    "compute": "blue",
    "forward": "blue",
    "recomputation": "sky",
    "backward": "sky",
    "weight gradient": "green",
    "optimizer": "purple",
    "exposed gradient exchange": "vermilion",
    "data-parallel communication": "vermilion",
    "exchange": "vermilion",
    "tensor-parallel communication": "orange",
    "resharding": "orange",
    "transfer": "orange",
    "context-parallel communication": "yellow",
    "expert-parallel communication": "green",
    "transfers between stages": "rose",
    "pipeline bubble": "grey",
    "offload": "ink",
    "host transfer": "ink",
    "weights": "blue",
    "gradients": "sky",
    "optimizer state and master weights": "purple",
    "activations": "orange",
    "working memory": "green",
    "logits": "yellow",
    "communication buffers": "vermilion",
    "allocator slack": "grey",
    "context of the driver and libraries": "ink",
    "kernels": "blue",
    "waiting for prompts of others and for the slowest stage": "grey",
    "waiting for the host": "ink",
    "earlier chunks of the prompt": "purple",
    "keys and values": "orange",
    "working memory of a pass": "green",
}


def colour_of(word: str, position: int) -> str:
    """Name of a colour: the word's own, or one by position.

    >>> colour_of("compute", 3), colour_of("anything else", 1)
    ('blue', 'vermilion')
    """
    return _BY_WORD.get(word) or ("blue", "vermilion", "green", "orange", "purple", "sky", "grey", "rose")[position % 8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One part of every bar; ``titles`` are shown on hovering."""

    name: str
    values: tuple[float, ...]
    titles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where a measurement would lie, around the end of a bar."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Stacked horizontal bars, one per row; ``limit`` is a line across them."""

    name: str
    caption: str
    axis: str
    rows: tuple[str, ...]
    series: tuple[Series, ...]
    intervals: tuple[Interval | None, ...] = ()  # one per row, or none at all
    limit: float | None = None
    limit_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """One plan between two axes; ``on_front``: no other is better on both."""

    x: float
    y: float
    title: str
    group: str
    on_front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One curve; ``titles`` of its points are shown on hovering. A ``reference`` is drawn dashed, without points."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    titles: tuple[str, ...] = ()
    reference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Plans between two axes, smaller being better on both; the front is drawn as steps. Guides are lines without points."""

    name: str
    caption: str
    x_axis: str
    y_axis: str
    dots: tuple[Dot, ...]
    guides: tuple[Line, ...] = ()
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Curves over a logarithmic axis, with ticks at their points, as for numbers of workers that double, or at round numbers."""

    name: str
    caption: str
    x_axis: str
    y_axis: str
    lines: tuple[Line, ...]
    log_y: bool = False
    round_ticks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SwimSpan:
    """Something on a lane."""

    lane: int
    start: float
    end: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Swim:
    """Lanes over time."""

    name: str
    caption: str
    axis: str
    lanes: tuple[str, ...]
    spans: tuple[SwimSpan, ...]
    end: float


Figure = Bars | Points | Lines | Swim

"""What a figure shows, before anything draws it: numbers in the units of its axes, and the words for them."""

from __future__ import annotations

from dataclasses import dataclass

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
    "waiting for prompts of others": "grey",
    "waiting for a pass and for prompts of others": "grey",
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
class Box:
    """Part of a row: of a bar, or something on a lane; ``title`` is shown on hovering."""

    row: int
    start: float
    end: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Horizontal bars of boxes that follow each other, or lanes over time (``is_timeline``).

    Attributes
    ----------
    whiskers : tuple of (row, low, high)
        Where a measurement would lie, around the end of a bar.
    limit : float or None
        A line across all bars.
    """

    name: str
    caption: str
    axis: str
    rows: tuple[str, ...]
    boxes: tuple[Box, ...]
    is_timeline: bool = False
    whiskers: tuple[tuple[int, float, float], ...] = ()
    limit: float | None = None
    limit_name: str = ""

    @property
    def kinds(self) -> list[str]:
        """What boxes are, in the order of first use."""
        return list(dict.fromkeys(box.kind for box in self.boxes))


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
    """A curve whose points have titles, shown on hovering; without titles a guide. A ``reference`` is a dashed guide."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    titles: tuple[str, ...] = ()
    reference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Dots, smaller (or ``larger``) being better on both axes, their front as steps; or curves, ticks at their points or round numbers."""

    name: str
    caption: str
    x_axis: str
    y_axis: str
    dots: tuple[Dot, ...] = ()
    larger: bool = False
    lines: tuple[Line, ...] = ()
    log_x: bool = False
    log_y: bool = False
    round_ticks: bool = False

    @property
    def xs(self) -> list[float]:
        """Of all dots and lines."""
        return [dot.x for dot in self.dots] + [x for line in self.lines for x in line.xs]

    @property
    def ys(self) -> list[float]:
        """Of all dots and lines."""
        return [dot.y for dot in self.dots] + [y for line in self.lines for y in line.ys]

    @property
    def has_curves(self) -> bool:
        """Whether it is about lines, not dots."""
        return any(line.titles for line in self.lines)

    @property
    def groups(self) -> list[str]:
        """Of the dots, in the order of first use."""
        return list(dict.fromkeys(dot.group for dot in self.dots))

    @property
    def front(self) -> list[tuple[float, float]]:
        """Dots that no other beats, from the left; none where they make no line."""
        found = sorted((dot.x, dot.y) for dot in self.dots if dot.on_front)
        return found if len(found) > 1 else []


Figure = Rows | Plot

"""Figures as PNG: the SVG picture, painted by matplotlib (extra ``plots``)."""

from __future__ import annotations

import importlib
import io
import re
import textwrap
import xml.etree.ElementTree as ET
from typing import Any

from planner.core.errors import MissingExtra
from planner.report.figures.kinds import Figure
from planner.report.figures.svg import draw

_INCHES, _DPI = 8.0, 160
_POINTS = 72.0 * _INCHES  # across the picture
_INK, _SOFT = "#1b1f24", "#59636e"
_LINE = 18.0  # px of a line of the caption
_STEP = re.compile(r"([MLHVv])([^MLHVv]*)")


def png_bytes(figure: Figure) -> bytes:
    """A figure as a PNG file.

    Raises
    ------
    MissingExtra
        matplotlib is not installed.
    """
    try:
        module = importlib.import_module("matplotlib.figure")
        importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError:
        raise MissingExtra("--plot FILE.png", "plots", "matplotlib") from None
    root = ET.fromstring(draw(figure))  # noqa: S314 - of our own making
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    caption = textwrap.wrap(figure.caption, 96)
    top = _LINE * len(caption) + 8.0
    sheet = module.Figure(figsize=(_INCHES, _INCHES * (height + top) / width), dpi=_DPI)
    axes = sheet.add_axes((0.0, 0.0, 1.0, 1.0), xlim=(0.0, width), ylim=(height, -top))
    axes.set_axis_off()
    size = _POINTS / width  # points of a px; all have one zorder, and so are painted in their order
    for n, line in enumerate(caption):
        axes.text(width / 2, _LINE * (n + 0.8) - top, _plain(line), color=_INK, fontsize=12 * size, ha="center")
    for element in root:
        _paint(axes, element, size)
    stream = io.BytesIO()
    # Without a date and a version, the same answer gives the same bytes.
    sheet.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def _plain(words: str) -> str:
    """Words in which a dollar is a dollar, not the beginning of a formula."""
    return words.replace("$", r"\$")


def _paint(axes: Any, element: ET.Element, size: float) -> None:
    """Add one element of the picture; ``size``: points of a px."""
    patches = importlib.import_module("matplotlib.patches")
    given = element.attrib
    if element.tag == "text":
        turned = re.findall(r"-?[\d.]+", given.get("transform", ""))  # translate(x y) rotate(angle)
        x, y, angle = map(float, turned or (given["x"], given["y"], 0.0))
        style = {
            "ha": {"middle": "center", "end": "right"}.get(given["text-anchor"], "left"),
            "va": "baseline",
            "rotation": -angle,
            "rotation_mode": "anchor",
        }
        axes.text(x, y, _plain(element.text or ""), color=_SOFT, fontsize=12 * size, **style)
    elif element.tag == "rect":
        x, y, wide, high = (float(given[name]) for name in ("x", "y", "width", "height"))
        axes.add_patch(patches.Rectangle((x, y), wide, high, color=given["fill"], linewidth=0, zorder=2))
    elif element.tag == "circle":
        x, y, radius = (float(given[name]) for name in ("cx", "cy", "r"))
        opacity = float(given.get("fill-opacity", 1.0))
        axes.add_patch(patches.Circle((x, y), radius, color=given["fill"], alpha=opacity, linewidth=0, zorder=2))
    else:
        wide = float(given.get("stroke-width", 1.0)) * size
        dashes = [float(part) for part in given.get("stroke-dasharray", "").split()]
        for xs, ys in _polylines(given["d"]):
            axes.plot(
                xs,
                ys,
                color=given["stroke"],
                linewidth=wide,
                dashes=dashes or (None, None),
                solid_capstyle="butt",
                zorder=2,
            )


def _polylines(path: str) -> list[tuple[list[float], list[float]]]:
    """Lines of a path of an SVG.

    >>> _polylines("M1 2H5v3M0 0L1 1")
    [([1.0, 5.0, 5.0], [2.0, 2.0, 5.0]), ([0.0, 1.0], [0.0, 1.0])]
    """
    lines: list[tuple[list[float], list[float]]] = []
    for step, words in _STEP.findall(path):
        numbers = [float(word) for word in words.split()]
        if step == "M":
            lines.append(([], []))
        xs, ys = lines[-1]
        xs.append(xs[-1] if step in "Vv" else numbers[0])
        ys.append(ys[-1] if step == "H" else ys[-1] + numbers[0] if step == "v" else numbers[-1])
    return lines

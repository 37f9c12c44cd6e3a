"""How the parts of a transformer become blocks, and blocks a stack: before or after the norm, side by side, repeated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.importers.hugging_face.parts import Entry, Norm, dropout, entry

__all__ = ["Use", "block", "parallel_block", "post_norm_block", "stack"]


@dataclass(frozen=True, slots=True)  # two obvious fields, made by the thousand
class Use:
    """One layer of a config: which block, and the window of its attention (0: all positions)."""

    block: str
    window: int = 0


def block(
    norm: Norm,
    parts: Sequence[Sequence[Entry]],
    *,
    rate: float = 0.0,
    norms: str = "before",
    residual_is_normed: bool = False,
) -> list[Entry]:
    """Parts one after the other, each normalised (before: pre-norm) and added to what it read.

    Parameters
    ----------
    norm : callable
        Name -> normalisation.
    parts : sequence of lists of entries
        The first entry of each reads the normalised input.
    rate : float
        Dropout of every part's result.
    norms : str
        Normalise what every part reads ("before"), what it returns ("after", OLMo 2), or "both" (Gemma 2).
    residual_is_normed : bool
        Add to the normalised input instead (an option of BLOOM).
    """
    layers: list[Entry] = []
    before = "input"
    for number, part in enumerate(parts, 1):
        if norms != "after":
            layers.append(norm(f"norm{number}"))
        layers += [*part, *dropout(f"dropout{number}", rate)]
        if norms != "before":
            layers.append(norm(f"norm{number}_after"))
        other = f"norm{number}" if residual_is_normed else before
        layers.append(entry(f"add{number}", "add", [layers[-1]["name"], other]))
        before = f"add{number}"
    return layers


def post_norm_block(norm: Norm, parts: Sequence[Sequence[Entry]], *, rate: float = 0.0) -> list[Entry]:
    """Parts one after the other, each added to what it read and normalised then (the first transformer, BERT)."""
    layers: list[Entry] = []
    before = "input"
    for number, part in enumerate(parts, 1):
        layers += [*part, *dropout(f"dropout{number}", rate)]
        layers += [entry(f"add{number}", "add", [layers[-1]["name"], before]), norm(f"norm{number}")]
        before = f"norm{number}"
    return layers


def parallel_block(
    norm: Norm, attending: Sequence[Entry], feeding: Sequence[Entry], *, norms: int, rate: float = 0.0
) -> list[Entry]:
    """Attention and feed-forward part side by side, one sum of both and the input (GPT-J; PaLM, arXiv:2204.02311).

    Parameters
    ----------
    norm : callable
    attending, feeding : lists of entries
    norms : int
        1: both read the same normalised input; 2: each has a norm of its own.
    rate : float
        Dropout of both results.
    """
    layers: list[Entry] = [norm("norm1"), *attending, *dropout("dropout1", rate)]
    attended = layers[-1]["name"]
    if norms == 2:
        own = norm("norm2")
        layers += [{**own, "inputs": "input"}, *feeding]
    else:
        first = feeding[0]
        layers += [{"name": first["name"], "type": first["type"], "inputs": "norm1", **first}, *feeding[1:]]
    layers += dropout("dropout2", rate)
    return [*layers, entry("add", "add", [attended, layers[-1]["name"], "input"])]


def stack(
    uses: Iterable[Use], bodies: Mapping[str, Callable[[int], list[Entry]]]
) -> tuple[dict[str, Any], list[Entry]]:
    """Blocks and their uses: runs of equal layers are one entry each.

    Layers that alternate stay entries of their own (not a block of two): a pipeline is cut between repetitions of blocks.

    Parameters
    ----------
    uses : iterable of Use
        The layers of the config, in order.
    bodies : mapping
        Block -> function that makes its layers, given the window of attention.

    Returns
    -------
    blocks : dict
        For the network file; a block that is used with and without a window is two.
    layers : list of entries
        Named ``blocks``, or ``blocks_3`` for the run that starts with the fourth layer.
    """
    layers = list(uses)
    names: dict[Use, str] = {}
    for use in sorted(set(layers), key=lambda use: (use.block, use.window)):
        is_alone = len({other.window for other in layers if other.block == use.block}) == 1
        names[use] = use.block if is_alone or not use.window else f"{use.block}_window"
    blocks = {names[use]: {"layers": bodies[use.block](use.window)} for use in names}
    runs = [(use, len(list(run))) for use, run in itertools.groupby(layers)]
    entries: list[Entry] = []
    first = 0
    for use, repeat in runs:
        name = f"blocks_{first}" if len(runs) > 1 else "blocks"
        entries.append({"name": name, "block": names[use], "repeat": repeat})
        first += repeat
    return blocks, entries

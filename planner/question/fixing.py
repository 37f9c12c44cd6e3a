"""Options that fix a part of the plan: --family, and --fix LAYERS:SPLIT."""

from __future__ import annotations

import dataclasses
import math

from costmodel.layerwise.splits import Split
from planner.core.errors import UnknownName, UsageError
from planner.core.request import Request
from planner.files.loading import LoadedModel
from strategies.layerwise.space import FAMILY_NAMES, Restriction, fixed_by_patterns

__all__ = ["parse_fix", "restriction_of"]


def restriction_of(request: Request, model: LoadedModel | None) -> Restriction:
    """What a request fixes of the plans: splits of layers (--fix) and a family; nothing where the network is not known.

    Raises
    ------
    UsageError
        A pattern that fits no layer, splits that layers do not have or that need more workers than there are.
    """
    if request.family is not None and request.family not in FAMILY_NAMES:
        raise UnknownName(kind="family", name=request.family, known=FAMILY_NAMES)
    patterns = [parse_fix(text) for text in request.fix]
    if model is None:
        return Restriction()  # the layers are not known; that is reported already
    try:
        fixed = fixed_by_patterns(model.graph, patterns)
    except ValueError as error:
        raise UsageError(f"--fix: {error}") from None
    for text, (_, degrees) in zip(request.fix, patterns, strict=True):
        needed = math.prod(max(degree, 1) for degree in degrees.values())
        if needed > request.gpus:
            raise UsageError(f"--fix '{text}' needs {needed} workers, and --gpus is {request.gpus}")
    return Restriction(fixed=fixed, family=request.family)


def parse_fix(text: str) -> tuple[str, dict[str, int]]:
    """Read ``conv*:batch`` (all workers along one dimension) or ``fc6:batch=4,out_channels=2``.

    Raises
    ------
    UsageError
        Not of this form, an unknown dimension, a degree that is not a positive whole number.

    Examples
    --------
    >>> parse_fix("fc*:out_channels"), parse_fix("fc6:batch=4,out_channels=2")
    (('fc*', {'out_channels': 0}), ('fc6', {'batch': 4, 'out_channels': 2}))
    """
    pattern, colon, rest = text.rpartition(":")
    if not colon or not pattern or not rest:
        raise UsageError(f"--fix '{text}': write LAYERS:DIMENSION, e.g. 'conv*:batch' or 'fc6:batch=4,out_channels=2'")
    dimensions = tuple(field.name for field in dataclasses.fields(Split))
    degrees: dict[str, int] = {}
    for part in rest.split(","):
        name, equals, value = part.strip().partition("=")
        if name not in dimensions:
            raise UnknownName(kind=f"--fix '{text}': dimension", name=name, known=dimensions)
        if equals and not (value.isascii() and value.isdigit() and int(value) >= 1):
            raise UsageError(f"--fix '{text}': '{value}' is not a positive whole number")
        degrees[name] = int(value) if equals else 0
    if len(degrees) > 1 and 0 in degrees.values():
        raise UsageError(f"--fix '{text}': give every dimension its degree when there are several")
    return pattern, degrees

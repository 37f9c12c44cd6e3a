"""A question as plain data (JSON), to be answered in another process or on another machine, and what identifies its answer."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.core.request import Request

__all__ = ["from_plain", "key_of", "to_plain"]

_NAMES = ("model", "cluster", "device", "calibration", "framework")  # names or paths
# What an answer does not depend on.
_WORDS_ONLY = ("command_line",)


def to_plain(request: Request) -> dict[str, Any]:
    """Request -> JSON values; paths become absolute, so that the working folder makes no difference.

    >>> to_plain(Request(model="alexnet", gpus=16))["gpus"]
    16
    """
    plain = dataclasses.asdict(request)
    for name in _NAMES:
        text = plain[name]
        if text is not None and Path(text).exists():
            plain[name] = str(Path(text).resolve())
    if request.paleo_algorithms is not None:
        plain["paleo_algorithms"] = str(request.paleo_algorithms.resolve())
    return dict(json.loads(json.dumps(plain)))


def from_plain(plain: Mapping[str, Any]) -> Request:
    """JSON values -> Request.

    >>> request = Request(model="alexnet", gpus=16, assume=(("dp_overlap", 0.5),))
    >>> from_plain(to_plain(request)) == request
    True
    """
    fields = dict(plain)
    fields["fix"] = tuple(fields["fix"])
    fields["assume_free"] = tuple(fields["assume_free"])
    fields["assume"] = tuple((name, value) for name, value in fields["assume"])
    if fields["power_w"] is not None:
        fields["power_w"] = tuple(fields["power_w"])
    if fields["paleo_algorithms"] is not None:
        fields["paleo_algorithms"] = Path(fields["paleo_algorithms"])
    if fields["mesh"] is not None:
        from strategies.mesh.settings import Bounds, MeshRestriction

        mesh = fields["mesh"]
        fields["mesh"] = MeshRestriction(
            degrees={
                name: Bounds(low=bounds["low"], high=bounds["high"], values=tuple(bounds["values"]))
                for name, bounds in mesh["degrees"].items()
            },
            names={name: tuple(values) for name, values in mesh["names"].items()},
            flags=mesh["flags"],
        )
    return Request(**fields)


def key_of(plain: Mapping[str, Any], inputs: Mapping[str, str], version: str) -> str:
    """What identifies an answer: the question, the content of its files, and the program that answers.

    Parameters
    ----------
    plain : mapping
        Of `to_plain`.
    inputs : mapping of str to str
        Role of a file -> sha256 of its content.
    version : str
        Of the planner.
    """
    question = {name: value for name, value in plain.items() if name not in _WORDS_ONLY}
    text = json.dumps([question, dict(inputs), version], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]

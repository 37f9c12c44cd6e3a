"""From keywords to a request: values become the words of the command line's options, which its checks read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.api.inputs import reference_to
from planner.api.options import ALIASES, words_of
from planner.commands.mesh_options import MESH_OPTIONS
from planner.commands.question import request_from
from planner.commands.serving_options import SERVING_OPTIONS, serving_from
from planner.commands.values import Values
from planner.core.errors import UsageError
from planner.core.request import Request

__all__ = ["request_of", "words_for"]


def words_for(model: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as the words that the command line gives to its checks; objects by name or path."""
    given = dict(options)
    for alias, name in ALIASES.items():
        value = given.pop(alias, None)
        if value is not None and given.get(name) is not None:
            raise UsageError(f"{name} and {alias} are the same; give one of them")
        if value is not None:
            given[name] = value
    for name, kind in (
        ("cluster", "clusters"),
        ("device", "devices"),
        ("calibration", "calibrations"),
        ("framework", "frameworks"),
    ):
        if given.get(name) is not None:
            given[name] = reference_to(kind, given[name])  # type: ignore[arg-type]
    if given.get("paleo_algorithms") is not None:
        given["paleo_algorithms"] = Path(given["paleo_algorithms"]).absolute()
    words = words_of(given)
    if model is not None:
        words["model"] = reference_to("models", model)
        length = getattr(model, "seq", None)  # of a network that was loaded, perhaps with another than its file's
        if length is not None and "seq" not in words:
            words["seq"] = str(length)
    mesh = {name: words.pop(name, None) for name in MESH_OPTIONS}
    serving = {name: words.pop(name, None) for name in SERVING_OPTIONS}
    return {"model": None, **words, "mesh": mesh, "serving": serving}


def request_of(words: Mapping[str, Any], values: Values, call: str) -> Request:
    """The question that words ask, with the call that asks it; everything wrong with them is raised."""
    request = serving_from(words["serving"], request_from(words, values), values)
    values.check()
    return dataclasses.replace(request, command_line=call)

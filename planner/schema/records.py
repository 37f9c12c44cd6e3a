"""How the schemas of results are declared: a record is a name, a sentence and its keys, each with its type and what it means.

::

    LinkEntry = record(
        "LinkEntry",
        "One kind of traffic of a plan.",
        traffic=key(str, "What travels."),
        group=key(int, "Ranks that take part together.", ge=2),
        waiting_s=key(Seconds, "Of a step."),
    )

Times are in seconds, sizes in bytes, rates per second; a value that does not exist is null, never NaN or infinity. Nothing of the planner
reads results: the models publish the JSON Schema, and tests check answers by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Union

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

Number = Annotated[float, Field(allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Seconds = Amount
Count = Annotated[int, Field(ge=0)]


class Result(BaseModel):
    """Part of an answer."""

    # Keys that later versions add are no error for a program that reads by this schema.
    model_config = ConfigDict(extra="ignore", frozen=True)


def key(kind: Any, doc: str | None = None, /, **options: Any) -> tuple[Any, Any]:
    """Type of a key, what it means, and its default and limits as in ``pydantic.Field``."""
    return kind, Field(description=doc, **options)


def record(name: str, doc: str | None, /, *bases: Any, **keys: Any) -> Any:
    """Make a model; a key is a type or what `key` returns.

    Examples
    --------
    >>> record("Point", "A point.", x=key(Number, "To the right."), y=Number)(x=1.0, y=2.0)
    Point(x=1.0, y=2.0)
    """
    fields: dict[str, Any] = {name: kind if isinstance(kind, tuple) else (kind, ...) for name, kind in keys.items()}
    base: Any = bases if len(bases) > 1 else bases[0] if bases else Result
    model: Any = create_model(name, __base__=base, __doc__=doc, __module__=__name__, **fields)
    return model


LOW = "A measurement lies between this and `step_time_high_s` with a chance of 80 %; null: no error model."
# The interval of a predicted step time.
INTERVAL = {
    "step_time_low_s": key(Seconds | None, LOW, default=None),
    "step_time_high_s": key(Seconds | None, default=None),
}


def several(model: Any) -> Any:
    """Type of a list of records."""
    return list.__class_getitem__(model)


def any_of(name: str, doc: str, models: Sequence[Any]) -> Any:
    """Make a model of a document that is one of several."""
    union: Any = Union[tuple(models)]  # noqa: UP007 - of a list
    return create_model(name, __base__=RootModel[union], __doc__=doc, __module__=__name__)

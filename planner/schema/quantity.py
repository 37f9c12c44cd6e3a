"""Field types for quantities with units, fractions and sources, shared by the device and the cluster files."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from planner.core.errors import did_you_mean
from planner.core.quantities import QuantityError, parse_quantity
from planner.schema.common import Text, fail, plain_number

__all__ = [
    "Bandwidth",
    "Bytes",
    "FlopRate",
    "Fraction",
    "Frequency",
    "HalfSize",
    "Power",
    "Price",
    "Seconds",
    "Sources",
    "check_sources",
]


def _reader(dimension: str, *, zero: bool) -> BeforeValidator:
    def read(value: Any) -> Any:
        try:
            number = parse_quantity(value, dimension)
        except QuantityError as error:
            fail(str(error))
        if number == 0 and not zero:
            fail(f"'{value}' is zero; expected more")
        return number

    return BeforeValidator(read)


def _text(example: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": "a number and a unit", "examples": [example]})


Bytes = Annotated[float, _reader("bytes", zero=False), _text("80 GiB")]
Bandwidth = Annotated[float, _reader("bytes_per_s", zero=False), _text("900 GB/s")]
FlopRate = Annotated[float, _reader("flop_per_s", zero=False), _text("989 TFLOP/s")]
Frequency = Annotated[float, _reader("hz", zero=False), _text("1410 MHz")]
Power = Annotated[float, _reader("watts", zero=False), _text("700 W")]
Seconds = Annotated[float, _reader("seconds", zero=True), _text("5 us")]


Fraction = Annotated[float, Field(gt=0.0, le=1.0), BeforeValidator(plain_number)]
HalfSize = Annotated[float, Field(ge=0.0, le=1e12), BeforeValidator(plain_number)]
Price = Annotated[float, Field(gt=0.0, le=1e6), BeforeValidator(plain_number)]
Sources = Annotated[dict[str, Text], Field(max_length=100)]


def check_sources(sources: dict[str, str], model: type[BaseModel]) -> None:
    """Refuse a source for a key that the file does not have."""
    keys = [name for name in model.model_fields if name not in ("schema_version", "source")]
    for key in sources:
        if key not in keys:
            fail(f"'{key[:60]}' is not a key of this file{did_you_mean(key, keys)}", at="source")

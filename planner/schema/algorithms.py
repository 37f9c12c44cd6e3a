"""File format of the convolution algorithms that the ``paleo`` cost model is told to use, pass by pass.

::

    schema_version: 1
    algorithms:
      conv2: {forward: gemm, backward_input: fft_tiling, backward_weight: fft}
      conv3: {forward: fft}            # the others stay matrix products
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from costmodel.paleo.convolution import ALGORITHMS
from planner.core.errors import did_you_mean
from planner.schema.common import FileModel, Text, fail

__all__ = ["AlgorithmsEntry", "AlgorithmsFile"]

# A pass that PALEO does not compute (the gradient of the first layer's input) may be written so.
_KNOWN = (*ALGORITHMS, "skip")


def _algorithm(value: Any) -> Any:
    if not isinstance(value, str) or value not in _KNOWN:
        hint = did_you_mean(value, _KNOWN) if isinstance(value, str) else ""
        fail(f"algorithm '{value}' is not known{hint} (known: {', '.join(_KNOWN)})")
    return value


Algorithm = Annotated[str, BeforeValidator(_algorithm), Field(json_schema_extra={"enum": list(_KNOWN)})]


class AlgorithmsEntry(FileModel):
    """Algorithms of one convolution."""

    forward: Algorithm = Field(default="gemm", description="forward pass")
    backward_input: Algorithm = Field(default="gemm", description="gradient of the input")
    backward_weight: Algorithm = Field(default="gemm", description="gradient of the weights")


class AlgorithmsFile(FileModel):
    """Algorithms by layer."""

    schema_version: Literal[1] = Field(description="version of this file format")
    description: Text = ""
    source: Text = Field(default="", description="where the choices come from")
    algorithms: dict[str, AlgorithmsEntry] = Field(description="layer -> algorithm of each pass")
